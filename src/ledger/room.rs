//! Budgets in flight: how many attempts may start at a destination now, counted from rows under the destination's lock.

use super::store::{O, OUTBOX, OUTBOX_TABLE};
use super::{advisory, catalog};
use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::table::{Snapshot, Table};
use command_ledger_domain::error::LedgerError;
use std::ffi::CStr;

/// Attempts in flight, in the order in which their leases end.
const LEASE_INDEX: &CStr = c"outbox_leased";

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
    let flying = match count(destination) {
        Some(flying) => flying,
        None => {
            let leased = IN_FLIGHT.first(connection, &[Arg::Text(destination)])?;
            let number = |column| leased.as_ref().and_then(|row| row.big(column)).unwrap_or(0);
            let first_lease_us = leased.as_ref().and_then(|row| row.time(2));
            InFlight { all: number(0), repeats: number(1), first_lease_us }
        }
    };
    let left = |limit: i64, used: i64| if known.paused { 0 } else { (limit - used).max(0) };
    Ok(Room {
        all: left(known.limits.in_flight, flying.all),
        repeats: left(known.limits.retries_in_flight, flying.repeats),
        first_lease_us: flying.first_lease_us,
    })
}

/// Attempts that were started at a destination and have not ended.
#[derive(Default)]
struct InFlight {
    all: i64,
    repeats: i64,
    first_lease_us: Option<i64>,
}

/// Counts them without a statement.
fn count(destination: &str) -> Option<InFlight> {
    let table = Table::open(OUTBOX_TABLE, OUTBOX)?;
    let snapshot = Snapshot::latest();
    let columns = [O::destination as usize, O::lease_expires_at as usize];
    let flying = table.walk(LEASE_INDEX, columns, datum::text(destination), None, &snapshot).map(|mut walk| {
        let mut flying = InFlight::default();
        while let Some(row) = walk.next() {
            // In the order in which they end.
            flying.first_lease_us = flying.first_lease_us.or(row.time(O::lease_expires_at as usize));
            flying.all += 1;
            flying.repeats += i64::from(row.int(O::counted_attempts as usize) > Some(1));
        }
        walk.end();
        flying
    });
    snapshot.release();
    table.close();
    flying
}
