//! What is due at a destination: found in the order in which it is to be sent, and locked for a claim.

use super::fence;
use super::store::{C, O, Tables};
use crate::pg::datum;
use crate::pg::row::Row;
use crate::pg::scan::Walk;
use crate::pg::scratch::Scratch;
use crate::pg::spi::{Arg, BIGINT, BOOL, Connection, INT, Mode, Statement, TEXT, TEXTS, TIME};
use crate::pg::table::{Held, Place, Snapshot};
use crate::pg::transaction;
use command_ledger_domain::error::LedgerError;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::time::Instant;

/// The order of sending.
const DUE_INDEX: &CStr = c"outbox_due";

/// How long a session trusts what it saw of the head of a queue, in microseconds: so long that looks at the head take
/// a fiftieth of its time, within these bounds.
const MARK_LIVES_US: RangeInclusive<i64> = 1_000_000..=10_000_000;
const LOOKS_TAKE: i64 = 50;
/// Most destinations of which a session keeps that.
const MARKS: usize = 100;

static CANDIDATES: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TIME, BIGINT, BOOL, TEXTS, TEXTS, INT],
    "SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o \
      WHERE o.destination = $1 AND o.due_at <= $2 AND o.lease_token IS NULL AND o.ledger_identity = $3 \
        AND (o.counted_attempts > 0) = $4 \
        AND ($5 IS NULL OR o.tenant = ANY ($5)) \
        AND ($6 IS NULL OR EXISTS (SELECT 1 FROM command_ledger.command c \
             WHERE c.tenant = o.tenant AND c.idempotency_key = o.idempotency_key AND c.command_type = ANY ($6))) \
        AND (o.ordering_key IS NULL OR o.idempotency_key = \
             (SELECT l.idempotency_key FROM command_ledger.lane l \
               WHERE l.tenant = o.tenant AND l.destination = o.destination AND l.ordering_key = o.ordering_key \
               ORDER BY l.place LIMIT 1)) \
      ORDER BY o.due_at LIMIT $7 FOR NO KEY UPDATE OF o SKIP LOCKED",
);

static ONE_CANDIDATE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT o.ordering_key FROM command_ledger.outbox o WHERE o.tenant = $1 AND o.idempotency_key = $2 \
        FOR NO KEY UPDATE OF o SKIP LOCKED",
);

static LANE_HEAD: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, TEXT],
    "SELECT l.idempotency_key FROM command_ledger.lane l \
      WHERE l.tenant = $1 AND l.destination = $2 AND l.ordering_key = $3 ORDER BY l.place LIMIT 1",
);

/// What a claim may have.
pub struct Wanted<'a> {
    pub destination: &'a str,
    pub now_us: i64,
    /// Tenants and command types that the claimer may have; `None`: all.
    pub tenants: Option<&'a [String]>,
    pub command_types: Option<&'a [String]>,
    /// How many, and how many repeats at most.
    pub all: usize,
    pub repeats: usize,
}

/// A command whose outbox row the caller holds.
pub struct Due {
    pub tenant: String,
    pub key: String,
    /// The row, where it was read as a whole.
    pub row: Option<Row>,
}

impl Due {
    fn of(row: Row) -> Self {
        Self { tenant: row.text_or_empty(O::tenant as usize), key: text(&row, O::idempotency_key), row: Some(row) }
    }
}

fn text(row: &Row, column: O) -> String {
    row.text_or_empty(column as usize)
}

/// Locks what is due, skipping what others hold. First attempts come first: repeats never crowd them out.
pub fn hold(connection: &Connection, wanted: &Wanted) -> Result<Vec<Due>, LedgerError> {
    match hold_by_index(connection, wanted) {
        Some(held) => held,
        None => hold_by_statement(connection, wanted),
    }
}

/// Locks one command in the outbox; `None` if others hold it, or if another is at the head of its lane.
pub fn hold_one(
    connection: &Connection,
    destination: &str,
    tenant: &str,
    key: &str,
) -> Result<Option<Due>, LedgerError> {
    let (held, lane) = match hold_row(tenant, key) {
        Some(held) => match held? {
            Some(row) => {
                let lane = row.text(O::ordering_key as usize);
                (Some(row), lane)
            }
            None => return Ok(None),
        },
        None => match ONE_CANDIDATE.first(connection, &[Arg::Text(tenant), Arg::Text(key)])? {
            Some(row) => (None, row.text(0)),
            None => return Ok(None),
        },
    };
    let due = Due { tenant: tenant.to_owned(), key: key.to_owned(), row: held };
    Ok(leads(connection, tenant, destination, lane.as_deref(), key)?.then_some(due))
}

