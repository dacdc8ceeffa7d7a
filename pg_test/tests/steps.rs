//! The relay and the server are killed at every named step of the relay's loop, with a destination that deduplicates,
//! one that can be asked, and one that can neither: at most one effect, nothing lost, nothing uncertain called success
//! or failure.

use pg_test::desk::{assert_journals, open_case};
use pg_test::erp_like::{deduplicating, searchable, unprotected};
use pg_test::prelude::*;

/// Commands of each kind per crash.
const COMMANDS: i32 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    Relay,
    Server,
}

/// A database with a relay and a destination of its own.
struct Kind {
    name: &'static str,
    ledger: Ledger,
    destination: Destination,
    command_type: &'static str,
}

/// What the ledger had committed of one command when the crash came.
#[derive(Debug)]
struct Before {
    key: String,
    status: String,
    attempt: i32,
    effects: usize,
}

impl Kind {
    fn new(cluster: &Cluster, name: &'static str) -> Kind {
        Kind::of_database(cluster, name, name)
    }

    fn of_database(cluster: &Cluster, name: &'static str, database: &str) -> Kind {
        let mut ledger = cluster.ledger(database);
        let profile = if name == "dedup" { Profile::deduplicating("Idempotency-Key") } else { Profile::Plain };
        let destination = Destination::start(profile);
        let command_type = match name {
            "dedup" => {
                deduplicating(&mut ledger, &destination);
                "payment"
            }
            "plain" => {
                unprotected(&mut ledger, &destination);
                "letter"
            }
            _ => {
                searchable(&mut ledger, &destination, Value::Null);
                "requisition"
            }
        };
        Kind { name, ledger, destination, command_type }
    }

    fn register(&mut self, round: &str) {
        self.ledger.rows(
            "SELECT command_ledger.register($1, $2 || '-' || i, '{\"lines\": []}') FROM generate_series(1, $3::int) i",
            &[&self.command_type, &round, &COMMANDS],
        );
    }

    fn before(&mut self, round: &str) -> Vec<Before> {
        (1..=COMMANDS)
            .map(|i| {
                let key = format!("{round}-{i}");
                let receipt = self.ledger.status(&key);
                let effects = self.destination.effects_for(&key);
                Before { key, status: receipt.status, attempt: receipt.attempt, effects }
            })
            .collect()
    }

    /// The relay stands in a transaction of this kind and does not move.
    fn wait_in_transaction(&mut self, activity: &str) {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query \
             LIKE 'command_ledger: {activity}%' AND xact_start < clock_timestamp() - interval '100 ms')"
        );
        self.ledger.wait_until(&sql, 60);
    }

    /// Every command of the round has had its effect; the answers are on their way to the relay.
    fn wait_for_effects(&self, round: &str) {
        for _ in 0..3_000 {
            if (1..=COMMANDS).all(|i| self.destination.effects_for(&format!("{round}-{i}")) > 0) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{} has no effect of all of {round}\n{}", self.name, self.ledger.ledger_report());
    }

    /// Brings this kind to the step, where its relay hangs.
    fn wait_at(&mut self, step: &str, round: &str) {
        let confirmed = format!(
            "SELECT count(*) > 0 FROM command_ledger.command WHERE idempotency_key LIKE '{round}%' AND status = 'confirmed'"
        );
        let dispatched = format!(
            "SELECT bool_and(lease_token IS NOT NULL) FROM command_ledger.outbox WHERE idempotency_key LIKE '{round}%'"
        );
        let asked = "SELECT count(*) > 0 FROM command_ledger.reconciliation_case WHERE lookup_token IS NOT NULL";
        match step {
            "relay_before_claim_commit" => self.wait_in_transaction("claiming"),
            "relay_after_claim" => self.ledger.wait_until(&dispatched, 60),
            "relay_before_settle" => self.wait_for_effects(round),
            "relay_before_settle_commit" => self.wait_in_transaction("settling"),
            "relay_after_settle" => self.ledger.wait_until(&confirmed, 60),
            "relay_before_lookup" => self.ledger.wait_until(asked, 60),
            "relay_before_lookup_settle" => {
                drop(self.destination.wait_for_lookup(self.destination.lookups().len().max(1)))
            }
            other => panic!("no step {other}"),
        }
    }

    /// What must be true of a command after the recovery, from what was committed before.
    fn assert_recovered(&mut self, step: &str, before: &Before) {
        let unknown = self.name == "plain" && before.status == "dispatched";
        let what = format!("{} at {step}: {before:?}", self.name);
        let receipt = self.ledger.wait_status(&before.key, if unknown { "needs_reconciliation" } else { "confirmed" });
        let effects = self.destination.effects_for(&before.key);
        assert_eq!(receipt.maybe_sent, unknown, "{what}: {receipt:?}");
        if unknown {
            assert_eq!((receipt.attempt, effects), (before.attempt, before.effects), "{what}");
            assert_eq!(open_case(&mut self.ledger, &before.key).as_deref(), Some("lease_over"), "{what}");
        } else {
            assert_eq!(effects, 1, "{what}");
            assert!(receipt.destination_record_id.is_some(), "{what}");
        }
        if matches!(before.status.as_str(), "confirmed") {
            assert_eq!(receipt.attempt, before.attempt, "{what}: sent again after it was confirmed");
        }
    }
}

