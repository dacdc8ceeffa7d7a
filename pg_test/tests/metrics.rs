//! The figures: each is shown to follow what happened, and what they cost does not grow with the commands.

use pg_test::erp_like::searchable;
use pg_test::prelude::*;

fn ledger() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("note", json!({"destination": "desk", "retry": {"base": "1ms", "cap": "1ms"}}));
    (cluster, ledger)
}

/// The sum over all rows of one name, or of those whose labels contain `labels`.
fn metric(ledger: &mut Ledger, name: &str, labels: Value) -> f64 {
    let sql = "select coalesce(sum(value), -1) from command_ledger.metrics where name = $1 and labels @> $2";
    ledger.one(sql, &[&format!("command_ledger_{name}"), &Lit(&labels.to_string())])
}

fn register(ledger: &mut Ledger, key: &str, run: &str) {
    ledger.register_with("note", key, json!({"key": key}), json!({"run_id": run}));
}

fn claim(ledger: &mut Ledger, key: &str) -> String {
    let due = format!(
        "select exists (select from command_ledger.dispatch_queue where idempotency_key = '{key}' and state = 'due')"
    );
    ledger.wait_until(&due, 20);
    let claimed = ledger.table("select idempotency_key, lease_token from command_ledger.claim('desk')").remove(0);
    assert_eq!(claimed[0].as_deref(), Some(key));
    claimed[1].clone().unwrap()
}

fn confirm(ledger: &mut Ledger, key: &str, token: &str, record: &str) {
    let named = json!({"idempotency_key": key, "lease_token": token, "destination_record_id": record});
    ledger.call("confirm", named);
}

fn uncertain(ledger: &mut Ledger, key: &str) -> String {
    let token = claim(ledger, key);
    ledger.call("uncertain", json!({"idempotency_key": key, "lease_token": token}));
    token
}

#[test]
fn the_three_measures_follow_what_happened_to_the_runs() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    // Nothing has happened yet: every figure that must be 0 is there, and 0.
    for (name, labels) in [
        ("uncertain", json!({"destination": "desk"})),
        ("oldest_uncertain_seconds", json!({})),
        ("duplicate_records", json!({"state": "open"})),
        ("disturbed_runs", json!({"state": "recovered"})),
        ("closed_cases", json!({"by": "person"})),
        ("cases_for_people", json!({})),
    ] {
        assert_eq!(metric(&mut ledger, name, labels), 0.0, "{name}");
    }
    assert_eq!(
        ledger.table(
            "select recovered_share, duplicate_records, uncertain, oldest_uncertain from command_ledger.measures"
        ),
        [vec![None, Some("0".to_owned()), Some("0".to_owned()), None]]
    );

    // An undisturbed run counts nowhere; a lost answer that a lookup settles recovers without a person.
    ledger.register_with("requisition", "calm", json!({"lines": []}), json!({"run_id": "r-calm"}));
    ledger.wait_status("calm", "confirmed");
    erp.next(drop_after_commit());
    ledger.register_with("requisition", "lost", json!({"lines": []}), json!({"run_id": "r-lost"}));
    ledger.wait_status("lost", "confirmed");
    assert_eq!(erp.effects_for("lost"), 1);
    assert_eq!(metric(&mut ledger, "disturbed_runs", json!({"state": "recovered"})), 1.0);
    assert_eq!(metric(&mut ledger, "disturbed_runs", json!({"state": "not_recovered"})), 0.0);
    assert_eq!(metric(&mut ledger, "closed_cases", json!({"by": "ledger"})), 1.0);
    assert!(metric(&mut ledger, "reconciliation_seconds", json!({"quantile": "1"})) > 0.0);

    // What is not known is counted until a person says what was found.
    register(&mut ledger, "asked", "r-asked");
    uncertain(&mut ledger, "asked");
    assert_eq!(metric(&mut ledger, "uncertain", json!({"destination": "desk"})), 1.0);
    assert!(metric(&mut ledger, "oldest_uncertain_seconds", json!({})) > 0.0);
    assert_eq!(metric(&mut ledger, "cases_for_people", json!({})), 1.0);
    assert_eq!(metric(&mut ledger, "disturbed_runs", json!({"state": "open"})), 1.0);
    assert!(
        ledger
            .one::<bool>("select uncertain = 1 and oldest_uncertain > interval '0' from command_ledger.measures", &[])
    );
    let found = json!({"idempotency_key": "asked", "finding": "found", "destination_record_id": "N-1"});
    ledger.call("reconcile", found);
    assert_eq!(metric(&mut ledger, "uncertain", json!({})), 0.0);
    assert_eq!(metric(&mut ledger, "oldest_uncertain_seconds", json!({})), 0.0);
    assert_eq!(metric(&mut ledger, "closed_cases", json!({"by": "person"})), 1.0);
    assert_eq!(metric(&mut ledger, "disturbed_runs", json!({"state": "not_recovered"})), 1.0);
    assert_eq!(metric(&mut ledger, "disturbed_runs", json!({"state": "open"})), 0.0);

    // The report: one of two disturbed runs recovered by itself.
    let report = "select disturbed_runs, recovered_runs, recovered_share, duplicate_records, uncertain, confirmed, \
                         most_attempts, questions, closed_by_person from command_ledger.measures";
    let expected = ["2", "1", "0.5", "0", "0", "3", "1", "2", "1"];
    assert_eq!(ledger.table(report), [expected.map(|t| Some(t.to_owned())).to_vec()]);
}

