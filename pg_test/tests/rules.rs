//! What a destination's own definition makes of answers: rules, Retry-After, no automatic retry, and a command type
//! that overrides its destination field by field.

use pg_test::prelude::*;
use std::sync::LazyLock;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    cluster.ledger("app");
    cluster
});

fn ledger() -> Ledger {
    Ledger::over(CLUSTER.connect("app"))
}

/// A destination and a command type of this name.
fn define(ledger: &mut Ledger, name: &str, erp: &Destination, overrides: Value, retry: Value) {
    let mut config = json!({
        "request": {"body": {"reference": "{{ destination_key }}"}, "timeout": "2s", "connect_timeout": "1s"},
        "success": {"record_id": "$.id"},
    });
    if let Value::Object(members) = overrides {
        members.into_iter().for_each(|(member, value)| config[member] = value);
    }
    ledger.define_http_destination(name, &erp.url("/records"), config);
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

fn quick() -> Value {
    json!({"base": "10ms", "cap": "20ms"})
}

fn path(ledger: &mut Ledger, key: &str) -> String {
    ledger.one(
        "select string_agg(kind, ' ' order by seq) from command_ledger.timeline where idempotency_key = $1 and seq > 0",
        &[&key],
    )
}

#[test]
fn a_rule_says_what_an_answer_means_and_decides_over_status_and_success() {
    let mut ledger = ledger();
    let rows = [
        ("confirmed", "claim confirm", "confirmed", ""),
        ("transient", "claim not_sent claim confirm", "confirmed", ""),
        ("permanent", "claim refused", "failed", "permanent"),
        ("permission", "claim refused", "failed", "permission"),
        ("uncertain", "claim uncertain lookup_found", "confirmed", ""),
        ("lookup", "claim uncertain lookup_found", "confirmed", ""),
    ];
    for status in [400, 200, 503] {
        for (outcome, way, ends, error) in rows {
            let name = format!("rule_{outcome}_{status}");
            let erp = Destination::start(Profile::Plain);
            let rules = json!([
                {"status": 418, "outcome": "permission"},
                {"when": "$.code == \"OTHER\"", "outcome": "permanent"},
                {"status": status, "when": "$.code == \"OURS\"", "outcome": outcome},
                {"status": status, "outcome": "uncertain"},
            ]);
            let search = format!("{}?reference={{{{ destination_key }}}}", erp.url("/records"));
            let lookup = json!({"url": search, "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                                "settle_delay": "100ms", "interval": "50ms"});
            define(&mut ledger, &name, &erp, json!({"rules": rules, "lookup": lookup}), quick());
            let ours = answer(status, json!({"code": "OURS", "id": "R-ours"}));
            erp.next(if way.contains("lookup") { ours.after_commit() } else { ours });
            ledger.register(&name, &name, json!({}));
            let receipt = ledger.wait_status(&name, ends);
            assert_eq!(path(&mut ledger, &name), way, "{name}");
            assert_eq!((receipt.error.unwrap_or_default().as_str(), receipt.maybe_sent), (error, false), "{name}");
            assert_eq!(erp.writes().len(), way.matches("claim").count(), "{name}");
            if outcome == "confirmed" {
                assert_eq!(receipt.destination_record_id.as_deref(), Some("R-ours"), "{name}");
            }
        }
    }
}

#[test]
fn retry_after_is_honoured_clamped_and_never_passes_the_deadline() {
    let mut ledger = ledger();
    let date: String = ledger.one(
        "select to_char((now() + interval '2 h') at time zone 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS') || ' GMT'",
        &[],
    );
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    // What the header asks for, and how long the command then waits at least and at most, in seconds.
    for (name, header, least_s, most_s) in [
        ("after_seconds", "3600", 3_600, 3_600),
        ("after_date", date.as_str(), 7_100, 7_200),
        ("after_past", past, 0, 300),
        ("after_garbage", "soon", 0, 300),
        ("after_negative", "-5", 0, 300),
        ("after_trillion", "1000000000000", 86_400, 86_400),
        ("after_overflow", "99999999999999999999999999", 86_400, 86_400),
    ] {
        for status in [429, 503] {
            let (erp, key) =
                (Destination::start(Profile::deduplicating("Idempotency-Key")), format!("{name} {status}"));
            let config = json!({"idempotency": {"mode": "key", "window": "unlimited"}});
            define(&mut ledger, name, &erp, config, json!({"base": "5m", "cap": "5m"}));
            erp.next(answer(status, json!({})).header("Retry-After", header));
            ledger.register(name, &key, json!({}));
            ledger.wait_until(
                &format!("select status = 'approved' and attempt = 1 from command_ledger.status('{key}')"),
                60,
            );
            let waits: f64 = ledger.one(
                "select extract(epoch from s.retry_at - a.ended_at)::float8 from command_ledger.status($1) s \
                 join command_ledger.attempts a on a.idempotency_key = s.idempotency_key",
                &[&key],
            );
            let in_range = waits >= f64::from(least_s) - 1.0 && waits <= f64::from(most_s) + 1.0;
            assert!(in_range, "{key}: waits {waits} s, should {least_s} to {most_s}");
            assert_eq!(erp.writes().len(), 1, "{key}");
        }
    }
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "after_deadline", &erp, json!({}), quick());
    erp.next(answer(429, json!({})).header("Retry-After", "7200"));
    let deadline: String = ledger.one("select (now() + interval '1 h')::text", &[]);
    ledger.register_with("after_deadline", "after_deadline", json!({}), json!({"deadline": deadline}));
    ledger.wait_until("select attempt = 1 and status = 'approved' from command_ledger.status('after_deadline')", 60);
    let last_chance: bool = ledger.one(
        "select retry_at between deadline - interval '2 s' and deadline from command_ledger.status('after_deadline')",
        &[],
    );
    assert!(last_chance, "{:?}", ledger.status("after_deadline"));
}

#[test]
fn without_automatic_retry_every_second_send_takes_a_person() {
    let mut ledger = ledger();
    let manual = || json!({"auto": false});
    let erp = Destination::start(Profile::deduplicating("Idempotency-Key"));
    define(&mut ledger, "manual", &erp, json!({"idempotency": {"mode": "key", "window": "24h"}}), manual());
    erp.next(answer(429, json!({})));
    ledger.register("manual", "M-1", json!({}));
    let receipt = ledger.wait_status("M-1", "failed");
    assert_eq!((receipt.error.as_deref(), receipt.maybe_sent), (Some("transient"), false));
    ledger.call("retry", json!({"idempotency_key": "M-1", "reason": "quota is free again"}));
    assert_eq!(ledger.wait_status("M-1", "confirmed").attempt, 2);

    erp.next(answer(503, json!({})));
    ledger.register("manual", "M-2", json!({}));
    assert!(ledger.wait_status("M-2", "needs_reconciliation").maybe_sent);
    let reason: String =
        ledger.one("select reason::text from command_ledger.reconciliation_queue where idempotency_key = 'M-2'", &[]);
    assert_eq!(reason, "repeat_needs_person");

    let closed = Destination::start(Profile::Plain);
    closed.refuse_connections();
    define(&mut ledger, "manual_closed", &closed, json!({}), manual());
    ledger.register("manual_closed", "M-3", json!({}));
    let receipt = ledger.wait_status("M-3", "failed");
    assert_eq!((receipt.error.as_deref(), receipt.maybe_sent, receipt.attempt), (Some("not_sent"), false, 1));
    assert_eq!((erp.writes().len(), erp.effects(), closed.requests().len()), (3, 1, 0));
}

#[test]
fn a_command_type_overrides_its_destination_field_by_field() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let search = |parameter: &str| format!("{}?{parameter}={{{{ destination_key }}}}", erp.url("/records"));
    ledger.define_http_destination(
        "erp",
        &erp.url("/orders"),
        json!({
            "request": {"headers": {"X-Context": "company-1", "X-Kind": "order"}, "timeout": "2s",
                        "body": {"reference": "{{ destination_key }}", "kind": "order"}},
            "success": {"statuses": [201], "record_id": "$.id"},
            "lookup": {"url": search("reference"), "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                       "settle_delay": "100ms", "interval": "50ms"},
            "rules": [{"status": 400, "outcome": "transient"}],
        }),
    );
    ledger.define_type("order", json!({"destination": "erp", "retry": quick()}));
    ledger.define_type(
        "note",
        json!({
            "destination": "erp", "retry": quick(),
            "request": {"url": erp.url("/notes"), "method": "PUT", "headers": {"x-kind": "note"},
                        "body": {"reference": "{{ destination_key }}", "kind": "note"}},
            "success": {"statuses": [200, 201], "when": "$.kind == \"note\""},
            "lookup": {"url": search("note")},
            "rules": [{"status": 400, "when": "$.code == 7", "outcome": "permission"}],
        }),
    );
    ledger.register("order", "O-1", json!({}));
    ledger.wait_status("O-1", "confirmed");
    ledger.register("note", "N-1", json!({}));
    ledger.wait_status("N-1", "confirmed");
    let writes = erp.writes();
    let seen = |n: usize| {
        let header = |name| writes[n].header(name).unwrap_or_default().to_owned();
        (writes[n].method.clone(), writes[n].path().to_owned(), header("x-context"), header("x-kind"))
    };
    let of = |method: &str, path: &str, kind: &str| (method.into(), path.into(), "company-1".into(), kind.into());
    assert_eq!((seen(0), seen(1)), (of("POST", "/orders", "order"), of("PUT", "/notes", "note")));

    // The type's rule comes first, then the destination's; the destination's record_id holds for both.
    erp.next(answer(400, json!({"code": 7})).then(answer(400, json!({"code": 8}))));
    ledger.register("note", "N-2", json!({}));
    assert_eq!(ledger.wait_status("N-2", "failed").error.as_deref(), Some("permission"));
    ledger.register("note", "N-3", json!({}));
    assert_eq!(ledger.wait_status("N-3", "confirmed").attempt, 2);

    // The type's lookup URL, with everything else of the destination's lookup.
    erp.next(drop_after_commit());
    erp.set_search_parameter("note");
    ledger.register("note", "N-4", json!({}));
    let receipt = ledger.wait_status("N-4", "confirmed");
    assert_eq!((receipt.attempt, receipt.destination_record_id.is_some()), (1, true));
    assert!(erp.lookups().iter().all(|l| l.query("note").as_deref() == Some("N-4")), "{:?}", erp.lookups());
    assert_eq!(erp.effects(), 4);
}
