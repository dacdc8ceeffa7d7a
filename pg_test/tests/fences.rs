//! Copies and moves of a ledger: each way of getting a second ledger with the same open commands, while the first one
//! sends them. The copy sends nothing before a person adopts it, and whatever follows, no intent has two effects.

use pg_test::desk::{assert_journals, claim, claim_one, confirm, define_desk, define_task, open_case};
use pg_test::erp_like::{deduplicating, searchable, unprotected};
use pg_test::prelude::*;

/// One open command for each kind of destination: one that deduplicates, one that can be searched, one that can do
/// neither, and one of pull workers.
const OPEN: [(&str, &str, &str); 4] = [
    ("pay", "payment", "pay-1"),
    ("erp", "requisition", "erp-1"),
    ("mail", "letter", "mail-1"),
    ("desk", "task", "desk-1"),
];

struct World {
    pay: Destination,
    erp: Destination,
    mail: Destination,
}

fn builder() -> pg_test::cluster::ClusterBuilder {
    Cluster::builder().preload(true).fsync_off().setting("command_ledger.max_sleep", "200ms")
}

/// A ledger whose open commands wait, because all destinations are paused.
fn world(cluster: &Cluster) -> (Ledger, World) {
    let mut ledger = cluster.ledger("app");
    let world = World {
        pay: Destination::start(Profile::deduplicating("Idempotency-Key")),
        erp: Destination::start(Profile::Plain),
        mail: Destination::start(Profile::Plain),
    };
    deduplicating(&mut ledger, &world.pay);
    searchable(&mut ledger, &world.erp, Value::Null);
    unprotected(&mut ledger, &world.mail);
    define_desk(&mut ledger, json!({}));
    define_task(&mut ledger, json!({}));
    for (destination, command_type, key) in OPEN {
        ledger.exec(&format!("SELECT command_ledger.pause('{destination}')"));
        ledger.register(command_type, key, json!({"lines": []}));
    }
    (ledger, world)
}

fn resume_all(ledger: &mut Ledger) {
    for (destination, _, _) in OPEN {
        ledger.exec(&format!("SELECT command_ledger.resume('{destination}')"));
    }
}

/// The original does everything that is open.
fn send_all(ledger: &mut Ledger) {
    resume_all(ledger);
    for key in ["pay-1", "erp-1", "mail-1"] {
        ledger.wait_status(key, "confirmed");
    }
    let job = claim_one(ledger);
    confirm(ledger, &job, "D-1");
}

/// The relay has looked at everything that was committed before.
fn a_round_passes(ledger: &mut Ledger) {
    for _ in 0..2 {
        let since = ledger.text("SELECT clock_timestamp()");
        ledger.wait_until(
            &format!(
                "SELECT bool_or(state = 'idle' AND state_change > '{since}') FROM pg_stat_activity \
                  WHERE datname = current_database() AND backend_type = 'command_ledger relay'"
            ),
            30,
        );
    }
}

fn health(ledger: &mut Ledger, check: &str) -> (bool, String) {
    let sql = "SELECT ok, detail || ' ' || coalesce(hint, '') FROM command_ledger.health() WHERE check_name = $1";
    let row = ledger.row(sql, &[&check]);
    (row.get(0), row.get(1))
}

impl World {
    fn requests(&self) -> usize {
        [&self.pay, &self.erp, &self.mail].iter().map(|d| d.requests().len()).sum()
    }

    fn effects(&self, key: &str) -> usize {
        [&self.pay, &self.erp, &self.mail].iter().map(|d| d.effects_for(key)).sum()
    }

    /// The relay of this copy runs, has everything it needs, and leaves it alone; health() and claims say why.
    fn assert_silent(&self, copy: &mut Ledger, word: &str) {
        let before = self.requests();
        copy.relay_pid();
        resume_all(copy);
        copy.register("payment", "pay-copy", json!({"lines": []}));
        a_round_passes(copy);
        assert_eq!(copy.text("SELECT command_ledger.fence_state()"), word);
        let (ok, said) = health(copy, "fence");
        assert!(!ok && said.contains("nothing is sent") && said.contains("adopt_relay()"), "{said}");
        for call in [
            "SELECT * FROM command_ledger.claim('desk')",
            "SELECT * FROM command_ledger.register_and_claim('task', 'desk-refused', '{}')",
        ] {
            let error = copy.expect_sqlstate("CL015", call);
            assert!(error.hint.contains("adopt_relay"), "{error:?}");
        }
        assert!(copy.find("desk-refused").is_none());
        for key in ["pay-1", "erp-1", "mail-1", "desk-1", "pay-copy"] {
            let open = copy.status(key);
            assert_eq!((open.status.as_str(), open.attempt), ("approved", 0), "{key}");
        }
        a_round_passes(copy);
        assert_eq!(self.requests(), before, "a copy sends nothing");
    }

