//! health(): for everything that keeps commands from moving, or the ledger from being trusted, a row that says so in
//! words and what to do.

use pg_test::prelude::*;

/// `ok` and `detail` of one row, which must have a hint when it is not ok.
fn check(session: &mut Session, name: &str) -> (bool, String) {
    let row = session.row("SELECT ok, detail, hint FROM command_ledger.health() WHERE check_name = $1", &[&name]);
    let (ok, detail, hint): (bool, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
    assert!(ok || hint.is_some_and(|hint| !hint.is_empty()), "{name} has no hint: {detail}");
    (ok, detail)
}

fn assert_bad(session: &mut Session, name: &str, words: &str) {
    let (ok, detail) = check(session, name);
    assert!(!ok && detail.contains(words), "{name}: {ok}: {detail}");
}

fn assert_good(session: &mut Session, name: &str, words: &str) {
    let (ok, detail) = check(session, name);
    assert!(ok && detail.contains(words), "{name}: {ok}: {detail}");
}

#[test]
fn a_healthy_ledger_has_nothing_to_say_and_each_trouble_has_its_words() {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    assert_bad(&mut ledger, "fence", "not adopted");
    let erp = Destination::start(Profile::Plain);
    ledger.define_http_destination("erp", &erp.url("/records"), json!({}));
    ledger.define_type("create", json!({"destination": "erp"}));
    ledger.relay_pid();
    ledger.wait_until("SELECT bool_and(ok) FROM command_ledger.health()", 20);
    let words = "SELECT count(*) FROM command_ledger.health() WHERE detail IS NULL OR detail = ''";
    assert_eq!(ledger.one::<i64>(words, &[]), 0);
    assert_good(&mut ledger, "relay_running", "the relay runs (pid");

    ledger.exec("SET synchronous_commit = off");
    assert_good(&mut ledger, "durability", "synchronous_commit is off in this session");
    ledger.exec("RESET synchronous_commit");
    ledger.exec("SELECT command_ledger.pause('erp')");
    assert_bad(&mut ledger, "paused_destinations", "erp (by postgres, for");
    ledger.exec("SELECT command_ledger.resume('erp')");
    let secret = json!({"request": {"auth": {"bearer": {"secret": "erp_token"}}}});
    ledger.define_http_destination("erp2", &erp.url("/records"), secret);
    assert_bad(&mut ledger, "secrets", "erp_token");
    cluster.set("command_ledger.relay", "off");
    ledger.wait_until("SELECT NOT ok FROM command_ledger.health() WHERE check_name = 'relay_enabled'", 20);
    ledger.register("create", "k", json!({}));
    let why = "SELECT blocked_by || ' ' || why FROM command_ledger.dispatch_queue";
    assert_eq!(ledger.text(why), "relay_off The setting command_ledger.relay is off.");
    let state = "SELECT state FROM command_ledger.destination_status WHERE destination = 'erp'";
    assert_eq!(ledger.text(state), "relay_off");
    assert_eq!(erp.requests().len(), 0);
    cluster.set("command_ledger.relay", "on");
    ledger.wait_status("k", "confirmed");

    ledger.exec("CREATE ROLE nobody LOGIN");
    ledger.exec(
        "GRANT USAGE ON SCHEMA command_ledger TO nobody; GRANT EXECUTE ON FUNCTION command_ledger.health() TO nobody",
    );
    ledger.as_role("nobody").expect_sqlstate("42501", "SELECT * FROM command_ledger.health()");

    let standby = cluster.standby(Replication::Async);
    cluster.wait_for_replay(&standby);
    let mut reader = standby.connect("app");
    assert_good(&mut reader, "standby", "this server is a standby");
    assert_good(&mut reader, "relay_running", "no relay runs, as it should be on a standby");
    assert_good(&mut reader, "guards", "");
}

#[test]
fn who_writes_past_the_ledger_is_found_out() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("task", json!({"destination": "desk"}));
    ledger.register("task", "k", json!({"amount": 1}));
    assert_good(&mut ledger, "guards", "written by the ledger's functions only");
    let recreate = "DROP TRIGGER guard_rows ON command_ledger.outbox; CREATE TRIGGER guard_rows AFTER INSERT OR UPDATE OR \
                    DELETE ON command_ledger.outbox FOR EACH ROW WHEN (false) EXECUTE FUNCTION \
                    command_ledger.refuse_direct_write()";
    let rows = [
        ("ALTER TABLE command_ledger.command DISABLE TRIGGER guard_rows", "trigger guard_rows of command is disabled"),
        ("ALTER TABLE command_ledger.access DISABLE TRIGGER ALL", "trigger guard_truncate of access is disabled"),
        ("ALTER TABLE command_ledger.lane ENABLE REPLICA TRIGGER guard_rows", "trigger guard_rows of lane is disabled"),
        (
            "DROP TRIGGER guard_truncate ON command_ledger.command_event",
            "trigger guard_truncate of command_event is gone",
        ),
        (recreate, "trigger guard_rows of outbox was replaced"),
        ("CREATE RULE quiet AS ON DELETE TO command_ledger.approval DO INSTEAD NOTHING", "rule quiet is on approval"),
        ("ALTER TABLE command_ledger.inbox DISABLE ROW LEVEL SECURITY", "row security of inbox is off"),
        (
            "CREATE OR REPLACE FUNCTION command_ledger.write_is_guarded() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
            "function write_is_guarded was replaced",
        ),
        (
            "CREATE OR REPLACE FUNCTION command_ledger.may_read_all() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
            "function may_read_all was replaced",
        ),
        (
            "ALTER DATABASE app SET session_replication_role = replica",
            "session_replication_role is set for database app",
        ),
        (
            "ALTER ROLE postgres SET session_replication_role = replica",
            "session_replication_role is set for role postgres",
        ),
    ];
    for (sql, words) in rows {
        ledger.exec(&format!("BEGIN; {sql}"));
        assert_bad(&mut ledger, "guards", words);
        ledger.exec("ROLLBACK");
    }
    assert_good(&mut ledger, "guards", "");
    // What was done meanwhile is found out by the journal.
    ledger.exec(
        "ALTER TABLE command_ledger.command DISABLE TRIGGER USER; \
         UPDATE command_ledger.command SET params = '{\"amount\": 1000}'; \
         ALTER TABLE command_ledger.command ENABLE TRIGGER USER",
    );
    assert_good(&mut ledger, "guards", "");
    let claimed = ledger.column::<String>("SELECT idempotency_key FROM command_ledger.claim('desk')", &[]);
    assert!(claimed.is_empty(), "{claimed:?}");
    assert_eq!(ledger.status("k").status, "needs_reconciliation");
}

