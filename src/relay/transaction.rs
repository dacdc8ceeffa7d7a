//! One short transaction of the relay: begun, committed or undone here, with limits on how long it may wait and run.

use super::signals;
use crate::pg::spi::{self, Connection};
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// How long a transaction may take. Milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All of it, without its commit (which may wait for a standby as long as it takes). The server does not arm
    /// statement_timeout in background workers by itself.
    pub statement_ms: i32,
    /// One wait for a lock.
    pub lock_ms: i32,
}

impl Limits {
    /// What the ledger's own statements need at most; more than that is a fault somewhere.
    pub const DEFAULT: Self = Self { statement_ms: 30_000, lock_ms: 5_000 };
    /// Once the process was asked to stop.
    const STOPPING: Self = Self { statement_ms: 1_000, lock_ms: 500 };

    fn now(self) -> Self {
        if !signals::stop_asked() {
            return self;
        }
        Self {
            statement_ms: self.statement_ms.min(Self::STOPPING.statement_ms),
            lock_ms: self.lock_ms.min(Self::STOPPING.lock_ms),
        }
    }
}

/// Number of the server's statement timeout; the same in all versions that are supported.
const STATEMENT_TIMEOUT: u32 = 3;
/// Any number from the server's first free one on asks for a new timeout.
const NEW_TIMEOUT: u32 = 16;
/// How often a running transaction looks whether it outlives a stop request.
const LATE_CHECK_MS: c_int = 1_000;

// Not among pgrx's bindings; the same in PostgreSQL 15 to 18.
unsafe extern "C-unwind" {
    fn RegisterTimeout(id: u32, handler: Option<unsafe extern "C-unwind" fn()>) -> u32;
    fn enable_timeout_after(id: u32, delay_ms: c_int);
    fn enable_timeout_every(id: u32, first: pg_sys::TimestampTz, delay_ms: c_int);
    fn disable_timeout(id: u32, keep_indicator: bool);
    fn disable_all_timeouts(keep_indicators: bool);
}

/// The timeout that checks for lateness, once it is registered; 0 before.
static LATE_CHECK: AtomicU32 = AtomicU32::new(0);

/// Prepares a worker for transactions. Once, after it is connected.
pub fn prepare() {
    // SAFETY: timeouts were initialised with the worker; the handler touches flags only.
    let id = unsafe { RegisterTimeout(NEW_TIMEOUT, Some(signals::hard_stop_if_late)) };
    LATE_CHECK.store(id, SeqCst);
}

unsafe fn arm(limits: Limits) {
    // SAFETY: the timeouts are registered; the setting is put back when the transaction ends.
    unsafe {
        let lock_ms = std::ffi::CString::new(limits.lock_ms.to_string()).unwrap_or_default();
        pg_sys::set_config_option(
            c"lock_timeout".as_ptr(),
            lock_ms.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
        if limits.statement_ms > 0 {
            enable_timeout_after(STATEMENT_TIMEOUT, limits.statement_ms);
        }
        let late_check = LATE_CHECK.load(SeqCst);
        if late_check != 0 {
            let first = pg_sys::GetCurrentTimestamp() + i64::from(LATE_CHECK_MS) * 1_000;
            enable_timeout_every(late_check, first, LATE_CHECK_MS);
        }
    }
}

/// Runs `work` in a transaction of its own, with the ordinary limits. See [`run_within`].
pub fn run<T>(work: impl FnOnce(&Connection) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    run_within(Limits::DEFAULT, c"command_ledger: settling and claiming", work)
}

/// Runs `work` in a transaction of its own and commits it. An error of `work`, a server error or a panic undoes all of
/// it and comes back as `Err`: then nothing was committed. `activity` is what pg_stat_activity shows meanwhile.
///
/// After `Ok`, a commit that was to wait for a standby may have been cut short by a stop request: who is about to send
/// something on the strength of this commit must look at [`signals::stop_asked`] first, and not send if it is set.
pub fn run_within<T>(
    limits: Limits,
    activity: &CStr,
    work: impl FnOnce(&Connection) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    bare(limits, activity, || spi::connect(work))
}

/// As [`run_within`], without SPI: for catalog look-ups.
pub fn bare<T>(
    limits: Limits,
    activity: &CStr,
    work: impl FnOnce() -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    // SAFETY: a background worker's transaction, as the server's own workers run it: begun and ended here on every way
    // out, with the memory context as it was. `work` unwinds to here (it never jumps), because every server call is
    // guarded by pgrx.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let limits = limits.now();
        signals::transaction_begins(limits.statement_ms);
        let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<T, LedgerError> {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            arm(limits);
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
            let value = work()?;
            pg_sys::PopActiveSnapshot();
            // A time limit that strikes during the commit would end the wait for a standby.
            disable_timeout(STATEMENT_TIMEOUT, false);
            signals::commit_begins();
            pg_sys::CommitTransactionCommand();
            Ok(value)
        }));
        disable_all_timeouts(false);
        let result = match outcome {
            Ok(Ok(value)) => Ok(value),
            failed => {
                pg_sys::InterruptHoldoffCount += 1;
                pg_sys::AbortCurrentTransaction();
                pg_sys::InterruptHoldoffCount -= 1;
                Err(match failed {
                    Ok(Err(error)) => error,
                    Err(panic) => spi::error_from_panic(panic),
                    Ok(Ok(_)) => crate::pg::report::defect("unreachable"),
                })
            }
        };
        signals::transaction_ended();
        if pg_sys::ProcDiePending != 0 {
            // The end of the process was only put off by the commit: nothing may be sent on the strength of it. A wait
            // for a standby that the postmaster's death cut short sets this flag alone, and without the other one the
            // process would go on.
            pg_sys::InterruptPending = 1;
            pgrx::check_for_interrupts!();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
        result
    }
}