    /// Adopted as one whose original may have sent everything, and did.
    fn assert_adopted_carefully(&self, copy: &mut Ledger) {
        let said = copy.text("SELECT command_ledger.adopt_relay()");
        assert!(said.starts_with("adopted"), "{said}");
        assert!(copy.wait_status("pay-1", "confirmed").attempt == 1, "repeated, and deduplicated");
        let found = copy.wait_status("erp-1", "confirmed");
        assert_eq!(found.attempt, 0, "found by a lookup, not sent from here");
        copy.wait_status("pay-copy", "confirmed");
        for key in ["mail-1", "desk-1"] {
            let asked = copy.status(key);
            assert_eq!((asked.status.as_str(), asked.maybe_sent), ("needs_reconciliation", true), "{key}");
            assert_eq!(open_case(copy, key).as_deref(), Some("adopted"), "{key}");
        }
        assert_eq!(claim(copy, 10), [], "what a person must decide is handed to no worker");
        copy.register("letter", "mail-new", json!({"lines": []}));
        copy.wait_status("mail-new", "confirmed");
        assert!(health(copy, "fence").0 && health(copy, "other_identity").0);
        assert_journals(copy);
        for key in ["pay-1", "erp-1", "mail-1", "pay-copy", "mail-new"] {
            assert_eq!(self.effects(key), 1, "{key}");
        }
        assert_eq!((self.erp.writes().len(), self.mail.writes().len()), (1, 2));
    }
}

#[test]
fn a_dump_in_another_cluster_is_silent_and_then_looks_before_it_repeats() {
    let cluster = builder().start();
    let (mut ledger, world) = world(&cluster);
    let dump = cluster.dump("app", DumpFormat::Plain);
    send_all(&mut ledger);
    let target = builder().start();
    target.create_database("app");
    target.restore(&dump, "app");
    let mut copy = Ledger::over(target.connect("app"));
    world.assert_silent(&mut copy, "unadopted");
    world.assert_adopted_carefully(&mut copy);
}

#[test]
fn copies_within_a_cluster_are_silent_even_where_a_failover_may_continue() {
    let cluster = builder().setting("command_ledger.on_failover", "continue").start();
    let (mut ledger, world) = world(&cluster);
    let dump = cluster.dump("app", DumpFormat::Custom);
    // The relay of the template leaves for it, and comes back.
    drop(ledger);
    cluster.connect("postgres").exec("CREATE DATABASE from_template TEMPLATE app");
    ledger = Ledger::over(cluster.connect("app"));
    send_all(&mut ledger);
    cluster.create_database("from_dump");
    cluster.restore(&dump, "from_dump");
    let mut restored = Ledger::over(cluster.connect("from_dump"));
    world.assert_silent(&mut restored, "unadopted");
    let mut copied = Ledger::over(cluster.connect("from_template"));
    world.assert_silent(&mut copied, "unadopted");
    world.assert_adopted_carefully(&mut copied);
    assert_eq!(restored.text("SELECT command_ledger.fence_state()"), "unadopted", "each copy is adopted by itself");
}

#[test]
fn a_copy_whose_original_sent_nothing_sends_everything_once_when_adopted_with_resend() {
    let cluster = builder().start();
    let (ledger, world) = world(&cluster);
    drop(ledger);
    cluster.connect("postgres").exec("CREATE DATABASE copy TEMPLATE app");
    cluster.drop_database("app");
    let mut copy = Ledger::over(cluster.connect("copy"));
    world.assert_silent(&mut copy, "unadopted");
    assert_eq!(world.requests(), 0);
    copy.exec("SELECT command_ledger.adopt_relay(resend => true)");
    for key in ["pay-1", "erp-1", "mail-1", "pay-copy"] {
        let sent = copy.wait_status(key, "confirmed");
        assert_eq!((sent.attempt, sent.maybe_sent), (1, false), "{key}");
        assert_eq!(world.effects(key), 1, "{key}");
    }
    assert_eq!(claim_one(&mut copy).key, "desk-1");
    assert_eq!(world.requests(), 4);
    assert!(copy.text("SELECT command_ledger.adopt_relay()").starts_with("already adopted"));
}

