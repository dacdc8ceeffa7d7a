//! Pull workers: claims, what they hand out, and what the end of an attempt means.

use pg_test::desk::{
    Job, assert_journals, claim, claim_and_lose, claim_one, confirm, desk, desk_with, fail, journal, open_case,
    refused, say, task, try_claim,
};
use pg_test::prelude::*;

fn quick() -> Value {
    json!({"retry": {"base": "1ms", "cap": "1ms", "max_attempts": 5}})
}

/// Claims as soon as something is due.
fn claim_when_due(ledger: &mut Ledger) -> Job {
    ledger.wait_until("SELECT bool_or(due_at <= clock_timestamp()) FROM command_ledger.dispatch_queue", 10);
    claim_one(ledger)
}

#[test]
fn a_claim_in_a_transaction_block_is_refused_and_attempts_nothing() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    let claim_call = "SELECT * FROM command_ledger.claim('desk')";
    let together = "SELECT * FROM command_ledger.register_and_claim('task', 'k2', '{}')";
    for call in [claim_call, together] {
        for before in ["BEGIN", "BEGIN; SAVEPOINT s"] {
            ledger.exec(before);
            let error = ledger.expect_sqlstate("CL013", call);
            assert!(!error.detail.is_empty() && !error.hint.is_empty());
            ledger.exec("ROLLBACK");
        }
        // Several statements in one message are one transaction, before and after the claim.
        assert_eq!(ledger.try_exec(&format!("SELECT 1; {call}")).unwrap_err().sqlstate, "CL013");
        let inside = format!("DO $$ BEGIN PERFORM * FROM ({call}) AS x; EXCEPTION WHEN division_by_zero THEN END $$");
        assert_eq!(ledger.try_exec(&inside).unwrap_err().sqlstate, "CL013");
        ledger.exec("SET default_transaction_isolation = 'repeatable read'");
        let error = ledger.expect_sqlstate("0A000", call);
        assert!(error.message.contains("READ COMMITTED"), "{error:?}");
        ledger.exec("RESET default_transaction_isolation");
    }
    assert_eq!(ledger.status("k").attempt, 0);
    assert!(ledger.find("k2").is_none());
    assert_eq!(claim_one(&mut ledger).attempt, 1);
}

#[test]
fn a_claim_as_the_first_of_several_statements_never_loses_its_checkpoint() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    // The implicit transaction of a multi-statement message can still fail after the claim.
    let error = ledger.try_exec("SELECT * FROM command_ledger.claim('desk'); SELECT 1 / 0").unwrap_err();
    let attempt = ledger.status("k").attempt;
    // Either it was refused, or nothing of it was handed out: the error came instead of the rows.
    assert!(["CL013", "22012"].contains(&error.sqlstate.as_str()), "{error}");
    assert_eq!(attempt, 0);
}

