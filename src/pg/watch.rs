//! What is kept per backend of tables that rarely change is good until one of them is written: the writer says so, and
//! the server tells every session with the messages that keep its own caches true (rolled back with the transaction,
//! replayed on a standby).

use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;

thread_local! {
    static GENERATION: Cell<u64> = const { Cell::new(0) };
    static WATCHED: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// A table of the ledger, if it is there.
pub fn table(name: &CStr) -> Option<Oid> {
    // SAFETY: two catalog lookups by name.
    let id = unsafe {
        pg_sys::get_relname_relid(name.as_ptr(), pg_sys::get_namespace_oid(c"command_ledger".as_ptr(), true))
    };
    (id != Oid::INVALID).then_some(id)
}

/// Whether a table of the ledger has a column: the SQL objects may still be those of an older version, until
/// `ALTER EXTENSION command_ledger UPDATE`.
pub fn has_column(name: &CStr, column: &CStr) -> bool {
    // SAFETY: a catalog lookup by name.
    table(name).is_some_and(|id| unsafe { pg_sys::get_attnum(id, column.as_ptr()) } > 0)
}

/// Tables by name, good in one generation.
struct Names {
    generation: u64,
    ids: Vec<(&'static CStr, Oid)>,
}

impl Names {
    const NONE: Self = Self { generation: 0, ids: Vec::new() };

    fn id(&self, name: &CStr) -> Option<Oid> {
        let known = self.generation == GENERATION.get();
        self.ids.iter().find(|(one, _)| known && *one == name).map(|(_, id)| *id)
    }

    fn keep(&mut self, name: &'static CStr, id: Oid) {
        let now = GENERATION.get();
        if self.generation != now {
            self.ids.clear();
            self.generation = now;
        }
        self.ids.push((name, id));
    }
}

thread_local! {
    /// Tables that are watched.
    static NAMED: RefCell<Names> = const { RefCell::new(Names::NONE) };
    /// Tables that were looked at and are what the caller expects.
    static KNOWN: RefCell<Names> = const { RefCell::new(Names::NONE) };
}

/// The table of this name, as long as nothing has changed since [`keep`] was told of it; and the generation.
pub fn kept(name: &CStr) -> (Option<Oid>, u64) {
    (KNOWN.with_borrow(|known| known.id(name)), GENERATION.get())
}

/// The generation as it is now, without asking for news.
pub fn now() -> u64 {
    GENERATION.get()
}

/// Remembers the table of this name, which was just looked at, until it may have changed.
pub fn keep(name: &'static CStr) {
    // Watches it.
    let (Some(_), Some(id)) = (generation(&[name]), table(name)) else { return };
    KNOWN.with_borrow_mut(|known| known.keep(name, id));
}

unsafe extern "C-unwind" fn told(_argument: Datum, relation: Oid) {
    let watched = relation == Oid::INVALID || WATCHED.with_borrow(|watched| watched.contains(&relation));
    if watched {
        GENERATION.set(GENERATION.get() + 1);
    }
}

unsafe extern "C-unwind" fn told_of_roles(_argument: Datum, _cache: i32, _hash: u32) {
    GENERATION.set(GENERATION.get() + 1);
}

/// A number that is another one as soon as one of these tables (or who is a member of whom) may have changed. `None`
/// while one of them does not exist.
pub fn generation(names: &[&'static CStr]) -> Option<u64> {
    if !REGISTERED.replace(true) {
        // SAFETY: registered once per backend; the callbacks touch nothing but thread-local numbers.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(told), Datum::from(0));
            for cache in [pg_sys::SysCacheIdentifier::AUTHMEMROLEMEM, pg_sys::SysCacheIdentifier::AUTHOID] {
                pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(told_of_roles), Datum::from(0));
            }
        }
    }
    // SAFETY: takes in what other sessions have said since.
    unsafe { pg_sys::AcceptInvalidationMessages() };
    for name in names {
        if NAMED.with_borrow(|named| named.id(name)).is_some() {
            continue;
        }
        let id = table(name)?;
        WATCHED.with_borrow_mut(|watched| {
            if !watched.contains(&id) {
                watched.push(id);
                GENERATION.set(GENERATION.get() + 1);
            }
        });
        NAMED.with_borrow_mut(|named| named.keep(name, id));
    }
    Some(GENERATION.get())
}

/// Tells every session, when this transaction commits, that the table was written, and this one at once. Should the
/// transaction roll back, this session is told again.
pub fn changed(name: &CStr) {
    if let Some(id) = table(name) {
        // SAFETY: the table exists and this transaction has just written it. The counter makes the server act on the
        // message now, and keep it for an abort.
        unsafe {
            pg_sys::CacheInvalidateRelcacheByRelid(id);
            pg_sys::GetCurrentCommandId(true);
            pg_sys::CommandCounterIncrement();
        }
    }
}
