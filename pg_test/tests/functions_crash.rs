//! A handler's effect is there exactly once, whatever is killed and when.

mod functions_scene;

use functions_scene::{Bench, FUNCTIONS};
use pg_test::prelude::*;

const EFFECT: &str = "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';";

fn bench(cluster: &Cluster) -> Bench {
    let mut bench = Bench::in_database(cluster, "app");
    bench.handler("book", EFFECT);
    bench.destination("book", json!({}));
    bench
}

/// Waits until the worker hangs at the failpoint: it has claimed (and, at the later one, written).
fn wait_hanging(bench: &mut Bench, failpoint: &str, key: &str) {
    bench.ledger.wait_status(key, "dispatched");
    if failpoint == "relay_before_handler_commit" {
        let wrote = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                      WHERE a.backend_type = 'command_ledger functions' AND l.relation = 'effect'::regclass \
                        AND l.mode = 'RowExclusiveLock')";
        bench.ledger.wait_until(wrote, 30);
        assert_eq!(bench.effects(key), 0, "written, and not committed");
    }
}

fn assert_once(bench: &mut Bench, key: &str, attempt: i32) {
    let receipt = bench.ledger.wait_status(key, "confirmed");
    assert_eq!((receipt.attempt, receipt.maybe_sent), (attempt, false), "{receipt:?}");
    assert_eq!(bench.effects(key), 1);
    let by_attempt = "SELECT attempt FROM effect WHERE key = $1";
    assert_eq!(bench.ledger.one::<i32>(by_attempt, &[&key]), attempt, "the effect is the confirmed attempt's");
    assert_eq!(bench.journal(key), ["register", "claim", "not_sent", "claim", "confirm"]);
    bench.assert_whole();
}

#[test]
fn a_killed_worker_leaves_no_effect_and_the_next_one_makes_it_once() {
    let cluster = Cluster::builder().preload(true).start();
    let mut bench = bench(&cluster);
    for failpoint in ["relay_before_handler", "relay_before_handler_commit"] {
        bench.ledger.failpoint(failpoint, "hang");
        bench.ledger.register("book", failpoint, json!({}));
        wait_hanging(&mut bench, failpoint, failpoint);
        // The server ends all sessions and recovers; the failpoint is gone before the next worker comes to it.
        cluster.append_setting("command_ledger.failpoint", "");
        let worker = bench.worker();
        bench.ledger.exec("ALTER SYSTEM RESET command_ledger.failpoint");
        bench.ledger.kill9_backend(worker);
        while bench.ledger.try_exec("SELECT 1").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        bench.ledger.reconnect();
        bench.ledger.failpoints_off();
        assert_once(&mut bench, failpoint, 2);
    }
}

#[test]
fn a_killed_server_leaves_no_effect_and_the_next_one_makes_it_once() {
    let cluster = Cluster::builder().preload(true).start();
    let mut bench = bench(&cluster);
    for failpoint in ["relay_before_handler", "relay_before_handler_commit"] {
        bench.ledger.failpoint(failpoint, "hang");
        bench.ledger.register("book", failpoint, json!({}));
        wait_hanging(&mut bench, failpoint, failpoint);
        bench.ledger.exec("ALTER SYSTEM RESET command_ledger.failpoint");
        cluster.kill9_everything();
        cluster.start_again();
        bench.ledger.reconnect();
        assert_once(&mut bench, failpoint, 2);
    }
}

#[test]
fn a_killed_relay_takes_the_running_handler_with_it_and_a_stopped_one_its_worker() {
    let cluster = Cluster::builder().preload(true).start();
    let mut bench = bench(&cluster);
    bench.handler("waits", &format!("PERFORM pg_advisory_xact_lock(1); {EFFECT}"));
    bench.destination("waits", json!({"timeout": "5m"}));
    let gate = bench.gate();
    bench.ledger.register("waits", "R-1", json!({}));
    bench.wait_at_gate();
    bench.ledger.kill9_relay();
    drop(gate);
    assert_once(&mut bench, "R-1", 2);
    let gate = bench.gate();
    bench.ledger.register("waits", "R-2", json!({}));
    bench.wait_at_gate();
    let worker = bench.worker();
    bench.ledger.terminate_relay();
    bench.ledger.wait_until(&format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {worker})"), 30);
    bench.open(gate);
    assert_once(&mut bench, "R-2", 2);
}

#[test]
fn two_workers_never_run_at_once_and_a_lost_one_is_replaced() {
    let cluster = Cluster::builder().preload(true).start();
    let mut bench = bench(&cluster);
    bench.handler("waits", &format!("PERFORM pg_advisory_xact_lock(1); {EFFECT}"));
    bench.destination("waits", json!({"timeout": "5m"}));
    let gate = bench.gate();
    bench.ledger.register("waits", "T-1", json!({}));
    bench.wait_at_gate();
    let first = bench.worker();
    // Its attempt is undone with it, and settled before it ends.
    bench.ledger.exec(&format!("SELECT pg_terminate_backend({first})"));
    bench.ledger.wait_until("SELECT attempt = 2 FROM command_ledger.status('T-1')", 30);
    bench.wait_at_gate();
    assert_eq!(bench.ledger.column::<i32>(FUNCTIONS, &[]).len(), 1);
    assert_ne!(bench.worker(), first);
    bench.open(gate);
    assert_once(&mut bench, "T-1", 2);
}

#[test]
fn an_attempt_stays_what_it_was_when_its_destination_is_defined_anew() {
    let cluster = Cluster::builder().preload(true).start();
    let mut bench = bench(&cluster);
    let erp = Destination::start(Profile::Plain);
    let http = json!({"transport": "http", "request": {"url": erp.url("/records")}});
    let function = json!({"transport": "function", "function": "app.book"});
    // A request went out and its relay died: not known, although a function would have been undone.
    bench.http("turns", &erp);
    erp.next(hang_after_commit());
    bench.ledger.register("turns", "H-1", json!({"reference": "H-1"}));
    erp.wait_for_held(1);
    bench.ledger.define_destination("turns", function);
    bench.ledger.kill9_relay();
    let unknown = bench.ledger.wait_status("H-1", "needs_reconciliation");
    assert!(unknown.maybe_sent);
    assert_eq!((erp.effects_for("H-1"), bench.effects("H-1")), (1, 0));
    // A handler was undone with its worker: nothing happened, although a request would be uncertain.
    bench.ledger.failpoint("relay_before_handler_commit", "hang");
    bench.ledger.register("turns", "H-2", json!({"reference": "H-2"}));
    wait_hanging(&mut bench, "relay_before_handler_commit", "H-2");
    bench.ledger.define_destination("turns", http);
    bench.ledger.exec("ALTER SYSTEM RESET command_ledger.failpoint");
    cluster.kill9_everything();
    cluster.start_again();
    bench.ledger.reconnect();
    assert_eq!(bench.ledger.wait_status("H-2", "confirmed").attempt, 2);
    assert_eq!((erp.effects_for("H-2"), bench.effects("H-2")), (1, 0));
    assert_eq!(bench.journal("H-2"), ["register", "claim", "not_sent", "intent_changed", "claim", "confirm"]);
    bench.assert_whole();
}
