//! Rows of the ledger's own tables, found and inserted without a plan. A statement of thirty columns costs more to
//! start than the row costs to write; these few are on the way of every command.
//!
//! A table is used so only while it is what the extension made: an ordinary heap with exactly these columns and no
//! trigger but the guard's. Anything else (another version's columns, a trigger somebody added, a table that was
//! distributed) gets the ordinary statement, see [`Table::open`].

use super::report::defect;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString};

/// Triggers that the extension puts on each of its tables (`sql/guard.sql`).
const GUARD_TRIGGERS: i32 = 2;

/// An opened table. It is closed by the end of the transaction at the latest.
pub struct Table {
    relation: pg_sys::Relation,
}

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    Yes,
    /// A committed row has the same primary key.
    Conflict,
}

/// One row, with every column read out.
pub struct Record {
    values: Vec<Datum>,
    nulls: Vec<bool>,
}

impl Record {
    /// A column, counted from 0.
    pub fn datum(&self, column: usize) -> Option<Datum> {
        if self.nulls.get(column).copied().unwrap_or(true) { None } else { self.values.get(column).copied() }
    }
}

impl Table {
    /// Opens a table of the ledger for reading and writing; `None` if it is not what these columns say.
    pub fn open(name: &CStr, columns: &[&str]) -> Option<Self> {
        // SAFETY: catalog lookups by name; the relation is closed here or by `close`, and by an abort in any case.
        unsafe {
            let schema = pg_sys::get_namespace_oid(c"command_ledger".as_ptr(), true);
            let id = pg_sys::get_relname_relid(name.as_ptr(), schema);
            if id == Oid::INVALID {
                return None;
            }
            let relation = pg_sys::table_open(id, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
            let table = Self { relation };
            if table.is_plain(columns) {
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
            let (class, descriptor) = (&*relation.rd_rel, relation.rd_att);
            let triggers = relation.trigdesc;
            class.relkind == pg_sys::RELKIND_RELATION as std::ffi::c_char
                && !class.relispartition
                && !class.relforcerowsecurity
                && relation.rd_tableam == pg_sys::GetHeapamTableAmRoutine()
                && relation.rd_rules.is_null()
                && (!triggers.is_null() && (*triggers).numtriggers == GUARD_TRIGGERS)
                && ((*descriptor).constr.is_null() || (*(*descriptor).constr).num_check == 0)
                && usize::try_from((*descriptor).natts) == Ok(columns.len())
                && columns.iter().enumerate().all(|(i, name)| {
                    let attribute = attribute(descriptor, i);
                    CStr::from_ptr((*attribute).attname.data.as_ptr()).to_bytes() == name.as_bytes()
                })
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

    /// Finds the row with this primary key, as it is committed now (and as this transaction changed it).
    pub fn find(&self, key: [Datum; 2]) -> Option<Record> {
        // SAFETY: the primary key of these tables is two text columns of collation C; everything that is opened here is
        // closed before the row is handed out, which is a copy.
        unsafe {
            let relation = self.relation;
            let index = pg_sys::index_open(
                pg_sys::RelationGetPrimaryKeyIndex(relation),
                pg_sys::AccessShareLock as pg_sys::LOCKMODE,
            );
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
            for (i, (entry, value)) in keys.iter_mut().zip(key).enumerate() {
                pg_sys::ScanKeyEntryInitialize(
                    entry,
                    0,
                    i as pg_sys::AttrNumber + 1,
                    pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                    Oid::INVALID,
                    Oid::from(pg_sys::C_COLLATION_OID),
                    pg_sys::F_TEXTEQ.into(),
                    value,
                );
            }
            let scan = begin_scan(relation, index, snapshot);
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), 2, std::ptr::null_mut(), 0);
            let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
            let found = pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot);
            let record = found.then(|| {
                let mut free = false;
                let tuple = pg_sys::heap_copytuple(pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut free));
                self.read(tuple)
            });
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::index_endscan(scan);
            pg_sys::UnregisterSnapshot(snapshot);
            pg_sys::index_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
            record
        }
    }

