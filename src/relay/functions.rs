//! The functions worker: a process of its own for function destinations, so that a slow handler stalls no request.
//!
//! The relay starts it when a command of a function destination is due, wakes it for every further one, and ends it with
//! itself (`keeper`). It runs one handler at a time (`handler`); where two must not wait for each other, they belong into
//! two databases, or their work behind another transport. A database without such destinations has no such process.
//!
//! # States
//!
//! | state | what it does | leaves it when |
//! |---|---|---|
//! | starting | connects; looks for the ledger; takes its lock | it has the lock -> judging; no ledger, another has the lock, somebody needs the database empty -> ended |
//! | judging | ends the attempts that an earlier functions worker left behind | none is left -> working |
//! | working | runs what is due, a turn per destination | nothing can run -> idle |
//! | idle | waits; reads nothing | woken by the relay, or a rate or breaker permits again -> working; `command_ledger.max_sleep` has passed -> ended |
//! | ended | its transaction is undone, its lock released; it wakes the relay | |
//!
//! Asked to stop (SIGTERM), it undoes the handler that runs, settles the attempt as not sent, and ends. A handler that
//! swallows the stop or its time limit is ended with the process (`signals`). `command_ledger.relay = off`, the fence and
//! `pause()` keep it idle.
//!
//! Its run number is negative, so that its leases and those of the relay are told apart: each judges what its own kind
//! left behind, and never what the other still works on.

use super::handler;
use super::pace::Pace;
use super::shared::{self, Slot};
use super::worker;
use super::{complain, lock, signals, transaction};
use crate::ledger::{fence, sweep};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::scratch::Scratch;
use crate::pg::spi::{Arg, Mode, Statement, TIME, error_from_panic};
use crate::settings;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::Fence;
use pgrx::pg_sys;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

/// The shortest life without work.
const IDLE_MIN_MS: i64 = 3_000;
/// How long one destination may go on before the next one has its turn.
const TURN_MS: i64 = 100;
/// Attempts that one round of judging ends.
const JUDGE_LIMIT: i64 = 200;
/// After a step that failed.
const PAUSE_US: i64 = 1_000_000;

/// Function destinations with due work, the longest waiting first.
static DUE: Statement = Statement::new(
    Mode::Fresh,
    &[TIME],
    "SELECT d.name FROM command_ledger.destination d CROSS JOIN LATERAL ( \
       SELECT o.due_at FROM command_ledger.outbox o \
        WHERE o.destination = d.name AND o.lease_token IS NULL AND o.due_at <= $1 ORDER BY o.due_at LIMIT 1) q \
      WHERE d.paused_at IS NULL AND (d.config ->> 'transport') = 'function' ORDER BY q.due_at",
);

/// An idle worker ends after this time: its place in max_worker_processes is of use to others.
fn idle_ms() -> i64 {
    i64::from(settings::MAX_SLEEP_MS.get()).max(IDLE_MIN_MS)
}

/// What a step came to.
enum Step {
    /// Something was done; there may be more.
    Worked,
    /// Nothing can be done, at least until then (Unix microseconds) or a wake-up.
    Idle { until_us: Option<i64> },
    /// The lock is lost: another worker has it.
    Replaced,
}

struct Functions {
    run: i64,
    pace: Pace,
    older_leases_judged: bool,
}

impl Functions {
    fn step(&mut self) -> Result<Step, LedgerError> {
        if !settings::RELAY.get() {
            return Ok(Step::Idle { until_us: None });
        }
        let (fence, due) = transaction::run(|connection| {
            let due = DUE.run(connection, &[Arg::Time(datum::now_us())], 0)?;
            Ok((fence::state(connection)?, due.iter().map(|row| row.text_or_empty(0)).collect::<Vec<_>>()))
        })?;
        if !matches!(fence, Fence::Open | Fence::Moved { halted: false }) {
            return Ok(Step::Idle { until_us: None });
        }
        if !self.older_leases_judged {
            let run = self.run;
            let swept = transaction::run(|c| sweep::expired_leases(c, None, Some(run), JUDGE_LIMIT))?;
            if swept.changed > 0 {
                return Ok(Step::Worked);
            }
            self.older_leases_judged = swept.left == 0;
        }
        // What somebody holds is judged later, and keeps no other handler waiting.
        let look_again_us = || datum::now_us().saturating_add(PAUSE_US);
        let (mut worked, mut until_us) = (false, (!self.older_leases_judged).then(look_again_us));
        for destination in due {
            let turn_ends_ms = signals::monotonic_ms() + TURN_MS;
            loop {
                let turn = handler::run_next(&mut self.pace, fence, &destination, self.run)?;
                if !lock::only_functions() {
                    return Ok(Step::Replaced);
                }
                worked |= turn.any;
                if signals::stop_asked() || signals::reload_is_asked() {
                    return Ok(Step::Worked);
                }
                if !turn.any {
                    until_us = [until_us, turn.again_at_us].into_iter().flatten().min();
                    break;
                }
                if signals::monotonic_ms() >= turn_ends_ms {
                    break;
                }
            }
        }
        Ok(if worked { Step::Worked } else { Step::Idle { until_us } })
    }

