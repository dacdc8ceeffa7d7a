//! Rows of the ledger's own tables, found through an index without a plan (see [`super::table`]).

use super::row::Row;
use super::table::{Snapshot, Table, attribute, begins_with, copy_of};
use super::watch;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;

/// A walk through an index of a table, in its order.
pub struct Walk<'t> {
    table: &'t Table,
    index: pg_sys::Relation,
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    keys: i32,
}

impl Table {
    /// Finds rows by the primary key of two texts, one after the other.
    pub fn by_key<'t>(&'t self, snapshot: &Snapshot) -> Walk<'t> {
        // SAFETY: the primary key of these tables begins with two text columns of collation C.
        unsafe { Walk::start(self, primary_key(self.relation), snapshot, 2) }
    }

    /// Finds the row with this primary key; the row is a copy.
    pub fn find(&self, key: [Datum; 2], snapshot: &Snapshot) -> Option<Row> {
        let mut walk = self.by_key(snapshot);
        let row = walk.find(key);
        walk.end();
        row
    }

    /// Walks through the rows of one first column (a text) in the order of the second (a timestamptz), from a moment on
    /// if one is given. `None` if the index of this name is not one on these columns.
    pub fn walk<'t>(
        &'t self,
        index: &CStr,
        columns: [usize; 2],
        first: Datum,
        from: Option<Datum>,
        snapshot: &Snapshot,
    ) -> Option<Walk<'t>> {
        // SAFETY: the index is opened by name and used only if it is a valid one on these two columns of this table.
        unsafe {
            let index = index_of(self.relation, watch::table(index)?, columns)?;
            let mut walk = Walk::start(self, index, snapshot, if from.is_some() { 2 } else { 1 });
            let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
            text_is(&mut keys[0], 1, first);
            if let Some(from) = from {
                pg_sys::ScanKeyEntryInitialize(
                    &mut keys[1],
                    0,
                    2,
                    pg_sys::BTGreaterEqualStrategyNumber as pg_sys::StrategyNumber,
                    Oid::INVALID,
                    Oid::INVALID,
                    pg_sys::F_TIMESTAMPTZ_GE.into(),
                    from,
                );
            }
            walk.restart(&mut keys);
            Some(walk)
        }
    }
}

/// Reads the first row of a small table that begins with these columns, as it is committed now; the row is a copy. `None`
/// if the table is another.
pub fn only_row(name: &CStr, columns: &[&str]) -> Option<Option<Row>> {
    let id = watch::table(name)?;
    let snapshot = Snapshot::latest();
    // SAFETY: everything that is opened is closed here, and by an abort in any case; the row is copied before.
    let row = unsafe {
        let relation = pg_sys::table_open(id, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let row = begins_with(relation, columns).then(|| {
            let (none, flags) = (std::ptr::null_mut(), pg_sys::ScanOptions::SO_TYPE_SEQSCAN);
            let scan = pg_sys::heap_beginscan(relation, snapshot.0, 0, none, std::ptr::null_mut(), flags);
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            let row = (!tuple.is_null()).then(|| Row::of(pg_sys::heap_copytuple(tuple), (*relation).rd_att));
            pg_sys::heap_endscan(scan);
            row
        });
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        row
    };
    snapshot.release();
    row
}

impl<'t> Walk<'t> {
    /// # Safety
    /// The index is one of the table, and has as many columns.
    unsafe fn start(table: &'t Table, index: Oid, snapshot: &Snapshot, keys: i32) -> Self {
        // SAFETY: all is released by `end`, and by an abort in any case.
        unsafe {
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let scan = begin_scan(table.relation, index, snapshot.0, keys);
            let slot = pg_sys::table_slot_create(table.relation, std::ptr::null_mut());
            Self { table, index, scan, slot, keys }
        }
    }

    unsafe fn restart(&mut self, keys: &mut [pg_sys::ScanKeyData; 2]) {
        // SAFETY: the scan was begun with this many keys.
        unsafe { pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), self.keys, std::ptr::null_mut(), 0) };
    }

    /// The next row; what its columns refer to is good until the next call.
    pub fn next(&mut self) -> Option<Row> {
        // SAFETY: the slot holds the tuple, on its page, until the next one is fetched.
        unsafe {
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            pg_sys::index_getnext_slot(self.scan, forward, self.slot).then(|| {
                let mut free = false;
                let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, &mut free);
                Row::of(tuple, (*self.table.relation).rd_att)
            })
        }
    }

    /// The row with this key, for a walk by the primary key; a copy.
    pub fn find(&mut self, key: [Datum; 2]) -> Option<Row> {
        // SAFETY: as above; the row refers to the copy.
        unsafe {
            let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
            for (i, (entry, value)) in keys.iter_mut().zip(key).enumerate() {
                text_is(entry, i as pg_sys::AttrNumber + 1, value);
            }
            self.restart(&mut keys);
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            pg_sys::index_getnext_slot(self.scan, forward, self.slot).then(|| copy_of(self.slot, self.table.relation))
        }
    }

    /// Gives everything back.
    pub fn end(self) {
        // SAFETY: opened by `start`.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::index_endscan(self.scan);
            pg_sys::index_close(self.index, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
}

/// Column = text, bytewise.
unsafe fn text_is(key: &mut pg_sys::ScanKeyData, column: pg_sys::AttrNumber, value: Datum) {
    // SAFETY: fills the key in.
    unsafe {
        pg_sys::ScanKeyEntryInitialize(
            key,
            0,
            column,
            pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
            Oid::INVALID,
            pg_sys::C_COLLATION_OID,
            pg_sys::F_TEXTEQ.into(),
            value,
        );
    }
}

/// The index, if it is a valid one of this table that begins with these columns and whose first is bytewise.
///
/// # Safety
/// The relation is open.
unsafe fn index_of(relation: pg_sys::Relation, index: Oid, columns: [usize; 2]) -> Option<Oid> {
    // SAFETY: reads the index's descriptor while it is open.
    unsafe {
        let opened = pg_sys::index_open(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let about = &*(*opened).rd_index;
        let numbers = about.indkey.values.as_ptr();
        let fits = about.indrelid == (*relation).rd_id
            && about.indisvalid
            && about.indnkeyatts >= 2
            && *(*opened).rd_indcollation == pg_sys::C_COLLATION_OID
            && (*(*opened).rd_rel).relam == pg_sys::BTREE_AM_OID
            && (0..2).all(|i| *numbers.add(i) == (*attribute((*relation).rd_att, columns[i])).attnum);
        pg_sys::index_close(opened, pg_sys::NoLock as pg_sys::LOCKMODE);
        fits.then_some(index)
    }
}

/// The index of the primary key.
///
/// # Safety
/// The relation is open.
unsafe fn primary_key(relation: pg_sys::Relation) -> Oid {
    // SAFETY: by contract.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::RelationGetPrimaryKeyIndex(relation);
        #[cfg(feature = "pg18")]
        return pg_sys::RelationGetPrimaryKeyIndex(relation, false);
    }
}

unsafe fn begin_scan(
    relation: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: all three are open and registered by the caller.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::index_beginscan(relation, index, snapshot, keys, 0);
        #[cfg(feature = "pg18")]
        return pg_sys::index_beginscan(relation, index, snapshot, std::ptr::null_mut(), keys, 0);
    }
}
