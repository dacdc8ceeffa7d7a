//! Labels of enum types.

use super::report::defect;
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::RefCell;
use std::ffi::{CStr, CString};

thread_local! {
    /// Labels that were looked up. The ledger's types never lose or rename one, and a type that is made anew has another
    /// oid.
    static LABELS: RefCell<Vec<(Oid, Box<str>, Datum)>> = const { RefCell::new(Vec::new()) };
}

/// More than all labels of all enum types of the ledger.
const MOST_LABELS: usize = 100;

fn remember(enum_type: Oid, label: &str, value: Datum) {
    LABELS.with_borrow_mut(|labels| {
        if labels.len() >= MOST_LABELS {
            labels.clear();
        }
        labels.push((enum_type, label.into(), value));
    });
}

/// The datum of a label of an enum type.
pub fn enum_datum(enum_type: Oid, label: &str) -> Result<Datum, LedgerError> {
    let known = LABELS.with_borrow(|labels| {
        labels.iter().find(|(of, name, _)| *of == enum_type && **name == *label).map(|(_, _, value)| *value)
    });
    if let Some(value) = known {
        return Ok(value);
    }
    let value = look_up(enum_type, label)?;
    remember(enum_type, label, value);
    Ok(value)
}

fn look_up(enum_type: Oid, label: &str) -> Result<Datum, LedgerError> {
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
    let known = LABELS
        .with_borrow(|labels| labels.iter().find(|(_, _, known)| *known == value).map(|(_, name, _)| name.to_string()));
    known.or_else(|| read_label(value))
}

fn read_label(value: Datum) -> Option<String> {
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
