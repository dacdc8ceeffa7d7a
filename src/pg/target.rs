//! Index entries of rows that are written without a plan (see [`super::table`]): the server's own functions write them;
//! indexes in which a row has no entry are not even opened.

use super::watch;
use pgrx::pg_sys::{self, Oid};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Whether a column of a row is NULL.
#[derive(Clone, Copy)]
pub(super) struct Nullness {
    pub column: usize,
    pub null: bool,
}

/// An index of a table.
struct Index {
    id: Oid,
    /// What a row must be like to be in it (`WHERE column IS [NOT] NULL`); none: the server decides.
    only: Option<Nullness>,
}

/// The indexes of each table, good in one generation: who makes or drops one tells all sessions.
type Known = HashMap<Oid, (u64, Rc<[Index]>)>;

thread_local! {
    static INDEXES: RefCell<Known> = RefCell::default();
}

/// # Safety
/// The relation is open, locked, and watched.
unsafe fn indexes(relation: pg_sys::Relation) -> Rc<[Index]> {
    // SAFETY: by contract.
    let (table, now) = (unsafe { (*relation).rd_id }, watch::now());
    let known = INDEXES.with_borrow(|indexes| {
        indexes.get(&table).filter(|(generation, _)| *generation == now).map(|(_, known)| Rc::clone(known))
    });
    known.unwrap_or_else(|| {
        // SAFETY: by contract.
        let read: Rc<[Index]> = unsafe { read_indexes(relation) }.into();
        INDEXES.with_borrow_mut(|indexes| {
            indexes.retain(|_, (generation, _)| *generation == now);
            indexes.insert(table, (now, Rc::clone(&read)));
        });
        read
    })
}

