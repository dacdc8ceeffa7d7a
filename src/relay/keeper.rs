//! The relay's side of the functions worker: started when a function destination has due work, woken for more, ended with
//! the relay.
//!
//! | the worker | the relay wants it: | the relay ends: |
//! |---|---|---|
//! | none | starts one, unless a pause is on | |
//! | started by this relay | sets its latch | SIGTERM, and waits until it is gone |
//! | left by an earlier relay that died | SIGTERM; a fresh one once it is gone | |
//!
//! Nobody else starts one, so that what holds for the relay (never on a standby, never where somebody needs the database
//! empty) holds for it too.

use super::{hooks, launcher, lock, shared, signals, transaction, worker};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys;
use std::sync::atomic::Ordering::SeqCst;

const PAUSE_MIN_MS: i64 = 1_000;
const PAUSE_MAX_MS: i64 = 60_000;
/// A worker that lived this long was well.
const HEALTHY_LIFE_MS: i64 = 2_000;
/// How often an ending worker is looked at.
const LOOK_EVERY_MS: i64 = 20;

type Handle = *mut pg_sys::BackgroundWorkerHandle;

/// What the relay knows of its functions worker.
#[derive(Default)]
pub struct Keeper {
    worker: Option<(Handle, i64)>,
    failures: u32,
    not_before_ms: i64,
    refused: bool,
}

impl Keeper {
    /// Whether the worker this relay started is still there; its pid once it runs.
    fn look(&mut self) -> Option<Option<i32>> {
        let (handle, since_ms) = self.worker?;
        let mut pid = 0;
        // SAFETY: the handle is the one that the server gave; it is freed once and not used again.
        unsafe {
            match pg_sys::GetBackgroundWorkerPid(handle, &mut pid) {
                pg_sys::BgwHandleStatus::BGWH_STARTED => return Some(Some(pid)),
                pg_sys::BgwHandleStatus::BGWH_NOT_YET_STARTED => return Some(None),
                _ => pg_sys::pfree(handle.cast()),
            }
        }
        self.worker = None;
        let now_ms = signals::monotonic_ms();
        if now_ms - since_ms >= HEALTHY_LIFE_MS {
            self.failures = 0;
            self.not_before_ms = now_ms;
        } else {
            self.pause(now_ms);
        }
        None
    }

    fn pause(&mut self, now_ms: i64) {
        let pause_ms = PAUSE_MIN_MS.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX_MS);
        self.failures = self.failures.saturating_add(1);
        self.not_before_ms = now_ms + pause_ms;
    }

    /// There is due work at a function destination.
    pub fn want(&mut self) -> Result<(), LedgerError> {
        match self.look() {
            Some(Some(pid)) => shared::wake_pid(pid),
            Some(None) => {}
            None if signals::monotonic_ms() >= self.not_before_ms => self.start()?,
            None => {}
        }
        Ok(())
    }

    /// An attempt of a function destination is in flight: somebody must be there to end it. Answers when to look again
    /// (Unix microseconds) if nobody is.
    pub fn want_if_gone(&mut self) -> Result<Option<i64>, LedgerError> {
        if self.look().is_some() {
            return Ok(None);
        }
        self.want()?;
        let pause_ms = (self.not_before_ms - signals::monotonic_ms()).max(PAUSE_MIN_MS);
        Ok(Some(datum::now_us().saturating_add(pause_ms * 1_000)))
    }

    fn start(&mut self) -> Result<(), LedgerError> {
        let now_ms = signals::monotonic_ms();
        // SAFETY: reads a backend variable.
        let database = unsafe { pg_sys::MyDatabaseId };
        if let Some(orphan) = transaction::run(lock::functions_holder)? {
            hooks::stop(orphan.pid, database);
            self.not_before_ms = now_ms + PAUSE_MIN_MS;
            return Ok(());
        }
        let name = worker::database_name();
        let mut description = launcher::functions_description(database.to_u32(), &name);
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the server copies the description; the handle lives in the process's long-lived memory.
        let started = unsafe {
            let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let started = pg_sys::RegisterDynamicBackgroundWorker(&mut description, &mut handle);
            pg_sys::MemoryContextSwitchTo(context);
            started
        };
        if started {
            self.worker = Some((handle, now_ms));
            self.refused = false;
            return Ok(());
        }
        if let Some(slot) = shared::my_known_slot() {
            slot.refused_at_us.store(datum::now_us(), SeqCst);
        }
        if !std::mem::replace(&mut self.refused, true) {
            log(
                Level::Warning,
                &format!(
                    "no background worker is free for the function destinations of database \"{name}\": raise \
                     max_worker_processes"
                ),
            );
        }
        self.pause(now_ms);
        Ok(())
    }

    /// Asks the worker to stop, if there is one.
    pub fn dismiss(&mut self) {
        if self.look().is_some()
            && let Some((handle, _)) = self.worker
        {
            // SAFETY: the handle is the one that the server gave.
            unsafe { pg_sys::TerminateBackgroundWorker(handle) };
        }
    }

    /// Waits until the worker is gone, but not for ever.
    pub fn wait_gone(&mut self, patience_ms: i64) {
        let until_ms = signals::monotonic_ms() + patience_ms;
        while self.look().is_some() {
            if signals::monotonic_ms() >= until_ms {
                log(Level::Warning, "the command_ledger functions worker does not end");
                return;
            }
            worker::wait(None, LOOK_EVERY_MS);
        }
    }
}
