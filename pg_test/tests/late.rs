//! Late answers: never over a newer attempt, never thrown away.

use pg_test::desk::{
    Job, assert_journals, claim_one, confirm, desk_with, fail, journal, open_case, refused, say, task,
};
use pg_test::prelude::*;

/// A desk that has the same intent only once by its reference, so that uncertain ends are repeated.
fn deduplicating() -> (Cluster, Ledger) {
    desk_with(
        json!({"idempotency": {"mode": "reference", "window": "unlimited"}}),
        json!({"retry": {"base": "1ms", "cap": "1ms", "max_attempts": 5}}),
    )
}

/// A desk that repeats only what was provably not sent.
fn plain() -> (Cluster, Ledger) {
    desk_with(json!({}), json!({"retry": {"base": "1ms", "cap": "1ms", "max_attempts": 5}}))
}

fn next(ledger: &mut Ledger) -> Job {
    ledger.wait_until("SELECT bool_or(due_at <= clock_timestamp()) FROM command_ledger.dispatch_queue", 10);
    claim_one(ledger)
}

fn two_attempts(ledger: &mut Ledger) -> (Job, Job) {
    task(ledger, "k");
    let first = claim_one(ledger);
    assert_eq!(say(ledger, "uncertain", &first).status, "approved");
    let second = next(ledger);
    assert_eq!((first.attempt, second.attempt), (1, 2));
    (first, second)
}

#[test]
fn a_late_success_is_kept_during_a_newer_attempt_and_decides_if_that_one_fails() {
    for end in ["permanent", "permission", "not_sent", "transient"] {
        let (_cluster, mut ledger) = deduplicating();
        let (first, second) = two_attempts(&mut ledger);
        let late = confirm(&mut ledger, &first, "R-1");
        assert_eq!((late.status.as_str(), late.outcome.as_deref()), ("dispatched", Some("late")), "{end}");
        assert_eq!(late.attempt, 2, "the newer attempt goes on");
        let ended = fail(&mut ledger, &second, end);
        assert_eq!(ended.status, "confirmed", "{end}");
        assert_eq!(ended.destination_record_id.as_deref(), Some("R-1"), "{end}");
        assert!(!ended.maybe_sent);
        assert_journals(&mut ledger);
    }
}

#[test]
fn a_late_success_and_an_uncertain_newer_attempt_confirm_with_a_question_left() {
    let (_cluster, mut ledger) = plain();
    task(&mut ledger, "k");
    let first = claim_one(&mut ledger);
    fail(&mut ledger, &first, "not_sent");
    let second = next(&mut ledger);
    confirm(&mut ledger, &first, "R-1");
    let ended = say(&mut ledger, "uncertain", &second);
    assert_eq!(ended.status, "confirmed");
    assert_eq!(ended.destination_record_id.as_deref(), Some("R-1"));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("duplicate_possible"));
    assert_journals(&mut ledger);
}

#[test]
fn two_successes_with_two_records_are_a_case_in_whichever_order_they_come() {
    for late_comes_first in [true, false] {
        let (_cluster, mut ledger) = deduplicating();
        let (first, second) = two_attempts(&mut ledger);
        if late_comes_first {
            confirm(&mut ledger, &first, "R-1");
            confirm(&mut ledger, &second, "R-2");
        } else {
            confirm(&mut ledger, &second, "R-2");
            confirm(&mut ledger, &first, "R-1");
        }
        let settled = ledger.status("k");
        assert_eq!(settled.status, "confirmed");
        assert!(settled.reconciliation_required);
        assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("duplicate_success"));
        let records: Vec<String> = ledger.one("SELECT record_ids FROM command_ledger.duplicate_records", &[]);
        assert_eq!(records, ["R-1", "R-2"], "late first: {late_comes_first}");
        let closed =
            ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "found", "note": "R-1 deleted"}));
        assert_eq!((closed.status.as_str(), closed.reconciliation_required), ("confirmed", false));
        assert_eq!(open_case(&mut ledger, "k"), None);
        assert_journals(&mut ledger);
    }
}

#[test]
fn an_end_of_two_steps_is_written_whole_under_every_plan() {
    let (_cluster, mut ledger) = deduplicating();
    let plans = ["hashjoin, nestloop", "mergejoin, nestloop", "hashjoin, mergejoin", "nestloop, indexscan, bitmapscan"];
    for (i, off) in plans.iter().enumerate() {
        for method in off.split(", ") {
            ledger.exec(&format!("SET enable_{method} = off"));
        }
        ledger.exec("SET plan_cache_mode = force_custom_plan");
        let key = format!("k{i}");
        task(&mut ledger, &key);
        let first = claim_one(&mut ledger);
        say(&mut ledger, "uncertain", &first);
        let second = next(&mut ledger);
        confirm(&mut ledger, &first, "R-1");
        confirm(&mut ledger, &second, "R-2");
        assert_eq!(open_case(&mut ledger, &key).as_deref(), Some("duplicate_success"), "{off}");
        // What comes afterwards goes on where the journal ended.
        assert_eq!(fail(&mut ledger, &first, "permanent").status, "confirmed", "{off}");
        ledger.exec("RESET ALL");
    }
    assert_journals(&mut ledger);
}

