//! Execute: claiming due commands. A claim's commit is the checkpoint before the send (I2); everything that a send
//! rests on is checked on the rows that the claim holds (I6).

use super::batch::{Batch, Change};
use super::catalog::Operation;
use super::command::{self, Command, Lease};
use super::{advisory, approve, catalog, fence, settle};
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::{Level, defect, log};
use crate::pg::spi::{Arg, BIGINT, BOOL, Connection, INT, Mode, Statement, TEXT, TEXTS, TIME};
use crate::pg::transaction::nested;
use command_ledger_domain::config::{IdempotencyMode, Transport};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::{ClaimAllowed, Fence, Identity, RowFacts, claim_allowed};
use command_ledger_domain::hash::{hex, params_hash, sha256};
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::request::{self, Intent, RenderedRequest};
use command_ledger_domain::retry::lease_expiry_us;
use command_ledger_domain::status::{ApprovalState, ErrorClass, Event, Status};
use pgrx::pg_sys::Datum;
use std::rc::Rc;

static IN_FLIGHT: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE o.counted_attempts > 1), \
            pg_catalog.min(o.lease_expires_at) FROM command_ledger.outbox o \
      WHERE o.destination = $1 AND o.lease_token IS NOT NULL",
);

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
    "SELECT o.ordering_key IS NULL OR o.idempotency_key = \
             (SELECT l.idempotency_key FROM command_ledger.lane l \
               WHERE l.tenant = o.tenant AND l.destination = o.destination AND l.ordering_key = o.ordering_key \
               ORDER BY l.place LIMIT 1) \
       FROM command_ledger.outbox o WHERE o.tenant = $1 AND o.idempotency_key = $2 FOR NO KEY UPDATE OF o SKIP LOCKED",
);

/// A command that cannot be claimed is looked at again after this time.
const PUT_OFF_US: i64 = 60_000_000;

static PUT_OFF: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TEXT],
    "UPDATE command_ledger.outbox o SET due_at=$3, error_message=$4 WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

static HOLD_RECORD: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT true FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2 \
       FOR NO KEY UPDATE SKIP LOCKED",
);

/// Whether a claim, which holds the outbox row, got the record too. All others take the record first and then wait for
/// the outbox row: a claim that waited for the record would be a deadlock. Who holds the record has its turn first, and
/// the next claim judges what is left. A send does not write the record and needs no hold on it.
fn holds_record(connection: &Connection, command: &Command) -> Result<bool, LedgerError> {
    Ok(HOLD_RECORD.first(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)])?.is_some())
}

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

/// What the journal knows of a lease token: enough to recognise it, not enough to use it.
pub fn token_mark(token: &[u8; 16]) -> String {
    hex(&sha256(token)[..12])
}

/// What may start at a destination now. Whoever has it holds the destination's lock, so that it stays true until the
/// commit.
pub struct Room {
    /// Attempts that may start, and of these repeats.
    all: i64,
    repeats: i64,
    /// When the first lease of an attempt in flight ends.
    pub first_lease_us: Option<i64>,
}

/// Waits for a destination's lock and counts what is in flight there.
///
/// # Errors
/// CL003 for an unknown destination.
pub fn enter(connection: &Connection, destination: &str) -> Result<Room, LedgerError> {
    advisory::lock_destination(destination);
    room(connection, destination)
}

/// Counts again what is in flight, under the lock.
pub fn room(connection: &Connection, destination: &str) -> Result<Room, LedgerError> {
    let known = catalog::destination(connection, destination)?;
    let leased = IN_FLIGHT.first(connection, &[Arg::Text(destination)])?;
    let count = |column| leased.as_ref().and_then(|row| row.big(column)).unwrap_or(0);
    let left = |limit: i64, used: i64| if known.paused { 0 } else { (limit - used).max(0) };
    Ok(Room {
        all: left(known.limits.in_flight, count(0)),
        repeats: left(known.limits.retries_in_flight, count(1)),
        first_lease_us: leased.as_ref().and_then(|row| row.time(2)),
    })
}

/// What a claim handed out.
pub struct Claims {
    pub claimed: Vec<Claimed>,
    /// Something was claimed or judged.
    pub any: bool,
    /// Something else than a claim came of it: a case, an end.
    pub others: bool,
}

