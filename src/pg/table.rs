//! Rows of the ledger's own tables, found and inserted without a plan. A statement of thirty columns costs more to
//! start than the row costs to write; these few are on the way of every command.
//!
//! A table is used so only while it is what the extension made: an ordinary heap with exactly these columns and no
//! trigger but the guard's. Anything else (another version's columns, a trigger somebody added, a table that was
//! distributed) gets the ordinary statement, see [`Table::open`].

use super::enums::enum_datum;
use super::report::defect;
use super::row::Row;
use super::target::{Entries, Nullness, Target};
use super::transaction::require_writable;
use super::watch;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;

/// Triggers that the extension puts on each of its tables (`sql/guard.sql`).
const GUARD_TRIGGERS: i32 = 2;

/// An opened table. It is closed by the end of the transaction at the latest.
pub struct Table {
    pub(super) relation: pg_sys::Relation,
}

/// What is committed at one moment, and what this transaction changed before.
pub struct Snapshot(pub(super) pg_sys::Snapshot);

impl Snapshot {
    /// The state of now, whatever the isolation level.
    pub fn latest() -> Self {
        // SAFETY: released by `release`, and by an abort in any case.
        Self(unsafe { pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()) })
    }

    /// Gives it back.
    pub fn release(self) {
        // SAFETY: registered by `latest`.
        unsafe { pg_sys::UnregisterSnapshot(self.0) };
    }
}

/// Where a row stands in its table.
pub type Place = pg_sys::ItemPointerData;

/// What became of a row that was to be locked.
pub enum Held {
    /// Locked: its last version, and whether that is another one than was found.
    Row { row: Row, changed: bool },
    /// Deleted since.
    Gone,
    /// Another session holds it.
    ByOthers,
}

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    Yes,
    /// A committed row has the same primary key.
    Conflict,
}

impl Table {
    /// Opens a table of the ledger for reading and writing; `None` if it is not what these columns say.
    pub fn open(name: &'static CStr, columns: &[&str]) -> Option<Self> {
        const LOCK: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        // It was what the columns say, and opening it brings the news if it is not any more.
        if let (Some(id), generation) = watch::kept(name) {
            // SAFETY: answers null for a table that is gone; closed here or by `close`, and by an abort in any case.
            let relation = unsafe { pg_sys::try_table_open(id, LOCK) };
            if !relation.is_null() {
                let table = Self { relation };
                if watch::now() == generation {
                    return Some(table);
                }
                table.close();
            }
        }
        // SAFETY: catalog lookups by name; the relation is closed here or by `close`, and by an abort in any case.
        unsafe {
            let table = Self { relation: pg_sys::table_open(watch::table(name)?, LOCK) };
            if table.is_plain(columns) {
                watch::keep(name);
                return Some(table);
            }
            table.close();
            None
        }
    }

