//! Approval: who may give it, for what exactly, for how long, and what takes it away.

use pg_test::desk::{
    assert_journals, claim, claim_one, define_desk, desk, fail, journal, open_case, refused, say, task,
};
use pg_test::prelude::*;

fn needing(approval: Value) -> (Cluster, Ledger) {
    desk(json!({"approval": approval, "retry": {"base": "1ms", "cap": "1ms"}}))
}

fn hash(ledger: &mut Ledger, key: &str) -> String {
    ledger.status(key).intent_hash.expect("an intent hash")
}

fn approve(ledger: &mut Ledger, key: &str, approver: &str) -> Receipt {
    let hash = hash(ledger, key);
    ledger.call("approve", json!({"idempotency_key": key, "intent_hash": hash, "approver": approver}))
}

fn grant(ledger: &mut Ledger, role: &str, capabilities: &[&str]) -> Ledger {
    ledger.exec(&format!("CREATE ROLE {role} LOGIN"));
    for capability in capabilities {
        ledger.exec(&format!("SELECT command_ledger.grant_access('{role}', '{capability}')"));
    }
    ledger.as_role(role)
}

#[test]
fn two_different_people_make_a_quorum_of_two_and_one_twice_does_not() {
    let (_cluster, mut ledger) = needing(json!({"approvers": 2, "separate_proposer": false}));
    let planned = task(&mut ledger, "k");
    assert_eq!((planned.status.as_str(), planned.approvals_missing), ("planned", Some(2)));
    assert_eq!(approve(&mut ledger, "k", "ann").approvals_missing, Some(1));
    let again = approve(&mut ledger, "k", "ann");
    assert_eq!((again.status.as_str(), again.approvals_missing), ("planned", Some(1)), "the same person twice");
    assert!(claim(&mut ledger, 10).is_empty());
    let approved = approve(&mut ledger, "k", "bob");
    assert_eq!((approved.status.as_str(), approved.approvals_missing), ("approved", Some(0)));
    assert_eq!(claim_one(&mut ledger).key, "k");
    assert_journals(&mut ledger);
}

#[test]
fn the_approval_queue_counts_approvers_as_the_quorum_does() {
    let (_cluster, mut ledger) = needing(json!({"approvers": 3, "separate_proposer": false}));
    task(&mut ledger, "k");
    let hash = hash(&mut ledger, "k");
    // An approval without a stated person may be by any person of its role: beside a stated one it is nobody new.
    ledger.call("approve", json!({"idempotency_key": "k", "intent_hash": hash}));
    let receipt = approve(&mut ledger, "k", "ann");
    let missing: i32 = ledger.one("SELECT approvals_missing FROM command_ledger.approval_queue", &[]);
    assert_eq!(receipt.approvals_missing, Some(2));
    assert_eq!(missing, 2, "the view and the receipt agree");
}

#[test]
fn the_life_of_an_approval_is_capped_by_the_type() {
    let (_cluster, mut ledger) = needing(json!({"ttl": "1h", "separate_proposer": false}));
    for (key, asked, lives) in [("a", "10 min", "00:10:00"), ("b", "5 days", "01:00:00")] {
        task(&mut ledger, key);
        let hash = hash(&mut ledger, key);
        ledger.call("approve", json!({"idempotency_key": key, "intent_hash": hash, "expires_in": asked}));
        let sql = "SELECT (expires_at - granted_at)::text FROM command_ledger.approval WHERE idempotency_key = $1";
        assert_eq!(ledger.one::<String>(sql, &[&key]), lives);
    }
    task(&mut ledger, "c");
    let hash = hash(&mut ledger, "c");
    for asked in ["0", "-1 min"] {
        let named = json!({"idempotency_key": "c", "intent_hash": hash, "expires_in": asked});
        refused(&mut ledger, "22023", "approve", named);
    }
}

