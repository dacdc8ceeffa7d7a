//! Retention: removing payload on request or when its time is over, and forgetting commands in the end.
//!
//! What a redaction leaves (keys, hashes, outcome, journal) still answers a repeat as a replay or a conflict.

use super::access::{Capability, as_owner, key_of, tenant_of};
use super::approve::actor;
use super::batch::Actor;
use super::catalog::{self, Operation};
use super::command::{self, Command};
use super::receipt::{self, Outcome};
use super::{journal, rows};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::spi::{self, Arg, Connection, INT, Mode, Statement, TEXT, TIME};
use crate::pg::transaction::nested;
use crate::relay::wake;
use command_ledger_domain::config::IdempotencyMode;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::retention::{
    RetentionFacts, RetentionRule, RetentionStep, key_due_us, recognised_until_us, retention_step,
};
use command_ledger_domain::retry::plus_ms;
use command_ledger_domain::status::Status;
use pgrx::pg_sys::Datum;

/// Most commands of one call of purge().
const MAX_PURGE: i32 = 100_000;
/// Commands per SPI connection, whose memory is given back after each.
const CHUNK: i32 = 100;

static REDACT: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TIME],
    "UPDATE command_ledger.command c \
        SET params=NULL, proposal=NULL, refs=NULL, result=NULL, error_message=NULL, redacted_at=$3, retain_until=$4 \
      WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

static REDACT_CASES: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT],
    "UPDATE command_ledger.reconciliation_case r SET evidence=NULL, last_lookup=NULL \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NOT NULL \
        AND (r.evidence IS NOT NULL OR r.last_lookup IS NOT NULL)",
);

static LOOK_AGAIN: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME],
    "UPDATE command_ledger.command c SET retain_until=$3 WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

static OTHERS_WAIT: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, TEXT, TEXT],
    "SELECT 1 FROM command_ledger.lane own \
       JOIN command_ledger.lane l \
         ON (l.tenant = own.tenant AND l.destination = own.destination AND l.ordering_key = own.ordering_key) \
      WHERE own.tenant = $1 AND own.destination = $2 AND own.ordering_key = $3 AND own.idempotency_key = $4 \
        AND l.place > own.place LIMIT 1",
);

static DUE: Statement = Statement::new(
    Mode::Fresh,
    &[TIME, TIME, TEXT, TEXT, INT],
    "SELECT c.tenant, c.idempotency_key, c.retain_until FROM command_ledger.command c \
      WHERE c.retain_until <= $1 AND (c.retain_until, c.tenant, c.idempotency_key) > ($2, $3, $4) \
      ORDER BY c.retain_until, c.tenant, c.idempotency_key LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED",
);

/// What goes with a command, children first.
static DELETE_ALL: [Statement; 5] = [
    Statement::new(
        Mode::Write,
        &[TEXT, TEXT],
        "DELETE FROM command_ledger.command_event e WHERE e.tenant = $1 AND e.idempotency_key = $2",
    ),
    Statement::new(
        Mode::Write,
        &[TEXT, TEXT],
        "DELETE FROM command_ledger.approval a WHERE a.tenant = $1 AND a.idempotency_key = $2",
    ),
    Statement::new(
        Mode::Write,
        &[TEXT, TEXT],
        "DELETE FROM command_ledger.reconciliation_case r WHERE r.tenant = $1 AND r.idempotency_key = $2",
    ),
    Statement::new(
        Mode::Write,
        &[TEXT, TEXT],
        "DELETE FROM command_ledger.lane l USING command_ledger.command c, command_ledger.command_type t \
          WHERE c.tenant = $1 AND c.idempotency_key = $2 AND t.name = c.command_type AND t.version = c.type_version \
            AND l.tenant = c.tenant AND l.destination = t.destination AND l.ordering_key = c.ordering_key \
            AND l.idempotency_key = c.idempotency_key",
    ),
    Statement::new(
        Mode::Write,
        &[TEXT, TEXT],
        "DELETE FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2",
    ),
];

fn rule_of(operation: &Operation) -> RetentionRule {
    let retention = &operation.policy.retention;
    RetentionRule { payload_ms: retention.payload_ms, key_ms: retention.key_ms }
}

