//! Telling the relay at COMMIT that there is work. Raw callbacks, one of each kind per backend: they read flags, store
//! atomics and set a latch. They cannot fail, and a wake-up that is lost (COMMIT PREPARED runs in another session) is
//! made up for by the sweep.
//!
//! The transaction's own callback comes too early: the server tells other sessions afterwards what their caches may no
//! longer believe. A relay that is quicker than that would look at the definitions, or at the extension, of before, and
//! go to sleep over them. So the relay is told when the transaction's locks are released, which is after that.

use super::{flights, hooks, shared};
use pgrx::pg_sys::{self, ResourceReleasePhase, SubXactEvent, XactEvent};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::SeqCst};

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

/// The running transaction has committed, and what it asked for is not told yet.
static COMMITTED: AtomicBool = AtomicBool::new(false);

/// Registers the callbacks. Only where the library is preloaded; elsewhere there is nobody to wake, and relays poll.
pub fn register() {
    // SAFETY: the lists of callbacks live for the process and are inherited by the postmaster's children.
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_end_of_part), std::ptr::null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(at_release), std::ptr::null_mut());
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

fn tell() {
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

/// The first release of resources after the commit, once its locks are gone. Not guarded by pgrx, as below.
unsafe extern "C-unwind" fn at_release(
    phase: ResourceReleasePhase::Type,
    _commit: bool,
    _top_level: bool,
    _arg: *mut std::ffi::c_void,
) {
    if phase == ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS && COMMITTED.swap(false, SeqCst) {
        tell();
    }
}

/// Not guarded by pgrx: it runs after the commit record, where an error would take the whole server down; there is
/// nothing in it that can raise one.
unsafe extern "C-unwind" fn at_end(event: XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        XactEvent::XACT_EVENT_COMMIT => {
            flights::at_commit();
            COMMITTED.store(true, SeqCst);
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
