//! The examples of RFC 8785. Where the ledger departs from it (no number is rounded) the test says so.

use command_ledger_domain::canonical::canonical;
use command_ledger_domain::json::Json;

use crate::support::{scientific, text_of};

/// Section 3.2.2, whose first number is not the shortest text of a double.
const SAMPLE: &str = r#"{
  "numbers": [333333333.33333329, 1E30, 4.50,
              2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"#;

#[test]
fn sample_of_section_3_2_2_keeps_the_digits_that_jcs_rounds_away() {
    let expected = "{\"literals\":[null,true,false],\"numbers\":[333333333.33333329,1e+30,4.5,0.002,1e-27],\
                    \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
    assert_eq!(text_of(SAMPLE).unwrap(), expected);
}

#[test]
fn sample_of_section_3_2_4_has_the_bytes_printed_there() {
    let sample = SAMPLE.replace("333333333.33333329", "333333333.3333333");
    let expected = "
        7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72
        75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73 22 3a
        5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31
        65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31 65 2d 32 37
        5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30
        30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d";
    let expected: Vec<u8> = expected.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(text_of(&sample).unwrap().as_bytes(), expected);
}

#[test]
fn members_of_section_3_2_3_are_sorted_by_utf16_code_units() {
    let sample = r#"{
      "\u20ac": "Euro Sign",
      "\r": "Carriage Return",
      "\ufb33": "Hebrew Letter Dalet With Dagesh",
      "1": "One",
      "\ud83d\ude00": "Emoji: Grinning Face",
      "\u0080": "Control",
      "\u00f6": "Latin Small Letter O With Diaeresis"
    }"#;
    let expected = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\
                    \"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\
                    \"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}";
    assert_eq!(text_of(sample).unwrap(), expected);
}

#[test]
fn members_of_inner_objects_are_sorted_and_elements_are_not() {
    let sample = r#"{"b": [{"z": 1, "a": {"d": 1, "c": 2}}, 3, 2], "a": {}, "": []}"#;
    assert_eq!(text_of(sample).unwrap(), r#"{"":[],"a":{},"b":[{"a":{"c":2,"d":1},"z":1},3,2]}"#);
}

#[test]
fn a_name_comes_before_the_longer_name_that_begins_with_it() {
    assert_eq!(text_of(r#"{"ab":1,"a":2,"aa":3,"b":4}"#).unwrap(), r#"{"a":2,"aa":3,"ab":1,"b":4}"#);
}

#[test]
fn many_members_are_sorted_like_few() {
    let reversed: Vec<String> = (100..400).rev().map(|n| format!("\"n{n}\":{n}")).collect();
    let sorted: Vec<String> = (100..400).map(|n| format!("\"n{n}\":{n}")).collect();
    assert_eq!(text_of(&format!("{{{}}}", reversed.join(","))).unwrap(), format!("{{{}}}", sorted.join(",")));
}

#[test]
fn strings_have_the_escapes_of_section_3_2_2_2() {
    for point in 1..=0x7fu32 {
        let c = char::from_u32(point).unwrap();
        let expected = match c {
            '\u{8}' => "\\b".to_owned(),
            '\t' => "\\t".to_owned(),
            '\n' => "\\n".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            '\r' => "\\r".to_owned(),
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\u{1}'..='\u{1f}' => format!("\\u{point:04x}"),
            other => other.to_string(),
        };
        let text = canonical(&Json::String(c.to_string().into())).unwrap();
        assert_eq!(text, format!("\"{expected}\""), "U+{point:04X}");
        assert_eq!(text_of(&format!("\"\\u{point:04X}\"")).unwrap(), text, "U+{point:04X}");
    }
}

#[test]
fn text_is_not_normalised() {
    // Section 3.1: an A with a ring as one character, as letter and combining ring, and as the Angstrom sign.
    let texts: Vec<String> =
        ["\"\u{c5}\"", "\"A\u{30a}\"", "\"\u{212b}\""].iter().map(|json| text_of(json).unwrap()).collect();
    assert_eq!(texts, ["\"\u{c5}\"", "\"A\u{30a}\"", "\"\u{212b}\""]);
}

/// Appendix B.
const DOUBLES: &[(u64, &str)] = &[
    (0x0000000000000000, "0"),
    (0x8000000000000000, "0"),
    (0x0000000000000001, "5e-324"),
    (0x8000000000000001, "-5e-324"),
    (0x7fefffffffffffff, "1.7976931348623157e+308"),
    (0xffefffffffffffff, "-1.7976931348623157e+308"),
    (0x4340000000000000, "9007199254740992"),
    (0xc340000000000000, "-9007199254740992"),
    (0x4430000000000000, "295147905179352830000"),
    (0x44b52d02c7e14af5, "9.999999999999997e+22"),
    (0x44b52d02c7e14af6, "1e+23"),
    (0x44b52d02c7e14af7, "1.0000000000000001e+23"),
    (0x444b1ae4d6e2ef4e, "999999999999999700000"),
    (0x444b1ae4d6e2ef4f, "999999999999999900000"),
    (0x444b1ae4d6e2ef50, "1e+21"),
    (0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"),
    (0x3eb0c6f7a0b5ed8d, "0.000001"),
    (0x41b3de4355555553, "333333333.3333332"),
    (0x41b3de4355555554, "333333333.33333325"),
    (0x41b3de4355555555, "333333333.3333333"),
    (0x41b3de4355555556, "333333333.3333334"),
    (0x41b3de4355555557, "333333333.33333343"),
    (0xbecbf647612f3696, "-0.0000033333333333333333"),
    (0x43143ff3c1cb0959, "1424953923781206.2"),
];

#[test]
fn doubles_of_appendix_b_have_the_text_printed_there() {
    for (bits, expected) in DOUBLES {
        assert_eq!(expected.parse::<f64>().unwrap(), f64::from_bits(*bits), "{bits:016x}");
        for spelling in [(*expected).to_owned(), scientific(expected)] {
            assert_eq!(text_of(&spelling).unwrap(), *expected, "{bits:016x} as {spelling}");
        }
    }
}