/// The steps that a delivery passes, each with the step of a lookup at which another relay hangs meanwhile.
const STEPS: [(&str, Option<&str>); 5] = [
    ("relay_before_claim_commit", Some("relay_before_lookup")),
    ("relay_after_claim", Some("relay_before_lookup_settle")),
    ("relay_before_settle", None),
    ("relay_before_settle_commit", None),
    ("relay_after_settle", None),
];

/// What waits for a lookup is looked at when all crashes are over: it takes the time of a lease.
fn crash_at_every_step(kill: Kill) {
    // What a killed process had written is with the kernel and survives it; fsync would only flush whole databases at
    // every start.
    let cluster = Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "24").start();
    let mut kinds = ["dedup", "plain"].map(|name| Kind::new(&cluster, name));
    let mut searches = Vec::new();
    let mut cases = Vec::new();
    for (step, lookup_step) in STEPS {
        let round = step.trim_start_matches("relay_");
        if let Some(lookup_step) = lookup_step {
            let mut case = Kind::of_database(&cluster, "cases", &format!("cases_{round}"));
            case.ledger.failpoint(lookup_step, "hang");
            case.destination.next(drop_after_commit().then(drop_before_commit()).then(drop_after_commit()));
            case.register(round);
            case.wait_at(lookup_step, round);
            cases.push((case, round));
        }
        let mut search = Kind::of_database(&cluster, "search", &format!("search_{round}"));
        let both = lookup_step.map_or_else(|| "hang".to_owned(), |other| format!("hang,{other}=hang"));
        search.ledger.failpoint(step, &both);
        for kind in kinds.iter_mut().chain([&mut search]) {
            kind.register(round);
        }
        for kind in kinds.iter_mut().chain([&mut search]) {
            kind.wait_at(step, round);
        }
        let before = kinds.each_mut().map(|kind| kind.before(round));
        let search_before = search.before(round);
        match kill {
            Kill::Relay => kinds[0].ledger.kill9_relay(),
            Kill::Server => {
                cluster.kill9_everything();
                cluster.start_again();
            }
        }
        search.ledger.reconnect();
        search.ledger.failpoints_off();
        for (kind, before) in kinds.iter_mut().zip(&before) {
            kind.ledger.reconnect();
            before.iter().for_each(|command| kind.assert_recovered(step, command));
        }
        searches.push((search, step, search_before));
    }
    for (search, step, before) in &mut searches {
        search.ledger.reconnect();
        before.iter().for_each(|command| search.assert_recovered(step, command));
    }
    for (case, round) in &mut cases {
        case.ledger.reconnect();
        for i in 1..=COMMANDS {
            let key = format!("{round}-{i}");
            assert!(!case.ledger.wait_status(&key, "confirmed").maybe_sent);
            assert_eq!(case.destination.effects_for(&key), 1, "{key}");
        }
    }
    let searches = searches.iter_mut().map(|(search, ..)| search);
    let cases = cases.iter_mut().map(|(case, _)| case);
    for kind in kinds.iter_mut().chain(searches).chain(cases) {
        assert_journals(&mut kind.ledger);
        let open = "SELECT count(*) FROM command_ledger.outbox";
        assert_eq!(kind.ledger.one::<i64>(open, &[]), 0, "{} still has open work", kind.name);
    }
}

#[test]
fn the_relay_killed_at_every_step_loses_nothing_and_doubles_nothing() {
    crash_at_every_step(Kill::Relay);
}

#[test]
fn the_server_killed_at_every_step_loses_nothing_and_doubles_nothing() {
    crash_at_every_step(Kill::Server);
}

#[test]
fn a_command_whose_answer_kills_the_relay_each_time_stops_at_its_budget() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut kind = Kind::new(&cluster, "dedup");
    let retry = json!({"base": "1ms", "cap": "1ms", "max_attempts": 2});
    kind.ledger.define_type("payment", json!({"destination": "pay", "retry": retry}));
    kind.ledger.failpoint("relay_before_settle", "crash");
    kind.ledger.register("payment", "poison", json!({}));
    // Every crash of the relay ends all sessions.
    let settled = || -> Option<String> {
        let mut session = cluster.try_connect("dedup", "postgres").ok()?;
        session.try_text("SELECT status FROM command_ledger.status('poison')").ok()?
    };
    for _ in 0..1_200 {
        if settled().as_deref() == Some("needs_reconciliation") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    kind.ledger.reconnect();
    kind.ledger.failpoints_off();
    let end = kind.ledger.status("poison");
    assert_eq!((end.status.as_str(), end.attempt, end.maybe_sent), ("needs_reconciliation", 2, true));
    assert_eq!((kind.destination.writes().len(), kind.destination.effects()), (2, 1));
    kind.ledger.register("payment", "next", json!({}));
    assert_eq!(kind.ledger.wait_status("next", "confirmed").attempt, 1);
    let found =
        json!({"idempotency_key": "poison", "finding": "found", "destination_record_id": "R-1", "expected_attempt": 2});
    assert_eq!(kind.ledger.call("reconcile", found).status, "confirmed");
    assert_journals(&mut kind.ledger);
}
