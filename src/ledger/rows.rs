//! The statements that write a command's rows, each once. Those that batches use take arrays.

use super::batch::OpenedCase;
use super::command::Command;
use super::journal;
use super::store;
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::spi::{Arg, BIGINT, BOOL, BYTEA, Connection, INT, JSONB, Mode, Row, Statement, TEXT, TIME, UUID, array};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::retry::plus_ms;
use pgrx::pg_sys::{self, Datum, Oid};
use std::rc::Rc;

/// Arrays of equal length, one per column.
pub struct Columns {
    count: usize,
    columns: Vec<Datum>,
}

impl Columns {
    /// No columns yet, for `count` rows.
    pub fn new(count: usize) -> Self {
        Self { count, columns: Vec::new() }
    }

    /// Adds a column.
    pub fn add<T>(&mut self, rows: &[T], element: Oid, value: impl Fn(&T) -> Option<Datum>) {
        debug_assert_eq!(rows.len(), self.count);
        self.columns.push(array(rows.iter().map(value), element));
    }

    fn args(&self) -> Vec<Arg<'_>> {
        self.columns.iter().map(|c| Arg::Datum(*c)).collect()
    }
}

const TEXTS: Oid = pg_sys::TEXTARRAYOID;
const INTS: Oid = pg_sys::INT4ARRAYOID;
const BIGS: Oid = pg_sys::INT8ARRAYOID;
const BOOLS: Oid = pg_sys::BOOLARRAYOID;
const BYTEAS: Oid = pg_sys::BYTEAARRAYOID;
const TIMES: Oid = pg_sys::TIMESTAMPTZARRAYOID;
const UUIDS: Oid = pg_sys::UUIDARRAYOID;
const JSONBS: Oid = pg_sys::JSONBARRAYOID;

/// The live state of a command that has no outbox row (any more), for its own row.
pub struct AtRest {
    pub(super) command: Command,
    pub(super) record_id: Option<String>,
    pub(super) result: Option<JsonbArg>,
}

impl AtRest {
    /// What `command` is now, with a new record id and result where there are any.
    pub fn new(command: &Command, record_id: Option<String>, result: Option<JsonbArg>) -> Self {
        Self { command: command.clone(), record_id, result }
    }

    /// Whether both are of one command.
    pub fn is_of(&self, other: &Self) -> bool {
        self.command.tenant == other.command.tenant && self.command.key == other.command.key
    }

    /// Takes a later state of the same command; a record and a result that it does not bring stay.
    pub fn follow(&mut self, later: Self) {
        self.record_id = self.record_id.take().or(later.record_id);
        self.result = later.result.or(self.result);
        self.command = later.command;
    }

    /// When purge() looks at the command first: from its settlement on, and not while a question about it is open.
    pub(super) fn retain_until_us(&self) -> Option<i64> {
        let retain_ms = self.command.retain_ms?;
        let settled = self.command.live.status.is_settled() && self.command.live.open_case.is_none();
        settled.then(|| plus_ms(self.command.updated_us, retain_ms))
    }
}

static WRITE_AT_REST: Statement = Statement::new(
    Mode::Write,
    &[
        TEXTS, TEXTS, TEXTS, BOOLS, INTS, INTS, INTS, BYTEAS, BYTEAS, TIMES, TEXTS, TEXTS, TEXTS, TIMES, TIMES, TEXTS,
        JSONBS, TIMES, BOOLS,
    ],
    "UPDATE command_ledger.command c \
        SET status=n.status::command_ledger.command_status, maybe_sent=n.maybe_sent, attempt=n.attempt, \
            counted_attempts=n.counted, journal_seq=n.seq, journal_head=n.head, request_digest=n.digest, \
            first_sent_at=n.first_sent, error=n.error::command_ledger.error_class, error_message=n.message, \
            open_case=n.open_case, updated_at=n.updated, deadline=n.deadline, \
            deadline_relative=n.deadline_relative, retain_until=n.retain_until, \
            destination_record_id=coalesce(c.destination_record_id, n.record_id), \
            result=CASE WHEN n.status = 'confirmed' AND c.status <> 'confirmed' THEN n.result \
                        ELSE coalesce(n.result, c.result) END \
       FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), \
            pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), \
            pg_catalog.unnest($9), pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12), \
            pg_catalog.unnest($13), pg_catalog.unnest($14), pg_catalog.unnest($15), pg_catalog.unnest($16), \
            pg_catalog.unnest($17), pg_catalog.unnest($18), pg_catalog.unnest($19)) \
         AS n (tenant, key, status, maybe_sent, attempt, counted, seq, head, digest, first_sent, error, message, \
               open_case, updated, deadline, record_id, result, retain_until, deadline_relative) \
      WHERE c.tenant = n.tenant AND c.idempotency_key = n.key",
);

