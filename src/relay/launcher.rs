//! The launcher: one process of the server that keeps a relay in every database with a ledger. It is connected to no
//! database and reads the list of databases only; whether one has the extension is found out by its relay, which ends at
//! once where it has not.
//!
//! It is started when recovery is finished: on a standby there is no launcher and no relay at all, and both come right
//! after a promotion without anybody asking.
//!
//! # States of a database
//!
//! | state | meaning | leaves it when |
//! |---|---|---|
//! | unprobed | not known whether it has a ledger | its turn comes: a worker is started -> starting |
//! | starting | a worker was asked for; one database at a time | it holds the lock -> running; it ended -> see below; 10 s -> the next may start too |
//! | running | the relay works | it ended -> see below |
//! | absent | no extension | a wake-up (first command, CREATE EXTENSION) -> unprobed |
//! | waiting | a pause after a failure | the pause is over -> unprobed |
//! | held | a session needs the database empty | that transaction ended -> unprobed |
//! | (gone) | dropped, or takes no connections | forgotten, its slot is free |
//!
//! # What the end of a worker means
//!
//! | it said | then |
//! |---|---|
//! | absent | absent; unprobed if it was woken meanwhile |
//! | stopped | held if somebody holds the database, else a pause of 1 s |
//! | occupied (start_relay() started one before the preload, or an old one is still ending) | a pause of 10 s |
//! | nothing (error, crash) | a pause of 1 s, doubled each time up to 60 s; from the beginning once it had lived for 60 s |
//! | could not be started (max_worker_processes) | the same pause; health() says so |
//!
//! # Messages
//!
//! | from | to | through | says |
//! |---|---|---|---|
//! | a committing session | relay | slot.wake, its latch | there may be work |
//! | a committing session | launcher | slot.wake, its latch | there is work and no relay |
//! | CREATE, DROP DATABASE | launcher | shared.rescan, its latch | the list of databases changed |
//! | DROP, RENAME, TEMPLATE, TABLESPACE | relay | slot.hold_pid, SIGTERM | leave, and stay away |
//! | worker | launcher | slot.state, slot.outcome, its latch | it runs; why it ended |
//! | postmaster | launcher | SIGUSR1 | a worker started or ended |
//! | postmaster | both | SIGTERM, SIGHUP | stop; read the settings again |
//!
//! Should a message be lost, the launcher looks at everything again after `command_ledger.max_sleep`.

use super::shared::{self, Outcome, Slot, State};
use super::{signals, transaction};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::settings;
use pgrx::pg_sys;
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::SeqCst;

const PAUSE_MIN_MS: i64 = 1_000;
const PAUSE_MAX_MS: i64 = 60_000;
const OCCUPIED_PAUSE_MS: i64 = 10_000;
/// A worker that lived this long was well.
const HEALTHY_LIFE_MS: i64 = 60_000;
/// A worker that takes longer to start (the database is locked) no longer keeps others from starting.
const START_PATIENCE_MS: i64 = 10_000;
/// How often a held database is looked at, in case its holder died.
const HELD_LOOK_MS: i64 = 1_000;
/// Restart of the launcher itself, seconds.
const LAUNCHER_RESTART_S: i32 = 5;

const LIBRARY: &str = "command_ledger";

/// The type of worker that pg_stat_activity shows for a relay.
pub const RELAY_TYPE: &str = "command_ledger relay";
/// The type of a functions worker.
const FUNCTIONS_TYPE: &str = "command_ledger functions";

fn copy(target: &mut [c_char], text: &str) {
    let room = target.len().saturating_sub(1);
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in target.iter_mut().zip(text.as_bytes().iter().take(end).chain(std::iter::once(&0))) {
        *to = *from as c_char;
    }
}

