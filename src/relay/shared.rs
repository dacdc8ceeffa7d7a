//! Shared memory: one slot per database with a ledger, and how to reach the launcher. Plain atomics, no pointers; what
//! is in here is a hint for speed and for health(), never the truth about a command (see `flights` for the one number
//! that decides something).
//!
//! | field of a slot | written by | meaning |
//! |---|---|---|
//! | database | whoever claims the slot first | 0: free |
//! | state, outcome | launcher and worker | see [`State`], [`Outcome`] |
//! | pid, proc | the worker | 0 and -1: no relay runs |
//! | functions_pid | the functions worker | 0: none runs |
//! | wake | committing sessions | there may be work; without a relay: one is wanted |
//! | changed | DROP and CREATE EXTENSION | the relay must look whether its extension is still there |
//! | due_us | committing sessions | the earliest moment that the relay may not have read; none: the largest number |
//! | asleep_until_us | the worker | until when it sleeps; 0: it is awake |
//! | hold_pid | a session that needs the database empty | no relay may run while it is not 0 |
//! | refused_at_us | the launcher | when it last found no free background worker |
//! | clock_* | the worker | the wall clock was set |
//! | counters | ledger functions | see `counters` |

use super::counters::COUNTERS;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// How many databases of one server can have a slot. One beyond that has no wake-ups, no relay of the launcher, and
/// counts into the overflow counters; health() says so.
pub const SLOTS: usize = 256;

/// What the launcher does about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nothing yet.
    Unknown = 0,
    /// A worker was asked for.
    Starting = 1,
    /// The relay holds the lock and works.
    Running = 2,
    /// The extension is not installed there.
    Absent = 3,
    /// The relay ended unexpectedly and will be started again after a pause.
    Waiting = 4,
    /// Somebody needs the database empty.
    Held = 5,
    /// max_worker_processes is used up.
    NoWorker = 6,
}

impl State {
    /// The state of a stored number.
    pub fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::Starting,
            2 => Self::Running,
            3 => Self::Absent,
            4 => Self::Waiting,
            5 => Self::Held,
            6 => Self::NoWorker,
            _ => Self::Unknown,
        }
    }
}

/// Why a worker ended, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// It did not get to say anything.
    Crashed = 0,
    /// The extension is not installed (any more).
    Absent = 1,
    /// It was asked to stop.
    Stopped = 2,
    /// Another process holds the relay lock of this database.
    Occupied = 3,
}

impl Outcome {
    /// The outcome of a stored number.
    pub fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::Absent,
            2 => Self::Stopped,
            3 => Self::Occupied,
            _ => Self::Crashed,
        }
    }
}

/// One database. Aligned so that two databases do not share a cache line.
#[repr(C, align(128))]
pub struct Slot {
    pub database: AtomicU32,
    pub state: AtomicU32,
    pub outcome: AtomicU32,
    pub wake: AtomicU32,
    pub changed: AtomicU32,
    pub pid: AtomicI32,
    pub proc: AtomicI32,
    pub functions_pid: AtomicI32,
    pub hold_pid: AtomicI32,
    pub due_us: AtomicI64,
    pub asleep_until_us: AtomicI64,
    pub started_us: AtomicI64,
    pub refused_at_us: AtomicI64,
    /// By how much the wall clock was set (microseconds, negative: back), and when.
    pub clock_step_us: AtomicI64,
    pub clock_stepped_at_us: AtomicI64,
    pub counters: [AtomicU64; COUNTERS],
}

impl Slot {
    /// What the launcher does about this database.
    pub fn state(&self) -> State {
        State::from_u32(self.state.load(SeqCst))
    }

    /// Sets it.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, SeqCst);
    }

    /// Says that there may be work, and wakes the relay, or the launcher where there is none. Only atomics and a latch.
    pub fn wake(&self) {
        self.wake.store(1, SeqCst);
        self.wake_process();
    }

    /// Says that something becomes due then. Wakes the relay only if it would sleep beyond it: it says until when it
    /// sleeps before it looks here, so that one of the two sees the other. Safe at commit, like [`Slot::wake`].
    pub fn due_at(&self, due_us: i64) {
        self.due_us.fetch_min(due_us, SeqCst);
        if self.asleep_until_us.load(SeqCst) > due_us {
            self.wake();
        }
    }

    /// Says until when the relay is about to sleep; answers until when it may.
    pub fn falls_asleep(&self, until_us: i64) -> i64 {
        self.asleep_until_us.store(until_us, SeqCst);
        until_us.min(self.due_us.swap(i64::MAX, SeqCst))
    }

    /// Says that the relay is awake and will read what is due.
    pub fn wakes_up(&self) {
        self.asleep_until_us.store(0, SeqCst);
    }

    fn wake_process(&self) {
        let relay = self.proc.load(SeqCst);
        if relay >= 0 {
            set_latch(relay);
        } else {
            wake_launcher();
        }
    }

    fn clear(&self) {
        for field in [&self.state, &self.outcome, &self.wake, &self.changed] {
            field.store(0, SeqCst);
        }
        for field in [&self.started_us, &self.refused_at_us, &self.clock_step_us, &self.clock_stepped_at_us] {
            field.store(0, SeqCst);
        }
        self.pid.store(0, SeqCst);
        self.proc.store(-1, SeqCst);
        self.functions_pid.store(0, SeqCst);
        self.hold_pid.store(0, SeqCst);
        self.due_us.store(i64::MAX, SeqCst);
        self.asleep_until_us.store(0, SeqCst);
        for counter in &self.counters {
            counter.store(0, SeqCst);
        }
    }
}

