//! What keeps sends to a destination back, as its relay knows it, in shared memory for the views. The relay alone writes
//! it and never reads it: it is for people. Where the library is not preloaded nothing is known, and the views say so.

use super::shared::{self, Shared};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::tuple::RowSet;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::short;
use command_ledger_domain::throttle::Held;
use pgrx::pg_sys::Datum;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

/// How many destinations of one server can be shown. Those beyond are limited all the same.
pub const PLACES: usize = 1_024;

/// One destination of one database. All zeros: free.
#[repr(C)]
pub struct Place {
    /// Of database and name; 0: free.
    key: AtomicU64,
    database: AtomicU32,
    failures: AtomicI64,
    /// 0: the breaker is closed.
    open_until_us: AtomicI64,
    /// 0: the rate permits.
    full_until_us: AtomicI64,
}

fn key(database: u32, destination: &str) -> u64 {
    short(format!("{database}/{destination}").as_bytes()).max(1)
}

fn place(all: &'static Shared, key: u64) -> Option<&'static Place> {
    all.held.iter().find(|place| place.key.load(SeqCst) == key)
}

/// Shows what keeps sends to a destination back.
pub fn publish(destination: &str, held: &Held) {
    let Some(all) = shared::shared() else { return };
    let database = shared::my_database();
    let key = key(database, destination);
    let free = || all.held.iter().find(|p| p.key.compare_exchange(0, key, SeqCst, SeqCst).is_ok());
    if let Some(place) = place(all, key).or_else(free) {
        place.database.store(database, SeqCst);
        place.failures.store(held.failures, SeqCst);
        place.open_until_us.store(held.open_until_us.unwrap_or(0), SeqCst);
        place.full_until_us.store(held.full_until_us.unwrap_or(0), SeqCst);
    }
}

/// Takes back what was shown of this database: its relay starts or ends.
pub fn forget() {
    let Some(all) = shared::shared() else { return };
    let database = shared::my_database();
    for place in all.held.iter().filter(|p| p.database.load(SeqCst) == database && p.key.load(SeqCst) != 0) {
        place.database.store(0, SeqCst);
        place.key.store(0, SeqCst);
    }
}

/// `held_back(destination)`: no row where nothing can be known.
pub fn held_back(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let set = RowSet::start(call)?;
    let (Some(all), Some(destination)) = (shared::shared(), call.text(0)) else { return Ok(None) };
    let place = place(all, key(shared::my_database(), destination));
    let time = |field: fn(&Place) -> &AtomicI64| {
        let us = place.map_or(0, |place| field(place).load(SeqCst));
        (us != 0).then(|| datum::time(us))
    };
    let failures = place.map_or(0, |place| place.failures.load(SeqCst));
    set.push(&[Some(Datum::from(failures)), time(|p| &p.open_until_us), time(|p| &p.full_until_us)])?;
    Ok(None)
}

crate::sql_function!(ledger_held_back, pg_finfo_ledger_held_back, held_back);
