//! A command type over its destination: field by field, and the digest of the result.

use super::*;

const BASE: &str = r#"{"transport": "http",
  "request": {"method": "POST", "url": "https://h/a", "headers": {"A": "1", "B": "2"}, "auth": {"bearer": {"secret": "s"}},
    "body": {"k": "{{ destination_key }}", "n": 1}, "timeout": "20s", "connect_timeout": "4s"},
  "idempotency": {"mode": "key"},
  "success": {"statuses": [200], "record_id": "$.id", "when": "$.ok == true"},
  "lookup": {"url": "https://h/q", "records": "$[*]", "match": "$.r", "record_id": "$.id", "when": "$.w == 1",
    "sentinel": {"url": "https://h/s", "equals": "S"}, "settle_delay": "2m", "agreeing": 3, "interval": "5s", "max_lookups": 6},
  "rules": [{"status": 400, "outcome": "permanent"}]}"#;

fn over(rest: &str) -> Effective {
    effective(&destination(BASE), &policy(rest)).unwrap_or_else(|error| panic!("{error}: {rest}"))
}

#[test]
fn a_type_without_overrides_is_its_destination() {
    assert_eq!(over(""), destination(BASE).alone().expect("whole"));
}

#[test]
fn each_field_of_the_request_is_replaced_alone() {
    let base = over("").request.expect("http");
    let with = |field: &str| over(&format!(r#""request": {{{field}}}"#)).request.expect("http");
    let expected = |change: &dyn Fn(&mut RequestSpec)| {
        let mut spec = base.clone();
        change(&mut spec);
        spec
    };
    let template = |text: &str| crate::template::Template::compile(text).expect("valid");
    assert_eq!(with(r#""method": "PUT""#), expected(&|spec| spec.method = "PUT".into()));
    assert_eq!(with(r#""url": "https://h/b""#), expected(&|spec| spec.url = template("https://h/b")));
    assert_eq!(
        with(r#""headers": {"b": "3"}"#),
        expected(&|spec| spec.headers = vec![("b".into(), template("3")), ("A".into(), template("1"))])
    );
    assert_eq!(
        with(r#""content_type": "application/x+json""#),
        expected(&|spec| spec.content_type = "application/x+json".into())
    );
    assert_eq!(
        with(r#""auth": {"bearer": {"secret": "t"}}"#),
        expected(&|spec| spec.auth = Some(Auth::Bearer { secret: "t".into() }))
    );
    assert_eq!(with(r#""body": null"#), expected(&|spec| spec.body = Body::Empty));
    assert_eq!(with(r#""timeout": "30s""#), expected(&|spec| spec.timeout_ms = 30_000));
    assert_eq!(with(r#""connect_timeout": "1s""#), expected(&|spec| spec.connect_timeout_ms = 1_000));
}

#[test]
fn each_field_of_success_is_replaced_alone() {
    let base = over("").success;
    let with = |field: &str| over(&format!(r#""success": {{{field}}}"#)).success;
    assert_eq!(with(r#""statuses": [202]"#), SuccessSpec { statuses: vec![202], ..base.clone() });
    assert_eq!(with(r#""record_id": "$.n""#), SuccessSpec { record_id: Some("$.n".into()), ..base.clone() });
    assert_eq!(with(r#""when": "$.k""#), SuccessSpec { when: Some("$.k".into()), ..base.clone() });
}

#[test]
fn each_field_of_the_lookup_is_replaced_alone() {
    let base = over("").lookup.expect("defined");
    let with = |field: &str| over(&format!(r#""lookup": {{{field}}}"#)).lookup.expect("defined");
    assert_eq!(with(r#""records": "$.x[*]""#), LookupSpec { records: "$.x[*]".into(), ..base.clone() });
    assert_eq!(with(r#""match": "$.m""#), LookupSpec { match_field: "$.m".into(), ..base.clone() });
    assert_eq!(with(r#""record_id": "$.n""#), LookupSpec { record_id: "$.n".into(), ..base.clone() });
    assert_eq!(with(r#""when": "$.v""#), LookupSpec { when: Some("$.v".into()), ..base.clone() });
    assert_eq!(with(r#""settle_delay": "1m""#), LookupSpec { settle_delay_ms: Some(60_000), ..base.clone() });
    assert_eq!(with(r#""agreeing": 1"#), LookupSpec { agreeing: 1, ..base.clone() });
    assert_eq!(with(r#""interval": "1s""#), LookupSpec { interval_ms: 1_000, ..base.clone() });
    assert_eq!(with(r#""max_lookups": 9"#), LookupSpec { max_lookups: 9, ..base.clone() });
    let url = with(r#""url": "https://h/z""#);
    assert_eq!(url.request.url.source(), "https://h/z");
    assert_eq!(url.sentinel, base.sentinel);
}

#[test]
fn the_rules_of_the_type_come_first() {
    let rules = over(r#""rules": [{"status": 400, "outcome": "lookup"}]"#).rules;
    let outcomes: Vec<RuleOutcome> = rules.iter().map(|rule| rule.outcome).collect();
    assert_eq!(outcomes, [RuleOutcome::Lookup, RuleOutcome::Permanent]);
}

#[test]
fn a_lookup_inherits_what_the_type_changed_in_the_request() {
    let lookup = over(r#""request": {"auth": {"bearer": {"secret": "t"}}, "headers": {"C": "3"}}"#).lookup;
    let request = lookup.expect("defined").request;
    assert_eq!(request.auth, Some(Auth::Bearer { secret: "t".into() }));
    assert_eq!(request.headers.len(), 3);
}

#[test]
fn a_type_that_contradicts_its_destination_is_refused() {
    let against = |base: &str, rest: &str| effective(&destination(base), &policy(rest));
    for (rest, path, message) in [
        (
            r#""request": {"headers": {"Idempotency-Key": "x"}}"#,
            "$.request.headers[\"Idempotency-Key\"]",
            "carries the idempotency key",
        ),
        (
            r#""request": {"auth": {"header": {"name": "a", "value": {"secret": "s"}}}}"#,
            "$.request.headers.A",
            "carries the credential",
        ),
        (
            r#""request": {"auth": {"header": {"name": "idempotency-key", "value": {"secret": "s"}}}}"#,
            "$.request.auth.header.name",
            "carries the idempotency key",
        ),
        (r#""request": {"timeout": "1s"}"#, "$.request.connect_timeout", "longer"),
        (r#""lookup": {"max_lookups": 2}"#, "$.lookup.max_lookups", "fewer"),
    ] {
        refused(against(BASE, rest), path, message, rest);
    }
    let pull = r#"{"transport": "pull"}"#;
    let rest = r#""request": {"url": "https://h/"}"#;
    refused(against(pull, rest), "$.request", "sends no requests", rest);
    let rest = r#""rules": [{"status": 400, "outcome": "lookup"}]"#;
    refused(against(pull, rest), "$.rules[0].outcome", "none is defined", rest);
    let rest = r#""lookup": {"url": "https://h/"}"#;
    refused(against(pull, rest), "$.lookup.records", "needs the field", rest);
}

#[test]
fn mode_reference_needs_the_key_in_body_or_url() {
    let base = http(r#""idempotency": {"mode": "reference"}"#);
    let with = |rest: &str| effective(&destination(&base), &policy(rest));
    refused(with(""), "$.request.body", "neither body nor URL", "no key");
    refused(with(r#""request": {"body": {"k": "{{ command_id }}"}}"#), "$.request.body", "neither", "other name");
    assert!(with(r#""request": {"body": {"a": [{"k": "x-{{ destination_key }}"}]}}"#).is_ok());
    assert!(with(r#""request": {"url": "https://h/{{ destination_key }}"}"#).is_ok());
}

#[test]
fn the_request_digest_covers_what_is_sent_and_nothing_else() {
    let base = over("").request_config_digest();
    for rest in [
        r#""request": {"timeout": "30s"}"#,
        r#""request": {"connect_timeout": "1s"}"#,
        r#""success": {"statuses": [202]}"#,
        r#""lookup": {"agreeing": 1}"#,
        r#""rules": [{"status": 500, "outcome": "uncertain"}]"#,
        r#""retry": {"max_attempts": 1}"#,
        r#""request": {"headers": {"a": "1"}}"#,
    ] {
        assert_eq!(over(rest).request_config_digest(), base, "{rest}");
    }
    let mut seen = vec![base];
    for rest in [
        r#""request": {"method": "PUT"}"#,
        r#""request": {"url": "https://h/b"}"#,
        r#""request": {"headers": {"A": "2"}}"#,
        r#""request": {"headers": {"C": "1"}}"#,
        r#""request": {"content_type": "application/x+json"}"#,
        r#""request": {"auth": {"bearer": {"secret": "t"}}}"#,
        r#""request": {"auth": {"header": {"name": "X", "value": {"secret": "s"}}}}"#,
        r#""request": {"auth": {"basic": {"user": "s", "password": {"secret": "p"}}}}"#,
        r#""request": {"auth": {"basic": {"user": {"secret": "s"}, "password": {"secret": "p"}}}}"#,
        r#""request": {"body": null}"#,
        r#""request": {"body": "params"}"#,
        r#""request": {"body": {"k": "{{ destination_key }}", "n": 1.0}}"#,
        r#""request": {"body": {"k": "{{ destination_key }}", "n": "1"}}"#,
        r#""request": {"body": {"k": "{{ destination_key }}", "n": [1]}}"#,
    ] {
        let digest = over(rest).request_config_digest();
        assert!(!seen.contains(&digest), "{rest} has the digest of another definition");
        seen.push(digest);
    }
    for (from, to) in [
        (r#""mode": "key""#, r#""mode": "none""#),
        (r#""mode": "key""#, r#""mode": "key", "header": "X-Key""#),
        (r#""mode": "key""#, r#""mode": "key", "format": "quoted""#),
    ] {
        let digest = destination(&BASE.replace(from, to)).alone().expect("whole").request_config_digest();
        assert!(!seen.contains(&digest), "{to} has the digest of another definition");
        seen.push(digest);
    }
    for (from, to) in [
        (r#""mode": "key""#, r#""mode": "key", "window": "24h", "margin": "1m", "max_length": 64"#),
        (r#""rules""#, r#""limits": {"in_flight": 2}, "breaker": {"failures": 1, "cool_down": "1s"}, "rules""#),
    ] {
        let digest = destination(&BASE.replace(from, to)).alone().expect("whole").request_config_digest();
        assert_eq!(digest, base, "{to}");
    }
}

#[test]
fn the_order_of_members_does_not_change_the_digest() {
    use crate::json::Json;
    fn reversed(json: Json<'static>) -> Json<'static> {
        match json {
            Json::Object(members) => {
                Json::Object(members.into_iter().rev().map(|(name, value)| (name, reversed(value))).collect())
            }
            Json::Array(items) => Json::Array(items.into_iter().map(reversed).collect()),
            other => other,
        }
    }
    let other = DestinationConfig::parse(&reversed(json(BASE))).expect("valid").alone().expect("whole");
    assert_eq!(other.request_config_digest(), over("").request_config_digest());
}

#[test]
fn functions_are_told_apart_by_name() {
    let digest = |name: &str| {
        let text = format!(r#"{{"transport": "function", "function": "{name}"}}"#);
        destination(&text).alone().expect("whole").request_config_digest()
    };
    assert_ne!(digest("a.b"), digest("a.c"));
    assert_eq!(digest("a.b"), digest("a.b"));
}