#[test]
fn a_record_too_many_is_counted_while_its_case_is_open_and_after() {
    let (_cluster, mut ledger) = ledger();
    register(&mut ledger, "twice", "r");
    let first = uncertain(&mut ledger, "twice");
    ledger.call("reconcile", json!({"idempotency_key": "twice", "finding": "not_found"}));
    let second = claim(&mut ledger, "twice");
    assert_eq!(metric(&mut ledger, "open_attempts", json!({"destination": "desk"})), 2.0);
    confirm(&mut ledger, "twice", &second, "N-2");
    confirm(&mut ledger, "twice", &first, "N-1");
    assert_eq!(metric(&mut ledger, "duplicate_records", json!({"state": "open"})), 1.0);
    ledger.call("reconcile", json!({"idempotency_key": "twice", "finding": "found", "expected_attempt": 2}));
    assert_eq!(metric(&mut ledger, "duplicate_records", json!({"state": "open"})), 0.0);
    assert_eq!(metric(&mut ledger, "duplicate_records", json!({"state": "closed"})), 1.0);
    assert_eq!(ledger.one::<i64>("select duplicate_records from command_ledger.measures", &[]), 1);
}

#[test]
fn several_records_under_one_key_count_as_a_record_too_many() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    // Somebody else wrote a record under this key, past the ledger.
    pg_test::http::post_json(&erp.url("/records"), &json!({"reference": "mine"})).expect("stored");
    erp.next(drop_after_commit());
    ledger.register("requisition", "mine", json!({"lines": []}));
    ledger.wait_until(
        "select count(*) = 1 from command_ledger.reconciliation_queue where reason = 'lookup_ambiguous'",
        30,
    );
    assert_eq!(erp.effects_for("mine"), 2);
    ledger.wait_until(
        "select sum(value) = 1 from command_ledger.metrics where name = 'command_ledger_duplicate_records'",
        30,
    );
    let ids: i32 = ledger.one("select cardinality(record_ids) from command_ledger.duplicate_records", &[]);
    assert_eq!(ids, 2);
}

#[test]
fn what_was_prevented_and_what_the_relay_did_is_counted() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(
        &mut ledger,
        &erp,
        json!({"destination": "erp", "lookalike": {"window": "10m", "action": "block"},
               "retry": {"base": "10ms", "cap": "20ms"}}),
    );
    ledger.register("requisition", "a", json!({"lines": [1]}));
    ledger.wait_status("a", "confirmed");
    ledger.register("requisition", "a", json!({"lines": [1]}));
    ledger.register("requisition", "a", json!({"lines": [1]}));
    assert_eq!(ledger.try_register("requisition", "a", json!({"lines": [2]})).unwrap_err().sqlstate, "CL001");
    assert_eq!(ledger.try_register("requisition", "b", json!({"lines": [1]})).unwrap_err().sqlstate, "CL010");
    erp.next(drop_before_commit());
    ledger.register("requisition", "c", json!({"lines": [3]}));
    ledger.wait_status("c", "confirmed");
    for (what, count) in
        [("replays_answered", 2.0), ("conflicts_refused", 1.0), ("lookalikes_stopped", 1.0), ("repeats_not_sent", 1.0)]
    {
        assert_eq!(metric(&mut ledger, "prevented_total", json!({"what": what})), count, "{what}");
    }
    assert_eq!(metric(&mut ledger, "relay_attempts_total", json!({})), erp.writes().len() as f64);
    assert_eq!(metric(&mut ledger, "relay_ends_total", json!({})), erp.writes().len() as f64);
    assert!(metric(&mut ledger, "relay_attempt_seconds_total", json!({})) > 0.0);
    assert_eq!(metric(&mut ledger, "queued", json!({})), 0.0);
    assert!(metric(&mut ledger, "table_bytes", json!({"table": "outbox"})) > 0.0);
    assert!(metric(&mut ledger, "table_bytes", json!({"table": "command"})) > 0.0);
    assert!(metric(&mut ledger, "dead_rows", json!({"table": "outbox"})) >= 0.0);
}

