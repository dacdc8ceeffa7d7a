//! The harness's own sessions, on plain PostgreSQL.

use pg_test::prelude::*;

#[test]
fn sessions_in_parallel_start_together_and_answer_in_order() {
    let cluster = Cluster::builder().fsync_off().start();
    cluster.connect("postgres").exec("CREATE TABLE t (k text PRIMARY KEY, by int)");
    let inserted = cluster.in_parallel("postgres", 8, |i, session| {
        let by = i32::try_from(i).expect("small");
        (i, session.run("INSERT INTO t VALUES ('one', $1) ON CONFLICT DO NOTHING", &[&by]))
    });
    assert!(inserted.iter().enumerate().all(|(i, (who, _))| i == *who));
    assert_eq!(inserted.iter().map(|(_, rows)| rows).sum::<u64>(), 1);
}

#[test]
#[should_panic(expected = "the third of them")]
fn a_panic_in_one_of_many_sessions_fails_the_test() {
    let cluster = Cluster::builder().fsync_off().start();
    cluster.in_parallel("postgres", 4, |i, _| assert_ne!(i, 2, "the third of them"));
}

#[test]
fn errors_carry_sqlstate_message_detail_and_hint() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut session = cluster.connect("postgres");
    let error = session.expect_sqlstate(
        "CL001",
        "DO $$ BEGIN RAISE EXCEPTION 'known with other parameters' USING ERRCODE = 'CL001', DETAIL = 'd', HINT = 'h'; END $$",
    );
    assert_eq!(
        (error.message.as_str(), error.detail.as_str(), error.hint.as_str()),
        ("known with other parameters", "d", "h")
    );
    assert_eq!(session.try_text("SELECT 1 / 0").expect_err("divides by zero").sqlstate, "22012");
    session.exec("DO $$ BEGIN RAISE WARNING 'careful'; END $$");
    assert_eq!(session.notices(), ["WARNING: careful"]);
    assert!(session.notices().is_empty());
}

#[test]
#[should_panic(expected = "succeeded, expected CL001")]
fn an_expected_error_that_does_not_come_fails_the_test() {
    let cluster = Cluster::builder().fsync_off().start();
    cluster.connect("postgres").expect_sqlstate("CL001", "SELECT 1");
}

#[test]
fn parameters_as_text_keep_every_digit() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut session = cluster.connect("postgres");
    let text: String = session.one("SELECT $1::jsonb::text", &[&Lit("{\"n\": 9007199254740993.10}")]);
    assert_eq!(text, "{\"n\": 9007199254740993.10}");
    assert_eq!(session.one::<String>("SELECT ($1::interval * 2)::text", &[&Lit("90 min")]), "03:00:00");
}

#[test]
fn a_blocked_statement_is_seen_waiting_and_then_ends() {
    let cluster = Cluster::builder().fsync_off().start();
    let mut holder = cluster.connect("postgres");
    holder.exec("CREATE TABLE t AS SELECT 1 AS n");
    holder.exec("BEGIN; UPDATE t SET n = 2");
    let waiter = cluster.connect("postgres").in_background("UPDATE t SET n = n * 10 RETURNING n");
    cluster.connect("postgres").wait_for_lock_wait(waiter.backend_pid());
    assert!(!waiter.is_finished());
    holder.exec("COMMIT");
    let (mut session, answer) = waiter.finish();
    assert_eq!(answer.expect("runs"), Some("20".to_owned()));
    assert_eq!(session.text("SELECT n FROM t"), "20");
}

#[test]
#[should_panic(expected = "last value: f): SELECT false")]
fn a_wait_that_never_comes_true_says_what_it_waited_for() {
    let cluster = Cluster::builder().fsync_off().start();
    cluster.connect("postgres").wait_until("SELECT false", 1);
}

#[test]
fn roles_connect_as_themselves() {
    let cluster = Cluster::builder().fsync_off().start();
    cluster.connect("postgres").exec("CREATE ROLE agent LOGIN");
    assert_eq!(cluster.connect_as("postgres", "agent").text("SELECT current_user"), "agent");
    let refused = cluster.try_connect("postgres", "nobody").err().expect("no such role");
    assert_eq!(refused.sqlstate, "28000");
    assert!(cluster.try_psql("postgres", "SELECT broken").is_err());
}
