//! The rows on the way of every command are written without a plan, on every major, as long as the tables are what the
//! extension made; anything else gets the ordinary statement, and so whatever somebody hung on the table.

use pg_test::desk::{assert_journals, claim_one, confirm, desk, task};
use pg_test::prelude::*;

/// Statements that this session has planned for a table.
fn planned(ledger: &mut Ledger, beginning: &str) -> Vec<String> {
    let sql = "SELECT ident FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' AND ident LIKE $1 || '%'";
    ledger.column(sql, &[&beginning])
}

fn life(ledger: &mut Ledger, key: &str) {
    assert_eq!(task(ledger, key).outcome.as_deref(), Some("created"));
    assert_eq!(task(ledger, key).outcome.as_deref(), Some("replayed"));
    let job = claim_one(ledger);
    assert_eq!(confirm(ledger, &job, key).status, "confirmed");
}

#[test]
fn a_commands_rows_are_written_without_plans_unless_somebody_hung_something_on_the_table() {
    let (_cluster, mut ledger) = desk(json!({}));
    life(&mut ledger, "first");
    assert!(!planned(&mut ledger, "SELECT").is_empty(), "this session's plans can be seen");
    for table in ["command", "outbox", "command_event"] {
        for verb in [format!("INSERT INTO command_ledger.{table} "), format!("UPDATE command_ledger.{table} ")] {
            assert_eq!(planned(&mut ledger, &verb), Vec::<String>::new());
        }
    }
    ledger.exec(
        "CREATE TABLE seen (key text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS
             'BEGIN INSERT INTO seen VALUES (NEW.idempotency_key); RETURN NULL; END';
         CREATE TRIGGER see AFTER INSERT ON command_ledger.command FOR EACH ROW EXECUTE FUNCTION see()",
    );
    life(&mut ledger, "second");
    assert_eq!(ledger.column::<String>("SELECT key FROM seen", &[]), ["second"]);
    assert_eq!(planned(&mut ledger, "INSERT INTO command_ledger.command ").len(), 1);
    assert_journals(&mut ledger);
}

/// Four sessions register the same keys at once, claim, give back, fail, confirm, and roll back.
fn turmoil(cluster: &Cluster) {
    cluster.in_parallel("app", 4, |worker, session| {
        for round in 0..40 {
            let register = format!("SELECT command_ledger.register('task', 'k{round}', '{{\"n\": 1}}')");
            match (round + worker) % 4 {
                0 => session.exec(&format!("BEGIN; {register}; ROLLBACK; {register}")),
                1 => session.exec(&format!("BEGIN; SAVEPOINT s; {register}; ROLLBACK TO s; {register}; COMMIT")),
                _ => session.exec(&register),
            }
            let jobs: Vec<(String, String)> = session
                .rows("SELECT idempotency_key, lease_token::text FROM command_ledger.claim('desk', 2)", &[])
                .iter()
                .map(|row| (row.get(0), row.get(1)))
                .collect();
            for (i, (key, token)) in jobs.iter().enumerate() {
                let call = match (round + i) % 3 {
                    0 => format!("SELECT command_ledger.release('{key}', '{token}')"),
                    1 => format!("SELECT command_ledger.fail('{key}', '{token}', 'transient')"),
                    _ => format!("SELECT command_ledger.confirm('{key}', '{token}', 'R-{key}')"),
                };
                session.exec(&call);
            }
        }
    });
}

#[test]
fn what_is_written_without_plans_leaves_every_index_and_page_whole() {
    let (cluster, mut ledger) = desk(json!({"retry": {"base": "1ms", "cap": "1ms", "max_attempts": 50}}));
    if let Err(e) = ledger.try_exec("CREATE EXTENSION amcheck") {
        assert_eq!(e.sqlstate, "0A000", "{e}");
        return pg_test::skipped("amcheck", "this server comes without it");
    }
    turmoil(&cluster);
    let commands: i64 = ledger.one("SELECT count(*) FROM command_ledger.command", &[]);
    assert_eq!(commands, 40);
    let attempts: i64 = ledger.one("SELECT count(*) FROM command_ledger.timeline WHERE kind = 'claim'", &[]);
    assert!(attempts > commands, "{attempts} attempts");
    let indexes = "SELECT count(bt_index_check(c.oid, true)::text) FROM pg_class c JOIN pg_am a ON a.oid = c.relam \
                    WHERE c.relnamespace = 'command_ledger'::regnamespace AND a.amname = 'btree'";
    assert!(ledger.one::<i64>(indexes, &[]) > 20);
    let damaged = "SELECT c.relname || ': ' || v.msg FROM pg_class c CROSS JOIN LATERAL verify_heapam(c.oid) v \
                    WHERE c.relnamespace = 'command_ledger'::regnamespace AND c.relkind = 'r'";
    assert_eq!(ledger.column::<String>(damaged, &[]), Vec::<String>::new());
    assert_journals(&mut ledger);
}
