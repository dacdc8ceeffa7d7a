//! The questions that a buyer asks first, one test each, by the names that they are asked under: what comes of a
//! command when this happens? Each looks at what the destination holds and at what the ledger says.

use pg_test::desk::{Job, confirm, say};
use pg_test::prelude::*;
use std::sync::LazyLock;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    cluster.ledger("app");
    cluster
});

/// A destination of this name, a command type of the same name, and a session. `kind` is the destination's part of the
/// definition.
fn scene(name: &str, destination: Destination, kind: Value) -> (Ledger, Destination) {
    let mut ledger = Ledger::over(CLUSTER.connect("app"));
    define(&mut ledger, name, &destination, kind);
    (ledger, destination)
}

fn define(ledger: &mut Ledger, name: &str, destination: &Destination, kind: Value) {
    ledger.define_http_destination(name, &destination.url("/records"), kind);
    define_type(ledger, name, json!({}));
}

fn define_type(ledger: &mut Ledger, name: &str, mut policy: Value) {
    policy["destination"] = json!(name);
    policy["retry"] = json!({"base": "10ms", "cap": "20ms"});
    ledger.define_type(name, policy);
}

/// Deduplicates on a header for a day.
fn by_key() -> Value {
    json!({"idempotency": {"mode": "key", "window": "24h"}, "success": {"record_id": "$.id"}})
}

