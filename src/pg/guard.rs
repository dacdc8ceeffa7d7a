//! The write guard: the triggers on the ledger's tables let a row pass only while one of the ledger's own statements
//! runs, and only at that statement's own trigger depth, so that a trigger somebody adds to a table gains nothing.

use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    /// Trigger depth at which writing is allowed, or -1. Only the backend's one thread ever sees it.
    static OPEN_AT_DEPTH: Cell<i32> = const { Cell::new(-1) };
}

fn trigger_depth() -> i32 {
    // SAFETY: reads a backend variable; the function takes no arguments.
    let depth = unsafe { pgrx::direct_function_call_as_datum(pg_sys::pg_trigger_depth, &[]) };
    depth.map_or(0, |d| d.value() as i32)
}

/// While this value lives, the ledger's tables may be written at the current trigger depth.
pub struct WriteGuard {
    previous: i32,
}

impl WriteGuard {
    /// Opens the guard.
    pub fn open() -> Self {
        let depth = trigger_depth();
        Self { previous: OPEN_AT_DEPTH.replace(depth) }
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        OPEN_AT_DEPTH.set(self.previous);
    }
}

/// Whether a write that happens now is one of ours.
pub fn is_open() -> bool {
    let allowed = OPEN_AT_DEPTH.get();
    allowed >= 0 && allowed == trigger_depth()
}
