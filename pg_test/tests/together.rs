//! register_and_claim: a token only when the call must be made.

use pg_test::desk::{Job, assert_journals, claim_one, confirm, desk, desk_with, fail, refused, say, task};
use pg_test::prelude::*;

fn together(session: &mut Session, key: &str) -> (String, String, Option<String>) {
    let sql = "SELECT (receipt).status::text, (receipt).outcome, lease_token::text \
                 FROM command_ledger.register_and_claim('task', $1, '{\"n\": 1}')";
    let row = session.row(sql, &[&key]);
    (row.get(0), row.get(1), row.get(2))
}

#[test]
fn a_new_command_comes_with_its_token_and_a_repeat_without() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"base": "1ms", "cap": "1ms"}}));
    let (status, outcome, token) = together(&mut ledger, "k");
    assert_eq!((status.as_str(), outcome.as_str()), ("dispatched", "created"));
    let job = Job { key: "k".to_owned(), token: token.expect("a token"), attempt: 1 };
    assert_eq!(together(&mut ledger, "k"), ("dispatched".to_owned(), "replayed".to_owned(), None), "in flight");
    assert_eq!(say(&mut ledger, "release", &job).status, "approved");
    let (status, outcome, token) = together(&mut ledger, "k");
    assert_eq!((status.as_str(), outcome.as_str()), ("dispatched", "replayed"));
    let job = Job { key: "k".to_owned(), token: token.expect("due again"), attempt: 2 };
    confirm(&mut ledger, &job, "R-1");
    assert_eq!(together(&mut ledger, "k"), ("confirmed".to_owned(), "replayed".to_owned(), None), "made before");
    let other = "SELECT * FROM command_ledger.register_and_claim('task', 'k', '{\"n\": 2}')";
    ledger.expect_sqlstate("CL001", other);
    assert_journals(&mut ledger);
}

