//! In a ledger that another place may have sent from, nothing is ended or rewritten as if it were known to be unsent.

use pg_test::erp_like::searchable;
use pg_test::prelude::*;

#[test]
fn in_a_copy_that_is_not_adopted_a_command_is_neither_cancelled_nor_rejected_nor_revised_blindly() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.define_type("gated", json!({"destination": "erp", "approval": {"separate_proposer": false}}));
    ledger.exec("select command_ledger.pause('erp')");
    for key in ["E-1", "E-2"] {
        ledger.register("requisition", key, json!({"lines": [1]}));
    }
    ledger.register("gated", "E-3", json!({"lines": [1]}));
    let dump = cluster.dump("app", DumpFormat::Plain);
    // The original goes on: one is sent, and approved and sent another.
    ledger.exec("select command_ledger.resume('erp')");
    ledger.wait_status("E-1", "confirmed");
    ledger.wait_status("E-2", "confirmed");
    let hash: String = ledger.one("select intent_hash::text from command_ledger.status('E-3')", &[]);
    ledger.call("approve", json!({"idempotency_key": "E-3", "intent_hash": hash}));
    ledger.wait_status("E-3", "confirmed");
    cluster.create_database("copy");
    cluster.restore(&dump, "copy");
    let mut copy = Ledger::over(cluster.connect("copy"));
    let sent = erp.writes().len();

    let hash: String = copy.one("select intent_hash::text from command_ledger.status('E-1')", &[]);
    let revised = json!({"idempotency_key": "E-1", "params": {"lines": [2]}, "expected_hash": hash});
    assert_eq!(copy.try_call_named("revise", revised).unwrap_err().sqlstate, "CL006", "what may have been sent");
    let cancelled = copy.call("cancel", json!({"idempotency_key": "E-2"}));
    assert_eq!(
        (cancelled.status.as_str(), cancelled.maybe_sent),
        ("needs_reconciliation", true),
        "not called cancelled"
    );
    let hash: String = copy.one("select intent_hash::text from command_ledger.status('E-3')", &[]);
    let rejected = copy.call("reject", json!({"idempotency_key": "E-3", "intent_hash": hash, "reason": "no"}));
    assert_eq!((rejected.status.as_str(), rejected.maybe_sent), ("needs_reconciliation", true), "not called failed");
    assert_eq!(erp.writes().len(), sent, "the copy sends nothing");

    // Adopted, it looks first, and finds what the original did.
    copy.exec("select command_ledger.adopt_relay()");
    for key in ["E-1", "E-2", "E-3"] {
        copy.wait_status(key, "confirmed");
        assert_eq!(erp.effects_for(key), 1, "{key}");
        assert!(copy.one::<bool>("select command_ledger.verify_journal($1)", &[&key]));
    }
    assert_eq!(erp.writes().len(), sent);
    // In a ledger that is at home, both are what they were.
    ledger.exec("select command_ledger.pause('erp')");
    ledger.register("requisition", "E-4", json!({"lines": [1]}));
    assert_eq!(ledger.call("cancel", json!({"idempotency_key": "E-4"})).status, "cancelled");
    assert_eq!(erp.effects_for("E-4"), 0);
}