unsafe fn read_indexes(relation: pg_sys::Relation) -> Vec<Index> {
    // SAFETY: the list and the predicates are copies; each index is closed again.
    unsafe {
        let list = pg_sys::RelationGetIndexList(relation);
        let count = if list.is_null() { 0 } else { usize::try_from((*list).length).unwrap_or(0) };
        let read = |n: usize| {
            let id = (*(*list).elements.add(n)).oid_value;
            let index = pg_sys::index_open(id, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let only = nullness(pg_sys::RelationGetIndexPredicate(index));
            pg_sys::index_close(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            Index { id, only }
        };
        (0..count).map(read).collect()
    }
}

/// A predicate that says nothing but whether a column is NULL.
unsafe fn nullness(predicate: *mut pg_sys::List) -> Option<Nullness> {
    // SAFETY: a list of expression nodes; each node is what its tag says.
    unsafe {
        if predicate.is_null() || (*predicate).length != 1 {
            return None;
        }
        let node = (*(*predicate).elements).ptr_value.cast::<pg_sys::Node>();
        if (*node).type_ != pg_sys::NodeTag::T_NullTest {
            return None;
        }
        let test = node.cast::<pg_sys::NullTest>();
        if (*(*test).arg).type_ != pg_sys::NodeTag::T_Var {
            return None;
        }
        let column = usize::try_from((*(*test).arg.cast::<pg_sys::Var>()).varattno).ok()?.checked_sub(1)?;
        Some(Nullness { column, null: (*test).nulltesttype == pg_sys::NullTestType::IS_NULL })
    }
}

/// Which index entries are written.
pub(super) enum Entries<'a> {
    OfInsert,
    /// A duplicate is reported here instead of raised.
    Speculative(&'a mut bool),
    OfUpdate {
        only_summarizing: bool,
    },
}

/// A table with its indexes open, as the server's functions for index entries want it.
pub(super) struct Target {
    info: *mut pg_sys::ResultRelInfo,
    state: *mut pg_sys::EState,
}

impl Target {
    /// For rows of which `any` says whether one of them is like this.
    ///
    /// # Safety
    /// The relation is open for writing, and one that [`super::table::Table`] has looked at.
    pub unsafe fn open(relation: pg_sys::Relation, speculative: bool, any: impl Fn(Nullness) -> bool) -> Self {
        // SAFETY: as ExecOpenIndices does it. All of it is released by `close`, and by an abort in any case.
        unsafe {
            let state = pg_sys::CreateExecutorState();
            let info = pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, relation, 0, std::ptr::null_mut(), 0);
            let known = indexes(relation);
            let wanted = || known.iter().filter(|index| index.only.is_none_or(&any));
            let count = wanted().count();
            (*info).ri_IndexRelationDescs = pg_sys::palloc0(count * size_of::<pg_sys::Relation>()).cast();
            (*info).ri_IndexRelationInfo = pg_sys::palloc0(count * size_of::<*mut pg_sys::IndexInfo>()).cast();
            (*info).ri_NumIndices = i32::try_from(count).unwrap_or(0);
            for (n, index) in wanted().enumerate() {
                let opened = pg_sys::index_open(index.id, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
                let about = pg_sys::BuildIndexInfo(opened);
                if speculative && (*about).ii_Unique && !(*(*opened).rd_index).indisexclusion {
                    pg_sys::BuildSpeculativeIndexInfo(opened, about);
                }
                *(*info).ri_IndexRelationDescs.add(n) = opened;
                *(*info).ri_IndexRelationInfo.add(n) = about;
            }
            Self { info, state }
        }
    }

    /// Closes the indexes. The entries are visible with the next command.
    ///
    /// # Safety
    /// The relation is still open.
    pub unsafe fn close(self) {
        // SAFETY: opened by `open`.
        unsafe {
            pg_sys::ExecCloseIndices(self.info);
            pg_sys::FreeExecutorState(self.state);
        }
    }

    /// Writes the entries of a row.
    ///
    /// # Safety
    /// The slot holds the tuple that was just written to this table.
    pub unsafe fn insert_index_tuples(&self, slot: *mut pg_sys::TupleTableSlot, entries: Entries) {
        let (none, nowhere) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (update, speculative, conflict, only_summarizing) = match entries {
            Entries::OfInsert => (false, false, nowhere, false),
            Entries::Speculative(conflict) => (false, true, std::ptr::from_mut(conflict), false),
            Entries::OfUpdate { only_summarizing } => (true, false, nowhere, only_summarizing),
        };
        // SAFETY: the indexes are open, the slot is by contract.
        unsafe {
            #[cfg(feature = "pg15")]
            {
                let _ = only_summarizing;
                pg_sys::ExecInsertIndexTuples(self.info, slot, self.state, update, speculative, conflict, none);
            }
            #[cfg(not(feature = "pg15"))]
            pg_sys::ExecInsertIndexTuples(
                self.info,
                slot,
                self.state,
                update,
                speculative,
                conflict,
                none,
                only_summarizing,
            );
        }
    }

    /// Whether no other row has the unique keys of this one; waits for sessions that are about to decide it.
    ///
    /// # Safety
    /// The slot holds a tuple of this table that is not in it.
    pub unsafe fn is_free(&self, slot: *mut pg_sys::TupleTableSlot) -> bool {
        let (mut place, none) = (pg_sys::ItemPointerData::default(), std::ptr::null_mut());
        // SAFETY: as above.
        unsafe {
            #[cfg(not(feature = "pg18"))]
            return pg_sys::ExecCheckIndexConstraints(self.info, slot, self.state, &mut place, none);
            #[cfg(feature = "pg18")]
            {
                // No row of its own yet: an invalid pointer.
                let nowhere = pg_sys::BlockIdData { bi_hi: u16::MAX, bi_lo: u16::MAX };
                let mut own = pg_sys::ItemPointerData { ip_blkid: nowhere, ip_posid: 0 };
                pg_sys::ExecCheckIndexConstraints(self.info, slot, self.state, &mut place, &mut own, none)
            }
        }
    }
}
