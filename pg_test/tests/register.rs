//! Registering: one key, one intent, in every isolation level and under every setting.

use pg_test::desk::{assert_journals, claim_one, confirm, define_task, desk, refused, task};
use pg_test::prelude::*;

const REGISTER: &str = "SELECT outcome FROM command_ledger.register('task', 'k', '{\"n\": 1}')";

#[test]
fn fifty_sessions_with_one_key_make_one_command_in_every_isolation_level() {
    let (cluster, mut ledger) = desk(json!({}));
    for level in ["read committed", "repeatable read", "serializable"] {
        let answers = cluster.in_parallel("app", 50, |_, session| {
            session.exec(&format!("SET default_transaction_isolation = '{level}'"));
            session.try_text(&format!("SELECT outcome FROM command_ledger.register('task', '{level}', '{{\"n\": 1}}')"))
        });
        let mut created = 0;
        for answer in answers {
            match answer {
                Ok(outcome) if outcome.as_deref() == Some("created") => created += 1,
                Ok(outcome) => assert_eq!(outcome.as_deref(), Some("replayed"), "{level}"),
                Err(error) => {
                    assert_eq!(error.sqlstate, "40001", "{level}: {error}");
                    assert_ne!(level, "read committed", "{error}");
                }
            }
        }
        assert_eq!(created, 1, "{level}");
    }
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.command", &[]), 3);
    assert_journals(&mut ledger);
}

#[test]
fn who_waits_for_a_registration_that_rolls_back_gets_the_key() {
    let (_cluster, mut ledger) = desk(json!({}));
    for (end, outcome) in [("ROLLBACK", "created"), ("COMMIT", "replayed")] {
        let mut first = ledger.another();
        first.exec("BEGIN");
        let register = format!("SELECT outcome FROM command_ledger.register('task', '{end}', '{{\"n\": 1}}')");
        first.exec(&register);
        let waiting = ledger.another().in_background(&register);
        ledger.wait_for_lock_wait(waiting.backend_pid());
        first.exec(end);
        assert_eq!(waiting.finish().1.expect("no error").as_deref(), Some(outcome), "{end}");
    }
}

#[test]
fn immaterial_params_make_no_conflict_and_material_ones_do() {
    let (_cluster, mut ledger) = desk(json!({"immaterial": ["/note", "/meta/trace"]}));
    let first = ledger.register("task", "k", json!({"n": 1, "note": "a", "meta": {"trace": 1, "keep": 1}}));
    for same in [
        json!({"n": 1.0, "note": "b", "meta": {"trace": 2, "keep": 1}}),
        json!({"n": 1, "meta": {"keep": 1}}),
        json!({"meta": {"keep": 1, "trace": {}}, "n": 1e0, "note": null}),
    ] {
        let again = ledger.register("task", "k", same);
        assert_eq!((again.outcome.as_deref(), &again.params_hash), (Some("replayed"), &first.params_hash));
    }
    for other in [json!({"n": 2, "meta": {"keep": 1}}), json!({"n": 1}), json!({"n": "1", "meta": {"keep": 1}})] {
        assert_eq!(ledger.try_register("task", "k", other).unwrap_err().sqlstate, "CL001");
    }
}

#[test]
fn an_existing_key_is_compared_under_its_own_version() {
    let (_cluster, mut ledger) = desk(json!({"immaterial": ["/note"]}));
    let old = ledger.register("task", "k", json!({"n": 1, "note": "a"}));
    define_task(&mut ledger, json!({"schema": {"type": "object", "required": ["must"]}, "deny_when": "$.n > 0"}));
    let again = ledger.register("task", "k", json!({"n": 1, "note": "b"}));
    assert_eq!((again.outcome.as_deref(), again.type_version), (Some("replayed"), old.type_version));
    assert_eq!(ledger.try_register("task", "k", json!({"n": 2})).unwrap_err().sqlstate, "CL001");
    ledger.define_type("other", json!({"destination": "desk"}));
    let error = ledger.try_register("other", "k", json!({"n": 1})).unwrap_err();
    assert_eq!(error.sqlstate, "CL001");
    assert!(!error.detail.is_empty() && !error.hint.is_empty());
    let schema = ledger.try_register("task", "new", json!({"n": 0})).unwrap_err();
    assert_eq!(schema.sqlstate, "CL004");
    assert!(schema.detail.contains("must") || schema.detail.contains('/'), "{schema:?}");
    assert_eq!(ledger.register("task", "new", json!({"n": 0, "must": 1})).type_version, 2);
}

