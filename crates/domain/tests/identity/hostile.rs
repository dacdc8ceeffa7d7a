//! Input that wants to be expensive, deep, large or talkative.

use std::borrow::Cow;

use command_ledger_domain::canonical::{Pointer, canonical, write_canonical};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::{Json, MAX_DEPTH, MAX_TEXT_BYTES};

use crate::support::text_of;

fn nested(depth: usize) -> Json<'static> {
    (0..depth).fold(Json::Null, |inner, level| match level % 2 {
        0 => Json::Array(vec![inner]),
        _ => Json::Object(vec![(Cow::Borrowed("a"), inner)]),
    })
}

#[test]
fn depth_128_is_taken_and_depth_129_is_not() {
    let (inside, outside) = (nested(MAX_DEPTH), nested(MAX_DEPTH + 1));
    assert!(canonical(&inside).is_ok());
    assert!(Json::parse(&inside.to_json_text()).is_ok());
    assert_eq!(canonical(&outside).unwrap_err().code, Code::JsonOutOfBounds);
    assert_eq!(Json::parse(&outside.to_json_text()).unwrap_err().code, Code::JsonOutOfBounds);
}

#[test]
fn depth_counts_open_levels_and_not_containers() {
    assert!(text_of(&format!("[{}[]]", "[],{\"a\":{}},".repeat(1000))).is_ok());
}

#[test]
fn a_million_opening_brackets_are_refused_without_descending() {
    for open in ["[", "{\"a\":"] {
        let refused = Json::parse(&open.repeat(150_000)).unwrap_err();
        assert_eq!(refused.code, Code::JsonOutOfBounds);
    }
}

#[test]
fn one_mebibyte_of_text_is_taken_and_a_byte_more_is_not() {
    let inside = Json::String("x".repeat(MAX_TEXT_BYTES - 2).into());
    let outside = Json::String("x".repeat(MAX_TEXT_BYTES - 1).into());
    assert_eq!(canonical(&inside).unwrap().len(), MAX_TEXT_BYTES);
    assert_eq!(canonical(&outside).unwrap_err().code, Code::JsonOutOfBounds);
    assert!(Json::parse(&inside.to_json_text()).is_ok());
    assert_eq!(Json::parse(&outside.to_json_text()).unwrap_err().code, Code::JsonOutOfBounds);
}

#[test]
fn text_that_grows_beyond_one_mebibyte_is_refused() {
    let refusal = |json: &Json<'_>| canonical(json).err().map(|error| error.code);
    let escapes = Json::String("\u{1}".repeat(MAX_TEXT_BYTES / 6 + 1).into());
    assert_eq!(refusal(&escapes), Some(Code::JsonOutOfBounds));
    // Five bytes come in for each number, and 401 go out.
    let numbers = Json::Array(vec![Json::Number("1e400".into()); 4000]);
    assert_eq!(refusal(&numbers), Some(Code::JsonOutOfBounds));
    let commas = Json::Array(vec![Json::Array(vec![]); MAX_TEXT_BYTES / 3 + 1]);
    assert_eq!(refusal(&commas), Some(Code::JsonOutOfBounds));
}

#[test]
fn the_bound_counts_from_the_value_and_a_refusal_leaves_nothing_behind() {
    let mut out = "before".repeat(200_000);
    let length = out.len();
    write_canonical(&Json::parse("[1,2]").unwrap(), &[], &mut out).unwrap();
    assert_eq!(&out[length..], "[1,2]");
    out.truncate(length);
    write_canonical(&Json::parse("[1,\"x\"]").map(|_| nested(200)).unwrap(), &[], &mut out).unwrap_err();
    assert_eq!(out.len(), length);
}

#[test]
fn two_members_of_one_name_in_a_tree_are_refused() {
    for count in [2, 100] {
        let mut members: Vec<(Cow<'_, str>, Json<'_>)> =
            (1..count).map(|n| (Cow::Owned(format!("n{n}")), Json::Null)).collect();
        members.push((Cow::Borrowed("n1"), Json::Bool(true)));
        let refused = canonical(&Json::Array(vec![Json::Object(members)])).unwrap_err();
        assert_eq!(refused.code, Code::InvalidParams);
        assert_eq!(refused.detail.as_deref(), Some("at JSON pointer \"/0/n1\""));
    }
}