/// Claims due commands of one destination and writes it down, all together.
///
/// # Errors
/// CL003 for an unknown destination; anything that one of the commands met: then [`claim_each`] is the way.
pub fn claim_together(
    connection: &Connection,
    mut batch: Batch,
    fence: Fence,
    request: &Claim,
) -> Result<Claims, LedgerError> {
    let claimed = claim(connection, &mut batch, fence, request)?;
    let (any, others) = (!batch.is_empty(), batch.len() > claimed.len());
    batch.flush(connection)?;
    Ok(Claims { claimed, any, others })
}

/// As [`claim_together`], each command in a subtransaction of its own: one that cannot be read, judged or written is put
/// off, and all others go on.
///
/// # Errors
/// CL003 for an unknown destination.
pub fn claim_each(
    connection: &Connection,
    batch: impl Fn() -> Batch,
    fence: Fence,
    request: &Claim,
) -> Result<Claims, LedgerError> {
    let mut all = Claims { claimed: Vec::new(), any: false, others: false };
    let now_us = batch().now_us();
    for key in candidates(connection, now_us, request)? {
        let (tenant, name) = key.clone();
        let alone = nested(|| {
            let mut batch = batch();
            let claimed = judge_all(connection, &mut batch, fence, request, &[key])?;
            let (any, others) = (!batch.is_empty(), batch.len() > claimed.len());
            batch.flush(connection)?;
            Ok(Claims { claimed, any, others })
        });
        match alone {
            Ok(Claims { claimed, any, others }) => {
                all.claimed.extend(claimed);
                all.any |= any;
                all.others |= others;
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
    Ok(all)
}

/// Claims due commands of one destination into the batch. Commands that are met and may not be sent (lapsed approval,
/// deadline, tampered, …) get the transition that follows instead.
///
/// # Errors
/// CL003 for an unknown destination.
pub fn claim(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    claim: &Claim,
) -> Result<Vec<Claimed>, LedgerError> {
    let keys = candidates(connection, batch.now_us(), claim)?;
    judge_all(connection, batch, fence, claim, &keys)
}

/// Locks what is due and has room, in the order in which it is to be sent.
fn candidates(connection: &Connection, now_us: i64, claim: &Claim) -> Result<Vec<(String, String)>, LedgerError> {
    let room = enter(connection, claim.destination)?;
    let wanted = i64::from(claim.max.max(0)).min(room.all);
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let identity = fence::identity();
    let mut keys = Vec::new();
    // First attempts come first: repeats never crowd them out.
    for (repeats, limit) in [(false, wanted), (true, wanted.min(room.repeats))] {
        let limit = limit.min(wanted - i64::try_from(keys.len()).unwrap_or(0));
        if limit <= 0 {
            continue;
        }
        let rows = CANDIDATES.run(
            connection,
            &[
                Arg::Text(claim.destination),
                Arg::Time(now_us),
                Arg::Big(fence::identity_tag(identity)),
                Arg::Bool(repeats),
                Arg::or_null(claim.tenants, Arg::Texts),
                Arg::or_null(claim.command_types, Arg::Texts),
                Arg::Int(i32::try_from(limit).unwrap_or(i32::MAX)),
            ],
            limit,
        )?;
        keys.extend(rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1))));
    }
    Ok(keys)
}

fn judge_all(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    claim: &Claim,
    keys: &[(String, String)],
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
    let room = enter(connection, request.destination)?;
    let args = [Arg::Text(&seen.tenant), Arg::Text(&seen.key)];
    if room.all == 0 || !ONE_CANDIDATE.first(connection, &args)?.is_some_and(|r| r.bool(0)) {
        return Ok(None);
    }
    let Some(command) = command::read_fresh(connection, &seen.tenant, &seen.key)? else { return Ok(None) };
    let due = command.queued.as_ref().is_some_and(|q| q.due_us <= batch.now_us());
    let has_room = command.live.counted == 0 || room.repeats > 0;
    if command.live.status != Status::Approved || !due || !has_room || command.params_hash != seen.params_hash {
        return Ok(None);
    }
    let Some(params) = settle::params_of(connection, &command)? else { return Ok(None) };
    judge(connection, batch, fence, request, command, params)
}

