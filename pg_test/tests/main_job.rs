//! The main job, end to end: registered, sent once, confirmed by evidence; a lost answer is shown as not known and
//! looked up; a repeat is a replay, other parameters are a conflict.

use pg_test::erp_like::{deduplicating, searchable, unprotected};
use pg_test::prelude::*;

fn ledger() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).start();
    let ledger = cluster.ledger("app");
    (cluster, ledger)
}

#[test]
fn a_registered_command_is_sent_once_and_confirmed() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let receipt = ledger.register("requisition", "REQ-1", json!({"lines": [{"item": "A", "quantity": 2}]}));
    assert_eq!(receipt.outcome.as_deref(), Some("created"));
    let receipt = ledger.wait_status("REQ-1", "confirmed");
    assert_eq!(receipt.attempt, 1);
    assert!(!receipt.maybe_sent);
    assert!(receipt.destination_record_id.is_some());
    assert_eq!(erp.effects_for("REQ-1"), 1);
    assert!(ledger.one::<bool>("select command_ledger.verify_journal('REQ-1')", &[]));
    let kinds: Vec<String> =
        ledger.column("select kind from command_ledger.timeline where idempotency_key = 'REQ-1' order by seq", &[]);
    assert_eq!(kinds, ["register", "claim", "confirm"]);
}

#[test]
fn a_repeat_is_a_replay_and_other_parameters_are_a_conflict() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let first = ledger.register("requisition", "REQ-2", json!({"lines": [1, 2.50]}));
    ledger.wait_status("REQ-2", "confirmed");
    let again = ledger.register("requisition", "REQ-2", json!({"lines": [1.0, 2.5]}));
    assert_eq!(again.outcome.as_deref(), Some("replayed"));
    assert_eq!(again.command_id, first.command_id);
    assert_eq!(again.status, "confirmed");
    let refused = ledger.try_register("requisition", "REQ-2", json!({"lines": [1, 2.51]})).unwrap_err();
    assert_eq!(refused.sqlstate, "CL001");
    assert!(!refused.message.contains("2.51"));
    assert!(!refused.detail.is_empty() && !refused.hint.is_empty());
    assert_eq!(erp.effects_for("REQ-2"), 1);
}

#[test]
fn a_lost_answer_is_shown_as_unknown_and_proven_by_a_lookup() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    erp.next(drop_after_commit());
    searchable(&mut ledger, &erp, Value::Null);
    erp.set_search_lag(1_000);
    ledger.register("requisition", "REQ-3", json!({"lines": []}));
    let uncertain = ledger.wait_status("REQ-3", "needs_reconciliation");
    assert!(uncertain.maybe_sent);
    assert!(uncertain.reconciliation_required);
    assert_eq!(
        ledger.one::<i64>(
            "select count(*) from command_ledger.reconciliation_queue where idempotency_key = 'REQ-3'",
            &[]
        ),
        1
    );
    erp.set_search_lag(0);
    let confirmed = ledger.wait_status("REQ-3", "confirmed");
    assert!(!confirmed.maybe_sent);
    assert!(confirmed.destination_record_id.is_some());
    assert_eq!(erp.writes().len(), 1);
    assert_eq!(erp.effects_for("REQ-3"), 1);
    let story = ledger.text("select command_ledger.explain('REQ-3')");
    assert!(story.contains("REQ-3"), "{story}");
}

#[test]
fn what_was_never_created_is_sent_again_only_after_agreeing_lookups() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    erp.next(drop_before_commit());
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "REQ-4", json!({"lines": []}));
    let confirmed = ledger.wait_status("REQ-4", "confirmed");
    assert_eq!(confirmed.attempt, 2);
    assert_eq!(erp.effects_for("REQ-4"), 1);
    assert!(erp.lookups().len() >= 2, "{} lookups", erp.lookups().len());
}

#[test]
fn a_deduplicating_destination_gets_the_same_bytes_again() {
    let (_cluster, mut ledger) = ledger();
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    pay.next(drop_after_commit().then(answer(503, json!({"busy": true}))));
    deduplicating(&mut ledger, &pay);
    ledger.register("payment", "PAY-1", json!({"amount": 12.30}));
    let confirmed = ledger.wait_status("PAY-1", "confirmed");
    assert_eq!(confirmed.attempt, 3);
    let writes = pay.writes();
    assert_eq!(writes.len(), 3);
    assert!(writes.windows(2).all(|w| w[0].body == w[1].body));
    assert!(writes.iter().all(|w| w.header("idempotency-key") == Some("PAY-1")));
    assert_eq!(pay.effects_for("PAY-1"), 1);
}

#[test]
fn without_protection_an_uncertain_answer_waits_for_a_person() {
    let (_cluster, mut ledger) = ledger();
    let mail = Destination::start(Profile::Plain);
    mail.next(drop_after_commit());
    unprotected(&mut ledger, &mail);
    ledger.register("letter", "L-1", json!({"to": "x"}));
    let uncertain = ledger.wait_status("L-1", "needs_reconciliation");
    assert!(uncertain.maybe_sent);
    let next: String = ledger
        .one("select suggested_next_step from command_ledger.reconciliation_queue where idempotency_key = 'L-1'", &[]);
    assert!(next.contains("command_ledger.reconcile("), "{next}");
    let found = ledger
        .call("reconcile", json!({"idempotency_key": "L-1", "finding": "found", "destination_record_id": "M-77"}));
    assert_eq!(found.status, "confirmed");
    assert_eq!(found.destination_record_id.as_deref(), Some("M-77"));
    assert_eq!(mail.writes().len(), 1);
}

