//! Budgets of one command: attempts, deadline, Retry-After; what counts as an attempt and what does not; and that all of
//! it holds across a restart of the relay, because it is derived from rows.

use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use pg_test::desk::{assert_journals, journal, open_case};
use pg_test::prelude::*;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().setting("command_ledger.shutdown_grace", "0").start();
    let secrets = cluster.make_directory("secrets");
    cluster.set("command_ledger.secrets_directory", secrets.to_str().unwrap_or_default());
    cluster
});

const FAST: &str = "1ms";

fn define(ledger: &mut Ledger, destination: &Destination, mode: &str, members: Value, max_attempts: i32) {
    let mut config = json!({
        "transport": "http",
        "request": {"url": destination.url("/records"), "body": {"reference": "{{ destination_key }}"}},
        "success": {"record_id": "$.id"},
        "idempotency": {"mode": mode},
    });
    if mode == "key" {
        config["idempotency"]["window"] = json!("24h");
    }
    for (member, value) in members.as_object().into_iter().flatten() {
        config[member] = value.clone();
    }
    ledger.define_destination("erp", config);
    let retry = json!({"base": FAST, "cap": FAST, "max_attempts": max_attempts});
    ledger.define_type("create", json!({"destination": "erp", "retry": retry}));
}

/// No write arrived after the command's deadline.
fn assert_within_deadline(ledger: &mut Ledger, erp: &Destination, key: &str) {
    let sql = "SELECT pg_catalog.date_part('epoch', deadline) FROM command_ledger.status($1)";
    let deadline_s: f64 = ledger.one(sql, &[&key]);
    for write in erp.writes() {
        let arrived_s = write.arrived_at.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(arrived_s <= deadline_s, "{arrived_s} is after {deadline_s}");
    }
}

#[test]
fn requests_seen_are_exactly_the_attempts_that_the_budget_permits() {
    let mut ledger = CLUSTER.ledger("budget");
    // Certainly not processed; not known but recognised by its key; the destination cannot be repeated at all.
    let rows = [
        ("none", answer(429, json!({})), 1, 1, "failed"),
        ("none", answer(429, json!({})), 4, 4, "failed"),
        ("key", drop_before_commit(), 3, 3, "needs_reconciliation"),
        ("key", answer(503, json!({})), 1, 1, "needs_reconciliation"),
        ("key", drop_after_commit(), 2, 2, "needs_reconciliation"),
        ("none", answer(503, json!({})), 4, 1, "needs_reconciliation"),
    ];
    for (i, (mode, behaviour, budget, requests, ends)) in rows.into_iter().enumerate() {
        let erp = Destination::start(Profile::deduplicating("Idempotency-Key"));
        erp.otherwise(behaviour);
        define(&mut ledger, &erp, mode, json!({}), budget);
        let key = format!("k{i}");
        ledger.register("create", &key, json!({}));
        let end = ledger.wait_status(&key, ends);
        assert_eq!((end.attempt, erp.writes().len()), (requests, requests as usize), "row {i}");
        assert_eq!(end.maybe_sent, ends == "needs_reconciliation", "row {i}");
        if ends == "failed" {
            assert_eq!(end.error.as_deref(), Some("budget_exhausted"), "row {i}");
        }
        assert!(erp.effects() <= 1);
    }
    assert_journals(&mut ledger);
}

#[test]
fn nothing_is_sent_after_the_deadline_however_often_it_fails() {
    let mut ledger = CLUSTER.ledger("deadline");
    let erp = Destination::start(Profile::deduplicating("Idempotency-Key"));
    erp.otherwise(answer(503, json!({})).delay(20));
    define(&mut ledger, &erp, "key", json!({}), 1_000);
    let soon = ledger.text("SELECT (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '2 s'::interval)::text");
    ledger.register_with("create", "k", json!({}), json!({"deadline": soon}));
    let end = ledger.wait_status("k", "needs_reconciliation");
    assert!(end.attempt >= 2 && end.maybe_sent, "{end:?}");
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("deadline_over"));
    assert_eq!(erp.writes().len(), usize::try_from(end.attempt).unwrap());
    assert_within_deadline(&mut ledger, &erp, "k");
}

