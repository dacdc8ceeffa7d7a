//! The way from a frozen version to this one: the same catalog as a fresh installation, every command as it was, and a
//! library that works before the objects follow it.

use pg_test::catalog::{difference, picture};
use pg_test::desk::{assert_journals, claim_one, confirm, define_desk, define_task, journal, open_case};
use pg_test::erp_like::{searchable, unprotected};
use pg_test::markdown::{read, repository};
use pg_test::prelude::*;

const CAPABILITIES: [&str; 6] = ["propose", "approve", "execute", "operate", "administer", "audit"];
const UPDATE: &str = "ALTER EXTENSION command_ledger UPDATE";

/// The version that this tree makes.
fn current() -> String {
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).expect("a version");
    version.trim_end_matches('"').to_owned()
}

/// The versions whose scripts are frozen, without the one that is being made.
fn frozen() -> Vec<String> {
    let sums = read("sql/frozen/SHA256SUMS");
    let name = |line: &str| Some(line.split_once("command_ledger--")?.1.strip_suffix(".sql")?.to_owned());
    let versions: Vec<String> = sums.lines().filter_map(name).filter(|version| *version != current()).collect();
    assert!(!versions.is_empty(), "no frozen version");
    versions
}

fn oldest() -> String {
    frozen().remove(0)
}

/// A ledger in a database of its own, made by the script of a version.
fn ledger_of(cluster: &Cluster, database: &str, version: &str) -> Ledger {
    cluster.create_database(database);
    let mut session = cluster.connect(database);
    session.exec(&format!("CREATE EXTENSION command_ledger VERSION '{version}'"));
    Ledger::over(session)
}

fn version_of(ledger: &mut Ledger) -> String {
    ledger.text("SELECT extversion FROM pg_extension WHERE extname = 'command_ledger'")
}

fn health(ledger: &mut Ledger, name: &str) -> (bool, String) {
    let row = ledger.row("SELECT ok, detail FROM command_ledger.health() WHERE check_name = $1", &[&name]);
    (row.get(0), row.get(1))
}

fn grant_all(ledger: &mut Ledger) {
    for capability in CAPABILITIES {
        ledger.exec(&format!("SELECT command_ledger.grant_access('can_{capability}', '{capability}')"));
    }
}

#[test]
fn an_update_makes_what_a_fresh_installation_makes_with_the_rights_that_were_granted_before() {
    let cluster = Cluster::builder().fsync_off().start();
    for capability in CAPABILITIES {
        cluster.connect("postgres").exec(&format!("CREATE ROLE can_{capability}"));
    }
    let mut fresh = cluster.ledger("fresh");
    assert_eq!(version_of(&mut fresh), current());
    grant_all(&mut fresh);
    let expected = picture(&mut fresh);
    assert!(expected.len() > 600, "{} facts", expected.len());
    for version in frozen() {
        let mut old = ledger_of(&cluster, &format!("from_{version}"), &version);
        grant_all(&mut old);
        assert_eq!(version_of(&mut old), version);
        assert!(!health(&mut old, "version").0, "the objects are older than the library");
        old.exec(UPDATE);
        assert_eq!(version_of(&mut old), current());
        let different = difference(&picture(&mut old), &expected, ["the updated ledger", "a fresh one"]);
        assert!(
            different.is_empty(),
            "sql/command_ledger--{version}--{}.sql (or what follows it) leaves this out:\n{different}",
            current()
        );
        for name in ["version", "guards"] {
            assert!(health(&mut old, name).0, "{name}");
        }
    }
}

