//! Changing what a command says, before anything was attempted.

use super::access::{Capability, as_owner, key_of, tenant_of};
use super::approve::{self, actor};
use super::batch::{Batch, Change};
use super::catalog::{self, Operation};
use super::command::{self, Command};
use super::lookalike;
use super::receipt::{self, Outcome};
use super::register::{self, Verdict};
use super::{fence, journal, settle};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, BYTEA, Connection, INT, JSONB, Mode, Statement, TEXT};
use crate::relay::wake;
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::{HASH_VERSION, hex};
use command_ledger_domain::json::Json;
use command_ledger_domain::status::{Event, Status, next};
use pgrx::pg_sys::Datum;

static NEW_CONTENT: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, JSONB, BYTEA, BYTEA, INT, INT],
    "UPDATE command_ledger.command c \
        SET params=$3, params_hash=$4, intent_hash=$5, approvals_required=$6, hash_version=$7 \
      WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

/// CL007: the command is no longer what the caller saw.
fn moved_on(command: &Command) -> LedgerError {
    LedgerError::new(Code::ApprovalMismatch, "the command is not (or no longer) the version that expected_hash names")
        .detail(format!("Its intent hash is \\x{}.", hex(&command.intent_hash)))
        .hint("Read status() again, see what changed, and revise with the intent_hash that it shows.")
}

/// Whether the caller saw the current content: the stored intent hash, or the one after an edit of the destination.
fn seen(operation: &Operation, command: &Command, stored: &Json, given: &[u8]) -> Result<bool, LedgerError> {
    Ok(given == command.intent_hash || given == register::intent_of(operation, &command.tenant, &command.key, stored)?)
}

/// Writes the new content into the locked row and the command; the approvals of the old one are taken back, so that
/// they do not come to life again when somebody revises back.
fn write_content(
    connection: &Connection,
    command: &mut Command,
    params: &JsonbArg,
    verdict: &Verdict,
    now_us: i64,
) -> Result<(), LedgerError> {
    NEW_CONTENT.execute(
        connection,
        &[
            Arg::Text(&command.tenant),
            Arg::Text(&command.key),
            Arg::Datum(params.datum()),
            Arg::Bytes(&verdict.params_hash),
            Arg::Bytes(&verdict.intent_hash),
            Arg::Int(verdict.approvals_required),
            Arg::Int(i32::from(HASH_VERSION)),
        ],
    )?;
    approve::REVOKE.execute(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key), Arg::Time(now_us)])?;
    command.held_rows = command::HeldRows::default();
    command.params_hash = verdict.params_hash;
    command.intent_hash = verdict.intent_hash;
    command.approvals_required = verdict.approvals_required;
    command.hash_version = i32::from(HASH_VERSION);
    if let Some(queued) = &mut command.queued {
        queued.approved_until_us = None;
    }
    Ok(())
}

/// `revise(key, params, expected_hash, tenant)`
///
/// Schema, policy and approval rule are those of the version that the command was registered with, as everywhere in
/// its life; a new version takes a new command. The same params again change nothing, whatever hash comes with them:
/// that is the repeat of a revision whose answer was lost.
pub fn revise(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, params) = (key_of(call, 0)?, call.required_jsonb(1, "params")?);
    let expected_hash = call.required_bytea(2, "expected_hash")?;
    let tenant = tenant_of(call, 3)?;
    let tree = params.tree()?;
    as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Propose, tenant, None)?;
        let mut command = command::lock_existing(connection, tenant, key)?;
        caller.require(connection, Capability::Propose, tenant, Some(&command.command_type))?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        fence::mark_sent_elsewhere(connection, &mut command)?;
        let now_us = datum::now_us();
        let (approval, _) = approve::approval_state(connection, &operation, &command, now_us)?;
        let approval_needed = command.approvals_required > 0;
        // First whether it may be revised at all, then whether there is anything to do.
        next(&command.state(approval), &Event::Revise { approval_needed })?;
        let stored =
            settle::params_of(connection, &command)?.ok_or_else(|| defect("an open command without params"))?;
        if canonical(&stored)? == canonical(&tree)? {
            return receipt::one(call, connection, &command, &operation.destination, Outcome::Unchanged);
        }
        if !seen(&operation, &command, &stored, expected_hash)? {
            return Err(moved_on(&command));
        }
        let verdict = register::judge(&operation, tenant, key, &params, &tree)?;
        if verdict.params_hash != command.params_hash {
            lookalike::check(connection, &operation, key, &verdict.params_hash, None, now_us)?;
        }
        let approval_needed = verdict.approvals_required > 0;
        // Counts from here for a command that needs no approval any more and had no deadline before.
        let starts = !approval_needed && command.deadline_us.is_none();
        let counted = command.deadline().counted_from(now_us, operation.policy.retry.deadline_ms);
        let change = Change {
            detail: Some(journal::content_change(&command, &verdict.params_hash, &verdict.intent_hash)),
            deadline: starts.then_some(counted),
            ..Change::default()
        };
        write_content(connection, &mut command, &params, &verdict, now_us)?;
        let mut batch = Batch::new(now_us, actor(caller, None));
        batch.apply(&mut command, approval, &operation.destination, Event::Revise { approval_needed }, change)?;
        batch.flush(connection)?;
        if command.live.status == Status::Approved {
            wake::at_commit();
        }
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

crate::sql_function!(ledger_revise, pg_finfo_ledger_revise, revise);
