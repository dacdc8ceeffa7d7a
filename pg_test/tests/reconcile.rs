//! A person's finding closes a question; an operator's decisions; forgetting in the end.

use pg_test::desk::{
    Job, assert_journals, claim, claim_one, confirm, define_task, desk, desk_with, fail, journal, open_case, refused,
    say, task,
};
use pg_test::prelude::*;

fn quick() -> Value {
    json!({"retry": {"base": "1ms", "cap": "1ms", "max_attempts": 2}})
}

fn uncertain(ledger: &mut Ledger, key: &str) -> Job {
    task(ledger, key);
    let job = claim_one(ledger);
    assert_eq!(say(ledger, "uncertain", &job).status, "needs_reconciliation");
    job
}

#[test]
fn found_confirms_with_the_record_and_the_evidence() {
    let (_cluster, mut ledger) = desk(quick());
    uncertain(&mut ledger, "k");
    let found = ledger.call(
        "reconcile",
        json!({"idempotency_key": "k", "finding": "found", "destination_record_id": "R-7",
               "evidence": {"seen": "in the list"}, "note": "looked by hand"}),
    );
    assert_eq!((found.status.as_str(), found.maybe_sent), ("confirmed", false));
    assert_eq!(found.destination_record_id.as_deref(), Some("R-7"));
    assert_eq!(found.result, Some(json!({"seen": "in the list"})));
    assert_eq!(open_case(&mut ledger, "k"), None);
    let closed = "SELECT finding || ' ' || closed_by FROM command_ledger.reconciliation_case";
    assert_eq!(ledger.text(closed), "found postgres");
    assert_eq!(journal(&mut ledger, "k"), ["register", "claim", "uncertain", "reconcile_found"]);
    assert_journals(&mut ledger);
}

#[test]
fn the_suggested_call_does_not_confirm_before_the_record_is_filled_in() {
    let (_cluster, mut ledger) = desk(quick());
    uncertain(&mut ledger, "k");
    let call = ledger.text("SELECT suggested_next_step FROM command_ledger.reconciliation_queue");
    let error = ledger.expect_sqlstate("22023", &call);
    assert!(error.hint.contains("not_found"), "{error:?}");
    assert_eq!(ledger.status("k").status, "needs_reconciliation");
    ledger.exec(&call.replace('…', "R-7"));
    let found = ledger.status("k");
    assert_eq!((found.status.as_str(), found.destination_record_id.as_deref()), ("confirmed", Some("R-7")));
}

#[test]
fn not_found_permits_one_more_attempt_also_where_the_budget_is_used_up() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"max_attempts": 1}}));
    uncertain(&mut ledger, "k");
    let again = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "not_found"}));
    assert_eq!((again.status.as_str(), again.maybe_sent), ("approved", false));
    let job = claim_one(&mut ledger);
    assert_eq!(job.attempt, 2);
    assert_eq!(say(&mut ledger, "uncertain", &job).status, "needs_reconciliation");
    let error = refused(&mut ledger, "22023", "reconcile", json!({"idempotency_key": "k", "finding": "not_found"}));
    assert!(error.detail.contains('2'), "{error:?}");
    let about_one = json!({"idempotency_key": "k", "finding": "not_found", "expected_attempt": 1});
    refused(&mut ledger, "CL006", "reconcile", about_one);
    let about_two = json!({"idempotency_key": "k", "finding": "not_found", "expected_attempt": 2});
    assert_eq!(ledger.call("reconcile", about_two).status, "approved");
    let job = claim_one(&mut ledger);
    assert_eq!(fail(&mut ledger, &job, "not_sent").status, "failed", "exactly one more");
    assert_journals(&mut ledger);
}