#[test]
fn the_comparison_sees_every_kind_of_difference() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let before = picture(&mut ledger);
    for (change, words) in [
        ("ALTER TABLE command_ledger.inbox ADD COLUMN x int", "column: command_ledger.inbox 6 x integer"),
        ("ALTER TABLE command_ledger.inbox ALTER COLUMN payload_hash DROP NOT NULL", "payload_hash bytea"),
        ("ALTER TABLE command_ledger.outbox ALTER COLUMN attempt SET DEFAULT 1", "DEFAULT 1"),
        ("ALTER TABLE command_ledger.outbox SET (fillfactor = 90)", "fillfactor=90"),
        ("ALTER TABLE command_ledger.outbox DISABLE ROW LEVEL SECURITY", "row security"),
        ("ALTER TABLE command_ledger.outbox DISABLE TRIGGER guard_rows", "trigger: CREATE TRIGGER guard_rows"),
        ("ALTER TABLE command_ledger.access ADD CHECK (granted_by <> '')", "constraint: command_ledger.access"),
        ("DROP INDEX command_ledger.outbox_due", "index: CREATE INDEX outbox_due"),
        ("DROP POLICY read_all ON command_ledger.access", "policy: command_ledger.access read_all"),
        ("COMMENT ON TABLE command_ledger.lane IS 'x'", "relation: command_ledger.lane"),
        ("COMMENT ON COLUMN command_ledger.command.params IS 'x'", "column: command_ledger.command"),
        ("COMMENT ON FUNCTION command_ledger.pause(text) IS 'x'", "FUNCTION command_ledger.pause"),
        ("ALTER FUNCTION command_ledger.pause(text) COST 7", "COST 7"),
        ("GRANT EXECUTE ON FUNCTION command_ledger.pause(text) TO PUBLIC", "function: "),
        ("GRANT SELECT ON command_ledger.timeline TO PUBLIC", "relation: command_ledger.timeline"),
        ("ALTER VIEW command_ledger.timeline RESET (security_barrier)", "relation: command_ledger.timeline"),
        ("ALTER TYPE command_ledger.error_class ADD VALUE 'x'", "type: command_ledger.error_class"),
        ("ALTER EXTENSION command_ledger DROP TABLE command_ledger.inbox", "in dumps: command_ledger.inbox"),
        (
            "UPDATE pg_extension SET extcondition[array_length(extcondition, 1)] = 'WHERE true' WHERE extname = 'command_ledger'",
            "in dumps: ",
        ),
    ] {
        ledger.exec("BEGIN");
        ledger.exec(change);
        let different = difference(&picture(&mut ledger), &before, ["changed", "as made"]);
        ledger.exec("ROLLBACK");
        assert!(different.contains(words), "{change}: {different}");
    }
    let again = picture(&mut ledger);
    assert_eq!(difference(&again, &before, ["again", "as made"]), "");
}

/// Definitions for every kind of work: the relay's, a worker's, one that needs an approval.
fn define(ledger: &mut Ledger, erp: &Destination, mail: &Destination) {
    searchable(ledger, erp, Value::Null);
    ledger.define_type("order", json!({"destination": "erp", "approval": {"separate_proposer": false}}));
    unprotected(ledger, mail);
    define_desk(ledger, json!({}));
    define_task(ledger, json!({}));
}

fn approve(ledger: &mut Ledger, key: &str) {
    let hash = ledger.status(key).intent_hash.expect("a hash");
    ledger.call("approve", json!({"idempotency_key": key, "intent_hash": hash}));
}

/// An open question about a letter that may have arrived.
fn lost_letter(ledger: &mut Ledger, mail: &Destination, key: &str) {
    mail.next(drop_after_commit());
    ledger.register("letter", key, json!({"to": "x"}));
    assert!(ledger.wait_status(key, "needs_reconciliation").maybe_sent);
}

/// The main job, once through: by the relay, by a worker, with an approval, and with an answer that was lost.
fn do_the_main_job(ledger: &mut Ledger, erp: &Destination, mail: &Destination, run: &str) {
    let key = |name: &str| format!("{run}-{name}");
    let lines = json!({"lines": [1, 2.50]});
    ledger.register("requisition", &key("sent"), lines.clone());
    assert_eq!(ledger.wait_status(&key("sent"), "confirmed").attempt, 1);
    assert_eq!(ledger.register("requisition", &key("sent"), lines).outcome.as_deref(), Some("replayed"));
    let conflict = ledger.try_register("requisition", &key("sent"), json!({"lines": [9]})).unwrap_err();
    assert_eq!(conflict.sqlstate, "CL001");

    assert_eq!(ledger.register("order", &key("approved"), json!({"lines": []})).status, "planned");
    approve(ledger, &key("approved"));
    ledger.wait_status(&key("approved"), "confirmed");
    assert_eq!((erp.effects_for(&key("sent")), erp.effects_for(&key("approved"))), (1, 1));

    ledger.register("task", &key("claimed"), json!({"n": 1}));
    let job = claim_one(ledger);
    assert_eq!(confirm(ledger, &job, "R-1").status, "confirmed");

    lost_letter(ledger, mail, &key("lost"));
    let assigned = ledger.call("assign_case", json!({"idempotency_key": key("lost"), "owner": "ann"}));
    assert_eq!(assigned.outcome.as_deref(), Some("changed"));
    let owner = "SELECT owner FROM command_ledger.reconciliation_queue WHERE idempotency_key = $1";
    assert_eq!(ledger.one::<String>(owner, &[&key("lost")]), "ann");
    let found = json!({"idempotency_key": key("lost"), "finding": "found", "destination_record_id": "M-1"});
    assert_eq!(ledger.call("reconcile", found).status, "confirmed");
    assert_eq!(mail.effects_for(&key("lost")), 1);
    let evidence = ledger.text(&format!("SELECT command_ledger.evidence('{}') #>> '{{cases,0,owner}}'", key("lost")));
    assert_eq!(evidence, "ann");
    assert!(ledger.text(&format!("SELECT command_ledger.explain('{}')", key("lost"))).contains("M-1"));
    assert_journals(ledger);
}

