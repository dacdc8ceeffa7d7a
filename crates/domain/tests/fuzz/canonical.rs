//! The canonical form: a fixed point, blind to order and spelling, and exact; equal values have equal hashes.

use super::driver::{Target, Verdict, skeleton};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::params_hash;
use command_ledger_domain::json::Json;

const TARGET: Target = Target {
    name: "canonical",
    words: &["9007199254740993", "1e21", "-0", "1E-7", "0.10", "null", "true", "\\ud83d\\ude00", "\"\"", ":1,", "e400"],
    inputs: 12_000,
};

type Canonical = fn(&Json<'_>) -> Result<String, LedgerError>;

fn reversed(value: &Json<'_>) -> Json<'static> {
    match value {
        Json::Array(elements) => Json::Array(elements.iter().map(reversed).collect()),
        Json::Object(members) => {
            Json::Object(members.iter().rev().map(|(name, value)| (name.to_string().into(), reversed(value))).collect())
        }
        other => other.clone().into_owned(),
    }
}

/// A decimal as sign, digits without zeros at the ends, and the place of the point: written independently of the code.
fn decimal(text: &str) -> (bool, String, i64) {
    let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let point = i64::try_from(whole.len() - leading.min(whole.len())).unwrap_or(0)
        - i64::try_from(leading.saturating_sub(whole.len())).unwrap_or(0)
        + exponent.parse::<i64>().unwrap_or(0);
    let digits = digits.trim_matches('0').to_owned();
    if digits.is_empty() { (false, digits, 0) } else { (negative, digits, point) }
}

fn same(a: &Json<'_>, b: &Json<'_>) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => decimal(a) == decimal(b),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, value)| b.iter().any(|(n, v)| n == name && same(value, v)))
        }
        _ => a == b,
    }
}

fn property(input: &[u8], canonical: Canonical) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".to_owned()) };
    let value = match Json::parse(text) {
        Ok(value) => value,
        Err(error) if error.message.is_empty() || error.detail.is_none() && error.hint.is_none() => {
            return Err(format!("an error without a reason: {error:?}"));
        }
        Err(error) => return Ok(skeleton(&format!("{:?} {}", error.code, error.message))),
    };
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text)
        && !error.to_string().contains("recursion limit")
    {
        return Err(format!("read as JSON, which it is not: {error}"));
    }
    let written = value.to_json_text();
    if Json::parse(&written).as_ref() != Ok(&value) {
        return Err("what is written is not what was read".to_owned());
    }
    let first = match canonical(&value) {
        Ok(first) => first,
        Err(error) => return Ok(skeleton(&format!("{:?} {}", error.code, error.message))),
    };
    let Ok(again) = Json::parse(&first) else { return Err(format!("the canonical form is no JSON: {first}")) };
    if canonical(&again).as_ref() != Ok(&first) {
        return Err(format!("not a fixed point: {first}"));
    }
    if !same(&value, &again) {
        return Err(format!("another value: {first}"));
    }
    let other = reversed(&value);
    if canonical(&other).as_ref() != Ok(&first) {
        return Err("it depends on the order of the members".to_owned());
    }
    let hash = |value| params_hash("default", "t", value, &[]);
    if hash(&value) != hash(&other) || hash(&value) != hash(&again) {
        return Err("equal values, different hashes".to_owned());
    }
    let kinds = ["null", "[", "{", "\\u", "e+", "e-", "."].map(|part| first.contains(part));
    Ok(format!("{kinds:?} {} {}", first.len().checked_ilog2().unwrap_or(0), text.contains('\\')))
}

#[test]
fn canonical_forms_are_fixed_exact_and_blind_to_order() {
    TARGET.holds(|input| property(input, canonical));
}

#[test]
fn a_canonical_form_that_rounds_is_found_out() {
    fn rounding(value: &Json<'_>) -> Result<String, LedgerError> {
        fn rounded(value: &Json<'_>) -> Json<'static> {
            match value {
                Json::Number(text) => {
                    Json::Number(text.parse::<f64>().map_or(text.to_string(), |f| f.to_string()).into())
                }
                Json::Array(elements) => Json::Array(elements.iter().map(rounded).collect()),
                Json::Object(members) => {
                    Json::Object(members.iter().map(|(n, v)| (n.to_string().into(), rounded(v))).collect())
                }
                other => other.clone().into_owned(),
            }
        }
        canonical(&rounded(value))
    }
    TARGET.is_found_out("another value", |input| property(input, rounding));
}

#[test]
fn a_canonical_form_in_the_order_of_writing_is_found_out() {
    TARGET.is_found_out("order of the members", |input| property(input, |value| Ok(value.to_json_text())));
}
