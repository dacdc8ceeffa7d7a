//! What goes out: values in URLs, headers, JSON and forms. A value stays a value wherever it stands, and what cannot be
//! sent is refused before anything leaves.

use pg_test::http::form_value;
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

/// Values that would mean something else if anybody read them as syntax.
const HOSTILE: [&str; 12] = [
    r#"", "admin": true, "x": ""#,
    r#"\", \"admin\": true, \"x\": \""#,
    "{{ destination_key }}",
    "{% for x in range(9) %}x{% endfor %}",
    "a&admin=true",
    "a=b#c?d/e\\f%2fg;h",
    "../../admin",
    "a b+c\td",
    "zwölf € 😀",
    "</script><!--",
    "null",
    "a\r\nX-Admin: 1\r\n\r\nGET /admin HTTP/1.1",
];

fn define(ledger: &mut Ledger, name: &str, url: &str, request: Value) {
    let mut config = json!({"request": {"timeout": "2s"}, "success": {"record_id": "$.id"}});
    if let Value::Object(members) = request {
        members.into_iter().for_each(|(member, value)| config["request"][member] = value);
    }
    ledger.define_http_destination(name, url, config);
    ledger.define_type(name, json!({"destination": name}));
}

/// The command ends as rejected, and no attempt was made.
fn is_rejected(ledger: &mut Ledger, key: &str) -> String {
    let receipt = ledger.wait_status(key, "failed");
    assert_eq!((receipt.error.as_deref(), receipt.attempt, receipt.maybe_sent), (Some("rejected"), 0, false), "{key}");
    receipt.error_message.unwrap_or_default()
}

#[test]
fn a_value_cannot_break_out_of_its_leaf_in_a_json_body() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let body = json!({"reference": "{{ destination_key }}", "whole": "{{ params.x }}", "part": "<{{ params.x }}>",
                      "list": ["{{ params.x }}"], "tree": "{{ params }}", "amount": "{{ params.n }}"});
    define(&mut ledger, "json_body", &erp.url("/records"), json!({"body": body}));
    for (n, hostile) in HOSTILE.iter().enumerate() {
        let key = format!("json-{n}");
        ledger.register("json_body", &key, json!({"x": hostile, "n": 12.30}));
        ledger.wait_status(&key, "confirmed");
        let sent = erp.writes().pop().expect("it came");
        let wanted = json!({"reference": key, "whole": hostile, "part": format!("<{hostile}>"), "list": [hostile],
                            "tree": {"x": hostile, "n": 12.30}, "amount": 12.30});
        assert_eq!(sent.json(), Some(wanted), "{hostile}");
        assert_eq!(sent.header("content-type"), Some("application/json"));
    }
    assert_eq!(erp.requests().len(), HOSTILE.len());
}

#[test]
fn numbers_are_sent_exactly_as_they_were_registered() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(
        &mut ledger,
        "numbers",
        &erp.url("/records"),
        json!({"body": {"a": "{{ params.a }}", "b": "{{ params.b }}"}}),
    );
    ledger.exec(
        "select command_ledger.register('numbers', 'numbers-1', '{\"a\": 9007199254740993, \"b\": 0.10000000000000000001}')",
    );
    ledger.wait_status("numbers-1", "confirmed");
    let sent = String::from_utf8(erp.writes()[0].body.clone()).expect("UTF-8");
    assert_eq!(sent, r#"{"a":9007199254740993,"b":0.10000000000000000001}"#);
}

