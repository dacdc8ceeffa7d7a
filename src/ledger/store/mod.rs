//! The rows of a command as arrays of columns, for the few reads and writes that are on the way of every command and
//! go without a plan (see [`crate::pg::table`]). Each says `None` where the tables are not what this version made; the
//! caller then uses its statement. Found and held here, written in `write`.

mod write;

pub use write::{delete_queued, insert_command, insert_events, insert_queued, update_queued, write_at_rest};

use super::command::{Command, HeldRows, Lease, Live, Queued, WithParams};
use super::due::Due;
use crate::pg::datum;
use crate::pg::report::defect;
use crate::pg::spi::Row;
use crate::pg::table::{Held, Snapshot, Table};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::status::{CaseReason, ErrorClass, Status};
use pgrx::pg_sys::Datum;
use std::ffi::CStr;
use std::rc::Rc;

/// Declares a table: its columns in their order, and an enum of their places.
macro_rules! columns {
    ($list:ident, $place:ident: $($column:ident),* $(,)?) => {
        pub(in crate::ledger) const $list: &[&str] = &[$(stringify!($column)),*];
        #[allow(non_camel_case_types, dead_code, reason = "the columns' own names; not all are read here")]
        #[derive(Clone, Copy)]
        pub(in crate::ledger) enum $place { $($column),* }
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
pub(in crate::ledger) const OUTBOX_TABLE: &CStr = c"outbox";
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
pub(in crate::ledger) struct Tables {
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
    fn find(&self, tenant: &str, key: &str, snapshot: &Snapshot) -> Result<Option<Command>, LedgerError> {
        let key = [datum::text(tenant), datum::text(key)];
        let Some(row) = self.commands.find(key, snapshot) else { return Ok(None) };
        let mut command = command_of(&row)?;
        if !command.live.status.is_final()
            && let Some(queued) = self.outbox.find(key, snapshot)
        {
            overlay(&mut command, queued)?;
        }
        Ok(Some(command))
    }

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
        found.map(|mut command| {
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
