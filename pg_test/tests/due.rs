//! What a claim finds: the order of sending, what it steps over, and that nothing due is overlooked.

use pg_test::desk::{assert_journals, claim, confirm, desk_with, task};
use pg_test::prelude::*;

fn wide_desk() -> (Cluster, Ledger) {
    desk_with(json!({"limits": {"in_flight": 1000}}), json!({}))
}

fn keys(session: &mut Session, max: i32) -> Vec<String> {
    claim(session, max).into_iter().map(|job| job.key).collect()
}

#[test]
fn a_command_that_is_committed_long_after_it_was_registered_is_found_before_the_queue_is_called_empty() {
    let (cluster, mut ledger) = wide_desk();
    let mut slow = cluster.connect("app");
    slow.exec("BEGIN; SELECT command_ledger.register('task', 'slow', '{}')");
    for i in 0..30 {
        task(&mut ledger, &format!("k{i:02}"));
    }
    // This session has seen by now that nothing stands before its last claim.
    for i in 0..20 {
        assert_eq!(keys(&mut ledger, 1), [format!("k{i:02}")], "in the order of their times");
    }
    slow.exec("COMMIT");
    let mut rest = Vec::new();
    while let Some(key) = keys(&mut ledger, 1).pop() {
        rest.push(key);
    }
    rest.sort();
    let mut expected: Vec<String> = (20..30).map(|i| format!("k{i:02}")).collect();
    expected.push("slow".to_owned());
    assert_eq!(rest, expected, "all of it, and each once");
    assert_journals(&mut ledger);
}

#[test]
fn what_comes_back_to_the_head_of_the_queue_is_found_by_a_session_that_had_passed_it() {
    let (cluster, mut ledger) = wide_desk();
    for i in 0..10 {
        task(&mut ledger, &format!("k{i}"));
    }
    let mut person = cluster.connect("app");
    person.exec("BEGIN; SELECT 1 FROM command_ledger.outbox WHERE idempotency_key = 'k0' FOR UPDATE");
    assert_eq!(keys(&mut ledger, 4), ["k1", "k2", "k3", "k4"], "what others hold is stepped over");
    person.exec("ROLLBACK");
    let mut rest = keys(&mut ledger, 10);
    rest.sort();
    assert_eq!(rest, ["k0", "k5", "k6", "k7", "k8", "k9"]);
    assert_journals(&mut ledger);
}

#[test]
fn a_long_open_snapshot_hides_nothing_from_claims() {
    let (cluster, mut ledger) = wide_desk();
    let mut old = cluster.connect("app");
    old.exec("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM command_ledger.command");
    for round in 0..60 {
        task(&mut ledger, &format!("r{round}"));
        let job = claim(&mut ledger, 1).pop().expect("due");
        assert_eq!(job.key, format!("r{round}"));
        confirm(&mut ledger, &job, "R");
    }
    assert_eq!(keys(&mut ledger, 5), [""; 0]);
    old.exec("COMMIT");
    assert_journals(&mut ledger);
}

#[test]
fn without_its_index_the_queue_is_claimed_all_the_same() {
    let (_cluster, mut ledger) = wide_desk();
    ledger.exec("DROP INDEX command_ledger.outbox_due, command_ledger.outbox_leased");
    for i in 0..5 {
        task(&mut ledger, &format!("k{i}"));
    }
    assert_eq!(keys(&mut ledger, 3), ["k0", "k1", "k2"]);
    assert_eq!(keys(&mut ledger, 5), ["k3", "k4"]);
    assert_journals(&mut ledger);
}