/// What the server needs to know of a worker.
fn description(name: &str, kind: &str, function: &str, restart_s: i32) -> pg_sys::BackgroundWorker {
    let mut worker = pg_sys::BackgroundWorker::default();
    copy(&mut worker.bgw_name, name);
    copy(&mut worker.bgw_type, kind);
    copy(&mut worker.bgw_library_name, LIBRARY);
    copy(&mut worker.bgw_function_name, function);
    worker.bgw_flags = (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32;
    worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = restart_s;
    worker
}

/// The relay of one database, to be started now. `restart_s`: after a failure, by the server; negative: never.
pub fn relay_description(database: u32, database_name: &str, restart_s: i32) -> pg_sys::BackgroundWorker {
    let name = format!("command_ledger relay of {database_name}");
    let mut worker = description(&name, RELAY_TYPE, "command_ledger_relay_main", restart_s);
    worker.bgw_main_arg = pg_sys::Datum::from(database);
    // SAFETY: reads a backend variable: who is told when the worker starts or ends.
    worker.bgw_notify_pid = unsafe { pg_sys::MyProcPid };
    worker
}

/// The functions worker of one database, started by its relay and by nobody else.
pub fn functions_description(database: u32, database_name: &str) -> pg_sys::BackgroundWorker {
    let name = format!("command_ledger functions of {database_name}");
    let mut worker = description(&name, FUNCTIONS_TYPE, "command_ledger_functions_main", pg_sys::BGW_NEVER_RESTART);
    worker.bgw_main_arg = pg_sys::Datum::from(database);
    // SAFETY: reads a backend variable: who is told when the worker starts or ends.
    worker.bgw_notify_pid = unsafe { pg_sys::MyProcPid };
    worker
}

/// Registers the launcher. In the postmaster, while shared libraries are being preloaded.
pub fn register() {
    let mut worker = description(
        "command_ledger launcher",
        "command_ledger launcher",
        "command_ledger_launcher_main",
        LAUNCHER_RESTART_S,
    );
    // SAFETY: the server copies the description.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut worker) };
}

type Handle = *mut pg_sys::BackgroundWorkerHandle;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unprobed,
    Starting {
        handle: Handle,
        since_ms: i64,
    },
    /// Without a handle: it was started by a launcher before this one.
    Running {
        handle: Option<Handle>,
        since_ms: i64,
    },
    Absent,
    Waiting {
        until_ms: i64,
    },
    Held,
}

struct Entry {
    database: u32,
    name: String,
    phase: Phase,
    failures: u32,
}

fn pause_ms(failures: u32) -> i64 {
    PAUSE_MIN_MS.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_MAX_MS)
}

/// Whether the session that wants the database empty is still there.
fn is_held(slot: &Slot) -> bool {
    let holder = slot.hold_pid.load(SeqCst);
    // SAFETY: reads the array of processes.
    if holder != 0 && unsafe { pg_sys::BackendPidGetProc(holder) }.is_null() {
        let _ = slot.hold_pid.compare_exchange(holder, 0, SeqCst, SeqCst);
    }
    slot.hold_pid.load(SeqCst) != 0
}

impl Entry {
    fn wait(&mut self, state: State, pause_ms: i64) {
        self.set(Phase::Waiting { until_ms: signals::monotonic_ms() + pause_ms }, state);
    }

    fn set(&mut self, phase: Phase, state: State) {
        self.phase = phase;
        if let Some(slot) = shared::find(self.database) {
            slot.set_state(state);
        }
    }

    fn failed(&mut self, state: State) {
        self.failures = self.failures.saturating_add(1);
        self.wait(state, pause_ms(self.failures));
    }

    /// The worker is gone: what now?
    fn ended(&mut self, since_ms: i64) {
        let Some(slot) = shared::find(self.database) else {
            self.failed(State::Waiting);
            return;
        };
        match Outcome::from_u32(slot.outcome.load(SeqCst)) {
            _ if is_held(slot) => self.set(Phase::Held, State::Held),
            Outcome::Absent if slot.wake.load(SeqCst) != 0 => self.set(Phase::Unprobed, State::Unknown),
            Outcome::Absent => {
                self.failures = 0;
                self.set(Phase::Absent, State::Absent);
                shared::release(slot, true);
            }
            Outcome::Stopped => {
                self.failures = 0;
                self.wait(State::Waiting, PAUSE_MIN_MS);
            }
            Outcome::Occupied => self.wait(State::Waiting, OCCUPIED_PAUSE_MS),
            Outcome::Crashed => {
                if signals::monotonic_ms() - since_ms >= HEALTHY_LIFE_MS {
                    self.failures = 0;
                }
                self.failed(State::Waiting);
                log(
                    Level::Warning,
                    &format!(
                        "the command_ledger relay of database \"{}\" ended unexpectedly; next start in {} s",
                        self.name,
                        pause_ms(self.failures) / 1_000
                    ),
                );
            }
        }
    }

