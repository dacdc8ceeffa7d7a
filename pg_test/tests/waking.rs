//! What wakes the relay and what does not: commits, due times, the sweep; and what it costs while there is nothing to
//! do. The clusters here sleep for an hour at most (the longest that can be set), so that no sweep helps, except where
//! the sweep is what a test is about.

use std::sync::LazyLock;

use pg_test::desk::{claim_one, define_desk, define_task, open_case, task};
use pg_test::erp_like::{deduplicating, searchable};
use pg_test::prelude::*;

/// One database per test; nobody sweeps.
static SLEEPERS: LazyLock<Cluster> = LazyLock::new(|| {
    Cluster::builder()
        .preload(true)
        .fsync_off()
        .setting("command_ledger.max_sleep", "1h")
        .setting("max_worker_processes", "40")
        .start()
});

/// A ledger whose relay runs and has nothing to do.
fn sleeper(database: &str) -> Ledger {
    let mut ledger = SLEEPERS.ledger(database);
    ledger.relay_pid();
    ledger
}

fn register_call(command_type: &str, key: &str) -> String {
    format!("SELECT command_ledger.register('{command_type}', '{key}', '{{\"lines\": []}}')")
}

#[test]
fn an_idle_relay_reads_at_most_once_per_max_sleep_and_writes_nothing() {
    const ROUNDS: i64 = 4;
    // More than a second: then the relay reports its figures before each sleep.
    const MAX_SLEEP_MS: i64 = 1_100;
    // Nothing else may read or write: no autovacuum, no standby snapshots in the WAL.
    let cluster = Cluster::builder()
        .preload(true)
        .fsync_off()
        .setting("command_ledger.max_sleep", &format!("{MAX_SLEEP_MS}ms"))
        .setting("autovacuum", "off")
        .setting("wal_level", "minimal")
        .setting("max_wal_senders", "0")
        .setting("checkpoint_timeout", "1h")
        .start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "R-1", json!({"lines": []}));
    ledger.wait_status("R-1", "confirmed");
    let relay = ledger.relay_pid();
    drop(ledger);
    // Looked at from another database: what is counted in `app` is the relay's alone.
    let mut observer = cluster.connect("postgres");
    observer.wait_until("SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'app'", 30);
    let mut look = || {
        let row = observer.row(
            "SELECT xact_commit, xact_rollback, tup_inserted + tup_updated + tup_deleted, \
                    (extract(epoch FROM clock_timestamp()) * 1000)::int8, pg_current_wal_insert_lsn()::text \
               FROM pg_stat_database WHERE datname = 'app'",
            &[],
        );
        let number = |i| row.get::<_, i64>(i);
        (number(0), number(1), number(2), number(3), row.get::<_, String>(4))
    };
    // Two looks right after a report are comparable.
    let mut after_report = |beyond: i64| {
        for _ in 0..2_400 {
            let seen = look();
            if seen.0 > beyond {
                return seen;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        panic!("the relay no longer looks\n{}", cluster.log());
    };
    let settled = after_report(0).0;
    // The first report may still hold the session's and the delivery's own transactions.
    let first = after_report(settled);
    let second = after_report(first.0 + ROUNDS);
    let (reads, elapsed_ms) = (second.0 - first.0, second.3 - first.3);
    // Upper bound only: a slow machine makes it fewer. The first look may have come late after its report.
    let allowed = (elapsed_ms + 1_000) / MAX_SLEEP_MS + 1;
    assert!(reads <= allowed, "{reads} transactions in {elapsed_ms} ms, {allowed} allowed");
    assert_eq!((first.1, first.2), (second.1, second.2), "an idle relay writes and fails nothing");
    assert_eq!(first.4, second.4, "an idle relay writes no WAL");
    assert_eq!(cluster.ledger("app").relay_pid(), relay, "it is still the same process");
    assert_eq!(erp.requests().len(), 1);
}

#[test]
fn a_commit_wakes_the_relay_although_the_sweep_is_an_hour_away() {
    let mut ledger = sleeper("commit");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    for key in ["R-1", "R-2", "R-3"] {
        ledger.register("requisition", key, json!({"lines": []}));
        assert_eq!(ledger.wait_status(key, "confirmed").attempt, 1);
        assert_eq!(erp.effects_for(key), 1);
    }
    assert_eq!(erp.requests().len(), 3);
}

#[test]
fn a_command_whose_session_dies_right_after_its_commit_is_sent() {
    let mut ledger = sleeper("dies");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let mut dying = SLEEPERS.connect("dies");
    let register = register_call("requisition", "R-1");
    let end = dying.try_exec(&format!("BEGIN; {register}; COMMIT; SELECT pg_terminate_backend(pg_backend_pid())"));
    assert!(end.is_err(), "the session is gone");
    assert_eq!(ledger.wait_status("R-1", "confirmed").attempt, 1);
    assert_eq!(erp.effects_for("R-1"), 1);
}

#[test]
fn what_is_rolled_back_wakes_nobody_and_is_never_sent() {
    let mut ledger = sleeper("rollback");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let mut other = SLEEPERS.connect("rollback");
    other.exec("BEGIN");
    other.exec(&register_call("requisition", "R-undone"));
    other.exec("ROLLBACK");
    other.exec("BEGIN");
    other.exec(&register_call("requisition", "R-kept"));
    other.exec("SAVEPOINT s");
    other.exec(&register_call("requisition", "R-half"));
    other.exec("ROLLBACK TO s");
    other.exec("COMMIT");
    let mut dead = SLEEPERS.connect("rollback");
    dead.exec("BEGIN");
    dead.exec(&register_call("requisition", "R-dead"));
    drop(dead);
    assert_eq!(ledger.wait_status("R-kept", "confirmed").attempt, 1);
    // A whole round later than all of them.
    ledger.register("requisition", "R-last", json!({"lines": []}));
    ledger.wait_status("R-last", "confirmed");
    for key in ["R-undone", "R-half", "R-dead"] {
        assert!(ledger.find(key).is_none(), "{key}");
        assert_eq!(erp.effects_for(key), 0, "{key}");
    }
    assert_eq!(erp.requests().len(), 2);
}

#[test]
fn a_prepared_transaction_is_sent_by_the_sweep_after_its_commit_and_not_before() {
    let cluster = Cluster::builder()
        .preload(true)
        .fsync_off()
        .setting("command_ledger.max_sleep", "300ms")
        .setting("max_prepared_transactions", "4")
        .start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    for key in ["P-commit", "P-rollback"] {
        let mut session = cluster.connect("app");
        session.exec("BEGIN");
        session.exec(&register_call("requisition", key));
        session.exec(&format!("PREPARE TRANSACTION '{key}'"));
    }
    ledger.register("requisition", "P-other", json!({"lines": []}));
    ledger.wait_status("P-other", "confirmed");
    assert_eq!(erp.requests().len(), 1, "what is only prepared is not sent");
    // Prepared transactions outlive the server; the wish to wake does not.
    cluster.crash_restart();
    ledger.reconnect();
    cluster.connect("app").exec("COMMIT PREPARED 'P-commit'");
    cluster.connect("app").exec("ROLLBACK PREPARED 'P-rollback'");
    assert_eq!(ledger.wait_status("P-commit", "confirmed").attempt, 1);
    assert!(ledger.find("P-rollback").is_none());
    assert_eq!((erp.effects_for("P-commit"), erp.effects_for("P-rollback")), (1, 0));
}

#[test]
fn the_time_of_not_before_wakes_the_relay() {
    let mut ledger = sleeper("not_before");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let at = ledger.text("SELECT clock_timestamp() + '1s'");
    let named = json!({"not_before": at});
    ledger.register_with("requisition", "R-1", json!({"lines": []}), named);
    let confirmed = ledger.wait_status("R-1", "confirmed");
    assert_eq!(confirmed.attempt, 1);
    assert!(
        ledger.one::<bool>(
            &format!(
                "SELECT min(at) >= '{at}' FROM command_ledger.timeline \
                  WHERE idempotency_key = 'R-1' AND kind = 'claim'"
            ),
            &[]
        ),
        "not before its time"
    );
    assert_eq!(erp.effects_for("R-1"), 1);
}

#[test]
fn the_time_of_a_retry_wakes_the_relay() {
    let mut ledger = sleeper("retry");
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    pay.next(answer(429, json!({})).header("Retry-After", "1").then(drop_after_commit()));
    deduplicating(&mut ledger, &pay);
    ledger.register("payment", "P-1", json!({"lines": []}));
    assert_eq!(ledger.wait_status("P-1", "confirmed").attempt, 3);
    assert_eq!((pay.writes().len(), pay.effects_for("P-1")), (3, 1));
}

#[test]
fn the_time_of_a_lookup_wakes_the_relay() {
    let mut ledger = sleeper("lookup");
    let erp = Destination::start(Profile::Plain);
    erp.next(drop_before_commit());
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "R-1", json!({"lines": []}));
    assert_eq!(ledger.wait_status("R-1", "confirmed").attempt, 2);
    assert!(erp.lookups().len() >= 2);
    assert_eq!((erp.writes().len(), erp.effects_for("R-1")), (2, 1));
}

