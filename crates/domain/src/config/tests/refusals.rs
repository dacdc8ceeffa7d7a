//! What is not valid is refused, with the path of what is wrong.

use super::*;

#[test]
fn a_destination_that_is_not_valid_is_refused_with_its_path() {
    let rows = [
        ("[]".to_owned(), "$", "wrong type"),
        ("{}".into(), "$.transport", "required"),
        (r#"{"transport": "smtp"}"#.into(), "$.transport", "unknown word"),
        (r#"{"transport": 1}"#.into(), "$.transport", "wrong type"),
        (r#"{"transport": "http"}"#.into(), "$.request", "required"),
        (r#"{"transport": "http", "request": {}}"#.into(), "$.request.url", "needs a URL"),
        (r#"{"transport": "function"}"#.into(), "$.function", "required"),
        (r#"{"transport": "function", "function": "f"}"#.into(), "$.function", "qualified"),
        (r#"{"transport": "function", "function": "a.b.c"}"#.into(), "$.function", "qualified"),
        (r#"{"transport": "function", "function": "a.b;c"}"#.into(), "$.function", "qualified"),
        (r#"{"transport": "function", "function": "A.b"}"#.into(), "$.function", "qualified"),
        (r#"{"transport": "pull", "function": "a.b"}"#.into(), "$.function", "only transport function"),
        (r#"{"transport": "pull", "timeout": "1s"}"#.into(), "$.timeout", "only transport function"),
        (http(r#""timeout": "1s""#), "$.timeout", "only transport function"),
        (r#"{"transport": "function", "function": "a.b", "timeout": "0s"}"#.into(), "$.timeout", "zero"),
        (r#"{"transport": "function", "function": "a.b", "timeout": "61m"}"#.into(), "$.timeout", "too long"),
        (r#"{"transport": "pull", "request": {"url": "http://h/"}}"#.into(), "$.request", "only transport http"),
        (http(r#""deadline": "1s""#), "$.deadline", "unknown field"),
        (http(r#""X-y": 1"#), "$[\"X-y\"]", "unknown field"),
        (request(r#""timeuot": "1s""#), "$.request.timeuot", "unknown field"),
        (request(r#""timeout": "1 s""#), "$.request.timeout", "not a duration"),
        (request(r#""timeout": 10"#), "$.request.timeout", "wrong type"),
        (request(r#""timeout": "0s""#), "$.request.timeout", "zero"),
        (request(r#""timeout": "2h""#), "$.request.timeout", "too long"),
        (request(r#""timeout": null"#), "$.request.timeout", "wrong type"),
        (request(r#""timeout": "1s", "connect_timeout": "2s""#), "$.request.connect_timeout", "longer"),
        (request(r#""method": "PO ST""#), "$.request.method", "method"),
        (request(r#""method": """#), "$.request.method", "method"),
        (request(r#""method": "connect""#), "$.request.method", "cannot carry"),
        (request(r#""content_type": "text/xml""#), "$.request.content_type", "content type"),
        (request(r#""content_type": "application/json\r\nX: 1""#), "$.request.content_type", "content type"),
        (request(r#""content_type": "application/x\r\ny+json""#), "$.request.content_type", "content type"),
        (request(r#""content_type": "application/x-www-form-urlencoded", "body": [1]"#), "$.request.body", "form body"),
        (request(r#""body": {"a": ["{{ nope }}"]}"#), "$.request.body.a[0]", "unknown variable"),
        (request(r#""body": {"a": "{{ params.x"}"#), "$.request.body.a", "syntax"),
        (request(r#""headers": {"X-A": "{{ now }}"}"#), "$.request.headers[\"X-A\"]", "unknown variable"),
        (request(r#""headers": {"X-A": 1}"#), "$.request.headers[\"X-A\"]", "wrong type"),
        (request(r#""headers": {"X A": "1"}"#), "$.request.headers[\"X A\"]", "not a header name"),
        (request(r#""headers": {"X:": "1"}"#), "$.request.headers[\"X:\"]", "not a header name"),
        (request(r#""headers": {"": "1"}"#), "$.request.headers[\"\"]", "not a header name"),
        (request(r#""headers": {"A\r\nB": "1"}"#), "$.request.headers[\"A??B\"]", "not a header name"),
        (request(r#""headers": {"A": "x\ny"}"#), "$.request.headers.A", "control character"),
        (request(r#""headers": {"A": "é"}"#), "$.request.headers.A", "outside ASCII"),
        (request(r#""headers": {"A": "1", "a": "2"}"#), "$.request.headers.a", "twice"),
        (request(r#""auth": {}"#), "$.request.auth", "exactly one"),
        (
            request(r#""auth": {"bearer": {"secret": "a"}, "basic": {"user": "u", "password": {"secret": "p"}}}"#),
            "$.request.auth",
            "exactly one",
        ),
        (request(r#""auth": {"bearer": "hunter2"}"#), "$.request.auth.bearer", "credential stands"),
        (request(r#""auth": {"bearer": {"secret": "a/b"}}"#), "$.request.auth.bearer.secret", "secret name"),
        (request(r#""auth": {"bearer": {"secret": ".."}}"#), "$.request.auth.bearer.secret", "secret name"),
        (request(r#""auth": {"bearer": {"secret": ""}}"#), "$.request.auth.bearer.secret", "secret name"),
        (
            request(r#""auth": {"basic": {"user": "u", "password": "p"}}"#),
            "$.request.auth.basic.password",
            "credential stands",
        ),
        (
            request(r#""auth": {"basic": {"user": "u:v", "password": {"secret": "p"}}}"#),
            "$.request.auth.basic.user",
            "user name",
        ),
        (request(r#""auth": {"basic": {"user": "u"}}"#), "$.request.auth.basic.password", "required"),
        (
            request(r#""auth": {"header": {"name": "Host", "value": {"secret": "p"}}}"#),
            "$.request.auth.header.name",
            "cannot be set",
        ),
        (
            request(r#""headers": {"X-Key": "1"}, "auth": {"header": {"name": "x-key", "value": {"secret": "p"}}}"#),
            "$.request.headers[\"X-Key\"]",
            "carries the credential",
        ),
        (http(r#""idempotency": {"mode": "maybe"}"#), "$.idempotency.mode", "unknown word"),
        (http(r#""idempotency": {"header": "K"}"#), "$.idempotency.header", "no meaning"),
        (http(r#""idempotency": {"mode": "reference", "format": "raw"}"#), "$.idempotency.format", "no meaning"),
        (http(r#""idempotency": {"window": "1h"}"#), "$.idempotency.window", "no meaning"),
        (http(r#""idempotency": {"mode": "key", "window": "forever"}"#), "$.idempotency.window", "not a duration"),
        (http(r#""idempotency": {"mode": "key", "header": "Content-Type"}"#), "$.idempotency.header", "cannot be set"),
        (http(r#""idempotency": {"mode": "key", "max_length": 0}"#), "$.idempotency.max_length", "range"),
        (http(r#""success": {"statuses": []}"#), "$.success.statuses", "no status"),
        (http(r#""success": {"statuses": [99]}"#), "$.success.statuses[0]", "range"),
        (http(r#""success": {"statuses": [200, 600]}"#), "$.success.statuses[1]", "range"),
        (http(r#""success": {"statuses": [200.5]}"#), "$.success.statuses[0]", "range"),
        (http(r#""success": {"record_id": ""}"#), "$.success.record_id", "jsonpath"),
        (http(r#""success": {"when": "strict $.a"}"#), "$.success.when", "own mode"),
        (http(r#""rules": [{"status": 400}]"#), "$.rules[0].outcome", "required"),
        (http(r#""rules": [{"outcome": "transient"}]"#), "$.rules[0]", "every answer"),
        (http(r#""rules": [{"status": 1, "outcome": "transient"}]"#), "$.rules[0].status", "range"),
        (http(r#""rules": [{"status": 400, "outcome": "again"}]"#), "$.rules[0].outcome", "unknown word"),
        (http(r#""rules": [{"status": 400, "outcome": "lookup"}]"#), "$.rules[0].outcome", "none is defined"),
        (http(r#""limits": {"in_flight": 0}"#), "$.limits.in_flight", "range"),
        (http(r#""limits": {"in_flight": 4, "retries_in_flight": 5}"#), "$.limits.retries_in_flight", "range"),
        (http(r#""limits": {"per_second": 0}"#), "$.limits.per_second", "range"),
        (http(r#""limits": {"response_bytes": 99999999}"#), "$.limits.response_bytes", "range"),
        (http(r#""limits": {"in_flight": 1e400}"#), "$.limits.in_flight", "range"),
        (http(r#""breaker": {}"#), "$.breaker.failures", "required"),
        (http(r#""breaker": {"failures": 5}"#), "$.breaker.cool_down", "required"),
        (http(r#""breaker": {"failures": 5, "cool_down": "0s"}"#), "$.breaker.cool_down", "zero"),
    ];
    for (text, path, message) in rows {
        refused(DestinationConfig::parse(&json(&text)), path, message, &text);
    }
}

#[test]
fn reserved_headers_belong_to_others() {
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "CONNECTION",
        "Content-Type",
        "Authorization",
        "Cookie",
        "Expect",
    ] {
        let text = request(&format!(r#""headers": {{"{name}": "x"}}"#));
        let Err(error) = DestinationConfig::parse(&json(&text)) else { panic!("{name} accepted") };
        assert!(error.message.contains("cannot be set") && error.hint.is_some(), "{name}: {error}");
    }
    // A credential may be the whole of the two that are made for it; the proxy's belongs to the connection.
    let credential = |name: &str| {
        DestinationConfig::parse(&json(&request(&format!(
            r#""auth": {{"header": {{"name": "{name}", "value": {{"secret": "s"}}}}}}"#
        ))))
    };
    assert!(credential("Authorization").is_ok() && credential("cookie").is_ok());
    assert!(credential("Proxy-Authorization").is_err() && credential("content-type").is_err());
    let text = r#"{"transport": "http", "request": {"url": "http://h/", "headers": {"idempotency-key": "x"}},
        "idempotency": {"mode": "key"}}"#;
    let path = "$.request.headers[\"idempotency-key\"]";
    refused(DestinationConfig::parse(&json(text)), path, "carries the idempotency key", text);
    // Without mode key the name is as good as any other.
    destination(&request(r#""headers": {"idempotency-key": "x"}"#));
}

#[test]
fn the_url_fixes_where_the_request_goes() {
    for url in [
        "https://h/",
        "HTTP://h",
        "http://h?x={{ params.x }}",
        "http://127.0.0.1:8080/a",
        "http://[::1]:1/a",
        "https://a_b.c-d.example:65535/{{ params.x }}",
    ] {
        destination(&format!(r#"{{"transport": "http", "request": {{"url": "{url}"}}}}"#));
    }
    for (url, wanted) in [
        ("", "must start with"),
        ("ftp://h/", "must start with"),
        ("file:///etc/passwd", "must start with"),
        ("//h/", "must start with"),
        (" https://h/", "must start with"),
        ("{{ params.url }}", "must start with"),
        ("http{{ params.s }}://h/", "must start with"),
        ("https://{{ params.host }}/", "must not be templates"),
        ("https://h.{{ tenant }}.example/", "must not be templates"),
        ("https://h:{{ params.port }}/", "must not be templates"),
        ("https://h{{ params.path }}", "must not be templates"),
        ("https:///x", "no valid host"),
        ("https://h h/", "no valid host"),
        ("https://münchen.example/", "no valid host"),
        ("https://h%2f/", "no valid host"),
        ("https://h\\\\@evil/", "credentials"),
        ("https://user:pw@h/", "credentials"),
        ("https://h:0/", "no valid port"),
        ("https://h:65536/", "no valid port"),
        ("https://h:/", "no valid port"),
        ("https://h:+1/", "no valid port"),
        ("https://[::1/", "IPv6"),
        ("https://[::g]/", "IPv6"),
        ("https://[::1]x/", "IPv6"),
        ("https://h/a b", "cannot hold"),
        ("https://h/é", "cannot hold"),
        ("https://h/a?b=<c>", "cannot hold"),
        ("https://h/a|b", "cannot hold"),
        ("https://h/a#b", "fragment"),
        ("https://h/\\u0000", "cannot hold"),
    ] {
        let text = format!(r#"{{"transport": "http", "request": {{"url": "{url}"}}}}"#);
        refused(DestinationConfig::parse(&json(&text)), "$.request.url", wanted, &text);
    }
}

#[test]
fn a_lookup_that_is_not_valid_is_refused_with_its_path() {
    let lookup = |rest: &str| {
        http(&format!(
            r#""lookup": {{"url": "https://h/q", "records": "$[*]", "match": "$.r", "record_id": "$.id"{rest}}}"#
        ))
    };
    for (rest, path, message) in [
        (r#", "method": "DELETE""#, "$.lookup.method", "unknown word"),
        (r#", "body": {}"#, "$.lookup.body", "GET has no body"),
        (r#", "settle_delay": "-2m""#, "$.lookup.settle_delay", "not a duration"),
        (r#", "agreeing": 0"#, "$.lookup.agreeing", "range"),
        (r#", "interval": "0s""#, "$.lookup.interval", "zero"),
        (r#", "agreeing": 3, "max_lookups": 2"#, "$.lookup.max_lookups", "fewer lookups"),
        (r#", "sentinel": {"url": "https://h/"}"#, "$.lookup.sentinel.equals", "required"),
        (r#", "sentinel": {"equals": "S"}"#, "$.lookup.sentinel.url", "required"),
        (r#", "sentinel": {"url": "https://h/", "equals": ""}"#, "$.lookup.sentinel.equals", "must have a value"),
        (r#", "sentinel": {"url": "ftp://h/", "equals": "S"}"#, "$.lookup.sentinel.url", "must start with"),
        (r#", "when": "lax $.a == 1""#, "$.lookup.when", "own mode"),
        (r#", "matches": "$.a""#, "$.lookup.matches", "unknown field"),
    ] {
        let text = lookup(rest);
        refused(DestinationConfig::parse(&json(&text)), path, message, &text);
    }
    let all = [("url", "https://h/q"), ("records", "$[*]"), ("match", "$.r"), ("record_id", "$.id")];
    for (missing, _) in all {
        let rest = all.iter().filter(|(name, _)| *name != missing);
        let members: Vec<String> = rest.map(|(name, value)| format!("\"{name}\": \"{value}\"")).collect();
        let text = http(&format!("\"lookup\": {{{}}}", members.join(", ")));
        refused(DestinationConfig::parse(&json(&text)), &format!("$.lookup.{missing}"), "needs the field", &text);
    }
    let zero = destination(&lookup(r#", "settle_delay": "0s", "agreeing": 20"#)).alone().expect("whole");
    let zero = zero.lookup.expect("defined");
    assert_eq!((zero.settle_delay_ms, zero.max_lookups), (Some(0), 20));
}

#[test]
fn a_command_type_that_is_not_valid_is_refused_with_its_path() {
    for (rest, path, message) in [
        (r#""aproval": {}"#, "$.aproval", "unknown field"),
        (r#""schema": 1"#, "$.schema", "neither an object"),
        (r#""immaterial": "/a""#, "$.immaterial", "wrong type"),
        (r#""immaterial": ["a"]"#, "$.immaterial[0]", "JSON pointer"),
        (r#""immaterial": ["/a", ""]"#, "$.immaterial[1]", "JSON pointer"),
        (r#""immaterial": ["/a~2"]"#, "$.immaterial[0]", "JSON pointer"),
        (r#""immaterial": ["/a~"]"#, "$.immaterial[0]", "JSON pointer"),
        (r#""deny_when": true"#, "$.deny_when", "wrong type"),
        (r#""deny_when": "lax $.a == 1""#, "$.deny_when", "own mode"),
        (r#""approval": {"approvers": 0}"#, "$.approval.approvers", "range"),
        (r#""approval": {"ttl": "0s"}"#, "$.approval.ttl", "zero"),
        (r#""approval": {"separate_proposer": "yes"}"#, "$.approval.separate_proposer", "wrong type"),
        (r#""approval": true"#, "$.approval", "wrong type"),
        (r#""retry": {"max_attempts": 0}"#, "$.retry.max_attempts", "range"),
        (r#""retry": {"base": "0ms"}"#, "$.retry.base", "zero"),
        (r#""retry": {"base": "2s", "cap": "1s"}"#, "$.retry.cap", "shorter"),
        (r#""retry": {"deadline": "0d"}"#, "$.retry.deadline", "zero"),
        (r#""retention": {"payload": "400d", "key": "90d"}"#, "$.retention.key", "before its payload"),
        (r#""lookalike": {}"#, "$.lookalike.window", "required"),
        (r#""lookalike": {"window": "1m", "action": "warn"}"#, "$.lookalike.action", "unknown word"),
        (r#""lane_on_failure": "stop""#, "$.lane_on_failure", "unknown word"),
        (r#""request": {"url": "{{ params.url }}"}"#, "$.request.url", "must start with"),
    ] {
        let text = format!(r#"{{"destination": "erp", {rest}}}"#);
        refused(CommandTypePolicy::parse(&json(&text)), path, message, &text);
    }
    refused(CommandTypePolicy::parse(&json("{}")), "$.destination", "required", "{}");
    let text = r#"{"destination": ""}"#;
    refused(CommandTypePolicy::parse(&json(text)), "$.destination", "name of a destination", text);
}
