//! Execute: claiming due commands. A claim's commit is the checkpoint before the send (I2); everything that a send
//! rests on is checked on the rows that the claim holds (I6).

use super::batch::Batch;
use super::catalog::Operation;
use super::command::{self, Command, Lease};
use super::due::{self, Due, Wanted};
use super::judge::judge;
use super::room::{self, Room};
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT, TIME};
use crate::pg::transaction::nested;
use crate::relay::signals;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::json::Json;
use command_ledger_domain::request::RenderedRequest;
use command_ledger_domain::status::Status;
use pgrx::pg_sys::Datum;
use std::rc::Rc;

/// A command that cannot be claimed is looked at again after this time.
const PUT_OFF_US: i64 = 60_000_000;

static PUT_OFF: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TEXT],
    "UPDATE command_ledger.outbox o SET due_at=$3, error_message=$4 WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

/// Who claims, and what.
pub struct Claim<'a> {
    pub destination: &'a str,
    pub max: i32,
    /// How long an attempt may take; `None`: from the timeouts of each command's request.
    pub lease_ms: Option<i64>,
    pub worker: Option<&'a str>,
    pub epoch: Option<i64>,
    /// Tenants and command types that the claimer may have; `None`: all.
    pub tenants: Option<&'a [String]>,
    pub command_types: Option<&'a [String]>,
}

/// One attempt, claimed and not yet committed.
pub struct Claimed {
    pub command: Command,
    pub operation: Rc<Operation>,
    pub params: Json<'static>,
    /// The same as they are stored; good while the connection is open.
    pub stored_params: Option<Datum>,
    /// What is sent, for an HTTP destination.
    pub request: Option<Box<RenderedRequest>>,
    pub lease: Lease,
}

/// What a claim handed out.
pub struct Claims {
    pub claimed: Vec<Claimed>,
    /// Something was claimed or judged.
    pub any: bool,
    /// Something else than a claim came of it: a case, an end.
    pub others: bool,
}

/// Claims due commands of one destination and writes it down, all together. Commands that are met and may not be sent
/// (lapsed approval, deadline, tampered, …) get the transition that follows instead.
///
/// # Errors
/// Anything that one of the commands met: then [`claim_each`] is the way.
pub fn claim_together(
    connection: &Connection,
    batch: Batch,
    fence: Fence,
    request: &Claim,
    room: &Room,
) -> Result<Claims, LedgerError> {
    let keys = candidates(connection, batch.now_us(), request, room)?;
    let claims = claim_keys(connection, batch, fence, request, &keys)?;
    room.used_by(claims.claimed.iter().map(|one| &one.command));
    Ok(claims)
}

/// Claims commands whose outbox rows are held, and writes it down.
fn claim_keys(
    connection: &Connection,
    mut batch: Batch,
    fence: Fence,
    request: &Claim,
    keys: &[Due],
) -> Result<Claims, LedgerError> {
    let claimed = judge_all(connection, &mut batch, fence, request, keys)?;
    let (any, others) = (!batch.is_empty(), batch.len() > claimed.len());
    batch.flush(connection)?;
    Ok(Claims { claimed, any, others })
}

/// As [`claim_together`], each command in a subtransaction of its own: one that cannot be read, judged or written is put
/// off, and all others go on.
pub fn claim_each(
    connection: &Connection,
    batch: impl Fn() -> Batch,
    fence: Fence,
    request: &Claim,
    room: &Room,
) -> Result<Claims, LedgerError> {
    let mut all = Claims { claimed: Vec::new(), any: false, others: false };
    let now_us = batch().now_us();
    for key in candidates(connection, now_us, request, room)? {
        let (tenant, name) = (key.tenant.clone(), key.key.clone());
        let alone = nested(|| claim_keys(connection, batch(), fence, request, &[key]));
        match alone {
            Ok(Claims { claimed, any, others }) => {
                all.claimed.extend(claimed);
                all.any |= any;
                all.others |= others;
            }
            // A worker that gives up, or a relay that is to stop: not the command's fault. The relay's own time limit may be.
            Err(error) if error.code == Code::Canceled && (request.epoch.is_none() || signals::stop_asked()) => {
                return Err(error);
            }
            Err(error) => {
                log(Level::Warning, &format!("command_ledger: one command cannot be claimed and is put off: {error}"));
                let due_us = now_us.saturating_add(PUT_OFF_US);
                let args = [Arg::Text(&tenant), Arg::Text(&name), Arg::Time(due_us), Arg::Text(&error.message)];
                if let Err(error) = nested(|| PUT_OFF.execute(connection, &args).map(drop)) {
                    log(Level::Warning, &format!("command_ledger: it cannot be put off either: {error}"));
                }
            }
        }
    }
    room.used_by(all.claimed.iter().map(|one| &one.command));
    Ok(all)
}

/// Locks what is due and has room, in the order in which it is to be sent.
fn candidates(connection: &Connection, now_us: i64, claim: &Claim, room: &Room) -> Result<Vec<Due>, LedgerError> {
    let wanted = Wanted {
        destination: claim.destination,
        now_us,
        tenants: claim.tenants,
        command_types: claim.command_types,
        all: usize::try_from(i64::from(claim.max).min(room.all)).unwrap_or(0),
        repeats: usize::try_from(room.repeats).unwrap_or(0),
    };
    if wanted.all == 0 { Ok(Vec::new()) } else { due::hold(connection, &wanted) }
}

fn judge_all(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    claim: &Claim,
    keys: &[Due],
) -> Result<Vec<Claimed>, LedgerError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut claimed = Vec::with_capacity(keys.len());
    for (command, params) in command::read_queued(connection, keys)? {
        let tree = match params {
            // SAFETY: the statement selects jsonb in this column.
            Some(datum) => unsafe { JsonbArg::new(datum) }.tree()?.into_owned(),
            // Taken away behind the ledger's back: not what the hash says, and no reason to leave the others unsent.
            None => Json::Null,
        };
        let one = judge(connection, batch, fence, claim, command, tree)?;
        claimed.extend(one.map(|one| Claimed { stored_params: params, ..one }));
    }
    Ok(claimed)
}

/// Claims one command that was just registered or compared, for a caller that makes the call itself; `None` when it
/// must not be made now (limits, pause, lane, approval, not due). Others may have claimed or revised it since it was
/// read: it is read again under the locks, and left alone if it no longer says what the caller asked for.
pub fn claim_one(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    request: &Claim,
    seen: &Command,
) -> Result<Option<Claimed>, LedgerError> {
    let room = room::enter(connection, request.destination, 1)?;
    let claimed = if room.all > 0 { claim_in(connection, batch, fence, request, seen, &room)? } else { None };
    room.used_by(claimed.iter().map(|one| &one.command));
    Ok(claimed)
}

fn claim_in(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    request: &Claim,
    seen: &Command,
    room: &Room,
) -> Result<Option<Claimed>, LedgerError> {
    let Some(due) = due::hold_one(connection, request.destination, &seen.tenant, &seen.key)? else { return Ok(None) };
    let Some((command, Some(params))) = command::read_queued(connection, &[due])?.pop() else { return Ok(None) };
    let due = command.queued.as_ref().is_some_and(|q| q.due_us <= batch.now_us());
    let has_room = command.live.counted == 0 || room.repeats > 0;
    if command.live.status != Status::Approved || !due || !has_room || command.params_hash != seen.params_hash {
        return Ok(None);
    }
    // SAFETY: the statement selects jsonb in this column.
    let params = unsafe { JsonbArg::new(params) }.tree()?.into_owned();
    judge(connection, batch, fence, request, command, params)
}
