//! Keys: what is valid, what the destination sees, and what clients compute themselves.

use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::key::{
    check_destination_key, check_idempotency_key, check_tenant, command_id, derive_key, destination_key, uuid_text,
};
use proptest::prelude::*;

fn refusal(result: Result<(), LedgerError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.code, Code::InvalidKey);
    error.message
}

#[test]
fn ordinary_keys_are_valid() {
    let longest = "é".repeat(127) + "x";
    for key in
        ["a", "order-4711", "Order-4711", "a b", "a/b", "ключ", "😀", "a\u{2028}b", "'; DROP", "\u{200b}", &longest]
    {
        assert_eq!(check_idempotency_key(key), Ok(()), "{key:?}");
    }
}

#[test]
fn each_rule_of_a_key_has_its_own_message() {
    assert_eq!(refusal(check_idempotency_key("")), "the idempotency key is empty");
    assert_eq!(refusal(check_idempotency_key(&"é".repeat(128))), "the idempotency key is too long");
    for control in ["a\0", "\na", "a\tb", "a\u{7f}b", "a\u{80}b", "a\u{85}", "a\u{9f}b"] {
        assert_eq!(refusal(check_idempotency_key(control)), "the idempotency key contains a control character");
    }
    for blank in [" ", "\u{a0}", "\u{1680}", "\u{2000}", "\u{2028}", "\u{2029}", "\u{202f}", "\u{205f}", "\u{3000}"] {
        assert_eq!(refusal(check_idempotency_key(&format!("{blank}a"))), "the idempotency key begins with a blank");
        assert_eq!(refusal(check_idempotency_key(&format!("a{blank}"))), "the idempotency key ends with a blank");
    }
}

#[test]
fn a_refusal_tells_the_length_and_not_the_key() {
    let error = check_idempotency_key("s3cr3t ").unwrap_err();
    assert_eq!(error.detail.as_deref(), Some("7 bytes; 1 to 255 are allowed"));
    let shown = format!("{error} {:?}", error.hint);
    assert!(!shown.contains("s3cr3t"), "{shown}");
    let error = check_destination_key("s3cr3t/é", 200, true).unwrap_err();
    assert!(!format!("{error} {:?}", error.hint).contains("s3cr3t"));
}

#[test]
fn tenants_have_63_bytes_and_no_slash() {
    assert_eq!(check_tenant(&"x".repeat(63)), Ok(()));
    assert_eq!(check_tenant("Zürich 1"), Ok(()));
    assert_eq!(refusal(check_tenant(&"x".repeat(64))), "the tenant name is too long");
    assert_eq!(refusal(check_tenant("a/b")), "the tenant name contains /");
    assert_eq!(refusal(check_tenant("")), "the tenant name is empty");
    assert_eq!(refusal(check_tenant(" a")), "the tenant name begins with a blank");
    assert_eq!(refusal(check_tenant("a\u{90}a")), "the tenant name contains a control character");
}

#[test]
fn only_the_default_tenant_and_a_key_without_slash_go_out_bare() {
    assert_eq!(destination_key("default", "k"), "k");
    assert_eq!(destination_key("default", "a/k"), "default/a/k");
    assert_eq!(destination_key("a", "k"), "a/k");
    assert_eq!(destination_key("a", "b/k"), "a/b/k");
}

#[test]
fn a_destination_key_is_measured_against_its_destination() {
    assert_eq!(check_destination_key("tenant/k", 8, true), Ok(()));
    assert_eq!(check_destination_key("Zürich/k", 9, false), Ok(()));
    assert!(refusal(check_destination_key("tenant/k", 7, true)).contains("longer than the destination takes"));
    for key in ["Zürich/k", "a\u{7f}", "a\r\nb"] {
        assert!(refusal(check_destination_key(key, 255, true)).contains("printable ASCII"));
    }
    assert!(refusal(check_destination_key("", 255, false)).contains("empty"));
}

#[test]
fn command_ids_are_what_any_client_computes() {
    // In Python: h = hashlib.sha256(json.dumps(["command_ledger.id.v1", tenant, key], ensure_ascii=False,
    // separators=(",", ":")).encode()).digest()[:16]; byte 6 = 0x80 | b & 0x0f; byte 8 = 0x80 | b & 0x3f.
    for (tenant, key, expected) in VECTORS {
        assert_eq!(uuid_text(&command_id(tenant, key)), *expected, "{tenant} {key}");
    }
}

const VECTORS: &[(&str, &str, &str)] = &[
    ("default", "order-4711", "a5117326-28c4-899c-b431-b7ee697729ba"),
    ("default", "a/b", "d10fb278-a57d-8e3a-949f-701855c12a1e"),
    ("acme", "order-4711", "491b1989-eb75-8dfd-a104-debe6da9c246"),
    ("Zürich", "schlüssel \"1\" \\ 😀", "fd738080-c457-8f47-8893-48add451cda6"),
];

