//! What the ledger tells and proves afterwards: evidence that anybody can check outside, and a story without a false
//! word.

use pg_test::desk::{
    assert_journals, claim_and_lose, claim_one, confirm, define_desk, desk, fail, open_case, say, task,
};
use pg_test::prelude::*;

fn explain(ledger: &mut Ledger, key: &str) -> String {
    ledger.one("SELECT command_ledger.explain($1)", &[&key])
}

fn evidence(ledger: &mut Ledger, key: &str) -> Value {
    let text: String = ledger.one("SELECT command_ledger.evidence($1)::text", &[&key]);
    serde_json::from_str(&text).unwrap()
}

/// SHA-256 by somebody else's hand.
fn sha256(ledger: &mut Ledger, bytes: &[u8]) -> Vec<u8> {
    ledger.one("SELECT sha256($1)", &[&bytes])
}

/// The hash of one entry as the documentation describes it, from what evidence() shows.
fn chained(ledger: &mut Ledger, before: &[u8], entry: &Value) -> Vec<u8> {
    let number = |name: &str| entry[name].as_i64().unwrap();
    let mut bytes = b"command_ledger.journal.v1:entry".to_vec();
    bytes.extend(before);
    bytes.extend(i32::try_from(number("seq")).unwrap().to_be_bytes());
    bytes.extend(i32::try_from(number("attempt")).unwrap().to_be_bytes());
    bytes.extend(number("at_us").to_be_bytes());
    let detail = match &entry["detail"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(ledger.one("SELECT command_ledger.canonical($1::text::jsonb)", &[&other.to_string()])),
    };
    let text = |name: &str| entry[name].as_str().map(str::to_owned);
    for field in [text("kind"), text("from"), text("to"), text("actor"), text("stated_actor"), detail] {
        match field {
            None => bytes.push(0),
            Some(text) => {
                bytes.push(1);
                bytes.extend((text.len() as u64).to_be_bytes());
                bytes.extend(text.as_bytes());
            }
        }
    }
    sha256(ledger, &bytes)
}

#[test]
fn the_chain_can_be_computed_again_from_the_evidence_alone() {
    let (_cluster, mut ledger) = desk(json!({"approval": {"separate_proposer": false}, "retry": {"base": "1ms"}}));
    let receipt = task(&mut ledger, "k");
    let revised = ledger.call(
        "revise",
        json!({"idempotency_key": "k", "params": {"n": 2}, "expected_hash": receipt.intent_hash.unwrap()}),
    );
    ledger.call(
        "approve",
        json!({"idempotency_key": "k", "intent_hash": revised.intent_hash.unwrap(), "approver": "Ada", "note": "ok"}),
    );
    let job = claim_one(&mut ledger);
    say(&mut ledger, "uncertain", &job);
    ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "found", "destination_record_id": "R-1"}));
    let proof = evidence(&mut ledger, "k");
    assert_eq!(proof["chain"]["verified"], json!(true));
    let entries = proof["journal"].as_array().unwrap();
    assert_eq!(entries.len(), 6, "{entries:#?}");
    let id = proof["command_id"].as_str().unwrap().replace('-', "");
    let mut start = b"command_ledger.journal.v1:start".to_vec();
    start.extend((0..16).map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap()));
    let mut head = sha256(&mut ledger, &start);
    for entry in entries {
        head = chained(&mut ledger, &head, entry);
        let shown = head.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(entry["hash"], json!(shown), "{entry:#}");
    }
    assert!(!proof.to_string().contains(&job.token), "a lease token in the evidence");
}

#[test]
fn a_cancelled_command_that_was_attempted_is_not_called_never_sent() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"base": "1h", "cap": "1h"}}));
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    fail(&mut ledger, &job, "not_sent");
    ledger.call("cancel", json!({"idempotency_key": "k"}));
    let story = explain(&mut ledger, "k");
    assert!(!story.contains("never sent") && story.contains("of 1 attempt(s)"), "{story}");
    // A success that arrives afterwards is a question, and the story ends with it.
    confirm(&mut ledger, &job, "R-1");
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("contradiction"));
    let story = explain(&mut ledger, "k");
    assert!(story.contains("But a question is open: A success arrived for a command that was cancelled."), "{story}");

    task(&mut ledger, "unsent");
    ledger.call("cancel", json!({"idempotency_key": "unsent"}));
    assert!(explain(&mut ledger, "unsent").contains("Cancelled: it was never sent."));
}

#[test]
fn a_question_about_an_unsent_command_is_not_called_unknown() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    ledger.exec(
        "SET session_replication_role = replica; \
         UPDATE command_ledger.command SET params = '{\"n\": 2}'; SET session_replication_role = DEFAULT",
    );
    ledger.exec("SELECT command_ledger.claim('desk')");
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("tampered"));
    let story = explain(&mut ledger, "k");
    assert!(!story.contains("not known") && story.contains("a person must decide"), "{story}");

    task(&mut ledger, "lost");
    claim_and_lose(&mut ledger);
    ledger.exec("SELECT command_ledger.claim('desk')");
    let story = explain(&mut ledger, "lost");
    assert!(story.contains("whether it happened is not known"), "{story}");
    assert!(story.contains("Search desk for the key lost"), "{story}");
}

#[test]
fn the_story_keeps_what_was_registered_when_the_content_changes() {
    let (_cluster, mut ledger) = desk(json!({"approval": {"separate_proposer": false}}));
    let first = task(&mut ledger, "k");
    let revised = ledger.call(
        "revise",
        json!({"idempotency_key": "k", "params": {"n": 2}, "expected_hash": first.intent_hash.clone().unwrap()}),
    );
    let beginning = |hash: &Option<String>| hash.as_ref().unwrap()[2..14].to_owned();
    let story = explain(&mut ledger, "k");
    let line = |what: &str| story.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {story}"));
    assert!(line("registered").contains(&beginning(&first.intent_hash)), "{story}");
    assert!(line("revised").contains(&beginning(&revised.intent_hash)), "{story}");
    // A planned command shows the call that approves it, ready to run.
    let call = line("command_ledger.approve(").to_owned();
    ledger.exec(&call);
    assert_eq!(ledger.status("k").status, "approved");
    let story = explain(&mut ledger, "k");
    assert!(story.contains("It is due: the next claim() of a worker takes it."), "{story}");
    assert!(story.contains("Its approval ends at "), "{story}");
    // So does an edited definition.
    define_desk(&mut ledger, json!({"limits": {"in_flight": 3}}));
    assert_eq!(claim_one(&mut ledger).key, "k", "limits are no part of the intent");
    assert_journals(&mut ledger);
}
