//! Composite results: one `heap_form_tuple` over the descriptor the caller expects.

use super::call::Call;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum};

use super::enums::enum_datum;
use super::report::defect;

/// One column of a composite result.
pub type Field = Option<Datum>;

/// The type of a column.
///
/// # Safety
/// The descriptor is valid and has this column.
unsafe fn column_type(descriptor: pg_sys::TupleDesc, column: usize) -> pg_sys::Oid {
    // SAFETY: SPI_gettypeid reads one attribute of the descriptor; columns count from 1 there.
    unsafe { pg_sys::SPI_gettypeid(descriptor, i32::try_from(column).unwrap_or(0) + 1) }
}

/// The row type that a function returns.
pub struct RowType {
    descriptor: pg_sys::TupleDesc,
}

impl RowType {
    /// The row type of this call's result.
    pub fn of(call: &Call) -> Result<Self, LedgerError> {
        let mut descriptor: pg_sys::TupleDesc = std::ptr::null_mut();
        // SAFETY: fcinfo is the running call's; the descriptor stays valid for the call.
        let class = unsafe { pg_sys::get_call_result_type(call.fcinfo(), std::ptr::null_mut(), &mut descriptor) };
        if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE || descriptor.is_null() {
            return Err(defect("the function was called where no row can be returned"));
        }
        // SAFETY: as above; blessing registers the row type so that the datum can be read elsewhere.
        let descriptor = unsafe { pg_sys::BlessTupleDesc(descriptor) };
        Ok(Self { descriptor })
    }

    /// The row type of a composite column.
    pub fn of_column(row: &Self, column: usize) -> Result<Self, LedgerError> {
        // SAFETY: the attribute is read from a valid descriptor; the looked-up descriptor is copied before its
        // reference is released.
        unsafe {
            let found = pg_sys::lookup_rowtype_tupdesc_copy(column_type(row.descriptor, column), -1);
            Ok(Self { descriptor: pg_sys::BlessTupleDesc(found) })
        }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        // SAFETY: the descriptor is valid.
        usize::try_from(unsafe { (*self.descriptor).natts }).unwrap_or(0)
    }

    /// The datum of a label of the enum type that stands in this column.
    pub fn enum_label(&self, column: usize, label: &str) -> Result<Datum, LedgerError> {
        // SAFETY: the column exists.
        enum_datum(unsafe { column_type(self.descriptor, column) }, label)
    }

    fn form(&self, fields: &[Field]) -> Result<pg_sys::HeapTuple, LedgerError> {
        if fields.len() != self.columns() {
            return Err(defect(format!("{} fields for a row of {}", fields.len(), self.columns())));
        }
        let mut values: Vec<Datum> = fields.iter().map(|f| f.unwrap_or(Datum::from(0))).collect();
        let mut nulls: Vec<bool> = fields.iter().map(Option::is_none).collect();
        // SAFETY: both arrays have as many entries as the descriptor has columns.
        Ok(unsafe { pg_sys::heap_form_tuple(self.descriptor, values.as_mut_ptr(), nulls.as_mut_ptr()) })
    }

    /// One row as a composite datum.
    pub fn datum(&self, fields: &[Field]) -> Result<Datum, LedgerError> {
        let tuple = self.form(fields)?;
        // SAFETY: a freshly formed tuple.
        Ok(unsafe { pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data) })
    }
}

/// A set of rows, returned as a whole (the materialize mode).
pub struct RowSet {
    store: *mut pg_sys::Tuplestorestate,
    row: RowType,
}

impl RowSet {
    /// Starts the result set of this call.
    pub fn start(call: &Call) -> Result<Self, LedgerError> {
        let row = RowType::of(call)?;
        // SAFETY: resultinfo is checked to be a ReturnSetInfo that allows materialize mode before it is used; the
        // store lives in the query's memory, as the executor wants it.
        unsafe {
            let info = (*call.fcinfo()).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            if info.is_null()
                || (*info).type_ != pg_sys::NodeTag::T_ReturnSetInfo
                || (*info).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize as i32 == 0
            {
                return Err(defect("the function was called where no set can be returned"));
            }
            let previous = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let descriptor = pg_sys::CreateTupleDescCopy(row.descriptor);
            let store = pg_sys::tuplestore_begin_heap(true, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(previous);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            (*info).setDesc = descriptor;
            Ok(Self { store, row })
        }
    }

    /// The row type, for enum labels.
    pub fn row_type(&self) -> &RowType {
        &self.row
    }

    /// Adds a row.
    pub fn push(&self, fields: &[Field]) -> Result<(), LedgerError> {
        let tuple = self.row.form(fields)?;
        // SAFETY: the store copies the tuple.
        unsafe { pg_sys::tuplestore_puttuple(self.store, tuple) };
        Ok(())
    }
}