fn hold_row(tenant: &str, key: &str) -> Option<Result<Option<Row>, LedgerError>> {
    let tables = direct()?;
    let snapshot = Snapshot::latest();
    let held = match tables.outbox.find([datum::text(tenant), datum::text(key)], &snapshot) {
        Some(found) => tables.outbox.try_lock(found.place(), &snapshot).map(|held| match held {
            Held::Row { row, .. } => Some(row),
            Held::Gone | Held::ByOthers => None,
        }),
        None => Ok(None),
    };
    snapshot.release();
    tables.close();
    Some(held)
}

/// The tables, where rows may be read past a statement.
fn direct() -> Option<Tables> {
    if transaction::is_read_committed() { Tables::open() } else { None }
}

/// Whether a command is at the head of its lane, or has none.
fn leads(
    connection: &Connection,
    tenant: &str,
    destination: &str,
    lane: Option<&str>,
    key: &str,
) -> Result<bool, LedgerError> {
    let Some(lane) = lane else { return Ok(true) };
    let lane = [Arg::Text(tenant), Arg::Text(destination), Arg::Text(lane)];
    LANE_HEAD.read_first(connection, &lane, |head| head.is_some_and(|head| head.text_or_empty(0) == key))
}

fn hold_by_statement(connection: &Connection, wanted: &Wanted) -> Result<Vec<Due>, LedgerError> {
    let mut held = Vec::new();
    for (repeats, limit) in [(false, wanted.all), (true, wanted.all.min(wanted.repeats))] {
        let limit = limit.min(wanted.all.saturating_sub(held.len()));
        if limit == 0 {
            continue;
        }
        let rows = CANDIDATES.run(
            connection,
            &[
                Arg::Text(wanted.destination),
                Arg::Time(wanted.now_us),
                Arg::Big(fence::own_tag()),
                Arg::Bool(repeats),
                Arg::or_null(wanted.tenants, Arg::Texts),
                Arg::or_null(wanted.command_types, Arg::Texts),
                Arg::Int(i32::try_from(limit).unwrap_or(i32::MAX)),
            ],
            i64::try_from(limit).unwrap_or(i64::MAX),
        )?;
        held.extend(rows.iter().map(|r| Due { tenant: r.text_or_empty(0), key: r.text_or_empty(1), row: None }));
    }
    Ok(held)
}

fn hold_by_index(connection: &Connection, wanted: &Wanted) -> Option<Result<Vec<Due>, LedgerError>> {
    let tables = direct()?;
    let snapshot = Snapshot::latest();
    let (identity, scratch) = (fence::own_tag(), Scratch::new());
    let search = Search { connection, wanted, tables: &tables, snapshot: &snapshot, identity, scratch };
    // What lies before the mark is looked at once in a while, and whenever there is not enough behind it.
    let mut held = mark::known(wanted.destination, wanted.now_us).and_then(|from_us| search.run(Some(from_us)));
    if !matches!(&held, Some(Ok(rows)) if rows.len() == wanted.all) {
        held = search.run(None);
    }
    snapshot.release();
    tables.close();
    held.map(|held| held.map(|rows| rows.into_iter().map(Due::of).collect()))
}

/// A search through the index of what is due.
struct Search<'a> {
    connection: &'a Connection,
    wanted: &'a Wanted<'a>,
    tables: &'a Tables,
    snapshot: &'a Snapshot,
    identity: i64,
    /// For the look at one row: there may be any number of them that are passed over.
    scratch: Scratch,
}

/// What a search came to.
#[derive(Default)]
struct Found {
    held: Vec<Row>,
    repeats: Vec<Place>,
    /// When the first of those was due that are left, and the last of those that are held.
    left_us: Option<i64>,
    held_us: Option<i64>,
}

