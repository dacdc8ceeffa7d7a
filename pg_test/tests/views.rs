//! What the views of the audit say: runs and whether they recovered by themselves, records too many.

use pg_test::prelude::*;

fn ledger() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("note", json!({"destination": "desk", "retry": {"base": "1ms", "cap": "1ms"}}));
    (cluster, ledger)
}

fn register(ledger: &mut Ledger, key: &str, run: &str) {
    ledger.register_with("note", key, json!({"key": key}), json!({"run_id": run}));
}

/// Claims the one command that is due; its lease token.
fn claim(ledger: &mut Ledger, key: &str) -> String {
    ledger.wait_until(&format!("select exists (select from command_ledger.dispatch_queue where idempotency_key = '{key}' and state = 'due')"), 20);
    let claimed = ledger.table("select idempotency_key, lease_token from command_ledger.claim('desk')").remove(0);
    assert_eq!(claimed[0].as_deref(), Some(key));
    claimed[1].clone().unwrap()
}

fn confirm(ledger: &mut Ledger, key: &str, token: &str, record: &str) -> Receipt {
    let named = json!({"idempotency_key": key, "lease_token": token, "destination_record_id": record});
    ledger.call("confirm", named)
}

fn uncertain(ledger: &mut Ledger, key: &str) -> String {
    let token = claim(ledger, key);
    let receipt = ledger.call("uncertain", json!({"idempotency_key": key, "lease_token": token}));
    assert_eq!(receipt.status, "needs_reconciliation");
    token
}

fn run(ledger: &mut Ledger, run: &str) -> Vec<Option<String>> {
    let sql =
        format!("select state, disturbed, recovered_without_person from command_ledger.runs where run_id = '{run}'");
    ledger.table(&sql).remove(0)
}

fn texts(values: [&str; 3]) -> Vec<Option<String>> {
    values.into_iter().map(|v| (v != "null").then(|| v.to_owned())).collect()
}

#[test]
fn a_run_says_whether_it_was_disturbed_and_recovered_by_itself() {
    let (_cluster, mut ledger) = ledger();
    register(&mut ledger, "plain", "r-plain");
    assert_eq!(run(&mut ledger, "r-plain"), texts(["running", "f", "null"]));
    let token = claim(&mut ledger, "plain");
    confirm(&mut ledger, "plain", &token, "R-1");
    assert_eq!(run(&mut ledger, "r-plain"), texts(["done", "f", "null"]));

    register(&mut ledger, "again", "r-again");
    let token = claim(&mut ledger, "again");
    let transient = json!({"idempotency_key": "again", "lease_token": token, "error": "transient"});
    ledger.call("fail", transient);
    assert_eq!(run(&mut ledger, "r-again"), texts(["running", "t", "null"]));
    let token = claim(&mut ledger, "again");
    confirm(&mut ledger, "again", &token, "R-2");
    assert_eq!(run(&mut ledger, "r-again"), texts(["done", "t", "t"]));

    register(&mut ledger, "asked", "r-asked");
    uncertain(&mut ledger, "asked");
    assert_eq!(run(&mut ledger, "r-asked"), texts(["needs_person", "t", "null"]));
    ledger.call("reconcile", json!({"idempotency_key": "asked", "finding": "found", "destination_record_id": "R-3"}));
    assert_eq!(run(&mut ledger, "r-asked"), texts(["done", "t", "f"]));

    register(&mut ledger, "refused", "r-refused");
    let token = claim(&mut ledger, "refused");
    ledger.call("fail", json!({"idempotency_key": "refused", "lease_token": token, "error": "permanent"}));
    assert_eq!(run(&mut ledger, "r-refused"), texts(["failed", "f", "null"]));

    register(&mut ledger, "withdrawn", "r-withdrawn");
    ledger.call("cancel", json!({"idempotency_key": "withdrawn"}));
    assert_eq!(run(&mut ledger, "r-withdrawn"), texts(["cancelled", "f", "null"]));
}

#[test]
fn two_records_of_one_command_are_shown_with_both_ids() {
    let (_cluster, mut ledger) = ledger();
    register(&mut ledger, "twice", "r");
    let first = uncertain(&mut ledger, "twice");
    ledger.call("reconcile", json!({"idempotency_key": "twice", "finding": "not_found"}));
    let second = claim(&mut ledger, "twice");
    confirm(&mut ledger, "twice", &second, "R-2");
    assert_eq!(ledger.one::<i64>("select count(*) from command_ledger.duplicate_records", &[]), 0);
    assert_eq!(confirm(&mut ledger, "twice", &first, "R-1").outcome.as_deref(), Some("late"));
    let shown = "select kind, idempotency_keys, record_ids, is_open from command_ledger.duplicate_records";
    let expected = [Some("two_records_of_one_command"), Some("{twice}"), Some("{R-1,R-2}"), Some("t")];
    assert_eq!(ledger.table(shown), [expected.map(|t| t.map(str::to_owned)).to_vec()]);
    assert_eq!(
        ledger.one::<f64>("select value from command_ledger.metrics where name = 'command_ledger_open_cases'", &[]),
        1.0
    );
    ledger.call("reconcile", json!({"idempotency_key": "twice", "finding": "found", "expected_attempt": 2}));
    assert!(!ledger.one::<bool>("select is_open from command_ledger.duplicate_records", &[]));
}

#[test]
fn one_record_of_two_commands_is_shown_with_both_keys() {
    let (_cluster, mut ledger) = ledger();
    for key in ["first", "second"] {
        register(&mut ledger, key, "r");
        let token = claim(&mut ledger, key);
        confirm(&mut ledger, key, &token, "R-7");
    }
    let shown = "select kind, idempotency_keys, record_ids from command_ledger.duplicate_records";
    let expected = [Some("one_record_of_two_commands"), Some("{first,second}"), Some("{R-7}")];
    assert_eq!(ledger.table(shown), [expected.map(|t| t.map(str::to_owned)).to_vec()]);
}
