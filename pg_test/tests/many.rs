//! confirm_many: what a worker says of many attempts at once, all or none.

use pg_test::desk::{
    Job, assert_journals, claim, claim_and_lose, confirm, desk, desk_with, fail, journal, open_case, task,
};
use pg_test::prelude::*;

/// The arguments of confirm_many for these jobs; each command's record has its key's name.
fn call(jobs: &[&Job], more: &str) -> String {
    let list = |texts: Vec<String>| format!("'{{{}}}'", texts.join(","));
    let keys = list(jobs.iter().map(|job| job.key.clone()).collect());
    let tokens = list(jobs.iter().map(|job| job.token.clone()).collect());
    let records = list(jobs.iter().map(|job| format!("R-{}", job.key)).collect());
    format!(
        "SELECT idempotency_key || ' ' || status || ' ' || outcome || coalesce(' ' || destination_record_id, '') \
           FROM command_ledger.confirm_many({keys}, {tokens}, {records}{more})"
    )
}

#[test]
fn a_hundred_attempts_are_confirmed_each_with_its_record_and_result() {
    let (_cluster, mut ledger) = desk_with(json!({"limits": {"in_flight": 100}}), json!({}));
    for i in 0..100 {
        task(&mut ledger, &format!("k{i:02}"));
    }
    let jobs = claim(&mut ledger, 100);
    let all: Vec<&Job> = jobs.iter().rev().collect();
    let results: Vec<String> = all.iter().map(|job| format!(r#""{{\"of\": \"{}\"}}""#, job.key)).collect();
    let sql = call(&all, &format!(", '{{{}}}'", results.join(",")));
    let receipts: Vec<String> = ledger.column(&sql, &[]);
    assert_eq!(receipts.len(), jobs.len());
    assert_eq!(receipts[0], "k00 confirmed changed R-k00");
    for job in &jobs {
        let end = ledger.status(&job.key);
        assert_eq!((end.status.as_str(), end.destination_record_id), ("confirmed", Some(format!("R-{}", job.key))));
        assert_eq!(end.result, Some(json!({"of": job.key})));
        assert_eq!(journal(&mut ledger, &job.key), ["register", "claim", "confirm"]);
    }
    assert_eq!(ledger.one::<i64>("SELECT count(*) FROM command_ledger.outbox", &[]), 0);
    assert_journals(&mut ledger);
}

#[test]
fn one_token_that_is_none_stops_all_and_is_named() {
    let (_cluster, mut ledger) = desk(json!({}));
    for key in ["a", "b", "c"] {
        task(&mut ledger, key);
    }
    let mut jobs = claim(&mut ledger, 3);
    jobs[1].token = jobs[0].token.clone();
    let all: Vec<&Job> = jobs.iter().collect();
    let error = ledger.expect_sqlstate("CL009", &call(&all, ""));
    assert!(error.detail.contains(&format!("Key: {}.", jobs[1].key)), "{error:?}");
    assert!(!error.detail.contains(&jobs[0].token), "{error:?}");
    for key in ["a", "b", "c"] {
        assert_eq!(ledger.status(key).status, "dispatched");
    }
    let rest: Vec<&Job> = jobs.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, job)| job).collect();
    assert_eq!(ledger.column::<String>(&call(&rest, ""), &[]).len(), 2);
    assert_journals(&mut ledger);
}