/// Writes the state of commands that left the outbox or were never in it.
pub fn write_at_rest(connection: &Connection, rows: &[AtRest]) -> Result<(), LedgerError> {
    if let Some(done) = store::write_at_rest(rows) {
        return done;
    }
    let mut c = Columns::new(rows.len());
    c.add(rows, TEXT, |r| Some(datum::text(&r.command.tenant)));
    c.add(rows, TEXT, |r| Some(datum::text(&r.command.key)));
    c.add(rows, TEXT, |r| Some(datum::text(r.command.live.status.as_str())));
    c.add(rows, BOOL, |r| Some(Datum::from(r.command.live.maybe_sent)));
    c.add(rows, INT, |r| Some(Datum::from(r.command.live.attempt)));
    c.add(rows, INT, |r| Some(Datum::from(r.command.live.counted)));
    c.add(rows, INT, |r| Some(Datum::from(r.command.live.seq)));
    c.add(rows, BYTEA, |r| Some(datum::bytea(&r.command.live.head)));
    c.add(rows, BYTEA, |r| r.command.live.request_digest.map(|d| datum::bytea(&d)));
    c.add(rows, TIME, |r| r.command.live.first_sent_us.map(datum::time));
    c.add(rows, TEXT, |r| r.command.live.error.map(|e| datum::text(e.as_str())));
    c.add(rows, TEXT, |r| r.command.live.error_message.as_deref().map(datum::text));
    c.add(rows, TEXT, |r| r.command.live.open_case.map(|e| datum::text(e.as_str())));
    c.add(rows, TIME, |r| Some(datum::time(r.command.updated_us)));
    c.add(rows, TIME, |r| r.command.deadline_us.map(datum::time));
    c.add(rows, TEXT, |r| r.record_id.as_deref().map(datum::text));
    c.add(rows, JSONB, |r| r.result.map(|result| result.datum()));
    c.add(rows, TIME, |r| r.retain_until_us().map(datum::time));
    c.add(rows, BOOL, |r| Some(Datum::from(r.command.deadline_relative)));
    WRITE_AT_REST.execute(connection, &c.args())?;
    Ok(())
}

static INSERT_EVENTS: Statement = Statement::new(
    Mode::Write,
    &[TEXTS, TEXTS, INTS, INTS, TIMES, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, BYTEAS, JSONBS],
    "INSERT INTO command_ledger.command_event \
            (tenant, idempotency_key, seq, attempt, at, from_status, to_status, kind, actor, stated_actor, hash, detail) \
     SELECT n.tenant, n.key, n.seq, n.attempt, n.at, n.from_status::command_ledger.command_status, \
            n.to_status::command_ledger.command_status, n.kind, n.actor, n.stated, n.hash, n.detail \
       FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), \
            pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), \
            pg_catalog.unnest($9), pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12)) \
         AS n (tenant, key, seq, attempt, at, from_status, to_status, kind, actor, stated, hash, detail)",
);

/// Appends journal entries.
pub fn insert_events(connection: &Connection, rows: &[journal::Row]) -> Result<(), LedgerError> {
    if let Some(done) = store::insert_events(rows) {
        return done;
    }
    let mut c = Columns::new(rows.len());
    c.add(rows, TEXT, |r| Some(datum::text(&r.tenant)));
    c.add(rows, TEXT, |r| Some(datum::text(&r.key)));
    c.add(rows, INT, |r| Some(Datum::from(r.seq)));
    c.add(rows, INT, |r| Some(Datum::from(r.attempt)));
    c.add(rows, TIME, |r| Some(datum::time(r.at_us)));
    c.add(rows, TEXT, |r| Some(datum::text(r.from.as_str())));
    c.add(rows, TEXT, |r| Some(datum::text(r.to.as_str())));
    c.add(rows, TEXT, |r| Some(datum::text(r.kind)));
    c.add(rows, TEXT, |r| Some(datum::text(&r.actor)));
    c.add(rows, TEXT, |r| r.stated.as_deref().map(datum::text));
    c.add(rows, BYTEA, |r| Some(datum::bytea(&r.hash)));
    c.add(rows, JSONB, |r| r.detail.as_deref().map(datum::jsonb));
    INSERT_EVENTS.execute(connection, &c.args())?;
    Ok(())
}

