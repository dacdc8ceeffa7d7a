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