#[test]
fn a_role_that_proposed_cannot_approve_whatever_person_it_states() {
    let (_cluster, mut ledger) = needing(json!({"approvers": 1}));
    let mut agent = grant(&mut ledger, "agent", &["propose", "approve"]);
    let mut manager = grant(&mut ledger, "manager", &["approve"]);
    let hash = task(&mut agent, "k").intent_hash.expect("a hash");
    for approver in [Value::Null, json!("ann")] {
        let named = json!({"idempotency_key": "k", "intent_hash": hash, "approver": approver});
        refused(&mut agent, "CL008", "approve", named);
    }
    manager.expect_sqlstate("42501", "SELECT command_ledger.register('task', 'x', '{}')");
    let approved = manager.call("approve", json!({"idempotency_key": "k", "intent_hash": hash}));
    assert_eq!(approved.status, "approved");
    let mut proposer = grant(&mut ledger, "proposer", &["propose"]);
    task(&mut proposer, "k2");
    for call in ["approve('k2', '\\x00')", "reject('k2', '\\x00')", "revoke_approval('k')", "retry('k2')"] {
        proposer.expect_sqlstate("42501", &format!("SELECT command_ledger.{call}"));
    }
    proposer.expect_sqlstate("42501", "SELECT command_ledger.claim('desk')");
}

#[test]
fn an_approval_is_for_exactly_one_intent_hash() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    let old = task(&mut ledger, "k").intent_hash.expect("a hash");
    approve(&mut ledger, "k", "ann");
    let revised = ledger.call("revise", json!({"idempotency_key": "k", "params": {"n": 2}, "expected_hash": old}));
    assert_eq!(revised.status, "planned", "a revision makes approvals void");
    assert_eq!(revised.approvals_missing, Some(1));
    assert_ne!(revised.intent_hash.as_ref(), Some(&old));
    let error = refused(&mut ledger, "CL007", "approve", json!({"idempotency_key": "k", "intent_hash": old}));
    assert!(error.detail.contains(&revised.intent_hash.expect("a hash")), "{error:?}");
    refused(&mut ledger, "CL007", "reject", json!({"idempotency_key": "k", "intent_hash": old}));
    let stale = json!({"idempotency_key": "k", "params": {"n": 3}, "expected_hash": old});
    refused(&mut ledger, "CL007", "revise", stale);
    // Revised back, the approval of the first version does not come to life again.
    let now = hash(&mut ledger, "k");
    let back = ledger.call("revise", json!({"idempotency_key": "k", "params": {"n": 1}, "expected_hash": now}));
    assert_eq!(back.intent_hash.as_ref(), Some(&old));
    assert_eq!((back.status.as_str(), back.approvals_missing), ("planned", Some(1)));
    assert!(claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}

#[test]
fn an_edited_destination_request_voids_approvals_of_the_old_one() {
    let cluster = Cluster::builder().fsync_off().setting("command_ledger.relay", "off").start();
    let mut ledger = cluster.ledger("app");
    let define = |ledger: &mut Ledger, path: &str| {
        ledger.define_http_destination("erp", &format!("http://127.0.0.1:9/{path}"), json!({}));
    };
    define(&mut ledger, "old");
    ledger
        .define_type("order", json!({"destination": "erp", "approval": {"approvers": 2, "separate_proposer": false}}));
    let old = ledger.register("order", "k", json!({"n": 1})).intent_hash.expect("a hash");
    approve(&mut ledger, "k", "ann");
    define(&mut ledger, "new");
    let now = ledger.status("k");
    assert_ne!(now.intent_hash.as_ref(), Some(&old));
    assert_eq!(now.approvals_missing, Some(2));
    refused(&mut ledger, "CL007", "approve", json!({"idempotency_key": "k", "intent_hash": old, "approver": "bob"}));
    assert_eq!(approve(&mut ledger, "k", "bob").approvals_missing, Some(1));
    assert_eq!(approve(&mut ledger, "k", "ann").status, "approved");
    assert_journals(&mut ledger);
}

#[test]
fn a_revoked_approval_takes_the_command_out_of_the_outbox() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    task(&mut ledger, "k");
    approve(&mut ledger, "k", "ann");
    let revoked = ledger.call("revoke_approval", json!({"idempotency_key": "k", "reason": "wrong plant"}));
    assert_eq!((revoked.status.as_str(), revoked.approvals_missing), ("planned", Some(1)));
    assert!(claim(&mut ledger, 10).is_empty());
    assert_eq!(approve(&mut ledger, "k", "ann").status, "approved");
    let job = claim_one(&mut ledger);
    ledger.call("revoke_approval", json!({"idempotency_key": "k"}));
    // In flight it cannot be called back; a repeat needs a new approval.
    assert_eq!(fail(&mut ledger, &job, "not_sent").status, "approved");
    ledger.wait_until("SELECT due_at <= clock_timestamp() FROM command_ledger.dispatch_queue", 10);
    assert!(claim(&mut ledger, 10).is_empty());
    assert_eq!(ledger.status("k").status, "planned");
    assert_journals(&mut ledger);
}

