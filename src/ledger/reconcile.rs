//! Reconcile: a person's finding closes a question, a person's decision gives a failed command one more attempt.
//!
//! | finding | the open question | afterwards |
//! |---|---|---|
//! | found | did it happen? yes | confirmed, with the record and the evidence |
//! | not_found | did it happen? no | approved or planned again; failed where somebody had asked to stop it |
//! | abandon | is given up | failed |
//!
//! On a final command each of them closes the case and changes nothing else.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::approve::{self, actor, checked_note};
use super::batch::{Batch, Change};
use super::cancel::reason_detail;
use super::catalog::{self, Operation};
use super::command::{self, Command};
use super::lane;
use super::predicate::is_record_id;
use super::receipt::{self, Outcome};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT, TIME};
use crate::pg::watch;
use crate::relay::wake;
use command_ledger_domain::answer::second_effect;
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;
use command_ledger_domain::status::{CaseAction, Event, Status, next};
use pgrx::pg_sys::Datum;
use std::rc::Rc;

static ASSIGN: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT, TIME],
    "UPDATE command_ledger.reconciliation_case r SET owner=$3, assigned_at=$4 \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL \
        AND coalesce(r.owner, '') <> coalesce($3, '')",
);

/// The same where the SQL objects are still those of version 0.1.0.
static ASSIGN_0_1: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TEXT],
    "UPDATE command_ledger.reconciliation_case r SET owner=$3 \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL \
        AND coalesce(r.owner, '') <> coalesce($3, '')",
);

/// What a person found out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finding {
    Found,
    NotFound,
    Abandon,
}

impl Finding {
    fn parse(word: &str) -> Result<Self, LedgerError> {
        match word {
            "found" => Ok(Self::Found),
            "not_found" => Ok(Self::NotFound),
            "abandon" => Ok(Self::Abandon),
            _ => Err(LedgerError::new(Code::InvalidArgument, "finding must be found, not_found or abandon").hint(
                "found: the effect is there; not_found: it is certain that nothing happened; abandon: give it up.",
            )),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::NotFound => "not_found",
            Self::Abandon => "abandon",
        }
    }
}

/// What comes with a finding.
struct Report<'a> {
    finding: Finding,
    record_id: Option<&'a str>,
    evidence: Option<JsonbArg>,
    note: Option<&'a str>,
    expected_attempt: Option<i32>,
}

impl Report<'_> {
    /// A finding about an attempt must not settle a later one. It may leave the attempt out only while there was at
    /// most one, or where it does not permit another send.
    fn check_attempt(&self, attempt: i32) -> Result<(), LedgerError> {
        let hint = "Check what this attempt did, then call reconcile() with expected_attempt set to it.";
        match self.expected_attempt {
            Some(expected) if expected != attempt => Err(LedgerError::new(
                Code::IllegalTransition,
                "the finding is about another attempt than the current one",
            )
            .detail(format!("The current attempt is {attempt}."))
            .hint(hint)),
            None if attempt > 1 && self.finding == Finding::NotFound => Err(LedgerError::new(
                Code::InvalidArgument,
                "not_found needs expected_attempt once there was more than one attempt",
            )
            .detail(format!("The current attempt is {attempt}."))
            .hint(hint)),
            _ => Ok(()),
        }
    }

    /// The event that the finding is for this command.
    fn event(&self, operation: &Operation, command: &Command, now_us: i64) -> Event {
        match self.finding {
            Finding::Found => {
                let deduplicates = operation.deduplicates(command.live.first_sent_us, now_us);
                // A finding without a record says that it is there, not that there is another.
                let same_record = self
                    .record_id
                    .is_none_or(|id| !second_effect(command.record_id.as_deref(), Some(id), deduplicates));
                Event::ReconcileFound { same_record }
            }
            Finding::NotFound => Event::ReconcileNotFound,
            Finding::Abandon => Event::Abandon,
        }
    }

    /// What the journal keeps: facts, no payload.
    fn detail(&self) -> Json<'static> {
        let text = |value: &str| Json::String(value.to_owned().into());
        let mut members = vec![("finding".into(), text(self.finding.as_str()))];
        members.extend(self.record_id.map(|id| ("record_id".into(), text(id))));
        members.extend(self.note.map(|note| ("note".into(), text(note))));
        Json::Object(members)
    }

    /// What the case keeps.
    fn for_case(&self) -> Result<Json<'static>, LedgerError> {
        let Json::Object(mut members) = self.detail() else { return Ok(Json::Null) };
        if let Some(evidence) = &self.evidence {
            members.push(("reported".into(), evidence.tree()?.into_owned()));
        }
        Ok(Json::Object(members))
    }
}