    /// Closes it; its lock stays until the transaction ends.
    pub fn close(self) {
        // SAFETY: opened by `open`.
        unsafe { pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE) };
    }

    unsafe fn is_plain(&self, columns: &[&str]) -> bool {
        // SAFETY: reads the relation's descriptor while it is open.
        unsafe {
            let relation = &*self.relation;
            let (descriptor, triggers) = (relation.rd_att, relation.trigdesc);
            begins_with(self.relation, columns)
                && usize::try_from((*descriptor).natts) == Ok(columns.len())
                && relation.rd_rules.is_null()
                && (!triggers.is_null() && (*triggers).numtriggers == GUARD_TRIGGERS)
                && ((*descriptor).constr.is_null() || (*(*descriptor).constr).num_check == 0)
        }
    }

    /// The type of a column.
    fn column_type(&self, column: usize) -> Oid {
        // SAFETY: callers name columns that `open` checked.
        unsafe { (*attribute((*self.relation).rd_att, column)).atttypid }
    }

    /// The datum of a label of an enum column.
    pub fn enum_datum(&self, column: usize, label: &str) -> Result<Datum, LedgerError> {
        enum_datum(self.column_type(column), label)
    }

    /// Locks a row, as SELECT … FOR NO KEY UPDATE does: waits for whoever holds it, and answers its last version.
    pub fn lock(&self, place: Place, snapshot: &Snapshot) -> Result<Held, LedgerError> {
        self.locked(place, snapshot, pg_sys::LockWaitPolicy::LockWaitBlock)
    }

    /// The same with SKIP LOCKED: does not wait.
    pub fn try_lock(&self, place: Place, snapshot: &Snapshot) -> Result<Held, LedgerError> {
        self.locked(place, snapshot, pg_sys::LockWaitPolicy::LockWaitSkip)
    }

    fn locked(
        &self,
        mut place: Place,
        snapshot: &Snapshot,
        wait: pg_sys::LockWaitPolicy::Type,
    ) -> Result<Held, LedgerError> {
        require_writable()?;
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: the place is that of a tuple of this table; the row is copied before the slot is dropped.
        unsafe {
            let slot = pg_sys::table_slot_create(self.relation, std::ptr::null_mut());
            let outcome = pg_sys::table_tuple_lock(
                self.relation,
                &mut place,
                snapshot.0,
                slot,
                pg_sys::GetCurrentCommandId(true),
                pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
                wait,
                pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8,
                &mut failure,
            );
            let held = match outcome {
                pg_sys::TM_Result::TM_Ok => {
                    Ok(Held::Row { row: copy_of(slot, self.relation), changed: failure.traversed })
                }
                pg_sys::TM_Result::TM_Deleted => Ok(Held::Gone),
                pg_sys::TM_Result::TM_WouldBlock => Ok(Held::ByOthers),
                other => Err(defect(format!("a row could not be locked ({other})"))),
            };
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            held
        }
    }

    /// Replaces rows that this transaction has locked and not written since.
    pub fn update(&self, rows: &[(&Row, Vec<Option<Datum>>)]) -> Result<(), LedgerError> {
        // SAFETY: the server refuses a row that was changed meanwhile; index entries follow unless the new version stays
        // on the page with none of them touched.
        unsafe {
            // Most new versions need no entry: opened when one does.
            let mut target = None;
            let slot = self.slot();
            for (old, row) in rows {
                self.fill(slot, row)?;
                let mut free = false;
                let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut free);
                let mut place = old.place();
                let summarizing = update_tuple(self.relation, &mut place, tuple);
                (*slot).tts_tid = (*tuple).t_self;
                if let Some(only_summarizing) = summarizing {
                    let any = |like: Nullness| rows.iter().any(|(_, row)| is_like(row, like));
                    target
                        .get_or_insert_with(|| Target::open(self.relation, false, any))
                        .insert_index_tuples(slot, Entries::OfUpdate { only_summarizing });
                }
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            if let Some(target) = target {
                target.close();
            }
            pg_sys::CommandCounterIncrement();
        }
        Ok(())
    }

    /// Deletes rows that this transaction has locked and not written since.
    pub fn delete(&self, rows: &[&Row]) -> Result<(), LedgerError> {
        require_writable()?;
        // SAFETY: as above.
        unsafe {
            for row in rows {
                pg_sys::simple_heap_delete(self.relation, &mut row.place());
            }
            pg_sys::CommandCounterIncrement();
        }
        Ok(())
    }

    /// Inserts a row; waits for a session that is inserting the same primary key, and says whether that one won.
    pub fn insert_unless_taken(&self, row: &[Option<Datum>]) -> Result<Inserted, LedgerError> {
        // SAFETY: the order of the calls is that of the server's own insert with ON CONFLICT: the tuple is speculative
        // until every unique index has taken it. What an error leaves behind is released by the abort.
        unsafe {
            let target = Target::open(self.relation, true, |like| is_like(row, like));
            let slot = self.slot();
            self.fill(slot, row)?;
            let (command, transaction) = (pg_sys::GetCurrentCommandId(true), pg_sys::GetCurrentTransactionId());
            let inserted = loop {
                let token = pg_sys::SpeculativeInsertionLockAcquire(transaction);
                pg_sys::table_tuple_insert_speculative(self.relation, slot, command, 0, std::ptr::null_mut(), token);
                let mut conflict = false;
                target.insert_index_tuples(slot, Entries::Speculative(&mut conflict));
                pg_sys::table_tuple_complete_speculative(self.relation, slot, token, !conflict);
                pg_sys::SpeculativeInsertionLockRelease(transaction);
                if !conflict {
                    break Inserted::Yes;
                }
                // Waits for the other session; free again if that one rolled back.
                if !target.is_free(slot) {
                    break Inserted::Conflict;
                }
            };
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            target.close();
            pg_sys::CommandCounterIncrement();
            Ok(inserted)
        }
    }

    /// Inserts rows whose keys are known to be free (23505 otherwise).
    pub fn insert(&self, rows: &[Vec<Option<Datum>>]) -> Result<(), LedgerError> {
        // SAFETY: as above, without speculation.
        unsafe {
            let any = |like: Nullness| rows.iter().any(|row| is_like(row, like));
            let target = Target::open(self.relation, false, any);
            let slot = self.slot();
            for row in rows {
                self.fill(slot, row)?;
                let command = pg_sys::GetCurrentCommandId(true);
                pg_sys::table_tuple_insert(self.relation, slot, command, 0, std::ptr::null_mut());
                target.insert_index_tuples(slot, Entries::OfInsert);
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            target.close();
            pg_sys::CommandCounterIncrement();
        }
        Ok(())
    }

    unsafe fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        // SAFETY: the relation is open.
        unsafe { pg_sys::MakeSingleTupleTableSlot((*self.relation).rd_att, &raw const pg_sys::TTSOpsHeapTuple) }
    }

    /// Puts a row into the slot, to be written. No executor stands before these writes and refuses them where nothing may
    /// be written: a standby's transactions are read-only too.
    unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, row: &[Option<Datum>]) -> Result<(), LedgerError> {
        require_writable()?;
        let mut values: Vec<Datum> = row.iter().map(|value| value.unwrap_or(Datum::from(0))).collect();
        let mut nulls: Vec<bool> = row.iter().map(Option::is_none).collect();
        // SAFETY: the row has a value for every column (checked); the slot refers to a tuple in the same memory.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            if usize::try_from((*descriptor).natts) != Ok(row.len()) {
                return Err(defect(format!("{} values for a row of {}", row.len(), (*descriptor).natts)));
            }
            let tuple = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            (*tuple).t_tableOid = (*self.relation).rd_id;
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            Ok(())
        }
    }
}

