//! Which databases have a relay and when: extensions and databases come and go, somebody starts and stops it by hand,
//! switches it off, or the server has no room for it.

use pg_test::erp_like::{searchable, unprotected};
use pg_test::prelude::*;
use pg_test::process::Process;

fn builder() -> pg_test::cluster::ClusterBuilder {
    // No sweep helps.
    Cluster::builder()
        .preload(true)
        .fsync_off()
        .setting("command_ledger.max_sleep", "1h")
        .setting("max_worker_processes", "20")
}

/// The pids of the relays of a database, as another database sees them.
fn relays(session: &mut Session, database: &str) -> Vec<i32> {
    session.column(
        "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'command_ledger relay'",
        &[&database],
    )
}

/// Waits until a database has so many relays; their pids.
fn wait_for_relays(session: &mut Session, database: &str, count: usize) -> Vec<i32> {
    session.wait_until(
        &format!(
            "SELECT count(*) = {count} FROM pg_stat_activity \
              WHERE datname = '{database}' AND backend_type = 'command_ledger relay' AND state = 'idle'"
        ),
        30,
    );
    relays(session, database)
}

fn health(session: &mut Session, check: &str) -> (bool, String) {
    let sql = "SELECT ok, detail || ' ' || coalesce(hint, '') FROM command_ledger.health() WHERE check_name = $1";
    let row = session.row(sql, &[&check]);
    (row.get(0), row.get(1))
}

fn sent(ledger: &mut Ledger, erp: &Destination, key: &str) {
    ledger.register("requisition", key, json!({"lines": []}));
    assert_eq!(ledger.wait_status(key, "confirmed").attempt, 1, "{key}");
    assert_eq!(erp.effects_for(key), 1, "{key}");
}

