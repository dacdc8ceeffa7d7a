//! The receipt that every function answers.

use super::approve;
use super::command::Command;
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::Connection;
use crate::pg::tuple::{Field, RowSet, RowType};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::status::Status;
use pgrx::pg_sys::Datum;

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Replayed,
    Changed,
    Unchanged,
    Late,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Replayed => "replayed",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Late => "late",
        }
    }
}

const STATUS_COLUMN: usize = 5;
const ERROR_COLUMN: usize = 19;

/// The receipt's columns, in the order of the type.
fn fields(
    row: &RowType,
    command: &Command,
    destination: &str,
    outcome: Option<Outcome>,
    approvals_missing: i32,
) -> Result<[Field; 23], LedgerError> {
    let live = &command.live;
    let text = |t: &str| Some(datum::text(t));
    let retry_at_us = (live.status == Status::Approved && live.attempt > 0)
        .then(|| command.queued.as_ref().map(|q| q.due_us))
        .flatten();
    Ok([
        Some(datum::uuid(&command.id())),
        text(&command.tenant),
        text(&command.key),
        text(&command.command_type),
        Some(Datum::from(command.type_version)),
        Some(row.enum_label(STATUS_COLUMN, live.status.as_str())?),
        outcome.map(|o| datum::text(o.as_str())),
        text(destination),
        text(&command.destination_key()),
        command.record_id.as_deref().map(datum::text),
        command.result,
        Some(datum::bytea(&command.params_hash)),
        Some(datum::bytea(&command.intent_hash)),
        Some(Datum::from(live.attempt)),
        Some(Datum::from(live.maybe_sent)),
        Some(Datum::from(live.status == Status::NeedsReconciliation || live.open_case.is_some())),
        Some(Datum::from(approvals_missing)),
        retry_at_us.map(datum::time),
        command.deadline_us.map(datum::time),
        live.error.map(|e| row.enum_label(ERROR_COLUMN, e.as_str())).transpose()?,
        live.error_message.as_deref().map(datum::text),
        Some(datum::time(command.registered_us)),
        Some(datum::time(command.updated_us)),
    ])
}

/// Whether the receipts of two commands say the same (of the result: that there is one).
pub fn same(one: &Command, other: &Command) -> bool {
    let of = |c: &Command| {
        let (live, queued) = (&c.live, c.queued.is_some());
        let state =
            (live.status, live.attempt, live.maybe_sent, live.open_case, live.error, live.error_message.clone());
        let content = (c.record_id.clone(), c.result.is_some(), c.params_hash, c.intent_hash, c.deadline_us);
        (state, content, c.updated_us, queued)
    };
    of(one) == of(other)
}

/// The receipt as the result of a function that answers one.
pub fn one(
    call: &Call,
    connection: &Connection,
    command: &Command,
    destination: &str,
    outcome: Outcome,
) -> Result<Option<Datum>, LedgerError> {
    let missing = approve::missing(connection, command)?;
    connection.for_caller(|| {
        let row = RowType::of(call)?;
        row.datum(&fields(&row, command, destination, Some(outcome), missing)?).map(Some)
    })
}

/// The receipt as a value of its row type, for a result that holds more.
pub fn datum_of(
    row: &RowType,
    command: &Command,
    destination: &str,
    outcome: Outcome,
    approvals_missing: i32,
) -> Result<Datum, LedgerError> {
    row.datum(&fields(row, command, destination, Some(outcome), approvals_missing)?)
}

/// Adds a receipt to a set.
pub fn push(
    connection: &Connection,
    set: &RowSet,
    command: &Command,
    destination: &str,
    outcome: Option<Outcome>,
) -> Result<(), LedgerError> {
    let missing = approve::missing(connection, command)?;
    let row = set.row_type();
    set.push(&fields(row, command, destination, outcome, missing)?)
}
