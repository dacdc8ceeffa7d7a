//! Which ledger this is and where it runs: facts of the server for the pure decision in the core.

use super::access::{Capability, as_owner};
use super::command::Command;
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::report::defect;
use crate::pg::scan::only_row;
use crate::pg::spi::{Arg, BIGINT, Connection, INT, Mode, OID, Statement, TEXT, TIME};
use crate::pg::transaction::require_writable;
use crate::pg::watch;
use crate::settings;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::{Fence, Identity, OnFailover, Place, judge, sent_elsewhere};
use command_ledger_domain::status::Status;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;
use std::os::unix::fs::MetadataExt;

/// The columns that say which ledger it is, after the one that keeps it to one row.
const FENCE: &[&str] = &["only_row", "system_identifier", "database_oid", "extension_oid", "timeline", "control_inode"];

static RECORDED: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT f.system_identifier, f.database_oid, f.extension_oid, f.timeline, f.control_inode FROM command_ledger.relay_fence f",
);

static ADOPT: Statement = Statement::new(
    Mode::Write,
    &[BIGINT, OID, OID, INT, BIGINT, TIME, TEXT],
    "INSERT INTO command_ledger.relay_fence AS f \
            (system_identifier, database_oid, extension_oid, timeline, control_inode, adopted_at, adopted_by) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) \
     ON CONFLICT (only_row) DO UPDATE \
        SET system_identifier=excluded.system_identifier, database_oid=excluded.database_oid, \
            extension_oid=excluded.extension_oid, timeline=excluded.timeline, control_inode=excluded.control_inode, \
            adopted_at=excluded.adopted_at, adopted_by=excluded.adopted_by",
);

static ANY_COMMAND: Statement = Statement::new(Mode::Fresh, &[], "SELECT 1 FROM command_ledger.command c LIMIT 1");

thread_local! {
    /// The identity that goes with a table of commands: both are gone when the extension is dropped.
    static IDENTITY: Cell<Option<(Oid, Identity, i64)>> = const { Cell::new(None) };
}

/// The identity of this ledger, and its tag.
fn identity_and_tag() -> (Identity, i64) {
    let table = watch::kept(c"command").0.or_else(|| watch::table(c"command"));
    if let (Some(table), Some((known, identity, tag))) = (table, IDENTITY.get())
        && table == known
    {
        return (identity, tag);
    }
    let identity = read_identity();
    let tag = identity_tag(identity);
    IDENTITY.set(table.map(|table| (table, identity, tag)));
    (identity, tag)
}

/// The identity of this ledger.
pub fn identity() -> Identity {
    identity_and_tag().0
}

/// The tag of this ledger's identity.
pub fn own_tag() -> i64 {
    identity_and_tag().1
}

fn read_identity() -> Identity {
    // SAFETY: reads shared state and one catalog row.
    unsafe {
        Identity {
            system_identifier: pg_sys::GetSystemIdentifier(),
            database_oid: pg_sys::MyDatabaseId.to_u32(),
            extension_oid: pg_sys::get_extension_oid(c"command_ledger".as_ptr(), true).to_u32(),
        }
    }
}

/// Where the server runs: its timeline and its control file.
pub fn place() -> Place {
    // SAFETY: reads shared state; the insertion timeline is asked for on a primary only, as the server demands.
    let timeline = unsafe { if pg_sys::RecoveryInProgress() { 0 } else { pg_sys::GetWALInsertionTimeLine() } };
    // The server's working directory is its data directory.
    let control_inode = std::fs::metadata("global/pg_control").map_or(0, |m| m.ino());
    Place { timeline, control_inode }
}

/// The identity as outbox rows carry it: enough of it to tell two ledgers apart in eight bytes.
pub fn identity_tag(identity: Identity) -> i64 {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(identity.system_identifier.to_be_bytes());
    bytes.extend(identity.database_oid.to_be_bytes());
    bytes.extend(identity.extension_oid.to_be_bytes());
    tag(&bytes)
}

/// This ledger in this place, as eight bytes.
pub fn place_tag() -> i64 {
    let (identity, place) = (identity(), place());
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(identity_tag(identity).to_be_bytes());
    bytes.extend(place.timeline.to_be_bytes());
    bytes.extend(place.control_inode.to_be_bytes());
    tag(&bytes)
}

fn tag(bytes: &[u8]) -> i64 {
    command_ledger_domain::hash::short(bytes).cast_signed()
}