#[test]
fn each_database_with_the_extension_has_one_relay_and_no_other_has_one() {
    let cluster = builder().start();
    cluster.create_database("plain");
    let (mut one, mut two) = (cluster.ledger("one"), cluster.ledger("two"));
    let mut observer = cluster.connect("postgres");
    let pid = wait_for_relays(&mut observer, "one", 1);
    wait_for_relays(&mut observer, "two", 1);
    // A change of mind does not disturb it.
    two.exec("BEGIN; DROP EXTENSION command_ledger; ROLLBACK");
    two.exec("DROP EXTENSION command_ledger");
    wait_for_relays(&mut observer, "two", 0);
    two.exec("CREATE EXTENSION command_ledger");
    let new = wait_for_relays(&mut observer, "two", 1);
    let erp = Destination::start(Profile::Plain);
    searchable(&mut two, &erp, Value::Null);
    sent(&mut two, &erp, "R-1");
    // Dropped and made again at once, it is another ledger, and the relay another process.
    two.exec("BEGIN; DROP EXTENSION command_ledger; CREATE EXTENSION command_ledger; COMMIT");
    two.wait_until(&format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {}", new[0]), 30);
    searchable(&mut two, &erp, Value::Null);
    sent(&mut two, &erp, "R-2");
    assert_eq!(wait_for_relays(&mut observer, "two", 1).len(), 1);
    assert_eq!(wait_for_relays(&mut observer, "one", 1), pid, "the neighbour is not disturbed");
    for database in ["plain", "postgres", "template1"] {
        assert_eq!(relays(&mut observer, database), [0; 0], "{database}");
    }
    assert!(health(&mut one, "relay_running").0 && health(&mut one, "preloaded").0);
    assert_eq!(erp.requests().len(), 2);
}

#[test]
fn a_database_with_a_relay_is_copied_renamed_and_dropped_like_any_other() {
    let cluster = builder().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    sent(&mut ledger, &erp, "R-1");
    drop(ledger);
    let mut admin = cluster.connect("postgres");
    let first = wait_for_relays(&mut admin, "app", 1);
    // Who may not do it does not make the relay leave.
    admin.exec("CREATE ROLE stranger LOGIN CREATEDB");
    let mut stranger = cluster.connect_as("postgres", "stranger");
    for call in ["DROP DATABASE app", "ALTER DATABASE app RENAME TO x", "CREATE DATABASE x TEMPLATE app"] {
        stranger.expect_sqlstate("42501", call);
    }
    assert_eq!(relays(&mut admin, "app"), first);
    admin.exec("CREATE DATABASE copy TEMPLATE app");
    let second = wait_for_relays(&mut admin, "app", 1);
    assert_ne!(first, second, "it left and came back");
    wait_for_relays(&mut admin, "copy", 1);
    admin.exec("ALTER DATABASE app RENAME TO shop");
    wait_for_relays(&mut admin, "shop", 1);
    let mut ledger = Ledger::over(cluster.connect("shop"));
    sent(&mut ledger, &erp, "R-2");
    // Somebody else is in the way: refused as ever, and the relay comes back.
    admin.expect_sqlstate("55006", "DROP DATABASE shop");
    wait_for_relays(&mut admin, "shop", 1);
    sent(&mut ledger, &erp, "R-3");
    drop(ledger);
    admin.exec("DROP DATABASE copy");
    admin.wait_until(
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'shop' AND backend_type = 'client backend'",
        30,
    );
    admin.exec("DROP DATABASE shop");
    assert_eq!(admin.text("SELECT count(*) FROM pg_database WHERE datname IN ('app', 'shop', 'copy')"), "0");
    // The name is free for a new ledger with a relay of its own.
    let mut ledger = cluster.ledger("shop");
    searchable(&mut ledger, &erp, Value::Null);
    sent(&mut ledger, &erp, "R-4");
    assert_eq!(erp.requests().len(), 4);
}

#[test]
fn a_copy_is_made_while_a_call_is_in_flight_and_that_command_is_not_sent_again() {
    let cluster = builder().setting("command_ledger.shutdown_grace", "100ms").start();
    let mut ledger = cluster.ledger("app");
    let mail = Destination::start(Profile::Plain);
    mail.next(hang_after_commit());
    unprotected(&mut ledger, &mail);
    ledger.register("letter", "L-1", json!({}));
    mail.wait_for_held(1);
    drop(ledger);
    let mut admin = cluster.connect("postgres");
    admin.wait_until(
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'app' AND backend_type = 'client backend'",
        30,
    );
    admin.exec("CREATE DATABASE copy TEMPLATE app");
    let mut ledger = Ledger::over(cluster.connect("app"));
    assert!(ledger.wait_status("L-1", "needs_reconciliation").maybe_sent);
    let mut copy = Ledger::over(cluster.connect("copy"));
    copy.relay_pid();
    let copied = copy.status("L-1");
    assert!(["dispatched", "needs_reconciliation"].contains(&copied.status.as_str()), "{copied:?}");
    assert_eq!((mail.writes().len(), mail.effects_for("L-1")), (1, 1));
}

#[test]
fn a_new_launcher_takes_over_the_relays_that_run() {
    let cluster = builder().start();
    let mut ledger = cluster.ledger("app");
    let relay = ledger.relay_pid();
    let mut admin = cluster.connect("postgres");
    let launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'command_ledger launcher'";
    let before = admin.one::<i32>(launcher, &[]);
    admin.exec(&format!("SELECT pg_terminate_backend({before})"));
    admin.wait_until(&format!("SELECT EXISTS ({launcher} AND pid <> {before})"), 30);
    assert_eq!(ledger.relay_pid(), relay);
    // It watches what it did not start: the relay's end is noticed, and another one comes.
    ledger.terminate_relay();
    assert_ne!(ledger.relay_pid(), relay);
    assert_eq!(wait_for_relays(&mut admin, "app", 1).len(), 1);
}

#[test]
fn switched_off_it_sends_nothing_and_says_so_and_a_reload_switches_it_on() {
    let cluster = builder().start();
    let mut ledger = cluster.ledger("app");
    let (erp, mail) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    searchable(&mut ledger, &erp, Value::Null);
    unprotected(&mut ledger, &mail);
    mail.next(hang_after_commit());
    ledger.register("letter", "L-1", json!({}));
    mail.wait_for_held(1);
    cluster.set("command_ledger.relay", "off");
    ledger.register("requisition", "R-1", json!({"lines": []}));
    // It still takes the answer of what it had sent before.
    mail.release();
    ledger.wait_status("L-1", "confirmed");
    assert_eq!(ledger.status("R-1").status, "approved");
    assert_eq!(erp.requests().len(), 0);
    let mut looking = cluster.connect("app");
    let (ok, said) = health(&mut looking, "relay_enabled");
    assert!(!ok && said.contains("off") && said.contains("pg_reload_conf"), "{said}");
    let blocked = "SELECT blocked_by FROM command_ledger.dispatch_queue WHERE idempotency_key = 'R-1'";
    assert_eq!(looking.text(blocked), "relay_off");
    cluster.set("command_ledger.relay", "on");
    assert_eq!(ledger.wait_status("R-1", "confirmed").attempt, 1);
    assert!(health(&mut cluster.connect("app"), "relay_enabled").0);
    // A shorter sleep takes effect in the middle of an hour's sleep.
    let reads = "SELECT max(state_change) FROM pg_stat_activity WHERE backend_type = 'command_ledger relay'";
    cluster.set("command_ledger.max_sleep", "100ms");
    for _ in 0..3 {
        let last = ledger.text(reads);
        ledger.wait_until(&format!("SELECT ({reads}) > '{last}'"), 30);
    }
    assert_eq!((erp.requests().len(), mail.requests().len()), (1, 1));
}

#[test]
fn a_relay_that_cannot_start_is_tried_again_with_growing_pauses() {
    let cluster = builder().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.relay_pid();
    let mark = cluster.log_mark();
    cluster.set("command_ledger.ca_file", "/nowhere/authorities.pem");
    cluster.wait_for_log("settings for connections are not usable", mark, 30);
    sent(&mut ledger, &erp, "R-old");
    ledger.terminate_relay();
    ledger.register("requisition", "R-1", json!({"lines": []}));
    for pause_s in [1, 2, 4] {
        cluster.wait_for_log(&format!("ended unexpectedly; next start in {pause_s} s"), mark, 30);
    }
    assert!(cluster.log_since(mark).contains("authorities.pem"), "it says why");
    let (ok, said) = health(&mut ledger, "relay_running");
    assert!(!ok && said.contains("log"), "{said}");
    cluster.reset("command_ledger.ca_file");
    assert_eq!(ledger.wait_status("R-1", "confirmed").attempt, 1);
    assert_eq!(erp.requests().len(), 2);
}

#[test]
fn without_a_free_worker_nothing_is_lost_and_health_says_what_to_raise() {
    // The launcher and the server's own one for logical replication.
    let cluster = builder().setting("max_worker_processes", "2").start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "R-1", json!({"lines": []}));
    let refused = "SELECT NOT ok AND hint LIKE '%max_worker_processes%' FROM command_ledger.health() WHERE check_name = 'worker_slots'";
    ledger.wait_until(refused, 30);
    let (ok, said) = health(&mut ledger, "relay_running");
    assert!(!ok && said.contains("worker"), "{said}");
    assert_eq!((ledger.status("R-1").status.as_str(), erp.requests().len()), ("approved", 0));
    cluster.append_setting("max_worker_processes", "8");
    cluster.restart();
    ledger.reconnect();
    assert_eq!(ledger.wait_status("R-1", "confirmed").attempt, 1);
    assert_eq!(erp.requests().len(), 1);
}

