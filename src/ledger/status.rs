//! Reading a receipt, and waiting for one.

use super::access::{Capability, as_owner, key_of, tenant_of};
use super::catalog;
use super::command::{self, Command};
use super::receipt;
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::latch::nap;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::tuple::RowSet;
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys::{self, Datum};

/// Longest wait of wait_for().
const MAX_WAIT_US: i64 = 60_000_000;
/// How often wait_for() looks.
const LOOK_EVERY_MS: i64 = 25;
const LOOK_EVERY_MAX_MS: i64 = 250;

static OWN_ROW: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT c.xmin::text FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

/// Who may read: any capability on this tenant and type.
const READERS: &[Capability] = &Capability::ALL;

static LOOKUP_PENDING: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT 1 FROM command_ledger.reconciliation_case r \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL AND r.next_lookup_at IS NOT NULL",
);

/// Whether the relay still asks the destination about the command, so that no person is needed yet.
fn is_looked_up(connection: &Connection, tenant: &str, key: &str) -> Result<bool, LedgerError> {
    Ok(LOOKUP_PENDING.first(connection, &[Arg::Text(tenant), Arg::Text(key)])?.is_some())
}

/// Whether a row with this xmin was written by the running transaction or one of its subtransactions.
fn is_own_transaction(xid: u32) -> bool {
    // SAFETY: reads the transaction state of this backend.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(pg_sys::TransactionId::from(xid)) }
}

fn push(set: &RowSet, connection: &Connection, command: &Command) -> Result<(), LedgerError> {
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    receipt::push(connection, set, command, &operation.destination, None)
}

/// `status(key, tenant)`
pub fn status(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    let set = RowSet::start(call)?;
    as_owner(call, |caller, connection| {
        caller.require_any(connection, READERS, tenant, None)?;
        if let Some(command) = command::read(connection, tenant, key)? {
            caller.require_any(connection, READERS, tenant, Some(&command.command_type))?;
            push(&set, connection, &command)?;
        }
        Ok(())
    })?;
    Ok(None)
}

/// `wait_for(key, timeout, tenant)`
pub fn wait_for(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 2)?);
    let wait_us = call.interval_us(1).unwrap_or(0).clamp(0, MAX_WAIT_US);
    let until_us = datum::now_us().saturating_add(wait_us);
    let set = RowSet::start(call)?;
    let mut pause_ms = LOOK_EVERY_MS;
    loop {
        let done = as_owner(call, |caller, connection| {
            caller.require_any(connection, READERS, tenant, None)?;
            // A snapshot of its own each time: what other sessions commit must become visible.
            let Some(command) = command::read_fresh(connection, tenant, key)? else {
                return Ok(datum::now_us() >= until_us);
            };
            caller.require_any(connection, READERS, tenant, Some(&command.command_type))?;
            let writer = OWN_ROW.first(connection, &[Arg::Text(tenant), Arg::Text(key)])?;
            if writer.and_then(|r| r.text(0)?.parse().ok()).is_some_and(is_own_transaction) {
                return Err(LedgerError::new(
                    Code::IllegalTransition,
                    "this command was registered or changed in this very transaction: nothing can happen to it before COMMIT",
                )
                .hint("COMMIT first, then wait_for() in a statement of its own."));
            }
            let settled = command.live.status.is_settled()
                || command.live.status.needs_person() && !is_looked_up(connection, tenant, key)?;
            if settled || datum::now_us() >= until_us {
                push(&set, connection, &command)?;
                return Ok(true);
            }
            Ok(false)
        })?;
        if done {
            return Ok(None);
        }
        nap(pause_ms);
        pause_ms = (pause_ms * 2).min(LOOK_EVERY_MAX_MS);
    }
}

crate::sql_function!(ledger_status, pg_finfo_ledger_status, status);
crate::sql_function!(ledger_wait_for, pg_finfo_ledger_wait_for, wait_for);
