//! The record of one command, as decisions need it, and how it is read and locked.
//!
//! The live state (status, attempt, flags, journal head) stands in the outbox row while there is one, in the command
//! row otherwise; [`Live`] is that state wherever it stands.

use super::due::Due;
use super::store;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, Connection, Mode, Row, Statement, TEXT};
use crate::pg::transaction;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::key;
use command_ledger_domain::retry::Deadline;
use command_ledger_domain::status::{ApprovalState, CaseReason, ErrorClass, State, Status};
use pgrx::pg_sys::Datum;
use std::rc::Rc;

/// What changes during a command's life.
#[derive(Clone, Debug)]
pub struct Live {
    pub status: Status,
    pub maybe_sent: bool,
    /// Attempts started, released ones included.
    pub attempt: i32,
    /// Attempts that count against the budget.
    pub counted: i32,
    /// Last journal entry and its hash.
    pub seq: i32,
    pub head: [u8; 32],
    pub request_digest: Option<[u8; 32]>,
    pub first_sent_us: Option<i64>,
    pub error: Option<ErrorClass>,
    pub error_message: Option<String>,
    pub open_case: Option<CaseReason>,
    pub success_kept: bool,
}

impl Live {
    /// The state of a command that was just registered.
    pub fn registered(status: Status, head: [u8; 32]) -> Self {
        Self {
            status,
            maybe_sent: false,
            attempt: 0,
            counted: 0,
            seq: 0,
            head,
            request_digest: None,
            first_sent_us: None,
            error: None,
            error_message: None,
            open_case: None,
            success_kept: false,
        }
    }
}

/// One attempt's claim on the command.
#[derive(Clone, Debug)]
pub struct Lease {
    pub token: [u8; 16],
    pub expires_us: i64,
    /// Which run of the relay holds it; none for pull workers.
    pub epoch: Option<i64>,
    pub worker: Option<String>,
}

/// The outbox row beyond the live state.
#[derive(Clone, Debug)]
pub struct Queued {
    pub due_us: i64,
    pub approved_until_us: Option<i64>,
    pub identity: i64,
    pub lease: Option<Lease>,
    pub kept_record_id: Option<String>,
    /// Where a lookup or a person established that the attempts so far created nothing; none: nobody has.
    pub absence_place: Option<i64>,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Command {
    pub tenant: String,
    pub key: String,
    pub command_type: String,
    pub type_version: i32,
    pub hash_version: i32,
    pub registered_us: i64,
    pub updated_us: i64,
    pub not_before_us: Option<i64>,
    pub deadline_us: Option<i64>,
    /// The deadline follows from the type's `retry.deadline`, see [`Deadline`].
    pub deadline_relative: bool,
    pub redacted: bool,
    pub approvals_required: i32,
    pub params_hash: [u8; 32],
    pub intent_hash: [u8; 32],
    pub proposer: String,
    pub ordering_key: Option<String>,
    /// How long after settlement the type's retention has its first work; `None`: never.
    pub retain_ms: Option<i64>,
    pub record_id: Option<String>,
    /// The stored result; points into the row it was read from, so good only while that connection is open.
    pub result: Option<Datum>,
    pub live: Live,
    pub queued: Option<Queued>,
    pub held_rows: HeldRows,
}

/// The rows that a command was read from, while this transaction holds them and has not written them since: they can be
/// written where they stand.
#[derive(Clone, Default)]
pub struct HeldRows {
    pub record: Option<Rc<Row>>,
    pub queued: Option<Rc<Row>>,
}

impl std::fmt::Debug for HeldRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldRows").finish_non_exhaustive()
    }
}

const COMMAND_COLUMNS: usize = 30;
const OUTBOX_COLUMNS: usize = 20;

macro_rules! command_columns {
    () => {
        "c.tenant, c.idempotency_key, c.command_type, c.type_version, c.hash_version::int, c.registered_at, c.updated_at, \
         c.not_before, c.deadline, c.redacted_at IS NOT NULL, c.approvals_required::int, c.params_hash, c.intent_hash, \
         c.proposer, c.ordering_key, c.destination_record_id, c.status::text, c.maybe_sent, c.attempt, \
         c.counted_attempts, c.journal_seq, c.journal_head, c.request_digest, c.first_sent_at, c.error::text, \
         c.error_message, c.open_case, c.result, c.retain_ms, c.deadline_relative"
    };
}

macro_rules! outbox_columns {
    () => {
        "o.due_at, o.approved_until, o.ledger_identity, o.lease_token, o.lease_expires_at, o.relay_epoch, o.worker, \
         o.kept_record_id, o.maybe_sent, o.attempt, o.counted_attempts, o.journal_seq, o.journal_head, \
         o.request_digest, o.first_sent_at, o.error::text, o.error_message, o.open_case, o.success_kept, o.absence_place"
    };
}

macro_rules! joined_select {
    () => {
        concat!(
            "SELECT ",
            command_columns!(),
            ", ",
            outbox_columns!(),
            " FROM command_ledger.command c LEFT JOIN command_ledger.outbox o \
               ON (o.tenant = c.tenant AND o.idempotency_key = c.idempotency_key) "
        )
    };
}

