//! Rows of a command, written. Whoever updates or deletes one holds it.

use super::{C, COMMAND, COMMAND_TABLE, E, EVENT, EVENT_TABLE, O, OUTBOX, OUTBOX_TABLE, text};
use crate::ledger::command::{Command, Queued};
use crate::ledger::journal;
use crate::ledger::register::NewRow;
use crate::ledger::rows::AtRest;
use crate::pg::datum;
use crate::pg::spi::Row;
use crate::pg::table::{Inserted, Table};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::status::Status;
use pgrx::pg_sys::Datum;

/// Inserts the record of a new command, unless its key is taken.
pub fn insert_command(new: &NewRow) -> Option<Result<Inserted, LedgerError>> {
    let table = Table::open(COMMAND_TABLE, COMMAND)?;
    let done = (|| {
        let mut row = vec![None; COMMAND.len()];
        let mut set = |column: C, value: Option<Datum>| row[column as usize] = value;
        set(C::tenant, text(new.tenant));
        set(C::idempotency_key, text(new.key));
        set(C::registered_at, Some(datum::time(new.now_us)));
        set(C::updated_at, Some(datum::time(new.now_us)));
        set(C::not_before, new.not_before_us.map(datum::time));
        set(C::deadline, new.deadline.at_us.map(datum::time));
        set(C::deadline_relative, Some(Datum::from(new.deadline.relative)));
        set(C::lookalike_until, new.lookalike_until_us.map(datum::time));
        set(C::retain_ms, new.retain_ms.map(Datum::from));
        set(C::status, Some(table.enum_datum(C::status as usize, new.status.as_str())?));
        set(C::type_version, Some(Datum::from(new.type_version)));
        for zero in [C::attempt, C::counted_attempts, C::journal_seq] {
            set(zero, Some(Datum::from(0i32)));
        }
        set(C::maybe_sent, Some(Datum::from(false)));
        set(C::hash_version, Some(Datum::from(new.hash_version)));
        set(C::approvals_required, Some(Datum::from(new.approvals_required)));
        set(C::command_type, text(new.command_type));
        set(C::params_hash, Some(datum::bytea(new.params_hash)));
        set(C::intent_hash, Some(datum::bytea(new.intent_hash)));
        set(C::journal_head, Some(datum::bytea(new.head)));
        set(C::proposer, text(new.proposer));
        set(C::params, Some(new.params));
        set(C::run_id, new.run_id.and_then(text));
        set(C::step_id, new.step_id.and_then(text));
        set(C::workflow_version, new.workflow_version.and_then(text));
        set(C::ordering_key, new.ordering_key.and_then(text));
        set(C::refs, new.refs);
        set(C::proposal, new.proposal);
        table.insert_unless_taken(&row)
    })();
    table.close();
    Some(done)
}

/// What the outbox row of a command holds now, over what it held.
fn outbox_row(
    table: &Table,
    command: &Command,
    queued: &Queued,
    mut row: Vec<Option<Datum>>,
) -> Result<Vec<Option<Datum>>, LedgerError> {
    let (live, lease) = (&command.live, queued.lease.as_ref());
    let mut set = |column: O, value: Option<Datum>| row[column as usize] = value;
    set(O::due_at, Some(datum::time(queued.due_us)));
    set(O::deadline, command.deadline_us.map(datum::time));
    set(O::approved_until, queued.approved_until_us.map(datum::time));
    set(O::lease_expires_at, lease.map(|l| datum::time(l.expires_us)));
    set(O::first_sent_at, live.first_sent_us.map(datum::time));
    set(O::ledger_identity, Some(Datum::from(queued.identity)));
    set(O::relay_epoch, lease.and_then(|l| l.epoch).map(Datum::from));
    set(O::attempt, Some(Datum::from(live.attempt)));
    set(O::counted_attempts, Some(Datum::from(live.counted)));
    set(O::journal_seq, Some(Datum::from(live.seq)));
    set(O::error, live.error.map(|e| table.enum_datum(O::error as usize, e.as_str())).transpose()?);
    set(O::maybe_sent, Some(Datum::from(live.maybe_sent)));
    set(O::lease_token, lease.map(|l| datum::uuid(&l.token)));
    set(O::journal_head, Some(datum::bytea(&live.head)));
    set(O::request_digest, live.request_digest.map(|d| datum::bytea(&d)));
    set(O::worker, lease.and_then(|l| l.worker.as_deref()).and_then(text));
    set(O::error_message, live.error_message.as_deref().and_then(text));
    set(O::open_case, live.open_case.and_then(|c| text(c.as_str())));
    set(O::success_kept, Some(Datum::from(live.success_kept)));
    set(O::absence_place, queued.absence_place.map(Datum::from));
    set(O::kept_record_id, queued.kept_record_id.as_deref().and_then(text));
    Ok(row)
}

/// Puts a command into the outbox.
pub fn insert_queued(command: &Command, queued: &Queued, destination: &str) -> Option<Result<(), LedgerError>> {
    let table = Table::open(OUTBOX_TABLE, OUTBOX)?;
    let mut row = vec![None; OUTBOX.len()];
    row[O::tenant as usize] = text(&command.tenant);
    row[O::idempotency_key as usize] = text(&command.key);
    row[O::destination as usize] = text(destination);
    row[O::ordering_key as usize] = command.ordering_key.as_deref().and_then(text);
    let done = outbox_row(&table, command, queued, row).and_then(|row| table.insert(&[row]));
    table.close();
    Some(done)
}