static UPDATE_QUEUED: Statement = Statement::new(
    Mode::Write,
    &[
        TEXTS, TEXTS, TIMES, TIMES, TIMES, TIMES, TIMES, BIGS, INTS, INTS, INTS, TEXTS, BOOLS, UUIDS, BYTEAS, BYTEAS,
        TEXTS, TEXTS, TEXTS, BOOLS, TEXTS, BIGS, BIGS,
    ],
    "UPDATE command_ledger.outbox o \
        SET due_at=n.due, deadline=n.deadline, approved_until=n.approved_until, lease_expires_at=n.lease_expires, \
            first_sent_at=n.first_sent, relay_epoch=n.epoch, attempt=n.attempt, counted_attempts=n.counted, \
            journal_seq=n.seq, error=n.error::command_ledger.error_class, maybe_sent=n.maybe_sent, \
            lease_token=n.token, journal_head=n.head, request_digest=n.digest, worker=n.worker, \
            error_message=n.message, open_case=n.open_case, success_kept=n.success_kept, \
            kept_record_id=n.kept_record_id, ledger_identity=n.identity, \
            absence_place=n.absence_place \
       FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), \
            pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), \
            pg_catalog.unnest($9), pg_catalog.unnest($10), pg_catalog.unnest($11), pg_catalog.unnest($12), \
            pg_catalog.unnest($13), pg_catalog.unnest($14), pg_catalog.unnest($15), pg_catalog.unnest($16), \
            pg_catalog.unnest($17), pg_catalog.unnest($18), pg_catalog.unnest($19), pg_catalog.unnest($20), \
            pg_catalog.unnest($21), pg_catalog.unnest($22), pg_catalog.unnest($23)) \
         AS n (tenant, key, due, deadline, approved_until, lease_expires, first_sent, epoch, attempt, counted, seq, \
               error, maybe_sent, token, head, digest, worker, message, open_case, success_kept, kept_record_id, identity, \
               absence_place) \
      WHERE o.tenant = n.tenant AND o.idempotency_key = n.key",
);

/// Writes the state of commands that stay in the outbox.
pub fn update_queued(connection: &Connection, rows: &[Command]) -> Result<(), LedgerError> {
    if let Some(done) = store::update_queued(rows) {
        return done;
    }
    let mut c = Columns::new(rows.len());
    c.add(rows, TEXT, |r| Some(datum::text(&r.tenant)));
    c.add(rows, TEXT, |r| Some(datum::text(&r.key)));
    c.add(rows, TIME, |r| r.queued.as_ref().map(|q| datum::time(q.due_us)));
    c.add(rows, TIME, |r| r.deadline_us.map(datum::time));
    c.add(rows, TIME, |r| r.queued.as_ref().and_then(|q| q.approved_until_us).map(datum::time));
    c.add(rows, TIME, |r| r.lease().map(|l| datum::time(l.expires_us)));
    c.add(rows, TIME, |r| r.live.first_sent_us.map(datum::time));
    c.add(rows, BIGINT, |r| r.lease().and_then(|l| l.epoch).map(Datum::from));
    c.add(rows, INT, |r| Some(Datum::from(r.live.attempt)));
    c.add(rows, INT, |r| Some(Datum::from(r.live.counted)));
    c.add(rows, INT, |r| Some(Datum::from(r.live.seq)));
    c.add(rows, TEXT, |r| r.live.error.map(|e| datum::text(e.as_str())));
    c.add(rows, BOOL, |r| Some(Datum::from(r.live.maybe_sent)));
    c.add(rows, UUID, |r| r.lease().map(|l| datum::uuid(&l.token)));
    c.add(rows, BYTEA, |r| Some(datum::bytea(&r.live.head)));
    c.add(rows, BYTEA, |r| r.live.request_digest.map(|d| datum::bytea(&d)));
    c.add(rows, TEXT, |r| r.lease().and_then(|l| l.worker.as_deref()).map(datum::text));
    c.add(rows, TEXT, |r| r.live.error_message.as_deref().map(datum::text));
    c.add(rows, TEXT, |r| r.live.open_case.map(|e| datum::text(e.as_str())));
    c.add(rows, BOOL, |r| Some(Datum::from(r.live.success_kept)));
    c.add(rows, TEXT, |r| r.queued.as_ref().and_then(|q| q.kept_record_id.as_deref()).map(datum::text));
    c.add(rows, BIGINT, |r| r.queued.as_ref().map(|q| Datum::from(q.identity)));
    c.add(rows, BIGINT, |r| r.queued.as_ref().and_then(|q| q.absence_place).map(Datum::from));
    UPDATE_QUEUED.execute(connection, &c.args())?;
    Ok(())
}

static INSERT_QUEUED: Statement = Statement::new(
    Mode::Write,
    &[
        TEXT, TEXT, TIME, TIME, TIME, TIME, BIGINT, INT, INT, INT, TEXT, BOOL, TEXT, TEXT, BYTEA, BYTEA, TEXT, TEXT,
        UUID, TIME, BIGINT, TEXT, BIGINT,
    ],
    "INSERT INTO command_ledger.outbox \
            (tenant, idempotency_key, due_at, deadline, approved_until, first_sent_at, ledger_identity, attempt, \
             counted_attempts, journal_seq, error, maybe_sent, destination, ordering_key, journal_head, request_digest, \
             error_message, open_case, lease_token, lease_expires_at, relay_epoch, worker, absence_place) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::command_ledger.error_class, $12, $13, $14, $15, $16, $17, $18, \
             $19, $20, $21, $22, $23)",
);

