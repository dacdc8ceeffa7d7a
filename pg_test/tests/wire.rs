//! The way to a destination and back, seen from SQL: redirects, proxies, addresses, and answers of any size and shape.

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

/// A destination and a command type of this name that post to the URL.
fn define(ledger: &mut Ledger, name: &str, url: &str, overrides: Value) {
    let mut config = json!({
        "request": {"body": {"reference": "{{ destination_key }}"}, "timeout": "2s", "connect_timeout": "1s"},
        "success": {"record_id": "$.id"},
    });
    if let Value::Object(members) = overrides {
        members.into_iter().for_each(|(member, value)| config[member] = value);
    }
    ledger.define_http_destination(name, url, config);
    let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 2});
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

/// What the journal keeps of the answer to the last attempt.
fn facts(ledger: &mut Ledger, key: &str) -> Value {
    let sql = format!(
        "select answer from command_ledger.attempts where idempotency_key = '{key}' order by attempt desc limit 1"
    );
    serde_json::from_str(&ledger.text(&sql)).expect("JSON")
}

/// Everything that the ledger's tables hold, as text.
fn all_tables(ledger: &mut Ledger) -> String {
    let tables: Vec<String> = ledger.column(
        "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = 'command_ledger' and c.relkind = 'r'",
        &[],
    );
    assert!(tables.len() >= 10, "{tables:?}");
    let contents =
        tables.iter().map(|table| ledger.maybe_text(&format!("select string_agg(t::text, ' ') from {table} t")));
    contents.collect::<Vec<_>>().into_iter().flatten().collect()
}

#[test]
fn a_redirect_is_never_followed() {
    let mut ledger = ledger();
    let (erp, elsewhere) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    define(&mut ledger, "redirecting", &erp.url("/records"), json!({}));
    for status in [301, 302, 303, 307, 308] {
        for (kind, target) in [("away", elsewhere.url("/records")), ("back", "/records".to_owned())] {
            let key = format!("redirected {kind} by {status}");
            erp.next(answer(status, json!({})).header("Location", &target));
            ledger.register("redirecting", &key, json!({}));
            assert!(ledger.wait_status(&key, "needs_reconciliation").maybe_sent, "{key}");
        }
    }
    assert_eq!((erp.writes().len(), erp.lookups().len(), elsewhere.requests().len()), (10, 0, 0));
}

#[test]
fn a_proxy_comes_from_the_setting_and_never_from_the_environment() {
    let (stranger, proxy) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    let mut builder = Cluster::builder().preload(true).fsync_off();
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        builder = builder.environment(name, &stranger.url(""));
    }
    let cluster = builder.start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "direct", &erp.url("/records"), json!({}));
    ledger.register("direct", "P-1", json!({}));
    ledger.wait_status("P-1", "confirmed");
    assert_eq!((erp.effects_for("P-1"), stranger.connections()), (1, 0));

    cluster.set("command_ledger.proxy", &proxy.url("").replace("http://", "http://ann:pa55word@"));
    define(&mut ledger, "proxied", "http://erp.invalid/records?a=b", json!({}));
    ledger.register("proxied", "P-2", json!({}));
    ledger.wait_status("P-2", "confirmed");
    let seen = &proxy.writes()[0];
    assert_eq!(seen.target, "http://erp.invalid/records?a=b");
    assert_eq!(seen.header("host"), Some("erp.invalid"));
    assert_eq!(seen.header("proxy-authorization"), Some("Basic YW5uOnBhNTV3b3Jk"));
    assert_eq!(stranger.connections(), 0);

    proxy.refuse_connections();
    proxy.close_connections();
    ledger.register("proxied", "P-3", json!({}));
    let receipt = ledger.wait_status("P-3", "failed");
    assert_eq!((receipt.error.as_deref(), receipt.maybe_sent), (Some("budget_exhausted"), false));
    // The server itself writes every changed setting into its log; nothing else may name the password.
    let log = cluster.log();
    let told: Vec<&str> = log.lines().filter(|l| l.contains("pa55word") && !l.contains("changed to")).collect();
    assert!(told.is_empty(), "{told:?}");
    assert!(!all_tables(&mut ledger).contains("pa55word"));
}

