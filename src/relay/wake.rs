//! Telling the relay at COMMIT that there is work. Raw transaction callbacks, one each per backend: they read flags, store
//! atomics and set a latch. They cannot fail, and a wake-up that is lost (COMMIT PREPARED runs in another session) is
//! made up for by the sweep.

use super::{flights, hooks, shared};
use pgrx::pg_sys::{self, SubXactEvent, XactEvent};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};

/// Wake the relay of this session's database.
const RELAY: u32 = 1;
/// Let the launcher look at the list of databases.
const RESCAN: u32 = 2;
/// With [`RELAY`]: an extension of this database was dropped or created.
const EXTENSION: u32 = 4;

/// What the running transaction asked for. Subtransactions are not told apart: one that rolls back leaves its wish
/// behind, and a relay that is woken for nothing goes back to sleep.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// The earliest moment at which something becomes due by the running transaction; none: the largest number.
static DUE_US: AtomicI64 = AtomicI64::new(i64::MAX);

/// Registers the callback. Only where the library is preloaded; elsewhere there is nobody to wake, and relays poll.
pub fn register() {
    // SAFETY: the list of callbacks lives for the process and is inherited by the postmaster's children.
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_end_of_part), std::ptr::null_mut());
    }
}

/// Wakes the relay of this database when the running transaction commits; asks the launcher for one if there is none.
pub fn at_commit() {
    if shared::shared().is_none() || WANTED.load(SeqCst) & RELAY != 0 {
        return;
    }
    // The slot is found (and claimed) here, so that the commit has only to look at it.
    if shared::my_slot().is_some() {
        WANTED.fetch_or(RELAY, SeqCst);
    } else {
        launcher();
    }
}

/// Makes sure that the relay of this database looks at that moment (Unix microseconds), once the running transaction has
/// committed: cheaper than [`at_commit`] where there is nothing to do before.
pub fn at(due_us: i64) {
    if shared::my_slot().is_some() {
        DUE_US.fetch_min(due_us, SeqCst);
    }
}

/// As [`at_commit`], and lets the relay look whether its extension is still the same.
pub fn extension_changed() {
    at_commit();
    WANTED.fetch_or(EXTENSION, SeqCst);
}

/// Lets the launcher look again at all databases when the running transaction commits.
pub fn launcher() {
    WANTED.fetch_or(RESCAN, SeqCst);
}

fn forget() {
    WANTED.store(0, SeqCst);
    DUE_US.store(i64::MAX, SeqCst);
}

/// Not guarded by pgrx: it runs after the commit record, where an error would take the whole server down; there is
/// nothing in it that can raise one.
unsafe extern "C-unwind" fn at_end(event: XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        XactEvent::XACT_EVENT_COMMIT => {
            flights::at_commit();
            let wanted = WANTED.swap(0, SeqCst);
            if wanted & RELAY != 0 {
                shared::wake_mine(wanted & EXTENSION != 0);
            }
            let due_us = DUE_US.swap(i64::MAX, SeqCst);
            if due_us != i64::MAX
                && let Some(slot) = shared::my_known_slot()
            {
                slot.due_at(due_us);
            }
            if wanted & RESCAN != 0
                && let Some(shared) = shared::shared()
            {
                shared.rescan.store(1, SeqCst);
                shared::wake_launcher();
            }
            hooks::let_go();
        }
        XactEvent::XACT_EVENT_ABORT => {
            flights::at_abort();
            forget();
            hooks::let_go();
        }
        XactEvent::XACT_EVENT_PREPARE => {
            flights::forget_ends();
            forget();
        }
        _ => {}
    }
}

/// As [`at_end`], for subtransactions.
unsafe extern "C-unwind" fn at_end_of_part(
    event: SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    if event == SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        flights::forget_ends();
    }
}
