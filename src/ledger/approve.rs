//! Approve: a person's consent to exactly one intent hash, for a time.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::batch::{Actor, Batch, Change};
use super::catalog::{self, Operation};
use super::command::{self, Command};
use super::journal;
use super::receipt::{self, Outcome};
use super::{fence, settle};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::{Arg, BYTEA, Connection, INT, Mode, Statement, TEXT, TIME};
use crate::relay::wake;
use command_ledger_domain::approval::{
    self, Approval, ApprovalRule, Quorum, approval_expiry_us, check_approver, quorum,
};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::status::{ApprovalState, Event, Status};
use pgrx::pg_sys::Datum;

static STORED: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT a.role, a.approver, a.intent_hash, a.expires_at, a.revoked_at IS NOT NULL FROM command_ledger.approval a \
      WHERE a.tenant = $1 AND a.idempotency_key = $2",
);

static INSERT: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, TIME, TIME, TEXT, TEXT, BYTEA, TEXT],
    "INSERT INTO command_ledger.approval \
            (tenant, idempotency_key, seq, granted_at, expires_at, role, approver, intent_hash, note) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
);

/// Takes back every approval that a command has.
pub static REVOKE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME],
    "UPDATE command_ledger.approval a SET revoked_at=$3 \
      WHERE a.tenant = $1 AND a.idempotency_key = $2 AND a.revoked_at IS NULL",
);

static NEW_INTENT: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, BYTEA],
    "UPDATE command_ledger.command c SET intent_hash=$3 WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

static WAITING: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT r.tenant, r.idempotency_key FROM command_ledger.approval_request r \
       JOIN command_ledger.command c ON (c.tenant = r.tenant AND c.idempotency_key = r.idempotency_key) \
       JOIN command_ledger.command_type t ON (t.name = c.command_type AND t.version = c.type_version) \
      WHERE t.destination = $1 ORDER BY r.tenant, r.idempotency_key",
);

/// Who the journal says acted when an edited definition changed what would be sent.
const DEFINITION: &str = "command_ledger";

struct StoredApproval {
    role: String,
    stated: Option<String>,
    intent_hash: Vec<u8>,
    expires_us: i64,
    revoked: bool,
}

/// The rule that holds for this command: the type's, with the number of approvers that policy found at registration.
fn rule_of(operation: &Operation, command: &Command) -> Option<ApprovalRule> {
    if command.approvals_required == 0 {
        return None;
    }
    let fallback = ApprovalRule { approvers: 1, ttl_ms: 86_400_000, separate_proposer: true };
    let rule = operation.approval_rule().unwrap_or(fallback);
    Some(ApprovalRule { approvers: command.approvals_required.unsigned_abs(), ..rule })
}

fn stored(connection: &Connection, command: &Command) -> Result<Vec<StoredApproval>, LedgerError> {
    let rows = STORED.run(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)], 0)?;
    Ok(rows
        .iter()
        .map(|r| StoredApproval {
            role: r.text_or_empty(0),
            stated: r.text(1),
            intent_hash: r.bytes(2).unwrap_or_default(),
            expires_us: r.time(3).unwrap_or(0),
            revoked: r.bool(4),
        })
        .collect())
}

/// Where the command's approvals stand now; `None` if it needs none.
pub fn standing(
    connection: &Connection,
    operation: &Operation,
    command: &Command,
    now_us: i64,
) -> Result<Option<Quorum>, LedgerError> {
    let Some(rule) = rule_of(operation, command) else { return Ok(None) };
    let stored = stored(connection, command)?;
    let approvals: Vec<Approval> = stored
        .iter()
        .map(|a| Approval {
            approver: approval::Actor { role: &a.role, stated: a.stated.as_deref() },
            intent_hash: &a.intent_hash,
            expires_us: a.expires_us,
            revoked: a.revoked,
        })
        .collect();
    Ok(Some(quorum(&rule, &approvals, &command.intent_hash, now_us)))
}

/// What the approvals say about the command now, and until when.
pub fn approval_state(
    connection: &Connection,
    operation: &Operation,
    command: &Command,
    now_us: i64,
) -> Result<(ApprovalState, Option<i64>), LedgerError> {
    Ok(match standing(connection, operation, command, now_us)? {
        None => (ApprovalState::NotNeeded, None),
        Some(Quorum { missing: 0, valid_until_us }) => (ApprovalState::Valid, valid_until_us),
        Some(_) => (ApprovalState::Missing, None),
    })
}

/// How many approvals a command still lacks, for the receipt.
pub fn missing(connection: &Connection, command: &Command) -> Result<i32, LedgerError> {
    if command.approvals_required == 0 || command.live.status.is_settled() {
        return Ok(0);
    }
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let standing = standing(connection, &operation, command, datum::now_us())?;
    Ok(standing.map_or(0, |q| i32::try_from(q.missing).unwrap_or(i32::MAX)))
}

