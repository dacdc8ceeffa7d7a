//! Secrets: read from files when they are needed, sent where the definition says, shown nowhere.

use pg_test::prelude::*;
use std::sync::LazyLock;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().setting("command_ledger.log_deliveries", "on").start();
    let directory = cluster.make_directory("secrets");
    cluster.set("command_ledger.secrets_directory", directory.to_str().expect("UTF-8"));
    cluster.ledger("app");
    cluster
});

fn ledger() -> Ledger {
    LazyLock::force(&CLUSTER);
    Ledger::over(CLUSTER.connect("app"))
}

fn define(ledger: &mut Ledger, name: &str, erp: &Destination, auth: Value, max_attempts: i32) {
    let request = json!({"auth": auth, "body": {"reference": "{{ destination_key }}"}, "timeout": "2s"});
    let config = json!({"request": request, "success": {"record_id": "$.id"}});
    ledger.define_http_destination(name, &erp.url("/records"), config);
    let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": max_attempts});
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

/// Everything that could show a secret: all tables, the evidence and story of these commands, and the log.
fn everything_shown(ledger: &mut Ledger, keys: &[&str]) -> String {
    let tables: Vec<String> = ledger.column(
        "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = 'command_ledger' and c.relkind = 'r'",
        &[],
    );
    let mut shown = CLUSTER.log();
    for table in tables {
        shown.extend(ledger.maybe_text(&format!("select string_agg(t::text, ' ') from {table} t")));
    }
    for key in keys {
        for function in ["evidence", "explain"] {
            shown.extend(ledger.maybe_text(&format!("select command_ledger.{function}('{key}')")));
        }
    }
    shown.extend(ledger.maybe_text("select string_agg(h::text, ' ') from command_ledger.health() h"));
    shown
}

#[test]
fn each_kind_of_credential_arrives_as_it_should_and_is_shown_nowhere() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    CLUSTER.write_file("secrets/token", "tok-AAA111\n");
    CLUSTER.write_file("secrets/password", "pa:ss-BBB222\n");
    CLUSTER.write_file("secrets/user", "ann-CCC333\n");
    CLUSTER.write_file("secrets/api_key", "key-DDD444");
    CLUSTER.write_file("secrets/own_scheme", "Session sess-FFF666\n");
    for (name, auth, header, value) in [
        ("bearer", json!({"bearer": {"secret": "token"}}), "authorization", "Bearer tok-AAA111"),
        (
            "basic",
            json!({"basic": {"user": "ann", "password": {"secret": "password"}}}),
            "authorization",
            "Basic YW5uOnBhOnNzLUJCQjIyMg==",
        ),
        (
            "basic_user",
            json!({"basic": {"user": {"secret": "user"}, "password": {"secret": "password"}}}),
            "authorization",
            "Basic YW5uLUNDQzMzMzpwYTpzcy1CQkIyMjI=",
        ),
        ("header", json!({"header": {"name": "X-Api-Key", "value": {"secret": "api_key"}}}), "x-api-key", "key-DDD444"),
        (
            "own_scheme",
            json!({"header": {"name": "Authorization", "value": {"secret": "own_scheme"}}}),
            "authorization",
            "Session sess-FFF666",
        ),
    ] {
        define(&mut ledger, name, &erp, auth, 1);
        // An error is what would tempt a message to say more.
        erp.next(accept().then(answer(401, json!({"error": "no"}))).then(reset()));
        for (n, status) in ["confirmed", "failed", "needs_reconciliation"].iter().enumerate() {
            let key = format!("{name}-{n}");
            ledger.register(name, &key, json!({}));
            ledger.wait_status(&key, status);
            let write = erp.writes().pop().expect("it came");
            assert_eq!(write.header(header), Some(value), "{key}");
            assert_eq!(write.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(header)).count(), 1, "{key}");
        }
    }
    let shown =
        everything_shown(&mut ledger, &["bearer-0", "bearer-1", "bearer-2", "basic-1", "header-1", "own_scheme-1"]);
    for secret in ["AAA111", "BBB222", "CCC333", "DDD444", "FFF666", "YW5u"] {
        assert!(!shown.contains(secret), "{secret} is shown");
    }
    assert!(shown.contains("status=confirmed"), "deliveries are logged");
}

