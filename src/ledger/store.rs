//! The rows of a command as arrays of columns, for the few reads and inserts that are on the way of every command and
//! go without a plan (see [`crate::pg::table`]). Each says `None` where the tables are not what this version made; the
//! caller then uses its statement.

use super::command::{Command, HeldRows, Lease, Live, Queued, WithParams};
use super::due::Due;
use super::journal;
use super::register::NewRow;
use super::rows::AtRest;
use crate::pg::datum;
use crate::pg::report::defect;
use crate::pg::spi::Row;
use crate::pg::table::{Held, Inserted, Snapshot, Table};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::status::{CaseReason, ErrorClass, Status};
use pgrx::pg_sys::Datum;
use std::ffi::CStr;
use std::rc::Rc;

/// Declares a table: its columns in their order, and an enum of their places.
macro_rules! columns {
    ($list:ident, $place:ident: $($column:ident),* $(,)?) => {
        pub(super) const $list: &[&str] = &[$(stringify!($column)),*];
        #[allow(non_camel_case_types, dead_code, reason = "the columns' own names; not all are read here")]
        #[derive(Clone, Copy)]
        pub(super) enum $place { $($column),* }
    };
}

columns!(COMMAND, C:
    tenant, idempotency_key, updated_at, first_sent_at, redacted_at, retain_until, status, error, attempt,
    counted_attempts, journal_seq, maybe_sent, journal_head, request_digest, destination_record_id, result,
    error_message, open_case, registered_at, not_before, deadline, lookalike_until, retain_ms, type_version,
    hash_version, approvals_required, deadline_relative, command_type, params_hash, intent_hash, proposer, params,
    run_id, step_id, workflow_version, ordering_key, refs, proposal,
);

columns!(OUTBOX, O:
    tenant, idempotency_key, due_at, deadline, approved_until, lease_expires_at, first_sent_at, ledger_identity,
    relay_epoch, attempt, counted_attempts, journal_seq, error, maybe_sent, lease_token, destination, ordering_key,
    journal_head, request_digest, worker, error_message, open_case, success_kept, absence_place, kept_record_id,
    kept_result,
);

columns!(EVENT, E:
    tenant, idempotency_key, seq, attempt, at, from_status, to_status, kind, actor, stated_actor, hash, detail,
);

const COMMAND_TABLE: &CStr = c"command";
pub(super) const OUTBOX_TABLE: &CStr = c"outbox";
const EVENT_TABLE: &CStr = c"command_event";

fn text(value: &str) -> Option<Datum> {
    Some(datum::text(value))
}

fn hash(row: &Row, column: usize) -> Result<[u8; 32], LedgerError> {
    row.hash(column).ok_or_else(|| defect("a hash of a wrong length"))
}

fn class(row: &Row, column: usize) -> Option<ErrorClass> {
    row.label(column).as_deref().and_then(ErrorClass::parse)
}

fn case(row: &Row, column: usize) -> Option<CaseReason> {
    row.text(column).as_deref().and_then(CaseReason::parse)
}

