//! Rows as statements and tables give them.

use super::datum;
use super::enums::enum_label;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::json::Json;
use pgrx::pg_sys::{self, Datum, Oid};

/// The rows of the statement that ran last on the open connection.
pub fn last_rows() -> Rows {
    // SAFETY: SPI's result variables belong to the statement that just ran.
    unsafe { Rows { table: pg_sys::SPI_tuptable, count: pg_sys::SPI_processed as usize } }
}

/// The rows of one statement.
pub struct Rows {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
}

impl Rows {
    /// How many rows were returned or touched.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> Option<Row> {
        if i >= self.count || self.table.is_null() {
            return None;
        }
        // SAFETY: the table of the connection holds `count` tuples until it is finished.
        unsafe { Some(Row::of(*(*self.table).vals.add(i), (*self.table).tupdesc)) }
    }

    /// Gives their memory back before the connection does.
    pub fn free(self) {
        if !self.table.is_null() {
            // SAFETY: a table of the open connection, which nobody reads any more.
            unsafe { pg_sys::SPI_freetuptable(self.table) };
        }
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = Row> + '_ {
        (0..self.count).filter_map(|i| self.row(i))
    }
}

/// One row; columns count from 0. What a column refers to is valid while the connection (or the table) is open.
#[derive(Clone)]
pub struct Row {
    values: Vec<Datum>,
    nulls: Vec<bool>,
    place: pg_sys::ItemPointerData,
}

impl Row {
    /// Reads all columns of a tuple.
    ///
    /// # Safety
    /// The tuple has this descriptor, and outlives what is read through the row.
    pub(super) unsafe fn of(tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc) -> Self {
        // SAFETY: by contract; the arrays have an entry for every column.
        unsafe {
            let columns = usize::try_from((*descriptor).natts).unwrap_or(0);
            let (mut values, mut nulls) = (vec![Datum::from(0); columns], vec![true; columns]);
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Self { values, nulls, place: (*tuple).t_self }
        }
    }

    /// Where the tuple stands in its table.
    pub fn place(&self) -> pg_sys::ItemPointerData {
        self.place
    }

    /// All columns, to be changed and written back.
    pub fn columns(&self) -> Vec<Option<Datum>> {
        self.values.iter().zip(&self.nulls).map(|(value, null)| (!null).then_some(*value)).collect()
    }

    /// The raw datum; an unknown column reads as NULL.
    pub fn datum(&self, column: usize) -> Option<Datum> {
        if self.nulls.get(column).copied().unwrap_or(true) { None } else { self.values.get(column).copied() }
    }

    /// The label of an enum column.
    pub fn label(&self, column: usize) -> Option<String> {
        self.datum(column).and_then(enum_label)
    }

    /// A text column.
    pub fn text(&self, column: usize) -> Option<String> {
        // SAFETY: the statement selects text here.
        self.datum(column).map(|d| unsafe { datum::text_str(d) }.to_owned())
    }

    /// A text column that is never NULL.
    pub fn text_or_empty(&self, column: usize) -> String {
        self.text(column).unwrap_or_default()
    }

    /// An int4 column.
    pub fn int(&self, column: usize) -> Option<i32> {
        self.datum(column).map(|d| d.value() as i32)
    }

    /// An int8 column.
    pub fn big(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|d| d.value() as i64)
    }

    /// A bool column, false when NULL.
    pub fn bool(&self, column: usize) -> bool {
        self.datum(column).is_some_and(|d| d.value() as u8 != 0)
    }

    /// A timestamptz column in Unix microseconds.
    pub fn time(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|d| datum::from_pg_time(d.value() as i64))
    }

    /// A bytea column.
    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        // SAFETY: the statement selects bytea here.
        self.datum(column).map(|d| unsafe { datum::varlena_bytes(d) }.to_vec())
    }

    /// A 32-byte bytea column.
    pub fn hash(&self, column: usize) -> Option<[u8; 32]> {
        self.bytes(column).and_then(|b| b.try_into().ok())
    }

    /// A uuid column.
    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        // SAFETY: the statement selects uuid here.
        self.datum(column).map(|d| unsafe { datum::uuid_bytes(d) })
    }

    /// An oid column.
    pub fn oid(&self, column: usize) -> Option<Oid> {
        self.datum(column).map(|d| Oid::from(d.value() as u32))
    }

    /// A text[] column; NULL elements are left out.
    pub fn texts(&self, column: usize) -> Option<Vec<String>> {
        // SAFETY: the statement selects text[] here.
        let elements = unsafe { datum::text_elements(self.datum(column)?) };
        Some(elements.into_iter().flatten().map(str::to_owned).collect())
    }

    /// A jsonb column as an owned tree.
    pub fn json(&self, column: usize) -> Result<Option<Json<'static>>, LedgerError> {
        match self.datum(column) {
            None => Ok(None),
            // SAFETY: the statement selects jsonb here; the tree is made independent of the row.
            Some(d) => unsafe { super::jsonb::JsonbArg::new(d) }.tree().map(|t| Some(t.into_owned())),
        }
    }
}
