//! Lanes: commands that share an ordering key go one after the other.

use pg_test::desk::{assert_journals, claim, claim_one, confirm, desk, fail, open_case, say};
use pg_test::prelude::*;

fn register(ledger: &mut Ledger, key: &str, lane: &str) {
    ledger.register_with("task", key, json!({}), json!({"ordering_key": lane}));
}

fn keys(ledger: &mut Ledger) -> Vec<String> {
    let mut keys: Vec<String> = claim(ledger, 100).into_iter().map(|job| job.key).collect();
    keys.sort();
    keys
}

#[test]
fn a_lane_goes_in_the_order_of_registration_and_lanes_do_not_wait_for_each_other() {
    let (_cluster, mut ledger) = desk(json!({}));
    for (key, lane) in [("z", "one"), ("y", "one"), ("x", "one"), ("b", "two"), ("a", "two")] {
        register(&mut ledger, key, lane);
    }
    for expected in [["b", "z"], ["a", "y"]] {
        let mut jobs = claim(&mut ledger, 100);
        jobs.sort_by(|l, r| l.key.cmp(&r.key));
        assert_eq!(jobs.iter().map(|job| job.key.as_str()).collect::<Vec<_>>(), expected);
        assert!(claim(&mut ledger, 100).is_empty(), "one at a time");
        for job in &jobs {
            confirm(&mut ledger, job, &job.key);
        }
    }
    assert_eq!(keys(&mut ledger), ["x"]);
    assert_journals(&mut ledger);
}

#[test]
fn an_open_case_at_the_head_blocks_the_lane_until_a_person_closes_it() {
    let (_cluster, mut ledger) = desk(json!({}));
    register(&mut ledger, "first", "lane");
    register(&mut ledger, "second", "lane");
    let job = claim_one(&mut ledger);
    say(&mut ledger, "uncertain", &job);
    assert!(claim(&mut ledger, 10).is_empty());
    let why =
        "SELECT blocked_by || ' ' || lane_head FROM command_ledger.dispatch_queue WHERE idempotency_key = 'second'";
    assert_eq!(ledger.text(why), "lane first");
    ledger.call("reconcile", json!({"idempotency_key": "first", "finding": "found", "destination_record_id": "R"}));
    assert_eq!(keys(&mut ledger), ["second"]);
}

#[test]
fn a_failed_head_blocks_its_lane_unless_the_type_says_skip() {
    for (policy, goes_on) in [(json!({}), false), (json!({"lane_on_failure": "skip"}), true)] {
        let (_cluster, mut ledger) = desk(policy);
        register(&mut ledger, "first", "lane");
        register(&mut ledger, "second", "lane");
        let job = claim_one(&mut ledger);
        fail(&mut ledger, &job, "permanent");
        assert_eq!(keys(&mut ledger) == ["second"], goes_on);
        if !goes_on {
            ledger.call("retry", json!({"idempotency_key": "first"}));
            let again = claim_one(&mut ledger);
            assert_eq!(again.key, "first", "it kept its place");
            fail(&mut ledger, &again, "permanent");
            ledger.call("redact", json!({"idempotency_key": "first"}));
            assert_eq!(keys(&mut ledger), ["second"], "what can never be sent again blocks nobody");
        }
        assert_journals(&mut ledger);
    }
}

#[test]
fn a_cancelled_head_lets_the_lane_go_on() {
    let (_cluster, mut ledger) = desk(json!({}));
    register(&mut ledger, "first", "lane");
    register(&mut ledger, "second", "lane");
    ledger.call("cancel", json!({"idempotency_key": "first"}));
    assert_eq!(keys(&mut ledger), ["second"]);
}

#[test]
fn a_lane_is_per_tenant() {
    let (_cluster, mut ledger) = desk(json!({}));
    for tenant in ["acme", "other"] {
        let named = json!({"ordering_key": "lane", "tenant": tenant});
        ledger.register_with("task", "k", json!({}), named);
    }
    assert_eq!(claim(&mut ledger, 10).len(), 2);
}

#[test]
fn a_head_that_waits_for_approval_or_its_time_blocks_the_lane() {
    let (_cluster, mut ledger) = desk(json!({"approval": {"when": "$.ask == true", "separate_proposer": false}}));
    let planned = ledger.register_with("task", "first", json!({"ask": true}), json!({"ordering_key": "lane"}));
    ledger.register_with("task", "second", json!({"ask": false}), json!({"ordering_key": "lane"}));
    assert!(claim(&mut ledger, 10).is_empty());
    ledger.call("approve", json!({"idempotency_key": "first", "intent_hash": planned.intent_hash}));
    assert_eq!(keys(&mut ledger), ["first"]);
}

#[test]
fn many_sessions_in_one_lane_keep_one_order_in_every_isolation_level() {
    let (cluster, mut ledger) = desk(json!({}));
    for level in ["read committed", "repeatable read", "serializable"] {
        let answers = cluster.in_parallel("app", 12, |i, session| {
            session.exec(&format!("SET default_transaction_isolation = '{level}'"));
            let key = format!("{level} {i}");
            // What a serializable client does: the same again after 40001.
            for _ in 0..200 {
                let sql = format!("SELECT command_ledger.register('task', '{key}', '{{}}', ordering_key => '{level}')");
                match session.try_exec(&sql) {
                    Ok(()) => return "done".to_owned(),
                    Err(error) if error.sqlstate == "40001" => {}
                    Err(error) => return error.to_string(),
                }
            }
            "never".to_owned()
        });
        assert!(answers.iter().all(|answer| answer == "done"), "{level}: {answers:?}");
        let places = "SELECT count(DISTINCT place) FROM command_ledger.lane WHERE ordering_key = $1";
        assert_eq!(ledger.one::<i64>(places, &[&level]), 12, "{level}");
    }
    let mut taken = 0;
    while taken < 36 {
        let jobs = claim(&mut ledger, 100);
        assert!(!jobs.is_empty() && jobs.len() <= 3, "{jobs:?}");
        for job in &jobs {
            confirm(&mut ledger, job, &job.key);
        }
        taken += jobs.len();
    }
    assert_eq!(open_case(&mut ledger, "read committed 0"), None);
    assert_journals(&mut ledger);
}
