//! Copies that are meant to be: a physical standby reads everything and writes nothing, and the journal alone can be
//! replicated to a plain database.

use pg_test::erp_like::searchable;
use pg_test::prelude::*;

const READS: [&str; 12] = [
    "timeline",
    "reconciliation_queue",
    "approval_queue",
    "dispatch_queue",
    "attempts",
    "runs",
    "duplicate_records",
    "lookalikes",
    "destination_status",
    "metrics",
    "measures",
    "health()",
];

#[test]
fn a_standby_answers_every_view_and_refuses_every_write() {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("note", json!({"destination": "desk"}));
    ledger.register("requisition", "done", json!({"lines": []}));
    ledger.wait_status("done", "confirmed");
    ledger.register("note", "open", json!({}));
    let requests = erp.requests().len();
    let standby = cluster.standby(Replication::Async);
    cluster.wait_for_replay(&standby);

    let mut reader = Ledger::over(standby.connect("app"));
    let (here, there) = (ledger.status("done"), reader.status("done"));
    assert_eq!(here, there);
    assert_eq!(reader.status("open").status, "approved");
    for view in READS {
        reader.table(&format!("select * from command_ledger.{view}"));
    }
    assert_eq!(reader.one::<i64>("select count(*) from command_ledger.dispatch_queue", &[]), 1);
    assert!(reader.text("select command_ledger.explain('done')").contains("done"));
    assert!(reader.one::<bool>("select command_ledger.verify_journal('done')", &[]));
    assert!(reader.one::<bool>("select command_ledger.evidence('done') is not null", &[]));
    assert_eq!(reader.text("select status from command_ledger.wait_for('done', '1 s')"), "confirmed");

    // A replay of a known key writes nothing, and is answered here too; everything that would write is refused.
    let again = reader.register("requisition", "done", json!({"lines": []}));
    assert_eq!(again.outcome.as_deref(), Some("replayed"));
    for call in [
        "register('note', 'new', '{}')",
        "claim('desk')",
        "cancel('open')",
        "pause('desk')",
        "reconcile('open', 'found')",
        "consume('c', 'm', '{}')",
        "purge()",
        "define_destination('x', '{\"transport\": \"pull\"}')",
        "grant_access('postgres', 'audit')",
    ] {
        let error = reader.expect_sqlstate("25006", &format!("select command_ledger.{call}"));
        assert!(error.message.contains("read-only"), "{call}: {error}");
    }
    let error = reader.expect_sqlstate("CL015", "select command_ledger.adopt_relay()");
    assert!(error.hint.contains("Promote"), "{error:?}");
    // The same in a read-only transaction of the primary, which has no executor's word for rows written directly.
    let mut session = cluster.connect("app");
    session.exec("set default_transaction_read_only = on");
    for call in ["register('note', 'new', '{}')", "cancel('open')", "register_and_claim('note', 'new', '{}')"] {
        session.expect_sqlstate("25006", &format!("select command_ledger.{call}"));
    }
    assert_eq!(ledger.status("open").status, "approved");
    assert_eq!(erp.requests().len(), requests, "no relay of the standby sends");
    assert!(ledger.find("new").is_none());
}

#[test]
fn the_journal_alone_can_be_replicated_to_a_plain_database() {
    let cluster = Cluster::builder().preload(true).setting("wal_level", "logical").start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, json!({"destination": "erp", "retention": {"payload": "1ms"}}));
    ledger.register("requisition", "before", json!({"lines": [1]}));
    ledger.wait_status("before", "confirmed");
    ledger.exec("create publication ledger_journal for table command_ledger.command, command_ledger.command_event");

    // The tables as the install page says: the same names, columns and keys, enumerated ones as text.
    let audit = Cluster::builder().fsync_off().start();
    audit.create_database("audit");
    let mut copy = audit.connect("audit");
    copy.exec("create schema command_ledger");
    for table in ["command", "command_event"] {
        let columns = ledger.text(&format!(
            "select string_agg(format('%I %s', attname, case when t.typtype = 'e' then 'text' else format_type(atttypid, atttypmod) end), ', ' order by attnum) \
               from pg_attribute a join pg_type t on t.oid = a.atttypid \
              where attrelid = 'command_ledger.{table}'::regclass and attnum > 0 and not attisdropped"
        ));
        let key = if table == "command" { "tenant, idempotency_key" } else { "tenant, idempotency_key, seq" };
        copy.exec(&format!("create table command_ledger.{table} ({columns}, primary key ({key}))"));
    }
    let address = format!("host=127.0.0.1 port={} user=postgres dbname=app", cluster.port());
    copy.exec(&format!("create subscription ledger_journal connection '{address}' publication ledger_journal"));

    erp.next(drop_after_commit());
    ledger.register("requisition", "after", json!({"lines": [2]}));
    ledger.wait_status("after", "confirmed");
    ledger.exec("select command_ledger.redact('before')");
    let journal = "select md5(string_agg(concat_ws('|', tenant, idempotency_key, seq, kind, to_status, encode(hash, 'hex')), ';' \
                                        order by tenant, idempotency_key, seq)) from command_ledger.command_event";
    let record = "select md5(string_agg(concat_ws('|', tenant, idempotency_key, status, journal_seq, params, redacted_at), ';' \
                                       order by tenant, idempotency_key)) from command_ledger.command";
    let (journal_here, record_here) = (ledger.text(journal), ledger.text(record));
    copy.wait_until(&format!("select ({journal}) = '{journal_here}' and ({record}) = '{record_here}'"), 30);
    assert_eq!(copy.one::<i64>("select count(*) from command_ledger.command where params is null", &[]), 1);
    // Nothing of what could send is there.
    assert!(!copy.one::<bool>("select to_regclass('command_ledger.outbox') is not null", &[]));
    assert_eq!(erp.effects(), 2);
    copy.exec("drop subscription ledger_journal");
}
