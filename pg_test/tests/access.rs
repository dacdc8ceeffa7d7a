//! What a role with a grant can do, and what it cannot.

use pg_test::prelude::*;

#[test]
fn a_reader_of_one_tenant_can_read_every_view_and_sees_its_rows_only() {
    let cluster = Cluster::start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("task", json!({"destination": "desk"}));
    ledger.exec("CREATE ROLE reader LOGIN");
    ledger.exec("SELECT command_ledger.grant_access('reader', 'audit', 'acme')");
    ledger.register_with("task", "mine", json!({"a": 1}), json!({"tenant": "acme"}));
    ledger.register_with("task", "theirs", json!({"a": 1}), json!({"tenant": "other"}));
    let mut reader = ledger.as_role("reader");
    // Whole rows: a column that nobody reads is not evaluated, and would hide a missing right.
    for view in ["timeline", "dispatch_queue"] {
        let keys: Vec<String> =
            reader.column(&format!("SELECT to_jsonb(v) ->> 'idempotency_key' FROM command_ledger.{view} v"), &[]);
        assert_eq!(keys, ["mine"], "{view}");
    }
    for view in ["reconciliation_queue", "approval_queue", "attempts"] {
        assert_eq!(
            reader.one::<i64>(&format!("SELECT count(to_jsonb(v)) FROM command_ledger.{view} v"), &[]),
            0,
            "{view}"
        );
    }
    reader.expect_sqlstate("42501", "SELECT command_ledger.register('task', 'k', '{}')");
    reader.expect_sqlstate("42501", "SELECT * FROM command_ledger.command");
}