#[test]
fn a_deadline_and_the_end_of_an_approval_wake_the_relay() {
    let mut ledger = sleeper("deadline");
    define_desk(&mut ledger, json!({}));
    define_task(&mut ledger, json!({"approval": {"ttl": "1s", "separate_proposer": false}}));
    let deadline = ledger.text("SELECT clock_timestamp() + '1s'");
    ledger.register_with("task", "T-late", json!({"n": 1}), json!({"deadline": deadline}));
    let lapsing = task(&mut ledger, "T-lapsing");
    let hash = lapsing.intent_hash.expect("an intent hash");
    ledger.call("approve", json!({"idempotency_key": "T-lapsing", "intent_hash": hash}));
    assert_eq!(ledger.wait_status("T-late", "failed").error.as_deref(), Some("expired"));
    let planned = ledger.wait_status("T-lapsing", "planned");
    assert_eq!((planned.attempt, planned.approvals_missing), (0, Some(1)));
}

#[test]
fn the_end_of_a_workers_lease_wakes_the_relay() {
    let mut ledger = sleeper("lease");
    define_desk(&mut ledger, json!({}));
    define_task(&mut ledger, json!({}));
    task(&mut ledger, "T-1");
    // The relay has read what is due, and there was nothing for it to do.
    ledger.wait_until(
        "SELECT bool_or(a.state = 'idle' AND a.state_change > c.registered_at) \
           FROM pg_stat_activity a, command_ledger.command c \
          WHERE a.datname = current_database() AND a.backend_type = 'command_ledger relay'",
        30,
    );
    let row = ledger.row("SELECT idempotency_key FROM command_ledger.claim('desk', 1, '1s')", &[]);
    assert_eq!(row.get::<_, String>(0), "T-1");
    let uncertain = ledger.wait_status("T-1", "needs_reconciliation");
    assert!(uncertain.maybe_sent);
    assert!(open_case(&mut ledger, "T-1").is_some());
    task(&mut ledger, "T-2");
    assert_eq!(claim_one(&mut ledger).key, "T-2", "what the lease held is not handed out again");
}