#[test]
fn a_derived_key_can_be_read_and_split_again() {
    assert_eq!(derive_key(&["run-1", "step-2", "create"]).unwrap(), "run-1:step-2:create");
    assert_eq!(derive_key(&["a:b", "100%", " c\u{3000}\n"]).unwrap(), "a%3Ab:100%25:%20c%E3%80%80%0A");
    assert_eq!(derive_key(&["a/b", "é"]).unwrap(), "a/b:é");
}

#[test]
fn a_long_derived_key_keeps_its_beginning_and_ends_in_a_digest() {
    let exactly = derive_key(&[&"x".repeat(127), &"y".repeat(127)]).unwrap();
    assert_eq!((exactly.len(), exactly.contains('%')), (255, false));
    let long = derive_key(&[&"x".repeat(127), &"y".repeat(128)]).unwrap();
    let digest = "f4d6feb49a720f29c44df0c83f9d840ae3b11cad13b89fe30a483ebae4a0fd5a";
    assert_eq!(long, format!("{}:{}%sha256:{digest}", "x".repeat(127), "y".repeat(55)));
    assert_eq!(long.len(), 255);
}

#[test]
fn the_beginning_of_a_long_derived_key_ends_between_characters_and_escapes() {
    for part in
        ["é".repeat(200), format!("x{}", "é".repeat(200)), "\u{3000}".repeat(90), format!("x{}", "%".repeat(300))]
    {
        let key = derive_key(&[&part]).unwrap();
        let (beginning, _) = key.split_once("%sha256:").unwrap();
        assert!(beginning.len() <= 183 && beginning.len() > 170);
        let escapes = beginning
            .split('%')
            .skip(1)
            .all(|after| after.get(..2).is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok()));
        assert!(escapes && !beginning.ends_with("%E3") && !beginning.ends_with("%80%E3"), "{beginning}");
        assert_eq!(check_idempotency_key(&key), Ok(()));
    }
}

#[test]
fn no_parts_and_empty_parts_derive_no_key() {
    assert_eq!(derive_key(&[]).unwrap_err().code, Code::InvalidKey);
    let error = derive_key(&["order", "", "x"]).unwrap_err();
    assert_eq!((error.code, error.detail.as_deref()), (Code::InvalidKey, Some("part 2 of 3")));
}

fn tenant() -> impl Strategy<Value = String> {
    prop_oneof![Just("default".to_owned()), "[ab]{1,3}", "[a-z:%é]{1,8}"]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[ab/]{1,5}", "(default|a|b)/[ab/]{1,3}", "\\PC{1,20}"]
}

/// Parts out of few characters, so that different lists come near each other; sometimes long.
fn parts() -> impl Strategy<Value = Vec<String>> {
    let part = prop_oneof![6 => "[a:%25 3A]{1,3}", 1 => "[a:]{90,130}", 1 => "\\PC{1,40}"];
    prop::collection::vec(part, 1..4)
}

fn derived(parts: &[String]) -> String {
    derive_key(&parts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn different_commands_never_share_a_destination_key_or_an_id(a in (tenant(), key()), b in (tenant(), key())) {
        let same = a == b;
        prop_assert_eq!(destination_key(&a.0, &a.1) == destination_key(&b.0, &b.1), same);
        prop_assert_eq!(command_id(&a.0, &a.1) == command_id(&b.0, &b.1), same);
    }

    #[test]
    fn different_parts_never_share_a_derived_key(a in parts(), b in parts()) {
        prop_assert_eq!(derived(&a) == derived(&b), a == b);
    }

    #[test]
    fn moving_the_border_between_parts_changes_the_derived_key(text in "[a:%]{2,150}", cuts in (1usize..149, 1usize..149)) {
        let cut = |at: usize| {
            let at = at.min(text.len() - 1);
            vec![text[..at].to_owned(), text[at..].to_owned()]
        };
        let (a, b) = (cut(cuts.0), cut(cuts.1));
        prop_assert_eq!(derived(&a) == derived(&b), a == b);
        prop_assert_ne!(derived(&a), derived(&[text]));
    }

    #[test]
    fn a_derived_key_is_always_a_valid_key(parts in prop::collection::vec("(?s).{1,60}", 1..6)) {
        prop_assert_eq!(check_idempotency_key(&derived(&parts)), Ok(()));
    }

    #[test]
    fn a_command_id_is_a_uuid_of_version_8(tenant in tenant(), key in key()) {
        let text = uuid_text(&command_id(&tenant, &key));
        prop_assert_eq!(text.len(), 36);
        prop_assert_eq!(&text[14..15], "8");
        prop_assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"));
    }
}