    unsafe fn read(&self, tuple: pg_sys::HeapTuple) -> Record {
        // SAFETY: the arrays have an entry for every column of the descriptor.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            let columns = usize::try_from((*descriptor).natts).unwrap_or(0);
            let mut values = vec![Datum::from(0); columns];
            let mut nulls = vec![true; columns];
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Record { values, nulls }
        }
    }

    /// Inserts a row; waits for a session that is inserting the same primary key, and says whether that one won.
    pub fn insert(&self, row: &[Option<Datum>]) -> Result<Inserted, LedgerError> {
        let mut values: Vec<Datum> = row.iter().map(|value| value.unwrap_or(Datum::from(0))).collect();
        let mut nulls: Vec<bool> = row.iter().map(Option::is_none).collect();
        // SAFETY: the row has a value for every column; executor state, indexes and slot are released before the
        // return, and by an abort in any case. The order of the calls is that of the server's own insert with
        // ON CONFLICT: the tuple is speculative until every unique index has taken it.
        unsafe {
            let relation = self.relation;
            let descriptor = (*relation).rd_att;
            if usize::try_from((*descriptor).natts) != Ok(row.len()) {
                return Err(defect(format!("{} values for a row of {}", row.len(), (*descriptor).natts)));
            }
            let tuple = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            (*tuple).t_tableOid = (*relation).rd_id;
            let slot = pg_sys::MakeSingleTupleTableSlot(descriptor, &raw const pg_sys::TTSOpsHeapTuple);
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            let state = pg_sys::CreateExecutorState();
            let target = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*target).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(target, relation, 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(target, true);
            let command = pg_sys::GetCurrentCommandId(true);
            let transaction = pg_sys::GetCurrentTransactionId();
            let inserted = loop {
                let token = pg_sys::SpeculativeInsertionLockAcquire(transaction);
                pg_sys::table_tuple_insert_speculative(relation, slot, command, 0, std::ptr::null_mut(), token);
                let mut conflict = false;
                insert_index_tuples(target, slot, state, &mut conflict);
                pg_sys::table_tuple_complete_speculative(relation, slot, token, !conflict);
                pg_sys::SpeculativeInsertionLockRelease(transaction);
                if !conflict {
                    break Inserted::Yes;
                }
                // Waits for the other session; free again if that one rolled back.
                if !no_conflict(target, slot, state) {
                    break Inserted::Conflict;
                }
            };
            pg_sys::ExecCloseIndices(target);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::FreeExecutorState(state);
            pg_sys::CommandCounterIncrement();
            Ok(inserted)
        }
    }
}

/// A column's description.
///
/// # Safety
/// The descriptor has this column.
unsafe fn attribute(descriptor: pg_sys::TupleDesc, column: usize) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: by contract.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return (*descriptor).attrs.as_ptr().add(column);
        #[cfg(feature = "pg18")]
        return pg_sys::TupleDescAttr(descriptor, i32::try_from(column).unwrap_or(0));
    }
}

/// The datum of a label of an enum type.
pub fn enum_datum(enum_type: Oid, label: &str) -> Result<Datum, LedgerError> {
    let name = CString::new(label).map_err(|_| defect("an enum label with NUL"))?;
    // SAFETY: the lookup copies nothing out but an oid.
    let oid = unsafe {
        pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::ENUMTYPOIDNAME as i32,
            pg_sys::Anum_pg_enum_oid as pg_sys::AttrNumber,
            Datum::from(enum_type),
            Datum::from(name.as_ptr()),
            Datum::from(0),
            Datum::from(0),
        )
    };
    if oid == pg_sys::InvalidOid { Err(defect(format!("no enum label {label}"))) } else { Ok(Datum::from(oid)) }
}

/// The label of an enum datum.
pub fn enum_label(value: Datum) -> Option<String> {
    // SAFETY: the tuple is read before it is released; enumlabel is a fixed column of pg_enum.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::ENUMOID as i32, value);
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_enum>();
        let label = CStr::from_ptr((*form).enumlabel.data.as_ptr()).to_string_lossy().into_owned();
        pg_sys::ReleaseSysCache(tuple);
        Some(label)
    }
}

unsafe fn begin_scan(
    relation: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::IndexScanDesc {
    // SAFETY: all three are open and registered by the caller.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::index_beginscan(relation, index, snapshot, 2, 0);
        #[cfg(feature = "pg18")]
        return pg_sys::index_beginscan(relation, index, snapshot, std::ptr::null_mut(), 2, 0);
    }
}

unsafe fn insert_index_tuples(
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
    conflict: &mut bool,
) {
    let none = std::ptr::null_mut();
    // SAFETY: the indexes of `target` are open, the slot holds the tuple that was just inserted.
    unsafe {
        #[cfg(feature = "pg15")]
        pg_sys::ExecInsertIndexTuples(target, slot, state, false, true, conflict, none);
        #[cfg(not(feature = "pg15"))]
        pg_sys::ExecInsertIndexTuples(target, slot, state, false, true, conflict, none, false);
    }
}

unsafe fn no_conflict(
    target: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    state: *mut pg_sys::EState,
) -> bool {
    let (mut place, none) = (pg_sys::ItemPointerData::default(), std::ptr::null_mut());
    // SAFETY: as above.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::ExecCheckIndexConstraints(target, slot, state, &mut place, none);
        #[cfg(feature = "pg18")]
        {
            let mut own = pg_sys::ItemPointerData::default();
            own.ip_blkid = pg_sys::BlockIdData { bi_hi: u16::MAX, bi_lo: u16::MAX };
            return pg_sys::ExecCheckIndexConstraints(target, slot, state, &mut place, &mut own, none);
        }
    }
}
