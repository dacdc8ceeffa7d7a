//! Keys: what the rules admit is within them, and nothing that the caller keeps apart meets at the destination. An input
//! is four parts, each ended by a zero byte: tenant, key, another tenant, another key.

use super::driver::{Target, Verdict, skeleton};
use command_ledger_domain::error::Code;
use command_ledger_domain::key::{
    check_destination_key, check_idempotency_key, check_tenant, command_id, derive_key, destination_key,
};

const TARGET: Target = Target {
    name: "keys",
    words: &["default", "\0", "/", "order-1", " ", "\u{85}", "default/", "a/b", "A", "a"],
    inputs: 25_000,
};

type Named = fn(&str, &str) -> String;
type Derived = fn(&[&str]) -> Option<String>;

fn property(input: &[u8], destination_key: Named, derive: Derived) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".to_owned()) };
    let mut parts = text.splitn(4, '\0');
    let mut next = || parts.next().unwrap_or("x");
    let (one, other) = ((next(), next()), (next(), next()));
    let mut answer = String::new();
    for (tenant, key) in [one, other] {
        match check_idempotency_key(key) {
            Ok(()) => {
                let blank = key.starts_with(char::is_whitespace) || key.ends_with(char::is_whitespace);
                if key.is_empty() || key.len() > 255 || blank || key.chars().any(char::is_control) {
                    return Err("a key outside the rules was admitted".to_owned());
                }
            }
            Err(error) if error.code != Code::InvalidKey || error.detail.is_none() => {
                return Err(format!("refused without a reason: {error:?}"));
            }
            Err(error) => answer.push_str(&skeleton(&error.message)),
        }
        if check_tenant(tenant).is_ok() && tenant.contains('/') {
            return Err("a tenant with a slash was admitted".to_owned());
        }
    }
    let valid = |(tenant, key)| check_tenant(tenant).is_ok() && check_idempotency_key(key).is_ok();
    if valid(one) && valid(other) {
        let seen = [one, other].map(|(tenant, key)| destination_key(tenant, key));
        if (one == other) != (seen[0] == seen[1]) {
            return Err(format!("{one:?} and {other:?} are {seen:?} at the destination"));
        }
        if (one == other) != (command_id(one.0, one.1) == command_id(other.0, other.1)) {
            return Err(format!("{one:?} and {other:?} have one command id"));
        }
        let ascii = check_destination_key(&seen[0], 255, true).is_ok();
        if ascii && !seen[0].bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            return Err("a key that no header can hold was admitted for one".to_owned());
        }
        answer.push_str(&format!("valid {} {ascii} {}", one.0 == "default", one.1.contains('/')));
    }
    let lists: [Vec<&str>; 2] = [vec![one.0, one.1], vec![other.0, other.1, ""]];
    let derived = lists.clone().map(|list| derive(&list));
    if derived[0].is_some() && derived[0] == derived[1] {
        return Err(format!("{lists:?} derive one key"));
    }
    let cut = [one.0.chars().chain(one.1.chars()).collect::<String>(), String::new()];
    if let (Some(a), Some(b)) = (&derived[0], derive(&[&cut[0], &cut[1]]))
        && *a == b
        && !one.1.is_empty()
    {
        return Err("parts that are put together derive the key of the parts".to_owned());
    }
    for key in derived.iter().flatten() {
        if check_idempotency_key(key).is_err() {
            return Err(format!("a derived key is none: {key:?}"));
        }
    }
    Ok(answer)
}

fn derived(parts: &[&str]) -> Option<String> {
    derive_key(parts).ok()
}

#[test]
fn keys_that_differ_stay_apart() {
    TARGET.holds(|input| property(input, destination_key, derived));
}

#[test]
fn a_destination_key_without_its_rule_is_found_out() {
    fn joined(tenant: &str, key: &str) -> String {
        if tenant == "default" { key.to_owned() } else { format!("{tenant}/{key}") }
    }
    TARGET.is_found_out("at the destination", |input| property(input, joined, derived));
}

#[test]
fn a_derived_key_that_joins_its_parts_is_found_out() {
    TARGET
        .is_found_out("derive", |input| property(input, destination_key, |parts| Some(format!("k{}", parts.concat()))));
}
