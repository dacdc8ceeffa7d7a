//! Whether a command that is due may be sent, checked on the rows that the claim holds (I6); what follows if not.

use super::batch::{Batch, Change};
use super::catalog::Operation;
use super::command::{Command, Lease};
use super::{approve, catalog, fence, settle};
use crate::pg::random;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use command_ledger_domain::config::{IdempotencyMode, Transport};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::{ClaimAllowed, Fence, Identity, RowFacts, claim_allowed};
use command_ledger_domain::hash::{hex, params_hash, sha256};
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::request::{self, Intent, RenderedRequest};
use command_ledger_domain::send::{Facts, Permit, Why, lease_until, may_send, same_request};
use command_ledger_domain::status::{ApprovalState, ErrorClass, Event};

use super::dispatch::{Claim, Claimed};

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

/// What the journal knows of a lease token: enough to recognise it, not enough to use it.
pub fn token_mark(token: &[u8; 16]) -> String {
    hex(&sha256(token)[..12])
}

/// Why a command that is due may not be sent; the event that follows from it.
enum Verdict {
    Send { request: Option<Box<RenderedRequest>>, digest: [u8; 32], lease_expires_us: i64 },
    Instead { event: Event, look_up: bool, message: Option<String> },
    Leave,
}

/// Judges one command on its way out: the attempt that starts, or nothing where something else came of it.
pub fn judge(
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
            let token = random::uuid().ok_or_else(|| defect("no random numbers from the system"))?;
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
    let max_attempts = operation.retry().max_attempts;
    let facts = Facts {
        fence: fenced(operation, command, fence, now_us),
        approval,
        deadline_us: command.deadline_us,
        counted_attempts: live.counted,
        max_attempts,
        maybe_sent: live.maybe_sent,
        absence_established: command.queued.as_ref().is_some_and(|q| q.absence_place.is_some()),
        deduplicates: operation.deduplicates(live.first_sent_us, now_us),
        has_lookup: operation.effective.lookup.is_some(),
    };
    match may_send(&facts, now_us) {
        Permit::Send => {}
        Permit::Leave => return Verdict::Leave,
        Permit::Instead { event, look_up, why } => {
            let message = why.map(|why| match why {
                Why::DeadlineOver => "the deadline passed before it was sent".to_owned(),
                Why::BudgetUsed => format!("all {max_attempts} attempts are used"),
            });
            return Verdict::Instead { event, look_up, message };
        }
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
    if !same_request(live.maybe_sent, live.request_digest, &digest) {
        return Verdict::Instead { event: Event::RequestChanged, look_up: false, message: None };
    }
    let lease_ms = claim.lease_ms.unwrap_or_else(|| {
        // The wire may wait as long for a connection as for the answer; the rest is for collecting the answer.
        request.as_ref().map_or(60_000, |r| r.timeout_ms.saturating_mul(2).saturating_add(5_000))
    });
    let uses_key = operation.effective.idempotency.mode != IdempotencyMode::None;
    let window_end_us = live.first_sent_us.filter(|_| uses_key).and_then(|first| operation.window_end_us(first));
    match lease_until(&facts, now_us, lease_ms, approved_until_us, window_end_us) {
        Some(lease_expires_us) => Verdict::Send { request, digest, lease_expires_us },
        None => Verdict::Leave,
    }
}
