//! Lookups: what proves that a record is there, what proves that none is, and what proves nothing.

use pg_test::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    cluster.ledger("app");
    cluster
});

/// A destination of this name that can be searched by reference, a command type of the same name, and a session.
fn scene(name: &str, overrides: Value) -> (Ledger, Destination) {
    let mut ledger = Ledger::over(CLUSTER.connect("app"));
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, name, &erp, &overrides);
    ledger.define_type(name, json!({"destination": name, "retry": {"base": "10ms", "cap": "20ms"}}));
    (ledger, erp)
}

fn define(ledger: &mut Ledger, name: &str, erp: &Destination, overrides: &Value) {
    let search = format!("{}?reference={{{{ destination_key }}}}", erp.url("/records"));
    let mut config = json!({
        "request": {"body": {"reference": "{{ destination_key }}", "state": "{{ params.state | default('open') }}"},
                    "timeout": "2s", "connect_timeout": "2s"},
        "success": {"record_id": "$.id"},
        "lookup": {"url": search, "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                   "settle_delay": "100ms", "agreeing": 2, "interval": "50ms"},
    });
    for part in ["request", "lookup", "idempotency"] {
        if let Some(Value::Object(members)) = overrides.get(part) {
            for (member, value) in members {
                config[part][member] = value.clone();
            }
        }
    }
    let empty = |_: &str, value: &Value| value.is_null();
    if let Some(lookup) = config["lookup"].as_object_mut() {
        lookup.retain(|name, value| !empty(name, value));
    }
    ledger.define_http_destination(name, &erp.url("/records"), config);
}

/// Waits until a person must decide, and says why: the case's reason.
fn wait_for_person(ledger: &mut Ledger, key: &str) -> String {
    ledger.wait_until(
        &format!(
            "select exists (select from command_ledger.reconciliation_queue where idempotency_key = '{key}' \
             and next_lookup_at is null)"
        ),
        60,
    );
    let receipt = ledger.status(key);
    assert!(receipt.maybe_sent && receipt.status == "needs_reconciliation", "{receipt:?}");
    ledger.one("select reason::text from command_ledger.reconciliation_queue where idempotency_key = $1", &[&key])
}

/// What the queue says about the last lookup.
fn last_lookup(ledger: &mut Ledger, key: &str) -> String {
    ledger.one("select last_lookup from command_ledger.reconciliation_queue where idempotency_key = $1", &[&key])
}

fn empty_list() -> Behaviour {
    answer(200, json!([]))
}

#[test]
fn a_found_record_confirms_with_its_id_and_itself_as_evidence() {
    let (mut ledger, erp) = scene("found", json!({}));
    erp.next(drop_after_commit());
    ledger.register("found", "F-1", json!({}));
    let receipt = ledger.wait_status("F-1", "confirmed");
    let id = erp.records()[0].id.clone();
    assert_eq!((receipt.destination_record_id.as_ref(), receipt.attempt, receipt.maybe_sent), (Some(&id), 1, false));
    assert_eq!(receipt.result.unwrap_or_default()["id"], json!(id));
    let (finding, evidence): (String, String) = {
        let row = ledger.row(
            "select finding, evidence ->> 'id' from command_ledger.reconciliation_case where idempotency_key = 'F-1'",
            &[],
        );
        (row.get(0), row.get(1))
    };
    assert_eq!((finding.as_str(), evidence), ("found by lookup", id));
    assert_eq!((erp.writes().len(), erp.effects_for("F-1")), (1, 1));
}

/// From when on absence counts: the settle delay after the end of the first attempt.
fn settled(ledger: &mut Ledger, key: &str, settle_ms: u64) -> SystemTime {
    let from_s: f64 = ledger.one(
        "select extract(epoch from evidence_from)::float8 from command_ledger.reconciliation_case where idempotency_key = $1",
        &[&key],
    );
    // A microsecond may be lost on the way through a float.
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(from_s) + Duration::from_millis(settle_ms - 1)
}

#[test]
fn absence_permits_a_repeat_after_as_many_agreeing_lookups_as_asked_for() {
    // The interval is longer than the delay: no lookup is made before it is over.
    let timing = json!({"settle_delay": "200ms", "agreeing": 3, "interval": "300ms"});
    let (mut ledger, erp) = scene("agreeing", json!({"lookup": timing}));
    erp.next(drop_before_commit());
    ledger.register("agreeing", "A-1", json!({}));
    let receipt = ledger.wait_status("A-1", "confirmed");
    assert_eq!((receipt.attempt, receipt.maybe_sent), (2, false));
    let (settled, repeat) = (settled(&mut ledger, "A-1", 200), erp.writes()[1].arrived_at);
    let asked: Vec<SystemTime> = erp.lookups().iter().map(|l| l.arrived_at).filter(|at| *at <= repeat).collect();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|at| *at >= settled), "{asked:?} before {settled:?}");
    assert_eq!((erp.writes().len(), erp.effects_for("A-1")), (2, 1));
}