fn command_of(row: &Row) -> Result<Command, LedgerError> {
    let at = |column: C| column as usize;
    let status = row.label(at(C::status)).as_deref().and_then(Status::parse);
    let small = |column: C| row.datum(at(column)).map_or(0, |d| i32::from(d.value() as i16));
    Ok(Command {
        tenant: row.text_or_empty(at(C::tenant)),
        key: row.text_or_empty(at(C::idempotency_key)),
        command_type: row.text_or_empty(at(C::command_type)),
        type_version: row.int(at(C::type_version)).unwrap_or(0),
        hash_version: small(C::hash_version),
        registered_us: row.time(at(C::registered_at)).unwrap_or(0),
        updated_us: row.time(at(C::updated_at)).unwrap_or(0),
        not_before_us: row.time(at(C::not_before)),
        deadline_us: row.time(at(C::deadline)),
        deadline_relative: row.bool(at(C::deadline_relative)),
        redacted: row.datum(at(C::redacted_at)).is_some(),
        approvals_required: small(C::approvals_required),
        params_hash: hash(row, at(C::params_hash))?,
        intent_hash: hash(row, at(C::intent_hash))?,
        proposer: row.text_or_empty(at(C::proposer)),
        ordering_key: row.text(at(C::ordering_key)),
        retain_ms: row.big(at(C::retain_ms)),
        record_id: row.text(at(C::destination_record_id)),
        result: row.datum(at(C::result)),
        live: Live {
            status: status.ok_or_else(|| defect("an unknown status"))?,
            maybe_sent: row.bool(at(C::maybe_sent)),
            attempt: row.int(at(C::attempt)).unwrap_or(0),
            counted: row.int(at(C::counted_attempts)).unwrap_or(0),
            seq: row.int(at(C::journal_seq)).unwrap_or(0),
            head: hash(row, at(C::journal_head))?,
            request_digest: row.hash(at(C::request_digest)),
            first_sent_us: row.time(at(C::first_sent_at)),
            error: class(row, at(C::error)),
            error_message: row.text(at(C::error_message)),
            open_case: case(row, at(C::open_case)),
            success_kept: false,
        },
        queued: None,
        held_rows: HeldRows::default(),
    })
}

/// Lays the live state of an outbox row over the record.
fn overlay(command: &mut Command, row: Row) -> Result<(), LedgerError> {
    let at = |column: O| column as usize;
    let lease = row.uuid(at(O::lease_token)).map(|token| Lease {
        token,
        expires_us: row.time(at(O::lease_expires_at)).unwrap_or(0),
        epoch: row.big(at(O::relay_epoch)),
        worker: row.text(at(O::worker)),
    });
    command.live = Live {
        status: if lease.is_some() { Status::Dispatched } else { Status::Approved },
        maybe_sent: row.bool(at(O::maybe_sent)),
        attempt: row.int(at(O::attempt)).unwrap_or(0),
        counted: row.int(at(O::counted_attempts)).unwrap_or(0),
        seq: row.int(at(O::journal_seq)).unwrap_or(0),
        head: hash(&row, at(O::journal_head))?,
        request_digest: row.hash(at(O::request_digest)),
        first_sent_us: row.time(at(O::first_sent_at)),
        error: class(&row, at(O::error)),
        error_message: row.text(at(O::error_message)),
        open_case: case(&row, at(O::open_case)),
        success_kept: row.bool(at(O::success_kept)),
    };
    command.queued = Some(Queued {
        due_us: row.time(at(O::due_at)).unwrap_or(0),
        approved_until_us: row.time(at(O::approved_until)),
        identity: row.big(at(O::ledger_identity)).unwrap_or(0),
        lease,
        kept_record_id: row.text(at(O::kept_record_id)),
        absence_place: row.big(at(O::absence_place)),
    });
    command.held_rows.queued = Some(Rc::new(row));
    Ok(())
}

/// The two tables that a command stands in.
pub(super) struct Tables {
    pub commands: Table,
    pub outbox: Table,
}

impl Tables {
    pub fn open() -> Option<Self> {
        let commands = Table::open(COMMAND_TABLE, COMMAND)?;
        let Some(outbox) = Table::open(OUTBOX_TABLE, OUTBOX) else {
            commands.close();
            return None;
        };
        Some(Self { commands, outbox })
    }

    pub fn close(self) {
        self.outbox.close();
        self.commands.close();
    }

    /// Both rows under one snapshot: a command that moves in between is seen on one side of the move.
    fn find(&self, tenant: &str, key: &str, snapshot: &Snapshot) -> Result<Option<(Command, Row)>, LedgerError> {
        let key = [datum::text(tenant), datum::text(key)];
        let Some(row) = self.commands.find(key, snapshot) else { return Ok(None) };
        let mut command = command_of(&row)?;
        if !command.live.status.is_final()
            && let Some(queued) = self.outbox.find(key, snapshot)
        {
            overlay(&mut command, queued)?;
        }
        Ok(Some((command, row)))
    }
}

