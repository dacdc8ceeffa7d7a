//! Hashes: fixed vectors that another language can compute, and what must move them.

use std::collections::HashSet;

use command_ledger_domain::canonical::Pointer;
use command_ledger_domain::error::Code;
use command_ledger_domain::hash::{
    HASH_VERSION, IntentParts, JournalEntry, hex, intent_hash, journal_hash, journal_start, params_hash, sha256,
};
use command_ledger_domain::json::Json;
use command_ledger_domain::key::command_id;
use proptest::prelude::*;

const PARAMS: &str = r#"{"plant":"0001","note":"please","amount":120.50,"lines":[{"qty":2,"sku":"A-1"}]}"#;

fn params_hash_of(text: &str, immaterial: &[&str]) -> String {
    let skip: Vec<Pointer> = immaterial.iter().map(|pointer| Pointer::parse(pointer).unwrap()).collect();
    hex(&params_hash("default", "create_requisition", &Json::parse(text).unwrap(), &skip).unwrap())
}

#[test]
fn the_params_hash_is_the_digest_of_the_documented_text() {
    let text = r#"["command_ledger.v1","default","create_requisition",{"amount":120.5,"lines":[{"qty":2,"sku":"A-1"}],"plant":"0001"}]"#;
    assert_eq!(params_hash_of(PARAMS, &["/note"]), hex(&sha256(text.as_bytes())));
    assert_eq!(params_hash_of(PARAMS, &["/note"]), "6c93b74260f15222f7abfedbe60a9518db532769f84fb99492cff4501962917b");
    assert_eq!(params_hash_of(PARAMS, &[]), "75cf4a2ee3cebe7ce5fa4b2da29956beca5e0f54a9e2f9a8e11263469e99dbfd");
    assert_eq!(HASH_VERSION, 1);
}

#[test]
fn only_immaterial_members_and_spelling_leave_the_params_hash_alone() {
    let base = params_hash_of(PARAMS, &["/note"]);
    for same in [
        PARAMS.replace("please", "now"),
        PARAMS.replace("120.50", "1205e-1"),
        PARAMS.replace("\"note\":\"please\",", ""),
    ] {
        assert_eq!(params_hash_of(&same, &["/note"]), base, "{same}");
    }
    for other in [PARAMS.replace("120.50", "120.51"), PARAMS.replace("0001", "1"), PARAMS.replace("A-1", "a-1")] {
        assert_ne!(params_hash_of(&other, &["/note"]), base, "{other}");
    }
    let json = Json::parse(PARAMS).unwrap();
    assert_ne!(params_hash("a", "b", &json, &[]).unwrap(), params_hash("ab", "", &json, &[]).unwrap());
    assert_ne!(params_hash("a", "b", &json, &[]).unwrap(), params_hash("b", "a", &json, &[]).unwrap());
}

#[test]
fn params_beyond_the_bounds_have_no_hash() {
    let json = Json::Object(vec![("a".into(), Json::Number("1e131071".into()))]);
    let refused = params_hash("default", "t", &json, &[]).unwrap_err();
    assert_eq!((refused.code, refused.detail.as_deref()), (Code::JsonOutOfBounds, Some("at JSON pointer \"/a\"")));
}

#[test]
fn the_intent_hash_is_the_digest_of_the_documented_text_and_moves_with_every_part() {
    let (params, other) = (Json::parse(PARAMS).unwrap(), Json::parse("{}").unwrap());
    let base = IntentParts {
        command_id: "7b0e5f39-5d0a-8c11-9a52-0d8f3f5f6a77",
        command_type: "create_requisition",
        type_version: 3,
        destination: "erp",
        request_config_digest: &[0xab; 32],
        params: &params,
    };
    let text = format!(
        r#"["command_ledger.intent.v1","7b0e5f39-5d0a-8c11-9a52-0d8f3f5f6a77","create_requisition",3,"erp","{}",{{"amount":120.5,"lines":[{{"qty":2,"sku":"A-1"}}],"note":"please","plant":"0001"}}]"#,
        "ab".repeat(32)
    );
    assert_eq!(intent_hash(base).unwrap(), sha256(text.as_bytes()));
    assert_eq!(hex(&intent_hash(base).unwrap()), "37e03bfcb96a49310b3aeb37e8455ce655dd597d54d44a0cda24106dddd5d503");
    let moved = [
        IntentParts { command_id: "7b0e5f39-5d0a-8c11-9a52-0d8f3f5f6a78", ..base },
        IntentParts { command_type: "create_order", ..base },
        IntentParts { type_version: 4, ..base },
        IntentParts { type_version: -3, ..base },
        IntentParts { destination: "erp2", ..base },
        IntentParts { request_config_digest: &[0xac; 32], ..base },
        IntentParts { params: &other, ..base },
    ];
    let hashes: HashSet<[u8; 32]> = moved.iter().chain([&base]).map(|parts| intent_hash(*parts).unwrap()).collect();
    assert_eq!(hashes.len(), moved.len() + 1);
}

