//! The life of one relay: connect to its database, see that the ledger is there, take the lock, and step until asked to
//! stop.
//!
//! | it ends because | says | exit code |
//! |---|---|---|
//! | the extension is not (or no longer) installed, or is another one than at the start | absent | 0 |
//! | SIGTERM: server stop, stop_relay(), a session needs the database empty | stopped | 0 |
//! | another process holds the lock | occupied | 0 |
//! | an error outside of a step, or steps that keep failing | (nothing) | 1 |
//!
//! A worker of the launcher is never restarted by the server, whatever its exit code; one of start_relay() is, after
//! code 1.

use super::cycle::Cycle;
use super::shared::{self, Outcome, Slot, State};
use super::{Next, lock, signals, transaction};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::scratch::Scratch;
use crate::settings;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Longest sleep of a relay that nobody can wake (the library is not preloaded).
const POLL_MS: i64 = 1_000;
/// How long to wait for a relay that is just ending.
const LOCK_PATIENCE_MS: i64 = 3_000;
const LOCK_LOOK_MS: i64 = 100;
/// How often a relay looks whether the extension is still there, where nobody can tell it or its work fails.
const EXTENSION_LOOK_MS: i64 = 1_000;
/// Steps that panic in a row before the process is given up.
const PANICS_MAX: u32 = 5;
/// A wall clock that moved this much against the monotonic one was set.
const CLOCK_STEP_US: i64 = 2_000_000;
/// Statistics that wait to be reported are reported at the latest after this time.
const STATISTICS_MS: i64 = 1_000;

/// Settings of the session: what the ledger's statements rely on, whatever the database or role has set.
const SESSION_SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 8] = [
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"statement_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    (c"session_replication_role", c"origin"),
    (c"jit", c"off"),
];

/// Settings that newer versions have. Their limit on transactions would end the whole process.
#[cfg(any(feature = "pg17", feature = "pg18"))]
const NEWER_SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 1] = [(c"transaction_timeout", c"0")];
#[cfg(not(any(feature = "pg17", feature = "pg18")))]
const NEWER_SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 0] = [];

fn set_up_session(application: &std::ffi::CStr) {
    let own = [(c"application_name", application)];
    for (name, value) in own.into_iter().chain(SESSION_SETTINGS).chain(NEWER_SETTINGS) {
        // SAFETY: both are NUL-terminated; the settings exist in this version.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_SESSION,
            );
        }
    }
}

/// The beginning of a worker of a database: signals, connection, session. A database that is gone ends the process here.
pub(super) fn connect(database: pg_sys::Datum, application: &std::ffi::CStr) {
    signals::install();
    // SAFETY: the usual start of a worker.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::Oid::from(database.value() as u32),
            pg_sys::InvalidOid,
            0,
        );
        pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
    }
    set_up_session(application);
    transaction::prepare();
}

/// The extension's oid, 0 when it is not installed.
pub(super) fn extension() -> Result<u32, LedgerError> {
    transaction::bare(transaction::Limits::DEFAULT, c"command_ledger: looking for the extension", || {
        // SAFETY: a catalog look-up inside a transaction.
        Ok(unsafe { pg_sys::get_extension_oid(c"command_ledger".as_ptr(), true) }.to_u32())
    })
}

pub(super) fn database_name() -> String {
    transaction::bare(transaction::Limits::DEFAULT, c"command_ledger: looking for the database", || {
        // SAFETY: a catalog look-up inside a transaction; the string is copied.
        Ok(unsafe {
            let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
            if name.is_null() { String::new() } else { std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned() }
        })
    })
    .unwrap_or_default()
}

/// Runs when the process ends, after its transaction is undone and its locks are released.
unsafe extern "C-unwind" fn detach(_code: std::ffi::c_int, _arg: pg_sys::Datum) {
    if let Some(slot) = shared::find(shared::my_database()) {
        // SAFETY: reads a backend variable.
        let me = unsafe { pg_sys::MyProcPid };
        if slot.pid.compare_exchange(me, 0, SeqCst, SeqCst).is_ok() {
            slot.proc.store(-1, SeqCst);
        }
        shared::wake_launcher();
    }
}

/// Takes the place of this database's relay in shared memory; `None` where there is none, or no slot.
fn attach() -> Option<&'static Slot> {
    let slot = shared::my_slot()?;
    // SAFETY: the callback touches atomics only. Registered after the connection was made, so that it runs after the
    // server's own callback, which releases the locks.
    unsafe { pg_sys::on_shmem_exit(Some(detach), pg_sys::Datum::from(0)) };
    Some(slot)
}

/// Microseconds as milliseconds, rounded up so that a due time is reached, never negative.
pub(super) fn us_to_ms_up(us: i64) -> i64 {
    us.max(0) / 1_000 + i64::from(us.max(0) % 1_000 != 0)
}