    /// Looks at what became of this database since the last time.
    fn observe(&mut self, now_ms: i64) {
        let slot = shared::find(self.database);
        match self.phase {
            Phase::Starting { handle, since_ms } | Phase::Running { handle: Some(handle), since_ms } => {
                let mut pid = 0;
                // SAFETY: the handle is ours until it is freed below.
                match unsafe { pg_sys::GetBackgroundWorkerPid(handle, &mut pid) } {
                    pg_sys::BgwHandleStatus::BGWH_STOPPED => {
                        // SAFETY: allocated by the server for us; nobody else knows it.
                        unsafe { pg_sys::pfree(handle.cast()) };
                        self.ended(since_ms);
                    }
                    pg_sys::BgwHandleStatus::BGWH_STARTED if slot.is_some_and(|s| s.state() == State::Running) => {
                        self.phase = Phase::Running { handle: Some(handle), since_ms };
                    }
                    _ => {}
                }
            }
            Phase::Running { handle: None, since_ms } if slot.is_none_or(|slot| slot.pid.load(SeqCst) == 0) => {
                self.ended(since_ms);
            }
            Phase::Absent if slot.is_some_and(|slot| slot.wake.load(SeqCst) != 0) => {
                self.set(Phase::Unprobed, State::Unknown);
            }
            Phase::Waiting { until_ms } if until_ms <= now_ms => self.phase = Phase::Unprobed,
            Phase::Held if !slot.is_some_and(is_held) => self.set(Phase::Unprobed, State::Unknown),
            _ => {}
        }
        if self.phase == Phase::Unprobed && slot.is_some_and(is_held) {
            self.set(Phase::Held, State::Held);
        }
    }

    fn start(&mut self, now_ms: i64) {
        let Some(slot) = shared::claim(self.database) else {
            log(
                Level::Warning,
                &format!(
                    "database \"{}\" gets no command_ledger relay: all {} slots are taken",
                    self.name,
                    shared::SLOTS
                ),
            );
            self.phase = Phase::Waiting { until_ms: now_ms + PAUSE_MAX_MS };
            return;
        };
        slot.wake.store(0, SeqCst);
        slot.outcome.store(Outcome::Crashed as u32, SeqCst);
        slot.set_state(State::Starting);
        let mut worker = relay_description(self.database, &self.name, pg_sys::BGW_NEVER_RESTART);
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the server copies the description; the handle lives in the process's long-lived memory.
        let started = unsafe {
            let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
            pg_sys::MemoryContextSwitchTo(context);
            started
        };
        if started {
            self.phase = Phase::Starting { handle, since_ms: now_ms };
            return;
        }
        slot.refused_at_us.store(datum::now_us(), SeqCst);
        if self.failures == 0 {
            log(
                Level::Warning,
                &format!(
                    "no background worker is free for the command_ledger relay of database \"{}\": raise max_worker_processes",
                    self.name
                ),
            );
        }
        self.failed(State::NoWorker);
    }
}

/// The databases that take connections: oid and name. Reads a shared catalog only.
fn databases() -> Result<Vec<(u32, String)>, command_ledger_domain::error::LedgerError> {
    transaction::bare(transaction::Limits::DEFAULT, c"command_ledger: reading the list of databases", || {
        let mut found = Vec::new();
        // SAFETY: an ordinary scan of a shared catalog; each tuple is read before the next one is fetched.
        unsafe {
            let table = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let scan = pg_sys::systable_beginscan(
                table,
                pg_sys::InvalidOid,
                false,
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
            );
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
                // -2 marks a database whose DROP was interrupted.
                if row.datallowconn && row.datconnlimit != -2 {
                    let name = CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned();
                    found.push((row.oid.to_u32(), name));
                }
            }
            pg_sys::systable_endscan(scan);
            pg_sys::table_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        }
        Ok(found)
    })
}

