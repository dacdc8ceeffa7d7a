//! A destination `desk` of transport pull, whose workers are the tests themselves.

use crate::cluster::Cluster;
use crate::ledger::{Ledger, Receipt};
use crate::session::{Session, SqlError};
use serde_json::{Value, json};

/// What a claim handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The idempotency key.
    pub key: String,
    /// The lease token.
    pub token: String,
    /// The number of the attempt.
    pub attempt: i32,
}

/// A cluster without a relay, and a ledger in it that knows the destination `desk` and the command type `task` with
/// this policy (the destination is added).
pub fn desk(policy: Value) -> (Cluster, Ledger) {
    desk_with(json!({}), policy)
}

/// The same with members for the destination's document.
pub fn desk_with(destination: Value, policy: Value) -> (Cluster, Ledger) {
    let cluster = Cluster::builder().fsync_off().start();
    let mut ledger = cluster.ledger("app");
    define_desk(&mut ledger, destination);
    define_task(&mut ledger, policy);
    (cluster, ledger)
}

/// Defines `desk` (again).
pub fn define_desk(ledger: &mut Ledger, mut destination: Value) {
    destination["transport"] = json!("pull");
    ledger.define_destination("desk", destination);
}

/// Defines `task` (again).
pub fn define_task(ledger: &mut Ledger, mut policy: Value) {
    policy["destination"] = json!("desk");
    ledger.define_type("task", policy);
}

/// Claims at most `max` commands.
pub fn claim(session: &mut Session, max: i32) -> Vec<Job> {
    try_claim(session, max).unwrap_or_else(|e| panic!("claim: {e}"))
}

/// The same, or its error.
pub fn try_claim(session: &mut Session, max: i32) -> Result<Vec<Job>, SqlError> {
    let sql = "SELECT idempotency_key, lease_token::text, attempt FROM command_ledger.claim('desk', $1)";
    let rows = session.try_rows(sql, &[&max])?;
    Ok(rows.iter().map(|row| Job { key: row.get(0), token: row.get(1), attempt: row.get(2) }).collect())
}

/// Claims the one command that is due.
pub fn claim_one(session: &mut Session) -> Job {
    let mut jobs = claim(session, 10);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

/// Claims with the shortest lease, and waits until it is over.
pub fn claim_and_lose(session: &mut Session) -> Job {
    let sql = "SELECT idempotency_key, lease_token::text, attempt FROM command_ledger.claim('desk', 1, '1s')";
    let row = session.row(sql, &[]);
    let job = Job { key: row.get(0), token: row.get(1), attempt: row.get(2) };
    let over = format!(
        "SELECT lease_expires_at <= clock_timestamp() FROM command_ledger.dispatch_queue WHERE idempotency_key = '{}'",
        job.key
    );
    session.wait_until(&over, 30);
    job
}

/// Registers `task`.
pub fn task(ledger: &mut Ledger, key: &str) -> Receipt {
    ledger.register("task", key, json!({ "n": 1 }))
}

/// `confirm` with a record.
pub fn confirm(ledger: &mut Ledger, job: &Job, record: &str) -> Receipt {
    ledger
        .call("confirm", json!({"idempotency_key": job.key, "lease_token": job.token, "destination_record_id": record}))
}

/// `fail` with an error class.
pub fn fail(ledger: &mut Ledger, job: &Job, error: &str) -> Receipt {
    ledger.call("fail", json!({"idempotency_key": job.key, "lease_token": job.token, "error": error}))
}

/// `uncertain` or `release`.
pub fn say(ledger: &mut Ledger, function: &str, job: &Job) -> Receipt {
    ledger.call(function, json!({"idempotency_key": job.key, "lease_token": job.token}))
}

/// The reasons of the open cases of a command (at most one).
pub fn open_case(ledger: &mut Ledger, key: &str) -> Option<String> {
    let sql = "SELECT reason FROM command_ledger.reconciliation_case WHERE idempotency_key = $1 AND closed_at IS NULL";
    let mut reasons: Vec<String> = ledger.column(sql, &[&key]);
    assert!(reasons.len() <= 1, "{reasons:?}");
    reasons.pop()
}

/// The kinds of the journal's entries, in order.
pub fn journal(ledger: &mut Ledger, key: &str) -> Vec<String> {
    ledger.column("SELECT kind FROM command_ledger.timeline WHERE idempotency_key = $1 ORDER BY seq", &[&key])
}

/// Every journal of this database is whole.
pub fn assert_journals(ledger: &mut Ledger) {
    let broken: Vec<String> = ledger.column(
        "SELECT idempotency_key FROM command_ledger.command \
          WHERE NOT command_ledger.verify_journal(idempotency_key, tenant)",
        &[],
    );
    assert!(broken.is_empty(), "{broken:?}\n{}", ledger.ledger_report());
}

/// The error of a call that must be refused, with everything that a person needs to go on.
pub fn refused(ledger: &mut Ledger, sqlstate: &str, function: &str, named: Value) -> SqlError {
    let answer = ledger.try_call_named(function, named.clone());
    let error = answer.err().unwrap_or_else(|| panic!("{function} {named} succeeded, expected {sqlstate}"));
    assert_eq!(error.sqlstate, sqlstate, "{function} {named}: {error}");
    assert!(!error.message.is_empty() && (!error.detail.is_empty() || !error.hint.is_empty()), "{error:?}");
    error
}