/// Waits for the latch, `fd`, the end of the time (milliseconds) or the server's end; answers the events.
pub(super) fn wait(fd: Option<std::os::fd::RawFd>, ms: i64) -> u32 {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    let ms = std::ffi::c_long::from(ms.clamp(0, i64::from(i32::MAX)));
    // SAFETY: the latch is this process's own; the descriptor is open as long as the cycle lives. Interrupts are served
    // because DROP DATABASE and others wait until every process has answered their barrier.
    let occurred = unsafe {
        let occurred = match fd {
            Some(fd) => pg_sys::WaitLatchOrSocket(
                pg_sys::MyLatch,
                (events | pg_sys::WL_SOCKET_READABLE) as i32,
                fd,
                ms,
                pg_sys::PG_WAIT_EXTENSION,
            ),
            None => pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, ms, pg_sys::PG_WAIT_EXTENSION),
        };
        pg_sys::ResetLatch(pg_sys::MyLatch);
        occurred
    };
    pgrx::check_for_interrupts!();
    occurred.cast_unsigned()
}

/// Takes a lock, waiting a little for a process that is just ending.
pub(super) fn take_lock(take: fn() -> bool) -> bool {
    let until_ms = signals::monotonic_ms() + LOCK_PATIENCE_MS;
    while !signals::stop_asked() {
        if take() {
            return true;
        }
        if signals::monotonic_ms() >= until_ms {
            return false;
        }
        wait(None, LOCK_LOOK_MS);
    }
    false
}

/// Notices that the wall clock was set: leases and due times are judged by it.
struct Clock {
    offset_us: i64,
}

impl Clock {
    fn start() -> Self {
        Self { offset_us: datum::now_us() - signals::monotonic_ms() * 1_000 }
    }

    fn check(&mut self, slot: Option<&Slot>) {
        let offset_us = datum::now_us() - signals::monotonic_ms() * 1_000;
        let step_us = offset_us - self.offset_us;
        if step_us.abs() < CLOCK_STEP_US {
            return;
        }
        self.offset_us = offset_us;
        log(
            Level::Warning,
            &format!("the system clock was set by {} s; due times and leases follow it", step_us / 1_000_000),
        );
        if let Some(slot) = slot {
            slot.clock_step_us.store(step_us, SeqCst);
            slot.clock_stepped_at_us.store(datum::now_us(), SeqCst);
        }
    }
}

struct Relay {
    slot: Option<&'static Slot>,
    extension: u32,
    /// Given back after every step, whatever it allocated.
    memory: Scratch,
    clock: Clock,
    panics: u32,
    /// The last step failed: perhaps because the extension is gone.
    failed: bool,
    extension_seen_ms: i64,
}

impl Relay {
    /// Whether the extension is still the one that this process works for. Looked up only if it may not be: an idle
    /// relay reads its agenda and nothing else.
    fn extension_is_there(&mut self) -> bool {
        let now_ms = signals::monotonic_ms();
        let changed = self.slot.is_some_and(|slot| slot.changed.swap(0, SeqCst) != 0);
        let doubtful = self.failed || self.slot.is_none();
        let look = changed || doubtful && now_ms - self.extension_seen_ms >= EXTENSION_LOOK_MS;
        if !look {
            return true;
        }
        self.extension_seen_ms = now_ms;
        // A look-up that fails says nothing about the extension.
        extension().map_or(true, |found| found == self.extension)
    }

    /// One step; a panic in it is caught. `None`: too many in a row, the process is better started afresh.
    fn step(&mut self, cycle: &mut Cycle) -> Option<Next> {
        let stepped = self.memory.within(|| catch_unwind(AssertUnwindSafe(|| cycle.step())));
        match stepped {
            Ok(next) => {
                self.panics = 0;
                self.failed = cycle.failed();
                Some(next)
            }
            Err(panic) => {
                let error = crate::pg::spi::error_from_panic(panic);
                log(Level::Warning, &format!("a step of the command_ledger relay failed: {error}"));
                self.panics += 1;
                self.failed = true;
                self.extension_seen_ms = i64::MIN / 2;
                let pause_us = 1_000_000 << self.panics;
                (self.panics < PANICS_MAX)
                    .then(|| Next { sleep_until_us: Some(datum::now_us() + pause_us), more: false })
            }
        }
    }

    /// Sleeps until there is work, at most until `next` says. A latch that is set for another reason (the server's own
    /// housekeeping) does not end the sleep.
    fn sleep(&self, next: Next, fd: Option<std::os::fd::RawFd>) {
        let longest_ms = i64::from(settings::MAX_SLEEP_MS.get());
        let longest_ms = if self.slot.is_some() { longest_ms } else { longest_ms.min(POLL_MS) };
        let now_us = datum::now_us();
        let longest_us = now_us.saturating_add(longest_ms.saturating_mul(1_000));
        let until_us = next.sleep_until_us.map_or(longest_us, |us| us.min(longest_us));
        let until_us = self.slot.map_or(until_us, |slot| slot.falls_asleep(until_us));
        let due_ms = us_to_ms_up(until_us.saturating_sub(now_us));
        if due_ms > STATISTICS_MS {
            // Nothing else would report them while this process sleeps, and autovacuum would not see its work.
            // SAFETY: outside of a transaction, as the server wants it.
            unsafe { pg_sys::pgstat_report_stat(true) };
        }
        let until_ms = signals::monotonic_ms() + due_ms;
        loop {
            let events = wait(fd, until_ms - signals::monotonic_ms());
            if events & pg_sys::WL_SOCKET_READABLE != 0
                || self.slot.is_some_and(|slot| slot.wake.load(SeqCst) != 0)
                || signals::stop_asked()
                || signals::reload_is_asked()
                || signals::monotonic_ms() >= until_ms
            {
                return;
            }
        }
    }

