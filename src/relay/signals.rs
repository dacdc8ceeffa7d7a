//! Stop, cancel and reload requests to the relay and the launcher.
//!
//! The server's own SIGTERM handler for workers ends the process wherever it is, and answers that are on their way are
//! lost; a handler that only sets a flag leaves a wait for a lock or for a standby uninterrupted, and a fast stop of the
//! server hangs. So:
//!
//! | signal | idle | in a transaction | in its commit |
//! |---|---|---|---|
//! | SIGTERM | flag and latch: the main loop stops, with grace | also cancels the statement: the transaction is undone | also ends a wait for a standby |
//! | SIGINT (pg_cancel_backend, time limits) | nothing | cancels the statement | nothing: what must be durable stays awaited |
//! | SIGHUP | flag and latch | read at the next turn | same |
//!
//! A transaction that still runs well after the stop request or its own time limit (a handler function that swallows the
//! cancel) is ended with the whole process, as the server's own handler would; see [`hard_stop_if_late`].

use super::shared;
use crate::settings;
use pgrx::pg_sys;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::SeqCst};

static STOP: AtomicBool = AtomicBool::new(false);
static STOP_AT_MS: AtomicI64 = AtomicI64::new(0);
static IN_TRANSACTION: AtomicBool = AtomicBool::new(false);
static COMMITTING: AtomicBool = AtomicBool::new(false);
static RELOADS: AtomicU32 = AtomicU32::new(0);
/// A copy of command_ledger.shutdown_grace that a signal handler may read.
static GRACE_MS: AtomicI64 = AtomicI64::new(2_000);

/// When the running transaction has outlived its time limit by so much that it must be ignoring it.
static OVERDUE_AT_MS: AtomicI64 = AtomicI64::new(i64::MAX);

/// How long after its time limit a transaction may go on before the process is ended under it.
const OVERDUE_MARGIN_MS: i64 = 5_000;
/// How long after stop request and grace a transaction may go on before the process is ended under it.
const HARD_STOP_MARGIN_MS: i64 = 1_500;

/// Milliseconds on a clock that is never set. Safe in signal handlers.
pub fn monotonic_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a local; clock_gettime is async-signal-safe.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Runs a handler's body with errno as it was before.
fn handling(body: impl FnOnce()) {
    // SAFETY: errno of this thread; only the server's main thread receives signals.
    unsafe {
        let errno = *libc::__errno_location();
        body();
        *libc::__errno_location() = errno;
    }
}

fn cancel_statement() {
    // SAFETY: the server's own flags, which its handlers set in the same way.
    unsafe {
        pg_sys::QueryCancelPending = 1;
        pg_sys::InterruptPending = 1;
    }
}

unsafe extern "C-unwind" fn on_terminate(_signal: c_int) {
    handling(|| {
        if !STOP.swap(true, SeqCst) {
            STOP_AT_MS.store(monotonic_ms(), SeqCst);
        }
        if IN_TRANSACTION.load(SeqCst) {
            cancel_statement();
        }
        shared::set_my_latch();
    });
}

unsafe extern "C-unwind" fn on_cancel(_signal: c_int) {
    handling(|| {
        if IN_TRANSACTION.load(SeqCst) && !COMMITTING.load(SeqCst) {
            cancel_statement();
            shared::set_my_latch();
        }
    });
}

unsafe extern "C-unwind" fn on_reload(_signal: c_int) {
    handling(|| {
        // SAFETY: the server's own flag.
        unsafe { pg_sys::ConfigReloadPending = 1 };
        shared::set_my_latch();
    });
}

#[cfg(not(feature = "pg18"))]
unsafe fn handle(signal: c_int, handler: unsafe extern "C-unwind" fn(c_int)) {
    // SAFETY: the handlers above touch flags and latches only.
    unsafe { pg_sys::pqsignal(signal, Some(handler)) };
}