/// One command in every state, with what belongs to it.
fn one_of_each(ledger: &mut Ledger, erp: &Destination, mail: &Destination) {
    ledger.register("requisition", "confirmed", json!({"lines": [1.10]}));
    ledger.wait_status("confirmed", "confirmed");
    lost_letter(ledger, mail, "question");
    ledger.call("assign_case", json!({"idempotency_key": "question", "owner": "ann"}));
    ledger.register("task", "claimed", json!({"n": 1}));
    ledger.register("order", "planned", json!({"lines": [3]}));
    ledger.exec("SELECT command_ledger.pause('erp')");
    ledger.register_with("order", "approved", json!({"lines": [4]}), json!({"ordering_key": "lane"}));
    approve(ledger, "approved");
    ledger.register("requisition", "cancelled", json!({"lines": [5]}));
    ledger.call("cancel", json!({"idempotency_key": "cancelled"}));
    ledger.register("order", "failed", json!({"lines": [6]}));
    let hash = ledger.status("failed").intent_hash;
    ledger.call("reject", json!({"idempotency_key": "failed", "intent_hash": hash}));
    assert!(ledger.one::<bool>("SELECT command_ledger.consume('books', 'message-1', '{}')", &[]));
    assert_eq!(erp.writes().len(), 1);
}

/// Everything that the ledger says of its commands.
fn told(ledger: &mut Ledger) -> Vec<String> {
    [
        "SELECT s::text FROM command_ledger.command c, command_ledger.status(c.idempotency_key) s ORDER BY c.idempotency_key",
        "SELECT t::text FROM command_ledger.timeline t ORDER BY t.idempotency_key, t.seq",
        "SELECT o::text FROM command_ledger.outbox o ORDER BY o.idempotency_key",
        "SELECT a::text FROM command_ledger.approval a ORDER BY a.idempotency_key, a.seq",
        "SELECT concat_ws(' ', r.idempotency_key, r.reason, r.owner, r.opened_at, r.closed_at) FROM command_ledger.reconciliation_case r ORDER BY 1",
        "SELECT concat_ws(' ', d.name, d.config, d.paused_at) FROM command_ledger.destination d ORDER BY 1",
        "SELECT f::text FROM command_ledger.relay_fence f",
    ]
    .iter()
    .flat_map(|sql| ledger.column::<String>(sql, &[]))
    .collect()
}

#[test]
fn the_library_does_the_whole_job_with_the_objects_of_an_older_version() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let (erp, mail) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    for (i, version) in frozen().iter().enumerate() {
        let mut ledger = ledger_of(&cluster, &format!("old{i}"), version);
        define(&mut ledger, &erp, &mail);
        do_the_main_job(&mut ledger, &erp, &mail, &format!("with-{version}"));
        let (ok, detail) = health(&mut ledger, "version");
        assert!(!ok && detail.contains(version), "{detail}");
        assert_eq!(version_of(&mut ledger), *version, "nothing updates by itself");
    }
}

#[test]
fn an_update_keeps_every_command_and_the_same_relay_goes_on() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let (erp, mail) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    let mut ledger = ledger_of(&cluster, "app", &oldest());
    define(&mut ledger, &erp, &mail);
    one_of_each(&mut ledger, &erp, &mail);
    let job = claim_one(&mut ledger);
    let relay = ledger.relay_pid();
    let before = told(&mut ledger);
    let states: Vec<String> =
        ledger.column("SELECT DISTINCT status::text FROM command_ledger.live_command ORDER BY 1", &[]);
    assert_eq!(states.len(), 7, "{states:?}");

    ledger.exec(UPDATE);
    assert_eq!(told(&mut ledger), before);
    assert_eq!(ledger.relay_pid(), relay);
    assert!(health(&mut ledger, "fence").0);
    assert_journals(&mut ledger);
    assert!(!ledger.one::<bool>("SELECT command_ledger.consume('books', 'message-1', '{}')", &[]), "taken before");

    // Each goes on from where it stood.
    assert_eq!(
        ledger.register("requisition", "confirmed", json!({"lines": [1.1]})).outcome.as_deref(),
        Some("replayed")
    );
    for key in ["confirmed", "cancelled"] {
        assert_eq!(
            ledger.try_register("requisition", key, json!({"lines": [9]})).unwrap_err().sqlstate,
            "CL001",
            "{key}"
        );
    }
    assert_eq!(confirm(&mut ledger, &job, "R-9").status, "confirmed", "with the lease of before");
    approve(&mut ledger, "planned");
    ledger.exec("SELECT command_ledger.resume('erp')");
    for key in ["planned", "approved"] {
        ledger.wait_status(key, "confirmed");
        assert_eq!(erp.effects_for(key), 1, "{key}");
    }
    assert_eq!(erp.writes().len(), 3);
    assert_eq!(journal(&mut ledger, "approved"), ["register", "approve", "claim", "confirm"]);
    assert_eq!(open_case(&mut ledger, "question").as_deref(), Some("no_answer"));
    assigned_at_is_known_from_now_on(&mut ledger);
    ledger
        .call("reconcile", json!({"idempotency_key": "question", "finding": "found", "destination_record_id": "M-1"}));
    do_the_main_job(&mut ledger, &erp, &mail, "after");
    assert_eq!(mail.effects_for("question"), 1);
}