/// Opens a command for an operator: rights checked; its lane (if it has one) and its rows locked, in this order.
fn open(
    caller: &Caller,
    connection: &Connection,
    tenant: &str,
    key: &str,
) -> Result<(Command, Rc<Operation>), LedgerError> {
    caller.require(connection, Capability::Operate, tenant, None)?;
    let seen = command::read_fresh(connection, tenant, key)?.ok_or_else(command::no_such_command)?;
    caller.require(connection, Capability::Operate, tenant, Some(&seen.command_type))?;
    let operation = catalog::version(connection, &seen.command_type, seen.type_version)?;
    if let Some(lane) = &seen.ordering_key {
        lane::lock(tenant, &operation.destination, lane);
    }
    Ok((command::lock_existing(connection, tenant, key)?, operation))
}

/// Stands in a suggested call where only the person who looks can know the record's id.
const PLACEHOLDER: &str = "…";

fn checked_record_id(id: Option<&str>) -> Result<(), LedgerError> {
    if id.is_some_and(|id| !is_record_id(id)) {
        return Err(LedgerError::new(
            Code::InvalidArgument,
            "destination_record_id must have 1 to 1000 bytes and no control characters",
        )
        .hint("Leave it out if the destination gives no id."));
    }
    if id == Some(PLACEHOLDER) {
        return Err(LedgerError::new(
            Code::InvalidArgument,
            "destination_record_id is still the placeholder of the suggested call",
        )
        .detail("A finding of found names what was found: it proves the command for good.")
        .hint("Search the destination for the key and put the record's id in its place; nothing there: not_found."));
    }
    Ok(())
}

/// `reconcile(key, finding, destination_record_id, evidence, note, expected_attempt, tenant)`
///
/// A finding of not_found permits at least one more attempt, also where the budget was used up: the person looked so
/// that it could be sent. The deadline stays; where it is past, the command fails as expired and retry() may give it
/// another.
pub fn reconcile(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let key = key_of(call, 0)?;
    let report = Report {
        finding: Finding::parse(call.required_text(1, "finding")?)?,
        record_id: call.text(2),
        evidence: call.jsonb(3),
        note: call.text(4),
        expected_attempt: call.int(5),
    };
    let tenant = tenant_of(call, 6)?;
    checked_record_id(report.record_id)?;
    checked_note(report.note, "note")?;
    if let Some(evidence) = &report.evidence {
        // Bounded like everything that is stored.
        canonical(&evidence.tree()?)?;
    }
    as_owner(call, |caller, connection| {
        let (mut command, operation) = open(caller, connection, tenant, key)?;
        report.check_attempt(command.live.attempt)?;
        let now_us = datum::now_us();
        let event = report.event(&operation, &command, now_us);
        let (approval, approved_until_us) = approve::approval_state(connection, &operation, &command, now_us)?;
        let preview = next(&command.state(approval), &event)?;
        let mut change = Change {
            detail: Some(report.detail()),
            approved_until_us,
            evidence: Some(report.for_case()?),
            finding: Some(report.finding.as_str().to_owned()),
            message: Some(match report.note {
                Some(note) => format!("{}: {note}", report.finding.as_str()),
                None => format!("a person's finding: {}", report.finding.as_str()),
            }),
            skip_lane_on_failure: operation.skips_lane(),
            ..Change::default()
        };
        // Where the finding does not decide yet (it opens a question), the record is evidence, not the outcome.
        if preview.to == Status::Confirmed && preview.transition || preview.success_kept {
            change.record_id = report.record_id.map(str::to_owned);
            change.result = report.evidence;
        }
        if event == Event::ReconcileNotFound && !command.live.status.is_final() {
            command.live.counted = command.live.counted.min(last_of_budget(&operation));
        }
        let mut batch = Batch::new(now_us, actor(caller, None));
        let kept_result = change.result.is_some() && preview.to == Status::Confirmed;
        let done = batch.apply(&mut command, approval, &operation.destination, event, change)?;
        batch.flush(connection)?;
        if kept_result {
            command.result = report.evidence.map(|evidence| evidence.datum());
        }
        if matches!(command.live.status, Status::Planned | Status::Approved) {
            lane::enter_again(connection, &command, &operation.destination)?;
        }
        wake::at_commit();
        let noted_only = !done.transition && done.case == CaseAction::None && !done.success_kept;
        let outcome = if noted_only { Outcome::Unchanged } else { Outcome::Changed };
        receipt::one(call, connection, &command, &operation.destination, outcome)
    })
}

