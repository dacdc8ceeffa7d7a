//! The strict reader and the tree.

use command_ledger_domain::error::Code;
use command_ledger_domain::json::Json;

fn refused(text: &str) -> (Code, String, String) {
    let error = Json::parse(text).expect_err(text);
    (error.code, error.message, error.detail.unwrap_or_default())
}

#[test]
fn number_text_and_member_order_are_kept() {
    let text = r#"{"b":1.50,"a":[1E+2,-0,0.10],"é":"ü\n"}"#;
    assert_eq!(Json::parse(&format!(" \r\n\t{text} ")).unwrap().to_json_text(), text);
}

#[test]
fn every_escape_is_read() {
    let json = Json::parse(r#""\"\\\/\b\f\n\r\tA\u00e9\u20AC\ud83d\uDE00\uffff""#).unwrap();
    assert_eq!(json.as_str().unwrap(), "\"\\/\u{8}\u{c}\n\r\tAé€😀\u{ffff}");
}

#[test]
fn what_is_not_exactly_one_json_value_is_refused() {
    let texts = [
        "",
        " ",
        "nul",
        "nulll",
        "True",
        "'a'",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "1 2",
        "[] []",
        "{}x",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\t\"",
        "\"\n\"",
        "\"\u{1f}\"",
        "01",
        "+1",
        "1.",
        ".1",
        "1e",
        "--1",
        "1.e5",
        "-",
        "NaN",
        "\u{feff}1",
        "\u{a0}1",
        "/* */1",
        "[1]]",
        "\u{0}",
    ];
    for text in texts {
        assert_eq!(refused(text).0, Code::InvalidParams, "{text:?}");
    }
}

#[test]
fn a_refusal_tells_the_byte_and_the_pointer() {
    let (_, message, detail) = refused(r#"{"a": [1, {"b/c": tru}]}"#);
    assert_eq!(message, "a JSON value was expected here");
    assert_eq!(detail, "at byte 18 of the text, JSON pointer \"/a/1/b~1c\"");
    assert_eq!(refused("[1, 2").2, "at byte 5 of the text, JSON pointer \"\"");
}

#[test]
fn a_member_that_stands_twice_is_refused_after_unescaping() {
    for text in [r#"{"a":1,"a":1}"#, r#"{"a":1,"b":2,"\u0061":3}"#, r#"{"x":[{"a":{},"a":{}}]}"#] {
        let (code, message, _) = refused(text);
        assert_eq!((code, message.as_str()), (Code::InvalidParams, "a member name stands twice in one object"));
    }
    assert_eq!(refused(r#"{"x":[0,{"a":{},"a":{}}]}"#).2, "at byte 9 of the text, JSON pointer \"/x/1/a\"");
    let mut many: Vec<String> = (0..500).map(|n| format!("\"n{n}\":0")).collect();
    assert!(Json::parse(&format!("{{{}}}", many.join(","))).is_ok());
    many.push("\"n2\\u0037\":0".to_owned());
    assert_eq!(refused(&format!("{{{}}}", many.join(","))).2, "at byte 1 of the text, JSON pointer \"/n27\"");
}

#[test]
fn names_that_differ_in_case_or_normal_form_are_different_members() {
    assert_eq!(Json::parse("{\"a\":1,\"A\":2,\"\u{c5}\":3,\"A\u{30a}\":4}").unwrap().as_object().unwrap().len(), 4);
}

#[test]
fn half_of_a_surrogate_pair_is_refused() {
    for text in [
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\ud83d\ud83d""#,
        r#""\ud83d\u0041""#,
        r#""\ude00\ud83d""#,
    ] {
        let (code, message, _) = refused(text);
        assert_eq!((code, message.as_str()), (Code::InvalidParams, "an escape is half of a surrogate pair"), "{text}");
    }
}

#[test]
fn the_character_that_postgresql_cannot_store_is_refused() {
    for text in [r#""a\u0000""#, r#"{"\u0000":1}"#] {
        assert!(refused(text).1.contains("\\u0000"), "{text}");
    }
}

#[test]
fn get_and_pointer_find_what_rfc_6901_says() {
    // RFC 6901, section 5.
    let text = r#"{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, "k\"l": 6, " ": 7, "m~n": 8}"#;
    let json = Json::parse(text).unwrap();
    assert_eq!(json.pointer(""), Some(&json));
    assert_eq!(json.pointer("/foo/1").unwrap().as_str(), Some("baz"));
    let names = ["/", "/a~1b", "/c%d", "/e^f", "/g|h", "/i\\j", "/k\"l", "/ ", "/m~0n"];
    for (value, pointer) in names.iter().enumerate() {
        assert_eq!(json.pointer(pointer), Some(&Json::Number(value.to_string().into())), "{pointer}");
    }
    for nothing in [
        "foo",
        "/foo/2",
        "/foo/01",
        "/foo/-",
        "/foo/+1",
        "/foo/",
        "/foo/99999999999999999999999",
        "/m~n",
        "/m~",
        "/m~2n",
        "/foo/0/x",
        "/b",
    ] {
        assert_eq!(json.pointer(nothing), None, "{nothing}");
    }
    assert_eq!(json.get("a/b"), json.pointer("/a~1b"));
    assert_eq!(json.get("absent"), None);
    assert_eq!(Json::Null.get("a"), None);
}

#[test]
fn an_owned_copy_is_equal() {
    let text = String::from(r#"{"a":[null,true,1.0,"x"],"b":{}}"#);
    let owned = Json::parse(&text).map(Json::into_owned).unwrap();
    assert_eq!(owned, Json::parse(&text).unwrap());
}

#[test]
fn serde_json_values_keep_every_digit() {
    let text = r#"{"a":[9007199254740993,0.10000000000000001,1e-400,123456789012345678901234567890.5]}"#;
    let value = Json::parse(text).unwrap().to_value().unwrap();
    assert_eq!(value["a"][0].to_string(), "9007199254740993");
    assert_eq!(Json::from_value(&value).to_json_text(), text);
}

#[test]
fn an_object_that_looks_like_the_number_of_serde_json_stays_an_object() {
    let json = Json::parse(r#"{"$serde_json::private::Number":"1e999999999"}"#).unwrap();
    assert!(json.to_value().unwrap().is_object());
}
