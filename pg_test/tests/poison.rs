//! What always fails, cannot be read, or is held by somebody stops nothing else, and a relay that only waits is idle.

use std::sync::LazyLock;

use pg_test::desk::{assert_journals, journal, open_case};
use pg_test::prelude::*;

const BATCH: i32 = 10;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let builder = Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "24");
    builder.setting("command_ledger.relay_batch", &BATCH.to_string()).start()
});

fn define(ledger: &mut Ledger, name: &str, destination: &Destination, retry: Value) {
    ledger.define_http_destination(
        name,
        &destination.url("/records"),
        json!({"request": {"body": {"reference": "{{ destination_key }}"}}, "success": {"record_id": "$.id"}}),
    );
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

fn register_many(ledger: &mut Ledger, command_type: &str, prefix: &str, count: i32) {
    ledger.rows(
        "SELECT command_ledger.register($1, $2 || i, '{}') FROM pg_catalog.generate_series(1, $3::int) i",
        &[&command_type, &prefix, &count],
    );
}

/// Writes past the ledger's functions, as only who may disable its triggers can.
fn tamper(ledger: &mut Ledger, table: &str, change: &str) {
    ledger.exec(&format!(
        "ALTER TABLE command_ledger.{table} DISABLE TRIGGER USER; UPDATE command_ledger.{table} SET {change}; \
         ALTER TABLE command_ledger.{table} ENABLE TRIGGER USER"
    ));
}

/// How often a process gave up the processor by itself: once for every time it woke up and slept again.
fn wake_ups(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_full_batch_of_poison_lets_the_next_command_through_at_once() {
    let mut ledger = CLUSTER.ledger("poison");
    let (bad, good) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    bad.otherwise_by(|request, _| {
        let poison = request.json().unwrap_or_default().to_string().contains("poison");
        if poison { answer(429, json!({})) } else { accept() }
    });
    define(&mut ledger, "bad", &bad, json!({"base": "200ms", "cap": "200ms", "max_attempts": 1000}));
    define(&mut ledger, "good", &good, json!({}));
    register_many(&mut ledger, "bad", "poison", 3 * BATCH);
    bad.wait_for_write(usize::try_from(4 * BATCH).unwrap());
    ledger.register("good", "elsewhere", json!({}));
    ledger.register("bad", "same place", json!({}));
    for key in ["elsewhere", "same place"] {
        assert_eq!(ledger.wait_status(key, "confirmed").attempt, 1);
    }
    let open = "SELECT count(*) FROM command_ledger.dispatch_queue WHERE idempotency_key LIKE 'poison%'";
    assert_eq!(ledger.one::<i64>(open, &[]), i64::from(3 * BATCH), "all the poison is still there");
    assert_eq!(bad.effects(), 1);
    assert_journals(&mut ledger);
}

#[test]
fn a_relay_that_only_waits_is_idle() {
    let mut ledger = CLUSTER.ledger("idle");
    let erp = Destination::start(Profile::Plain);
    erp.otherwise(answer(429, json!({})).header("Retry-After", "3600"));
    define(&mut ledger, "erp", &erp, json!({}));
    register_many(&mut ledger, "erp", "k", 3 * BATCH);
    ledger.wait_until("SELECT count(*) = 30 AND bool_and(blocked_by = 'retry') FROM command_ledger.dispatch_queue", 60);
    let relay = ledger.relay_pid();
    let before = wake_ups(relay);
    ledger.exec("SELECT pg_catalog.pg_sleep(2)");
    let passed = wake_ups(relay) - before;
    assert!(passed <= 10, "{passed} wake-ups in two seconds in which nothing was due");
    assert_eq!(erp.writes().len(), 30);
}

#[test]
fn commands_that_cannot_be_claimed_are_put_off_and_all_others_go() {
    let mut ledger = CLUSTER.ledger("unreadable");
    let (erp, other) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    define(&mut ledger, "erp", &erp, json!({}));
    define(&mut ledger, "other", &other, json!({}));
    ledger.exec("SELECT command_ledger.pause('erp')");
    register_many(&mut ledger, "erp", "k", 3 * BATCH);
    let bad = "idempotency_key IN ('k1', 'k2', 'k15')";
    tamper(&mut ledger, "command", &format!("type_version = 99 WHERE {bad}"));
    tamper(&mut ledger, "command", "params = '{\"amount\": 1000000}' WHERE idempotency_key = 'k3'");
    let mark = CLUSTER.log_mark();
    ledger.exec("SELECT command_ledger.resume('erp')");
    ledger.register("other", "elsewhere", json!({}));
    ledger.wait_status("elsewhere", "confirmed");
    ledger.wait_until(
        "SELECT count(*) = 26 FROM command_ledger.command WHERE command_type = 'erp' AND status = 'confirmed'",
        60,
    );
    ledger.wait_status("k3", "needs_reconciliation");
    assert_eq!(open_case(&mut ledger, "k3").as_deref(), Some("tampered"));
    let put_off = format!(
        "SELECT count(*) FROM command_ledger.outbox WHERE {bad} AND due_at > clock_timestamp() AND attempt = 0 AND error_message <> ''"
    );
    ledger.wait_until(&format!("SELECT ({put_off}) = 3"), 20);
    assert_eq!((erp.writes().len(), erp.effects()), (26, 26));
    let log = CLUSTER.log_since(mark);
    assert!(log.contains("one command cannot be claimed and is put off"), "{log}");
    assert!(!log.contains("1000000"), "no params in the log");
    // Put right, they are sent when their time comes; a person need not restart anything.
    tamper(&mut ledger, "command", &format!("type_version = 1 WHERE {bad}"));
    tamper(&mut ledger, "outbox", "due_at = clock_timestamp()");
    ledger.register("other", "wakes the relay", json!({}));
    ledger.wait_until(
        "SELECT count(*) = 29 FROM command_ledger.command WHERE command_type = 'erp' AND status = 'confirmed'",
        60,
    );
    assert_eq!(erp.effects(), 29);
}

#[test]
fn an_answer_to_a_command_that_a_session_holds_is_settled_later_and_delays_no_other() {
    let mut ledger = CLUSTER.ledger("held");
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "erp", &erp, json!({}));
    erp.next(hang_after_commit());
    ledger.register("erp", "held", json!({}));
    erp.wait_for_held(1);
    let mut person = CLUSTER.connect("held");
    person.exec("BEGIN; SELECT 1 FROM command_ledger.command WHERE idempotency_key = 'held' FOR UPDATE");
    let mark = CLUSTER.log_mark();
    erp.release();
    CLUSTER.wait_for_log("could not be settled and is kept", mark, 60);
    register_many(&mut ledger, "erp", "k", 2 * BATCH);
    ledger.wait_until("SELECT count(*) = 20 FROM command_ledger.command WHERE status = 'confirmed'", 60);
    assert_eq!(ledger.status("held").status, "dispatched");
    person.exec("ROLLBACK");
    let end = ledger.wait_status("held", "confirmed");
    assert_eq!((end.attempt, end.maybe_sent, erp.writes().len(), erp.effects()), (1, false, 21, 21));
    assert_eq!(journal(&mut ledger, "held"), ["register", "claim", "confirm"]);
    assert_journals(&mut ledger);
}

#[test]
fn a_sweep_stops_at_no_bad_row_and_leaves_what_a_session_changed_meanwhile() {
    let mut ledger = CLUSTER.ledger("sweep");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("task", json!({"destination": "desk"}));
    let soon = ledger.text("SELECT (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1500 ms'::interval)::text");
    for key in ["bad", "cancelled", "overdue"] {
        ledger.register_with("task", key, json!({}), json!({"deadline": soon}));
    }
    tamper(&mut ledger, "command", "type_version = 99 WHERE idempotency_key = 'bad'");
    let mut person = CLUSTER.connect("sweep");
    person.exec("BEGIN; SELECT command_ledger.cancel('cancelled')");
    assert_eq!(ledger.wait_status("overdue", "failed").error.as_deref(), Some("expired"));
    person.exec("COMMIT");
    assert_eq!(ledger.status("cancelled").status, "cancelled");
    assert_eq!(journal(&mut ledger, "cancelled"), ["register", "cancel"]);
    let left = "SELECT string_agg(idempotency_key, ' ') FROM command_ledger.dispatch_queue";
    assert_eq!(ledger.text(left), "bad", "it stands in the queue until somebody puts it right");
    tamper(&mut ledger, "command", "type_version = 1 WHERE idempotency_key = 'bad'");
    // A registration for workers would not wake the relay: there is nothing in it for the relay to do.
    ledger.exec("SELECT command_ledger.pause('desk'); SELECT command_ledger.resume('desk')");
    ledger.wait_status("bad", "failed");
    assert_journals(&mut ledger);
}