#[test]
fn approvals_that_wait_and_that_lapsed_are_counted() {
    let (_cluster, mut ledger) = ledger();
    ledger.define_type("order", json!({"destination": "desk", "approval": {"ttl": "1h"}}));
    ledger.exec("create role proposer; create role approver");
    ledger.exec(
        "select command_ledger.grant_access('proposer', 'propose'), command_ledger.grant_access('approver', 'approve')",
    );
    ledger.exec("set role proposer");
    ledger.register("order", "waits", json!({}));
    let intent = ledger.register("order", "lapses", json!({})).intent_hash.unwrap();
    ledger.exec("reset role");
    assert_eq!(metric(&mut ledger, "approvals_waiting", json!({})), 2.0);
    assert_eq!(metric(&mut ledger, "approvals_lapsed", json!({})), 0.0);
    ledger.exec("select command_ledger.pause('desk')");
    ledger.exec("set role approver");
    let approve = json!({"idempotency_key": "lapses", "intent_hash": intent, "expires_in": "200 ms"});
    assert_eq!(ledger.call("approve", approve).status, "approved");
    ledger.exec("reset role");
    assert_eq!(metric(&mut ledger, "approvals_waiting", json!({})), 1.0);
    ledger.exec("select command_ledger.resume('desk')");
    // The sweep of the next claim or of the relay finds that it has run out.
    ledger.wait_until("select status = 'planned' from command_ledger.status('lapses')", 30);
    assert_eq!(metric(&mut ledger, "approvals_waiting", json!({})), 2.0);
    assert_eq!(metric(&mut ledger, "approvals_lapsed", json!({})), 1.0);
    assert!(metric(&mut ledger, "oldest_approval_seconds", json!({})) > 0.0);
    assert_eq!(ledger.one::<i64>("select approvals_lapsed from command_ledger.measures", &[]), 1);
}

#[test]
fn the_figures_reach_the_record_by_its_key_and_never_scan_it() {
    let (_cluster, mut ledger) = ledger();
    ledger.exec(
        "select command_ledger.register('note', 'many-' || i, '{}', run_id => 'run-' || i) from generate_series(1, 3000) i",
    );
    ledger.exec(
        "analyze command_ledger.command; analyze command_ledger.outbox; analyze command_ledger.reconciliation_case",
    );
    // Open questions reach their commands one by one, whatever the planner believes of a small ledger.
    let plan: Vec<String> = ledger.column("explain select * from command_ledger.destination_status", &[]);
    assert!(plan.iter().any(|line| line.contains("Index Cond") && line.contains("q.idempotency_key")), "{plan:#?}");
    ledger.exec("set enable_seqscan = off");
    // With sequential scans priced out, whoever still needs one has no other way.
    let plan: Vec<String> = ledger.column("explain select * from command_ledger.metrics", &[]);
    let scans: Vec<_> = plan
        .iter()
        .filter(|line| line.contains("Seq Scan on command ") || line.contains("Seq Scan on command_event"))
        .collect();
    assert!(scans.is_empty(), "{}", plan.join("\n"));
    // Of the runs, those with a question are read one by one, not all of them.
    let by_run = |line: &String| line.contains("Index Cond") && line.contains("run_id = ");
    assert!(plan.iter().any(by_run), "{}", plan.join("\n"));
    // The report reads the commands of all runs, once; what is uncertain it finds by what is open.
    let plan: Vec<String> = ledger
        .column("explain select uncertain, oldest_uncertain, duplicate_records from command_ledger.measures", &[]);
    let whole = |pair: &[String]| {
        pair[0].contains("Seq Scan on command ")
            || (pair[0].contains("using command_pkey") && !pair[1].contains("Index Cond"))
    };
    assert!(plan.windows(2).filter(|pair| whole(pair)).count() <= 1, "{}", plan.join("\n"));
}
