//! The server stops, in every way, while calls are in flight or work waits: it is not held up, nothing is forgotten, and
//! nothing is sent twice.

use pg_test::erp_like::{searchable, unprotected};
use pg_test::prelude::*;

/// A stop that waited for the call in flight would take a minute (its timeout).
const STOP_LIMIT_S: u32 = 10;

struct Scene {
    cluster: Cluster,
    ledger: Ledger,
    mail: Destination,
}

/// A destination that neither deduplicates nor can be asked, and answers within a minute or never.
fn scene() -> Scene {
    let cluster = Cluster::builder().preload(true).fsync_off().setting("command_ledger.max_sleep", "1h").start();
    let mut ledger = cluster.ledger("app");
    let mail = Destination::start(Profile::Plain);
    unprotected(&mut ledger, &mail);
    ledger.define_http_destination(
        "mail",
        &mail.url("/records"),
        json!({
            "request": {"body": {"reference": "{{ destination_key }}"}, "timeout": "60s"},
            "success": {"record_id": "$.id"},
        }),
    );
    Scene { cluster, ledger, mail }
}

impl Scene {
    /// Registers a letter whose effect happens and whose answer does not come.
    fn hold(&mut self, key: &str) {
        self.mail.next(hang_after_commit());
        self.ledger.register("letter", key, json!({}));
        self.mail.wait_for_held(1);
    }

    fn start_again(&mut self) {
        self.cluster.start_again();
        self.ledger.reconnect();
    }

    /// Not known, shown as such, and done once.
    fn assert_uncertain(&mut self, key: &str) {
        let uncertain = self.ledger.wait_status(key, "needs_reconciliation");
        assert_eq!((uncertain.attempt, uncertain.maybe_sent), (1, true), "{key}");
        assert_eq!(self.mail.effects_for(key), 1, "{key}");
        assert!(self.ledger.one::<bool>("SELECT command_ledger.verify_journal($1)", &[&key]));
    }

    /// The next command finds a relay that works.
    fn assert_goes_on(&mut self, key: &str) {
        self.ledger.register("letter", key, json!({}));
        assert_eq!(self.ledger.wait_status(key, "confirmed").attempt, 1);
        assert_eq!(self.mail.effects_for(key), 1, "{key}");
    }
}

#[test]
fn a_stop_is_not_held_up_by_a_call_in_flight_which_is_not_sent_again() {
    let mut scene = scene();
    for mode in [Mode::Fast, Mode::Immediate] {
        let key = format!("L-{mode:?}");
        scene.hold(&key);
        assert_eq!(scene.ledger.status(&key).status, "dispatched");
        let mark = scene.cluster.log_mark();
        assert!(scene.cluster.stop_within(mode, STOP_LIMIT_S), "{}", scene.cluster.log());
        if mode == Mode::Fast {
            let said = scene.cluster.log_since(mark);
            assert!(said.contains("relay of database \"app\" is stopped"), "it left by itself: {said}");
        }
        scene.start_again();
        scene.assert_uncertain(&key);
        // The answer that comes now reaches nobody.
        scene.mail.release();
    }
    scene.assert_goes_on("L-after");
    assert_eq!(scene.mail.writes().len(), 3);
}

#[test]
fn what_waits_when_the_server_stops_is_sent_once_after_the_next_start() {
    let mut scene = scene();
    for mode in [Mode::Fast, Mode::Immediate] {
        let key = format!("L-{mode:?}");
        scene.cluster.set("command_ledger.relay", "off");
        scene.ledger.register("letter", &key, json!({}));
        // Read at the next start.
        scene.ledger.exec("ALTER SYSTEM RESET command_ledger.relay");
        scene.cluster.stop(mode);
        assert_eq!(scene.mail.effects_for(&key), 0);
        scene.start_again();
        assert_eq!(scene.ledger.wait_status(&key, "confirmed").attempt, 1);
        assert_eq!(scene.mail.effects_for(&key), 1);
    }
    assert_eq!(scene.mail.writes().len(), 2);
}

