//! The server is killed at every step of a delivery, with a destination that deduplicates and with one that does not:
//! nothing is lost, there is at most one effect, and what is not known stands in the queue.

use pg_test::erp_like::{deduplicating, searchable, unprotected};
use pg_test::prelude::*;

struct Scene {
    cluster: Cluster,
    ledger: Ledger,
    destination: Destination,
    command_type: &'static str,
}

fn scene(kind: &str) -> Scene {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    let (destination, command_type) = match kind {
        "deduplicating" => {
            let destination = Destination::start(Profile::deduplicating("Idempotency-Key"));
            deduplicating(&mut ledger, &destination);
            (destination, "payment")
        }
        "searchable" => {
            let destination = Destination::start(Profile::Plain);
            searchable(&mut ledger, &destination, Value::Null);
            (destination, "requisition")
        }
        _ => {
            let destination = Destination::start(Profile::Plain);
            unprotected(&mut ledger, &destination);
            (destination, "letter")
        }
    };
    Scene { cluster, ledger, destination, command_type }
}

impl Scene {
    /// kill -9 of the postmaster, then a new start without failpoints.
    fn crash_and_restart(&mut self) {
        self.cluster.kill9_postmaster();
        self.cluster.append_setting("command_ledger.failpoint", "");
        self.cluster.start_again();
        self.ledger.reconnect();
        self.ledger.failpoints_off();
    }

    fn register(&mut self, key: &str) {
        self.ledger.register(self.command_type, key, json!({"lines": []}));
    }

    fn assert_whole(&mut self, key: &str) {
        assert!(self.ledger.one::<bool>(&format!("select command_ledger.verify_journal('{key}')"), &[]));
        assert!(self.destination.effects_for(key) <= 1, "{key} had {} effects", self.destination.effects_for(key));
    }
}

#[test]
fn killed_after_register_and_before_the_claim_it_is_sent_once() {
    for kind in ["deduplicating", "searchable", "unprotected"] {
        let mut scene = scene(kind);
        scene.ledger.failpoint("relay_before_claim_commit", "hang");
        scene.register("K-a");
        scene.crash_and_restart();
        let receipt = scene.ledger.wait_status("K-a", "confirmed");
        assert_eq!(receipt.attempt, 1, "{kind}");
        scene.assert_whole("K-a");
    }
}

#[test]
fn killed_between_the_checkpoint_and_the_send_it_is_unknown_and_never_doubled() {
    for kind in ["deduplicating", "searchable", "unprotected"] {
        let mut scene = scene(kind);
        scene.ledger.failpoint("relay_after_claim", "hang");
        scene.register("K-b");
        scene.ledger.wait_status("K-b", "dispatched");
        assert_eq!(scene.destination.requests().len(), 0, "nothing left before the checkpoint was committed");
        scene.crash_and_restart();
        if kind == "unprotected" {
            let receipt = scene.ledger.wait_status("K-b", "needs_reconciliation");
            assert!(receipt.maybe_sent);
            assert_eq!(scene.destination.effects_for("K-b"), 0);
        } else {
            let receipt = scene.ledger.wait_status("K-b", "confirmed");
            assert_eq!(receipt.attempt, 2, "{kind}");
            assert_eq!(scene.destination.effects_for("K-b"), 1);
        }
        scene.assert_whole("K-b");
    }
}

#[test]
fn killed_after_the_destinations_write_and_before_the_answer_there_is_one_effect() {
    for kind in ["deduplicating", "searchable", "unprotected"] {
        let mut scene = scene(kind);
        scene.destination.next(hang_after_commit());
        scene.register("K-c");
        scene.destination.wait_for_held(1);
        assert_eq!(scene.destination.effects_for("K-c"), 1);
        scene.crash_and_restart();
        if kind == "unprotected" {
            assert!(scene.ledger.wait_status("K-c", "needs_reconciliation").maybe_sent);
        } else {
            scene.ledger.wait_status("K-c", "confirmed");
        }
        scene.assert_whole("K-c");
        assert_eq!(scene.destination.effects_for("K-c"), 1);
    }
}

#[test]
fn killed_after_the_answer_and_before_the_confirmation_commits_there_is_one_effect() {
    for kind in ["deduplicating", "searchable", "unprotected"] {
        let mut scene = scene(kind);
        scene.ledger.failpoint("relay_before_settle_commit", "hang");
        scene.register("K-d");
        scene.destination.wait_for_write(1);
        scene.ledger.wait_status("K-d", "dispatched");
        scene.crash_and_restart();
        if kind == "unprotected" {
            assert!(scene.ledger.wait_status("K-d", "needs_reconciliation").maybe_sent);
        } else {
            scene.ledger.wait_status("K-d", "confirmed");
        }
        scene.assert_whole("K-d");
        assert_eq!(scene.destination.effects_for("K-d"), 1);
    }
}

#[test]
fn a_killed_relay_comes_back_and_finishes() {
    let mut scene = scene("deduplicating");
    scene.destination.next(hang_after_commit());
    scene.register("K-e");
    scene.destination.wait_for_held(1);
    scene.ledger.kill9_relay();
    scene.ledger.wait_status("K-e", "confirmed");
    scene.assert_whole("K-e");
    assert_eq!(scene.destination.effects_for("K-e"), 1);
}

#[test]
fn a_restored_dump_keeps_keys_and_sends_nothing_until_adopted() {
    let mut scene = scene("searchable");
    scene.register("K-f");
    scene.ledger.wait_status("K-f", "confirmed");
    scene.ledger.exec("select command_ledger.pause('erp')");
    scene.register("K-g");
    let dump = scene.cluster.dump("app", DumpFormat::Plain);
    scene.cluster.create_database("copy");
    scene.cluster.restore(&dump, "copy");
    let mut copy = Ledger::over(scene.cluster.connect("copy"));
    let sent_before = scene.destination.requests().len();
    let again = copy.register("requisition", "K-f", json!({"lines": []}));
    assert_eq!(again.outcome.as_deref(), Some("replayed"));
    assert_eq!(copy.try_register("requisition", "K-f", json!({"lines": [1]})).unwrap_err().sqlstate, "CL001");
    copy.exec("select command_ledger.resume('erp')");
    copy.register("requisition", "K-h", json!({"lines": []}));
    assert!(!copy.one::<bool>("select ok from command_ledger.health() where check_name = 'fence'", &[]));
    // The relay of the copy runs, sees the fence and stays quiet.
    copy.relay_pid();
    copy.wait_until("select count(*) = 2 from command_ledger.outbox", 10);
    assert_eq!(scene.destination.requests().len(), sent_before);
    copy.exec("select command_ledger.adopt_relay(true)");
    copy.wait_status("K-g", "confirmed");
    copy.wait_status("K-h", "confirmed");
    assert_eq!(scene.destination.effects_for("K-g"), 1);
}
