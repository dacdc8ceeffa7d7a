//! What the server itself is set to.

use super::{Check, RECENT_US, span};
use crate::pg::spi::{Connection, Mode, Statement};
use crate::pg::transaction;
use crate::relay::shared;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys;
use std::sync::atomic::Ordering::SeqCst;

/// A moment in the ledger this far ahead of the clock means that the clock was set back.
const FUTURE_US: i64 = 2_000_000;

/// The latest moment that small tables of the ledger know of.
static LATEST: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT greatest((SELECT pg_catalog.max(f.adopted_at) FROM command_ledger.relay_fence f), \
                     (SELECT pg_catalog.max(d.defined_at) FROM command_ledger.destination d), \
                     (SELECT pg_catalog.max(t.defined_at) FROM command_ledger.command_type t), \
                     (SELECT pg_catalog.max(a.granted_at) FROM command_ledger.access a), \
                     (SELECT pg_catalog.max(r.opened_at) FROM command_ledger.reconciliation_case r \
                       WHERE r.closed_at IS NULL))",
);

pub fn preloaded() -> Check {
    if shared::shared().is_some() {
        return Check::good("preloaded", "the library is preloaded: relays are started and woken by themselves");
    }
    Check::bad(
        "preloaded",
        "the library is not preloaded: no launcher, no wake-up at commit, no counters",
        "Add command_ledger to shared_preload_libraries and restart, or SELECT command_ledger.start_relay() after each \
         start of the server.",
    )
}

pub fn standby() -> Check {
    if transaction::in_recovery() {
        return Check::good("standby", "this server is a standby: no relay runs here, and none should").hint(
            "After a promotion the relay comes by itself where the library is preloaded; see also the row fence.",
        );
    }
    Check::good("standby", "this server is not a standby")
}

pub fn durability() -> Check {
    const NAME: &str = "durability";
    // SAFETY: reads variables of settings.
    let (fsync, full_pages, commit) =
        unsafe { (pg_sys::enableFsync, pg_sys::fullPageWrites, pg_sys::synchronous_commit) };
    if !fsync || !full_pages {
        return Check::bad(
            NAME,
            format!(
                "fsync is {}, full_page_writes is {}: after a crash the ledger may not remember what it sent",
                if fsync { "on" } else { "off" },
                if full_pages { "on" } else { "off" }
            ),
            "Turn both on; without them nothing here is guaranteed.",
        );
    }
    if commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 {
        return Check::good(
            NAME,
            "fsync is on; synchronous_commit is off in this session: a registration that was answered may be lost in a \
             crash. What is sent is always durable first",
        )
        .hint("SET synchronous_commit = on for sessions that register commands.");
    }
    Check::good(NAME, "fsync and full_page_writes are on; what is sent is always durable first")
}

pub fn clock(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "clock";
    if let Some(latest_us) = LATEST.first(connection, &[])?.and_then(|row| row.time(0))
        && latest_us > now_us + FUTURE_US
    {
        return Ok(Check::bad(
            NAME,
            format!("the clock was set back: the ledger knows a moment {} ahead of it", span(latest_us - now_us)),
            "Set the clock right; due times, leases, deadlines and approvals are judged by it.",
        ));
    }
    if let Some(slot) = shared::find(shared::my_database()) {
        let (step_us, at_us) = (slot.clock_step_us.load(SeqCst), slot.clock_stepped_at_us.load(SeqCst));
        if step_us != 0 && now_us - at_us < RECENT_US {
            let way = if step_us < 0 { "back" } else { "forward" };
            return Ok(Check::bad(
                NAME,
                format!("the clock was set {way} by {}, {} ago", span(step_us.abs()), span(now_us - at_us)),
                "Leases, deadlines and windows that were running then are off by as much. Slew the clock instead of \
                 stepping it.",
            ));
        }
    }
    Ok(Check::good(NAME, "no step seen"))
}

pub fn worker_slots(now_us: i64) -> Check {
    const NAME: &str = "worker_slots";
    // SAFETY: reads the variable of a setting.
    let max = unsafe { pg_sys::max_worker_processes };
    let refused = shared::shared()
        .and_then(|all| all.slots.iter().map(|slot| slot.refused_at_us.load(SeqCst)).max())
        .filter(|us| *us != 0 && now_us - us < RECENT_US);
    match refused {
        Some(at_us) => Check::bad(
            NAME,
            format!(
                "a relay found no free background worker {} ago (max_worker_processes is {max})",
                span(now_us - at_us)
            ),
            "Each database with a ledger needs one, and one more where it has function destinations; the launcher needs one: \
             raise max_worker_processes and restart.",
        ),
        None => Check::good(NAME, format!("max_worker_processes is {max}; no relay was refused one in the last hour")),
    }
}
