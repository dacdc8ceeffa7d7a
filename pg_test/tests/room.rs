//! Attempts in flight at one destination: many workers claim at once, share the count, and never pass the limit.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use pg_test::desk::assert_journals;
use pg_test::prelude::*;

const LIMIT: i64 = 6;
const REPEATS: i64 = 3;
const WORKERS: usize = 8;
const COMMANDS: i64 = 120;

fn cluster() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).fsync_off().setting("max_prepared_transactions", "20").start();
    let mut ledger = cluster.ledger("app");
    let limits = json!({"in_flight": LIMIT, "retries_in_flight": REPEATS});
    ledger.define_destination("desk", json!({"transport": "pull", "limits": limits}));
    let retry = json!({"base": "1ms", "cap": "1ms", "max_attempts": 1000});
    ledger.define_type("task", json!({"destination": "desk", "retry": retry}));
    (cluster, ledger)
}

fn register(ledger: &mut Ledger, count: i64) {
    let sql = "SELECT command_ledger.register('task', 'k' || i, '{}') FROM pg_catalog.generate_series(1, $1::bigint) i";
    ledger.rows(sql, &[&count]);
}

fn claim(session: &mut Session, max: i32) -> Vec<(String, String)> {
    let sql = "SELECT idempotency_key, lease_token::text FROM command_ledger.claim('desk', $1)";
    session.rows(sql, &[&max]).iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn in_flight(session: &mut Session) -> (i64, i64) {
    let sql = "SELECT count(*), count(*) FILTER (WHERE counted_attempts > 1) FROM command_ledger.outbox \
                WHERE lease_token IS NOT NULL";
    let row = session.row(sql, &[]);
    (row.get(0), row.get(1))
}

/// What a worker does with one attempt: ends of all kinds, and ends that are taken back before one that stays.
fn work(session: &mut Session, turn: usize, key: &str, token: &str) {
    let confirm = format!("SELECT command_ledger.confirm('{key}', '{token}', '{key}')");
    let fail = format!("SELECT command_ledger.fail('{key}', '{token}', 'transient', 'busy')");
    match turn % 5 {
        0 => session.exec(&format!("BEGIN; {confirm}; ROLLBACK")),
        1 => session.exec(&format!("BEGIN; SAVEPOINT a; {confirm}; ROLLBACK TO a; SELECT 1; COMMIT")),
        2 => return session.exec(&fail),
        3 => {
            session.exec(&format!("BEGIN; {confirm}; PREPARE TRANSACTION '{key}'"));
            return session.exec(&format!("COMMIT PREPARED '{key}'"));
        }
        _ => {}
    }
    session.exec(&confirm);
}

#[test]
fn many_workers_never_pass_the_limits_whatever_ends_they_take_back() {
    let (cluster, mut ledger) = cluster();
    register(&mut ledger, COMMANDS);
    let done = AtomicBool::new(false);
    let most = cluster.in_parallel("app", WORKERS + 1, |worker, session| {
        let mut most = (0, 0);
        if worker == WORKERS {
            while !done.load(SeqCst) {
                let now = in_flight(session);
                most = (most.0.max(now.0), most.1.max(now.1));
            }
            return most;
        }
        let open = "SELECT count(*) FROM command_ledger.outbox";
        let mut turn = worker;
        while session.one::<i64>(open, &[]) > 0 {
            for (key, token) in claim(session, 1 + i32::try_from(turn % 2).unwrap()) {
                let now = in_flight(session);
                most = (most.0.max(now.0), most.1.max(now.1));
                work(session, turn, &key, &token);
                turn += 1;
            }
        }
        done.store(true, SeqCst);
        most
    });
    let most = most.into_iter().fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    assert!(most.0 <= LIMIT && most.1 <= REPEATS, "{most:?} in flight at once");
    assert!(most.0 > 1, "they worked side by side");
    let confirmed = "SELECT count(*) FROM command_ledger.command WHERE status = 'confirmed'";
    assert_eq!(ledger.one::<i64>(confirmed, &[]), COMMANDS);
    assert_journals(&mut ledger);
}

#[test]
fn all_places_are_free_again_after_a_worker_died_and_its_claims_were_rolled_back() {
    let (cluster, mut ledger) = cluster();
    register(&mut ledger, 20);
    // Warm: the count is known, and claims share it.
    let first = claim(&mut ledger, 1);
    assert_eq!(first.len(), 1);
    // A claim that is killed while it waits for its commit: another session holds the table that it writes last.
    let mut holder = cluster.connect("app");
    holder.exec("BEGIN; LOCK TABLE command_ledger.command_event IN EXCLUSIVE MODE");
    let waiting = cluster.connect("app").in_background("SELECT count(*) FROM command_ledger.claim('desk', 2)");
    ledger.wait_for_lock_wait(waiting.backend_pid());
    ledger.rows("SELECT pg_catalog.pg_terminate_backend($1)", &[&i32::try_from(waiting.backend_pid()).unwrap()]);
    assert!(waiting.finish().1.is_err());
    holder.exec("ROLLBACK");
    assert_eq!(in_flight(&mut ledger), (1, 0));
    let rest = claim(&mut ledger, 10);
    assert_eq!(i64::try_from(rest.len()).unwrap(), LIMIT - 1, "all that the limit leaves");
    assert_eq!(claim(&mut ledger, 10), [], "and no more");
    for (key, token) in first.iter().chain(&rest) {
        ledger.exec(&format!("SELECT command_ledger.confirm('{key}', '{token}', 'R')"));
    }
    assert_eq!(claim(&mut ledger, 10).len(), 6);
    assert_journals(&mut ledger);
}

#[test]
fn claims_of_one_destination_do_not_wait_for_each_others_commit() {
    let (cluster, mut ledger) = cluster();
    register(&mut ledger, 20);
    assert_eq!(claim(&mut ledger, 1).len(), 1, "the count is known");
    // Commits wait for a standby that does not exist, with all their locks.
    ledger.alter_system("synchronous_standby_names", Some("nobody"));
    let one = "SELECT idempotency_key FROM command_ledger.claim('desk')";
    let claims: Vec<_> = (0..3).map(|_| cluster.connect("app").in_background(one)).collect();
    ledger.wait_until("SELECT count(*) = 3 FROM pg_catalog.pg_stat_activity WHERE wait_event = 'SyncRep'", 60);
    ledger.alter_system("synchronous_standby_names", None);
    let keys: Vec<_> = claims.into_iter().map(|claim| claim.finish().1.unwrap().unwrap()).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
    assert_eq!(in_flight(&mut ledger), (4, 0));
    assert_journals(&mut ledger);
}

#[test]
fn who_waited_for_a_count_uses_it_and_does_not_count_again() {
    // No relay: it looks at leases as well.
    let cluster = Cluster::builder().preload(true).fsync_off().setting("command_ledger.relay", "off").start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull", "limits": {"in_flight": 100}}));
    ledger.define_type("task", json!({"destination": "desk"}));
    register(&mut ledger, 20);
    let mut holder = cluster.connect("app");
    holder.exec("BEGIN; LOCK TABLE command_ledger.outbox IN ACCESS EXCLUSIVE MODE");
    let one = "SELECT idempotency_key FROM command_ledger.claim('desk')";
    // Nothing is known yet: one of them counts, and all others wait for it.
    let claims: Vec<_> = (0..4).map(|_| cluster.connect("app").in_background(one)).collect();
    ledger.wait_until("SELECT count(*) = 4 FROM pg_catalog.pg_locks WHERE NOT granted", 60);
    let pids: Vec<String> = claims.iter().map(|claim| claim.backend_pid().to_string()).collect();
    holder.exec("ROLLBACK");
    for claim in claims {
        claim.finish().1.unwrap().unwrap();
    }
    // A session reports its figures when it ends.
    let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid IN ({}))", pids.join(", "));
    ledger.wait_until(&gone, 60);
    let counts = "SELECT idx_scan FROM pg_catalog.pg_stat_user_indexes WHERE indexrelname = 'outbox_leased'";
    assert_eq!(ledger.one::<i64>(counts, &[]), 1);
    assert_eq!(in_flight(&mut ledger), (4, 0));
    assert_journals(&mut ledger);
}
