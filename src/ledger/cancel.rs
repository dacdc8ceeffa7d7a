//! Withdrawing a command before anything can have been sent.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::approve::{self, actor, checked_note};
use super::batch::{Batch, Change};
use super::receipt::{self, Outcome};
use super::{catalog, command, fence, settle};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::Connection;
use crate::relay::wake;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::json::Json;
use command_ledger_domain::status::Event;
use pgrx::pg_sys::Datum;

/// Who may withdraw: proposers of this type in this tenant, and operators. Not only the role that proposed it: the
/// roles of agents come and go, and a withdrawal can do no harm.
fn require_withdrawer(
    caller: &Caller,
    connection: &Connection,
    tenant: &str,
    command_type: Option<&str>,
) -> Result<(), LedgerError> {
    if caller.may(connection, Capability::Operate, tenant, command_type)? {
        return Ok(());
    }
    caller.require(connection, Capability::Propose, tenant, command_type)
}

/// The reason as the journal keeps it.
pub fn reason_detail(reason: Option<&str>) -> Option<Json<'static>> {
    reason.map(|text| Json::Object(vec![("reason".into(), Json::String(text.to_owned().into()))]))
}

/// `cancel(key, reason, tenant)`
///
/// In a ledger that is not adopted in this place, it opens a case: another place may have sent it.
/// While an attempt is in flight it is refused (CL006): what is under way cannot be called back, and its end decides.
pub fn cancel(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, reason, tenant) = (key_of(call, 0)?, call.text(1), tenant_of(call, 2)?);
    checked_note(reason, "reason")?;
    as_owner(call, |caller, connection| {
        require_withdrawer(caller, connection, tenant, None)?;
        let mut command = command::lock_existing(connection, tenant, key)?;
        require_withdrawer(caller, connection, tenant, Some(&command.command_type))?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        fence::mark_sent_elsewhere(connection, &mut command)?;
        let now_us = datum::now_us();
        let (approval, _) = approve::approval_state(connection, &operation, &command, now_us)?;
        let mut change = Change {
            detail: reason_detail(reason),
            message: Some(
                reason.map_or_else(|| "cancel was asked for".to_owned(), |r| format!("cancel was asked for: {r}")),
            ),
            ..Change::default()
        };
        settle::look_up_if_maybe_sent(&operation, &command, &mut change, now_us);
        let mut batch = Batch::new(now_us, actor(caller, None));
        batch.apply(&mut command, approval, &operation.destination, Event::Cancel, change)?;
        batch.flush(connection)?;
        // The next in its lane may go, or a lookup is due.
        wake::at_commit();
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

crate::sql_function!(ledger_cancel, pg_finfo_ledger_cancel, cancel);
