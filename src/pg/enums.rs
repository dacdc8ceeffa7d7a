//! Labels of enum types.

use super::report::defect;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString};

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