#[test]
fn the_same_record_reported_twice_is_no_question() {
    let (_cluster, mut ledger) = deduplicating();
    let (first, second) = two_attempts(&mut ledger);
    confirm(&mut ledger, &second, "R-1");
    let late = confirm(&mut ledger, &first, "R-1");
    assert_eq!((late.status.as_str(), late.outcome.as_deref()), ("confirmed", Some("late")));
    let again = confirm(&mut ledger, &second, "R-1");
    assert_eq!((again.status.as_str(), again.outcome.as_deref()), ("confirmed", Some("late")));
    assert_eq!(open_case(&mut ledger, "k"), None);
    assert_journals(&mut ledger);
}

#[test]
fn late_success_after_failure_opens_a_case() {
    let (_cluster, mut ledger) = plain();
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    assert_eq!(fail(&mut ledger, &job, "permanent").status, "failed");
    let late = confirm(&mut ledger, &job, "R-1");
    assert_eq!((late.status.as_str(), late.maybe_sent), ("needs_reconciliation", true));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("late_success"));
    let found = json!({"idempotency_key": "k", "finding": "found", "destination_record_id": "R-1"});
    let closed = ledger.call("reconcile", found);
    assert_eq!((closed.status.as_str(), closed.maybe_sent), ("confirmed", false));
    assert_eq!(journal(&mut ledger, "k"), ["register", "claim", "refused", "late_success", "reconcile_found"]);
    assert_journals(&mut ledger);
}

#[test]
fn late_success_after_cancellation_opens_a_case_and_the_command_stays_cancelled() {
    let (_cluster, mut ledger) = plain();
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    say(&mut ledger, "release", &job);
    assert_eq!(ledger.call("cancel", json!({"idempotency_key": "k"})).status, "cancelled");
    let late = confirm(&mut ledger, &job, "R-1");
    assert_eq!((late.status.as_str(), late.reconciliation_required), ("cancelled", true));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("contradiction"));
    refused(&mut ledger, "CL006", "redact", json!({"idempotency_key": "k"}));
    let closed = ledger.call("reconcile", json!({"idempotency_key": "k", "finding": "abandon"}));
    assert_eq!((closed.status.as_str(), closed.reconciliation_required), ("cancelled", false));
    assert_journals(&mut ledger);
}

#[test]
fn a_late_success_confirms_what_waits_for_its_next_attempt() {
    let (_cluster, mut ledger) = deduplicating();
    task(&mut ledger, "k");
    let first = claim_one(&mut ledger);
    assert_eq!(say(&mut ledger, "uncertain", &first).status, "approved");
    let late = confirm(&mut ledger, &first, "R-1");
    assert_eq!((late.status.as_str(), late.maybe_sent), ("confirmed", false));
    assert!(pg_test::desk::claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}

#[test]
fn late_failures_are_noted_and_change_nothing() {
    let (_cluster, mut ledger) = deduplicating();
    let (first, second) = two_attempts(&mut ledger);
    for late in [fail(&mut ledger, &first, "permanent"), say(&mut ledger, "uncertain", &first)] {
        assert_eq!((late.status.as_str(), late.outcome.as_deref()), ("dispatched", Some("late")));
        assert!(late.maybe_sent);
    }
    assert_eq!(say(&mut ledger, "release", &first).status, "dispatched", "an older token releases nothing");
    assert_eq!(confirm(&mut ledger, &second, "R-2").status, "confirmed");
    let kinds = journal(&mut ledger, "k");
    assert_eq!(kinds.iter().filter(|kind| *kind == "late_failure").count(), 3, "{kinds:?}");
    assert_journals(&mut ledger);
}

#[test]
fn a_refused_repeat_while_maybe_sent_is_a_case() {
    for (end, reason) in [("permanent", "refused_repeat"), ("permission", "repeat_not_permitted")] {
        let (_cluster, mut ledger) = deduplicating();
        let (_, second) = two_attempts(&mut ledger);
        let ended = fail(&mut ledger, &second, end);
        assert_eq!((ended.status.as_str(), ended.maybe_sent), ("needs_reconciliation", true), "{end}");
        assert_eq!(open_case(&mut ledger, "k").as_deref(), Some(reason));
        assert_journals(&mut ledger);
    }
}