#[test]
fn the_end_of_a_breakers_rest_wakes_the_relay() {
    let mut ledger = sleeper("breaker");
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    pay.next(answer(503, json!({})).times(2));
    ledger.define_http_destination(
        "pay",
        &pay.url("/records"),
        json!({
            "idempotency": {"mode": "key", "window": "24h"},
            "success": {"record_id": "$.id"},
            "breaker": {"failures": 1, "cool_down": "1s"},
        }),
    );
    ledger.define_type("payment", json!({"destination": "pay", "retry": {"base": "1ms", "cap": "1ms"}}));
    ledger.register("payment", "P-1", json!({"lines": []}));
    assert_eq!(ledger.wait_status("P-1", "confirmed").attempt, 3);
    let writes = pay.writes();
    assert_eq!((writes.len(), pay.effects_for("P-1")), (3, 1));
    let rests = writes.windows(2).map(|pair| pair[1].arrived - pair[0].arrived);
    assert!(rests.min() >= Some(std::time::Duration::from_millis(900)), "it rests between its probes");
}

#[test]
fn an_answer_whose_command_somebody_holds_is_settled_once_they_let_go() {
    let mut ledger = sleeper("held");
    let (erp, pay) =
        (Destination::start(Profile::Plain), Destination::start(Profile::deduplicating("Idempotency-Key")));
    searchable(&mut ledger, &erp, Value::Null);
    deduplicating(&mut ledger, &pay);
    erp.next(hang_after_commit());
    ledger.register("requisition", "R-1", json!({"lines": []}));
    erp.wait_for_held(1);
    let mut holder = SLEEPERS.connect("held");
    holder.exec("BEGIN; SELECT FROM command_ledger.command WHERE idempotency_key = 'R-1' FOR UPDATE");
    let mark = SLEEPERS.log_mark();
    erp.release();
    SLEEPERS.wait_for_log("could not be settled and is kept", mark, 60);
    // Others do not wait for it, and nobody is told when the holder is done.
    ledger.register("payment", "P-1", json!({"lines": []}));
    ledger.wait_status("P-1", "confirmed");
    assert_eq!(ledger.status("R-1").status, "dispatched");
    holder.exec("COMMIT");
    let confirmed = ledger.wait_status("R-1", "confirmed");
    assert_eq!((confirmed.attempt, confirmed.maybe_sent), (1, false));
    assert_eq!((erp.requests().len(), erp.effects_for("R-1"), pay.effects_for("P-1")), (1, 1, 1));
}

#[test]
fn a_relay_that_nobody_can_wake_polls() {
    let cluster = Cluster::builder().fsync_off().setting("command_ledger.max_sleep", "1h").start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let said = ledger.text("SELECT command_ledger.start_relay()");
    assert!(said.starts_with("started"), "{said}");
    for key in ["R-1", "R-2"] {
        ledger.register("requisition", key, json!({"lines": []}));
        assert_eq!(ledger.wait_status(key, "confirmed").attempt, 1);
    }
    assert_eq!(erp.requests().len(), 2);
}
