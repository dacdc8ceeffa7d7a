//! pg_upgrade to another major: the same ledger in a cluster of another identity. It is whole, it is silent until a
//! person adopts it, and then it goes on.
//!
//! `LEDGER_OLD_PG_BIN` names the programs of an older major that has the extension. Without it the cluster is upgraded
//! to its own major, which pg_upgrade does the same way.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pg_test::catalog::{difference, picture};
use pg_test::desk::{assert_journals, claim_one, confirm, define_desk, define_task, journal, open_case};
use pg_test::erp_like::{searchable, unprotected};
use pg_test::markdown::read;
use pg_test::prelude::*;

/// The oldest major there is a server for: nothing older is missing there.
const OLDEST_MAJOR: u32 = 15;
const LINES: &str = "{\"lines\": [1, 2.50]}";

struct World {
    erp: Destination,
    mail: Destination,
}

fn lines() -> Value {
    serde_json::from_str(LINES).expect("an object")
}

fn old_programs() -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("LEDGER_OLD_PG_BIN")?);
    directory.join("postgres").is_file().then_some(directory)
}

fn builder() -> pg_test::cluster::ClusterBuilder {
    Cluster::builder().preload(true).fsync_off().setting("command_ledger.max_sleep", "200ms")
}

/// The cluster to be upgraded, and the one that it becomes, which is not started.
fn clusters() -> Option<(Cluster, Cluster)> {
    let new = builder().prepare();
    let directory = new.programs_directory();
    if !directory.join("pg_upgrade").is_file() {
        pg_test::skipped("pg_upgrade", "this server comes without it");
        return None;
    }
    if old_programs().is_none() && new.major() > OLDEST_MAJOR {
        pg_test::skipped("pg_upgrade from an older major", "LEDGER_OLD_PG_BIN names no server");
    }
    let old = builder().programs(old_programs().unwrap_or(directory)).start();
    Some((old, new))
}

fn approve(ledger: &mut Ledger, key: &str) {
    let hash = ledger.status(key).intent_hash.expect("a hash");
    ledger.call("approve", json!({"idempotency_key": key, "intent_hash": hash}));
}

impl World {
    fn new() -> World {
        World { erp: Destination::start(Profile::Plain), mail: Destination::start(Profile::Plain) }
    }

    /// One command that is confirmed, one that may have arrived, one that waits for its turn, one that waits with its
    /// approval, one that waits for an approval, one that a worker holds, one in an ordered lane.
    fn fill(&self, ledger: &mut Ledger) {
        searchable(ledger, &self.erp, Value::Null);
        ledger.define_type("order", json!({"destination": "erp", "approval": {"separate_proposer": false}}));
        unprotected(ledger, &self.mail);
        define_desk(ledger, json!({}));
        define_task(ledger, json!({}));
        ledger.exec("SELECT command_ledger.grant_access('agent', 'propose')");
        ledger.register("requisition", "done", lines());
        ledger.wait_status("done", "confirmed");
        self.mail.next(drop_after_commit());
        ledger.register("letter", "lost", json!({"to": "x"}));
        assert!(ledger.wait_status("lost", "needs_reconciliation").maybe_sent);
        ledger.exec("SELECT command_ledger.pause('erp')");
        ledger.register("requisition", "waits", lines());
        ledger.register_with("requisition", "in-lane", lines(), json!({"ordering_key": "lane"}));
        for key in ["approved", "planned"] {
            ledger.register("order", key, lines());
        }
        approve(ledger, "approved");
        ledger.register("task", "held", json!({"n": 1}));
        ledger.register("task", "queued", json!({"n": 1}));
        assert!(ledger.one::<bool>("SELECT command_ledger.consume('books', 'message-1', '{}')", &[]));
    }

    /// Keys, conflicts and journals are what they were.
    fn assert_whole(&self, ledger: &mut Ledger) {
        let replayed = ledger.register("requisition", "done", json!({"lines": [1, 2.5]}));
        assert_eq!((replayed.outcome.as_deref(), replayed.status.as_str()), (Some("replayed"), "confirmed"));
        let conflict = ledger.try_register("requisition", "done", json!({"lines": [9]})).unwrap_err();
        assert_eq!(conflict.sqlstate, "CL001");
        assert_eq!(open_case(ledger, "lost").as_deref(), Some("no_answer"));
        assert_eq!(ledger.status("planned").status, "planned");
        assert_eq!(journal(ledger, "approved"), ["register", "approve"]);
        assert!(!ledger.one::<bool>("SELECT command_ledger.consume('books', 'message-1', '{}')", &[]), "taken before");
        assert_journals(ledger);
    }

