//! Attempts in flight at each destination, in shared memory, so that claims of one destination need not wait for each
//! other's commit. The rows are the truth: the number here is never too small (see the core), is counted anew from the
//! rows every few seconds, and where it meets a limit the rows are counted instead. Not preloaded: nothing is known here.

use super::shared;
use command_ledger_domain::hash::short;
use command_ledger_domain::inflight::{Count, Flights};
use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// How many destinations of one server have a number. All others are counted from their rows each time.
pub const PLACES: usize = 1_024;
/// How far from its own place a destination may stand.
const PROBES: usize = 16;
/// How long a number is used before the rows are counted again, in microseconds.
const COUNT_LIVES_US: i64 = 5_000_000;

/// One destination. All zeros: free.
#[repr(C)]
pub struct Place {
    /// Of ledger and destination; 0: free.
    key: AtomicU64,
    count: AtomicU64,
    /// No lease of an attempt in flight ends before this moment.
    first_lease_us: AtomicI64,
    /// When the rows were counted last.
    counted_us: AtomicI64,
}

/// What the running transaction has to put right here when it ends.
#[derive(Default)]
struct Pending {
    taken: Vec<(&'static Place, Flights)>,
    landed: Vec<(&'static Place, u32, Flights)>,
    counted: Vec<&'static Place>,
}

thread_local! {
    static PENDING: RefCell<Pending> = const {
        RefCell::new(Pending { taken: Vec::new(), landed: Vec::new(), counted: Vec::new() })
    };
}

/// Attempts in flight as they were counted, and when the first of their leases ends.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub flights: Flights,
    pub first_lease_us: Option<i64>,
}

impl Place {
    fn change(&self, change: impl Fn(Count) -> Option<Count>) -> bool {
        self.count.fetch_update(SeqCst, SeqCst, |count| change(Count(count)).map(|count| count.0)).is_ok()
    }

    /// Whether the number may be used now.
    fn is_good(&self, now_us: i64) -> bool {
        let counted_us = self.counted_us.load(SeqCst);
        (counted_us..counted_us.saturating_add(COUNT_LIVES_US)).contains(&now_us)
            && self.first_lease_us.load(SeqCst) > now_us
    }

    /// Takes places without counting the rows; the caller shares the destination's lock. `false`: count them.
    pub fn take(&'static self, wanted: Flights, limit: Flights, now_us: i64) -> bool {
        let taken = self.is_good(now_us) && self.change(|count| count.take(wanted, limit));
        if taken {
            PENDING.with_borrow_mut(|pending| pending.taken.push((self, wanted)));
        }
        taken
    }

    /// Whether [`Place::take`] would succeed now.
    pub fn has(&self, wanted: Flights, limit: Flights, now_us: i64) -> bool {
        self.is_good(now_us) && Count(self.count.load(SeqCst)).take(wanted, limit).is_some()
    }

    /// Counts the rows with `count`; the caller holds the destination's lock alone.
    pub fn recount<E>(&'static self, now_us: i64, count: impl FnOnce() -> Result<Counted, E>) -> Result<Counted, E> {
        self.change(|count| Some(count.begin_counting()));
        PENDING.with_borrow_mut(|pending| {
            // Nobody else holds places; what this transaction took is given up with the old number.
            pending.taken.retain(|(place, _)| !std::ptr::eq(*place, self));
            pending.counted.push(self);
        });
        self.counted_us.store(0, SeqCst);
        let counted = count()?;
        self.change(|count| Some(count.counted(counted.flights)));
        self.first_lease_us.store(counted.first_lease_us.unwrap_or(i64::MAX), SeqCst);
        self.counted_us.store(now_us, SeqCst);
        Ok(counted)
    }

    /// After [`Place::recount`], under the same lock: takes places that are known to be there.
    pub fn take_counted(&'static self, wanted: Flights) {
        let everything = Flights { all: u32::MAX, repeats: u32::MAX };
        if self.change(|count| count.take(wanted, everything)) {
            PENDING.with_borrow_mut(|pending| pending.taken.push((self, wanted)));
        }
    }

    /// Of the places that were taken these are used, by leases of which the first ends then.
    pub fn used(&'static self, used: Flights, first_lease_us: Option<i64>) {
        if let Some(first_lease_us) = first_lease_us {
            self.first_lease_us.fetch_min(first_lease_us, SeqCst);
        }
        PENDING.with_borrow_mut(|pending| {
            if let Some((_, taken)) = pending.taken.iter_mut().find(|(place, _)| std::ptr::eq(*place, self)) {
                let rest = Flights {
                    all: taken.all.saturating_sub(used.all),
                    repeats: taken.repeats.saturating_sub(used.repeats),
                };
                self.change(|count| Some(count.give_back(rest)));
                *taken = Flights { all: taken.all - rest.all, repeats: taken.repeats - rest.repeats };
            }
        });
    }
}

/// The number of a destination of a ledger; `None` where nothing can be known.
pub fn place(ledger: i64, destination: &str) -> Option<&'static Place> {
    let all = &shared::shared()?.flights;
    let key = short(&[&ledger.to_be_bytes(), destination.as_bytes()].concat()).max(1);
    let start = key as usize % PLACES;
    (0..PROBES).map(|i| &all[(start + i) % PLACES]).find(|place| {
        let held = place.key.load(SeqCst);
        held == key
            || held == 0 && place.key.compare_exchange(0, key, SeqCst, SeqCst).map_or_else(|now| now == key, |_| true)
    })
}

/// An attempt ended: takes it off when this transaction commits.
pub fn landed(ledger: i64, destination: &str, repeat: bool) {
    if let Some(place) = place(ledger, destination) {
        let generation = Count(place.count.load(SeqCst)).generation();
        let flights = Flights { all: 1, repeats: u32::from(repeat) };
        PENDING.with_borrow_mut(|pending| pending.landed.push((place, generation, flights)));
    }
}

/// Works on what is pending. Called in the commit and abort callbacks too, where nothing may fail: only atomics inside.
fn settle(work: impl FnOnce(&mut Pending)) {
    let _ = PENDING.try_with(|pending| {
        if let Ok(mut pending) = pending.try_borrow_mut() {
            work(&mut pending);
        }
    });
}

/// The transaction committed.
pub fn at_commit() {
    settle(|pending| {
        for (place, generation, flights) in pending.landed.drain(..) {
            place.change(|count| Some(count.land(generation, flights)));
        }
        pending.taken.clear();
        pending.counted.clear();
    });
}

/// The transaction rolled back.
pub fn at_abort() {
    forget_ends();
    settle(|pending| {
        for (place, flights) in pending.taken.drain(..) {
            place.change(|count| Some(count.give_back(flights)));
        }
        pending.counted.clear();
    });
}

/// A part of the transaction rolled back, or its commit is left to another session: ends may not be committed with it,
/// and stay counted until the rows are; what was counted may have lacked them.
pub fn forget_ends() {
    settle(|pending| {
        pending.landed.clear();
        for place in &pending.counted {
            place.counted_us.store(0, SeqCst);
        }
    });
}