    /// A step whose failure is a pause.
    fn safe_step(&mut self, memory: &Scratch) -> Step {
        let stepped = memory.within(|| catch_unwind(AssertUnwindSafe(|| self.step())));
        let error = match stepped {
            Ok(Ok(step)) => return step,
            Ok(Err(error)) => error,
            Err(panic) => error_from_panic(panic),
        };
        complain("command_ledger functions", &error);
        Step::Idle { until_us: Some(datum::now_us().saturating_add(PAUSE_US)) }
    }

    /// Works and waits until the process is asked to stop, has nothing to do for long, or its extension is gone.
    fn work(&mut self, extension: u32) {
        let memory = Scratch::for_steps();
        let mut busy_ms = signals::monotonic_ms();
        while !signals::stop_asked() {
            signals::reload_if_asked();
            // A look-up that fails says nothing about the extension.
            if worker::extension().is_ok_and(|found| found != extension) {
                return;
            }
            let until_us = match self.safe_step(&memory) {
                Step::Replaced => return,
                Step::Worked => {
                    busy_ms = signals::monotonic_ms();
                    pgrx::check_for_interrupts!();
                    continue;
                }
                Step::Idle { until_us } => until_us,
            };
            let left_ms = busy_ms + idle_ms() - signals::monotonic_ms();
            if left_ms <= 0 && until_us.is_none() {
                return;
            }
            // SAFETY: outside of a transaction, as the server wants it.
            unsafe { pg_sys::pgstat_report_stat(true) };
            let wait_ms = until_us.map_or(left_ms, |us| worker::us_to_ms_up(us.saturating_sub(datum::now_us())));
            if !signals::stop_asked() {
                worker::wait(None, wait_ms.max(1));
            }
        }
    }
}

/// Runs when the process ends, after its transaction is undone and its locks are released.
unsafe extern "C-unwind" fn detach(_code: std::ffi::c_int, _arg: pg_sys::Datum) {
    if let Some(slot) = shared::find(shared::my_database()) {
        // SAFETY: reads a backend variable.
        let me = unsafe { pg_sys::MyProcPid };
        let _ = slot.functions_pid.compare_exchange(me, 0, SeqCst, SeqCst);
        // The relay looks whether something was left behind.
        if slot.proc.load(SeqCst) >= 0 {
            slot.wake();
        }
    }
}

/// Takes the place of this database's functions worker in shared memory, where there is one.
fn attach() -> Option<&'static Slot> {
    let slot = shared::my_slot()?;
    // SAFETY: the callback touches atomics and a latch only. Registered after the connection was made, so that it runs
    // after the server's own callback, which releases the locks.
    unsafe {
        pg_sys::on_shmem_exit(Some(detach), pg_sys::Datum::from(0));
        let _ = slot.functions_pid.compare_exchange(0, pg_sys::MyProcPid, SeqCst, SeqCst);
    }
    Some(slot)
}

fn live() -> Result<(), LedgerError> {
    let extension = worker::extension()?;
    if extension == 0 {
        return Ok(());
    }
    let name = worker::database_name();
    if !worker::take_lock(lock::take_functions) {
        if !signals::stop_asked() {
            log(
                Level::Warning,
                &format!("another process runs the functions of command_ledger in database \"{name}\" already"),
            );
        }
        return Ok(());
    }
    let run = -datum::now_us();
    log(Level::Log, &format!("the command_ledger functions worker of database \"{name}\" is started, run {run}"));
    Functions { run, pace: Pace::default(), older_leases_judged: false }.work(extension);
    log(Level::Log, &format!("the command_ledger functions worker of database \"{name}\" ends"));
    Ok(())
}

/// Entry point of a functions worker. The argument is the database's oid.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn command_ledger_functions_main(database: pg_sys::Datum) {
    worker::connect(database, c"command_ledger functions");
    // The order matters: a session that needs the database empty says so first and looks for us second.
    if attach().is_some_and(|slot| slot.hold_pid.load(SeqCst) != 0) {
        return;
    }
    if let Err(error) = live() {
        complain("the command_ledger functions worker cannot start", &error);
        // SAFETY: runs the exit callbacks and ends the process.
        unsafe { pg_sys::proc_exit(1) };
    }
}
