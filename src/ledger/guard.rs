//! The triggers' functions: a row passes only while one of the ledger's own statements writes it.

use super::access::as_owner;
use super::fence;
use crate::pg::call::Call;
use crate::pg::guard::is_open;
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys::{self, Datum};

/// `write_is_guarded()`, for the WHEN clause.
pub fn write_is_guarded(_call: &Call) -> Result<Option<Datum>, LedgerError> {
    Ok(Some(Datum::from(is_open())))
}

/// `refuse_direct_write()`: what comes here was not written by the ledger. While the ledger is unadopted (a restore is
/// running) plain inserts are let through, except into the fence itself.
pub fn refuse_direct_write(call: &Call) -> Result<Option<Datum>, LedgerError> {
    // SAFETY: the context of a trigger call is a TriggerData; the tag is checked before it is used as one.
    let (insert, table, row) = unsafe {
        let context = (*call.fcinfo()).context.cast::<pg_sys::TriggerData>();
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            return Err(LedgerError::new(Code::NotSupported, "this function is a trigger"));
        }
        let event = (*context).tg_event;
        let insert = event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_INSERT;
        let name = std::ffi::CStr::from_ptr((*(*(*context).tg_relation).rd_rel).relname.data.as_ptr());
        (insert, name.to_string_lossy().into_owned(), (*context).tg_trigtuple)
    };
    if insert && table != "relay_fence" && as_owner(call, |_, connection| fence::recorded(connection))?.is_none() {
        return Ok(Some(Datum::from(row)));
    }
    Err(LedgerError::new(
        Code::IllegalTransition,
        format!("the table command_ledger.{table} is written by the ledger's functions only"),
    )
    .detail("Direct INSERT, UPDATE, DELETE and TRUNCATE are refused, for the table's owner too.")
    .hint("Use the functions: register, cancel, reconcile, redact, purge, define_destination, grant_access and so on."))
}

crate::sql_function!(ledger_write_is_guarded, pg_finfo_ledger_write_is_guarded, write_is_guarded);
crate::sql_function!(ledger_refuse_direct_write, pg_finfo_ledger_refuse_direct_write, refuse_direct_write);