#[test]
fn a_claim_in_a_pipeline_is_committed_before_anything_after_it() {
    let (cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    let run = |name: &str, script: &str| {
        let file = cluster.write_file(name, script);
        let mut command = cluster.client_program("pgbench");
        command.args(["-n", "-t", "1", "-M", "extended", "-f"]).arg(file).arg("app");
        let output = command.output().expect("pgbench runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let after =
        run("after.sql", "\\startpipeline\nSELECT 1;\nSELECT * FROM command_ledger.claim('desk');\n\\endpipeline\n");
    assert!(after.contains("inside a transaction block"), "{after}");
    assert_eq!(ledger.status("k").attempt, 0);
    let before = run(
        "before.sql",
        "\\startpipeline\nSELECT * FROM command_ledger.claim('desk');\nSELECT 1 / 0;\n\\endpipeline\n",
    );
    assert!(before.contains("division by zero"), "{before}");
    assert_eq!(ledger.status("k").status, "dispatched", "the token was handed out, so the attempt must stand");
    assert_journals(&mut ledger);
}

#[test]
fn a_claim_hands_out_no_more_than_asked_whatever_the_plan() {
    let (_cluster, mut ledger) = desk_with(json!({"limits": {"in_flight": 1000}}), json!({}));
    ledger.exec("SELECT command_ledger.register('task', 'k' || i, '{}') FROM generate_series(1, 60) i");
    let plans = [
        "SELECT 1",
        "ANALYZE command_ledger.outbox",
        "SET enable_seqscan = off",
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on",
        "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off",
        "SET plan_cache_mode = force_generic_plan; RESET enable_indexscan; RESET enable_bitmapscan",
    ];
    let mut seen = Vec::new();
    for plan in plans {
        // A session of its own: statements are planned once per backend.
        let mut session = ledger.another();
        session.exec(plan);
        for max in [1, 3] {
            let jobs = claim(&mut session, max);
            assert_eq!(jobs.len(), usize::try_from(max).expect("small"), "{plan}");
            seen.extend(jobs.into_iter().map(|job| job.key));
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), plans.len() * 4, "each command once");
    for max in ["0", "-1", "1001"] {
        ledger.expect_sqlstate("22023", &format!("SELECT * FROM command_ledger.claim('desk', {max})"));
    }
    ledger.expect_sqlstate("CL003", "SELECT * FROM command_ledger.claim('nowhere')");
    ledger.expect_sqlstate("22004", "SELECT * FROM command_ledger.claim(NULL)");
    ledger.expect_sqlstate("22023", "SELECT * FROM command_ledger.claim('desk', 1, '0')");
    assert_journals(&mut ledger);
}

#[test]
fn sixteen_workers_never_get_the_same_command_and_stay_within_the_limit() {
    let (cluster, mut ledger) = desk_with(json!({"limits": {"in_flight": 7}}), json!({}));
    ledger.exec("SELECT command_ledger.register('task', 'k' || i, '{}') FROM generate_series(1, 100) i");
    let in_flight = "SELECT count(*) FROM command_ledger.dispatch_queue WHERE state = 'leased'";
    let taken: Vec<Job> = cluster
        .in_parallel("app", 16, |_, session| {
            let mut ledger = Ledger::over(session.another());
            let mut mine = Vec::new();
            for _ in 0..12 {
                let jobs = claim(session, 3);
                assert!(session.one::<i64>(in_flight, &[]) <= 7);
                for job in jobs {
                    confirm(&mut ledger, &job, &job.key);
                    mine.push(job);
                }
            }
            mine
        })
        .into_iter()
        .flatten()
        .collect();
    let mut keys: Vec<&str> = taken.iter().map(|job| job.key.as_str()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), taken.len(), "no command twice");
    assert!(taken.iter().all(|job| job.attempt == 1));
    let left = claim(&mut ledger, 1000).len();
    assert_eq!(left, (100 - taken.len()).min(7));
    assert_journals(&mut ledger);
}

#[test]
fn the_limit_counts_what_is_in_flight_and_a_settled_attempt_makes_room() {
    let (_cluster, mut ledger) = desk_with(json!({"limits": {"in_flight": 2}}), quick());
    for key in ["a", "b", "c"] {
        task(&mut ledger, key);
    }
    let jobs = claim(&mut ledger, 10);
    assert_eq!(jobs.len(), 2);
    assert!(claim(&mut ledger, 10).is_empty());
    let why = "SELECT blocked_by FROM command_ledger.dispatch_queue WHERE state = 'blocked'";
    assert_eq!(ledger.one::<String>(why, &[]), "limit");
    let direct = "SELECT lease_token::text FROM command_ledger.register_and_claim('task', 'd', '{}')";
    assert_eq!(ledger.maybe_text(direct), None, "no way around the limit");
    confirm(&mut ledger, &jobs[0], "1");
    assert_eq!(claim(&mut ledger, 10).len(), 1);
}

#[test]
fn every_end_of_an_attempt_means_what_it_says() {
    let (_cluster, mut ledger) = desk(quick());
    for (key, end, status, error, maybe_sent) in [
        ("a", "not_sent", "approved", Some("not_sent"), false),
        ("b", "transient", "approved", Some("transient"), false),
        ("c", "permanent", "failed", Some("permanent"), false),
        ("d", "permission", "failed", Some("permission"), false),
    ] {
        ledger.exec("SELECT command_ledger.pause('desk')");
        task(&mut ledger, key);
        ledger.exec("SELECT command_ledger.resume('desk')");
        let job = claim(&mut ledger, 1000).into_iter().find(|job| job.key == key).expect(key);
        let ended = fail(&mut ledger, &job, end);
        assert_eq!((ended.status.as_str(), ended.error.as_deref()), (status, error), "{end}");
        assert_eq!(ended.maybe_sent, maybe_sent, "{end}");
        assert_eq!(ended.outcome.as_deref(), Some("changed"));
    }
    for (error, sqlstate) in [("uncertain", "22023"), ("budget_exhausted", "22023"), ("nonsense", "22P02")] {
        let call = format!("SELECT command_ledger.fail('a', gen_random_uuid(), '{error}')");
        ledger.expect_sqlstate(sqlstate, &call);
    }
    task(&mut ledger, "u");
    let job = claim(&mut ledger, 1000).into_iter().find(|job| job.key == "u").expect("u");
    let ended = say(&mut ledger, "uncertain", &job);
    assert_eq!((ended.status.as_str(), ended.maybe_sent), ("needs_reconciliation", true));
    assert!(ended.reconciliation_required);
    assert_eq!(open_case(&mut ledger, "u").as_deref(), Some("worker_uncertain"));
    assert_journals(&mut ledger);
}

#[test]
fn a_token_of_another_command_or_of_nobody_is_unknown() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "a");
    task(&mut ledger, "b");
    let jobs = claim(&mut ledger, 2);
    let foreign = &jobs[1].token;
    for token in [foreign.as_str(), "00000000-0000-0000-0000-000000000000"] {
        for function in ["confirm", "uncertain", "release", "extend_lease"] {
            let named = json!({"idempotency_key": jobs[0].key, "lease_token": token});
            refused(&mut ledger, "CL009", function, named);
        }
        let named = json!({"idempotency_key": jobs[0].key, "lease_token": token, "error": "permanent"});
        refused(&mut ledger, "CL009", "fail", named);
    }
    let named = json!({"idempotency_key": "unknown", "lease_token": foreign});
    refused(&mut ledger, "CL011", "confirm", named);
    ledger.expect_sqlstate("22004", "SELECT command_ledger.confirm('a', NULL)");
    assert_eq!(confirm(&mut ledger, &jobs[0], "1").status, "confirmed");
}

