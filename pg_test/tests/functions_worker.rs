//! The worker of function destinations stands in nobody's way: not in that of requests, of other handlers, of a stop, nor
//! of a database that must be empty.

mod functions_scene;

use functions_scene::{Bench, FUNCTIONS, shared};
use pg_test::prelude::*;

const GATE: &str = "PERFORM pg_advisory_xact_lock(1); INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';";

#[test]
fn a_slow_handler_stalls_no_request_and_is_no_other_destinations_attempt() {
    let mut bench = Bench::start();
    let erp = Destination::start(Profile::Plain);
    bench.http("mail", &erp);
    bench.handler("slow", GATE);
    bench.handler("quick", "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';");
    bench.destination("slow", json!({"timeout": "5m"}));
    bench.destination("quick", json!({}));
    let gate = bench.gate();
    bench.ledger.register("slow", "S-1", json!({}));
    bench.wait_at_gate();
    bench.ledger.register("quick", "Q-1", json!({}));
    bench.ledger.register("mail", "M-1", json!({"reference": "M-1"}));
    bench.ledger.wait_status("M-1", "confirmed");
    assert_eq!(erp.effects_for("M-1"), 1);
    assert_eq!(bench.ledger.status("S-1").status, "dispatched", "the handler still waits");
    // Its turn comes with the worker's next one, and its attempts are not counted meanwhile.
    assert_eq!((bench.ledger.status("Q-1").status.as_str(), bench.ledger.status("Q-1").attempt), ("approved", 0));
    bench.open(gate);
    for key in ["S-1", "Q-1"] {
        assert_eq!(bench.ledger.wait_status(key, "confirmed").attempt, 1);
        assert_eq!(bench.effects(key), 1);
    }
    bench.assert_whole();
}

#[test]
fn a_handler_that_fights_its_worker_never_keeps_others_from_their_turn() {
    let mut bench = Bench::start();
    // It swallows its time limit: only the end of the process ends it.
    bench.handler(
        "swallows",
        "LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; RETURN '{}';",
    );
    // It stops its own worker, which only a superuser's function may.
    bench.handler("stops", "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN '{}';");
    bench.ledger.exec("ALTER FUNCTION app.stops OWNER TO postgres");
    bench.handler("raises", "RAISE EXCEPTION 'no'; RETURN '{}';");
    let once = json!({"retry": {"max_attempts": 1}});
    bench.destination_with("swallows", json!({"timeout": "100ms"}), once);
    bench.destination("stops", json!({}));
    bench.destination("raises", json!({}));
    bench.handler("works", "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';");
    bench.destination("works", json!({}));
    for round in 0..3 {
        for kind in ["swallows", "stops", "raises", "works"] {
            if round == 0 || kind == "raises" || kind == "works" {
                bench.ledger.register(kind, &format!("{kind}-{round}"), json!({}));
            }
        }
    }
    for round in 0..3 {
        let key = format!("works-{round}");
        assert_eq!(bench.ledger.wait_status(&key, "confirmed").attempt, 1);
        assert_eq!(bench.effects(&key), 1);
        assert_eq!(bench.ledger.wait_status(&format!("raises-{round}"), "failed").attempt, 2);
    }
    assert_eq!(bench.ledger.wait_status("stops-0", "failed").attempt, 2);
    let ended = bench.ledger.wait_status("swallows-0", "failed");
    assert_eq!((ended.attempt, ended.maybe_sent), (1, false));
    assert!(ended.error_message.clone().unwrap_or_default().contains("worker ended before the handler"), "{ended:?}");
    bench.assert_works();
}