fn is_like(row: &[Option<Datum>], like: Nullness) -> bool {
    row.get(like.column).is_some_and(|value| value.is_none() == like.null)
}

/// Writes a new version; `None` if no index needs an entry, else whether only summarizing ones do.
///
/// # Safety
/// The place is that of a tuple of this heap that the transaction has locked.
unsafe fn update_tuple(
    relation: pg_sys::Relation,
    place: &mut pg_sys::ItemPointerData,
    tuple: pg_sys::HeapTuple,
) -> Option<bool> {
    // SAFETY: by contract.
    unsafe {
        #[cfg(feature = "pg15")]
        {
            const HEAP_ONLY: u16 = pg_sys::HEAP_ONLY_TUPLE as u16;
            pg_sys::simple_heap_update(relation, place, tuple);
            ((*(*tuple).t_data).t_infomask2 & HEAP_ONLY == 0).then_some(false)
        }
        #[cfg(not(feature = "pg15"))]
        {
            let mut entries = pg_sys::TU_UpdateIndexes::TU_None;
            pg_sys::simple_heap_update(relation, place, tuple, &mut entries);
            match entries {
                pg_sys::TU_UpdateIndexes::TU_None => None,
                entries => Some(entries == pg_sys::TU_UpdateIndexes::TU_Summarizing),
            }
        }
    }
}

/// The row in a slot of this table, good beyond the slot.
///
/// # Safety
/// The slot holds a tuple of the relation, which is open.
pub(super) unsafe fn copy_of(slot: *mut pg_sys::TupleTableSlot, relation: pg_sys::Relation) -> Row {
    // SAFETY: by contract.
    unsafe {
        let mut free = false;
        let tuple = pg_sys::heap_copytuple(pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut free));
        Row::of(tuple, (*relation).rd_att)
    }
}

/// Whether it is an ordinary heap whose first columns are these.
///
/// # Safety
/// The relation is open.
pub(super) unsafe fn begins_with(relation: pg_sys::Relation, columns: &[&str]) -> bool {
    // SAFETY: by contract.
    unsafe {
        let (class, descriptor) = (&*(*relation).rd_rel, (*relation).rd_att);
        class.relkind == pg_sys::RELKIND_RELATION as std::ffi::c_char
            && !class.relispartition
            && !class.relforcerowsecurity
            && (*relation).rd_tableam == pg_sys::GetHeapamTableAmRoutine()
            && usize::try_from((*descriptor).natts).is_ok_and(|there| there >= columns.len())
            && columns.iter().enumerate().all(|(i, name)| {
                let attribute = attribute(descriptor, i);
                CStr::from_ptr((*attribute).attname.data.as_ptr()).to_bytes() == name.as_bytes()
            })
    }
}

/// A column's description.
///
/// # Safety
/// The descriptor has this column.
pub(super) unsafe fn attribute(descriptor: pg_sys::TupleDesc, column: usize) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: by contract.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return (*descriptor).attrs.as_ptr().add(column);
        #[cfg(feature = "pg18")]
        return pg_sys::TupleDescAttr(descriptor, i32::try_from(column).unwrap_or(0));
    }
}