/// Writes the outbox rows of commands that this transaction holds.
pub fn update_queued(commands: &[Command]) -> Option<Result<(), LedgerError>> {
    let held: Option<Vec<_>> =
        commands.iter().map(|c| Some((c, c.queued.as_ref()?, c.held_rows.queued.as_ref()?))).collect();
    let held = held?;
    let table = Table::open(OUTBOX_TABLE, OUTBOX)?;
    let rows = held
        .into_iter()
        .map(|(command, queued, old)| Ok((&**old, outbox_row(&table, command, queued, old.columns())?)));
    let done = rows.collect::<Result<Vec<_>, _>>().and_then(|rows| table.update(&rows));
    table.close();
    Some(done)
}

/// Takes commands out of the outbox whose rows this transaction holds.
pub fn delete_queued(rows: &[&Row]) -> Option<Result<(), LedgerError>> {
    let table = Table::open(OUTBOX_TABLE, OUTBOX)?;
    let done = table.delete(rows);
    table.close();
    Some(done)
}

/// Writes the records of commands at rest that this transaction holds.
pub fn write_at_rest(rows: &[AtRest]) -> Option<Result<(), LedgerError>> {
    let held: Option<Vec<_>> = rows.iter().map(|row| Some((row, row.command.held_rows.record.as_ref()?))).collect();
    let held = held?;
    let table = Table::open(COMMAND_TABLE, COMMAND)?;
    let written = held.into_iter().map(|(at_rest, old)| {
        let (command, live) = (&at_rest.command, &at_rest.command.live);
        let mut row = old.columns();
        let was_confirmed = old.label(C::status as usize).as_deref() == Some(Status::Confirmed.as_str());
        let had_record_id = row[C::destination_record_id as usize].is_some();
        let mut set = |column: C, value: Option<Datum>| row[column as usize] = value;
        set(C::status, Some(table.enum_datum(C::status as usize, live.status.as_str())?));
        set(C::maybe_sent, Some(Datum::from(live.maybe_sent)));
        set(C::attempt, Some(Datum::from(live.attempt)));
        set(C::counted_attempts, Some(Datum::from(live.counted)));
        set(C::journal_seq, Some(Datum::from(live.seq)));
        set(C::journal_head, Some(datum::bytea(&live.head)));
        set(C::request_digest, live.request_digest.map(|d| datum::bytea(&d)));
        set(C::first_sent_at, live.first_sent_us.map(datum::time));
        set(C::error, live.error.map(|e| table.enum_datum(C::error as usize, e.as_str())).transpose()?);
        set(C::error_message, live.error_message.as_deref().and_then(text));
        set(C::open_case, live.open_case.and_then(|c| text(c.as_str())));
        set(C::updated_at, Some(datum::time(command.updated_us)));
        set(C::deadline, command.deadline_us.map(datum::time));
        set(C::deadline_relative, Some(Datum::from(command.deadline_relative)));
        set(C::retain_until, at_rest.retain_until_us().map(datum::time));
        if !had_record_id {
            set(C::destination_record_id, at_rest.record_id.as_deref().and_then(text));
        }
        // A confirmation brings its own result, or none; anything else leaves what is there.
        if at_rest.result.is_some() || live.status == Status::Confirmed && !was_confirmed {
            set(C::result, at_rest.result.map(|result| result.datum()));
        }
        Ok((&**old, row))
    });
    let done = written.collect::<Result<Vec<_>, LedgerError>>().and_then(|rows| table.update(&rows));
    table.close();
    Some(done)
}

/// Appends journal entries.
pub fn insert_events(rows: &[journal::Row]) -> Option<Result<(), LedgerError>> {
    let table = Table::open(EVENT_TABLE, EVENT)?;
    let entry = |r: &journal::Row| -> Result<Vec<Option<Datum>>, LedgerError> {
        let mut row = vec![None; EVENT.len()];
        let mut set = |column: E, value: Option<Datum>| row[column as usize] = value;
        set(E::tenant, text(&r.tenant));
        set(E::idempotency_key, text(&r.key));
        set(E::seq, Some(Datum::from(r.seq)));
        set(E::attempt, Some(Datum::from(r.attempt)));
        set(E::at, Some(datum::time(r.at_us)));
        set(E::from_status, Some(table.enum_datum(E::from_status as usize, r.from.as_str())?));
        set(E::to_status, Some(table.enum_datum(E::to_status as usize, r.to.as_str())?));
        set(E::kind, text(r.kind));
        set(E::actor, text(&r.actor));
        set(E::stated_actor, r.stated.as_deref().and_then(text));
        set(E::hash, Some(datum::bytea(&r.hash)));
        set(E::detail, r.detail.as_deref().map(datum::jsonb));
        Ok(row)
    };
    let done = rows.iter().map(entry).collect::<Result<Vec<_>, _>>().and_then(|rows| table.insert(&rows));
    table.close();
    Some(done)
}
