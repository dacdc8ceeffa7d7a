//! Budgets in flight: how many attempts may start at a destination now, counted from rows under the destination's lock.

use super::catalog::Destination;
use super::command::Command;
use super::store::{O, OUTBOX, OUTBOX_TABLE};
use super::{advisory, catalog, fence};
use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::table::{Snapshot, Table};
use crate::relay::flights::{self, Counted, Place};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::inflight::Flights;
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

/// What may start at a destination now: places that are held for this transaction until its end. Whoever has it holds
/// the destination's lock, alone or with others whose places are counted.
pub struct Room {
    /// Attempts that may start, and of these repeats.
    pub all: i64,
    pub repeats: i64,
    /// When the first lease of an attempt in flight ends; known where the rows were counted.
    pub first_lease_us: Option<i64>,
    place: Option<&'static Place>,
}

impl Room {
    fn none() -> Self {
        Self { all: 0, repeats: 0, first_lease_us: None, place: None }
    }

    /// These attempts start; the places that were not needed are free again.
    pub fn used_by<'a>(&self, started: impl Iterator<Item = &'a Command>) {
        let Some(place) = self.place else { return };
        let (mut used, mut first_lease_us) = (Flights::default(), None);
        for command in started {
            used.all += 1;
            used.repeats += u32::from(command.live.counted > 1);
            let expires_us = command.lease().map(|lease| lease.expires_us);
            first_lease_us = first_lease_us.into_iter().chain(expires_us).min();
        }
        place.used(used, first_lease_us);
    }
}

/// Waits for a destination's lock and finds room for up to `max` attempts: by the shared number if that is far from the
/// limits, else by counting the rows while nobody else starts any.
///
/// # Errors
/// CL003 for an unknown destination.
pub fn enter(connection: &Connection, destination: &str, max: i32) -> Result<Room, LedgerError> {
    let place = flights::place(fence::own_tag(), destination);
    let wanted = u32::try_from(max).unwrap_or(0);
    let wanted = Flights { all: wanted, repeats: wanted };
    let all_of =
        |place| Room { all: i64::from(max), repeats: i64::from(max), first_lease_us: None, place: Some(place) };
    if let Some(place) = place
        && place.has(wanted, limits(&*catalog::destination(connection, destination)?), datum::now_us())
    {
        advisory::share_destination(destination);
        // As it is now: the wait may have been for somebody who changed it.
        let known = catalog::destination(connection, destination)?;
        if known.paused {
            return Ok(Room::none());
        }
        if place.take(wanted, limits(&known), datum::now_us()) {
            return Ok(all_of(place));
        }
        advisory::leave_destination(destination);
    }
    advisory::lock_destination(destination);
    // Whoever was waited for may have counted just now. Counting again, one after the other, would keep everybody who comes
    // meanwhile counting too: for ever, once a count takes longer than the time between two claims.
    if let Some(place) = place {
        let known = catalog::destination(connection, destination)?;
        if !known.paused && place.take(wanted, limits(&known), datum::now_us()) {
            return Ok(all_of(place));
        }
    }
    room(connection, destination, max)
}

fn limits(destination: &Destination) -> Flights {
    let number = |limit: i64| u32::try_from(limit).unwrap_or(u32::MAX);
    Flights { all: number(destination.limits.in_flight), repeats: number(destination.limits.retries_in_flight) }
}

/// Counts what is in flight; the caller holds the lock alone.
pub fn room(connection: &Connection, destination: &str, max: i32) -> Result<Room, LedgerError> {
    let known = catalog::destination(connection, destination)?;
    let place = flights::place(fence::own_tag(), destination);
    let flying = match place {
        Some(place) => place.recount(datum::now_us(), || count(connection, destination))?,
        None => count(connection, destination)?,
    };
    if known.paused {
        return Ok(Room { first_lease_us: flying.first_lease_us, ..Room::none() });
    }
    let limit = limits(&known);
    let wanted = u32::try_from(max).unwrap_or(0);
    let left = |limit: u32, used: u32| limit.saturating_sub(used).min(wanted);
    let free =
        Flights { all: left(limit.all, flying.flights.all), repeats: left(limit.repeats, flying.flights.repeats) };
    if let Some(place) = place {
        place.take_counted(free);
    }
    Ok(Room {
        all: i64::from(free.all),
        repeats: i64::from(free.repeats),
        first_lease_us: flying.first_lease_us,
        place,
    })
}

fn count(connection: &Connection, destination: &str) -> Result<Counted, LedgerError> {
    if let Some(counted) = count_by_index(destination) {
        return Ok(counted);
    }
    let leased = IN_FLIGHT.first(connection, &[Arg::Text(destination)])?;
    let number =
        |column| leased.as_ref().and_then(|row| row.big(column)).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let first_lease_us = leased.as_ref().and_then(|row| row.time(2));
    Ok(Counted { flights: Flights { all: number(0), repeats: number(1) }, first_lease_us })
}

/// Counts them without a statement.
fn count_by_index(destination: &str) -> Option<Counted> {
    let table = Table::open(OUTBOX_TABLE, OUTBOX)?;
    let snapshot = Snapshot::latest();
    let columns = [O::destination as usize, O::lease_expires_at as usize];
    let flying = table.walk(LEASE_INDEX, columns, datum::text(destination), None, &snapshot).map(|mut walk| {
        let mut flying = Counted::default();
        while let Some(row) = walk.next() {
            // In the order in which they end.
            flying.first_lease_us = flying.first_lease_us.or(row.time(O::lease_expires_at as usize));
            flying.flights.all += 1;
            flying.flights.repeats += u32::from(row.int(O::counted_attempts as usize) > Some(1));
        }
        walk.end();
        flying
    });
    snapshot.release();
    table.close();
    flying
}