#[test]
fn a_rejected_command_is_failed_and_an_operator_can_bring_it_back() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    let hash = task(&mut ledger, "k").intent_hash;
    let named = json!({"idempotency_key": "k", "intent_hash": hash, "reason": "too dear", "approver": "ann"});
    let rejected = ledger.call("reject", named);
    assert_eq!((rejected.status.as_str(), rejected.error.as_deref()), ("failed", Some("rejected")));
    assert!(rejected.error_message.expect("a message").contains("too dear"));
    refused(&mut ledger, "CL006", "approve", json!({"idempotency_key": "k", "intent_hash": hash}));
    let back = ledger.call("retry", json!({"idempotency_key": "k"}));
    assert_eq!((back.status.as_str(), back.approvals_missing), ("planned", Some(1)));
    assert_eq!(journal(&mut ledger, "k"), ["register", "reject", "retry"]);
    assert_journals(&mut ledger);
}

#[test]
fn a_lapsed_approval_never_sends() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    let hash = task(&mut ledger, "k").intent_hash;
    ledger.call("approve", json!({"idempotency_key": "k", "intent_hash": hash, "expires_in": "1s"}));
    assert_eq!(ledger.status("k").status, "approved");
    ledger.wait_until("SELECT expires_at <= clock_timestamp() FROM command_ledger.approval", 30);
    assert!(claim(&mut ledger, 10).is_empty());
    let lapsed = ledger.status("k");
    assert_eq!((lapsed.status.as_str(), lapsed.approvals_missing), ("planned", Some(1)));
    assert_eq!(journal(&mut ledger, "k").last().map(String::as_str), Some("approval_lapsed"));
    assert_eq!(approve(&mut ledger, "k", "ann").status, "approved");
    assert_eq!(claim_one(&mut ledger).attempt, 1);
    assert_journals(&mut ledger);
}

#[test]
fn a_lease_never_outlives_the_approval_it_rests_on() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    let hash = task(&mut ledger, "k").intent_hash;
    ledger.call("approve", json!({"idempotency_key": "k", "intent_hash": hash, "expires_in": "20s"}));
    let job = claim_one(&mut ledger);
    let within = "SELECT q.lease_expires_at <= a.expires_at \
                    FROM command_ledger.dispatch_queue q, command_ledger.approval a";
    assert!(ledger.one::<bool>(within, &[]));
    let named = json!({"idempotency_key": "k", "lease_token": job.token, "lease": "10 min"});
    assert_eq!(ledger.call("extend_lease", named).outcome.as_deref(), Some("unchanged"));
    assert!(ledger.one::<bool>(within, &[]));
}

#[test]
fn an_approval_that_lapses_while_maybe_sent_is_a_case_and_not_a_plan() {
    let (_cluster, mut ledger) = pg_test::desk::desk_with(
        json!({"idempotency": {"mode": "reference", "window": "unlimited"}}),
        json!({"approval": {"separate_proposer": false}, "retry": {"base": "1ms", "cap": "1ms"}}),
    );
    task(&mut ledger, "k");
    approve(&mut ledger, "k", "ann");
    let job = claim_one(&mut ledger);
    let uncertain = say(&mut ledger, "uncertain", &job);
    assert_eq!((uncertain.status.as_str(), uncertain.maybe_sent), ("approved", true), "a safe repeat");
    let revoked = ledger.call("revoke_approval", json!({"idempotency_key": "k"}));
    assert_eq!((revoked.status.as_str(), revoked.maybe_sent), ("needs_reconciliation", true));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("approval_revoked"));
    assert_journals(&mut ledger);
}

#[test]
fn a_revocation_while_maybe_sent_asks_the_destination() {
    let (_cluster, mut ledger) = pg_test::desk::desk_with(
        json!({
            "idempotency": {"mode": "reference", "window": "unlimited"},
            "lookup": {"url": "http://127.0.0.1:9/x?k={{ destination_key }}", "records": "$[*]", "match": "$.k",
                       "record_id": "$.id", "settle_delay": "1h"},
        }),
        json!({"approval": {"separate_proposer": false}, "retry": {"base": "1h", "cap": "1h"}}),
    );
    task(&mut ledger, "k");
    approve(&mut ledger, "k", "ann");
    let job = claim_one(&mut ledger);
    assert_eq!(say(&mut ledger, "uncertain", &job).status, "approved");
    ledger.call("revoke_approval", json!({"idempotency_key": "k"}));
    assert!(ledger.one::<bool>("SELECT next_lookup_at > now() FROM command_ledger.reconciliation_queue", &[]));
}