#[test]
fn a_ledger_with_a_broken_journal_is_not_adopted() {
    let cluster = builder().start();
    let (ledger, world) = world(&cluster);
    drop(ledger);
    cluster.connect("postgres").exec("CREATE DATABASE copy TEMPLATE app");
    let mut copy = Ledger::over(cluster.connect("copy"));
    copy.exec("ALTER TABLE command_ledger.command DISABLE TRIGGER USER");
    copy.exec("UPDATE command_ledger.command SET proposer = 'nobody' WHERE idempotency_key = 'erp-1'");
    copy.exec("ALTER TABLE command_ledger.command ENABLE TRIGGER USER");
    for call in ["adopt_relay()", "adopt_relay(true)"] {
        let error = copy.expect_sqlstate("CL015", &format!("SELECT command_ledger.{call}"));
        assert!(error.detail.contains("erp-1") && !error.hint.is_empty(), "{error:?}");
    }
    world.assert_silent(&mut copy, "unadopted");
}

#[test]
fn copied_files_and_a_restored_backup_are_silent_and_then_look_before_they_repeat() {
    let cluster = builder().start();
    let (mut ledger, world) = world(&cluster);
    let backup = cluster.base_backup();
    drop(ledger);
    cluster.stop(Mode::Fast);
    let files = cluster.copy_files_cold();
    cluster.start_again();
    ledger = Ledger::over(cluster.connect("app"));
    assert_eq!(ledger.text("SELECT command_ledger.fence_state()"), "open", "the original is where it was");
    send_all(&mut ledger);
    backup.start_again();
    let mut restored = Ledger::over(backup.connect("app"));
    world.assert_silent(&mut restored, "halted");
    drop(restored);
    backup.stop(Mode::Immediate);
    // Started beside the original, which is still alive.
    files.start_again();
    let mut copy = Ledger::over(files.connect("app"));
    world.assert_silent(&mut copy, "halted");
    world.assert_adopted_carefully(&mut copy);
    // What is adopted stays adopted there.
    drop(copy);
    files.restart();
    copy = Ledger::over(files.connect("app"));
    assert_eq!(copy.text("SELECT command_ledger.fence_state()"), "open");
}

/// A standby that stops receiving while everything is open; the primary sends it all and dies. Then the standby is
/// promoted with these settings.
fn fail_over(primary: &Cluster, ledger: &mut Ledger, settings: &[(&str, &str)]) -> Cluster {
    let standby = primary.standby(Replication::Async);
    primary.wait_for_replay(&standby);
    let mut reader = Ledger::over(standby.connect("app"));
    assert!(health(&mut reader, "standby").1.contains("is a standby") && health(&mut reader, "relay_running").0);
    assert_eq!(reader.text("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'command_ledger%'"), "0");
    let error = reader.expect_sqlstate("CL015", "SELECT command_ledger.adopt_relay()");
    assert!(error.message.contains("standby"), "{error:?}");
    drop(reader);
    standby.stop(Mode::Fast);
    send_all(ledger);
    primary.kill9_postmaster();
    for (name, value) in settings {
        standby.append_setting(name, value);
    }
    standby.start_again();
    standby.promote();
    standby
}

#[test]
fn a_promoted_standby_that_misses_the_last_confirmations_is_silent_and_then_looks_first() {
    let primary = builder().start();
    let (mut ledger, world) = world(&primary);
    let standby = fail_over(&primary, &mut ledger, &[]);
    let mut promoted = Ledger::over(standby.connect("app"));
    world.assert_silent(&mut promoted, "halted");
    world.assert_adopted_carefully(&mut promoted);
}