#[test]
fn lookalikes_are_flagged_or_blocked_unless_named_as_different() {
    let (_cluster, mut ledger) = desk(json!({"lookalike": {"window": "10m", "action": "block"}}));
    task(&mut ledger, "a");
    let error = ledger.try_register("task", "b", json!({"n": 1})).unwrap_err();
    assert_eq!(error.sqlstate, "CL010");
    assert!(error.detail.contains("\"a\"") && error.hint.contains("distinct_from"), "{error:?}");
    assert_eq!(task(&mut ledger, "a").outcome.as_deref(), Some("replayed"), "a repeat is no look-alike");
    let distinct = ledger.register_with("task", "b", json!({"n": 1}), json!({"distinct_from": "a"}));
    assert_eq!(distinct.outcome.as_deref(), Some("created"));
    ledger.register("task", "c", json!({"n": 2}));
    let revised = json!({"idempotency_key": "c", "params": {"n": 1}, "expected_hash": ledger.status("c").intent_hash});
    refused(&mut ledger, "CL010", "revise", revised);
    let tenant = ledger.register_with("task", "a", json!({"n": 1}), json!({"tenant": "acme"}));
    assert_eq!(tenant.outcome.as_deref(), Some("created"), "tenants do not see each other");
    define_task(&mut ledger, json!({"lookalike": {"window": "10m", "action": "flag"}}));
    assert_eq!(task(&mut ledger, "d").outcome.as_deref(), Some("created"));
    let alike = ledger.text("SELECT command_ledger.validate('task', '{\"n\": 1}') -> 'lookalikes'");
    assert!(alike.contains("\"d\""), "{alike}");
}