/// What the intent hash of a command has become, if an edited destination request changed it. What was sent, or may
/// have been, keeps the hash that it was sent under.
pub fn edited_intent(operation: &Operation, command: &Command, params: &Json) -> Result<Option<[u8; 32]>, LedgerError> {
    let open = matches!(command.live.status, Status::Planned | Status::Approved | Status::Failed);
    if !open || command.live.maybe_sent || command.redacted {
        return Ok(None);
    }
    let current = super::register::intent_of(operation, &command.tenant, &command.key, params)?;
    Ok((current != command.intent_hash).then_some(current))
}

/// Writes a changed intent hash to the record, which the caller holds. Approvals given for the old one are void from
/// then on.
pub fn change_intent(connection: &Connection, command: &mut Command, current: [u8; 32]) -> Result<(), LedgerError> {
    NEW_INTENT.execute(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key), Arg::Bytes(&current)])?;
    let actor = Actor { role: DEFINITION.to_owned(), stated: None };
    let detail = journal::content_change(command, &command.params_hash, &current);
    journal::note(connection, command, datum::now_us(), journal::INTENT_CHANGED, &actor, Some(&detail))?;
    command.intent_hash = current;
    Ok(())
}

/// Brings the intent hash of a locked command to what would be executed now.
pub fn refresh_intent(
    connection: &Connection,
    operation: &Operation,
    command: &mut Command,
) -> Result<(), LedgerError> {
    let Some(params) = super::settle::params_of(connection, command)? else { return Ok(()) };
    match edited_intent(operation, command, &params)? {
        Some(current) => change_intent(connection, command, current),
        None => Ok(()),
    }
}

/// Refreshes the intent hashes of the commands that wait for approval at an edited destination, so that approvers see
/// and sign what would be sent. Says how many changed.
pub fn refresh_waiting(connection: &Connection, destination: &str) -> Result<usize, LedgerError> {
    let rows = WAITING.run(connection, &[Arg::Text(destination)], 0)?;
    let keys: Vec<_> = rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1))).collect();
    let mut changed = 0;
    for (tenant, key) in keys {
        let Some(mut command) = command::lock(connection, &tenant, &key)? else { continue };
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        let before = command.intent_hash;
        refresh_intent(connection, &operation, &mut command)?;
        changed += usize::from(command.intent_hash != before);
    }
    Ok(changed)
}

/// CL007 with the hash that would have been right: who approves may have seen one from before an edit.
fn naming_current(error: LedgerError, command: &Command) -> LedgerError {
    if error.code != Code::ApprovalMismatch {
        return error;
    }
    error.detail(format!("The intent hash of what would be executed now is \\x{}.", hex(&command.intent_hash)))
}

/// Who acts in a function, for the journal.
pub fn actor(caller: &Caller, stated: Option<&str>) -> Actor {
    Actor { role: caller.name(), stated: stated.map(str::to_owned) }
}