#[test]
fn a_redacted_command_is_not_sent_again_whatever_is_found() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    assert_eq!(fail(&mut ledger, &job, "permanent").status, "failed");
    ledger.call("redact", json!({"idempotency_key": "k"}));
    assert_eq!(confirm(&mut ledger, &job, "R-1").status, "needs_reconciliation", "a success that came late");
    let found = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "not_found"}));
    assert_eq!((found.status.as_str(), found.error.as_deref()), ("failed", Some("rejected")));
    refused(&mut ledger, "CL006", "retry", json!({"idempotency_key": "k"}));
    task(&mut ledger, "next");
    assert_eq!(claim_one(&mut ledger).key, "next");
    assert_journals(&mut ledger);
}

#[test]
fn one_command_without_its_params_does_not_keep_the_others_from_being_claimed() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "broken");
    task(&mut ledger, "whole");
    ledger.exec(
        "SET session_replication_role = replica; \
         UPDATE command_ledger.command SET params = NULL WHERE idempotency_key = 'broken'; \
         SET session_replication_role = DEFAULT",
    );
    assert_eq!(claim_one(&mut ledger).key, "whole");
    assert_eq!(ledger.status("broken").status, "needs_reconciliation");
    assert_eq!(open_case(&mut ledger, "broken").as_deref(), Some("tampered"));
}

#[test]
fn not_found_asks_again_for_an_approval_that_ended() {
    let (_cluster, mut ledger) = desk(json!({"approval": {"separate_proposer": false}}));
    let hash = task(&mut ledger, "k").intent_hash;
    ledger.call("approve", json!({"idempotency_key": "k", "intent_hash": hash}));
    let job = claim_one(&mut ledger);
    say(&mut ledger, "uncertain", &job);
    ledger.call("revoke_approval", json!({"idempotency_key": "k"}));
    let planned = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "not_found"}));
    assert_eq!((planned.status.as_str(), planned.approvals_missing), ("planned", Some(1)));
    assert!(claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}

#[test]
fn abandon_gives_it_up_as_failed_and_a_late_success_still_counts() {
    let (_cluster, mut ledger) = desk(quick());
    let job = uncertain(&mut ledger, "k");
    let given_up = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "abandon"}));
    assert_eq!((given_up.status.as_str(), given_up.error.as_deref()), ("failed", Some("uncertain")));
    assert!(!given_up.maybe_sent);
    assert_eq!(confirm(&mut ledger, &job, "R").status, "needs_reconciliation");
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("late_success"));
    assert_journals(&mut ledger);
}

#[test]
fn a_finding_must_be_one_of_three_and_about_a_known_command() {
    let (_cluster, mut ledger) = desk(quick());
    uncertain(&mut ledger, "k");
    for finding in ["", "Found", "maybe"] {
        refused(&mut ledger, "22023", "reconcile", json!({"idempotency_key": "k", "finding": finding}));
    }
    ledger.expect_sqlstate("22004", "SELECT command_ledger.reconcile('k', NULL)");
    refused(&mut ledger, "CL011", "reconcile", json!({"idempotency_key": "x", "finding": "found"}));
    let empty = json!({"idempotency_key": "k", "finding": "found", "destination_record_id": ""});
    refused(&mut ledger, "22023", "reconcile", empty);
    assert_eq!(ledger.status("k").status, "needs_reconciliation");
}

#[test]
fn cancelling_what_may_have_been_sent_is_a_question_and_not_found_then_does_not_send_it() {
    let (_cluster, mut ledger) = desk_with(
        json!({"idempotency": {"mode": "reference", "window": "unlimited"}}),
        json!({"retry": {"base": "1h", "cap": "1h"}}),
    );
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    assert_eq!(say(&mut ledger, "uncertain", &job).status, "approved");
    let asked = ledger.call("cancel", json!({"idempotency_key": "k", "reason": "ordered twice"}));
    assert_eq!((asked.status.as_str(), asked.maybe_sent), ("needs_reconciliation", true));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("cancel_requested"));
    let stopped = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "not_found"}));
    assert_eq!((stopped.status.as_str(), stopped.error.as_deref()), ("failed", Some("rejected")));
    assert!(claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}