#[test]
fn absences_before_the_delay_is_over_permit_nothing() {
    let (mut ledger, erp) = scene("early", json!({"lookup": {"settle_delay": "1s", "max_lookups": 100}}));
    erp.next(drop_before_commit());
    ledger.register("early", "A-2", json!({}));
    assert_eq!(ledger.wait_status("A-2", "confirmed").attempt, 2);
    let (settled, repeat) = (settled(&mut ledger, "A-2", 1_000), erp.writes()[1].arrived_at);
    assert!(erp.lookups().iter().any(|l| l.arrived_at < settled), "it was asked early, too");
    assert!(erp.lookups().iter().filter(|l| l.arrived_at >= settled && l.arrived_at <= repeat).count() >= 2);
    assert_eq!((erp.writes().len(), erp.effects_for("A-2")), (2, 1));
}

#[test]
fn an_unclear_answer_between_two_absents_starts_the_count_anew() {
    let (mut ledger, erp) = scene("unclear", json!({"lookup": {"settle_delay": "1ms"}}));
    erp.next(drop_before_commit());
    erp.next_lookups(empty_list().then(answer(500, json!({}))).then(empty_list()));
    ledger.register("unclear", "U-1", json!({}));
    assert_eq!(ledger.wait_status("U-1", "confirmed").attempt, 2);
    let repeat = erp.writes()[1].arrived_at;
    assert_eq!(erp.lookups().iter().filter(|l| l.arrived_at <= repeat).count(), 4);
    assert_eq!(erp.effects_for("U-1"), 1);
}

#[test]
fn without_a_settle_delay_absence_is_a_question_for_a_person() {
    let (mut ledger, erp) = scene("no_delay", json!({"lookup": {"settle_delay": null}}));
    erp.next(drop_before_commit());
    ledger.register("no_delay", "N-1", json!({}));
    assert_eq!(wait_for_person(&mut ledger, "N-1"), "lookup_absent");
    let next: String = ledger
        .one("select suggested_next_step from command_ledger.reconciliation_queue where idempotency_key = 'N-1'", &[]);
    assert!(next.contains("'not_found'"), "{next}");
    assert_eq!((erp.writes().len(), erp.lookups().len()), (1, 1));
    ledger.exec(&next);
    assert_eq!(ledger.wait_status("N-1", "confirmed").attempt, 2);
    assert_eq!(erp.effects_for("N-1"), 1);
}

#[test]
fn absence_permits_no_repeat_beyond_the_budget() {
    let (mut ledger, erp) = scene("budget", json!({}));
    ledger.define_type("budget", json!({"destination": "budget", "retry": {"max_attempts": 1}}));
    erp.next(drop_before_commit());
    ledger.register("budget", "B-1", json!({}));
    assert_eq!(wait_for_person(&mut ledger, "B-1"), "lookup_absent");
    assert_eq!((erp.writes().len(), erp.effects()), (1, 0));
}

#[test]
fn several_records_with_the_key_are_a_question_with_all_their_ids() {
    let (mut ledger, erp) = scene("several", json!({}));
    erp.next(drop_after_commit());
    let stranger = erp.seed_record("S-1");
    ledger.register("several", "S-1", json!({}));
    assert_eq!(wait_for_person(&mut ledger, "S-1"), "lookup_ambiguous");
    let ids: Value = serde_json::from_str(&ledger.text(
        "select detail -> 'record_ids' from command_ledger.timeline where idempotency_key = 'S-1' and kind = 'lookup_unclear'",
    ))
    .expect("JSON");
    assert_eq!(ids, json!([stranger, erp.records()[0].id]));
    assert_eq!(erp.writes().len(), 1);
}

#[test]
fn prefix_matches_and_ignored_filters_are_neither_found_nor_hidden() {
    for search in [Search::Prefix, Search::Unfiltered] {
        let name = format!("{search:?}").to_lowercase();
        let (mut ledger, erp) = scene(&name, json!({}));
        erp.set_search(search);
        let (absent, found) = (format!("{name}-1"), format!("{name}-2"));
        for key in [&absent, &found] {
            erp.seed_record(&format!("{key}0"));
        }
        erp.next(drop_before_commit());
        ledger.register(&name, &absent, json!({}));
        assert_eq!(ledger.wait_status(&absent, "confirmed").attempt, 2, "{name}: another's record is not ours");
        erp.next(drop_after_commit());
        ledger.register(&name, &found, json!({}));
        let receipt = ledger.wait_status(&found, "confirmed");
        assert_eq!(receipt.attempt, 1, "{name}: ours is found among others");
        let ours = erp.records().into_iter().find(|r| r.reference.as_deref() == Some(&found)).map(|r| r.id);
        assert_eq!(receipt.destination_record_id, ours);
        assert_eq!((erp.effects_for(&absent), erp.effects_for(&found)), (1, 1));
    }
}