/// Puts a command into the outbox.
pub fn insert_queued(connection: &Connection, command: &Command, destination: &str) -> Result<(), LedgerError> {
    let queued = command.queued.as_ref();
    if let Some(done) = queued.and_then(|queued| store::insert_queued(command, queued, destination)) {
        return done;
    }
    let lease = command.lease();
    INSERT_QUEUED.execute(
        connection,
        &[
            Arg::Text(&command.tenant),
            Arg::Text(&command.key),
            Arg::Time(queued.map_or(command.updated_us, |q| q.due_us)),
            Arg::or_null(command.deadline_us, Arg::Time),
            Arg::or_null(queued.and_then(|q| q.approved_until_us), Arg::Time),
            Arg::or_null(command.live.first_sent_us, Arg::Time),
            Arg::Big(queued.map_or(0, |q| q.identity)),
            Arg::Int(command.live.attempt),
            Arg::Int(command.live.counted),
            Arg::Int(command.live.seq),
            Arg::or_null(command.live.error, |e| Arg::Text(e.as_str())),
            Arg::Bool(command.live.maybe_sent),
            Arg::Text(destination),
            Arg::or_null(command.ordering_key.as_deref(), Arg::Text),
            Arg::Bytes(&command.live.head),
            Arg::or_null(command.live.request_digest.as_ref(), |d| Arg::Bytes(d)),
            Arg::or_null(command.live.error_message.as_deref(), Arg::Text),
            Arg::or_null(command.live.open_case, |e| Arg::Text(e.as_str())),
            Arg::or_null(lease.map(|l| &l.token), Arg::Uuid),
            Arg::or_null(lease.map(|l| l.expires_us), Arg::Time),
            Arg::or_null(lease.and_then(|l| l.epoch), Arg::Big),
            Arg::or_null(lease.and_then(|l| l.worker.as_deref()), Arg::Text),
            Arg::or_null(queued.and_then(|q| q.absence_place), Arg::Big),
        ],
    )?;
    Ok(())
}

static DELETE_QUEUED: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT],
    "DELETE FROM command_ledger.outbox o WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

/// A command that leaves the outbox: tenant, key, and its row if the transaction has it.
pub type Leaving = (String, String, Option<Rc<Row>>);

/// Takes commands out of the outbox.
pub fn delete_queued(connection: &Connection, leaving: &[Leaving]) -> Result<(), LedgerError> {
    let held: Option<Vec<&Row>> = leaving.iter().map(|(_, _, row)| row.as_deref()).collect();
    if let Some(done) = held.and_then(|held| store::delete_queued(&held)) {
        return done;
    }
    for (tenant, key, _) in leaving {
        DELETE_QUEUED.execute(connection, &[Arg::Text(tenant), Arg::Text(key)])?;
    }
    Ok(())
}

static OPEN_CASE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, INT, TIME, TIME, TIME, TEXT, JSONB],
    "INSERT INTO command_ledger.reconciliation_case \
            (tenant, idempotency_key, seq, attempt, opened_at, next_lookup_at, evidence_from, reason, evidence) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);

/// Opens a case.
pub fn open_case(connection: &Connection, case: &OpenedCase, now_us: i64) -> Result<(), LedgerError> {
    OPEN_CASE.execute(
        connection,
        &[
            Arg::Text(&case.tenant),
            Arg::Text(&case.key),
            Arg::Int(case.seq),
            Arg::Int(case.attempt),
            Arg::Time(now_us),
            Arg::or_null(case.next_lookup_us, Arg::Time),
            Arg::or_null(case.evidence_from_us, Arg::Time),
            Arg::Text(case.reason.as_str()),
            Arg::or_null(case.evidence.as_ref(), Arg::Json),
        ],
    )?;
    Ok(())
}

/// The open case goes on under a graver reason.
pub static CHANGE_REASON: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT],
    "UPDATE command_ledger.reconciliation_case r SET reason=$3 \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL",
);

/// Closes the open case. What it was opened with stays; what closes it is added.
pub static CLOSE_CASE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TEXT, TEXT, JSONB],
    "UPDATE command_ledger.reconciliation_case r \
        SET closed_at=$3, closed_by=$4, finding=$5, evidence=coalesce(r.evidence || $6, $6, r.evidence), \
            next_lookup_at=NULL, lookup_token=NULL \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL",
);

/// A settled command leaves its lane.
pub static LEAVE_LANE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT, TEXT],
    "DELETE FROM command_ledger.lane l \
      WHERE l.tenant = $1 AND l.destination = $2 AND l.ordering_key = $3 AND l.idempotency_key = $4",
);