/// What is recorded, if anything.
pub fn recorded(connection: &Connection) -> Result<Option<(Identity, Place)>, LedgerError> {
    let (row, first) = match only_row(c"relay_fence", FENCE) {
        Some(row) => (row, 1),
        None => (RECORDED.first(connection, &[])?, 0),
    };
    Ok(row.map(|row| {
        (
            Identity {
                system_identifier: row.big(first).unwrap_or(0).cast_unsigned(),
                database_oid: row.oid(first + 1).map_or(0, |o| o.to_u32()),
                extension_oid: row.oid(first + 2).map_or(0, |o| o.to_u32()),
            },
            Place {
                timeline: row.int(first + 3).unwrap_or(0).cast_unsigned(),
                control_inode: row.big(first + 4).unwrap_or(0).cast_unsigned(),
            },
        )
    }))
}

/// What the fence says now.
pub fn state(connection: &Connection) -> Result<Fence, LedgerError> {
    let on_failover = match settings::ON_FAILOVER.get() {
        settings::OnFailover::Halt => OnFailover::Halt,
        settings::OnFailover::Continue => OnFailover::Continue,
    };
    Ok(judge(recorded(connection)?, (identity(), place()), on_failover))
}

/// Marks a locked command that another place may have sent, before it is ended or rewritten here.
pub fn mark_sent_elsewhere(connection: &Connection, command: &mut Command) -> Result<(), LedgerError> {
    if !matches!(command.live.status, Status::Planned | Status::Approved) || command.live.maybe_sent {
        return Ok(());
    }
    let here = place_tag();
    let absent = command.queued.as_ref().is_some_and(|q| q.absence_place == Some(here));
    if sent_elsewhere(state(connection)?, absent) {
        command.live.maybe_sent = true;
        command.live.first_sent_us = Some(command.registered_us);
    }
    Ok(())
}

/// CL015, if the fence keeps this ledger from sending.
pub fn require_open(connection: &Connection) -> Result<Fence, LedgerError> {
    // A standby is in another place, and adopting it is not what helps.
    require_writable()?;
    let fence = state(connection)?;
    let why = match fence {
        Fence::Open | Fence::Moved { halted: false } => return Ok(fence),
        Fence::Unadopted => "this ledger is not adopted: it may be a copy whose original still sends",
        Fence::Moved { halted: true } => {
            "this ledger runs in another place than the one it was adopted in (promoted, restored or copied)"
        }
    };
    Err(LedgerError::new(Code::RelayFenced, format!("nothing may be sent: {why}")).hint(
        "Make sure that no other copy of this ledger sends, then SELECT command_ledger.adopt_relay(); its argument says whether open commands may have been sent.",
    ))
}

/// Records this ledger and place as the ones that send.
pub fn adopt(connection: &Connection, now_us: i64, by: &str) -> Result<(), LedgerError> {
    let (identity, place) = (identity(), place());
    if identity.extension_oid == 0 {
        return Err(defect("the extension has no catalog entry"));
    }
    ADOPT.execute(
        connection,
        &[
            Arg::Big(identity.system_identifier.cast_signed()),
            Arg::Oid(pg_sys::Oid::from(identity.database_oid)),
            Arg::Oid(pg_sys::Oid::from(identity.extension_oid)),
            Arg::Int(place.timeline.cast_signed()),
            Arg::Big(place.control_inode.cast_signed()),
            Arg::Time(now_us),
            Arg::Text(by),
        ],
    )?;
    Ok(())
}

/// The first definition in a ledger without commands adopts it.
pub fn adopt_if_new(connection: &Connection, now_us: i64, by: &str) -> Result<(), LedgerError> {
    if recorded(connection)?.is_none() && ANY_COMMAND.first(connection, &[])?.is_none() {
        adopt(connection, now_us, by)?;
    }
    Ok(())
}

/// `adopt_relay(resend)`
pub fn adopt_relay(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let resend = call.bool(0).unwrap_or(false);
    let answer = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Operate)?;
        super::adopt::adopt_open_commands(connection, &caller.name(), resend)
    })?;
    Ok(Some(datum::text(&answer)))
}

/// `fence_state()`: the fence as a word, for the views.
pub fn fence_state(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let word = match as_owner(call, |_, connection| state(connection))? {
        Fence::Open => "open",
        Fence::Unadopted => "unadopted",
        Fence::Moved { halted: true } => "halted",
        Fence::Moved { halted: false } => "moved",
    };
    Ok(Some(datum::text(word)))
}

/// `ledger_identity()`: what the outbox rows of this ledger carry.
pub fn ledger_identity(_call: &Call) -> Result<Option<Datum>, LedgerError> {
    Ok(Some(Datum::from(own_tag())))
}

crate::sql_function!(ledger_adopt_relay, pg_finfo_ledger_adopt_relay, adopt_relay);
crate::sql_function!(ledger_fence_state, pg_finfo_ledger_fence_state, fence_state);
crate::sql_function!(ledger_ledger_identity, pg_finfo_ledger_ledger_identity, ledger_identity);