/// Makes a record of every request, and can be searched by reference.
fn by_search(destination: &Destination) -> Value {
    json!({
        "request": {"body": {"reference": "{{ destination_key }}", "amount": "{{ params.amount }}"}, "timeout": "2s"},
        "success": {"record_id": "$.id"},
        "lookup": {"url": format!("{}?reference={{{{ destination_key }}}}", destination.url("/records")),
                   "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                   "settle_delay": "200ms", "agreeing": 2, "interval": "100ms"},
    })
}

/// Confirmed by the one record that the destination has, with a whole journal.
fn assert_one_effect(ledger: &mut Ledger, destination: &Destination, key: &str) -> Receipt {
    let receipt = ledger.wait_status(key, "confirmed");
    assert_eq!(destination.effects_for(key), 1, "{key} at the destination");
    let made = destination.records().into_iter().find(|r| [&r.key, &r.reference].contains(&&Some(key.to_owned())));
    assert_eq!(receipt.destination_record_id, made.map(|r| r.id), "{key}: the record that proves it");
    assert!(!receipt.maybe_sent && !receipt.reconciliation_required, "{receipt:?}");
    assert!(ledger.one::<bool>("select command_ledger.verify_journal($1)", &[&key]));
    receipt
}

fn kinds(ledger: &mut Ledger, key: &str) -> Vec<String> {
    ledger.column("select kind from command_ledger.timeline where idempotency_key = $1 order by seq", &[&key])
}

fn order() -> Value {
    json!({"amount": 12.50})
}

#[test]
fn the_connection_drops_right_after_dispatch() {
    let (mut ledger, pay) = scene("drop-key", Destination::start(Profile::deduplicating("Idempotency-Key")), by_key());
    pay.next(drop_before_commit());
    ledger.register("drop-key", "drop-1", order());
    assert_eq!(assert_one_effect(&mut ledger, &pay, "drop-1").attempt, 2, "the same bytes again, by key");
    assert_eq!(pay.writes()[0].body, pay.writes()[1].body);

    let erp = Destination::start(Profile::Plain);
    let kind = by_search(&erp);
    let (mut ledger, erp) = scene("drop-search", erp, kind);
    erp.next(drop_before_commit());
    ledger.register("drop-search", "drop-2", order());
    assert_eq!(assert_one_effect(&mut ledger, &erp, "drop-2").attempt, 2);
    let path = kinds(&mut ledger, "drop-2");
    assert_eq!(path, ["register", "claim", "uncertain", "lookup_absent", "claim", "confirm"], "looked up before");
}

#[test]
fn the_answer_is_lost_after_a_successful_write() {
    let (mut ledger, pay) = scene("lost-key", Destination::start(Profile::deduplicating("Idempotency-Key")), by_key());
    pay.next(drop_after_commit());
    ledger.register("lost-key", "lost-1", order());
    assert_eq!(assert_one_effect(&mut ledger, &pay, "lost-1").attempt, 2);
    assert_eq!(pay.writes().len(), 2, "asked again by the same key, and recognised");

    let erp = Destination::start(Profile::Plain);
    let kind = by_search(&erp);
    let (mut ledger, erp) = scene("lost-search", erp, kind);
    erp.next(drop_after_commit());
    ledger.register("lost-search", "lost-2", order());
    assert_eq!(assert_one_effect(&mut ledger, &erp, "lost-2").attempt, 1);
    assert_eq!(erp.writes().len(), 1, "found, and never sent again");
    assert_eq!(kinds(&mut ledger, "lost-2"), ["register", "claim", "uncertain", "lookup_found"]);

    let mail = Destination::start(Profile::Plain);
    let (mut ledger, mail) =
        scene("lost-mail", mail, json!({"request": {"body": {"reference": "{{ destination_key }}"}}}));
    mail.next(drop_after_commit());
    ledger.register("lost-mail", "lost-3", order());
    let open = ledger.wait_status("lost-3", "needs_reconciliation");
    assert!(open.maybe_sent && open.reconciliation_required, "neither success nor failure: {open:?}");
    assert_eq!((mail.writes().len(), mail.effects_for("lost-3")), (1, 1));
}

#[test]
fn the_same_key_comes_twice() {
    let (mut ledger, pay) =
        scene("twice", Destination::start(Profile::Plain), json!({"success": {"record_id": "$.id"}}));
    let first = ledger.register("twice", "twice-1", json!({"amount": 12.50, "reference": "twice-1"}));
    let second = ledger.register("twice", "twice-1", json!({"reference": "twice-1", "amount": 12.5}));
    assert_eq!((first.outcome.as_deref(), second.outcome.as_deref()), (Some("created"), Some("replayed")));
    let confirmed = assert_one_effect(&mut ledger, &pay, "twice-1");
    let third = ledger.register("twice", "twice-1", json!({"amount": 12.50, "reference": "twice-1"}));
    assert_eq!(third.destination_record_id, confirmed.destination_record_id, "a repeat is answered with the record");
    assert_eq!((third.command_id, pay.writes().len()), (first.command_id, 1));
}

#[test]
fn the_same_key_comes_with_changed_parameters() {
    let (mut ledger, pay) = scene("changed", Destination::start(Profile::Plain), json!({}));
    let params = |amount: f64| json!({"amount": amount, "reference": "changed-1"});
    ledger.register("changed", "changed-1", params(12.50));
    for _ in ["before it is settled, or after", "after"] {
        let refused = ledger.try_register("changed", "changed-1", params(99.75)).unwrap_err();
        assert_eq!(refused.sqlstate, "CL001");
        assert!(!refused.message.contains("99.75"), "{refused:?}");
        ledger.wait_status("changed-1", "confirmed");
    }
    assert_eq!((pay.writes().len(), pay.effects_for("changed-1")), (1, 1));
    assert!(!String::from_utf8_lossy(&pay.writes()[0].body).contains("99.75"));
    assert_eq!(kinds(&mut ledger, "changed-1"), ["register", "claim", "confirm"]);
}

#[test]
fn two_deliveries_run_at_once() {
    let (mut ledger, pay) =
        scene("at-once", Destination::start(Profile::Plain), json!({"success": {"record_id": "$.id"}}));
    let params = r#"{"amount": 1, "reference": "at-once-1"}"#;
    let outcomes = CLUSTER.in_parallel("app", 16, |_, session| {
        session.text(&format!("select outcome from command_ledger.register('at-once', 'at-once-1', '{params}')"))
    });
    assert_eq!(outcomes.iter().filter(|o| *o == "created").count(), 1, "{outcomes:?}");
    assert_one_effect(&mut ledger, &pay, "at-once-1");
    assert_eq!(pay.writes().len(), 1);

    // And two workers that ask for the same work.
    ledger.define_destination("shift", json!({"transport": "pull"}));
    define_type(&mut ledger, "shift", json!({}));
    ledger.register("shift", "at-once-2", order());
    let claimed: i64 = CLUSTER
        .in_parallel("app", 8, |_, s| s.one::<i64>("select count(*) from command_ledger.claim('shift')", &[]))
        .into_iter()
        .sum();
    assert_eq!((claimed, ledger.status("at-once-2").attempt), (1, 1));
}

#[test]
fn a_retry_comes_with_altered_fields() {
    let (mut ledger, pay) = scene("altered", Destination::start(Profile::deduplicating("Idempotency-Key")), by_key());
    pay.next(drop_after_commit());
    pay.otherwise(hang());
    ledger.register("altered", "altered-1", order());
    pay.wait_for_held(1);
    let mut edited = by_key();
    edited["request"] = json!({"body": {"amount": "{{ params.amount }}", "currency": "EUR"}});
    ledger.define_http_destination("altered", &pay.url("/records"), edited);
    pay.otherwise(accept());
    pay.close_connections();
    let open = ledger.wait_status("altered-1", "needs_reconciliation");
    assert!(open.maybe_sent, "{open:?}");
    let reason: String = ledger.one(
        "select reason::text from command_ledger.reconciliation_case where idempotency_key = 'altered-1' and closed_at is null",
        &[],
    );
    assert_eq!((reason.as_str(), pay.effects_for("altered-1")), ("request_changed", 1));
    assert!(pay.writes().iter().all(|w| w.body == pay.writes()[0].body), "no other request ever left under this key");
    // The caller's own retry with other fields is refused, too.
    let refused = ledger.try_register("altered", "altered-1", json!({"amount": 13})).unwrap_err();
    assert_eq!(refused.sqlstate, "CL001");
}

#[test]
fn the_window_of_the_destination_is_over() {
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    let mut short = by_key();
    short["idempotency"] = json!({"mode": "key", "window": "1s", "margin": "0ms"});
    let (mut ledger, pay) = scene("window", pay, short);
    pay.next(answer(503, json!({})).after_commit());
    ledger.register("window", "window-1", order());
    let open = ledger.wait_status("window-1", "needs_reconciliation");
    assert!(open.maybe_sent, "{open:?}");
    assert!(kinds(&mut ledger, "window-1").iter().filter(|k| *k == "claim").count() == 1);
    assert_eq!((pay.writes().len(), pay.effects_for("window-1")), (1, 1), "no repeat that might make a second record");
}

#[test]
fn an_old_answer_comes_after_a_new_attempt_began() {
    let mut ledger = Ledger::over(CLUSTER.connect("app"));
    ledger.define_destination(
        "late",
        json!({"transport": "pull", "idempotency": {"mode": "reference", "window": "unlimited"}}),
    );
    define_type(&mut ledger, "late", json!({}));
    ledger.register("late", "late-1", order());
    let claim = |ledger: &mut Ledger| {
        ledger.wait_until(
            "select bool_or(due_at <= clock_timestamp()) from command_ledger.dispatch_queue where destination = 'late'",
            10,
        );
        let row = ledger.row("select lease_token::text, attempt from command_ledger.claim('late')", &[]);
        Job { key: "late-1".into(), token: row.get(0), attempt: row.get(1) }
    };
    let first = claim(&mut ledger);
    say(&mut ledger, "uncertain", &first);
    let second = claim(&mut ledger);
    let late = confirm(&mut ledger, &first, "R-old");
    assert_eq!((late.status.as_str(), late.outcome.as_deref(), late.attempt), ("dispatched", Some("late"), 2));
    assert_eq!(confirm(&mut ledger, &second, "R-old").status, "confirmed", "the newer attempt ends as itself");
    let settled = ledger.status("late-1");
    assert_eq!((settled.destination_record_id.as_deref(), settled.reconciliation_required), (Some("R-old"), false));
    assert_eq!(
        kinds(&mut ledger, "late-1"),
        ["register", "claim", "safe_repeat", "claim", "late_success", "confirm"],
        "and the old answer is kept"
    );
}

#[test]
fn a_new_version_of_the_workflow_recovers_what_the_old_one_began() {
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    let (mut ledger, pay) = scene("version", pay, by_key());
    let named = |version: &str| json!({"run_id": "run-1", "step_id": "pay", "workflow_version": version});
    pay.next(drop_after_commit());
    ledger.exec("select command_ledger.pause('version')");
    let first = ledger.register_with("version", "version-1", order(), named("1"));
    // The deployment changes the type: a schema that the old params would not meet, and a ban.
    define_type(
        &mut ledger,
        "version",
        json!({"schema": {"type": "object", "required": ["currency"]}, "deny_when": "$.amount > 1"}),
    );
    let again = ledger.register_with("version", "version-1", order(), named("2"));
    assert_eq!((again.outcome.as_deref(), again.type_version), (Some("replayed"), first.type_version));
    ledger.exec("select command_ledger.resume('version')");
    let done = assert_one_effect(&mut ledger, &pay, "version-1");
    assert_eq!((done.type_version, done.attempt), (first.type_version, 2));
    let after = ledger.register_with("version", "version-1", order(), named("3"));
    assert_eq!(after.destination_record_id, done.destination_record_id, "the record, whichever version asks");
    assert_eq!(ledger.try_register("version", "version-2", order()).unwrap_err().sqlstate, "CL004", "new keys only");
}

/// Stops the worker of the ledger at one point (or lets `begin` wait for it), kills the server there, and starts again.
fn killed_at(
    name: &str,
    at: Option<&str>,
    begin: impl FnOnce(&mut Ledger, &Destination),
) -> (Cluster, Ledger, Destination) {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    define(&mut ledger, name, &pay, by_key());
    if let Some(point) = at {
        ledger.failpoint(point, "hang");
    }
    begin(&mut ledger, &pay);
    cluster.kill9_postmaster();
    cluster.append_setting("command_ledger.failpoint", "");
    cluster.start_again();
    ledger.reconnect();
    ledger.failpoints_off();
    (cluster, ledger, pay)
}

#[test]
fn the_worker_restarts_between_the_outbox_commit_and_the_delivery() {
    let (_cluster, mut ledger, pay) = killed_at("outbox", Some("relay_before_claim_commit"), |ledger, pay| {
        ledger.register("outbox", "outbox-1", order());
        assert_eq!(pay.requests().len(), 0);
    });
    assert_eq!(assert_one_effect(&mut ledger, &pay, "outbox-1").attempt, 1);
    assert_eq!(pay.writes().len(), 1);
}

#[test]
fn the_worker_restarts_during_a_submission() {
    let (_cluster, mut ledger, pay) = killed_at("submit", None, |ledger, pay| {
        pay.next(hang_after_commit());
        ledger.register("submit", "submit-1", order());
        pay.wait_for_held(1);
    });
    assert_eq!(assert_one_effect(&mut ledger, &pay, "submit-1").attempt, 2);
    assert_eq!(pay.writes().len(), 2, "once before the death and once after, one record");
    assert!(kinds(&mut ledger, "submit-1").contains(&"safe_repeat".to_owned()));
}

#[test]
fn it_waits_for_an_approval_and_goes_on_a_day_later() {
    // The clock is the whole server's: a server of its own.
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    define(&mut ledger, "day", &pay, by_key());
    let approval = json!({"approvers": 1, "ttl": "2h", "separate_proposer": false});
    ledger.define_type("day", json!({"destination": "day", "approval": approval, "retry": {"base": "10ms"}}));
    let planned = ledger.register("day", "day-1", order());
    assert_eq!(planned.status, "planned");
    let day = |days: i64| (days * 86_400).to_string();
    ledger.alter_system("command_ledger.clock_offset", Some(&day(1)));
    cluster.restart();
    ledger.reconnect();
    assert_eq!((ledger.status("day-1").status.as_str(), pay.requests().len()), ("planned", 0), "it waits, for days");
    let hash: String = ledger.one("select intent_hash::text from command_ledger.status('day-1')", &[]);
    ledger.exec("select command_ledger.pause('day')");
    let named = json!({"idempotency_key": "day-1", "intent_hash": hash});
    assert_eq!(ledger.call("approve", named.clone()).status, "approved");
    // Held up for another day, the approval is over: nothing is sent on it, and somebody is asked again.
    ledger.alter_system("command_ledger.clock_offset", Some(&day(2)));
    ledger.reconnect();
    ledger.exec("select command_ledger.resume('day')");
    let ended = ledger.wait_status("day-1", "planned");
    assert_eq!((ended.attempt, ended.approvals_missing, pay.requests().len()), (0, Some(1), 0), "{ended:?}");
    assert_eq!(ledger.call("approve", named).status, "approved");
    assert_eq!(assert_one_effect(&mut ledger, &pay, "day-1").attempt, 1);
    assert_eq!(pay.writes().len(), 1);
    let span: f64 = ledger.one(
        "select extract(epoch from max(at) - min(at))::float8 from command_ledger.timeline where idempotency_key = 'day-1'",
        &[],
    );
    assert!(span > 2.0 * 86_400.0 - 3_600.0, "the journal spans the days: {span} s");
}