#[test]
fn a_clock_that_was_set_back_and_a_copy_of_the_database_are_told() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    assert_good(&mut ledger, "clock", "no step seen");
    ledger.exec(
        "BEGIN; ALTER TABLE command_ledger.destination DISABLE TRIGGER USER; \
         UPDATE command_ledger.destination SET defined_at = clock_timestamp() + interval '3 hours'",
    );
    assert_bad(&mut ledger, "clock", "set back");
    ledger.exec("ROLLBACK");
    ledger.define_type("task", json!({"destination": "desk"}));
    ledger.register("task", "k", json!({}));
    ledger.into_session();
    cluster.connect("postgres").exec("CREATE DATABASE copy TEMPLATE app");
    let mut copy = cluster.connect("copy");
    assert_bad(&mut copy, "fence", "copy of another ledger");
    assert_bad(&mut copy, "other_identity", "1 commands");
}

#[test]
fn a_server_that_cannot_run_or_keep_a_ledger_says_so() {
    let settings = Cluster::builder().fsync_off().setting("full_page_writes", "off");
    let cluster = settings.start();
    let mut ledger = cluster.ledger("app");
    assert_bad(&mut ledger, "preloaded", "not preloaded");
    assert_bad(&mut ledger, "relay_running", "no relay runs in this database");
    assert_bad(&mut ledger, "durability", "fsync is off, full_page_writes is off");
    let breaker = json!({"breaker": {"failures": 1, "cool_down": "1h"}});
    ledger.define_http_destination("erp", "http://127.0.0.1:9/", breaker.clone());
    let mut pull = breaker;
    pull["transport"] = json!("pull");
    ledger.define_destination("desk", pull);
    let breakers = "SELECT string_agg(destination || ' ' || breaker, ', ' ORDER BY destination) FROM command_ledger.destination_status";
    assert_eq!(ledger.text(breakers), "desk none, erp unknown");
    ledger.text("SELECT command_ledger.start_relay()");
    ledger.wait_until("SELECT ok FROM command_ledger.health() WHERE check_name = 'relay_running'", 20);
    // A database without the extension has nothing that could say more than the server's own words.
    cluster.create_database("plain");
    let error = cluster.connect("plain").expect_sqlstate("3F000", "SELECT * FROM command_ledger.health()");
    assert!(error.message.contains("command_ledger"), "{error:?}");
}

#[test]
fn a_relay_without_a_worker_process_is_told() {
    // One for the server's own launcher, one for ours.
    let builder = Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "2");
    let cluster = builder.start();
    let mut ledger = cluster.ledger("app");
    ledger.wait_until("SELECT NOT ok FROM command_ledger.health() WHERE check_name = 'worker_slots'", 60);
    assert_bad(&mut ledger, "worker_slots", "no free background worker");
    assert_bad(&mut ledger, "relay_running", "");
}