    /// A ledger of another identity sends and hands out nothing, and says why.
    fn assert_silent(&self, ledger: &mut Ledger) {
        let sent = self.sent();
        ledger.relay_pid();
        ledger.exec("SELECT command_ledger.resume('erp')");
        assert_eq!(ledger.text("SELECT command_ledger.fence_state()"), "unadopted");
        assert!(!health(ledger, "fence"));
        assert!(ledger.expect_sqlstate("CL015", "SELECT * FROM command_ledger.claim('desk')").hint.contains("adopt"));
        ledger.wait_until("SELECT bool_and(blocked_by = 'fence') FROM command_ledger.dispatch_queue", 20);
        assert_eq!(self.sent(), sent);
    }

    /// Adopted, everything that is open goes on. Where a person says that the old cluster sent nothing after its stop,
    /// it is simply due; else it is looked up first, and a person is asked about what cannot be.
    fn assert_goes_on(&self, ledger: &mut Ledger, resend: bool) {
        ledger.exec(&format!("SELECT command_ledger.adopt_relay(resend => {resend})"));
        assert!(health(ledger, "fence"));
        if !resend {
            // Nobody had approved it, so nothing decides by itself what a lookup that finds nothing means.
            let absent = json!({"idempotency_key": "planned", "finding": "not_found"});
            assert_eq!(ledger.call("reconcile", absent).status, "planned");
        }
        approve(ledger, "planned");
        for key in ["waits", "in-lane", "approved", "planned"] {
            assert_eq!(ledger.wait_status(key, "confirmed").attempt, 1, "{key}");
            assert_eq!(self.erp.effects_for(key), 1, "{key}");
        }
        if resend {
            let job = claim_one(ledger);
            assert_eq!((job.key.as_str(), confirm(ledger, &job, "R-0").status.as_str()), ("queued", "confirmed"));
        } else {
            assert_eq!(open_case(ledger, "queued").as_deref(), Some("adopted"), "nobody can look that up");
        }
        let found = json!({"idempotency_key": "lost", "finding": "found", "destination_record_id": "M-1"});
        assert_eq!(ledger.call("reconcile", found).status, "confirmed");
        ledger.register("requisition", "new", lines());
        ledger.wait_status("new", "confirmed");
        ledger.register("task", "new-task", json!({"n": 1}));
        let job = claim_one(ledger);
        assert_eq!(confirm(ledger, &job, "R-2").status, "confirmed");
        for (key, destination) in [("done", &self.erp), ("new", &self.erp), ("lost", &self.mail)] {
            assert_eq!(destination.effects_for(key), 1, "{key}");
        }
        assert_journals(ledger);
    }

    fn sent(&self) -> usize {
        self.erp.writes().len() + self.mail.writes().len()
    }
}

fn health(ledger: &mut Ledger, check: &str) -> bool {
    ledger.one("SELECT ok FROM command_ledger.health() WHERE check_name = $1", &[&check])
}

/// Everything that the ledger keeps, as text.
fn kept(ledger: &mut Ledger) -> Vec<String> {
    let tables: Vec<String> = ledger.column(
        "SELECT c.oid::regclass::text FROM pg_class c \
          WHERE c.relnamespace = 'command_ledger'::regnamespace AND c.relkind = 'r' ORDER BY 1",
        &[],
    );
    assert!(tables.len() > 8, "{tables:?}");
    let rows = |table: &String| -> Vec<String> {
        ledger.column(&format!("SELECT '{table} ' || t::text FROM {table} t ORDER BY 1"), &[])
    };
    tables.iter().flat_map(rows).collect()
}

/// What differs and means the same: pg_upgrade leaves out the list of rights of a table or view where nobody but its
/// owner has any; and of two constraints for which 18 thinks of one name, the later made gets a number.
fn facts_that_count(picture: BTreeSet<String>) -> BTreeSet<String> {
    let owners = ["{postgres=arwdDxt/postgres}", "{postgres=arwdDxtm/postgres}"];
    let said = |fact: &String| !(fact.starts_with("first rights: ") && owners.iter().any(|list| fact.ends_with(list)));
    let without = |fact: String| {
        let fact = owners.iter().fold(fact, |fact, list| fact.replace(&format!(" {list}"), ""));
        fact.replace("_not_null1 n NOT NULL", "_not_null n NOT NULL")
    };
    picture.into_iter().filter(said).map(without).collect()
}