/// The whole segment.
#[repr(C)]
pub struct Shared {
    /// Guards claiming and freeing of slots. Held for one scan, by code that cannot fail.
    claiming: AtomicU32,
    pub launcher_pid: AtomicI32,
    pub launcher_proc: AtomicI32,
    /// The list of databases changed.
    pub rescan: AtomicU32,
    pub overflow: [AtomicU64; COUNTERS],
    pub slots: [Slot; SLOTS],
    /// What the relays know of their destinations' rates and breakers; zeros are free places.
    pub held: [super::throttles::Place; super::throttles::PLACES],
    /// Attempts in flight at their destinations; zeros are free places.
    pub flights: [super::flights::Place; super::flights::PLACES],
}

/// Where the segment is mapped in this process. Set in the postmaster, inherited by every child.
static SEGMENT: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Index of the slot of this session's database, once it is known.
static MY_SLOT: AtomicUsize = AtomicUsize::new(usize::MAX);

static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

unsafe extern "C" {
    /// The server's function, without pgrx's frame around it: also called from signal handlers and at commit, where
    /// nothing but the latch may be touched.
    #[link_name = "SetLatch"]
    fn set_latch_raw(latch: *mut pg_sys::Latch);
}

/// The segment; `None` where the library was not preloaded.
pub fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the segment that `startup` initialised; it is mapped for the life of the process and all its
    // fields are atomics.
    unsafe { SEGMENT.load(SeqCst).as_ref() }
}

/// Asks for the memory. In the postmaster, while shared libraries are being preloaded.
pub fn register() {
    // SAFETY: hook variables are only touched by the postmaster's one thread at this time.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: the previous hook, then our own request, at the time the server asks for it.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(std::mem::size_of::<Shared>() + std::mem::align_of::<Shared>());
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: runs in the postmaster alone (also after a crash, with fresh memory), before any child exists, so that
    // nobody else can see the segment half-initialised. The server aligns segments to a cache line of 128 bytes; the
    // address is rounded up in any case, for which one more alignment was asked.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let align = std::mem::align_of::<Shared>();
        let mut found = false;
        let base =
            pg_sys::ShmemInitStruct(c"command_ledger".as_ptr(), std::mem::size_of::<Shared>() + align, &mut found)
                .cast::<u8>();
        let segment = base.add(base.align_offset(align)).cast::<Shared>();
        if !found {
            std::ptr::write_bytes(segment, 0, 1);
            (*segment).launcher_proc.store(-1, SeqCst);
            for slot in &(*segment).slots {
                slot.clear();
            }
        }
        SEGMENT.store(segment, SeqCst);
    }
}

/// Sets the latch of a process by its place in the server's array. A place that was given to another process in the
/// meantime only wakes that one for nothing.
pub fn set_latch(proc: i32) {
    // SAFETY: the array is in shared memory for the life of the server; the index is checked against its length.
    unsafe {
        let all = pg_sys::ProcGlobal;
        if proc >= 0 && !all.is_null() && proc.cast_unsigned() < (*all).allProcCount {
            set_latch_raw(&raw mut (*(*all).allProcs.add(proc as usize)).procLatch);
        }
    }
}

/// Sets the latch of a process by its pid.
pub fn wake_pid(pid: i32) {
    // SAFETY: the entry found is one of the array, from whose start its place is counted.
    let place = unsafe {
        let proc = pg_sys::BackendPidGetProc(pid);
        if proc.is_null() { -1 } else { i32::try_from(proc.offset_from((*pg_sys::ProcGlobal).allProcs)).unwrap_or(-1) }
    };
    set_latch(place);
}

/// Sets this process's own latch.
pub fn set_my_latch() {
    // SAFETY: MyLatch is valid from process start to exit.
    unsafe {
        if !pg_sys::MyLatch.is_null() {
            set_latch_raw(pg_sys::MyLatch);
        }
    }
}