#[test]
fn a_value_is_percent_encoded_wherever_it_stands_in_a_url() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let url = format!("{}/{{{{ params.x }}}}/lines?q={{{{ params.x }}}}&end=1", erp.url("/plants"));
    define(&mut ledger, "urls", &url, json!({}));
    for (n, hostile) in HOSTILE.iter().enumerate() {
        let key = format!("url-{n}");
        ledger.register("urls", &key, json!({"x": hostile}));
        ledger.wait_status(&key, "confirmed");
        let sent = erp.writes().pop().expect("it came");
        assert_eq!(sent.query("q").as_deref(), Some(*hostile));
        assert_eq!(sent.query("end").as_deref(), Some("1"), "{}", sent.target);
        let segments: Vec<&str> = sent.path().split('/').collect();
        assert_eq!((segments.len(), segments[1], segments[3]), (4, "plants", "lines"), "{}", sent.target);
        assert_eq!(form_value(&format!("x={}", segments[2]), "x").as_deref(), Some(*hostile));
        assert_eq!(sent.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-admin")).count(), 0);
    }
    // What no encoding can carry is refused before anything is sent.
    for (n, unfit) in ["..", ".", ""].iter().enumerate() {
        let key = format!("url-unfit-{n}");
        ledger.register("urls", &key, json!({"x": unfit}));
        assert!(is_rejected(&mut ledger, &key).contains("$.request.url"), "{unfit:?}");
    }
    ledger.register("urls", "url-long", json!({"x": "y".repeat(5_000)}));
    assert!(is_rejected(&mut ledger, "url-long").contains("too long"));
    assert_eq!(erp.requests().len(), HOSTILE.len());
}

#[test]
fn a_header_that_would_be_two_is_refused_before_anything_is_sent() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "headers", &erp.url("/records"), json!({"headers": {"X-Ref": "r-{{ params.x }}"}}));
    ledger.register("headers", "header-good", json!({"x": "a b~"}));
    ledger.wait_status("header-good", "confirmed");
    assert_eq!(erp.writes()[0].header("x-ref"), Some("r-a b~"));
    let long = "y".repeat(9_000);
    for (n, unfit) in
        ["a\r\nX-Admin: 1", "a\nb", "a\rb", "a\u{7f}", "ü", "a\u{2028}b", long.as_str()].iter().enumerate()
    {
        let key = format!("header-{n}");
        ledger.register("headers", &key, json!({"x": unfit}));
        let said = is_rejected(&mut ledger, &key);
        assert!(said.contains("X-Ref") && !said.contains("X-Admin"), "{said}");
    }
    let many: serde_json::Map<String, Value> = (0..6).map(|n| (format!("X-{n}"), json!("{{ params.x }}"))).collect();
    define(&mut ledger, "many_headers", &erp.url("/records"), json!({"headers": many}));
    ledger.register("many_headers", "headers-long", json!({"x": "y".repeat(6_000)}));
    assert!(is_rejected(&mut ledger, "headers-long").contains("together"));
    assert_eq!(erp.requests().len(), 1);
}

#[test]
fn a_template_that_finds_no_value_is_refused_before_anything_is_sent() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "missing", &erp.url("/records"), json!({"body": {"a": {"b": ["{{ params.x.y }}"]}}}));
    ledger.register("missing", "missing-1", json!({"x": {}}));
    let said = is_rejected(&mut ledger, "missing-1");
    assert!(said.contains("$.request.body.a.b[0]"), "{said}");
    // The operator's way out: nothing was sent, so another command under another key is safe.
    ledger.register("missing", "missing-2", json!({"x": {"y": 1}}));
    ledger.wait_status("missing-2", "confirmed");
    assert_eq!(erp.requests().len(), 1);
}

#[test]
fn form_bodies_keep_values_apart() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let body = json!({"reference": "{{ destination_key }}", "name": "{{ params.x }}", "nested": {"amount": "{{ params.n }}"},
                      "items": ["a", "{{ params.x }}"]});
    let request = json!({"content_type": "application/x-www-form-urlencoded", "body": body});
    define(&mut ledger, "form", &erp.url("/records"), request);
    for (n, hostile) in HOSTILE.iter().enumerate() {
        let key = format!("form-{n}");
        ledger.register("form", &key, json!({"x": hostile, "n": 5}));
        ledger.wait_status(&key, "confirmed");
        let sent = erp.writes().pop().expect("it came");
        assert_eq!(sent.header("content-type"), Some("application/x-www-form-urlencoded"));
        let form = String::from_utf8(sent.body.clone()).expect("ASCII");
        let value = |name: &str| form_value(&form, name);
        assert_eq!(form.split('&').count(), 5, "{form}");
        assert_eq!(value("name").as_deref(), Some(*hostile), "{form}");
        assert_eq!(value("items[1]").as_deref(), Some(*hostile), "{form}");
        assert_eq!((value("nested[amount]").as_deref(), value("admin")), (Some("5"), None), "{form}");
    }
    assert_eq!(erp.effects(), HOSTILE.len());
}