/// Why a command that is due may not be sent; the event that follows from it.
enum Verdict {
    Send { request: Option<Box<RenderedRequest>>, digest: [u8; 32], lease_expires_us: i64 },
    Instead { event: Event, look_up: bool, message: Option<String> },
    Leave,
}

fn judge(
    connection: &Connection,
    batch: &mut Batch,
    fence: Fence,
    claim: &Claim,
    mut command: Command,
    params: Json<'static>,
) -> Result<Option<Claimed>, LedgerError> {
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let now_us = batch.now_us();
    let intact = params_hash(&command.tenant, &command.command_type, &params, &operation.immaterial)
        .is_ok_and(|hash| hash == command.params_hash);
    if intact && let Some(current) = approve::edited_intent(&operation, &command, &params)? {
        if !holds_record(connection, &command)? {
            return Ok(None);
        }
        approve::change_intent(connection, &mut command, current)?;
    }
    let (approval, approved_until_us) = approve::approval_state(connection, &operation, &command, now_us)?;
    forget_other_places(&mut command, fence);
    if intact && fenced(&operation, &command, fence, now_us) == ClaimAllowed::AsRepeat {
        if !holds_record(connection, &command)? {
            return Ok(None);
        }
        command.live.first_sent_us = Some(command.registered_us);
        let event = Event::Adopted { repeat_safe: true };
        batch.apply(&mut command, approval, &operation.destination, event, Change::default())?;
    }
    let verdict = if intact {
        decide(&operation, &command, &params, fence, approval, approved_until_us, claim, now_us)
    } else {
        Verdict::Instead {
            event: Event::Tampered,
            look_up: false,
            message: Some("the stored params do not match their hash".into()),
        }
    };
    match verdict {
        Verdict::Leave => Ok(None),
        Verdict::Instead { event, look_up, message } => {
            if !holds_record(connection, &command)? {
                return Ok(None);
            }
            let mut change = Change { message, skip_lane_on_failure: operation.skips_lane(), ..Change::default() };
            if look_up {
                settle::schedule_lookup(&operation, &mut change, now_us);
            }
            batch.apply(&mut command, approval, &operation.destination, event, change)?;
            Ok(None)
        }
        Verdict::Send { request, digest, lease_expires_us } => {
            let token = datum::random_uuid().ok_or_else(|| defect("no random numbers from the system"))?;
            let lease = Lease {
                token,
                expires_us: lease_expires_us,
                epoch: claim.epoch,
                worker: claim.worker.map(str::to_owned),
            };
            let mut detail = vec![
                ("lease".into(), Json::String(token_mark(&token).into())),
                ("request".into(), Json::String(hex(&digest).into())),
            ];
            if let Some(worker) = claim.worker {
                detail.push(("worker".into(), Json::String(worker.to_owned().into())));
            }
            let change = Change {
                detail: Some(Json::Object(detail)),
                lease: Some(lease.clone()),
                request_digest: Some(digest),
                approved_until_us,
                ..Change::default()
            };
            batch.apply(&mut command, approval, &operation.destination, Event::Claim, change)?;
            Ok(Some(Claimed { command, operation, params, stored_params: None, request, lease }))
        }
    }
}

/// In a ledger that came to another place, what was found out before counts no more. (Where a person adopted the place,
/// that person decided about it.)
fn forget_other_places(command: &mut Command, fence: Fence) {
    if let (Fence::Moved { .. }, Some(queued)) = (fence, &mut command.queued)
        && queued.absence_place.is_some_and(|place| place != fence::place_tag())
    {
        queued.absence_place = None;
    }
}