fn facts_of(operation: &Operation, command: &Command, blocks_lane: bool, now_us: i64) -> RetentionFacts {
    let idempotency = &operation.effective.idempotency;
    let sent = command.live.attempt > 0 && idempotency.mode != IdempotencyMode::None;
    RetentionFacts {
        settled: command.live.status.is_settled() && command.live.open_case.is_none(),
        settled_us: command.updated_us,
        redacted: command.redacted,
        blocks_lane,
        recognised_until_us: if sent {
            recognised_until_us(idempotency.window, idempotency.margin_ms, command.updated_us)
        } else {
            i64::MIN
        },
        deadline_us: command.deadline_us,
        repeats_until_us: operation.policy.retry.deadline_ms.map(|ms| plus_ms(command.registered_us, ms)),
        now_us,
    }
}

/// Whether others wait behind a failed command.
fn blocks_lane(connection: &Connection, operation: &Operation, command: &Command) -> Result<bool, LedgerError> {
    let Some(lane) = command.ordering_key.as_deref().filter(|_| command.live.status == Status::Failed) else {
        return Ok(false);
    };
    let args =
        [Arg::Text(&command.tenant), Arg::Text(&operation.destination), Arg::Text(lane), Arg::Text(&command.key)];
    Ok(OTHERS_WAIT.first(connection, &args)?.is_some())
}

/// Removes the payload of a locked, settled command. A failed one leaves its lane: without params it can never be
/// sent again, and would hold the others back for ever.
fn redact_command(
    connection: &Connection,
    operation: &Operation,
    command: &mut Command,
    actor: &Actor,
    now_us: i64,
    next_us: Option<i64>,
) -> Result<(), LedgerError> {
    journal::note(connection, command, now_us, journal::REDACT, actor, None)?;
    let key = [Arg::Text(&command.tenant), Arg::Text(&command.key)];
    REDACT.execute(
        connection,
        &[Arg::Text(&command.tenant), Arg::Text(&command.key), Arg::Time(now_us), Arg::or_null(next_us, Arg::Time)],
    )?;
    REDACT_CASES.execute(connection, &key)?;
    if let Some(lane) = command.ordering_key.as_deref().filter(|_| command.live.status == Status::Failed) {
        rows::LEAVE_LANE.execute(
            connection,
            &[Arg::Text(&command.tenant), Arg::Text(&operation.destination), Arg::Text(lane), Arg::Text(&command.key)],
        )?;
        wake::at_commit();
    }
    command.redacted = true;
    command.result = None;
    command.live.error_message = None;
    Ok(())
}

/// `redact(key, tenant)`: settled commands without an open case only. The second time changes nothing.
pub fn redact(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Operate, tenant, None)?;
        let mut command = command::lock_existing(connection, tenant, key)?;
        caller.require(connection, Capability::Operate, tenant, Some(&command.command_type))?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        if command.live.open_case.is_some() || !command.live.status.is_settled() {
            let why = match command.live.open_case {
                Some(_) => "has an open case".to_owned(),
                None => format!("is {}", command.live.status),
            };
            return Err(LedgerError::new(
                Code::IllegalTransition,
                format!("redact() is not possible for a command that {why}"),
            )
            .detail(format!(
                "In state {} its params may still be sent, or be needed to find out what happened.",
                command.live.status
            ))
            .hint("Wait until it is settled, cancel() it, or close its case with reconcile(); then redact it."));
        }
        if command.redacted {
            return receipt::one(call, connection, &command, &operation.destination, Outcome::Unchanged);
        }
        let now_us = datum::now_us();
        let next_us = key_due_us(&rule_of(&operation), &facts_of(&operation, &command, false, now_us));
        redact_command(connection, &operation, &mut command, &actor(caller, None), now_us, next_us)?;
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