const ENTRY: JournalEntry<'static> = JournalEntry {
    seq: 1,
    kind: "claimed",
    from: Some("approved"),
    to: "dispatched",
    attempt: 1,
    actor: "ledger",
    stated_actor: None,
    at_us: 1_700_000_000_123_456,
    detail: Some("{\"worker\":\"w1\"}"),
};

#[test]
fn the_journal_chain_has_the_documented_bytes() {
    let start = journal_start(&command_id("default", "order-4711"));
    assert_eq!(hex(&start), "453310d7a58c7fda77c35b330f05a31f7b2afb7e2b8f16f725db76a6e356ba7b");
    let first = journal_hash(&start, &ENTRY);
    assert_eq!(hex(&first), "99000676b007f6a609fde1f21c5b55ce4d2ec3719e6fa41892807347ff560353");
    assert_eq!(
        hex(&journal_hash(
            &first,
            &JournalEntry { seq: 2, from: None, detail: None, stated_actor: Some("Ada"), ..ENTRY }
        )),
        "253d59dc21b580c4aba37a855ad0ed4f9036efa91a12ebd05ffd1087c6b073fe"
    );
}

#[test]
fn every_field_of_an_entry_moves_the_chain() {
    let moved = [
        ENTRY,
        JournalEntry { seq: 2, ..ENTRY },
        JournalEntry { kind: "claime", ..ENTRY },
        JournalEntry { from: Some("planned"), ..ENTRY },
        JournalEntry { from: Some(""), ..ENTRY },
        JournalEntry { from: None, ..ENTRY },
        JournalEntry { to: "confirmed", ..ENTRY },
        JournalEntry { attempt: 2, ..ENTRY },
        JournalEntry { seq: 0, attempt: 2, ..ENTRY },
        JournalEntry { actor: "other", ..ENTRY },
        JournalEntry { actor: "", stated_actor: Some("ledger"), ..ENTRY },
        JournalEntry { stated_actor: Some(""), ..ENTRY },
        JournalEntry { at_us: ENTRY.at_us + 1, ..ENTRY },
        JournalEntry { at_us: -1, ..ENTRY },
        JournalEntry { detail: None, ..ENTRY },
        JournalEntry { detail: Some("null"), ..ENTRY },
    ];
    let mut hashes: HashSet<[u8; 32]> = moved.iter().map(|entry| journal_hash(&[0; 32], entry)).collect();
    hashes.insert(journal_hash(&[1; 32], &ENTRY));
    hashes.insert(journal_start(&[0; 16]));
    hashes.insert(journal_start(&[1; 16]));
    assert_eq!(hashes.len(), moved.len() + 3);
}

proptest! {
    #[test]
    fn text_that_moves_between_fields_moves_the_chain(
        a in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}"), prop::option::of("[ab]{0,2}")),
        b in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}"), prop::option::of("[ab]{0,2}")),
    ) {
        fn hash((kind, to, from, stated): &(String, String, Option<String>, Option<String>)) -> [u8; 32] {
            journal_hash(&[0; 32], &JournalEntry { kind, to, from: from.as_deref(), stated_actor: stated.as_deref(), ..ENTRY })
        }
        prop_assert_eq!(hash(&a) == hash(&b), a == b);
    }
}
