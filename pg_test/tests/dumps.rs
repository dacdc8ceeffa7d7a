//! What a backup of each kind brings back: the definitions and keys with their conflicts, and never a second send.

use pg_test::erp_like::searchable;
use pg_test::prelude::*;

/// A cluster with a confirmed command, one with an open question's worth of history, and one that waits; paused.
fn world() -> (Cluster, Ledger, Destination) {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "done", json!({"lines": [1]}));
    ledger.wait_status("done", "confirmed");
    ledger.exec("select command_ledger.pause('erp')");
    ledger.register("requisition", "waits", json!({"lines": [2]}));
    (cluster, ledger, erp)
}

/// The copy knows every key, is silent, and goes on once it is adopted.
fn assert_keeps_keys_and_is_silent(copy: &mut Ledger, erp: &Destination) {
    let sent = erp.writes().len();
    assert_eq!(copy.register("requisition", "done", json!({"lines": [1]})).outcome.as_deref(), Some("replayed"));
    assert_eq!(copy.try_register("requisition", "done", json!({"lines": [9]})).unwrap_err().sqlstate, "CL001");
    assert!(copy.one::<bool>("select command_ledger.verify_journal('done')", &[]));
    copy.exec("select command_ledger.resume('erp')");
    assert!(!copy.one::<bool>("select ok from command_ledger.health() where check_name = 'fence'", &[]));
    copy.relay_pid();
    copy.wait_until("select bool_and(blocked_by = 'fence') from command_ledger.dispatch_queue", 20);
    assert_eq!(erp.writes().len(), sent);
    copy.exec("select command_ledger.adopt_relay()");
    copy.wait_status("waits", "confirmed");
    assert_eq!((erp.effects_for("done"), erp.effects_for("waits")), (1, 1));
}

#[test]
fn a_custom_dump_restores_in_another_cluster_and_a_repeat_finds_its_key() {
    let (cluster, ledger, erp) = world();
    let dump = cluster.dump("app", DumpFormat::Custom);
    drop(ledger);
    cluster.stop(Mode::Fast);
    let other = Cluster::builder().preload(true).fsync_off().start();
    other.create_database("app");
    other.restore(&dump, "app");
    assert_keeps_keys_and_is_silent(&mut Ledger::over(other.connect("app")), &erp);
}

#[test]
fn a_dump_of_the_schema_makes_an_empty_ledger_that_works() {
    let (cluster, mut ledger, erp) = world();
    for format in [DumpFormat::Plain, DumpFormat::Custom] {
        let name = format!("{format:?}").to_lowercase();
        let dump = cluster.dump_with("app", format, &["--schema-only"]);
        cluster.create_database(&name);
        cluster.restore(&dump, &name);
        let mut empty = Ledger::over(cluster.connect(&name));
        for table in ["command", "command_event", "destination", "command_type", "outbox", "relay_fence", "access"] {
            assert_eq!(empty.one::<i64>(&format!("select count(*) from command_ledger.{table}"), &[]), 0, "{table}");
        }
        // As a new one: the first definition adopts it.
        searchable(&mut empty, &erp, Value::Null);
        empty.register("requisition", &name, json!({"lines": []}));
        empty.wait_status(&name, "confirmed");
        assert_eq!(erp.effects_for(&name), 1);
    }
    assert_eq!(ledger.status("waits").status, "approved");
}

#[test]
fn a_dump_of_the_data_restores_into_a_fresh_extension() {
    let (cluster, _ledger, erp) = world();
    let dump = cluster.dump_with("app", DumpFormat::Plain, &["--data-only"]);
    let mut copy = cluster.ledger("copy");
    cluster.restore(&dump, "copy");
    assert_keeps_keys_and_is_silent(&mut copy, &erp);
}

#[test]
fn a_ledger_that_sends_takes_no_restored_rows() {
    let (cluster, _ledger, erp) = world();
    let dump = cluster.dump_with("app", DumpFormat::Plain, &["--data-only"]);
    let mut copy = cluster.ledger("copy");
    // The first definition has adopted this one.
    copy.define_destination("mine", json!({"transport": "pull"}));
    let refused = cluster.try_restore(&dump, "copy", &[]).expect_err("refused");
    assert!(refused.contains("command_ledger"), "{refused}");
    assert!(copy.find("done").is_none());
    assert_eq!(erp.effects_for("waits"), 0);
}

#[test]
fn the_backup_role_of_the_install_page_can_dump_everything() {
    let (cluster, mut ledger, _erp) = world();
    ledger.exec("create role backup login bypassrls; grant pg_read_all_data to backup");
    ledger.exec("create role limited login; grant pg_read_all_data to limited");
    // pg_dump reads with row security off, so that it gets all rows or an error.
    let all = "set row_security = off; select count(*) from command_ledger.command, command_ledger.outbox";
    assert_eq!(cluster.connect_as("app", "limited").try_exec(all).unwrap_err().sqlstate, "42501");
    cluster.connect_as("app", "backup").exec(all);
    let dump = cluster.dump_with("app", DumpFormat::Plain, &["--username=backup"]);
    let text = std::fs::read_to_string(dump.path()).expect("a file");
    assert!(text.contains("waits") && text.contains("requisition"), "the commands are in the dump");
}