/// Applies retention to one command that is due; says whether anything was removed.
fn retain(connection: &Connection, tenant: &str, key: &str, actor: &Actor, now_us: i64) -> Result<bool, LedgerError> {
    let Some(mut command) = command::lock(connection, tenant, key)? else { return Ok(false) };
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let blocks_lane = blocks_lane(connection, &operation, &command)?;
    let until_us = match retention_step(&rule_of(&operation), &facts_of(&operation, &command, blocks_lane, now_us)) {
        RetentionStep::Delete => {
            for statement in &DELETE_ALL {
                statement.execute(connection, &[Arg::Text(tenant), Arg::Text(key)])?;
            }
            return Ok(true);
        }
        RetentionStep::Redact { next_us } => {
            redact_command(connection, &operation, &mut command, actor, now_us, next_us)?;
            return Ok(true);
        }
        RetentionStep::Wait { until_us } => Some(until_us),
        RetentionStep::Keep => None,
    };
    LOOK_AGAIN.execute(connection, &[Arg::Text(tenant), Arg::Text(key), Arg::or_null(until_us, Arg::Time)])?;
    Ok(false)
}

/// Where the walk over the due commands stands.
struct Cursor {
    due_us: i64,
    tenant: String,
    key: String,
}

/// `purge(max_commands)`: walks the commands whose time has come, oldest first, each in a subtransaction, so that one
/// bad row stops nothing. Rows that others hold are left for the next time.
pub fn purge(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let max = call.int(0).filter(|max| (1..=MAX_PURGE).contains(max)).ok_or_else(|| {
        LedgerError::new(Code::InvalidArgument, format!("max_commands must be from 1 to {MAX_PURGE}"))
            .hint("Call it again until it answers 0.")
    })?;
    let removed = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Operate)?;
        Ok(apply(&actor(caller, None), max, i32::MAX)?.removed)
    })?;
    Ok(Some(Datum::from(removed)))
}

/// What one round of retention did.
#[derive(Clone, Copy, Default)]
pub struct Applied {
    /// Commands that were due.
    pub looked_at: i32,
    /// Of those, what is not due any more: something was removed, or its time comes later.
    pub judged: i32,
    /// Of those, redacted or deleted.
    pub removed: i32,
}

/// Applies retention until `max_removed` commands were redacted or deleted, or `max_looked_at` were looked at. The relay's
/// maintenance calls it, and purge().
pub fn apply(actor: &Actor, max_removed: i32, max_looked_at: i32) -> Result<Applied, LedgerError> {
    let now_us = datum::now_us();
    let mut cursor = Cursor { due_us: i64::MIN, tenant: String::new(), key: String::new() };
    let mut all = Applied::default();
    while all.removed < max_removed && all.looked_at < max_looked_at {
        let limit = CHUNK.min(max_removed - all.removed).min(max_looked_at - all.looked_at);
        let chunk = spi::connect(|connection| purge_chunk(connection, &mut cursor, limit, actor, now_us))?;
        all.looked_at += chunk.looked_at;
        all.judged += chunk.judged;
        all.removed += chunk.removed;
        if chunk.looked_at < limit {
            break;
        }
    }
    Ok(all)
}

fn purge_chunk(
    connection: &Connection,
    cursor: &mut Cursor,
    limit: i32,
    actor: &Actor,
    now_us: i64,
) -> Result<Applied, LedgerError> {
    let due = DUE.run(
        connection,
        &[
            Arg::Time(now_us),
            Arg::Time(cursor.due_us),
            Arg::Text(&cursor.tenant),
            Arg::Text(&cursor.key),
            Arg::Int(limit),
        ],
        0,
    )?;
    let mut chunk = Applied::default();
    for row in due.iter() {
        chunk.looked_at += 1;
        *cursor =
            Cursor { due_us: row.time(2).unwrap_or(i64::MAX), tenant: row.text_or_empty(0), key: row.text_or_empty(1) };
        match nested(|| retain(connection, &cursor.tenant, &cursor.key, actor, now_us)) {
            Ok(removed) => {
                chunk.judged += 1;
                chunk.removed += i32::from(removed);
            }
            // Not the row's fault, and not to be swallowed.
            Err(error) if error.code == Code::Canceled => return Err(error),
            Err(error) => log(Level::Warning, &format!("command_ledger: purge left one command as it was: {error}")),
        }
    }
    Ok(chunk)
}

crate::sql_function!(ledger_redact, pg_finfo_ledger_redact, redact);
crate::sql_function!(ledger_purge, pg_finfo_ledger_purge, purge);