#[cfg(feature = "pg18")]
unsafe fn handle(signal: c_int, handler: unsafe extern "C-unwind" fn(c_int)) {
    // SAFETY: as for the older versions; the function has another name here.
    unsafe { pg_sys::pqsignal_be(signal, Some(handler)) };
}

/// Installs the handlers and lets signals in. The first thing a worker does.
pub fn install() {
    remember_grace();
    // SAFETY: signals are still blocked, so that no handler runs half-installed.
    unsafe {
        handle(libc::SIGTERM, on_terminate);
        handle(libc::SIGINT, on_cancel);
        handle(libc::SIGHUP, on_reload);
        // A reload between the fork and this moment was ignored, and its settings are not what the fork inherited.
        pg_sys::ConfigReloadPending = 1;
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Whether this process was asked to stop.
pub fn stop_asked() -> bool {
    STOP.load(SeqCst)
}

/// Reads the configuration again if that was asked for.
pub fn reload_if_asked() {
    // SAFETY: the server's own flag and function, on the main thread.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
            RELOADS.fetch_add(1, SeqCst);
            remember_grace();
        }
    }
}

/// Whether a reload waits.
pub fn reload_is_asked() -> bool {
    // SAFETY: the server's own flag.
    unsafe { pg_sys::ConfigReloadPending != 0 }
}

/// How often the configuration was read again, so that a reload in the middle of a step is not missed.
pub fn reloads() -> u32 {
    RELOADS.load(SeqCst)
}

fn remember_grace() {
    GRACE_MS.store(i64::from(settings::SHUTDOWN_GRACE_MS.get()), SeqCst);
}

/// Marks that a transaction runs, from here to [`transaction_ended`]. A cancel from before it is forgotten.
/// `statement_ms`: its time limit, 0 for none.
pub fn transaction_begins(statement_ms: i32) {
    let overdue_at_ms = match statement_ms {
        0 => i64::MAX,
        limit_ms => monotonic_ms().saturating_add(i64::from(limit_ms)).saturating_add(OVERDUE_MARGIN_MS),
    };
    OVERDUE_AT_MS.store(overdue_at_ms, SeqCst);
    // SAFETY: the server's own flag.
    unsafe { pg_sys::QueryCancelPending = 0 };
    IN_TRANSACTION.store(true, SeqCst);
}

/// Marks that the transaction's work is done and only its commit is left, which may take as long as it takes.
pub fn commit_begins() {
    OVERDUE_AT_MS.store(i64::MAX, SeqCst);
    COMMITTING.store(true, SeqCst);
    if !STOP.load(SeqCst) {
        // A cancel that came after the last statement is too late, and would end the wait for a standby.
        // SAFETY: the server's own flag.
        unsafe { pg_sys::QueryCancelPending = 0 };
    }
}

/// Marks that no transaction runs.
pub fn transaction_ended() {
    IN_TRANSACTION.store(false, SeqCst);
    COMMITTING.store(false, SeqCst);
    // SAFETY: the server's own flag.
    unsafe { pg_sys::QueryCancelPending = 0 };
}

/// Called every second while a transaction runs (from the server's timer, so only flags are touched): ends the process
/// at its next safe point if the stop request, or the transaction's time limit, is long past.
pub unsafe extern "C-unwind" fn hard_stop_if_late() {
    let now_ms = monotonic_ms();
    let stop_is_late = STOP.load(SeqCst)
        && now_ms - STOP_AT_MS.load(SeqCst) > GRACE_MS.load(SeqCst).saturating_add(HARD_STOP_MARGIN_MS);
    if stop_is_late || now_ms > OVERDUE_AT_MS.load(SeqCst) {
        // SAFETY: what the server's own handler of SIGTERM sets.
        unsafe {
            pg_sys::ProcDiePending = 1;
            pg_sys::InterruptPending = 1;
        }
        shared::set_my_latch();
    }
}