/// What 0.2.0 adds.
fn assigned_at_is_known_from_now_on(ledger: &mut Ledger) {
    let since = "SELECT assigned_at IS NOT NULL AND assigned_at >= opened_at FROM command_ledger.reconciliation_queue \
                  WHERE idempotency_key = 'question'";
    assert!(!ledger.one::<bool>(since, &[]), "nobody noted it before");
    for (owner, known) in [(Some("bob"), true), (None, false), (Some("ann"), true)] {
        ledger.rows("SELECT command_ledger.assign_case('question', $1)", &[&owner]);
        assert_eq!(ledger.one::<bool>(since, &[]), known, "{owner:?}");
    }
    let noted = ledger.text("SELECT assigned_at FROM command_ledger.reconciliation_queue");
    ledger.call("assign_case", json!({"idempotency_key": "question", "owner": "ann"}));
    assert_eq!(ledger.text("SELECT assigned_at FROM command_ledger.reconciliation_queue"), noted, "she has it already");
    let proof = "SELECT (command_ledger.evidence('question') #>> '{cases,0,assigned_at}')::timestamptz = assigned_at \
                   FROM command_ledger.reconciliation_queue";
    assert!(ledger.one::<bool>(proof, &[]));
}

#[test]
fn a_dump_of_an_older_version_restores_into_this_one() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let (erp, mail) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    let mut ledger = ledger_of(&cluster, "app", &oldest());
    define(&mut ledger, &erp, &mail);
    one_of_each(&mut ledger, &erp, &mail);
    let dump = cluster.dump("app", DumpFormat::Custom);
    ledger.exec("SELECT command_ledger.stop_relay()");
    cluster.create_database("copy");
    cluster.restore(&dump, "copy");
    let mut copy = Ledger::over(cluster.connect("copy"));
    assert_eq!(version_of(&mut copy), current());
    let mut fresh = cluster.ledger("fresh");
    assert_eq!(difference(&picture(&mut copy), &picture(&mut fresh), ["the restored", "a fresh one"]), "");
    assert_journals(&mut copy);
    assert_eq!(copy.register("requisition", "confirmed", json!({"lines": [1.1]})).outcome.as_deref(), Some("replayed"));
    assert_eq!(erp.writes().len(), 1, "a copy is silent");
}

#[test]
fn an_edited_frozen_script_is_found_out() {
    let copy = std::env::temp_dir().join(format!("ledger_frozen.{}", std::process::id()));
    let check = |expected: bool, what: &str| {
        let mut command = std::process::Command::new(repository().join("scripts/frozen.sh"));
        let answer = command.arg("--check").arg(&copy).output().expect("runs");
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert_eq!(answer.status.success(), expected, "{what}: {said}");
        assert!(expected || said.contains("error: "), "{said}");
    };
    std::fs::create_dir_all(&copy).expect("made");
    for entry in std::fs::read_dir(repository().join("sql/frozen")).expect("there") {
        let entry = entry.expect("read");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
    }
    check(true, "as it is");
    std::fs::write(copy.join("command_ledger--9.9.9.sql"), "SELECT 1;\n").expect("written");
    check(false, "a script without a sum");
    std::fs::remove_file(copy.join("command_ledger--9.9.9.sql")).expect("removed");
    let script = copy.join(format!("command_ledger--{}.sql", oldest()));
    let text = std::fs::read_to_string(&script).expect("read");
    std::fs::write(&script, text.replacen("fillfactor = 85", "fillfactor = 86", 1)).expect("written");
    check(false, "an edited script");
    std::fs::remove_file(&script).expect("removed");
    check(false, "a script that is gone");
    std::fs::remove_dir_all(&copy).expect("removed");
}