/// Brings the entries in line with the list of databases.
fn refresh(entries: &mut Vec<Entry>, now_ms: i64) {
    let listed = match databases() {
        Ok(listed) => listed,
        Err(error) => {
            log(Level::Warning, &format!("the command_ledger launcher cannot read pg_database: {error}"));
            return;
        }
    };
    entries.retain(|entry| {
        let stays = listed.iter().any(|(database, _)| *database == entry.database)
            || matches!(entry.phase, Phase::Starting { .. } | Phase::Running { .. });
        if !stays && let Some(slot) = shared::find(entry.database) {
            shared::release(slot, false);
        }
        stays
    });
    for (database, name) in listed {
        if let Some(entry) = entries.iter_mut().find(|entry| entry.database == database) {
            entry.name = name;
            continue;
        }
        // A relay that an earlier launcher started goes on; it is only watched.
        let runs = shared::find(database).is_some_and(|slot| slot.pid.load(SeqCst) != 0);
        let phase = if runs { Phase::Running { handle: None, since_ms: now_ms } } else { Phase::Unprobed };
        entries.push(Entry { database, name, phase, failures: 0 });
    }
}

/// Milliseconds until something has to be looked at without being told.
fn sleep_ms(entries: &[Entry], now_ms: i64) -> i64 {
    let longest = i64::from(settings::MAX_SLEEP_MS.get());
    entries
        .iter()
        .filter_map(|entry| match entry.phase {
            Phase::Waiting { until_ms } => Some(until_ms - now_ms),
            Phase::Starting { since_ms, .. } => Some((since_ms + START_PATIENCE_MS - now_ms).max(HELD_LOOK_MS)),
            Phase::Held => Some(HELD_LOOK_MS),
            _ => None,
        })
        .fold(longest, i64::min)
        .max(1)
}

unsafe extern "C-unwind" fn at_exit(_code: std::ffi::c_int, _arg: pg_sys::Datum) {
    if let Some(shared) = shared::shared() {
        shared.launcher_proc.store(-1, SeqCst);
        shared.launcher_pid.store(0, SeqCst);
    }
}

/// Entry point of the launcher.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn command_ledger_launcher_main(_arg: pg_sys::Datum) {
    signals::install();
    // SAFETY: the usual start of a worker that reads shared catalogs only.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
        pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
    }
    transaction::prepare();
    let Some(shared) = shared::shared() else { return };
    // SAFETY: the callback touches atomics only.
    unsafe { pg_sys::on_shmem_exit(Some(at_exit), pg_sys::Datum::from(0)) };
    // SAFETY: reads a backend variable.
    shared.launcher_pid.store(unsafe { pg_sys::MyProcPid }, SeqCst);
    shared.launcher_proc.store(shared::my_proc(), SeqCst);
    log(Level::Log, "the command_ledger launcher is started");

    let mut entries = Vec::new();
    let mut refreshed_ms = i64::MIN;
    while !signals::stop_asked() {
        signals::reload_if_asked();
        let now_ms = signals::monotonic_ms();
        let sweep = now_ms.saturating_sub(refreshed_ms) >= i64::from(settings::MAX_SLEEP_MS.get());
        let unknown = shared.slots.iter().any(|slot| {
            let database = slot.database.load(SeqCst);
            database != 0 && slot.wake.load(SeqCst) != 0 && !entries.iter().any(|e: &Entry| e.database == database)
        });
        if shared.rescan.swap(0, SeqCst) != 0 || sweep || unknown {
            refresh(&mut entries, now_ms);
            refreshed_ms = now_ms;
        }
        for entry in &mut entries {
            entry.observe(now_ms);
        }
        let starting =
            |e: &Entry| matches!(e.phase, Phase::Starting { since_ms, .. } if now_ms - since_ms < START_PATIENCE_MS);
        if !entries.iter().any(starting)
            && let Some(entry) = entries.iter_mut().find(|e| e.phase == Phase::Unprobed)
        {
            entry.start(now_ms);
            continue;
        }
        // SAFETY: an ordinary sleep of a worker; interrupts are served because DROP DATABASE and others wait until every
        // process has answered their barrier.
        unsafe {
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
                std::ffi::c_long::from(sleep_ms(&entries, now_ms)),
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }
    // Not 0: that would unregister the launcher, and whoever stops it by hand wants a fresh one.
    // SAFETY: runs the exit callbacks and ends the process; nothing of ours needs to be dropped.
    unsafe { pg_sys::proc_exit(1) };
}
