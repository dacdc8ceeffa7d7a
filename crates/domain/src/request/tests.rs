use super::*;
use crate::config::{CommandTypePolicy, DestinationConfig, effective};
use crate::template::testing::json;

/// The example of the documentation.
const EXAMPLE: &str = r#"{"transport": "http",
 "request": {"method": "POST", "url": "https://erp.example/requisitions/{{ params.plant }}",
   "headers": {"X-Context": "company-1"}, "content_type": "application/json",
   "auth": {"bearer": {"secret": "erp_token"}},
   "body": {"party": 4, "reference": "{{ destination_key }}", "lines": "{{ params.lines }}"},
   "timeout": "10s", "connect_timeout": "3s"},
 "idempotency": {"mode": "key", "header": "Idempotency-Key", "format": "raw", "window": "24h", "margin": "5m"},
 "success": {"statuses": [200, 201], "record_id": "$.id", "when": "!exists($.error) || $.error == null"},
 "lookup": {"method": "GET", "url": "https://erp.example/requisitions?reference={{ destination_key }}",
   "records": "$[*]", "match": "$.reference", "record_id": "$.id", "when": "$.state != \"cancelled\"",
   "sentinel": {"url": "https://erp.example/requisitions?reference=SENTINEL", "equals": "SENTINEL"},
   "settle_delay": "2m", "agreeing": 2, "interval": "10s", "max_lookups": 10},
 "rules": [{"status": 400, "when": "$.code == \"NOT_UNIQUE\"", "outcome": "lookup"}],
 "limits": {"in_flight": 16, "retries_in_flight": 8, "per_second": 50, "response_bytes": 65536},
 "breaker": {"failures": 5, "cool_down": "30s"}}"#;

fn rendered(destination: &str, params: &str) -> Result<RenderedRequest, RenderError> {
    let config = DestinationConfig::parse(&json(destination)).expect("the destination is valid");
    render_with(&config.alone().expect("the destination is whole"), params)
}

fn render_with(effective: &Effective, params: &str) -> Result<RenderedRequest, RenderError> {
    let params = json(params);
    render(effective, &intent(&params))
}

fn intent<'a>(params: &'a Json<'a>) -> Intent<'a> {
    Intent {
        params,
        destination_key: "acme/order 7",
        command_id: "0190a000-0000-8000-8000-000000000001",
        tenant: "acme",
        command_type: "create_order",
    }
}

fn body(destination: &str, params: &str) -> String {
    String::from_utf8(rendered(destination, params).expect("it renders").body).expect("UTF-8")
}