#[test]
fn two_lookalikes_at_the_same_moment_see_each_other() {
    let (cluster, mut ledger) = desk(json!({"lookalike": {"window": "10m", "action": "block"}}));
    let answers = cluster.in_parallel("app", 16, |i, session| {
        session.try_text(&format!("SELECT outcome FROM command_ledger.register('task', 'k{i}', '{{\"n\": 1}}')"))
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert!(answers.iter().flat_map(|answer| answer.as_ref().err()).all(|error| error.sqlstate == "CL010"));
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.command", &[]), 1);
}

#[test]
fn a_dry_run_knows_what_was_named_as_different() {
    let (_cluster, mut ledger) = desk(json!({"lookalike": {"window": "10m", "action": "block"}}));
    task(&mut ledger, "a");
    let mut errors =
        |more: &str| ledger.text(&format!("SELECT command_ledger.validate('task', '{{\"n\": 1}}'{more}) -> 'errors'"));
    assert!(errors("").contains("CL010"));
    assert_eq!(errors(", distinct_from => 'a'"), "[]");
    assert!(errors(", distinct_from => 'another'").contains("CL010"));
}

#[test]
fn an_old_snapshot_does_not_hide_a_lookalike() {
    let (_cluster, mut ledger) = desk(json!({"lookalike": {"window": "10m", "action": "block"}}));
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut old = ledger.another();
        old.exec(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM command_ledger.command"));
        ledger.register("task", level, json!({"level": level}));
        let late = format!("SELECT command_ledger.register('task', 'late', '{{\"level\": \"{level}\"}}')");
        old.expect_sqlstate("CL010", &late);
    }
}

#[test]
fn times_that_cannot_work_are_refused() {
    let (_cluster, mut ledger) = desk(json!({}));
    for times in [
        "deadline => now() - interval '1 s'",
        "not_before => now() + interval '2 h', deadline => now() + interval '1 h'",
    ] {
        let sql = format!("SELECT command_ledger.register('task', 'k', '{{}}', {times})");
        let error = ledger.expect_sqlstate("22023", &sql);
        assert!(!error.hint.is_empty(), "{error:?}");
    }
    assert!(ledger.find("k").is_none());
    ledger.exec("SELECT command_ledger.register('task', 'k', '{}', not_before => now() + interval '1 h')");
    assert!(pg_test::desk::claim(&mut ledger, 10).is_empty());
    let why = "SELECT blocked_by FROM command_ledger.dispatch_queue WHERE idempotency_key = 'k'";
    assert_eq!(ledger.text(why), "not_before");
}

#[test]
fn a_replay_and_a_dry_run_write_nothing() {
    let (_cluster, mut ledger) = desk(json!({"lookalike": {"window": "10m", "action": "flag"}}));
    task(&mut ledger, "k");
    // What a first call in a session writes (hint bits, catalogs) is written before.
    let calls = [
        "register('task', 'k', '{\"n\": 1}')",
        "validate('task', '{\"n\": 1}')",
        "status('k')",
        "params_hash('task', '{\"n\": 1}')",
        "verify_journal('k')",
        "evidence('k')",
        "explain('k')",
    ];
    for _ in 0..2 {
        for call in calls {
            ledger.exec(&format!("SELECT command_ledger.{call}"));
        }
    }
    ledger.exec("CHECKPOINT");
    for call in calls {
        ledger.exec("BEGIN");
        ledger.exec(&format!("SELECT command_ledger.{call}"));
        let xid = ledger.maybe_text("SELECT pg_current_xact_id_if_assigned()");
        ledger.exec("COMMIT");
        assert_eq!(xid, None, "{call} takes no transaction id");
        let plan = ledger.table(&format!("EXPLAIN (ANALYZE, WAL, COSTS off) SELECT command_ledger.{call}"));
        let wal = plan.iter().flatten().flatten().find(|line| line.contains("WAL:"));
        assert_eq!(wal, None, "{call} writes no WAL");
    }
    ledger.exec("BEGIN READ ONLY");
    for call in calls.iter().filter(|call| !call.starts_with("register")) {
        ledger.exec(&format!("SELECT command_ledger.{call}"));
    }
    ledger.exec("COMMIT");
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.command", &[]), 1);
}

#[test]
fn a_dry_run_says_what_registering_would() {
    let (_cluster, mut ledger) = desk(json!({
        "deny_when": "$.n > 9", "approval": {"when": "$.n > 5", "approvers": 2},
        "schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "number"}}},
    }));
    let said = |ledger: &mut Ledger, params: &str, path: &str| {
        ledger.text(&format!("SELECT command_ledger.validate('task', '{params}') #>> '{path}'"))
    };
    assert_eq!(said(&mut ledger, r#"{"n": 1}"#, "{valid}"), "true");
    assert_eq!(said(&mut ledger, r#"{"n": 6}"#, "{approvals_required}"), "2");
    for (params, sqlstate) in [(r#"{"n": 10}"#, "CL005"), ("{}", "CL004"), (r#"{"n": "1"}"#, "CL004"), ("[]", "CL004")]
    {
        assert_eq!(said(&mut ledger, params, "{errors,0,sqlstate}"), sqlstate, "{params}");
        assert_eq!(said(&mut ledger, params, "{valid}"), "false");
    }
    let hash = said(&mut ledger, r#"{"n": 1}"#, "{params_hash}");
    assert_eq!(ledger.text("SELECT encode(command_ledger.params_hash('task', '{\"n\": 1}'), 'hex')"), hash);
    assert_eq!(ledger.register("task", "k", json!({"n": 1})).params_hash, Some(format!("\\x{hash}")));
    ledger.expect_sqlstate("CL003", "SELECT command_ledger.validate('nothing', '{}')");
}

#[test]
fn waiting_for_a_command_of_ones_own_transaction_is_an_error_and_others_return_when_settled() {
    let (_cluster, mut ledger) = desk(json!({}));
    ledger.exec("BEGIN");
    ledger.exec(REGISTER);
    let error = ledger.expect_sqlstate("CL006", "SELECT command_ledger.wait_for('k', '1 min')");
    assert!(error.hint.contains("COMMIT"), "{error:?}");
    ledger.exec("ROLLBACK");
    ledger.exec("BEGIN; SAVEPOINT s");
    ledger.exec(REGISTER);
    ledger.exec("RELEASE s");
    ledger.expect_sqlstate("CL006", "SELECT command_ledger.wait_for('k', '1 min')");
    ledger.exec("ROLLBACK");
    task(&mut ledger, "k");
    let open = "SELECT status FROM command_ledger.wait_for('k', '0')";
    assert_eq!(ledger.text(open), "approved", "what is known");
    let waiting = ledger.another().in_background("SELECT status FROM command_ledger.wait_for('k', '1 min')");
    let job = claim_one(&mut ledger);
    confirm(&mut ledger, &job, "R");
    assert_eq!(waiting.finish().1.expect("no error").as_deref(), Some("confirmed"));
    task(&mut ledger, "p");
    let job = claim_one(&mut ledger);
    pg_test::desk::say(&mut ledger, "uncertain", &job);
    let person = "SELECT status FROM command_ledger.wait_for('p', '1 min')";
    assert_eq!(ledger.text(person), "needs_reconciliation", "a person is needed");
    assert_eq!(ledger.maybe_text("SELECT status FROM command_ledger.wait_for('unknown', '0')"), None);
}

#[test]
fn a_message_is_consumed_once_in_the_callers_transaction() {
    let (cluster, mut ledger) = desk(json!({}));
    let take = "SELECT command_ledger.consume('billing', 'm-1', '{\"n\": 1.0}')";
    ledger.exec("BEGIN");
    assert_eq!(ledger.text(take), "t");
    ledger.exec("ROLLBACK");
    let answers = cluster.in_parallel("app", 12, |_, session| session.text(take));
    assert_eq!(answers.iter().filter(|answer| *answer == "t").count(), 1);
    assert_eq!(ledger.text("SELECT command_ledger.consume('billing', 'm-1', '{\"n\": 1}')"), "f");
    let error = ledger.expect_sqlstate("CL001", "SELECT command_ledger.consume('billing', 'm-1', '{\"n\": 2}')");
    assert!(!error.hint.is_empty());
    ledger.expect_sqlstate("CL001", "SELECT command_ledger.consume('billing', 'm-1')");
    assert_eq!(ledger.text("SELECT command_ledger.consume('other', 'm-1')"), "t");
    assert_eq!(ledger.text("SELECT command_ledger.consume('billing', 'm-1', NULL, 'acme')"), "t");
    ledger.expect_sqlstate("CL002", "SELECT command_ledger.consume('', 'm-1')");
    ledger.expect_sqlstate("22004", "SELECT command_ledger.consume('billing', NULL)");
}