#[test]
fn a_changed_secret_is_used_from_the_next_send_on() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "rotating", &erp, json!({"bearer": {"secret": "rotating"}}), 1);
    for version in ["one", "two", "three"] {
        CLUSTER.write_file("secrets/rotating", &format!("{version}\n"));
        let key = format!("rotating-{version}");
        ledger.register("rotating", &key, json!({}));
        ledger.wait_status(&key, "confirmed");
        let sent = erp.writes().pop().expect("it came");
        assert_eq!(sent.header("authorization"), Some(format!("Bearer {version}").as_str()));
    }
    assert_eq!(erp.writes().len(), 3);
}

#[test]
fn a_secret_that_is_missing_or_no_text_is_said_and_uses_up_no_budget() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    for (name, content) in [("absent", None), ("lines", Some("first-EEE555\nsecond")), ("empty", Some(""))] {
        if let Some(content) = content {
            CLUSTER.write_file(&format!("secrets/{name}"), content);
        }
        define(&mut ledger, name, &erp, json!({"bearer": {"secret": name}}), 1);
        ledger.register(name, name, json!({}));
        ledger.wait_until(
            &format!("select attempt = 1 and status = 'approved' from command_ledger.status('{name}')"),
            60,
        );
        let receipt = ledger.status(name);
        assert_eq!((receipt.error.as_deref(), receipt.maybe_sent), (Some("not_sent"), false));
        assert!(receipt.error_message.is_some_and(|m| m.contains(name)), "{name}");
        let told: String =
            ledger.one("select transport from command_ledger.attempts where idempotency_key = $1 limit 1", &[&name]);
        assert_eq!(told, "no_secret");
        let said: String = ledger.one("select detail from command_ledger.health() where check_name = 'secrets'", &[]);
        assert!(said.contains(name), "{said}");
    }
    assert_eq!(erp.connections(), 0);
    assert!(!everything_shown(&mut ledger, &["lines"]).contains("EEE555"));

    // Each budget was one attempt. It is still there when the secret is.
    for name in ["absent", "lines", "empty"] {
        CLUSTER.write_file(&format!("secrets/{name}"), "good\n");
    }
    for name in ["absent", "lines", "empty"] {
        assert!(ledger.wait_status(name, "confirmed").attempt >= 2);
    }
    assert_eq!((erp.writes().len(), erp.effects()), (3, 3));
}

#[test]
fn lookups_carry_their_own_credentials() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    CLUSTER.write_file("secrets/write_token", "write\n");
    CLUSTER.write_file("secrets/read_token", "read\n");
    let search = format!("{}?reference={{{{ destination_key }}}}", erp.url("/records"));
    ledger.define_http_destination(
        "both",
        &erp.url("/records"),
        json!({
            "request": {"auth": {"bearer": {"secret": "write_token"}}, "body": {"reference": "{{ destination_key }}"}},
            "lookup": {"url": search, "auth": {"header": {"name": "X-Read", "value": {"secret": "read_token"}}},
                       "records": "$[*]", "match": "$.reference", "record_id": "$.id", "interval": "50ms"},
        }),
    );
    ledger.define_type("both", json!({"destination": "both"}));
    erp.next(drop_after_commit());
    ledger.register("both", "both-1", json!({}));
    ledger.wait_status("both-1", "confirmed");
    assert_eq!(erp.writes()[0].header("authorization"), Some("Bearer write"));
    let lookup = &erp.lookups()[0];
    assert_eq!((lookup.header("x-read"), lookup.header("authorization")), (Some("read"), None));
}
