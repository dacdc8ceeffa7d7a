//! What never left, and what a repeat that never left does not change.

use pg_test::destination::TlsFront;
use pg_test::kind::{KINDS, Kind};
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

#[test]
fn what_provably_never_left_is_tried_again_by_budget_for_every_kind_of_destination() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let closed = Destination::start(Profile::Plain);
    closed.refuse_connections();
    let deaf = Deaf::start();
    let stranger = TlsFront::self_signed(&erp, &["127.0.0.1"]);
    let urls = [
        ("refused", closed.url("/records")),
        ("unresolved", "http://no-such-host.invalid/records".to_owned()),
        ("tls", stranger.url("127.0.0.1", "/records")),
        ("connect_timeout", deaf.url("/records")),
    ];
    for kind in KINDS {
        ledger.define_destination(kind.name(), kind.config(&erp));
        for (why, url) in &urls {
            let command_type = format!("{}_{why}", kind.name());
            let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 2});
            let connect_timeout = if *why == "connect_timeout" { "300ms" } else { "20s" };
            let request = json!({"url": url, "timeout": "20s", "connect_timeout": connect_timeout});
            let policy = json!({"destination": kind.name(), "request": request, "retry": retry});
            ledger.define_type(&command_type, policy);
            ledger.register(&command_type, &command_type, json!({}));
        }
    }
    for kind in KINDS {
        for (why, _) in &urls {
            let key = format!("{}_{why}", kind.name());
            let receipt = ledger.wait_status(&key, "failed");
            assert_eq!(receipt.error.as_deref(), Some("budget_exhausted"), "{key}: {receipt:?}");
            assert_eq!((receipt.attempt, receipt.maybe_sent), (2, false), "{key}");
            let told: Vec<String> = ledger.column(
                "select kind || ' ' || transport from command_ledger.attempts where idempotency_key = $1 order by attempt",
                &[&key],
            );
            assert_eq!(told, [format!("not_sent {why}"), format!("budget_over {why}")]);
            let story: String = ledger.one("select command_ledger.explain($1)", &[&key]);
            assert!(story.contains(&format!("({})", why.replace('_', " "))), "{story}");
        }
    }
    assert_eq!(erp.requests().len(), 0);
    assert_eq!(erp.effects() + closed.effects(), 0);
}

#[test]
fn a_repeat_that_never_left_does_not_clear_what_the_first_may_have_done() {
    let mut ledger = ledger();
    let pay = Destination::start(Kind::Key.profile());
    let mut config = Kind::Key.config(&pay);
    config["request"]["timeout"] = json!("10s");
    ledger.define_destination("flag", config);
    let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 3});
    ledger.define_type("flag", json!({"destination": "flag", "retry": retry}));
    pay.next(hang());
    ledger.register("flag", "P-1", json!({}));
    pay.wait_for_held(1);
    pay.refuse_connections();
    pay.release();
    let open = ledger.wait_status("P-1", "needs_reconciliation");
    assert!(open.maybe_sent);
    assert_eq!(open.attempt, 3);
    let reason: String =
        ledger.one("select reason::text from command_ledger.reconciliation_queue where idempotency_key = 'P-1'", &[]);
    assert_eq!(reason, "budget_exhausted");
    let told: Vec<String> = ledger
        .column("select transport from command_ledger.attempts where idempotency_key = 'P-1' order by attempt", &[]);
    assert_eq!(told, ["reset", "refused", "refused"]);
    assert_eq!(pay.writes().len(), 1);
}

#[test]
fn after_a_person_found_nothing_a_refusal_is_a_failure_again() {
    let mut ledger = ledger();
    let mail = Destination::start(Profile::Plain);
    ledger.define_destination("person", Kind::Neither.config(&mail));
    ledger.define_type("person", json!({"destination": "person"}));
    for (key, status, error) in [("M-1", 404, "permanent"), ("M-2", 409, "permanent"), ("M-3", 403, "permission")] {
        mail.next(drop_before_commit().then(answer(status, json!({}))));
        ledger.register("person", key, json!({}));
        assert!(ledger.wait_status(key, "needs_reconciliation").maybe_sent);
        ledger.call("reconcile", json!({"idempotency_key": key, "finding": "not_found", "expected_attempt": 1}));
        let receipt = ledger.wait_status(key, "failed");
        assert_eq!((receipt.error.as_deref(), receipt.maybe_sent, receipt.attempt), (Some(error), false, 2), "{key}");
    }
    assert_eq!((mail.writes().len(), mail.effects()), (6, 0));
}