/// The place of this process in the server's array.
pub fn my_proc() -> i32 {
    // SAFETY: MyProc points into the array from InitProcess on.
    unsafe {
        if pg_sys::MyProc.is_null() {
            return -1;
        }
        i32::try_from(pg_sys::MyProc.offset_from((*pg_sys::ProcGlobal).allProcs)).unwrap_or(-1)
    }
}

/// Wakes the launcher.
pub fn wake_launcher() {
    if let Some(shared) = shared() {
        set_latch(shared.launcher_proc.load(SeqCst));
    }
}

/// This session's database.
pub fn my_database() -> u32 {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

/// The slot of a database, if it has one.
pub fn find(database: u32) -> Option<&'static Slot> {
    if database == 0 {
        return None;
    }
    shared()?.slots.iter().find(|slot| slot.database.load(SeqCst) == database)
}

/// Runs `work` with the right to claim and free slots. `work` must not call the server.
fn claiming<T>(shared: &Shared, work: impl FnOnce() -> T) -> T {
    while shared.claiming.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
        std::thread::yield_now();
    }
    let done = work();
    shared.claiming.store(0, SeqCst);
    done
}

/// The slot of a database, claimed if it has none; `None` when all are taken or nothing is shared.
pub fn claim(database: u32) -> Option<&'static Slot> {
    if database == 0 {
        return None;
    }
    let shared = shared()?;
    if let Some(slot) = find(database) {
        return Some(slot);
    }
    claiming(shared, || claim_held(shared, database))
}

/// As [`claim`], by who holds the right to claim.
fn claim_held(shared: &'static Shared, database: u32) -> Option<&'static Slot> {
    if let Some(slot) = find(database) {
        return Some(slot);
    }
    let free = shared.slots.iter().find(|slot| slot.database.load(SeqCst) == 0)?;
    free.clear();
    free.database.store(database, SeqCst);
    Some(free)
}

/// Gives the slot of a database back. Where `if_unused` is set, only if nothing was counted or asked in it.
pub fn release(slot: &'static Slot, if_unused: bool) {
    let Some(shared) = shared() else { return };
    claiming(shared, || {
        let counted = slot.hold_pid.load(SeqCst) != 0 || slot.counters.iter().any(|counter| counter.load(SeqCst) != 0);
        let attached = slot.pid.load(SeqCst) != 0 || slot.functions_pid.load(SeqCst) != 0;
        if attached || if_unused && counted {
            return;
        }
        // Taken back before the last look at what was asked: a session that asks does it the other way round, so that
        // one of the two sees the other.
        let database = slot.database.swap(0, SeqCst);
        if if_unused && slot.wake.load(SeqCst) != 0 {
            slot.database.store(database, SeqCst);
        }
    });
}

/// Says that there may be work in this session's database (`changed`: that an extension of it came or went), and wakes
/// its relay, or the launcher. Only atomics, a latch and a lock that is held for one scan: called after the commit record
/// is written, where nothing may fail. The slot may have been given back since the session last saw it: then it is
/// claimed again, for a wish that stands nowhere is a lost one.
pub fn wake_mine(changed: bool) {
    let (Some(shared), database) = (shared(), my_database()) else { return };
    let ask = |slot: &Slot| {
        if changed {
            slot.changed.store(1, SeqCst);
        }
        slot.wake.store(1, SeqCst);
    };
    if let Some(slot) = my_known_slot() {
        ask(slot);
        if slot.database.load(SeqCst) == database {
            return slot.wake_process();
        }
    }
    let claimed = claiming(shared, || claim_held(shared, database).inspect(|slot| ask(slot)));
    match claimed {
        Some(slot) => slot.wake_process(),
        None => {
            shared.rescan.store(1, SeqCst);
            wake_launcher();
        }
    }
}

/// The slot of this session's database, if it was used before. Only atomics are read: safe at commit.
pub fn my_known_slot() -> Option<&'static Slot> {
    let database = my_database();
    match shared()?.slots.get(MY_SLOT.load(SeqCst)) {
        Some(slot) if slot.database.load(SeqCst) == database => Some(slot),
        _ => find(database),
    }
}

/// The slot of this session's database, claimed at the first use.
pub fn my_slot() -> Option<&'static Slot> {
    let shared = shared()?;
    let database = my_database();
    if let Some(slot) = shared.slots.get(MY_SLOT.load(SeqCst))
        && slot.database.load(SeqCst) == database
    {
        return Some(slot);
    }
    let slot = claim(database)?;
    let index = shared.slots.iter().position(|s| std::ptr::eq(s, slot)).unwrap_or(usize::MAX);
    MY_SLOT.store(index, SeqCst);
    Some(slot)
}
