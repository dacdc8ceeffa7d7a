//! `start_relay()` and `stop_relay()`: for servers where the library is not preloaded.

use super::{hooks, launcher, lock, shared, signals};
use crate::ledger::access::{Capability, as_owner};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::latch::nap;
use crate::pg::report::defect;
use crate::pg::spi::{Connection, Mode, Statement};
use crate::pg::transaction;
use crate::settings;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum};

/// After a failure the server starts such a relay again, seconds later.
const RESTART_S: i32 = 5;
/// How long start_relay() waits to see whether the relay came up.
const START_WAIT_MS: i64 = 5_000;
/// How long stop_relay() waits beyond the shutdown grace.
const STOP_WAIT_MS: i64 = 5_000;
const LOOK_EVERY_MS: i64 = 50;

static DATABASE: Statement = Statement::new(Mode::Snapshot, &[], "SELECT pg_catalog.current_database()::text");

fn start(connection: &Connection) -> Result<String, LedgerError> {
    if transaction::in_recovery() {
        return Ok("nothing started: this server is a standby; relays run on the primary only".to_owned());
    }
    // SAFETY: a flag of the server, set before it takes connections.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return Ok("nothing started: the server runs for pg_upgrade, and nothing is sent meanwhile".to_owned());
    }
    if let Some(holder) = lock::holder(connection)? {
        return Ok(format!("already running (pid {})", holder.pid));
    }
    if shared::shared().is_some() {
        if let Some(slot) = shared::my_slot() {
            slot.wake();
        }
        return Ok(
            "nothing to do: the library is preloaded, and the launcher starts the relay of this database by itself; if \
             it does not run in a moment, command_ledger.health() says why"
                .to_owned(),
        );
    }
    let name = DATABASE.first(connection, &[])?.map(|row| row.text_or_empty(0)).unwrap_or_default();
    let mut worker = launcher::relay_description(shared::my_database(), &name, RESTART_S);
    let mut handle: *mut pg_sys::BackgroundWorkerHandle = std::ptr::null_mut();
    // SAFETY: the server copies the description; the handle lives as long as this connection.
    if !unsafe { pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle) } {
        return Ok("refused: no background worker is free; raise max_worker_processes (needs a restart of the server)"
            .to_owned());
    }
    let until_ms = signals::monotonic_ms() + START_WAIT_MS;
    loop {
        let mut pid = 0;
        // SAFETY: the handle is the one from above.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(handle, &mut pid) };
        if let Some(holder) = lock::holder(connection)? {
            return Ok(format!("started (pid {}); it runs until the server restarts", holder.pid));
        }
        if status == pg_sys::BgwHandleStatus::BGWH_STOPPED {
            return Ok(
                "started, but it ended again: see the server's log (an extension that was created in this very \
                 transaction is not seen by the relay: COMMIT first)"
                    .to_owned(),
            );
        }
        if signals::monotonic_ms() >= until_ms {
            return Ok("started, and not ready yet: see command_ledger.health()".to_owned());
        }
        nap(LOOK_EVERY_MS);
    }
}

fn stop(connection: &Connection) -> Result<String, LedgerError> {
    if shared::shared().is_some() {
        return Ok("nothing stopped: the library is preloaded, and the launcher would start the relay again; set \
             command_ledger.relay = off and reload to keep it from sending"
            .to_owned());
    }
    let Some(holder) = lock::holder(connection)? else {
        // One whose relay died under it.
        if let Some(functions) = lock::functions_holder(connection)? {
            // SAFETY: reads a backend variable.
            hooks::stop(functions.pid, unsafe { pg_sys::MyDatabaseId });
        }
        return Ok(format!("not running (one that has just failed is started again within {RESTART_S} s)"));
    };
    // SAFETY: reads a backend variable.
    if !hooks::stop(holder.pid, unsafe { pg_sys::MyDatabaseId }) {
        return match lock::holder(connection)? {
            None => Ok("stopped".to_owned()),
            Some(_) => Err(defect(format!("the relay (pid {}) cannot be signalled", holder.pid))),
        };
    }
    let until_ms = signals::monotonic_ms() + i64::from(settings::SHUTDOWN_GRACE_MS.get()) + STOP_WAIT_MS;
    while lock::holder(connection)?.is_some_and(|now| now.pid == holder.pid) {
        if signals::monotonic_ms() >= until_ms {
            return Ok(format!("asked to stop, and still ending (pid {})", holder.pid));
        }
        nap(LOOK_EVERY_MS);
    }
    Ok(format!("stopped (pid {})", holder.pid))
}

/// `start_relay()`
pub fn start_relay(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let answer = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        start(connection)
    })?;
    Ok(Some(datum::text(&answer)))
}

/// `stop_relay()`
pub fn stop_relay(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let answer = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        stop(connection)
    })?;
    Ok(Some(datum::text(&answer)))
}

crate::sql_function!(ledger_start_relay, pg_finfo_ledger_start_relay, start_relay);
crate::sql_function!(ledger_stop_relay, pg_finfo_ledger_stop_relay, stop_relay);
