//! What the ledger prevented and what the relay did, counted in shared memory since the server started. Counted at once,
//! also by transactions that roll back later: it says what was answered, not what was committed.

use super::shared::{self, Slot};
use crate::ledger::access::{Caller, Capability, as_owner};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::tuple::RowSet;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::Datum;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many counters there are.
pub const COUNTERS: usize = 7;

/// What is counted, per database. Databases beyond the slots share one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// A key that was known was answered with its receipt.
    ReplaysAnswered = 0,
    /// A known key came with other params (CL001).
    ConflictsRefused = 1,
    /// A new key with params that were registered just before was blocked (CL010).
    LookalikesStopped = 2,
    /// An attempt that may have had its effect became a question instead of being repeated.
    RepeatsNotSent = 3,
    /// The relay handed an attempt to the wire, or to a handler.
    RelayAttempts = 4,
    /// Such an attempt ended, with an answer or without.
    RelayEnds = 5,
    /// How long all of those took, from the claim to the end, in microseconds.
    RelayAttemptUs = 6,
}

impl Counter {
    const ALL: [(Self, &'static str); COUNTERS] = [
        (Self::ReplaysAnswered, "replays_answered"),
        (Self::ConflictsRefused, "conflicts_refused"),
        (Self::LookalikesStopped, "lookalikes_stopped"),
        (Self::RepeatsNotSent, "repeats_not_sent"),
        (Self::RelayAttempts, "relay_attempts"),
        (Self::RelayEnds, "relay_ends"),
        (Self::RelayAttemptUs, "relay_attempt_us"),
    ];
}

fn counters(slot: Option<&'static Slot>) -> Option<&'static [AtomicU64; COUNTERS]> {
    match slot {
        Some(slot) => Some(&slot.counters),
        None => shared::shared().map(|shared| &shared.overflow),
    }
}

/// Adds one. Nothing is counted where the library is not preloaded.
pub fn count(counter: Counter) {
    add(counter, 1);
}

/// Counts an attempt of the relay that ends now, and how long it took.
pub fn count_end(took_us: i64) {
    add(Counter::RelayEnds, 1);
    add(Counter::RelayAttemptUs, u64::try_from(took_us).unwrap_or(0));
}

/// Adds as many.
pub fn add(counter: Counter, by: u64) {
    if let Some(counters) = counters(shared::my_slot()) {
        counters[counter as usize].fetch_add(by, Relaxed);
    }
}

/// `counters()`: for whoever may read the ledger; no row for others and where nothing is counted.
pub fn list(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let set = RowSet::start(call)?;
    let Some(values) = counters(shared::find(shared::my_database())) else { return Ok(None) };
    if as_owner(call, reads)? {
        for (counter, name) in Counter::ALL {
            let value = values[counter as usize].load(Relaxed);
            set.push(&[Some(datum::text(name)), Some(Datum::from(i64::try_from(value).unwrap_or(i64::MAX)))])?;
        }
    }
    Ok(None)
}

fn reads(caller: &Caller, connection: &crate::pg::spi::Connection) -> Result<bool, LedgerError> {
    super::health::tenants_of(caller, connection, &[Capability::Audit, Capability::Operate, Capability::Administer])
        .map(|tenants| tenants.is_some())
}

crate::sql_function!(ledger_counters, pg_finfo_ledger_counters, list);