#[test]
fn lanes_pauses_approvals_and_deadlines_hold_for_handlers() {
    let mut bench = Bench::start();
    bench.handler(
        "steps",
        "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, d.params ->> 'n');
         IF d.params ? 'late' AND d.attempt = 1 THEN RAISE EXCEPTION 'later'; END IF; RETURN '{\"id\": 1}';",
    );
    bench.destination("steps", json!({}));
    // A lane: the second waits until the first, which fails once, is through.
    bench.ledger.exec("SELECT command_ledger.pause('steps')");
    bench.ledger.register_with("steps", "lane-1", json!({"late": true}), json!({"ordering_key": "a"}));
    bench.ledger.register_with("steps", "lane-2", json!({}), json!({"ordering_key": "a"}));
    let soon = bench.ledger.text("SELECT clock_timestamp() + interval '500 ms'");
    bench.ledger.register_with("steps", "overdue", json!({}), json!({"deadline": soon}));
    assert_eq!(bench.ledger.wait_status("overdue", "failed").error.as_deref(), Some("expired"));
    assert_eq!(bench.ledger.status("lane-1").attempt, 0, "paused");
    bench.ledger.exec("SELECT command_ledger.resume('steps')");
    bench.ledger.wait_status("lane-2", "confirmed");
    assert_eq!(bench.ledger.status("lane-1").attempt, 2);
    let order = "SELECT string_agg(idempotency_key || ' ' || attempt, ', ' ORDER BY at) FROM command_ledger.timeline \
                  WHERE kind IN ('claim', 'confirm') AND idempotency_key LIKE 'lane%'";
    assert_eq!(bench.ledger.text(order), "lane-1 1, lane-1 2, lane-1 2, lane-2 1, lane-2 1");
    // An approval.
    bench.handler("asks", "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';");
    bench.destination_with("asks", json!({}), json!({"approval": {"separate_proposer": false}}));
    let planned = bench.ledger.register("asks", "A-1", json!({}));
    assert_eq!(planned.status, "planned");
    let hash = planned.intent_hash.unwrap_or_default();
    bench.ledger.call("approve", json!({"idempotency_key": "A-1", "intent_hash": hash}));
    bench.ledger.wait_status("A-1", "confirmed");
    assert_eq!((bench.effects("A-1"), bench.effects("overdue"), bench.effects("lane-1")), (1, 0, 1));
    bench.assert_whole();
}

#[test]
fn a_database_is_dropped_or_renamed_while_its_handler_runs_or_rests() {
    for (database, running) in [("drop_running", true), ("drop_idle", false)] {
        let mut bench = Bench::in_database(shared(), database);
        bench.handler("waits", "PERFORM pg_sleep(600); RETURN '{}';");
        bench.destination("waits", json!({"timeout": "10m"}));
        bench.assert_works();
        if running {
            bench.ledger.register("waits", "W-1", json!({}));
            bench.ledger.wait_status("W-1", "dispatched");
        }
        bench.worker();
        drop(bench);
        shared().connect("postgres").exec(&format!("ALTER DATABASE {database} RENAME TO {database}2"));
        let mut bench = Bench { ledger: Ledger::over(shared().connect(&format!("{database}2"))) };
        if running {
            // Undone, and tried again under the new name.
            bench.ledger.wait_until("SELECT attempt = 2 FROM command_ledger.status('W-1')", 30);
            bench.worker();
        } else {
            bench.ledger.register("works", "works-2", json!({}));
            bench.ledger.wait_status("works-2", "confirmed");
        }
        drop(bench);
        shared().drop_database(&format!("{database}2"));
    }
}

#[test]
fn switching_the_relay_off_keeps_handlers_from_starting() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut bench = Bench::in_database(&cluster, "app");
    bench.handler("waits", GATE);
    bench.destination("waits", json!({"timeout": "5m"}));
    let gate = bench.gate();
    bench.ledger.register("waits", "W-1", json!({}));
    bench.wait_at_gate();
    cluster.set("command_ledger.relay", "off");
    bench.ledger.register("waits", "W-2", json!({}));
    bench.open(gate);
    bench.ledger.wait_status("W-1", "confirmed");
    // The worker has seen the setting, which it reads before every turn.
    bench.ledger.wait_until(&format!("SELECT state = 'idle' FROM pg_stat_activity WHERE pid = ({FUNCTIONS})"), 30);
    assert_eq!((bench.ledger.status("W-2").attempt, bench.effects("W-2")), (0, 0));
    cluster.set("command_ledger.relay", "on");
    bench.ledger.wait_status("W-2", "confirmed");
    // The extension goes while the worker rests, and comes back.
    bench.worker();
    bench.ledger.exec("DROP FUNCTION app.waits; DROP EXTENSION command_ledger");
    bench.ledger.wait_until(&format!("SELECT NOT EXISTS ({FUNCTIONS})"), 30);
    bench
        .ledger
        .exec("CREATE EXTENSION command_ledger; TRUNCATE effect; GRANT USAGE ON SCHEMA command_ledger TO clerk");
    bench.assert_works();
    // A fast stop does not wait for a handler, and is quiet.
    bench.handler(
        "sleeps",
        "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); PERFORM pg_sleep(600); RETURN '{}';",
    );
    bench.destination("sleeps", json!({"timeout": "10m"}));
    bench.ledger.register("sleeps", "Z-1", json!({}));
    bench.ledger.wait_until(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE backend_type = 'command_ledger functions'",
        30,
    );
    let mark = cluster.log_mark();
    assert!(cluster.stop_within(Mode::Fast, 20), "the handler holds the server up");
    let log = cluster.log_since(mark);
    assert!(!log.contains("WARNING") && !log.contains("ERROR"), "{log}");
    cluster.start_again();
    bench.ledger.reconnect();
    bench.ledger.wait_until("SELECT attempt = 2 FROM command_ledger.status('Z-1')", 30);
    assert_eq!(bench.journal("Z-1")[..3], ["register", "claim", "not_sent"]);
    assert_eq!(bench.effects("Z-1"), 0);
    bench.assert_whole();
}