#[test]
fn arrays_that_do_not_belong_together_are_refused_and_change_nothing() {
    let (_cluster, mut ledger) = desk(json!({}));
    task(&mut ledger, "a");
    let job = claim(&mut ledger, 1).remove(0);
    let token = &job.token;
    let say = |arguments: &str| format!("SELECT count(*) FROM command_ledger.confirm_many({arguments})");
    for (sqlstate, arguments) in [
        ("22023", format!("'{{a}}', '{{{token},{token}}}'")),
        ("22023", format!("'{{a,a}}', '{{{token},{token}}}'")),
        ("22023", format!("'{{a}}', '{{{token}}}', '{{x,y}}'")),
        ("22023", format!("'{{a}}', '{{{token}}}', ARRAY[pg_catalog.repeat('x', 1001)]")),
        ("22023", format!("'{{}}', '{{{token}}}'")),
        ("22023", "ARRAY(SELECT 'k' || i FROM pg_catalog.generate_series(1, 1001) i), '{}'".to_owned()),
        ("22004", "'{a}', '{NULL}'".to_owned()),
        ("22004", format!("'{{NULL}}', '{{{token}}}'")),
        ("22023", "'{a}', NULL, tenant => ''".to_owned()),
        ("CL011", format!("'{{none}}', '{{{token}}}'")),
    ] {
        let error = ledger.try_exec(&say(&arguments)).unwrap_err();
        let expected = if arguments.contains("NULL, tenant") { "22004" } else { sqlstate };
        assert!(error.sqlstate == expected || error.sqlstate == sqlstate, "{arguments}: {error}");
    }
    assert_eq!(ledger.one::<i64>(&say("'{}', '{}'"), &[]), 0, "nothing to say is no error");
    assert_eq!(ledger.status("a").status, "dispatched");
    assert_eq!(journal(&mut ledger, "a"), ["register", "claim"]);
    confirm(&mut ledger, &job, "R-a");
}

#[test]
fn late_answers_among_many_are_kept_as_late() {
    let (_cluster, mut ledger) = desk(json!({"retry": {"base": "1ms", "cap": "1ms"}}));
    task(&mut ledger, "lost");
    let lost = claim_and_lose(&mut ledger);
    ledger.wait_until("SELECT count(*) = 0 FROM command_ledger.claim('desk')", 10);
    assert!(open_case(&mut ledger, "lost").is_some());
    task(&mut ledger, "now");
    let now = claim(&mut ledger, 1).remove(0);
    let mut receipts: Vec<String> = ledger.column(&call(&[&lost, &now], ""), &[]);
    receipts.sort();
    assert_eq!(receipts, ["lost confirmed late R-lost", "now confirmed changed R-now"]);
    assert_eq!(open_case(&mut ledger, "lost"), None);
    assert_journals(&mut ledger);
}

#[test]
fn two_workers_that_confirm_the_same_commands_in_other_orders_wait_and_do_not_deadlock() {
    let (cluster, mut ledger) = desk_with(json!({"limits": {"in_flight": 20}}), json!({}));
    for round in 0..5 {
        for i in 0..20 {
            task(&mut ledger, &format!("r{round} {i}"));
        }
        let jobs = claim(&mut ledger, 20);
        let outcomes = cluster.in_parallel("app", 4, |n, session| {
            let mut mine: Vec<&Job> = jobs.iter().collect();
            if n % 2 == 1 {
                mine.reverse();
            }
            session.column::<String>(&call(&mine, ""), &[])
        });
        let changed = |all: &[String]| all.iter().filter(|one| one.contains(" changed ")).count();
        assert_eq!(outcomes.iter().map(|all| changed(all)).sum::<usize>(), 20, "each once");
        assert!(outcomes.iter().all(|all| all.len() == 20));
    }
    assert_journals(&mut ledger);
}

#[test]
fn only_who_may_execute_the_type_confirms_it_among_others() {
    let (cluster, mut ledger) = desk(json!({}));
    ledger.exec("CREATE ROLE worker LOGIN");
    ledger.exec("SELECT command_ledger.grant_access('worker', 'execute', 'default', '{other}')");
    task(&mut ledger, "a");
    let job = claim(&mut ledger, 1).remove(0);
    let mut worker = cluster.connect_as("app", "worker");
    worker.expect_sqlstate("42501", &call(&[&job], ""));
    assert_eq!(ledger.status("a").status, "dispatched");
    ledger.exec("SELECT command_ledger.grant_access('worker', 'execute', 'default', '{task}')");
    assert_eq!(worker.column::<String>(&call(&[&job], ""), &[]), ["a confirmed changed R-a"]);
    // Failed attempts and those that were taken back are told one by one.
    task(&mut ledger, "b");
    let job = claim(&mut ledger, 1).remove(0);
    assert_eq!(fail(&mut ledger, &job, "permanent").status, "failed");
    let again: Vec<String> = worker.column(&call(&[&job], ""), &[]);
    assert_eq!(again, ["b needs_reconciliation late"], "a contradiction is a question");
}
