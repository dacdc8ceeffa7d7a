//! TLS: who is not proven is not sent to, and nothing ever goes out in the clear instead.

use pg_test::destination::TlsFront;
use pg_test::prelude::*;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    cluster.ledger("app");
    cluster
});

/// The file of authorities is one setting: whoever changes it has the cluster alone.
fn alone() -> (MutexGuard<'static, ()>, Ledger) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    CLUSTER.reset("command_ledger.ca_file");
    (turn, Ledger::over(CLUSTER.connect("app")))
}

fn define(ledger: &mut Ledger, name: &str, url: &str) {
    let request = json!({"body": {"reference": "{{ destination_key }}"}, "timeout": "2s", "connect_timeout": "700ms"});
    ledger.define_http_destination(name, url, json!({"request": request, "success": {"record_id": "$.id"}}));
    let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 2});
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

/// Registers a command and waits until it failed without anything sent; the reason of its last attempt.
fn never_leaves(ledger: &mut Ledger, name: &str, key: &str) -> String {
    ledger.register(name, key, json!({}));
    let receipt = ledger.wait_status(key, "failed");
    assert_eq!((receipt.error.as_deref(), receipt.maybe_sent), (Some("budget_exhausted"), false), "{receipt:?}");
    ledger.one(
        "select transport from command_ledger.attempts where idempotency_key = $1 order by attempt desc limit 1",
        &[&key],
    )
}

#[test]
fn only_a_certificate_of_a_known_authority_for_this_very_name_is_sent_to() {
    let (_turn, mut ledger) = alone();
    let erp = Destination::start(Profile::Plain);
    let authority = Authority::new();
    let front = authority.front(&erp, &["127.0.0.1", "localhost"]);
    let other_name = authority.front(&erp, &["erp.example"]);
    let self_signed = TlsFront::self_signed(&erp, &["127.0.0.1"]);
    let stranger = Authority::new().front(&erp, &["127.0.0.1"]);
    for (name, url) in [
        ("known", front.url("127.0.0.1", "/records")),
        ("by_name", front.url("localhost", "/records")),
        ("other_name", other_name.url("127.0.0.1", "/records")),
        ("self_signed", self_signed.url("127.0.0.1", "/records")),
        ("stranger", stranger.url("127.0.0.1", "/records")),
    ] {
        define(&mut ledger, name, &url);
    }
    assert_eq!(never_leaves(&mut ledger, "known", "before the authority is known"), "tls");

    let ca_file = CLUSTER.write_file("ca.pem", &authority.pem());
    CLUSTER.set("command_ledger.ca_file", ca_file.to_str().expect("UTF-8"));
    for name in ["known", "by_name"] {
        ledger.register(name, name, json!({}));
        assert!(ledger.wait_status(name, "confirmed").destination_record_id.is_some());
    }
    for name in ["other_name", "self_signed", "stranger"] {
        assert_eq!(never_leaves(&mut ledger, name, name), "tls");
    }
    assert!(other_name.connections() > 0 && self_signed.connections() > 0 && stranger.connections() > 0);

    CLUSTER.reset("command_ledger.ca_file");
    assert_eq!(never_leaves(&mut ledger, "known", "after the authority is gone"), "tls");
    assert_eq!((erp.requests().len(), erp.effects()), (2, 2));
}

#[test]
fn nothing_goes_out_in_the_clear_where_tls_fails() {
    let (_turn, mut ledger) = alone();
    let erp = Destination::start(Profile::Plain);
    // https to a port that speaks no TLS: the greeting is no request, and no second one follows it.
    define(&mut ledger, "clear", &erp.url("/records").replace("http://", "https://"));
    let why = never_leaves(&mut ledger, "clear", "C-1");
    assert!(why == "tls" || why == "connect_timeout", "{why}");
    assert_eq!(erp.requests().len(), 0);

    // http to a port that speaks TLS only is what the definition asks for: it may have been read, and is not repeated.
    let front = TlsFront::self_signed(&erp, &["127.0.0.1"]);
    define(&mut ledger, "no_tls", &front.plain_url("127.0.0.1", "/records"));
    ledger.register("no_tls", "C-2", json!({}));
    assert!(ledger.wait_status("C-2", "needs_reconciliation").maybe_sent);
    assert_eq!((front.connections(), erp.requests().len()), (1, 0));
}

#[test]
fn a_file_of_authorities_that_cannot_be_used_leaves_the_old_ones_and_is_said() {
    let (_turn, mut ledger) = alone();
    let erp = Destination::start(Profile::Plain);
    let authority = Authority::new();
    let front = authority.front(&erp, &["127.0.0.1"]);
    define(&mut ledger, "erp", &front.url("127.0.0.1", "/records"));
    let good = CLUSTER.write_file("ca.pem", &authority.pem());
    CLUSTER.set("command_ledger.ca_file", good.to_str().expect("UTF-8"));
    ledger.register("erp", "F-1", json!({}));
    ledger.wait_status("F-1", "confirmed");
    let mark = CLUSTER.log_mark();
    let bad = CLUSTER.write_file("bad.pem", "not a certificate");
    CLUSTER.set("command_ledger.ca_file", bad.to_str().expect("UTF-8"));
    CLUSTER.wait_for_log("bad.pem", mark, 30);
    ledger.register("erp", "F-2", json!({}));
    ledger.wait_status("F-2", "confirmed");
    assert_eq!(erp.effects(), 2);
}