#[test]
fn retry_after_is_kept_but_never_past_the_deadline() {
    let mut ledger = CLUSTER.ledger("retry_after");
    let erp = Destination::start(Profile::Plain);
    erp.next(answer(429, json!({})).header("Retry-After", "3600"));
    define(&mut ledger, &erp, "none", json!({}), 5);
    let soon = ledger.text("SELECT (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '2500 ms'::interval)::text");
    ledger.register_with("create", "k", json!({}), json!({"deadline": soon}));
    let end = ledger.wait_status("k", "confirmed");
    assert_eq!((end.attempt, erp.writes().len()), (2, 2));
    // The last second in which an attempt still makes sense, not the first.
    let late = "SELECT max(started_at) >= min(started_at) + interval '1 s' FROM command_ledger.attempts";
    assert!(ledger.one::<bool>(late, &[]));
    assert_within_deadline(&mut ledger, &erp, "k");
    erp.next(answer(429, json!({})).header("Retry-After", "3600"));
    ledger.register("create", "k2", json!({}));
    ledger.wait_until("SELECT retry_at > clock_timestamp() + interval '50 min' FROM command_ledger.status('k2')", 20);
    let why = "SELECT blocked_by || ' ' || (why LIKE 'Attempt 1 ended with%') FROM command_ledger.dispatch_queue";
    assert_eq!(ledger.text(why), "retry true");
}

#[test]
fn what_our_own_setup_kept_back_is_no_attempt() {
    let mut ledger = CLUSTER.ledger("own_fault");
    let erp = Destination::start(Profile::Plain);
    let request = json!({"url": erp.url("/records"), "auth": {"bearer": {"secret": "token"}}});
    define(&mut ledger, &erp, "none", json!({"request": request}), 1);
    let soon = ledger.text("SELECT (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '3 s'::interval)::text");
    ledger.register_with("create", "k", json!({}), json!({"deadline": soon}));
    ledger.wait_until("SELECT error = 'not_sent' FROM command_ledger.status('k')", 20);
    CLUSTER.write_file("secrets/token", "s3cret-value\n");
    let end = ledger.wait_status("k", "confirmed");
    assert_eq!((end.attempt, erp.writes().len()), (2, 1), "the budget of one was still there");
    assert_eq!(erp.writes()[0].header("authorization"), Some("Bearer s3cret-value"));
    assert_eq!(journal(&mut ledger, "k"), ["register", "claim", "not_sent", "claim", "confirm"]);
    assert!(!CLUSTER.log().contains("s3cret-value"));
}

#[test]
fn budgets_and_limits_hold_across_restarts_of_the_relay() {
    let mut ledger = CLUSTER.ledger("restarts");
    let erp = Destination::start(Profile::deduplicating("Idempotency-Key"));
    erp.otherwise(hang());
    define(&mut ledger, &erp, "key", json!({"limits": {"in_flight": 2}}), 3);
    for key in ["k1", "k2", "k3", "k4"] {
        ledger.register("create", key, json!({}));
    }
    // Every run of the relay dies with two calls out: each is an attempt, counted when it was claimed.
    for run in 1..=3 {
        erp.wait_for_write(2 * run);
        let counted = "SELECT max(counted_attempts), sum(counted_attempts) FROM command_ledger.outbox";
        let row = ledger.row(counted, &[]);
        assert!(row.get::<_, i32>(0) <= 3 && row.get::<_, i64>(1) <= 2 * i64::try_from(run).unwrap());
        ledger.terminate_relay();
    }
    erp.otherwise(accept());
    let at_rest = "SELECT count(*) FROM command_ledger.outbox";
    ledger.wait_until(&format!("SELECT ({at_rest}) = 0"), 60);
    for key in ["k1", "k2", "k3", "k4"] {
        let end = ledger.status(key);
        let writes = erp.writes().iter().filter(|write| write.header("idempotency-key") == Some(key)).count();
        assert_eq!(i64::from(end.attempt), writes as i64, "{key}");
        assert!(writes <= 3, "{key} was sent {writes} times");
        assert_eq!(erp.effects_for(key), usize::from(end.status == "confirmed"), "{key}");
        assert_eq!(end.maybe_sent, end.status == "needs_reconciliation", "{key}");
    }
    assert!(erp.peak_in_flight() <= 2, "{}", erp.peak_in_flight());
    assert_journals(&mut ledger);
}