/// The first frozen version.
fn oldest_version() -> String {
    let sums = read("sql/frozen/SHA256SUMS");
    let name = |line: &str| Some(line.split_once("command_ledger--")?.1.strip_suffix(".sql")?.to_owned());
    sums.lines().find_map(name).expect("a frozen version")
}

#[test]
fn what_pg_upgrade_carries_over_is_whole_and_silent_and_goes_on_once_it_is_adopted() {
    let Some((old, new)) = clusters() else { return };
    old.connect("postgres").exec("CREATE ROLE agent LOGIN");
    let (world, elder_world) = (World::new(), World::new());
    let mut ledger = old.ledger("app");
    world.fill(&mut ledger);
    // What a worker holds while the server is away.
    let held = claim_one_of(&mut ledger, "held");
    // And one that the extension's older version made.
    old.create_database("elder");
    old.connect("elder").exec(&format!("CREATE EXTENSION command_ledger VERSION '{}'", oldest_version()));
    let mut elder = Ledger::over(old.connect("elder"));
    elder_world.fill(&mut elder);
    let elder_held = claim_one_of(&mut elder, "held");
    let before = (kept(&mut ledger), kept(&mut elder));
    for session in [&mut ledger, &mut elder] {
        forget_marks(session);
    }
    old.stop(Mode::Fast);

    old.upgrade_into(&new).unwrap_or_else(|said| panic!("pg_upgrade from {}: {said}", old.major()));
    new.start_again();
    let (mut ledger, mut elder) = (Ledger::over(new.connect("app")), Ledger::over(new.connect("elder")));
    assert_eq!((kept(&mut ledger), kept(&mut elder)), before);
    world.assert_whole(&mut ledger);
    world.assert_silent(&mut ledger);
    assert!(!health(&mut elder, "version"), "nothing updates by itself");
    elder.exec("ALTER EXTENSION command_ledger UPDATE");
    elder_world.assert_whole(&mut elder);
    elder_world.assert_silent(&mut elder);

    // Every object and every right is what an installation on the new major makes.
    let mut fresh = new.ledger("fresh");
    fresh.exec("SELECT command_ledger.grant_access('agent', 'propose')");
    let expected = facts_that_count(picture(&mut fresh));
    for upgraded in [&mut ledger, &mut elder] {
        let found = facts_that_count(picture(upgraded));
        assert_eq!(difference(&found, &expected, ["the upgraded", "a fresh one"]), "");
        assert!(health(upgraded, "guards") && health(upgraded, "version"));
    }
    let agent = "SELECT (command_ledger.register('requisition', 'by-agent', '{\"lines\": []}')).outcome";
    assert_eq!(new.connect_as("app", "agent").text(agent), "created");

    // The answers of workers that held a command are taken, before and after: they did what they were given.
    assert_eq!(confirm(&mut ledger, &held, "R-1").status, "confirmed");
    world.assert_goes_on(&mut ledger, false);
    elder_world.assert_goes_on(&mut elder, true);
    assert_eq!(confirm(&mut elder, &elder_held, "R-1").status, "confirmed");
    ledger.wait_status("by-agent", "confirmed");
    assert_eq!(world.erp.effects_for("by-agent"), 1);
}

/// Some builds of a server mark every column with an option of their own (pg_attver), which no other server takes.
fn forget_marks(session: &mut Session) {
    session.exec(
        "UPDATE pg_attribute SET attoptions = (SELECT array_agg(o) FROM unnest(attoptions) o WHERE o NOT LIKE 'pg_attver=%') \
          WHERE attoptions::text LIKE '%pg_attver=%'",
    );
}

/// Claims one command of the desk; it must be this one.
fn claim_one_of(ledger: &mut Ledger, key: &str) -> pg_test::desk::Job {
    let mut jobs = pg_test::desk::claim(ledger, 1);
    assert_eq!(jobs.iter().map(|job| job.key.as_str()).collect::<Vec<_>>(), [key]);
    jobs.remove(0)
}
