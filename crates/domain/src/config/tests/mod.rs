use super::*;
use crate::error::{Code, LedgerError};
use crate::template::testing::json;

mod overrides;
mod refusals;

/// A destination of transport http with these members besides a minimal request.
fn http(rest: &str) -> String {
    let comma = if rest.is_empty() { "" } else { ", " };
    format!(r#"{{"transport": "http", "request": {{"url": "https://h/"}}{comma}{rest}}}"#)
}

/// A destination of transport http whose request has these members besides the URL.
fn request(rest: &str) -> String {
    format!(r#"{{"transport": "http", "request": {{"url": "https://h/", {rest}}}}}"#)
}

fn destination(text: &str) -> DestinationConfig {
    DestinationConfig::parse(&json(text)).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn policy(rest: &str) -> CommandTypePolicy {
    let comma = if rest.is_empty() { "" } else { ", " };
    let text = format!(r#"{{"destination": "erp"{comma}{rest}}}"#);
    CommandTypePolicy::parse(&json(&text)).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The error of a document that must be refused at this path, with this message; every refusal carries a hint or says
/// all in its message.
fn refused<T>(result: Result<T, LedgerError>, path: &str, message: &str, text: &str) -> LedgerError {
    let Err(error) = result else { panic!("accepted: {text}") };
    assert_eq!(error.code, Code::InvalidDefinition, "{text}");
    assert_eq!(error.detail.as_deref(), Some(path), "{text}: {error}");
    assert!(error.message.contains(message), "{text}: {error}");
    error
}

#[test]
fn the_smallest_destination_has_every_default() {
    let config = destination(r#"{"transport": "http", "request": {"url": "https://h/"}}"#);
    assert_eq!(config.transport, Transport::Http);
    assert_eq!(
        config.idempotency,
        Idempotency {
            mode: IdempotencyMode::None,
            header: "Idempotency-Key".into(),
            format: KeyFormat::Raw,
            window: Window::Ms(0),
            margin_ms: 300_000,
            max_length: 255,
        }
    );
    let limits = Limits { in_flight: 16, retries_in_flight: 8, per_second: None, response_bytes: 65_536 };
    assert_eq!(config.limits, limits);
    assert_eq!((config.breaker.as_ref(), config.lookup.as_ref(), config.rules.len()), (None, None, 0));
    let whole = config.alone().expect("whole");
    let request = whole.request.expect("http");
    assert_eq!((request.method.as_str(), request.content_type.as_str()), ("POST", "application/json"));
    assert_eq!((request.body, request.auth, request.headers.len()), (Body::Params, None, 0));
    assert_eq!((request.timeout_ms, request.connect_timeout_ms), (10_000, 3_000));
    assert_eq!(whole.success, SuccessSpec { statuses: vec![200, 201], record_id: None, when: None });
}

#[test]
fn a_function_has_ten_seconds_unless_its_document_says_otherwise() {
    let timeout = |rest: &str| {
        let config = destination(&format!(r#"{{"transport": "function", "function": "a.b"{rest}}}"#));
        config.transport
    };
    let function = |timeout_ms| Transport::Function { function: "a.b".into(), timeout_ms };
    assert_eq!(timeout(""), function(10_000));
    assert_eq!(timeout(r#", "timeout": "250ms""#), function(250));
    assert_eq!(timeout(r#", "timeout": "1h""#), function(3_600_000));
}

#[test]
fn the_smallest_lookup_has_every_default_but_no_settle_delay() {
    let text = http(r#""lookup": {"url": "https://h/q", "records": "$[*]", "match": "$.r", "record_id": "$.id"}"#);
    let lookup = destination(&text).alone().expect("whole").lookup.expect("defined");
    assert_eq!((lookup.agreeing, lookup.interval_ms, lookup.max_lookups), (2, 10_000, 10));
    assert_eq!((lookup.settle_delay_ms, lookup.sentinel, lookup.when), (None, None, None));
    assert_eq!((lookup.request.method.as_str(), lookup.request.body), ("GET", Body::Empty));
    assert_eq!(
        (lookup.match_field.as_str(), lookup.record_id.as_str(), lookup.records.as_str()),
        ("$.r", "$.id", "$[*]")
    );
}

#[test]
fn the_smallest_command_type_has_every_default() {
    let policy = policy("");
    assert_eq!(policy.destination, "erp");
    assert!(policy.schema.is_none() && policy.immaterial.is_empty() && policy.deny_when.is_none());
    assert_eq!(policy.approval, None);
    let retry = RetryRule { auto: true, max_attempts: 5, base_ms: 1_000, cap_ms: 300_000, deadline_ms: None };
    assert_eq!(policy.retry, retry);
    assert_eq!(policy.retention, Retention { payload_ms: None, key_ms: None });
    assert_eq!((policy.lookalike, policy.lane_on_failure), (None, LaneOnFailure::Block));
}

#[test]
fn every_field_of_a_command_type_is_read() {
    let policy = policy(
        r#""schema": {"type": "object", "required": ["plant"]}, "immaterial": ["/note", "/a~1b/~0"],
         "deny_when": "$.amount > 1000000",
         "approval": {"when": "$.amount > 10000", "approvers": 2, "ttl": "2h", "separate_proposer": false},
         "retry": {"auto": false, "max_attempts": 7, "base": "250ms", "cap": "10s", "deadline": "1d"},
         "retention": {"payload": "90d", "key": "400d"}, "lookalike": {"window": "10m", "action": "block"},
         "lane_on_failure": "skip""#,
    );
    assert!(policy.schema.is_some());
    assert_eq!(policy.immaterial, ["/note", "/a~1b/~0"]);
    let approval = ApprovalRule {
        when: Some("$.amount > 10000".into()),
        approvers: 2,
        ttl_ms: 7_200_000,
        separate_proposer: false,
    };
    assert_eq!(policy.approval, Some(approval));
    let retry = RetryRule { auto: false, max_attempts: 7, base_ms: 250, cap_ms: 10_000, deadline_ms: Some(86_400_000) };
    assert_eq!(policy.retry, retry);
    assert_eq!(policy.retention, Retention { payload_ms: Some(90 * 86_400_000), key_ms: Some(400 * 86_400_000) });
    assert_eq!(policy.lookalike, Some(Lookalike { window_ms: 600_000, action: LookalikeAction::Block }));
    assert_eq!(policy.lane_on_failure, LaneOnFailure::Skip);
}

#[test]
fn an_empty_approval_asks_for_one_other_person_within_a_day() {
    let approval = ApprovalRule { when: None, approvers: 1, ttl_ms: 86_400_000, separate_proposer: true };
    assert_eq!(policy(r#""approval": {}"#).approval, Some(approval));
}

#[test]
fn a_single_backoff_bound_moves_the_default_of_the_other() {
    let retry = |text: &str| {
        let retry = policy(&format!(r#""retry": {text}"#)).retry;
        (retry.base_ms, retry.cap_ms)
    };
    assert_eq!(retry(r#"{"base": "10m"}"#), (600_000, 600_000));
    assert_eq!(retry(r#"{"cap": "100ms"}"#), (100, 100));
    assert_eq!(retry(r#"{"base": "2s"}"#), (2_000, 300_000));
}

#[test]
fn halves_and_windows_follow_what_is_given() {
    let limits = |text: &str| destination(&http(&format!(r#""limits": {text}"#))).limits.retries_in_flight;
    assert_eq!(limits(r#"{"in_flight": 1}"#), 1);
    assert_eq!(limits(r#"{"in_flight": 5}"#), 2);
    assert_eq!(limits(r#"{"in_flight": 5, "retries_in_flight": 5}"#), 5);
    let window = |text: &str| {
        destination(&http(&format!(r#""idempotency": {{"mode": "key", "window": "{text}"}}"#))).idempotency.window
    };
    assert_eq!(window("24h"), Window::Ms(86_400_000));
    assert_eq!(window("unlimited"), Window::Unlimited);
    assert_eq!(window("0s"), Window::Ms(0));
}

#[test]
fn durations_have_one_unit_and_a_bound() {
    for (text, wanted) in [
        ("250ms", Some(250)),
        ("10s", Some(10_000)),
        ("5m", Some(300_000)),
        ("24h", Some(86_400_000)),
        ("90d", Some(7_776_000_000)),
        ("0s", Some(0)),
        ("36500d", Some(MAX_DURATION_MS)),
        ("36501d", None),
        ("9223372036854775807d", None),
        ("99999999999999999999ms", None),
        ("", None),
        ("10", None),
        ("s", None),
        ("-1s", None),
        ("+1s", None),
        ("1.5s", None),
        ("1 s", None),
        (" 1s", None),
        ("1S", None),
        ("1w", None),
        ("1h30m", None),
        ("١s", None),
    ] {
        assert_eq!(parse_duration_ms(text), wanted, "{text}");
    }
}

#[test]
fn the_hint_lists_what_is_allowed() {
    let hint = |text: &str| DestinationConfig::parse(&json(text)).expect_err("refused").hint.unwrap_or_default();
    assert_eq!(hint(r#"{"transport": "smtp"}"#), "allowed: http, function, pull");
    assert_eq!(hint(&http(r#""breaker": {"x": 1}"#)), "allowed here: failures, cool_down");
    assert_eq!(hint(&http(r#""limits": {"in_flight": 0}"#)), "allowed: 1 to 10000");
    assert!(hint(&request(r#""timeout": "x""#)).contains("250ms"));
    assert!(hint(&http(r#""idempotency": {"mode": "key", "window": "x"}"#)).contains("unlimited"));
}

#[test]
fn a_refusal_never_repeats_what_could_be_a_secret() {
    let text = request(r#""auth": {"bearer": "hunter2"}"#);
    let error = DestinationConfig::parse(&json(&text)).expect_err("refused");
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[test]
fn every_jsonpath_is_listed_with_its_field() {
    let text = http(
        r#""success": {"record_id": "$.id", "when": "$.ok"}, "rules": [{"status": 400, "outcome": "permanent"},
        {"when": "$.code == 1", "outcome": "uncertain"}],
        "lookup": {"url": "https://h/q", "records": "$[*]", "match": "$.r", "record_id": "$.i", "when": "$.w"}"#,
    );
    let pairs = |list: Vec<(String, String)>| list.into_iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>();
    let shared = [
        "$.success.record_id $.id",
        "$.success.when $.ok",
        "$.lookup.records $[*]",
        "$.lookup.match $.r",
        "$.lookup.record_id $.i",
        "$.lookup.when $.w",
        "$.rules[1].when $.code == 1",
    ];
    assert_eq!(pairs(destination(&text).jsonpaths()), shared);
    let own = policy(r#""deny_when": "$.d", "approval": {"when": "$.a"}, "success": {"when": "$.s"}"#);
    assert_eq!(pairs(own.jsonpaths()), ["$.deny_when $.d", "$.approval.when $.a", "$.success.when $.s"]);
}

#[test]
fn the_destination_says_which_keys_it_takes() {
    let check = |idempotency: &str, key: &str| {
        let config = destination(&http(&format!(r#""idempotency": {idempotency}"#)));
        config.idempotency.check_key(key).map_err(|error| error.code)
    };
    let long = "k".repeat(256);
    assert_eq!(check(r#"{"mode": "key"}"#, "plain"), Ok(()));
    assert_eq!(check(r#"{"mode": "key"}"#, &long), Err(Code::InvalidKey));
    assert_eq!(check(r#"{"mode": "key", "max_length": 300}"#, &long), Ok(()));
    assert_eq!(check(r#"{"mode": "key"}"#, "é"), Err(Code::InvalidKey));
    assert_eq!(check(r#"{"mode": "key", "format": "quoted"}"#, "é"), Err(Code::InvalidKey));
    assert_eq!(check(r#"{"mode": "key", "format": "uuid"}"#, "é"), Ok(()));
    assert_eq!(check(r#"{"mode": "reference", "max_length": 3}"#, "abcd"), Err(Code::InvalidKey));
    assert_eq!(check(r#"{"mode": "reference"}"#, "é"), Ok(()));
    assert_eq!(check(r#"{"mode": "none"}"#, &long), Ok(()));
}

#[test]
fn definitions_of_hostile_size_are_refused_not_overflowed() {
    use crate::json::Json;
    let mut deep = Json::Null;
    for _ in 0..5_000 {
        deep = Json::Array(vec![deep]);
    }
    let config = |body: Json<'static>| {
        Json::Object(vec![
            ("transport".into(), Json::String("http".into())),
            (
                "request".into(),
                Json::Object(vec![("url".into(), Json::String("http://h/".into())), ("body".into(), body)]),
            ),
        ])
    };
    let error = DestinationConfig::parse(&config(deep)).expect_err("too deep");
    assert!(error.message.contains("too large"), "{error}");
    let wide = Json::Array(vec![Json::Null; 20_000]);
    assert!(DestinationConfig::parse(&config(wide)).is_err());
    let long = Json::String(format!("{{{{ params.x }}}}{}", "x".repeat(5_000)).into());
    assert!(DestinationConfig::parse(&config(long)).is_err());
}