impl Tables {
    /// Locks a queued command whose two rows were seen under one snapshot. `None` if its record was written since: then
    /// the outbox row may have come or gone with it. An outbox row that was only written is followed to its last version.
    fn hold(&self, record: &Row, queued: &Row, snapshot: &Snapshot) -> Result<Option<Command>, LedgerError> {
        let Held::Row { row: record, changed: false } = self.commands.lock(record.place(), snapshot)? else {
            return Ok(None);
        };
        let Held::Row { row: queued, .. } = self.outbox.lock(queued.place(), snapshot)? else { return Ok(None) };
        let mut command = command_of(&record)?;
        overlay(&mut command, queued)?;
        command.held_rows.record = Some(Rc::new(record));
        Ok(Some(command))
    }

    /// The same for any command: its outbox row is looked for once its record is held.
    fn find_and_hold(&self, key: [Datum; 2]) -> Result<Option<Command>, LedgerError> {
        let held = |table: &Table| {
            let snapshot = Snapshot::latest();
            let row = match table.find(key, &snapshot) {
                Some(found) => table.lock(found.place(), &snapshot),
                None => Ok(Held::Gone),
            };
            snapshot.release();
            row
        };
        let Held::Row { row: record, .. } = held(&self.commands)? else { return Ok(None) };
        let mut command = command_of(&record)?;
        if let Held::Row { row: queued, .. } = held(&self.outbox)? {
            overlay(&mut command, queued)?;
        }
        command.held_rows.record = Some(Rc::new(record));
        Ok(Some(command))
    }
}

/// Reads a command as it is committed now (and as this transaction changed it).
pub fn find(tenant: &str, key: &str) -> Option<Result<Option<Command>, LedgerError>> {
    let tables = Tables::open()?;
    let snapshot = Snapshot::latest();
    let found = tables.find(tenant, key, &snapshot);
    snapshot.release();
    tables.close();
    Some(found.map(|found| {
        found.map(|(mut command, _)| {
            // Nobody holds these rows.
            command.held_rows = HeldRows::default();
            command
        })
    }))
}

/// Queued commands whose outbox rows the caller holds, each with its params (none if they were taken away).
pub fn find_queued(due: &[Due]) -> Option<Result<Vec<WithParams>, LedgerError>> {
    let tables = Tables::open()?;
    let snapshot = Snapshot::latest();
    let (mut records, mut queue) = (tables.commands.by_key(&snapshot), tables.outbox.by_key(&snapshot));
    let mut found = |due: &Due| {
        let key = [datum::text(&due.tenant), datum::text(&due.key)];
        let Some(record) = records.find(key) else { return Ok(None) };
        let mut command = command_of(&record)?;
        if let Some(row) = due.row.clone().or_else(|| queue.find(key)) {
            overlay(&mut command, row)?;
        }
        Ok(Some((command, record.datum(C::params as usize))))
    };
    let found = due.iter().filter_map(|due| found(due).transpose()).collect();
    records.end();
    queue.end();
    snapshot.release();
    tables.close();
    Some(found)
}

/// Reads and locks commands in the order of these keys: of each its record, then its outbox row.
pub fn lock(keys: &[(&str, &str)]) -> Option<Result<Vec<Option<Command>>, LedgerError>> {
    let tables = Tables::open()?;
    let snapshot = Snapshot::latest();
    let (mut records, mut queue) = (tables.commands.by_key(&snapshot), tables.outbox.by_key(&snapshot));
    let locked = keys.iter().map(|(tenant, key)| {
        let key = [datum::text(tenant), datum::text(key)];
        let at_once = records.find(key).zip(queue.find(key)).map(|found| tables.hold(&found.0, &found.1, &snapshot));
        match at_once.transpose()?.flatten() {
            Some(command) => Ok(Some(command)),
            None => tables.find_and_hold(key),
        }
    });
    let locked = locked.collect();
    records.end();
    queue.end();
    snapshot.release();
    tables.close();
    Some(locked)
}

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