#[test]
fn a_deadline_of_the_type_is_counted_again_at_each_approval_and_a_given_one_is_not() {
    let (_cluster, mut ledger) =
        desk(json!({"approval": {"separate_proposer": false}, "retry": {"deadline": "1h", "base": "1ms"}}));
    let in_outbox = "SELECT deadline::text FROM command_ledger.dispatch_queue WHERE idempotency_key = 'k'";
    assert_eq!(task(&mut ledger, "k").deadline, None, "it waits for a person");
    let first = approve(&mut ledger, "k", "ann").deadline.expect("counted from the approval");
    // Another approval moves it, also where the quorum stood already.
    let second = approve(&mut ledger, "k", "bob").deadline.unwrap();
    assert!(second > first, "{second} {first}");
    assert_eq!(ledger.status("k").deadline, Some(second.clone()));
    assert!(ledger.one::<bool>(&format!("SELECT ({in_outbox})::timestamptz = $1::text::timestamptz"), &[&second]));
    // Without an approval there is none to count from.
    assert_eq!(ledger.call("revoke_approval", json!({"idempotency_key": "k"})).deadline, None);
    let third = approve(&mut ledger, "k", "ann").deadline.unwrap();
    assert!(third > second, "{third} {second}");

    let given = ledger.register_with("task", "given", json!({"n": 1}), json!({"deadline": "2100-01-01 00:00:00+00"}));
    for _ in 0..2 {
        assert_eq!(approve(&mut ledger, "given", "ann").deadline, given.deadline);
        assert_eq!(ledger.call("revoke_approval", json!({"idempotency_key": "given"})).deadline, given.deadline);
    }
    assert_journals(&mut ledger);
}

#[test]
fn gates_that_cannot_be_decided_stay_shut() {
    let (_cluster, mut ledger) = desk(json!({
        "deny_when": "$.amount > 1000", "approval": {"when": "$.risk > 5"},
    }));
    let mut register = |key: &str, params: Value| ledger.try_register("task", key, params);
    assert_eq!(register("small", json!({"amount": 1, "risk": 1})).expect("passes").status, "approved");
    assert_eq!(register("risky", json!({"amount": 1, "risk": 6})).expect("passes").status, "planned");
    assert_eq!(register("no risk known", json!({"amount": 1})).expect("passes").status, "planned");
    assert_eq!(register("risk as text", json!({"amount": 1, "risk": "1"})).expect("passes").status, "planned");
    for (key, params) in [
        ("large", json!({"amount": 1001, "risk": 1})),
        ("no amount known", json!({"risk": 1})),
        ("amount as text", json!({"amount": "1", "risk": 1})),
    ] {
        let denied = register(key, params).expect_err(key);
        assert_eq!(denied.sqlstate, "CL005", "{key}");
        assert!(!denied.detail.is_empty() && !denied.hint.is_empty(), "{denied:?}");
    }
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.command", &[]), 4);
}

#[test]
fn what_is_approved_and_not_sent_is_seen_with_its_age() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    define_desk(&mut ledger, json!({}));
    task(&mut ledger, "k");
    approve(&mut ledger, "k", "ann");
    ledger.exec("SELECT command_ledger.pause('desk')");
    assert!(claim(&mut ledger, 10).is_empty());
    let seen = "SELECT status = 'approved' AND approved_undispatched_age >= '0' AND approved_at IS NOT NULL \
                  FROM command_ledger.approval_queue";
    assert!(ledger.one::<bool>(seen, &[]));
    let why = "SELECT blocked_by FROM command_ledger.dispatch_queue WHERE idempotency_key = 'k'";
    assert_eq!(ledger.one::<String>(why, &[]), "pause");
    ledger.exec("SELECT command_ledger.resume('desk')");
    claim_one(&mut ledger);
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.approval_queue", &[]), 0);
}

#[test]
fn the_ready_approve_call_approves_what_the_queue_shows() {
    let (_cluster, mut ledger) = needing(json!({"separate_proposer": false}));
    task(&mut ledger, "it's");
    let call = ledger.text("SELECT approve_call FROM command_ledger.approval_queue");
    ledger.exec(&call);
    assert_eq!(ledger.status("it's").status, "approved");
}