#[test]
fn a_failover_that_continues_repeats_only_where_that_is_safe_until_a_person_closes_it() {
    let primary = builder().start();
    let (mut ledger, world) = world(&primary);
    // A person found that nothing came of this one; then it is sent, and the standby misses that.
    ledger.exec("SELECT command_ledger.resume('mail')");
    ledger.wait_status("mail-1", "confirmed");
    world.mail.next(drop_before_commit());
    ledger.register("letter", "mail-found", json!({"lines": []}));
    ledger.wait_status("mail-found", "needs_reconciliation");
    ledger.exec("SELECT command_ledger.pause('mail')");
    ledger.call("reconcile", json!({"idempotency_key": "mail-found", "finding": "not_found"}));
    ledger.register("letter", "mail-2", json!({"lines": []}));
    ledger.register("payment", "pay-refused", json!({"lines": []}));
    let standby = fail_over(&primary, &mut ledger, &[("command_ledger.on_failover", "continue")]);
    for key in ["mail-found", "mail-2", "pay-refused"] {
        assert_eq!(world.effects(key), 1, "{key}: the primary did it");
    }
    let refuse = |request: &pg_test::http::Request, _| match request.header("idempotency-key") {
        Some("pay-refused") => answer(400, json!({})),
        _ => accept(),
    };
    world.pay.otherwise_by(refuse);
    let mut moved = Ledger::over(standby.connect("app"));
    resume_all(&mut moved);
    moved.wait_status("pay-1", "confirmed");
    assert_eq!(moved.wait_status("erp-1", "confirmed").attempt, 0, "found, not sent again");
    let refused = moved.wait_status("pay-refused", "needs_reconciliation");
    assert!(refused.maybe_sent, "the refusal of what the other place may have sent is no failure");
    for key in ["mail-found", "mail-2"] {
        assert!(moved.wait_status(key, "needs_reconciliation").maybe_sent, "{key}");
        assert_eq!(open_case(&mut moved, key).as_deref(), Some("fence"), "{key}");
    }
    assert_eq!(claim(&mut moved, 10), []);
    assert_eq!(open_case(&mut moved, "desk-1").as_deref(), Some("fence"));
    let (ok, said) = health(&mut moved, "fence");
    assert!(!ok && said.contains("continue") && said.contains("adopt_relay()"), "{said}");
    // New ones are treated alike: the other place may know the same keys.
    let lookups = world.erp.lookups().len();
    for (_, command_type, key) in OPEN {
        moved.register(command_type, &key.replace('1', "new"), json!({"lines": []}));
    }
    moved.wait_status("pay-new", "confirmed");
    assert_eq!(moved.wait_status("erp-new", "confirmed").attempt, 1);
    assert!(world.erp.lookups().len() >= lookups + 2, "looked up before it was sent");
    moved.wait_status("mail-new", "needs_reconciliation");
    // A finding that was made here permits a send here.
    moved.call("reconcile", json!({"idempotency_key": "mail-new", "finding": "not_found"}));
    moved.wait_status("mail-new", "confirmed");
    // Closed by a person, everything is as usual.
    moved.exec("SELECT command_ledger.adopt_relay()");
    let lookups = world.erp.lookups().len();
    for (command_type, key) in [("letter", "mail-after"), ("requisition", "erp-after")] {
        moved.register(command_type, key, json!({"lines": []}));
        assert_eq!(moved.wait_status(key, "confirmed").attempt, 1);
    }
    assert_eq!(world.erp.lookups().len(), lookups);
    assert!(health(&mut moved, "fence").0);
    assert_journals(&mut moved);
    let sent = ["pay-1", "erp-1", "mail-1", "mail-found", "mail-2", "pay-refused", "pay-new", "erp-new", "mail-new"];
    for key in sent.iter().chain(&["mail-after", "erp-after"]) {
        assert_eq!(world.effects(key), 1, "{key}");
    }
}

#[test]
fn a_promoted_synchronous_standby_knows_every_checkpoint() {
    let primary = builder().start();
    let standby = primary.standby(Replication::Sync);
    let (mut ledger, world) = world(&primary);
    ledger.register("payment", "pay-done", json!({"lines": []}));
    for (destination, held) in [(&world.pay, "pay"), (&world.erp, "erp"), (&world.mail, "mail")] {
        let first = if held == "pay" { hang_after_commit().times(2) } else { hang_after_commit().into() };
        destination.next(first);
        ledger.exec(&format!("SELECT command_ledger.resume('{held}')"));
    }
    world.pay.wait_for_held(2);
    world.erp.wait_for_held(1);
    world.mail.wait_for_held(1);
    primary.kill9_postmaster();
    standby.promote();
    let mut promoted = Ledger::over(standby.connect("app"));
    promoted.relay_pid();
    a_round_passes(&mut promoted);
    for key in ["pay-1", "pay-done", "erp-1", "mail-1"] {
        assert_eq!(promoted.status(key).status, "dispatched", "{key}: what left is known here");
    }
    let before = world.requests();
    a_round_passes(&mut promoted);
    assert_eq!(world.requests(), before, "halted");
    promoted.exec("SELECT command_ledger.adopt_relay()");
    for key in ["pay-1", "pay-done", "erp-1"] {
        promoted.wait_status(key, "confirmed");
    }
    assert!(promoted.wait_status("mail-1", "needs_reconciliation").maybe_sent);
    assert_journals(&mut promoted);
    for key in ["pay-1", "pay-done", "erp-1", "mail-1"] {
        assert_eq!(world.effects(key), 1, "{key}");
    }
}