#[test]
fn a_retry_is_exactly_one_more_attempt() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    fail(&mut ledger, &job, "permanent");
    let past = json!({"idempotency_key": "k", "deadline": "2020-01-01"});
    refused(&mut ledger, "22023", "retry", past);
    let again =
        ledger.call("retry", json!({"idempotency_key": "k", "reason": "fixed there", "deadline": "2099-01-01"}));
    assert_eq!(again.status, "approved");
    assert!(again.deadline.expect("a deadline").starts_with("2099"));
    let job = claim_one(&mut ledger);
    assert_eq!(job.attempt, 2);
    assert_eq!(fail(&mut ledger, &job, "transient").status, "failed");
    assert_eq!(ledger.status("k").error.as_deref(), Some("budget_exhausted"));
    refused(&mut ledger, "CL011", "retry", json!({"idempotency_key": "x"}));
    assert_journals(&mut ledger);
}

#[test]
fn a_case_has_an_owner_and_a_ready_next_step_that_works() {
    let (_cluster, mut ledger) = desk(quick());
    uncertain(&mut ledger, "it's");
    ledger.call("assign_case", json!({"idempotency_key": "it's", "owner": "ann"}));
    let again = ledger.call("assign_case", json!({"idempotency_key": "it's", "owner": "ann"}));
    assert_eq!(again.outcome.as_deref(), Some("unchanged"));
    let row = ledger.row(
        "SELECT owner, age >= '0', reason_in_words, suggested_next_step FROM command_ledger.reconciliation_queue",
        &[],
    );
    assert_eq!(row.get::<_, String>(0), "ann");
    assert!(row.get::<_, bool>(1));
    assert!(row.get::<_, String>(2).contains(' '), "in words");
    let step: String = row.get(3);
    assert!(step.contains("command_ledger.reconcile("), "{step}");
    refused(&mut ledger, "22023", "assign_case", json!({"idempotency_key": "it's", "owner": " "}));
    ledger.exec("SELECT command_ledger.assign_case('it''s', NULL)");
    assert!(ledger.one::<bool>("SELECT owner IS NULL FROM command_ledger.reconciliation_queue", &[]));
}

#[test]
fn a_paused_destination_claims_nothing_and_what_is_in_flight_ends() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "a");
    let job = claim_one(&mut ledger);
    ledger.exec("SELECT command_ledger.pause('desk')");
    task(&mut ledger, "b");
    assert!(claim(&mut ledger, 10).is_empty());
    assert_eq!(confirm(&mut ledger, &job, "R").status, "confirmed");
    ledger.exec("SELECT command_ledger.pause('desk')");
    ledger.exec("SELECT command_ledger.resume('desk')");
    assert_eq!(claim_one(&mut ledger).key, "b");
    for call in ["pause('nowhere')", "resume('nowhere')"] {
        ledger.expect_sqlstate("CL003", &format!("SELECT command_ledger.{call}"));
    }
}

#[test]
fn a_redacted_command_still_answers_repeats_and_conflicts() {
    let (_cluster, mut ledger) = desk(quick());
    let secret = json!({"name": "Erika Mustermann"});
    let named = json!({"proposal": {"said": "Mustermann"}, "refs": {"mail": "Mustermann"}});
    let before = ledger.register_with("task", "k", secret.clone(), named);
    refused(&mut ledger, "CL006", "redact", json!({"idempotency_key": "k"}));
    let job = claim_one(&mut ledger);
    let result = json!({"idempotency_key": "k", "lease_token": job.token, "result": {"for": "Mustermann"}});
    ledger.call("confirm", result);
    let redacted = ledger.call("redact", json!({"idempotency_key": "k"}));
    assert_eq!((redacted.outcome.as_deref(), redacted.result), (Some("changed"), None));
    let twice = ledger.call("redact", json!({"idempotency_key": "k"}));
    assert_eq!(twice.outcome.as_deref(), Some("unchanged"));
    for table in ["command", "command_event", "outbox", "reconciliation_case", "approval", "timeline"] {
        let left = format!("SELECT count(*) FROM command_ledger.{table} t WHERE t::text LIKE '%Mustermann%'");
        assert_eq!(ledger.one::<i64>(&left, &[]), 0, "{table}");
    }
    let replay = ledger.register("task", "k", secret);
    assert_eq!((replay.outcome.as_deref(), replay.params_hash), (Some("replayed"), before.params_hash));
    assert_eq!(ledger.try_register("task", "k", json!({"name": "else"})).unwrap_err().sqlstate, "CL001");
    task(&mut ledger, "f");
    let job = claim_one(&mut ledger);
    fail(&mut ledger, &job, "permanent");
    ledger.call("redact", json!({"idempotency_key": "f"}));
    let error = refused(&mut ledger, "CL006", "retry", json!({"idempotency_key": "f"}));
    assert!(error.message.contains("redacted"), "{error:?}");
    assert_journals(&mut ledger);
}

