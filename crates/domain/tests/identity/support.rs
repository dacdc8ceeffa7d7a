//! Slow, plain code to hold the real one against, and generators of JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::json::Json;
use proptest::prelude::*;

/// Canonical text of JSON text.
pub fn text_of(json: &str) -> Result<String, LedgerError> {
    canonical(&Json::parse(json)?)
}

/// The exact value of a number: sign, significant digits without zeros at either end, exponent of the last digit.
pub fn exact(text: &str) -> (bool, String, i64) {
    let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let lower = rest.to_lowercase();
    let (mantissa, exponent) = lower.split_once('e').unwrap_or((&lower, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    let mut exponent = exponent.parse::<i64>().unwrap() - fraction.len() as i64;
    while digits.ends_with('0') {
        digits.pop();
        exponent += 1;
    }
    let digits = digits.trim_start_matches('0').to_owned();
    if digits.is_empty() { (false, digits, 0) } else { (negative, digits, exponent) }
}

/// The same number with an exponent, whatever its size. (The standard library's `{:e}` would not do: it prints another
/// digit than ES6 when two shortest texts are equally close.)
pub fn scientific(text: &str) -> String {
    let (negative, digits, exponent) = exact(text);
    let sign = if negative { "-" } else { "" };
    if digits.is_empty() { "0E0".to_owned() } else { format!("{sign}{digits}E{exponent}") }
}

/// The canonical text of a number by the rule in words: ES6 text of the nearest double if that is the same value,
/// else plain notation.
pub fn expected_number(text: &str) -> String {
    let (negative, digits, exponent) = exact(text);
    let nearest: f64 = text.parse().unwrap();
    if nearest.is_finite() {
        let es6 = ryu_js::Buffer::new().format_finite(nearest).to_owned();
        if exact(&es6) == (negative, digits.clone(), exponent) {
            return es6;
        }
    }
    let sign = if negative { "-" } else { "" };
    if exponent >= 0 {
        return format!("{sign}{digits}{}", "0".repeat(exponent as usize));
    }
    let places = (-exponent) as usize;
    let padded = format!("{}{digits}", "0".repeat((places + 1).saturating_sub(digits.len())));
    let (whole, fraction) = padded.split_at(padded.len() - places);
    format!("{sign}{whole}.{fraction}")
}

/// A value in a form where Rust's own equality is the equality meant: members as a map, numbers by value.
#[derive(Debug, PartialEq)]
pub enum Plain {
    Null,
    Bool(bool),
    Number(bool, String, i64),
    String(String),
    Array(Vec<Plain>),
    Object(BTreeMap<String, Plain>),
}

pub fn plain(json: &Json<'_>) -> Plain {
    match json {
        Json::Null => Plain::Null,
        Json::Bool(value) => Plain::Bool(*value),
        Json::Number(text) => {
            let (negative, digits, exponent) = exact(text);
            Plain::Number(negative, digits, exponent)
        }
        Json::String(text) => Plain::String(text.to_string()),
        Json::Array(elements) => Plain::Array(elements.iter().map(plain).collect()),
        Json::Object(members) => {
            Plain::Object(members.iter().map(|(name, value)| (name.to_string(), plain(value))).collect())
        }
    }
}

/// Number text in many spellings, often of the same few values.
pub fn number_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,2})(\\.[0-9]{1,3})?([eE][+-]?[0-3])?",
        "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?",
        "-?[1-9](\\.[0-9]{14,18})?[eE][+-]?(2[0-9]{2}|3[0-2][0-9])",
        any::<f64>().prop_filter("finite", |double| double.is_finite()).prop_map(|double| format!("{double:e}")),
        any::<i64>().prop_map(|integer| integer.to_string()),
    ]
}

fn string_text() -> impl Strategy<Value = String> {
    // Around the places where UTF-8 and UTF-16 sort differently, and where escapes begin and end.
    prop_oneof![
        "[ab]{0,2}",
        "[\u{1}-\u{20}\"\\\\/\u{7f}\u{80}]{0,4}",
        "[\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{1f600}é]{0,3}"
    ]
}

/// Trees of a few levels; names are unique within an object.
pub fn json() -> impl Strategy<Value = Json<'static>> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number_text().prop_map(|text| Json::Number(Cow::Owned(text))),
        string_text().prop_map(|text| Json::String(Cow::Owned(text))),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            prop::collection::btree_map(string_text(), inner, 0..6)
                .prop_map(|members| Json::Object(members.into_iter().map(|(n, v)| (Cow::Owned(n), v)).collect())),
        ]
    })
}

/// A small generator for spellings and shuffles that must not depend on proptest's own shrinking.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// JSON text of the same value, written another way: members shuffled, blanks, other number spellings, escapes.
pub fn respell(json: &Json<'_>, dice: &mut Dice, out: &mut String) {
    let blank = [" ", "", "\n\t", ""];
    out.push_str(blank[dice.below(4)]);
    match json {
        Json::Null | Json::Bool(_) => json.write_json(out),
        Json::Number(text) => out.push_str(&respell_number(text, dice)),
        Json::String(text) => respell_string(text, dice, out),
        Json::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                respell(element, dice, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for last in (1..members.len()).rev() {
                members.swap(last, dice.below(last + 1));
            }
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                respell_string(name, dice, out);
                out.push_str(blank[dice.below(4)]);
                out.push(':');
                respell(value, dice, out);
            }
            out.push('}');
        }
    }
    out.push_str(blank[dice.below(4)]);
}

fn respell_number(text: &str, dice: &mut Dice) -> String {
    let (negative, digits, exponent) = exact(text);
    if digits.is_empty() {
        return ["0", "-0", "0.00", "0e7", "-0.0E-3"][dice.below(5)].to_owned();
    }
    let zeros = dice.below(5);
    let digits = format!("{digits}{}", "0".repeat(zeros));
    let exponent = exponent - zeros as i64;
    let point = 1 + dice.below(digits.len());
    let (whole, fraction) = digits.split_at(point);
    let exponent = exponent + fraction.len() as i64;
    let sign = if negative { "-" } else { "" };
    let fraction = if fraction.is_empty() { String::new() } else { format!(".{fraction}") };
    let e = ["e", "E", "e0", "E-000"][dice.below(4)];
    match (exponent, e) {
        (0, _) => format!("{sign}{whole}{fraction}"),
        (1.., "e0" | "E") => format!("{sign}{whole}{fraction}E+0{exponent}"),
        (_, _) => format!("{sign}{whole}{fraction}e{exponent}"),
    }
}

fn respell_string(text: &str, dice: &mut Dice, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if c < '\u{20}' || c == '"' || c == '\\' || dice.below(3) == 0 {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let upper = dice.below(2) == 0;
                out.push_str(&if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
            }
        } else {
            out.push(c);
        }
    }
    out.push('"');
}