/// The count of attempts that leaves exactly one.
fn last_of_budget(operation: &Operation) -> i32 {
    operation.retry().max_attempts.saturating_sub(1).max(0)
}

/// `retry(key, reason, deadline, tenant)`: exactly one more attempt for a command that failed and was certainly not
/// sent.
///
/// A given deadline must be in the future (22023); what becomes of the stored one decides [`Deadline::after_retry`].
///
/// [`Deadline::after_retry`]: command_ledger_domain::retry::Deadline::after_retry
pub fn retry(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, reason, deadline_us) = (key_of(call, 0)?, call.text(1), call.time_us(2));
    let tenant = tenant_of(call, 3)?;
    checked_note(reason, "reason")?;
    as_owner(call, |caller, connection| {
        let (mut command, operation) = open(caller, connection, tenant, key)?;
        let now_us = datum::now_us();
        if deadline_us.is_some_and(|deadline| deadline <= now_us) {
            return Err(LedgerError::new(Code::InvalidArgument, "the deadline is already past")
                .hint("Give a deadline in the future, or none."));
        }
        approve::refresh_intent(connection, &operation, &mut command)?;
        let (approval, approved_until_us) = approve::approval_state(connection, &operation, &command, now_us)?;
        command.live.counted = last_of_budget(&operation);
        let deadline = command.deadline().after_retry(deadline_us, now_us, operation.policy.retry.deadline_ms);
        let change =
            Change { detail: reason_detail(reason), approved_until_us, deadline: Some(deadline), ..Change::default() };
        let mut batch = Batch::new(now_us, actor(caller, None));
        batch.apply(&mut command, approval, &operation.destination, Event::OperatorRetry, change)?;
        batch.flush(connection)?;
        lane::enter_again(connection, &command, &operation.destination)?;
        wake::at_commit();
        receipt::one(call, connection, &command, &operation.destination, Outcome::Changed)
    })
}

/// `assign_case(key, owner, tenant)`: who works on the open case. That is working state, not history: the journal and
/// the case say who closed it.
pub fn assign_case(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, owner, tenant) = (key_of(call, 0)?, call.text(1), tenant_of(call, 2)?);
    if owner.is_some_and(|o| o.trim().is_empty() || o.len() > 255 || o.chars().any(char::is_control)) {
        return Err(LedgerError::new(
            Code::InvalidArgument,
            "owner must have 1 to 255 bytes and no control characters",
        )
        .hint("Give NULL to take the name off."));
    }
    as_owner(call, |caller, connection| {
        let (command, operation) = open(caller, connection, tenant, key)?;
        if command.live.open_case.is_none() {
            return Err(LedgerError::new(Code::IllegalTransition, "the command has no open case")
                .detail(format!("It is {}.", command.live.status))
                .hint("The view reconciliation_queue lists the open cases."));
        }
        let whom = [Arg::Text(tenant), Arg::Text(key), Arg::or_null(owner, Arg::Text)];
        let touched = if watch::has_column(c"reconciliation_case", c"assigned_at") {
            let [tenant, key, owner_or_null] = whom;
            let since = Arg::or_null(owner.map(|_| datum::now_us()), Arg::Time);
            ASSIGN.execute(connection, &[tenant, key, owner_or_null, since])?
        } else {
            ASSIGN_0_1.execute(connection, &whom)?
        };
        let outcome = if touched > 0 { Outcome::Changed } else { Outcome::Unchanged };
        receipt::one(call, connection, &command, &operation.destination, outcome)
    })
}

crate::sql_function!(ledger_reconcile, pg_finfo_ledger_reconcile, reconcile);
crate::sql_function!(ledger_retry, pg_finfo_ledger_retry, retry);
crate::sql_function!(ledger_assign_case, pg_finfo_ledger_assign_case, assign_case);