#[test]
fn a_released_attempt_is_due_at_once_and_does_not_count() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"max_attempts": 2, "base": "1ms", "cap": "1ms"}}));
    task(&mut ledger, "k");
    for attempt in 1..=4 {
        let job = claim_one(&mut ledger);
        assert_eq!(job.attempt, attempt);
        let released = say(&mut ledger, "release", &job);
        assert_eq!((released.status.as_str(), released.maybe_sent), ("approved", false));
    }
    for attempt in 5..=6 {
        let job = claim_when_due(&mut ledger);
        assert_eq!(job.attempt, attempt);
        fail(&mut ledger, &job, "not_sent");
    }
    let over = ledger.status("k");
    assert_eq!((over.status.as_str(), over.error.as_deref()), ("failed", Some("budget_exhausted")));
    assert!(claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}

#[test]
fn a_lost_lease_is_judged_by_the_next_claim() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "k");
    let job = claim_and_lose(&mut ledger);
    assert_eq!(ledger.status("k").status, "dispatched");
    assert!(claim(&mut ledger, 10).is_empty());
    let lost = ledger.status("k");
    assert_eq!((lost.status.as_str(), lost.maybe_sent), ("needs_reconciliation", true));
    assert_eq!(open_case(&mut ledger, "k").as_deref(), Some("lease_over"));
    let late = confirm(&mut ledger, &job, "R-1");
    assert_eq!((late.status.as_str(), late.outcome.as_deref()), ("confirmed", Some("late")));
    assert_eq!(late.destination_record_id.as_deref(), Some("R-1"));
    assert!(!late.maybe_sent);
    assert_eq!(open_case(&mut ledger, "k"), None);
    assert_journals(&mut ledger);
}

#[test]
fn an_extended_lease_is_not_lost() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    let before = "SELECT lease_expires_at::text FROM command_ledger.dispatch_queue";
    let first = ledger.text(before);
    let named = json!({"idempotency_key": "k", "lease_token": job.token, "lease": "30 min"});
    assert_eq!(ledger.call("extend_lease", named).outcome.as_deref(), Some("changed"));
    assert_ne!(ledger.text(before), first);
    let shorter = json!({"idempotency_key": "k", "lease_token": job.token, "lease": "1s"});
    assert_eq!(ledger.call("extend_lease", shorter).outcome.as_deref(), Some("unchanged"), "never shortened");
    say(&mut ledger, "release", &job);
    let named = json!({"idempotency_key": "k", "lease_token": job.token});
    refused(&mut ledger, "CL006", "extend_lease", named);
}