static READ: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT],
    concat!(joined_select!(), "WHERE c.tenant = $1 AND c.idempotency_key = $2"),
);

static READ_FRESH: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    concat!(joined_select!(), "WHERE c.tenant = $1 AND c.idempotency_key = $2"),
);

/// The commands of the given keys, with their params; for callers that hold the outbox rows.
static READ_MANY: Statement = Statement::new(
    Mode::Fresh,
    &[crate::pg::spi::TEXTS, crate::pg::spi::TEXTS],
    concat!(
        "SELECT ",
        command_columns!(),
        ", ",
        outbox_columns!(),
        ", c.params FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS k (tenant, idempotency_key) \
           JOIN command_ledger.command c ON (c.tenant = k.tenant AND c.idempotency_key = k.idempotency_key) \
           JOIN command_ledger.outbox o ON (o.tenant = k.tenant AND o.idempotency_key = k.idempotency_key)"
    ),
);

static LOCK_COMMAND: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    concat!(
        "SELECT ",
        command_columns!(),
        " FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2 FOR NO KEY UPDATE"
    ),
);

static LOCK_FREE_COMMAND: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    concat!(
        "SELECT ",
        command_columns!(),
        " FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2 FOR NO KEY UPDATE SKIP LOCKED"
    ),
);

static LOCK_OUTBOX: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    concat!(
        "SELECT ",
        outbox_columns!(),
        " FROM command_ledger.outbox o WHERE o.tenant = $1 AND o.idempotency_key = $2 FOR NO KEY UPDATE"
    ),
);

fn status_of(text: &str) -> Result<Status, LedgerError> {
    Status::parse(text).ok_or_else(|| defect(format!("unknown status {text}")))
}

fn command_of(row: &Row) -> Result<Command, LedgerError> {
    let hash = |column| row.hash(column).ok_or_else(|| defect("a hash of a wrong length"));
    Ok(Command {
        tenant: row.text_or_empty(0),
        key: row.text_or_empty(1),
        command_type: row.text_or_empty(2),
        type_version: row.int(3).unwrap_or(0),
        hash_version: row.int(4).unwrap_or(0),
        registered_us: row.time(5).unwrap_or(0),
        updated_us: row.time(6).unwrap_or(0),
        not_before_us: row.time(7),
        deadline_us: row.time(8),
        deadline_relative: row.bool(29),
        redacted: row.bool(9),
        approvals_required: row.int(10).unwrap_or(0),
        params_hash: hash(11)?,
        intent_hash: hash(12)?,
        proposer: row.text_or_empty(13),
        ordering_key: row.text(14),
        retain_ms: row.big(28),
        record_id: row.text(15),
        result: row.datum(27),
        live: Live {
            status: status_of(&row.text_or_empty(16))?,
            maybe_sent: row.bool(17),
            attempt: row.int(18).unwrap_or(0),
            counted: row.int(19).unwrap_or(0),
            seq: row.int(20).unwrap_or(0),
            head: hash(21)?,
            request_digest: row.hash(22),
            first_sent_us: row.time(23),
            error: row.text(24).as_deref().and_then(ErrorClass::parse),
            error_message: row.text(25),
            open_case: row.text(26).as_deref().and_then(CaseReason::parse),
            success_kept: false,
        },
        queued: None,
        held_rows: HeldRows::default(),
    })
}

/// Lays the live state of an outbox row (its columns start at `at`) over the record.
fn overlay(command: &mut Command, row: &Row, at: usize) -> Result<(), LedgerError> {
    let Some(due_us) = row.time(at) else { return Ok(()) };
    let lease = row.uuid(at + 3).map(|token| Lease {
        token,
        expires_us: row.time(at + 4).unwrap_or(0),
        epoch: row.big(at + 5),
        worker: row.text(at + 6),
    });
    command.live = Live {
        status: if lease.is_some() { Status::Dispatched } else { Status::Approved },
        maybe_sent: row.bool(at + 8),
        attempt: row.int(at + 9).unwrap_or(0),
        counted: row.int(at + 10).unwrap_or(0),
        seq: row.int(at + 11).unwrap_or(0),
        head: row.hash(at + 12).ok_or_else(|| defect("a hash of a wrong length"))?,
        request_digest: row.hash(at + 13),
        first_sent_us: row.time(at + 14),
        error: row.text(at + 15).as_deref().and_then(ErrorClass::parse),
        error_message: row.text(at + 16),
        open_case: row.text(at + 17).as_deref().and_then(CaseReason::parse),
        success_kept: row.bool(at + 18),
    };
    command.queued = Some(Queued {
        due_us,
        approved_until_us: row.time(at + 1),
        identity: row.big(at + 2).unwrap_or(0),
        lease,
        kept_record_id: row.text(at + 7),
        absence_place: row.big(at + 19),
    });
    Ok(())
}

fn joined(row: &Row) -> Result<Command, LedgerError> {
    let mut command = command_of(row)?;
    overlay(&mut command, row, COMMAND_COLUMNS)?;
    Ok(command)
}