#[test]
fn what_an_earlier_run_left_in_flight_is_judged_although_somebody_holds_it_at_first() {
    let mut scene = scene();
    scene.hold("L-1");
    scene.cluster.stop(Mode::Immediate);
    scene.cluster.append_setting("command_ledger.relay", "off");
    scene.start_again();
    scene.mail.release();
    let mut holder = scene.cluster.connect("app");
    holder.exec("BEGIN; SELECT FROM command_ledger.command WHERE idempotency_key = 'L-1' FOR UPDATE");
    scene.ledger.relay_pid();
    scene.cluster.set("command_ledger.relay", "on");
    // Others do not wait for it.
    scene.assert_goes_on("L-2");
    assert_eq!(scene.ledger.status("L-1").status, "dispatched");
    holder.exec("COMMIT");
    scene.assert_uncertain("L-1");
    assert_eq!(scene.mail.writes().len(), 2);
}

#[test]
fn an_answer_that_comes_within_the_grace_is_kept() {
    let mut scene = scene();
    scene.cluster.set("command_ledger.shutdown_grace", "60s");
    scene.hold("L-1");
    std::thread::scope(|scope| {
        let cluster = &scene.cluster;
        let stopping = scope.spawn(move || cluster.stop_within(Mode::Fast, 60));
        // Sessions are gone first; the relay waits for its answer.
        while scene.ledger.try_exec("SELECT 1").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        scene.mail.release();
        assert!(stopping.join().expect("stops"));
    });
    scene.start_again();
    let confirmed = scene.ledger.wait_status("L-1", "confirmed");
    assert_eq!((confirmed.attempt, confirmed.maybe_sent), (1, false));
    let kinds: Vec<String> =
        scene.ledger.column("SELECT kind FROM command_ledger.timeline WHERE idempotency_key = 'L-1' ORDER BY seq", &[]);
    assert_eq!(kinds, ["register", "claim", "confirm"]);
    assert_eq!(scene.mail.writes().len(), 1);
}

#[test]
fn a_killed_relay_takes_the_server_down_and_comes_back_and_repeats_nothing() {
    let mut scene = scene();
    scene.hold("L-1");
    scene.ledger.kill9_relay();
    scene.assert_uncertain("L-1");
    scene.mail.release();
    scene.assert_goes_on("L-2");
    assert_eq!(scene.mail.writes().len(), 2);
}

#[test]
fn a_relay_that_is_terminated_alone_comes_back_and_repeats_nothing() {
    let mut scene = scene();
    scene.cluster.set("command_ledger.shutdown_grace", "100ms");
    scene.hold("L-1");
    let before = scene.ledger.relay_pid();
    scene.ledger.terminate_relay();
    assert_ne!(scene.ledger.relay_pid(), before);
    scene.assert_uncertain("L-1");
    scene.mail.release();
    scene.assert_goes_on("L-2");
    assert_eq!(scene.mail.writes().len(), 2);
}

#[test]
fn a_server_that_runs_for_pg_upgrade_sends_nothing() {
    let mut scene = scene();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut scene.ledger, &erp, Value::Null);
    scene.ledger.exec("SELECT command_ledger.pause('erp')");
    scene.ledger.register("requisition", "R-1", json!({"lines": []}));
    scene.cluster.stop(Mode::Fast);
    scene.cluster.start_with(&["-b"]);
    scene.ledger.reconnect();
    scene.ledger.exec("SELECT command_ledger.resume('erp')");
    let said = scene.ledger.text("SELECT command_ledger.start_relay()");
    assert!(said.starts_with("nothing started") && said.contains("pg_upgrade"), "{said}");
    let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'command_ledger%'";
    assert_eq!(scene.ledger.text(workers), "0");
    assert_eq!(scene.ledger.status("R-1").status, "approved");
    assert_eq!(erp.requests().len(), 0);
    scene.cluster.stop(Mode::Fast);
    scene.start_again();
    assert_eq!(scene.ledger.wait_status("R-1", "confirmed").attempt, 1);
    assert_eq!(erp.requests().len(), 1);
}
