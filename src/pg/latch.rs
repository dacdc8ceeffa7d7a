//! Sleeping in a backend so that a cancel, a stop and the postmaster's death are noticed.

use pgrx::pg_sys;

/// Sleeps for so many milliseconds, or less: the latch ends it early.
pub fn nap(longest_ms: i64) {
    // SAFETY: an ordinary interruptible sleep on the backend's own latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            longest_ms,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}