#[test]
fn a_worker_without_work_ends_and_the_next_command_starts_another() {
    let mut bench = Bench::start();
    shared().set("command_ledger.max_sleep", "100ms");
    bench.assert_works();
    let first = bench.worker();
    bench.ledger.wait_until(&format!("SELECT NOT EXISTS ({FUNCTIONS})"), 60);
    shared().reset("command_ledger.max_sleep");
    bench.ledger.register("works", "again", json!({}));
    assert_eq!(bench.ledger.wait_status("again", "confirmed").attempt, 1);
    assert_ne!(bench.worker(), first);
    bench.assert_whole();
}

#[test]
fn a_stop_that_ends_a_wait_for_a_lock_is_no_warning() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut bench = Bench::in_database(&cluster, "app");
    bench.assert_works();
    let (relay, worker) = (bench.ledger.relay_pid(), bench.worker());
    let mut holder = bench.ledger.another();
    holder.exec("BEGIN; LOCK TABLE command_ledger.destination IN ACCESS EXCLUSIVE MODE");
    // Whoever asks what is due waits for the table of destinations.
    cluster.set("command_ledger.log_deliveries", "on");
    for pid in [relay, worker] {
        let asked = bench.ledger.text("SELECT clock_timestamp()::text");
        bench.ledger.exec(&format!("SELECT pg_cancel_backend({pid})"));
        // A wait that began after it: the cancel itself may end one, with a warning that belongs to it.
        let again = format!("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = {pid} AND waitstart > '{asked}')");
        bench.ledger.wait_until(&again, 60);
    }
    let mark = cluster.log_mark();
    for pid in [worker, relay] {
        bench.ledger.exec(&format!("SELECT pg_terminate_backend({pid})"));
        bench.ledger.wait_until(&format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"), 30);
    }
    let log = cluster.log_since(mark);
    assert!(!log.contains("WARNING") && !log.contains("ERROR"), "{log}");
    holder.exec("ROLLBACK");
    bench.ledger.register("works", "after", json!({}));
    bench.ledger.wait_status("after", "confirmed");
}

#[test]
fn a_relay_started_by_hand_has_a_functions_worker_too() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut bench = Bench::in_database(&cluster, "app");
    bench.ledger.exec("SELECT command_ledger.start_relay()");
    bench.assert_works();
    bench.handler("sleeps", "PERFORM pg_sleep(600); RETURN '{}';");
    bench.destination("sleeps", json!({"timeout": "10m"}));
    bench.ledger.register("sleeps", "Z-1", json!({}));
    bench.ledger.wait_status("Z-1", "dispatched");
    let said = bench.ledger.text("SELECT command_ledger.stop_relay()");
    assert!(said.starts_with("stopped"), "{said}");
    assert!(bench.ledger.one::<bool>(&format!("SELECT NOT EXISTS ({FUNCTIONS})"), &[]), "it ends with its relay");
    assert_eq!(bench.journal("Z-1"), ["register", "claim", "not_sent"]);
    drop(bench);
    cluster.drop_database("app");
}

#[test]
fn without_a_free_worker_handlers_wait_and_health_says_why() {
    // The server's own launcher of subscriptions, that of relays, one relay, and no fourth.
    let cluster = Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "3").start();
    let erp = Destination::start(Profile::Plain);
    let mut bench = Bench::in_database(&cluster, "app");
    bench.http("mail", &erp);
    bench.ledger.register("mail", "M-0", json!({"reference": "M-0"}));
    bench.ledger.wait_status("M-0", "confirmed");
    bench.handler("works", "RETURN '{\"id\": 1}';");
    bench.destination("works", json!({}));
    bench.ledger.register("works", "works", json!({}));
    bench.ledger.wait_until("SELECT NOT ok FROM command_ledger.health() WHERE check_name = 'worker_slots'", 30);
    bench.ledger.wait_until("SELECT NOT ok FROM command_ledger.health() WHERE check_name = 'functions_worker'", 30);
    bench.ledger.register("mail", "M-1", json!({"reference": "M-1"}));
    bench.ledger.wait_status("M-1", "confirmed");
    assert_eq!(erp.effects_for("M-1"), 1);
    let waiting = bench.ledger.status("works");
    assert_eq!((waiting.status.as_str(), waiting.attempt), ("approved", 0));
}