#[test]
fn no_token_while_it_waits_for_approval_its_time_its_lane_or_a_person() {
    let (_cluster, mut ledger) = desk(json!({"approval": {"when": "$.n > 5"}}));
    let call = |more: &str, params: &str, key: &str| {
        format!("SELECT lease_token::text FROM command_ledger.register_and_claim('task', '{key}', '{params}'{more})")
    };
    assert_eq!(ledger.maybe_text(&call("", r#"{"n": 6}"#, "planned")), None);
    assert_eq!(ledger.status("planned").status, "planned");
    assert_eq!(ledger.maybe_text(&call(", not_before => now() + interval '1 h'", r#"{"n": 1}"#, "later")), None);
    assert!(ledger.maybe_text(&call(", ordering_key => 'lane'", r#"{"n": 1}"#, "head")).is_some());
    assert_eq!(ledger.maybe_text(&call(", ordering_key => 'lane'", r#"{"n": 1}"#, "behind")), None);
    ledger.exec("SELECT command_ledger.pause('desk')");
    assert_eq!(ledger.maybe_text(&call("", r#"{"n": 1}"#, "paused")), None);
    ledger.exec("SELECT command_ledger.resume('desk')");
    let token = ledger.text(&call("", r#"{"n": 1}"#, "paused"));
    say(&mut ledger, "uncertain", &Job { key: "paused".to_owned(), token, attempt: 1 });
    assert_eq!(ledger.maybe_text(&call("", r#"{"n": 1}"#, "paused")), None);
    assert_eq!(ledger.status("paused").status, "needs_reconciliation");
    assert_journals(&mut ledger);
}

#[test]
fn of_many_sessions_that_ask_at_once_exactly_one_gets_the_token() {
    let (cluster, mut ledger) = desk(json!({}));
    for round in 0..5 {
        let key = format!("new {round}");
        let answers = cluster.in_parallel("app", 12, |_, session| together(session, &key));
        assert_eq!(answers.iter().filter(|(_, _, token)| token.is_some()).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|(_, outcome, _)| outcome == "created").count(), 1, "{answers:?}");
    }
    // And for a command that stands there due since long.
    for round in 0..5 {
        let key = format!("old {round}");
        task(&mut ledger, &key);
        let answers = cluster.in_parallel("app", 12, |_, session| together(session, &key));
        assert_eq!(answers.iter().filter(|(_, _, token)| token.is_some()).count(), 1, "{answers:?}");
        assert_eq!(ledger.status(&key).attempt, 1);
    }
    assert_journals(&mut ledger);
}

#[test]
fn who_waited_for_the_claim_of_another_session_sees_what_it_did() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    // Holds what claims wait for, so that two calls have both read the command as due.
    let mut holder = ledger.another();
    holder.exec("BEGIN");
    holder.exec("SELECT pg_advisory_xact_lock(hashtextextended('command_ledger.claim/desk', 0))");
    let sql =
        "SELECT coalesce(lease_token::text, 'none') FROM command_ledger.register_and_claim('task', 'k', '{\"n\": 1}')";
    let waiting: Vec<_> = (0..2).map(|_| ledger.another().in_background(sql)).collect();
    for one in &waiting {
        ledger.wait_for_lock_wait(one.backend_pid());
    }
    holder.exec("COMMIT");
    let mut answers: Vec<String> =
        waiting.into_iter().map(|one| one.finish().1.expect("no error").expect("a value")).collect();
    answers.sort_by_key(|answer| answer == "none");
    assert_ne!(answers[0], "none");
    assert_eq!(answers[1], "none");
    assert_eq!(ledger.status("k").attempt, 1);
    let job = Job { key: "k".to_owned(), token: answers.remove(0), attempt: 1 };
    assert_eq!(confirm(&mut ledger, &job, "R-1").status, "confirmed");
    assert_journals(&mut ledger);
}

#[test]
fn a_cancelled_command_is_not_claimed_by_who_saw_it_before() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    let mut holder = ledger.another();
    holder.exec("BEGIN");
    holder.exec("SELECT pg_advisory_xact_lock(hashtextextended('command_ledger.claim/desk', 0))");
    let sql =
        "SELECT coalesce(lease_token::text, 'none') FROM command_ledger.register_and_claim('task', 'k', '{\"n\": 1}')";
    let waiting = ledger.another().in_background(sql);
    ledger.wait_for_lock_wait(waiting.backend_pid());
    let old = ledger.status("k").intent_hash;
    ledger.call("revise", json!({"idempotency_key": "k", "params": {"n": 2}, "expected_hash": old}));
    holder.exec("COMMIT");
    // The content moved on after it was compared: whatever is answered, no token for the old content.
    let (_, answer) = waiting.finish();
    match answer {
        Ok(token) => assert_eq!(token.as_deref(), Some("none")),
        Err(error) => assert_eq!(error.sqlstate, "CL001", "{error}"),
    }
    assert_eq!(claim_one(&mut ledger).attempt, 1);
    assert_journals(&mut ledger);
}

#[test]
fn repeats_have_their_own_limit_here_too() {
    let (_cluster, mut ledger) = desk_with(
        json!({"limits": {"in_flight": 10, "retries_in_flight": 1}}),
        json!({"retry": {"base": "1ms", "cap": "1ms"}}),
    );
    for key in ["a", "b"] {
        let token = together(&mut ledger, key).2.expect("a token");
        fail(&mut ledger, &Job { key: key.to_owned(), token, attempt: 1 }, "not_sent");
    }
    ledger.wait_until("SELECT bool_and(due_at <= clock_timestamp()) FROM command_ledger.dispatch_queue", 10);
    assert!(together(&mut ledger, "a").2.is_some());
    assert_eq!(together(&mut ledger, "b").2, None, "one repeat is in flight already");
    assert!(together(&mut ledger, "c").2.is_some(), "first attempts have room");
}

#[test]
fn what_the_caller_may_not_do_leaves_nothing() {
    let (_cluster, mut ledger) = desk(json!({"deny_when": "$.n > 5"}));
    ledger.expect_sqlstate("CL005", "SELECT * FROM command_ledger.register_and_claim('task', 'k', '{\"n\": 6}')");
    ledger.exec("CREATE ROLE proposer LOGIN; SELECT command_ledger.grant_access('proposer', 'propose')");
    let mut proposer = ledger.as_role("proposer");
    proposer.expect_sqlstate("42501", "SELECT * FROM command_ledger.register_and_claim('task', 'k', '{\"n\": 1}')");
    assert!(ledger.find("k").is_none());
    refused(&mut ledger, "CL011", "cancel", json!({"idempotency_key": "k"}));
}
