//! Lanes: the open commands of one (tenant, destination, ordering key), in the order in which they took its lock.

use super::advisory;
use super::command::Command;
use crate::pg::datum;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, BIGINT, Connection, Mode, Statement, TEXT};
use command_ledger_domain::error::LedgerError;

// The place is the time under the lane's lock, or the next number should the clock have gone back: an older snapshot
// (REPEATABLE READ) does not see who entered since, and would count from there. Should such a place be taken, the
// conflict clause makes it a serialization failure (40001), which the caller repeats.
static ENTER_LANE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT, TEXT, BIGINT],
    "INSERT INTO command_ledger.lane (tenant, destination, ordering_key, place, idempotency_key) \
     SELECT $1, $2, $3, GREATEST(coalesce(pg_catalog.max(l.place), 0) + 1, $5), $4 FROM command_ledger.lane l \
      WHERE l.tenant = $1 AND l.destination = $2 AND l.ordering_key = $3 \
     ON CONFLICT (tenant, destination, ordering_key, place) DO NOTHING",
);

static IN_LANE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, TEXT, TEXT],
    "SELECT 1 FROM command_ledger.lane l \
      WHERE l.tenant = $1 AND l.destination = $2 AND l.ordering_key = $3 AND l.idempotency_key = $4 LIMIT 1",
);

/// Takes a lane's lock until the end of the transaction: places are given in the order of this lock.
pub fn lock(tenant: &str, destination: &str, lane: &str) {
    advisory::lock(&[b"lane", tenant.as_bytes(), destination.as_bytes(), lane.as_bytes()]);
}

/// Takes the last place of a lane, whose lock the caller holds.
pub fn enter(
    connection: &Connection,
    tenant: &str,
    destination: &str,
    lane: &str,
    key: &str,
) -> Result<(), LedgerError> {
    let args = [Arg::Text(tenant), Arg::Text(destination), Arg::Text(lane), Arg::Text(key), Arg::Big(datum::now_us())];
    match ENTER_LANE.execute(connection, &args)? {
        1 => Ok(()),
        _ => Err(defect("a place in a lane was taken under its lock")),
    }
}

/// Puts a command back into its lane, behind those that wait there, unless it never left it. The caller took the
/// lane's lock before it locked the command.
pub fn enter_again(connection: &Connection, command: &Command, destination: &str) -> Result<(), LedgerError> {
    let Some(lane) = &command.ordering_key else { return Ok(()) };
    let args = [Arg::Text(&command.tenant), Arg::Text(destination), Arg::Text(lane), Arg::Text(&command.key)];
    if IN_LANE.first(connection, &args)?.is_none() {
        enter(connection, &command.tenant, destination, lane, &command.key)?;
    }
    Ok(())
}