#[test]
fn an_answer_beyond_the_limit_is_cut_and_keeps_the_digest_of_all_of_it() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "limited", &erp.url("/records"), json!({"limits": {"response_bytes": 1000}}));
    let long = json!({"id": "R-1", "text": "x".repeat(5_000)});
    erp.next(answer(201, long.clone()).then(answer(201, json!({"id": "R-2"}))));
    ledger.register("limited", "L-1", json!({}));
    assert!(ledger.wait_status("L-1", "needs_reconciliation").maybe_sent);
    let digest: String = ledger.one("select encode(sha256(convert_to($1::text, 'UTF8')), 'hex')", &[&long.to_string()]);
    let kept = facts(&mut ledger, "L-1");
    assert_eq!(kept["truncated"], json!(true));
    assert_eq!(kept["body_bytes"], json!(long.to_string().len()));
    assert_eq!(kept["body_sha256"], json!(digest));
    ledger.register("limited", "L-2", json!({}));
    assert_eq!(ledger.wait_status("L-2", "confirmed").destination_record_id.as_deref(), Some("R-2"));
    assert_eq!(facts(&mut ledger, "L-2").get("truncated"), None);
}

#[test]
fn no_answer_of_any_shape_stops_the_relay_or_counts_as_proof() {
    let mut ledger = ledger();
    let relay = ledger.relay_pid();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "hostile", &erp.url("/records"), json!({}));
    let raw = |body: &[u8]| {
        let head =
            format!("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        answer_raw(&[head.as_bytes(), body].concat())
    };
    let deep = [vec![b'['; 30_000], vec![b']'; 30_000]].concat();
    let mut rows = vec![
        ("not UTF-8", raw(b"{\"id\": \"\xff\xfe\"}")),
        ("a NUL byte", raw(b"{\"id\": \"a\0b\"}")),
        ("an escaped NUL", raw(br#"{"id": "a\u0000b"}"#)),
        ("half a surrogate", raw(br#"{"id": "\ud800"}"#)),
        ("duplicate members", raw(br#"{"id": "a", "id": "b"}"#)),
        ("a huge number", raw(br#"{"id": 1e400000000}"#)),
        ("deep nesting", raw(&deep)),
        ("an empty id", raw(br#"{"id": ""}"#)),
        ("a line break in the id", raw(br#"{"id": "a\nb"}"#)),
        ("an empty body", raw(b"")),
        ("binary", raw(&[0x89, 0x50, 0x4e, 0x47, 0, 1, 2, 3])),
        ("a body without an end", endless_body()),
        ("a body that drips", slow_body(100)),
        ("a body that breaks off", reset_mid_body()),
        (
            "a head without an end",
            answer_raw(&[b"HTTP/1.1 201 Created\r\nX: ".as_slice(), &vec![b'x'; 200_000]].concat()),
        ),
        ("a status out of range", answer_raw(b"HTTP/1.1 99999 Huh\r\nContent-Length: 0\r\n\r\n")),
        ("two lengths", answer_raw(b"HTTP/1.1 201 Created\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}")),
    ];
    rows.push((
        "a protocol switch",
        answer_raw(b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"),
    ));
    let keys: Vec<String> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    let behaviours: std::collections::HashMap<String, Behaviour> =
        rows.into_iter().map(|(name, behaviour)| (name.to_owned(), behaviour)).collect();
    erp.otherwise_by(move |request, _| {
        let key = request.json().unwrap_or_default()["reference"].as_str().unwrap_or_default().to_owned();
        behaviours.get(&key).cloned().unwrap_or_else(accept)
    });
    for key in &keys {
        ledger.register("hostile", key, json!({}));
    }
    for key in &keys {
        let receipt = ledger.wait_status(key, "needs_reconciliation");
        assert!(receipt.maybe_sent && receipt.destination_record_id.is_none(), "{receipt:?}");
    }
    ledger.register("hostile", "sound", json!({}));
    ledger.wait_status("sound", "confirmed");
    assert_eq!(ledger.relay_pid(), relay, "the same relay as before");
    assert_eq!(erp.writes().len(), keys.len() + 1);
}

#[test]
fn of_an_answers_head_nothing_is_stored_that_could_be_a_secret() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "cookies", &erp.url("/records"), json!({}));
    let mut told = answer(201, json!({"id": "R-1"}));
    for name in ["Set-Cookie", "Authorization", "WWW-Authenticate", "X-Session-Token"] {
        told = told.header(name, "s3cret-of-the-answer");
    }
    erp.next(told.then(answer(503, json!({})).header("Set-Cookie", "s3cret-of-the-answer")));
    ledger.register("cookies", "H-1", json!({}));
    ledger.wait_status("H-1", "confirmed");
    ledger.register("cookies", "H-2", json!({}));
    ledger.wait_status("H-2", "needs_reconciliation");
    for key in ["H-1", "H-2"] {
        let evidence = ledger.text(&format!("select command_ledger.evidence('{key}')"));
        assert!(!evidence.contains("s3cret-of-the-answer"), "{evidence}");
    }
    assert!(!all_tables(&mut ledger).contains("s3cret-of-the-answer"));
    assert!(!CLUSTER.log().contains("s3cret-of-the-answer"));
}

#[test]
fn addresses_that_reach_the_host_itself_are_refused_without_using_up_the_budget() {
    let mut ledger = ledger();
    for (n, host) in
        ["169.254.169.254", "169.254.7.7", "[fe80::1]", "[::ffff:169.254.169.254]", "metadata.google.internal"]
            .iter()
            .enumerate()
    {
        let (name, key) = (format!("metadata_{n}"), format!("A-{n}"));
        define(&mut ledger, &name, &format!("http://{host}/latest/meta-data"), json!({}));
        ledger.register(&name, &key, json!({}));
        ledger.wait_until(
            &format!(
                "select transport = 'not_allowed' from command_ledger.attempts where idempotency_key = '{key}' limit 1"
            ),
            60,
        );
        let receipt = ledger.status(&key);
        assert_eq!((receipt.status.as_str(), receipt.maybe_sent), ("approved", false), "{host}");
        assert!(receipt.error_message.is_some_and(|m| m.contains("is refused")), "{host}");
        let waits: bool = ledger.one(
            "select s.retry_at >= a.ended_at + interval '4 s' from command_ledger.status($1) s \
             join command_ledger.attempts a using (idempotency_key) where a.attempt = s.attempt",
            &[&key],
        );
        assert!(waits, "{host}: the next look is not at once");
    }
}

#[test]
fn a_refused_address_that_is_allowed_later_is_called_with_a_full_budget() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    // The unspecified address is refused, and leads to this host where it is not.
    define(&mut ledger, "own", &erp.url("/records").replace("127.0.0.1", "0.0.0.0"), json!({}));
    ledger.define_type("own", json!({"destination": "own", "retry": {"max_attempts": 1}}));
    ledger.register("own", "O-1", json!({}));
    ledger.wait_until("select attempt = 1 and status = 'approved' from command_ledger.status('O-1')", 60);
    let counted: i32 =
        ledger.one("select counted_attempts from command_ledger.outbox where idempotency_key = 'O-1'", &[]);
    assert_eq!((counted, erp.connections()), (0, 0));
    cluster.set("command_ledger.allowed_hosts", "10.9.9.9, 0.0.0.0");
    let receipt = ledger.wait_status("O-1", "confirmed");
    assert!(receipt.attempt >= 2, "{receipt:?}");
    assert_eq!(erp.effects_for("O-1"), 1);
}