#[test]
fn a_list_that_is_named_without_its_elements_is_read_record_by_record() {
    let (mut ledger, erp) = scene("whole_list", json!({"lookup": {"records": "$"}}));
    erp.set_search(Search::Unfiltered);
    erp.seed_record("somebody-else");
    erp.next(drop_after_commit());
    ledger.register("whole_list", "H-1", json!({}));
    let receipt = ledger.wait_status("H-1", "confirmed");
    assert_eq!((receipt.attempt, receipt.destination_record_id), (1, Some(erp.records()[0].id.clone())));
    assert_eq!((erp.writes().len(), erp.effects_for("H-1")), (1, 1));
}

#[test]
fn a_wrong_credential_that_answers_with_an_empty_list_proves_nothing() {
    let erp = Destination::start(Profile::Plain);
    let sentinel = json!({"url": format!("{}?reference=SENTINEL", erp.url("/records")), "equals": "SENTINEL"});
    let mut ledger = Ledger::over(CLUSTER.connect("app"));
    define(&mut ledger, "sentinel", &erp, &json!({"lookup": {"max_lookups": 3, "sentinel": sentinel}}));
    ledger.define_type("sentinel", json!({"destination": "sentinel", "retry": {"base": "10ms", "cap": "20ms"}}));
    erp.seed_record("SENTINEL");

    // The key that the ledger sends is suddenly unknown there: 200, an empty list, and no sentinel.
    erp.next(hang_after_commit());
    ledger.register("sentinel", "W-1", json!({}));
    erp.wait_for_held(1);
    erp.require_api_key("X-Api-Key", "changed");
    assert_eq!(wait_for_person(&mut ledger, "W-1"), "lookup_unclear");
    let said = last_lookup(&mut ledger, "W-1");
    assert!(said.contains("sentinel"), "{said}");
    assert_eq!((erp.writes().len(), erp.effects_for("W-1")), (1, 1));
    let asked =
        |reference: &str| erp.lookups().iter().filter(|l| l.query("reference").as_deref() == Some(reference)).count();
    assert_eq!((asked("W-1"), asked("SENTINEL")), (3, 3), "each round asks for both");

    // With the sentinel in sight, absence counts.
    let erp = Destination::start(Profile::Plain);
    let sentinel = json!({"url": format!("{}?reference=SENTINEL", erp.url("/records")), "equals": "SENTINEL"});
    define(&mut ledger, "seen", &erp, &json!({"lookup": {"sentinel": sentinel}}));
    ledger.define_type("seen", json!({"destination": "seen", "retry": {"base": "10ms", "cap": "20ms"}}));
    erp.seed_record("SENTINEL");
    erp.next(drop_before_commit());
    ledger.register("seen", "W-2", json!({}));
    assert_eq!(ledger.wait_status("W-2", "confirmed").attempt, 2);
    assert_eq!(erp.effects_for("W-2"), 1);
}

#[test]
fn a_record_that_does_not_meet_the_condition_is_neither_found_nor_absent() {
    let (mut ledger, erp) =
        scene("condition", json!({"lookup": {"when": "$.state != \"cancelled\"", "max_lookups": 2}}));
    erp.next(drop_after_commit().then(drop_after_commit()));
    ledger.register("condition", "C-1", json!({"state": "cancelled"}));
    assert_eq!(wait_for_person(&mut ledger, "C-1"), "lookup_unclear");
    let said = last_lookup(&mut ledger, "C-1");
    assert!(said.contains("does not meet the condition"), "{said}");
    ledger.register("condition", "C-2", json!({"state": "open"}));
    assert_eq!(ledger.wait_status("C-2", "confirmed").attempt, 1);
    assert_eq!(erp.writes().len(), 2);
}