impl Search<'_> {
    /// Locks what is due from a moment on, or all of it; `None` without the index.
    fn run(&self, from_us: Option<i64>) -> Option<Result<Vec<Row>, LedgerError>> {
        let first = datum::text(self.wanted.destination);
        let columns = [O::destination as usize, O::due_at as usize];
        let mut walk = self.tables.outbox.walk(DUE_INDEX, columns, first, from_us.map(datum::time), self.snapshot)?;
        let started = Instant::now();
        let found = self.first_attempts(&mut walk);
        walk.end();
        let took_us = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
        let held = found.and_then(|mut found| {
            if let Some(mark_us) = found.left_us.or(found.held_us) {
                let whole = from_us.is_none().then_some(took_us);
                mark::set(self.wanted.destination, mark_us, self.wanted.now_us, whole);
            }
            self.repeats(&mut found)?;
            Ok(found.held)
        });
        Some(held)
    }

    fn first_attempts(&self, walk: &mut Walk) -> Result<Found, LedgerError> {
        let mut found = Found::default();
        let most_repeats = self.wanted.repeats.min(self.wanted.all);
        while found.held.len() < self.wanted.all
            && let Some(row) = walk.next()
        {
            let due_us = row.time(O::due_at as usize).unwrap_or(i64::MAX);
            if due_us > self.wanted.now_us {
                break;
            }
            // One under way comes back with a time of its own.
            if row.datum(O::lease_token as usize).is_some() {
                continue;
            }
            let repeats = row.int(O::counted_attempts as usize) > Some(0);
            if !repeats && let Some(row) = self.hold(row.place(), Some(&row))? {
                found.held_us = Some(due_us);
                found.held.push(row);
                continue;
            }
            if repeats && found.repeats.len() < most_repeats && self.fits(&row)? {
                found.repeats.push(row.place());
            }
            found.left_us = found.left_us.or(Some(due_us));
        }
        Ok(found)
    }

    fn repeats(&self, found: &mut Found) -> Result<(), LedgerError> {
        for place in std::mem::take(&mut found.repeats) {
            if found.held.len() >= self.wanted.all {
                break;
            }
            found.held.extend(self.hold(place, None)?);
        }
        Ok(())
    }

    /// Locks a row, unless others hold it or it is not what is wanted (any more).
    fn hold(&self, place: Place, seen: Option<&Row>) -> Result<Option<Row>, LedgerError> {
        if let Some(seen) = seen
            && !self.fits(seen)?
        {
            return Ok(None);
        }
        match self.tables.outbox.try_lock(place, self.snapshot)? {
            Held::Row { row, changed } => Ok(if !changed || self.fits(&row)? { Some(row) } else { None }),
            Held::Gone | Held::ByOthers => Ok(None),
        }
    }

    fn fits(&self, row: &Row) -> Result<bool, LedgerError> {
        let wanted = self.wanted;
        if row.datum(O::lease_token as usize).is_some()
            || row.time(O::due_at as usize) > Some(wanted.now_us)
            || row.big(O::ledger_identity as usize) != Some(self.identity)
        {
            return Ok(false);
        }
        if wanted.tenants.is_none() && wanted.command_types.is_none() && row.datum(O::ordering_key as usize).is_none() {
            return Ok(true);
        }
        self.scratch.within(|| self.is_permitted(row))
    }

    /// Whether the claimer may have it now: by its tenant, its type and its lane.
    fn is_permitted(&self, row: &Row) -> Result<bool, LedgerError> {
        let wanted = self.wanted;
        let (tenant, key) = (text(row, O::tenant), text(row, O::idempotency_key));
        if wanted.tenants.is_some_and(|tenants| !tenants.contains(&tenant)) {
            return Ok(false);
        }
        if let Some(types) = wanted.command_types {
            let record = self.tables.commands.find([datum::text(&tenant), datum::text(&key)], self.snapshot);
            let command_type = record.map(|record| record.text_or_empty(C::command_type as usize));
            if !command_type.is_some_and(|name| types.contains(&name)) {
                return Ok(false);
            }
        }
        let lane = row.text(O::ordering_key as usize);
        leads(self.connection, &tenant, wanted.destination, lane.as_deref(), &key)
    }
}

/// What a session saw of the head of a queue. While an old snapshot keeps dead rows from being removed, each search
/// would step over all of them again; one that starts behind them does not. It is a place to start from, not a truth: a
/// search that does not find enough from there starts at the head, and so does the next one after a while.
mod mark {
    use super::{HashMap, LOOKS_TAKE, MARK_LIVES_US, MARKS, RefCell};

    struct Mark {
        from_us: i64,
        seen_us: i64,
        lives_us: i64,
    }

    thread_local! {
        static KNOWN: RefCell<HashMap<String, Mark>> = RefCell::new(HashMap::new());
    }

    /// Where to start now.
    pub fn known(destination: &str, now_us: i64) -> Option<i64> {
        KNOWN.with_borrow(|known| {
            let mark = known.get(destination)?;
            (mark.seen_us..mark.seen_us + mark.lives_us).contains(&now_us).then_some(mark.from_us)
        })
    }

    /// A search met nothing before this moment; `whole`: and it began at the head, and took so long.
    pub fn set(destination: &str, from_us: i64, now_us: i64, whole: Option<i64>) {
        KNOWN.with_borrow_mut(|known| {
            let Some(took_us) = whole else {
                if let Some(mark) = known.get_mut(destination) {
                    mark.from_us = from_us;
                }
                return;
            };
            if known.len() >= MARKS && !known.contains_key(destination) {
                known.clear();
            }
            let lives_us = took_us.saturating_mul(LOOKS_TAKE).clamp(*MARK_LIVES_US.start(), *MARK_LIVES_US.end());
            known.insert(destination.to_owned(), Mark { from_us, seen_us: now_us, lives_us });
        });
    }
}