#[test]
fn no_attempt_starts_after_the_deadline() {
    let (_cluster, mut ledger) = desk(quick());
    let soon = ledger.text("SELECT (clock_timestamp() + interval '2 s')::text");
    ledger.register_with("task", "k", json!({}), json!({"deadline": soon}));
    ledger.exec("SELECT command_ledger.pause('desk')");
    ledger.wait_until("SELECT deadline <= clock_timestamp() FROM command_ledger.dispatch_queue", 30);
    ledger.exec("SELECT command_ledger.resume('desk')");
    assert!(claim(&mut ledger, 10).is_empty());
    let over = ledger.status("k");
    assert_eq!((over.status.as_str(), over.error.as_deref()), ("failed", Some("expired")));
    assert_eq!(over.attempt, 0);
    let far = ledger.text("SELECT (clock_timestamp() + interval '1 h')::text");
    ledger.register_with("task", "k2", json!({}), json!({"deadline": far}));
    let within = "SELECT lease_expires_at <= deadline FROM command_ledger.claim('desk', 1, '1 h')";
    assert!(ledger.one::<bool>(within, &[]));
}

#[test]
fn without_automatic_retry_every_second_send_takes_a_person() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"auto": false}}));
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    let failed = fail(&mut ledger, &job, "not_sent");
    assert_eq!((failed.status.as_str(), failed.error.as_deref()), ("failed", Some("not_sent")));
    assert_eq!(ledger.call("retry", json!({"idempotency_key": "k"})).status, "approved");
    assert_eq!(claim_one(&mut ledger).attempt, 2);
    assert_journals(&mut ledger);
}

#[test]
fn retry_after_is_honoured() {
    let (_cluster, mut ledger) = desk(quick());
    task(&mut ledger, "k");
    let job = claim_one(&mut ledger);
    let named = json!({"idempotency_key": "k", "lease_token": job.token, "error": "transient", "retry_after": "1 h"});
    let waiting = ledger.call("fail", named);
    assert!(waiting.retry_at.is_some());
    assert!(
        ledger.one::<bool>("SELECT due_at > clock_timestamp() + interval '50 min' FROM command_ledger.outbox", &[])
    );
    assert!(claim(&mut ledger, 10).is_empty());
    assert_eq!(journal(&mut ledger, "k"), ["register", "claim", "not_sent"]);
}

#[test]
fn a_destination_that_the_relay_serves_cannot_be_claimed() {
    let (_cluster, mut ledger) = desk(json!({}));
    ledger.define_http_destination("web", "http://127.0.0.1:9/", json!({}));
    ledger.define_type("post", json!({"destination": "web"}));
    ledger.expect_sqlstate("22023", "SELECT * FROM command_ledger.claim('web')");
    ledger.expect_sqlstate("22023", "SELECT * FROM command_ledger.register_and_claim('post', 'k', '{}')");
    assert!(ledger.find("k").is_none(), "refused with all that it did");
    assert!(try_claim(&mut ledger, 1).expect("nothing there").is_empty());
}

#[test]
fn documents_of_hundreds_of_kilobytes_come_back_as_they_went() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"base": "1ms", "cap": "1ms"}}));
    let large = "(SELECT jsonb_build_object('x', string_agg(md5(i::text), '')) FROM generate_series(1, 20000) i)";
    let register = format!("SELECT outcome FROM command_ledger.register('task', 'k', {large})");
    assert_eq!([ledger.text(&register), ledger.text(&register)], ["created", "replayed"]);
    let same = format!("SELECT params = {large} FROM command_ledger.claim('desk')");
    assert!(ledger.one::<bool>(&same, &[]), "what is handed out");
    let token = "SELECT lease_token::text FROM command_ledger.outbox";
    let job = Job { key: "k".to_owned(), token: ledger.text(token), attempt: 1 };
    fail(&mut ledger, &job, "not_sent");
    ledger.wait_until("SELECT due_at <= clock_timestamp() FROM command_ledger.dispatch_queue", 10);
    let job = claim_one(&mut ledger);
    let confirm = format!("SELECT result = {large} FROM command_ledger.confirm('k', '{}', 'R-1', {large})", job.token);
    assert!(ledger.one::<bool>(&confirm, &[]));
    let kept = format!("SELECT params = {large} AND result = {large} FROM command_ledger.command");
    assert!(ledger.one::<bool>(&kept, &[]), "what is kept, after two attempts and a confirmation");
    assert_journals(&mut ledger);
}