#[test]
fn lookups_that_stay_unclear_end_at_their_limit_with_a_person() {
    for (name, behaviour, why) in [
        ("status", answer(500, json!([])), "2xx"),
        ("login_page", answer_text(200, "text/html", "<html>Please log in</html>"), "list of records"),
        ("other_form", answer(200, json!({"error": "no such view"})), "field"),
        ("null", answer(200, json!(null)), "field"),
        ("no_field", answer(200, json!([{"id": "R-1", "ref": "x"}])), "field"),
        ("no_id", answer(200, json!([{"reference": "no_id-1"}])), "no id"),
        ("id_no_scalar", answer(200, json!([{"reference": "id_no_scalar-1", "id": [1]}])), "no id"),
        ("refused", answer(401, json!([])), "2xx"),
        ("cut_off", answer_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[]"), "list of records"),
        ("silent", drop_before_commit(), "2xx"),
    ] {
        let (mut ledger, erp) = scene(name, json!({"lookup": {"max_lookups": 3, "settle_delay": "1ms"}}));
        let key = format!("{name}-1");
        erp.next(drop_before_commit());
        erp.lookups_otherwise(behaviour);
        ledger.register(name, &key, json!({}));
        assert_eq!(wait_for_person(&mut ledger, &key), "lookup_unclear", "{name}");
        let said = last_lookup(&mut ledger, &key);
        assert!(said.contains(why), "{name}: {said}");
        assert_eq!((erp.writes().len(), erp.lookups().len()), (1, 3), "{name}");
    }
}

#[test]
fn past_the_window_a_repeat_is_looked_up_or_left_to_a_person() {
    let window = |has_lookup: bool| {
        let mut config = json!({"idempotency": {"mode": "key", "window": "1s", "margin": "0ms"}});
        if has_lookup {
            config["lookup"] = json!({});
        }
        config
    };
    // A second is less than any attempt takes: the window is over as soon as the first answer is there.
    let (mut ledger, erp) = scene("window", window(true));
    erp.next(answer(503, json!({})).after_commit());
    ledger.register("window", "O-1", json!({}));
    assert_eq!(ledger.wait_status("O-1", "confirmed").attempt, 1, "the lookup found it");
    let reason: String =
        ledger.one("select reason::text from command_ledger.reconciliation_case where idempotency_key = 'O-1'", &[]);
    assert_eq!((reason.as_str(), erp.writes().len()), ("window_over", 1));

    let pay = Destination::start(Profile::deduplicating("Idempotency-Key"));
    let short = json!({"request": {"timeout": "10s"}, "idempotency": {"mode": "key", "window": "1s", "margin": "0ms"}});
    ledger.define_http_destination("short", &pay.url("/records"), short);
    ledger.define_type("short", json!({"destination": "short"}));
    pay.next(answer(503, json!({})));
    ledger.register("short", "O-2", json!({}));
    assert_eq!(wait_for_person(&mut ledger, "O-2"), "window_over");
    assert_eq!(pay.writes().len(), 1);
}

#[test]
fn a_window_that_ends_while_the_repeat_waits_stops_it() {
    let (mut ledger, erp) = scene(
        "waiting",
        json!({"request": {"timeout": "30s"}, "lookup": {"settle_delay": null},
        "idempotency": {"mode": "key", "window": "6s", "margin": "0ms"}}),
    );
    erp.next(hang());
    ledger.register("waiting", "O-3", json!({}));
    erp.wait_for_held(1);
    ledger.exec("select command_ledger.pause('waiting')");
    erp.release();
    assert!(ledger.wait_status("O-3", "approved").maybe_sent, "the repeat is permitted and waits");
    ledger.wait_until(
        "select clock_timestamp() > started_at + interval '6 s' from command_ledger.attempts where idempotency_key = 'O-3'",
        60,
    );
    ledger.exec("select command_ledger.resume('waiting')");
    assert_eq!(wait_for_person(&mut ledger, "O-3"), "lookup_absent", "it was looked up, not sent");
    let kinds: Vec<String> =
        ledger.column("select kind from command_ledger.timeline where idempotency_key = 'O-3' order by seq", &[]);
    assert!(kinds.contains(&"window_over".to_owned()), "{kinds:?}");
    assert_eq!(erp.writes().len(), 1);
}

#[test]
fn a_repeat_that_would_not_be_the_same_request_waits_for_a_person() {
    let (mut ledger, erp) = scene(
        "edited",
        json!({"request": {"timeout": "30s"},
        "idempotency": {"mode": "key", "window": "24h"}}),
    );
    erp.next(hang());
    ledger.register("edited", "E-1", json!({}));
    erp.wait_for_held(1);
    define(
        &mut ledger,
        "edited",
        &erp,
        &json!({"request": {"body": {"reference": "{{ destination_key }}", "new": 1}},
        "idempotency": {"mode": "key", "window": "24h"}}),
    );
    erp.release();
    assert_eq!(wait_for_person(&mut ledger, "E-1"), "request_changed");
    assert_eq!((erp.writes().len(), erp.effects()), (1, 0));
    ledger.register("edited", "E-2", json!({}));
    ledger.wait_status("E-2", "confirmed");
    assert_eq!(erp.writes()[1].json().unwrap_or_default()["new"], json!(1), "new commands are sent in the new form");
}