fn fenced(operation: &Operation, command: &Command, fence: Fence, now_us: i64) -> ClaimAllowed {
    let live = &command.live;
    let queued = command.queued.as_ref();
    let here = fence::identity();
    let written_by = match queued {
        Some(q) if q.identity == fence::identity_tag(here) => here,
        _ => Identity { system_identifier: 0, database_oid: 0, extension_oid: 0 },
    };
    let row = RowFacts {
        written_by,
        deduplicates: operation.deduplicates(Some(live.first_sent_us.unwrap_or(command.registered_us)), now_us),
        absence_established_here: queued.is_some_and(|q| q.absence_place.is_some()),
        maybe_sent: live.maybe_sent,
        has_lookup: operation.effective.lookup.is_some(),
    };
    claim_allowed(fence, here, &row)
}

#[allow(clippy::too_many_arguments, reason = "a send rests on this many facts")]
fn decide(
    operation: &Operation,
    command: &Command,
    params: &Json,
    fence: Fence,
    approval: ApprovalState,
    approved_until_us: Option<i64>,
    claim: &Claim,
    now_us: i64,
) -> Verdict {
    let live = &command.live;
    let instead = |event| Verdict::Instead { event, look_up: false, message: None };
    let has_lookup = operation.effective.lookup.is_some();
    let absence = command.queued.as_ref().is_some_and(|q| q.absence_place.is_some());
    match fenced(operation, command, fence, now_us) {
        // The caller marks a repeat before it asks.
        ClaimAllowed::Yes | ClaimAllowed::AsRepeat => {}
        ClaimAllowed::No(_) => return Verdict::Leave,
        ClaimAllowed::LookupFirst => return Verdict::Instead { event: Event::Fence, look_up: true, message: None },
        ClaimAllowed::Case => return instead(Event::Fence),
    }
    if !approval.permits_send() {
        return instead(Event::ApprovalLapsed);
    }
    if command.deadline_us.is_some_and(|d| d <= now_us) {
        return Verdict::Instead {
            event: Event::DeadlineOver,
            look_up: has_lookup && live.maybe_sent,
            message: Some("the deadline passed before it was sent".into()),
        };
    }
    if live.counted >= operation.retry().max_attempts {
        return Verdict::Instead {
            event: Event::BudgetOver { error: ErrorClass::BudgetExhausted },
            look_up: has_lookup && live.maybe_sent,
            message: Some(format!("all {} attempts are used", live.counted)),
        };
    }
    let rests_on_key = live.maybe_sent && !absence;
    if rests_on_key && !operation.deduplicates(live.first_sent_us, now_us) {
        return Verdict::Instead { event: Event::WindowOver, look_up: has_lookup, message: None };
    }
    let (request, digest) = match &operation.effective.transport {
        Transport::Http => {
            let (id, destination_key) = (key::uuid_text(&command.id()), command.destination_key());
            let intent = Intent {
                params,
                destination_key: &destination_key,
                command_id: &id,
                tenant: &command.tenant,
                command_type: &command.command_type,
            };
            match request::render(&operation.effective, &intent) {
                Ok(request) => {
                    let digest = request.digest();
                    (Some(Box::new(request)), digest)
                }
                Err(error) => {
                    return Verdict::Instead {
                        event: Event::BudgetOver { error: ErrorClass::Rejected },
                        look_up: false,
                        message: Some(format!("the request cannot be built: {} at {}", error.reason, error.path)),
                    };
                }
            }
        }
        Transport::Function { .. } | Transport::Pull => (None, command.intent_hash),
    };
    if live.maybe_sent && live.request_digest.is_some_and(|sent| sent != digest) {
        return Verdict::Instead { event: Event::RequestChanged, look_up: false, message: None };
    }
    let lease_ms = claim.lease_ms.unwrap_or_else(|| {
        // The wire may wait as long for a connection as for the answer; the rest is for collecting the answer.
        request.as_ref().map_or(60_000, |r| r.timeout_ms.saturating_mul(2).saturating_add(5_000))
    });
    let uses_key = operation.effective.idempotency.mode != IdempotencyMode::None;
    let window_end_us = (rests_on_key && uses_key)
        .then(|| live.first_sent_us.and_then(|first| operation.window_end_us(first)))
        .flatten();
    let lease_expires_us = lease_expiry_us(now_us, lease_ms, command.deadline_us, approved_until_us, window_end_us);
    if lease_expires_us <= now_us {
        return Verdict::Leave;
    }
    Verdict::Send { request, digest, lease_expires_us }
}