/// A destination whose request has these members besides the URL.
fn http(rest: &str) -> String {
    let comma = if rest.is_empty() { "" } else { ", " };
    format!(r#"{{"transport": "http", "request": {{"url": "https://erp.example/orders"{comma}{rest}}}}}"#)
}

#[test]
fn the_documented_example_renders_request_and_lookup() {
    let config = DestinationConfig::parse(&json(EXAMPLE)).expect("valid");
    let effective = config.alone().expect("whole");
    let params = json(r#"{"plant": "B 1/2", "lines": [{"qty": 1.50, "no": 9007199254740993}]}"#);
    let request = render(&effective, &intent(&params)).expect("renders");
    assert_eq!(request.method, "POST");
    assert_eq!(request.url, "https://erp.example/requisitions/B%201%2F2");
    assert_eq!(
        request.headers,
        [("X-Context".into(), "company-1".into()), ("Idempotency-Key".into(), "acme/order 7".into())]
    );
    assert_eq!(request.content_type.as_deref(), Some("application/json"));
    assert_eq!(
        String::from_utf8_lossy(&request.body),
        r#"{"lines":[{"no":9007199254740993,"qty":1.50}],"party":4,"reference":"acme/order 7"}"#
    );
    assert_eq!(request.auth.as_ref().map(Auth::secret_names), Some(vec!["erp_token"]));
    assert_eq!((request.timeout_ms, request.connect_timeout_ms), (10_000, 3_000));

    let lookup = render_lookup(&effective, &intent(&params)).expect("renders");
    assert_eq!(lookup.request.method, "GET");
    assert_eq!(lookup.request.url, "https://erp.example/requisitions?reference=acme%2Forder%207");
    assert_eq!(lookup.request.headers, [("X-Context".into(), "company-1".into())]);
    assert_eq!(lookup.request.auth, request.auth);
    assert!(lookup.request.body.is_empty() && lookup.request.content_type.is_none());
    let sentinel = lookup.sentinel.expect("configured");
    assert_eq!(sentinel.url, "https://erp.example/requisitions?reference=SENTINEL");
    assert_eq!(sentinel.auth, request.auth);
}

#[test]
fn the_default_body_is_the_params_in_their_order_with_their_digits() {
    let effective = DestinationConfig::parse(&json(&http(""))).expect("valid").alone().expect("whole");
    let params = Json::Object(vec![
        ("z".into(), Json::Number("9007199254740993".into())),
        ("a".into(), Json::Array(vec![Json::Number("0.10".into()), Json::Null, Json::Bool(true)])),
        ("s".into(), Json::String("q\"\\\n\u{1}é".into())),
    ]);
    let request = render(&effective, &intent(&params)).expect("renders");
    let wanted = "{\"z\":9007199254740993,\"a\":[0.10,null,true],\"s\":\"q\\\"\\\\\\n\\u0001é\"}";
    assert_eq!(String::from_utf8_lossy(&request.body), wanted);
    assert_eq!(request.method, "POST");
}

#[test]
fn values_never_break_out_of_their_leaf() {
    let destination = http(r#""body": {"a": "{{ params.x }}", "b": "<{{ params.x }}>", "c{{ params.x }}": 1}"#);
    let hostile = r#"{"x": "\", \"admin\": true, \"y\": \"{{ tenant }}"}"#;
    let text = body(&destination, hostile);
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("still JSON");
    let members: Vec<&str> = parsed.as_object().expect("object").keys().map(String::as_str).collect();
    // Member names are not templates, and what a value says is not evaluated again.
    assert_eq!(members, ["a", "b", "c{{ params.x }}"]);
    assert_eq!(parsed["a"], "\", \"admin\": true, \"y\": \"{{ tenant }}");
}

#[test]
fn the_body_names_the_path_of_what_failed_and_no_value() {
    let destination = http(r#""body": {"order": {"lines": ["x", {"a-b": "{{ params.secretive.sku }}"}]}}"#);
    let failed = rendered(&destination, r#"{"secretive": "payload-value"}"#).expect_err("missing");
    assert_eq!(failed.path, "$.request.body.order.lines[1][\"a-b\"]");
    assert_eq!(failed.reason, "params.secretive.sku is missing");
    assert!(!failed.to_string().contains("payload-value"));
}

#[test]
fn bodies_follow_method_and_content_type() {
    let content = |destination: &str| rendered(destination, r#"{"a": 1}"#).expect("renders");
    let get = content(&http(r#""method": "GET""#));
    assert_eq!((get.body.len(), get.content_type), (0, None));
    let delete = content(&http(r#""method": "DELETE", "body": null"#));
    assert_eq!((delete.body.len(), delete.content_type), (0, None));
    assert_eq!(content(&http(r#""body": "{{ params }}""#)).body, br#"{"a":1}"#);
    assert_eq!(content(&http(r#""body": [1.0, true, null, "x"]"#)).body, br#"[1.0,true,null,"x"]"#);
    let api = content(&http(r#""content_type": "application/vnd.api+json""#));
    assert_eq!(api.content_type.as_deref(), Some("application/vnd.api+json"));
}

#[test]
fn forms_use_brackets_and_percent_encoding() {
    let form = r#""content_type": "application/x-www-form-urlencoded""#;
    let params = r#"{"amount": 12.50, "b": {"c d": "x&y=z", "e": [1, {"f": true}]}, "n": null, "u": "é+ ~*"}"#;
    assert_eq!(
        body(&http(form), params),
        "amount=12.50&b%5Bc+d%5D=x%26y%3Dz&b%5Be%5D%5B0%5D=1&b%5Be%5D%5B1%5D%5Bf%5D=true&n=&u=%C3%A9%2B+%7E*"
    );
    let tree = format!(
        r#"{form}, "body": {{"k": "{{{{ destination_key }}}}", "l": ["{{{{ params.b.e }}}}", 2], "z": false}}"#
    );
    assert_eq!(
        body(&http(&tree), params),
        "k=acme%2Forder+7&l%5B0%5D%5B0%5D=1&l%5B0%5D%5B1%5D%5Bf%5D=true&l%5B1%5D=2&z=false"
    );
    let whole = format!(r#"{form}, "body": "{{{{ params.b }}}}""#);
    assert!(body(&http(&whole), params).starts_with("c+d=x%26y%3Dz&e%5B0%5D=1"));
    let scalar = format!(r#"{form}, "body": "{{{{ params.amount }}}}""#);
    let failed = rendered(&http(&scalar), params).expect_err("a form of a number");
    assert_eq!((failed.path.as_str(), failed.reason.as_str()), ("$.request.body", "a form body must be an object"));
}

/// A destination with this URL.
fn with_url(url: &str) -> String {
    format!(r#"{{"transport": "http", "request": {{"url": "{url}"}}}}"#)
}

#[test]
fn url_values_are_encoded_and_cannot_move_the_request() {
    let url = |url: &str, params: &str| rendered(&with_url(url), params).map(|request| request.url);
    let base = "https://erp.example/a/{{ params.x }}/b?q={{ params.x }}";
    assert_eq!(
        url(base, r#"{"x": "ä/?#&=%2e @:"}"#).as_deref(),
        Ok("https://erp.example/a/%C3%A4%2F%3F%23%26%3D%252e%20%40%3A/b?q=%C3%A4%2F%3F%23%26%3D%252e%20%40%3A")
    );
    assert_eq!(
        url(base, r#"{"x": 9007199254740993.50}"#).as_deref(),
        Ok("https://erp.example/a/9007199254740993.50/b?q=9007199254740993.50")
    );
    for (params, wanted) in [
        (r#"{"x": ".."}"#, "path segment"),
        (r#"{"x": "."}"#, "path segment"),
        (r#"{"x": ""}"#, "is empty"),
        (r#"{"x": null}"#, "is null"),
        (r#"{"x": ["a"]}"#, "is an array"),
        (r#"{"x": {"a": 1}}"#, "is an object"),
        (r#"{}"#, "is missing"),
    ] {
        let failed = url(base, params).expect_err(params);
        assert_eq!(failed.path, "$.request.url", "{params}");
        assert!(failed.reason.contains(wanted), "{params}: {failed}");
    }
    assert_eq!(url("http://h/?q={{ params.x }}", r#"{"x": ""}"#).as_deref(), Ok("http://h/?q="));
    assert_eq!(url("http://h/?q={{ params.x }}", r#"{"x": ".."}"#).as_deref(), Ok("http://h/?q=.."));
    assert!(url("http://h/.{{ params.x }}/c", r#"{"x": "."}"#).is_err());
    assert!(url("http://h/%2e{{ params.x }}/c", r#"{"x": "."}"#).is_err());
    let long = format!(r#"{{"x": "{}"}}"#, "y".repeat(MAX_URL_BYTES));
    assert!(url("http://h/{{ params.x }}", &long).expect_err("too long").reason.contains("too long"));
    // A statement in the path must not smuggle what a value could not.
    assert!(url("http://h/{% if params.x %}../{% endif %}y", r#"{"x": 1}"#).is_err());
    assert!(url("http://h/{% if params.x %}#f{% endif %}", r#"{"x": 1}"#).is_err());
    for unfit in ["<", ">", "^", "`", "|", "\\"] {
        let template = format!("http://h/{{{{ params.x }}}}/{unfit}");
        assert!(url(&template.replace('\\', "\\\\"), r#"{"x": 1}"#).is_err(), "{unfit}");
    }
}

#[test]
fn header_values_with_breaks_are_refused_before_any_send() {
    let destination = http(r#""headers": {"X-Ref": "r-{{ params.x }}"}"#);
    let value = |params: &str| rendered(&destination, params).map(|request| request.headers[0].1.clone());
    assert_eq!(value(r#"{"x": "a b~"}"#).as_deref(), Ok("r-a b~"));
    for hostile in [r"\r\nX-Admin: 1", r"a\nb", r"\u0000", r"\u007f", "é", r"\u2028", r"\u000b"] {
        let failed = value(&format!(r#"{{"x": "{hostile}"}}"#)).expect_err(hostile);
        assert_eq!(failed.path, "$.request.headers[\"X-Ref\"]");
        assert!(failed.reason.contains("line break"), "{failed}");
    }
    assert!(value(&format!(r#"{{"x": "{}"}}"#, "y".repeat(MAX_HEADER_BYTES))).is_err());
}

#[test]
fn headers_that_are_too_long_together_are_refused_before_any_send() {
    let fields: Vec<String> = (0..5).map(|n| format!(r#""X-{n}": "{{{{ params.x }}}}""#)).collect();
    let destination = http(&format!(r#""headers": {{{}}}"#, fields.join(",")));
    let params = |bytes: usize| format!(r#"{{"x": "{}"}}"#, "y".repeat(bytes));
    assert!(rendered(&destination, &params(6_000)).is_ok());
    let failed = rendered(&destination, &params(7_000)).expect_err("35,000 bytes");
    assert_eq!(failed.path, "$.request.headers");
}

#[test]
fn the_idempotency_header_follows_mode_and_format() {
    let header = |idempotency: &str, key: &str| {
        let text =
            format!(r#"{{"transport": "http", "request": {{"url": "http://h/"}}, "idempotency": {idempotency}}}"#);
        let effective = DestinationConfig::parse(&json(&text)).expect("valid").alone().expect("whole");
        let params = json("{}");
        let intent = Intent { destination_key: key, ..intent(&params) };
        render(&effective, &intent).map(|request| request.headers.into_iter().next())
    };
    let is = |value: &str| Some(("Idempotency-Key".to_owned(), value.to_owned()));
    assert_eq!(header(r#"{"mode": "key"}"#, "k 1"), Ok(is("k 1")));
    assert_eq!(header(r#"{"mode": "key", "format": "quoted"}"#, "a\"b\\c"), Ok(is("\"a\\\"b\\\\c\"")));
    assert_eq!(header(r#"{"mode": "key", "format": "uuid"}"#, "é"), Ok(is("0190a000-0000-8000-8000-000000000001")));
    let own = header(r#"{"mode": "key", "header": "X-Request-Id"}"#, "k").expect("renders");
    assert_eq!(own, Some(("X-Request-Id".into(), "k".into())));
    assert_eq!(header(r#"{"mode": "none"}"#, "k"), Ok(None));
    assert_eq!(header(r#"{"mode": "reference"}"#, "k"), Ok(None));
    let failed = header(r#"{"mode": "key"}"#, "é").expect_err("not ASCII");
    assert_eq!(failed.path, "$.idempotency.header");
}

#[test]
fn every_part_that_is_sent_changes_the_digest_and_nothing_else_does() {
    let base = rendered(EXAMPLE, r#"{"plant": "p", "lines": []}"#).expect("renders");
    let with = |change: &dyn Fn(&mut RenderedRequest)| {
        let mut other = base.clone();
        change(&mut other);
        other.digest()
    };
    let same = base.digest();
    assert_eq!(same, with(&|request| request.headers.reverse()));
    assert_eq!(same, with(&|request| request.headers[0].0 = "x-context".into()));
    assert_eq!(same, with(&|request| request.timeout_ms = 1));
    assert_eq!(same, with(&|request| request.connect_timeout_ms = 1));
    let mut seen = vec![same];
    let changes: [&dyn Fn(&mut RenderedRequest); 13] = [
        &|request| request.method = "PUT".into(),
        &|request| request.url.push('x'),
        &|request| request.headers[0].1.push('x'),
        &|request| request.headers[0].0.push('x'),
        &|request| drop(request.headers.pop()),
        &|request| request.content_type = None,
        &|request| request.content_type = Some(FORM.into()),
        &|request| request.body.push(b' '),
        &|request| request.body.clear(),
        &|request| request.auth = None,
        &|request| request.auth = Some(Auth::Bearer { secret: "other".into() }),
        &|request| request.auth = Some(Auth::Header { name: "X-Api-Key".into(), secret: "erp_token".into() }),
        &|request| {
            request.auth = Some(Auth::Basic { user: User::Plain("u".into()), password_secret: "erp_token".into() });
        },
    ];
    for change in changes {
        let digest = with(change);
        assert!(!seen.contains(&digest), "two different requests have one digest");
        seen.push(digest);
    }
}

#[test]
fn a_lookup_may_bring_its_own_headers_and_credentials() {
    let text = r#"{"transport": "http",
      "request": {"url": "http://h/", "headers": {"A": "1"}, "auth": {"bearer": {"secret": "write"}}},
      "lookup": {"url": "http://h/search", "method": "POST", "body": {"ref": "{{ destination_key }}"},
        "headers": {"B": "2"}, "auth": {"header": {"name": "X-Key", "value": {"secret": "read"}}},
        "records": "$[*]", "match": "$.ref", "record_id": "$.id"}}"#;
    let effective = DestinationConfig::parse(&json(text)).expect("valid").alone().expect("whole");
    let params = json("{}");
    let lookup = render_lookup(&effective, &intent(&params)).expect("renders");
    assert_eq!(lookup.request.headers, [("B".to_owned(), "2".to_owned())]);
    assert_eq!(lookup.request.auth, Some(Auth::Header { name: "X-Key".into(), secret: "read".into() }));
    assert_eq!(lookup.request.body, br#"{"ref":"acme/order 7"}"#);
    assert_eq!(lookup.sentinel, None);
}

#[test]
fn what_has_no_request_or_lookup_cannot_be_rendered() {
    let effective = DestinationConfig::parse(&json(r#"{"transport": "pull"}"#)).expect("valid").alone().expect("whole");
    assert_eq!(render_with(&effective, "{}").expect_err("no request").path, "$.request");
    let params = json("{}");
    assert_eq!(render_lookup(&effective, &intent(&params)).expect_err("no lookup").path, "$.lookup");
}

#[test]
fn all_leaves_of_a_request_share_one_budget() {
    let leaf = r#""{% for a in params.l %}{% for b in params.l %}{% endfor %}{% endfor %}""#;
    let destination = http(&format!(r#""body": [{}]"#, [leaf; 8].join(", ")));
    let params = format!(r#"{{"l": [{}]}}"#, vec!["1"; 500].join(", "));
    let failed = rendered(&destination, &params).expect_err("eight loops of 250,000 turns");
    assert!(failed.reason.contains("steps"), "{failed}");
}

#[test]
fn documents_beyond_the_limits_are_refused_not_overflowed() {
    let effective = DestinationConfig::parse(&json(&http(""))).expect("valid").alone().expect("whole");
    let mut deep = Json::Null;
    for _ in 0..5_000 {
        deep = Json::Array(vec![deep]);
    }
    let params = Json::Object(vec![("deep".into(), deep)]);
    assert!(render(&effective, &intent(&params)).expect_err("too deep").reason.contains("nested deeper"));
    let params = Json::Object(vec![("s".into(), Json::String("x".repeat(2 << 20).into()))]);
    assert!(render(&effective, &intent(&params)).expect_err("too large").reason.contains("larger than"));
}

#[test]
fn a_command_type_changes_single_fields_of_the_request() {
    let destination = DestinationConfig::parse(&json(EXAMPLE)).expect("valid");
    let policy = CommandTypePolicy::parse(&json(
        r#"{"destination": "erp", "request": {"url": "https://erp.example/orders", "headers": {"x-context": "b", "Y": "c"},
            "body": {"k": "{{ destination_key }}"}}}"#,
    ))
    .expect("valid");
    let effective = effective(&destination, &policy).expect("fits");
    let request = render_with(&effective, "{}").expect("renders");
    assert_eq!(request.url, "https://erp.example/orders");
    let headers: Vec<(&str, &str)> = request.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(headers, [("Y", "c"), ("x-context", "b"), ("Idempotency-Key", "acme/order 7")]);
    assert_eq!(request.body, br#"{"k":"acme/order 7"}"#);
    assert_eq!(request.auth, Some(Auth::Bearer { secret: "erp_token".into() }));
}