    fn run(&mut self, cycle: &mut Cycle) -> Outcome {
        let mut reloads = signals::reloads();
        loop {
            if signals::stop_asked() {
                return Outcome::Stopped;
            }
            signals::reload_if_asked();
            if signals::reloads() != reloads {
                reloads = signals::reloads();
                cycle.reload();
            }
            if !self.extension_is_there() {
                return Outcome::Absent;
            }
            self.clock.check(self.slot);
            if self.slot.is_some_and(|slot| slot.wake.swap(0, SeqCst) != 0) {
                cycle.woken();
            }
            let Some(next) = self.step(cycle) else { return Outcome::Crashed };
            // SAFETY: outside of a transaction, as the server wants it; reports at most once a second.
            unsafe { pg_sys::pgstat_report_stat(false) };
            if next.more {
                pgrx::check_for_interrupts!();
            } else if !signals::stop_asked() {
                self.sleep(next, cycle.wire_fd());
                if let Some(slot) = self.slot {
                    slot.wakes_up();
                }
            }
        }
    }
}

/// From a connected process to the reason for its end.
fn live(slot: Option<&'static Slot>, name: &str) -> Result<Outcome, LedgerError> {
    let extension = extension()?;
    if extension == 0 {
        return Ok(Outcome::Absent);
    }
    if !take_lock(lock::take) {
        return Ok(if signals::stop_asked() { Outcome::Stopped } else { Outcome::Occupied });
    }
    let epoch = datum::now_us();
    let mut cycle = Cycle::start(epoch)?;
    if let Some(slot) = slot {
        slot.started_us.store(epoch, SeqCst);
        slot.set_state(State::Running);
        shared::wake_launcher();
    }
    log(Level::Log, &format!("the command_ledger relay of database \"{name}\" is started, run {epoch}"));
    let mut relay = Relay {
        slot,
        extension,
        memory: Scratch::for_steps(),
        clock: Clock::start(),
        panics: 0,
        failed: false,
        extension_seen_ms: signals::monotonic_ms(),
    };
    let outcome = relay.run(&mut cycle);
    let grace_ms = u64::try_from(settings::SHUTDOWN_GRACE_MS.get()).unwrap_or(0);
    let stopped =
        relay.memory.within(|| catch_unwind(AssertUnwindSafe(|| cycle.shutdown(Duration::from_millis(grace_ms)))));
    if let Err(panic) = stopped {
        let error = crate::pg::spi::error_from_panic(panic);
        log(
            Level::Warning,
            &format!("the command_ledger relay could not settle everything before it stopped: {error}"),
        );
    }
    Ok(outcome)
}

/// Entry point of a relay. The argument is the database's oid.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn command_ledger_relay_main(database: pg_sys::Datum) {
    connect(database, c"command_ledger relay");
    let slot = attach();
    let name = database_name();
    if let Some(slot) = slot {
        // The order matters: a session that needs the database empty says so first and looks for us second.
        // SAFETY: reads a backend variable.
        if slot.pid.compare_exchange(0, unsafe { pg_sys::MyProcPid }, SeqCst, SeqCst).is_ok() {
            slot.proc.store(shared::my_proc(), SeqCst);
        }
        if slot.hold_pid.load(SeqCst) != 0 {
            slot.outcome.store(Outcome::Stopped as u32, SeqCst);
            return;
        }
    }
    match live(slot, &name) {
        Ok(outcome) => {
            if let Some(slot) = slot {
                slot.outcome.store(outcome as u32, SeqCst);
            }
            match outcome {
                Outcome::Occupied => log(
                    Level::Warning,
                    &format!("another process is the command_ledger relay of database \"{name}\" already"),
                ),
                Outcome::Stopped => {
                    log(Level::Log, &format!("the command_ledger relay of database \"{name}\" is stopped"))
                }
                Outcome::Absent => {}
                // SAFETY: runs the exit callbacks and ends the process; the wire is stopped, nothing is left to drop.
                Outcome::Crashed => unsafe { pg_sys::proc_exit(1) },
            }
        }
        Err(error) => {
            log(Level::Warning, &format!("the command_ledger relay of database \"{name}\" cannot start: {error}"));
            // SAFETY: runs the exit callbacks and ends the process.
            unsafe { pg_sys::proc_exit(1) };
        }
    }
}
