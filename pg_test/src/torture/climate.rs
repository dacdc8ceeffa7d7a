//! What everything in a run shares: the seed, the counts, whether faults happen, and the clock.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dice::Dice;
use super::faults::{Counts, Fault};

/// Shared by all actors and destinations.
#[derive(Debug, Default)]
pub struct Climate {
    /// Every choice follows from it.
    pub seed: u64,
    /// What went wrong so far.
    pub counts: Counts,
    calm: AtomicBool,
    ahead_us: AtomicI64,
}

impl Climate {
    /// A run with this seed.
    pub fn new(seed: u64) -> Climate {
        Climate { seed, ..Climate::default() }
    }

    /// The generator of an actor.
    pub fn dice(&self, actor: &str, number: u64) -> Dice {
        Dice::of(self.seed, actor, number)
    }

    /// From now on nothing goes wrong on purpose.
    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    /// Whether nothing goes wrong any more.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::SeqCst)
    }

    /// It happens: counted.
    pub fn strike(&self, fault: Fault) {
        self.counts.add(fault);
    }

    /// The clock of ledger and destinations, which may be days ahead of the machine's.
    pub fn now_us(&self) -> i64 {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(wall.as_micros()).unwrap_or(i64::MAX) + self.ahead_us.load(Ordering::SeqCst)
    }

    /// How far it is ahead, in seconds.
    pub fn ahead_s(&self) -> i64 {
        self.ahead_us.load(Ordering::SeqCst) / 1_000_000
    }

    /// Time passes for everybody.
    pub fn pass(&self, time: Duration) {
        let us = i64::try_from(time.as_micros()).unwrap_or(0);
        self.ahead_us.fetch_add(us, Ordering::SeqCst);
    }
}