fn hash_detail(hash: &[u8], more: &[(&'static str, Option<String>)]) -> Json<'static> {
    let mut members = vec![("intent_hash".into(), Json::String(hex(hash).into()))];
    members.extend(more.iter().filter_map(|(name, value)| Some(((*name).into(), Json::String(value.clone()?.into())))));
    Json::Object(members)
}

/// Opens a command for a decision of an approver: locked, rights checked, intent hash up to date.
fn open(
    caller: &Caller,
    connection: &Connection,
    capability: Capability,
    tenant: &str,
    key: &str,
) -> Result<(Command, std::rc::Rc<Operation>), LedgerError> {
    caller.require(connection, capability, tenant, None)?;
    let mut command = command::lock_existing(connection, tenant, key)?;
    caller.require(connection, capability, tenant, Some(&command.command_type))?;
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    refresh_intent(connection, &operation, &mut command)?;
    Ok((command, operation))
}

/// Refuses texts that are too long to be kept with a decision (22023).
pub fn checked_note(text: Option<&str>, name: &str) -> Result<(), LedgerError> {
    if text.is_some_and(|t| t.len() > 4_000) {
        return Err(LedgerError::new(Code::InvalidArgument, format!("{name} is longer than 4000 bytes"))
            .hint("Keep it short; put long texts where people can find them and name the place."));
    }
    Ok(())
}

/// `approve(…)`
pub fn approve(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, hash) = (key_of(call, 0)?, call.required_bytea(1, "intent_hash")?);
    let (expires_in_ms, note, stated) = (call.interval_us(2).map(|us| us / 1_000), call.text(3), call.text(4));
    let tenant = tenant_of(call, 5)?;
    checked_note(note, "note")?;
    as_owner(call, |caller, connection| {
        let (mut command, operation) = open(caller, connection, Capability::Approve, tenant, key)?;
        let now_us = datum::now_us();
        let actor = actor(caller, stated);
        // Whether the state permits it at all comes first, as in every other call.
        let before = approval_state(connection, &operation, &command, now_us)?;
        command_ledger_domain::status::next(&command.state(before.0), &Event::Approve { quorum: false })?;
        let rule = rule_of(&operation, &command).ok_or_else(|| {
            LedgerError::new(Code::IllegalTransition, "this command needs no approval")
                .detail(format!("It is {}.", command.live.status))
                .hint("Look at status(); cancel() withdraws it.")
        })?;
        check_approver(
            &rule,
            approval::Actor { role: &command.proposer, stated: None },
            approval::Actor { role: &actor.role, stated: actor.stated.as_deref() },
            hash,
            &command.intent_hash,
        )
        .map_err(|error| naming_current(error, &command))?;
        let expires_us = approval_expiry_us(&rule, expires_in_ms, now_us)?;
        // The quorum is counted again with the new approval.
        INSERT.execute(
            connection,
            &[
                Arg::Text(tenant),
                Arg::Text(key),
                Arg::Int(command.live.seq + 1),
                Arg::Time(now_us),
                Arg::Time(expires_us),
                Arg::Text(&actor.role),
                Arg::or_null(stated, Arg::Text),
                Arg::Bytes(hash),
                Arg::or_null(note, Arg::Text),
            ],
        )?;
        let (state, valid_until_us) = approval_state(connection, &operation, &command, now_us)?;
        let quorum = state == ApprovalState::Valid;
        let counted = command.deadline().counted_from(now_us, operation.policy.retry.deadline_ms);
        let mut batch = Batch::new(now_us, actor);
        let change = Change {
            detail: Some(hash_detail(hash, &[])),
            approved_until_us: valid_until_us,
            deadline: quorum.then_some(counted),
            ..Change::default()
        };
        batch.apply(&mut command, state, &operation.destination, Event::Approve { quorum }, change)?;
        batch.flush(connection)?;
        wake::at_commit();
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

/// `reject(…)`
pub fn reject(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, hash) = (key_of(call, 0)?, call.required_bytea(1, "intent_hash")?);
    let (reason, stated, tenant) = (call.text(2), call.text(3), tenant_of(call, 4)?);
    checked_note(reason, "reason")?;
    as_owner(call, |caller, connection| {
        let (mut command, operation) = open(caller, connection, Capability::Approve, tenant, key)?;
        let now_us = datum::now_us();
        if hash != command.intent_hash.as_slice() {
            let rule = ApprovalRule { approvers: 1, ttl_ms: 1, separate_proposer: false };
            let nobody = approval::Actor { role: "", stated: None };
            check_approver(&rule, nobody, nobody, hash, &command.intent_hash)
                .map_err(|error| naming_current(error, &command))?;
        }
        fence::mark_sent_elsewhere(connection, &mut command)?;
        let (state, _) = approval_state(connection, &operation, &command, now_us)?;
        let mut batch = Batch::new(now_us, actor(caller, stated));
        let mut change = Change {
            detail: Some(hash_detail(hash, &[("reason", reason.map(str::to_owned))])),
            message: Some(reason.map_or_else(|| "rejected by an approver".to_owned(), |r| format!("rejected: {r}"))),
            skip_lane_on_failure: operation.skips_lane(),
            ..Change::default()
        };
        settle::look_up_if_maybe_sent(&operation, &command, &mut change, now_us);
        batch.apply(&mut command, state, &operation.destination, Event::Reject, change)?;
        batch.flush(connection)?;
        wake::at_commit();
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

/// `revoke_approval(…)`
pub fn revoke_approval(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, reason, tenant) = (key_of(call, 0)?, call.text(1), tenant_of(call, 2)?);
    checked_note(reason, "reason")?;
    as_owner(call, |caller, connection| {
        let (mut command, operation) = open(caller, connection, Capability::Approve, tenant, key)?;
        let now_us = datum::now_us();
        let (state, _) = approval_state(connection, &operation, &command, now_us)?;
        let mut batch = Batch::new(now_us, actor(caller, None));
        let mut change = Change {
            detail: Some(hash_detail(&command.intent_hash, &[("reason", reason.map(str::to_owned))])),
            ..Change::default()
        };
        settle::look_up_if_maybe_sent(&operation, &command, &mut change, now_us);
        let before = command.live.status;
        batch.apply(&mut command, state, &operation.destination, Event::Revoke, change)?;
        REVOKE.execute(connection, &[Arg::Text(tenant), Arg::Text(key), Arg::Time(now_us)])?;
        batch.flush(connection)?;
        wake::at_commit();
        let outcome = if before == Status::Approved || state == ApprovalState::Valid {
            Outcome::Changed
        } else {
            Outcome::Unchanged
        };
        receipt::one(call, connection, &command, &operation.destination, outcome)
    })
}

crate::sql_function!(ledger_approve, pg_finfo_ledger_approve, approve);
crate::sql_function!(ledger_reject, pg_finfo_ledger_reject, reject);
crate::sql_function!(ledger_revoke_approval, pg_finfo_ledger_revoke_approval, revoke_approval);
