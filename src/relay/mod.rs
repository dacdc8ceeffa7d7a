//! Delivery: one background worker per database sends what is due, and a launcher keeps those workers where the ledger
//! is installed.
//!
//! | file | what it holds |
//! |---|---|
//! | `launcher` | which databases have a relay; starts, restarts and retires them |
//! | `worker` | the life of one relay: connect, take the lock, step, sleep, stop |
//! | `cycle` | one step of work: claim, hand to the wire, settle, look up, sweep |
//! | `sends`, `answers`, `lookups` | requests, what their answers mean, questions about open cases |
//! | `desk` | what the relay has in hand |
//! | `functions` | the life of the worker that runs the handlers of function destinations |
//! | `handler` | one command of a function destination |
//! | `pace` | how fast the handlers of each destination may be called |
//! | `keeper` | the relay starts, wakes and ends the functions worker |
//! | `transaction` | a short transaction of the relay, with time limits; an error undoes it and comes back |
//! | `lock` | the lock that makes a relay the only one of its database |
//! | `signals` | stop, cancel and reload requests |
//! | `shared` | what all processes see: a slot per database |
//! | `wake` | telling a relay at COMMIT that there is work |
//! | `throttles` | showing what a destination's rate and breaker keep back |
//! | `hooks` | making a relay leave a database that is dropped, renamed, copied or moved |
//! | `counters`, `health`, `control` | the SQL side |
//!
//! Invariants of this room: no transaction is open while a call is on the wire; nothing is sent by a process that does
//! not hold the lock; a lost wake-up costs time, never a command.

pub mod answers;
pub mod control;
pub mod counters;
pub mod cycle;
pub mod desk;
pub mod flights;
pub mod functions;
pub mod handler;
pub mod health;
pub mod hooks;
pub mod keeper;
pub mod launcher;
pub mod lock;
pub mod lookups;
pub mod pace;
pub mod sends;
pub mod shared;
pub mod signals;
pub mod throttles;
pub mod transaction;
pub mod wake;
pub mod worker;

use crate::pg::report::{Level, log};
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys;

/// When a step wants to be followed by the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// The moment (Unix microseconds) at which something is due; `None`: nothing is known to become due.
    pub sleep_until_us: Option<i64>,
    /// There is more to do now; do not sleep.
    pub more: bool,
}

/// A warning in the server's log, unless a stop request is what went wrong.
pub fn complain(what: &str, error: &LedgerError) {
    if error.code != Code::Canceled || !signals::stop_asked() {
        log(Level::Warning, &format!("{what}: {error}"));
    }
}

/// Installs what must be in place before any process is started. Does nothing where the library is not preloaded (there
/// is no shared memory then; `start_relay()` starts a relay that polls) or while a cluster is being upgraded.
pub fn register() {
    // SAFETY: two flags of the server, set before libraries are loaded.
    if unsafe { !pg_sys::process_shared_preload_libraries_in_progress || pg_sys::IsBinaryUpgrade } {
        return;
    }
    shared::register();
    wake::register();
    hooks::register();
    launcher::register();
}