#[test]
fn purge_applies_retention_and_leaves_everything_open() {
    let (_cluster, mut ledger) = desk(json!({}));
    define_task(&mut ledger, json!({"retention": {"payload": "1ms", "key": "100d"}}));
    for key in ["done", "open"] {
        task(&mut ledger, key);
    }
    let jobs = claim(&mut ledger, 10);
    let done = jobs.iter().find(|job| job.key == "done").expect("claimed");
    confirm(&mut ledger, done, "R");
    let due = "SELECT retain_until <= clock_timestamp() FROM command_ledger.command WHERE idempotency_key = 'done'";
    ledger.wait_until(due, 10);
    assert_eq!(ledger.text("SELECT command_ledger.purge()"), "1");
    assert_eq!(ledger.text("SELECT command_ledger.purge()"), "0");
    let kept = "SELECT string_agg(idempotency_key || (params IS NULL), ',' ORDER BY idempotency_key) \
                  FROM command_ledger.command";
    assert_eq!(ledger.text(kept), "donetrue,openfalse");
    assert_eq!(task(&mut ledger, "done").outcome.as_deref(), Some("replayed"));
    define_task(&mut ledger, json!({"retention": {"key": "1ms"}}));
    task(&mut ledger, "gone");
    let job = claim(&mut ledger, 10).into_iter().find(|job| job.key == "gone").expect("claimed");
    confirm(&mut ledger, &job, "R-2");
    let due = "SELECT retain_until <= clock_timestamp() FROM command_ledger.command WHERE idempotency_key = 'gone'";
    ledger.wait_until(due, 10);
    assert_eq!(ledger.text("SELECT command_ledger.purge()"), "1");
    assert!(ledger.find("gone").is_none());
    assert_eq!(
        ledger.one::<i64>("SELECT count(*) FROM command_ledger.command_event WHERE idempotency_key = 'gone'", &[]),
        0
    );
    assert_eq!(task(&mut ledger, "gone").outcome.as_deref(), Some("created"));
    for max in ["0", "-1"] {
        ledger.expect_sqlstate("22023", &format!("SELECT command_ledger.purge({max})"));
    }
    assert_journals(&mut ledger);
}

#[test]
fn a_ledger_that_is_not_adopted_hands_out_nothing() {
    let (cluster, mut ledger) = desk(quick());
    task(&mut ledger, "k");
    drop(ledger);
    cluster.connect("postgres").exec("CREATE DATABASE copy TEMPLATE app");
    let mut copy = Ledger::over(cluster.connect("copy"));
    let error = copy.expect_sqlstate("CL015", "SELECT * FROM command_ledger.claim('desk')");
    assert!(error.hint.contains("adopt_relay"), "{error:?}");
    copy.exec("SELECT command_ledger.adopt_relay()");
    assert!(claim(&mut copy, 10).is_empty(), "the original may have sent it");
    assert_eq!(copy.status("k").status, "needs_reconciliation");
    let mut original = Ledger::over(cluster.connect("app"));
    assert_eq!(claim_one(&mut original).key, "k");
    assert_journals(&mut copy);
}