/// Reads a command with the caller's snapshot.
pub fn read(connection: &Connection, tenant: &str, key: &str) -> Result<Option<Command>, LedgerError> {
    READ.first(connection, &[Arg::Text(tenant), Arg::Text(key)])?.as_ref().map(joined).transpose()
}

/// Reads a command as it is committed now (and as this transaction changed it).
pub fn read_fresh(connection: &Connection, tenant: &str, key: &str) -> Result<Option<Command>, LedgerError> {
    if transaction::is_read_committed()
        && let Some(found) = store::find(tenant, key)
    {
        return found;
    }
    READ_FRESH.first(connection, &[Arg::Text(tenant), Arg::Text(key)])?.as_ref().map(joined).transpose()
}

/// A queued command and its params.
pub type WithParams = (Command, Option<Datum>);

/// Reads queued commands whose outbox rows the caller holds; each with its params (none if they were taken away).
pub fn read_queued(connection: &Connection, due: &[Due]) -> Result<Vec<WithParams>, LedgerError> {
    if transaction::is_read_committed()
        && let Some(found) = store::find_queued(due)
    {
        return found;
    }
    let (tenants, keys): (Vec<String>, Vec<String>) = due.iter().map(|d| (d.tenant.clone(), d.key.clone())).unzip();
    let rows = READ_MANY.run(connection, &[Arg::Texts(&tenants), Arg::Texts(&keys)], 0)?;
    rows.iter().map(|row| Ok((joined(&row)?, row.datum(COMMAND_COLUMNS + OUTBOX_COLUMNS)))).collect()
}

/// Reads and locks a command: its row, then its outbox row.
pub fn lock(connection: &Connection, tenant: &str, key: &str) -> Result<Option<Command>, LedgerError> {
    Ok(lock_all(connection, &[(tenant, key)])?.pop().flatten())
}

/// Reads and locks commands, as [`lock`] does, in the order of these keys.
pub fn lock_all(connection: &Connection, keys: &[(&str, &str)]) -> Result<Vec<Option<Command>>, LedgerError> {
    // Above READ COMMITTED a row that changed since the snapshot must end as a serialization failure.
    if transaction::is_read_committed()
        && let Some(locked) = store::lock(keys)
    {
        return locked;
    }
    let one =
        |&(tenant, key): &(&str, &str)| match LOCK_COMMAND.first(connection, &[Arg::Text(tenant), Arg::Text(key)])? {
            Some(row) => with_outbox(connection, &row).map(Some),
            None => Ok(None),
        };
    keys.iter().map(one).collect()
}

/// Locks the outbox row of a locked record, and lays it over.
fn with_outbox(connection: &Connection, row: &Row) -> Result<Command, LedgerError> {
    let mut command = command_of(row)?;
    let outbox = LOCK_OUTBOX.first(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)])?;
    if let Some(row) = outbox {
        overlay(&mut command, &row, 0)?;
    }
    Ok(command)
}

/// As [`lock`]; `None` also for a command whose record another session holds. Never waits for that session.
pub fn lock_free(connection: &Connection, tenant: &str, key: &str) -> Result<Option<Command>, LedgerError> {
    match LOCK_FREE_COMMAND.first(connection, &[Arg::Text(tenant), Arg::Text(key)])? {
        Some(row) => with_outbox(connection, &row).map(Some),
        None => Ok(None),
    }
}

/// As [`lock`], for a command that must exist (CL011).
pub fn lock_existing(connection: &Connection, tenant: &str, key: &str) -> Result<Command, LedgerError> {
    lock(connection, tenant, key)?.ok_or_else(no_such_command)
}

/// CL011.
pub fn no_such_command() -> LedgerError {
    LedgerError::new(Code::NoSuchCommand, "no command has this idempotency key in this tenant")
        .hint("Check the key and the tenant (current_tenant() says which one is used when none is given).")
}

impl Command {
    /// What the table of transitions needs to know.
    pub fn state(&self, approval: ApprovalState) -> State {
        State {
            status: self.live.status,
            maybe_sent: self.live.maybe_sent,
            attempt: self.live.attempt,
            approval,
            success_kept: self.live.success_kept,
            case: self.live.open_case,
            redacted: self.redacted,
        }
    }

    /// By when it must be on its way.
    pub fn deadline(&self) -> Deadline {
        Deadline { at_us: self.deadline_us, relative: self.deadline_relative }
    }

    /// Sets the deadline, without writing it.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        (self.deadline_us, self.deadline_relative) = (deadline.at_us, deadline.relative);
    }

    /// The command's id.
    pub fn id(&self) -> [u8; 16] {
        key::command_id(&self.tenant, &self.key)
    }

    /// The only key that the destination sees.
    pub fn destination_key(&self) -> String {
        key::destination_key(&self.tenant, &self.key)
    }

    /// The lease of the attempt in flight.
    pub fn lease(&self) -> Option<&Lease> {
        self.queued.as_ref().and_then(|q| q.lease.as_ref())
    }
}
