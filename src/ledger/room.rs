//! Budgets in flight: how many attempts may start at a destination now, counted from rows under the destination's lock.

use super::{advisory, catalog};
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use command_ledger_domain::error::LedgerError;

static IN_FLIGHT: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE o.counted_attempts > 1), \
            pg_catalog.min(o.lease_expires_at) FROM command_ledger.outbox o \
      WHERE o.destination = $1 AND o.lease_token IS NOT NULL",
);

/// What may start at a destination now. Whoever has it holds the destination's lock, so that it stays true until the
/// commit.
pub struct Room {
    /// Attempts that may start, and of these repeats.
    pub all: i64,
    pub repeats: i64,
    /// When the first lease of an attempt in flight ends.
    pub first_lease_us: Option<i64>,
}

/// Waits for a destination's lock and counts what is in flight there.
///
/// # Errors
/// CL003 for an unknown destination.
pub fn enter(connection: &Connection, destination: &str) -> Result<Room, LedgerError> {
    advisory::lock_destination(destination);
    room(connection, destination)
}

/// Counts again what is in flight, under the lock.
pub fn room(connection: &Connection, destination: &str) -> Result<Room, LedgerError> {
    let known = catalog::destination(connection, destination)?;
    let leased = IN_FLIGHT.first(connection, &[Arg::Text(destination)])?;
    let count = |column| leased.as_ref().and_then(|row| row.big(column)).unwrap_or(0);
    let left = |limit: i64, used: i64| if known.paused { 0 } else { (limit - used).max(0) };
    Ok(Room {
        all: left(known.limits.in_flight, count(0)),
        repeats: left(known.limits.retries_in_flight, count(1)),
        first_lease_us: leased.as_ref().and_then(|row| row.time(2)),
    })
}