#[test]
fn a_rolled_back_registration_is_never_sent() {
    let (cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    let mut other = cluster.connect("app");
    other.exec("begin");
    other.exec("select command_ledger.register('requisition', 'REQ-5', '{\"lines\": []}')");
    other.exec("rollback");
    ledger.register("requisition", "REQ-6", json!({"lines": []}));
    ledger.wait_status("REQ-6", "confirmed");
    assert!(ledger.find("REQ-5").is_none());
    assert_eq!(erp.effects_for("REQ-5"), 0);
}

#[test]
fn bad_input_is_a_clear_error_and_loses_nothing() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    for (sqlstate, sql) in [
        ("CL003", "select command_ledger.register('nothing', 'k', '{}')"),
        ("CL002", "select command_ledger.register('requisition', '', '{}')"),
        ("CL002", "select command_ledger.register('requisition', repeat('k', 300), '{}')"),
        ("CL002", "select command_ledger.register('requisition', ' k', '{}')"),
        ("22004", "select command_ledger.register('requisition', 'k', null)"),
        ("22004", "select command_ledger.register('requisition', null, '{}')"),
        ("CL004", "select command_ledger.register('requisition', 'k', '[1]')"),
        ("CL014", "select command_ledger.register('requisition', 'k', '{\"n\": 1e131071}')"),
        (
            "CL012",
            "select command_ledger.define_destination('x', '{\"transport\": \"http\", \"request\": {\"url\": \"http://h/\"}, \"colour\": 1}')",
        ),
        (
            "CL012",
            "select command_ledger.define_destination('x', '{\"transport\": \"http\", \"request\": {\"url\": \"ftp://h/\"}}')",
        ),
        (
            "CL012",
            "select command_ledger.define_command_type('x', '{\"destination\": \"erp\", \"deny_when\": \"$.a >\"}')",
        ),
        ("CL003", "select command_ledger.define_command_type('x', '{\"destination\": \"none\"}')"),
        ("CL011", "select command_ledger.cancel('unknown')"),
    ] {
        let error = ledger.expect_sqlstate(sqlstate, sql);
        assert!(!error.message.is_empty());
        if sqlstate.starts_with("CL") {
            assert!(!error.hint.is_empty(), "{sql}: {error:?}");
        }
    }
    let good = ledger.register("requisition", "k", json!({"lines": []}));
    assert_eq!(good.outcome.as_deref(), Some("created"), "a refused registration leaves the key free");
    ledger.wait_status("k", "confirmed");
}

#[test]
fn the_tables_are_written_by_the_functions_only_even_for_their_owner() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "REQ-10", json!({"lines": []}));
    ledger.wait_status("REQ-10", "confirmed");
    for sql in [
        "update command_ledger.command set params = '{}'",
        "delete from command_ledger.command",
        "update command_ledger.command_event set kind = 'x'",
        "delete from command_ledger.command_event",
        "insert into command_ledger.access values ('postgres', 'audit', null, null, now(), 'me')",
        "update command_ledger.relay_fence set timeline = 7",
        "truncate command_ledger.outbox",
        "truncate command_ledger.command cascade",
    ] {
        let error = ledger.expect_sqlstate("CL006", sql);
        assert!(!error.detail.is_empty() && !error.hint.is_empty());
    }
    assert!(ledger.one::<bool>("select command_ledger.verify_journal('REQ-10')", &[]));
}

#[test]
fn an_unreachable_destination_is_not_sent_and_fails_within_its_budget() {
    let (_cluster, mut ledger) = ledger();
    let erp = Destination::start(Profile::Plain);
    erp.refuse_connections();
    searchable(
        &mut ledger,
        &erp,
        json!({"destination": "erp", "retry": {"base": "10ms", "cap": "20ms", "max_attempts": 3}}),
    );
    ledger.register("requisition", "REQ-7", json!({"lines": []}));
    let failed = ledger.wait_status("REQ-7", "failed");
    assert_eq!(failed.attempt, 3);
    assert!(!failed.maybe_sent);
    assert_eq!(failed.error.as_deref(), Some("budget_exhausted"));
    assert_eq!(erp.effects_for("REQ-7"), 0);
}

#[test]
fn a_missing_secret_is_said_and_nothing_is_lost() {
    let cluster = Cluster::builder().preload(true).start();
    cluster.make_directory("secrets");
    let directory = cluster.directory().join("secrets");
    cluster.set("command_ledger.secrets_directory", directory.to_str().unwrap());
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    ledger.define_http_destination(
        "erp",
        &erp.url("/records"),
        json!({
            "request": {"auth": {"bearer": {"secret": "erp_token"}}},
            "success": {"record_id": "$.id"},
        }),
    );
    ledger.define_type("requisition", json!({"destination": "erp"}));
    ledger.register("requisition", "REQ-8", json!({"a": 1}));
    ledger.wait_until(
        "select error = 'not_sent' and error_message like '%erp_token%' from command_ledger.status('REQ-8')",
        20,
    );
    assert!(!ledger.one::<bool>("select ok from command_ledger.health() where check_name = 'secrets'", &[]));
    assert_eq!(erp.requests().len(), 0);
    let receipt = ledger.status("REQ-8");
    assert_eq!(receipt.status, "approved");
}

#[test]
fn the_relay_runs_without_preloading_too() {
    let cluster = Cluster::builder().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    searchable(&mut ledger, &erp, Value::Null);
    ledger.register("requisition", "REQ-9", json!({"lines": []}));
    let said = ledger.text("select command_ledger.start_relay()");
    assert!(!said.is_empty());
    ledger.wait_status("REQ-9", "confirmed");
    assert!(!ledger.one::<bool>("select ok from command_ledger.health() where check_name = 'preloaded'", &[]));
    ledger.text("select command_ledger.stop_relay()");
    assert_eq!(erp.effects_for("REQ-9"), 1);
}