#[test]
fn without_preloading_it_is_started_and_stopped_by_hand_and_health_says_so() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "R-1", json!({"lines": []}));
    for check in ["preloaded", "relay_running"] {
        let (ok, said) = health(&mut ledger, check);
        assert!(!ok && said.contains("start_relay()"), "{said}");
    }
    assert!(ledger.text("SELECT command_ledger.stop_relay()").starts_with("not running"));
    let started = ledger.text("SELECT command_ledger.start_relay()");
    assert!(started.starts_with("started (pid "), "{started}");
    ledger.wait_status("R-1", "confirmed");
    let pid = ledger.relay_pid();
    assert_eq!(ledger.text("SELECT command_ledger.start_relay()"), format!("already running (pid {pid})"));
    assert!(health(&mut ledger, "relay_running").0);
    assert_eq!(ledger.text("SELECT command_ledger.stop_relay()"), format!("stopped (pid {pid})"));
    // Its lock and its place are free; the process itself may take a moment more.
    assert!(Process::find(pid).is_none_or(|relay| relay.wait_gone(30)), "stopped means gone");
    ledger.register("requisition", "R-2", json!({"lines": []}));
    assert!(ledger.text("SELECT command_ledger.start_relay()").starts_with("started"));
    ledger.wait_status("R-2", "confirmed");
    ledger.exec("CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA command_ledger TO stranger");
    let mut stranger = ledger.as_role("stranger");
    for call in ["start_relay()", "stop_relay()"] {
        stranger.expect_sqlstate("42501", &format!("SELECT command_ledger.{call}"));
    }
    // It ends with its extension, and with its server.
    cluster.restart();
    ledger.reconnect();
    assert!(!health(&mut ledger, "relay_running").0);
    assert!(ledger.text("SELECT command_ledger.start_relay()").starts_with("started"));
    ledger.exec("DROP EXTENSION command_ledger");
    ledger.wait_until("SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'command_ledger%'", 30);
    assert_eq!(erp.requests().len(), 2);
}

#[test]
fn with_preloading_starting_and_stopping_by_hand_changes_nothing() {
    let cluster = builder().start();
    let mut ledger = cluster.ledger("app");
    let pid = ledger.relay_pid();
    assert_eq!(ledger.text("SELECT command_ledger.start_relay()"), format!("already running (pid {pid})"));
    let said = ledger.text("SELECT command_ledger.stop_relay()");
    assert!(said.starts_with("nothing stopped") && said.contains("command_ledger.relay = off"), "{said}");
    assert_eq!(ledger.relay_pid(), pid);
}