#[test]
fn absent_null_empty_object_and_empty_array_are_four_things() {
    let mut texts: Vec<String> =
        ["{}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[]}"].iter().map(|text| text_of(text).unwrap()).collect();
    texts.dedup();
    assert_eq!(texts, ["{}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[]}"]);
}

#[test]
fn no_refusal_shows_a_value() {
    let secret = "s3cr3t-4711";
    let texts = [
        format!("{{\"card\":\"{secret}\\q\"}}"),
        format!("{{\"card\":\"{secret}\",}}"),
        format!("{{\"card\":\"{secret}\",\"card\":\"{secret}\"}}"),
        format!("[\"{secret}\"] \"{secret}\""),
        format!("{{\"amount\":{}}}", "4711".repeat(200)),
        "{\"amount\":4711e4711}".to_owned(),
        format!("[\"{secret}\\ud800\"]"),
    ];
    for text in texts {
        let LedgerError { message, detail, hint, .. } = Json::parse(&text).unwrap_err();
        let shown = format!("{message} {detail:?} {hint:?}");
        assert!(!shown.contains("s3cr3t") && !shown.contains("4711"), "{shown}");
    }
}

#[test]
fn a_detail_stays_short_and_on_one_line_however_long_the_names_are() {
    let name = "é".repeat(3000);
    let error = Json::parse(&format!("{{\"a\\nb\":{{\"{name}\":[tru]}}}}")).unwrap_err();
    let detail = error.detail.unwrap();
    assert!(detail.len() < 400 && !detail.contains('\n') && detail.contains('…'), "{detail}");
}

#[test]
fn an_immaterial_member_may_be_beyond_the_bounds_because_it_is_not_written() {
    let json = Json::Object(vec![("note".into(), nested(300)), ("a".into(), Json::Null)]);
    let mut out = String::new();
    write_canonical(&json, &[Pointer::parse("/note").unwrap()], &mut out).unwrap();
    assert_eq!(out, "{\"a\":null}");
}

#[test]
fn pointers_drop_members_of_objects_and_nothing_else() {
    let json = Json::parse(r#"{"a":{"note":1,"b":{"note":2,"c":3}},"l":[{"note":4}],"note":5,"s":"note"}"#).unwrap();
    let without = |pointers: &[&str]| {
        let skip: Vec<Pointer> = pointers.iter().map(|text| Pointer::parse(text).unwrap()).collect();
        let mut out = String::new();
        write_canonical(&json, &skip, &mut out).unwrap();
        out
    };
    let whole = canonical(&json).unwrap();
    assert_eq!(without(&["/note", "/a/b/note"]), r#"{"a":{"b":{"c":3},"note":1},"l":[{"note":4}],"s":"note"}"#);
    assert_eq!(without(&["/a/b/note", "/a/b/c"]), r#"{"a":{"b":{},"note":1},"l":[{"note":4}],"note":5,"s":"note"}"#);
    assert_eq!(without(&["/a", "/a/b"]), r#"{"l":[{"note":4}],"note":5,"s":"note"}"#);
    for nothing in ["/l/note", "/s/note", "/absent", "/a/absent/x", "/note/x", "/"] {
        assert_eq!(without(&[nothing]), whole, "{nothing}");
    }
}

#[test]
fn a_pointer_that_cannot_be_meant_is_refused_when_it_is_defined() {
    let long = format!("/{}", "x".repeat(1024));
    for text in [
        "",
        "note",
        "#/note",
        "/a~",
        "/a~2",
        "/l/0",
        "/l/0/note",
        "/0",
        "/l/-",
        "/l/99999999999999999999999",
        &long,
        &"/a".repeat(129),
    ] {
        assert_eq!(Pointer::parse(text).unwrap_err().code, Code::InvalidDefinition, "{text}");
    }
    for text in ["/note", "/a~1b/~0", "/", "/00", "/0x", "/-1", "/ü"] {
        assert_eq!(Pointer::parse(text).unwrap().to_string(), text);
    }
}
