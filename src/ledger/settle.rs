//! Confirm: what the end of an attempt means, for pull workers and for the relay alike.

use super::approve;
use super::batch::{Batch, Change};
use super::catalog::Operation;
use super::command::Command;
use crate::pg::jsonb::JsonbArg;
use crate::pg::random;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use command_ledger_domain::answer::{
    EarlierSuccess, Facts, LateFacts, LateOutcome, Protection, RuleOutcome, Wire, event_after, meaning, protection,
    second_effect,
};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::lookup::{evidence_start_us, first_lookup_at};
use command_ledger_domain::retry::{RepeatFacts, repeat_due};
use command_ledger_domain::status::{CaseReason, Event, Status, Transition};

static PARAMS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT c.params FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

static CLAIM_OF_TOKEN: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, TEXT],
    "SELECT e.attempt, e.detail ->> 'request' FROM command_ledger.command_event e \
      WHERE e.tenant = $1 AND e.idempotency_key = $2 AND e.kind = 'claim' AND (e.detail ->> 'lease') = $3 LIMIT 1",
);

static ENDS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT],
    "SELECT e.attempt, e.kind FROM command_ledger.command_event e WHERE e.tenant = $1 AND e.idempotency_key = $2 \
      ORDER BY e.seq",
);

/// The params of a command; `None` once they are redacted.
pub fn params_of(connection: &Connection, command: &Command) -> Result<Option<Json<'static>>, LedgerError> {
    match PARAMS.first(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)])? {
        Some(row) => row.json(0),
        None => Ok(None),
    }
}

/// How an attempt ended, as its worker or the wire reports it.
pub struct Ending {
    pub wire: Wire,
    pub success_rule_met: bool,
    pub matched_rule: Option<RuleOutcome>,
    pub record_id: Option<String>,
    pub result: Option<JsonbArg>,
    pub retry_after_ms: Option<i64>,
    pub message: Option<String>,
    /// Facts for the journal: status, digests; no payload.
    pub detail: Option<Json<'static>>,
    /// When the attempt ended; none for a worker that is gone.
    pub ended_us: Option<i64>,
    /// What to call an uncertain end, where the worker itself says so.
    pub uncertain_as: Option<CaseReason>,
    /// Nothing was sent because of the ledger's own setup (a secret, an address): does not count against the budget.
    pub own_fault: bool,
}

impl Ending {
    /// An end with nothing but what the wire says.
    pub fn of(wire: Wire) -> Self {
        Self {
            wire,
            success_rule_met: false,
            matched_rule: None,
            record_id: None,
            result: None,
            retry_after_ms: None,
            message: None,
            detail: None,
            ended_us: None,
            uncertain_as: None,
            own_fault: false,
        }
    }

    /// Whether the answer proves the effect: a rule that matches decides, else the success rule.
    pub fn proves_success(&self) -> bool {
        match self.matched_rule {
            Some(rule) => rule == RuleOutcome::Confirmed,
            None => self.success_rule_met,
        }
    }
}

/// What the journal keeps of an attempt without an answer: why, in one word.
pub fn transport_detail(word: &'static str) -> Json<'static> {
    Json::Object(vec![("transport".into(), Json::String(word.into()))])
}

/// Plans the first lookup of a case that opens now, where the destination can be asked.
pub fn schedule_lookup(operation: &Operation, change: &mut Change, evidence_from_us: i64) {
    if let Some(policy) = operation.lookup_policy() {
        change.evidence_from_us = Some(evidence_from_us);
        change.next_lookup_us = Some(first_lookup_at(&policy, evidence_from_us));
    }
}

/// The same for a command that leaves its way while it may have been sent. No attempt is in flight, so the last one
/// had ended by now.
pub fn look_up_if_maybe_sent(operation: &Operation, command: &Command, change: &mut Change, now_us: i64) {
    if command.live.maybe_sent {
        schedule_lookup(operation, change, now_us);
    }
}

/// Ends the attempt in flight. The command is locked and dispatched.
pub fn settle(
    connection: &Connection,
    batch: &mut Batch,
    command: &mut Command,
    operation: &Operation,
    ending: Ending,
) -> Result<Transition, LedgerError> {
    let now_us = batch.now_us();
    let live = &command.live;
    let has_lookup = operation.effective.lookup.is_some();
    let facts = Facts {
        wire: ending.wire,
        success_rule_met: ending.success_rule_met,
        matched_rule: ending.matched_rule,
        maybe_sent_before: live.maybe_sent,
        absence_established: command.queued.as_ref().is_some_and(|q| q.absence_place.is_some()),
        protection: protection(
            operation.effective.idempotency.mode,
            operation.deduplicates(live.first_sent_us, now_us),
            has_lookup,
        ),
        has_lookup,
    };
    let counted_attempts = if ending.own_fault { (live.counted - 1).max(0) } else { live.counted };
    let retry = operation.retry();
    let window_end_us = live.first_sent_us.and_then(|first| operation.window_end_us(first));
    let after = event_after(&meaning(&facts), has_lookup, |maybe_sent_after| {
        repeat_due(
            &retry,
            &RepeatFacts {
                counted_attempts,
                now_us,
                deadline_us: command.deadline_us,
                retry_after_ms: ending.retry_after_ms,
                // A repeat that rests on a finding does not need the window.
                window_end_us: window_end_us.filter(|_| !facts.absence_established),
                maybe_sent: maybe_sent_after,
            },
            random::number(),
        )
    });
    let event = match (after.event, ending.uncertain_as) {
        (Event::Uncertain { reason: CaseReason::NoAnswer }, Some(reason)) => Event::Uncertain { reason },
        (event, _) => event,
    };
    let (approval, _) = approve::approval_state(connection, operation, command, now_us)?;
    let mut change = Change {
        detail: ending.detail,
        due_us: after.due_us,
        message: ending.message,
        record_id: ending.record_id,
        result: ending.result,
        uncounted: ending.own_fault,
        skip_lane_on_failure: operation.skips_lane(),
        ..Change::default()
    };
    if after.look_up {
        let lease_expires_us = command.lease().map_or(now_us, |l| l.expires_us);
        schedule_lookup(operation, &mut change, evidence_start_us(ending.ended_us, lease_expires_us, now_us));
    }
    // What an older attempt's kept success says beside this attempt's own.
    let kept = command.live.success_kept.then(|| command.queued.as_ref().and_then(|q| q.kept_record_id.clone()));
    let answered = change.record_id.clone();
    let transition = batch.apply(command, approval, &operation.destination, event, change)?;
    if let (Event::Confirm, Some(kept)) = (event, kept)
        && second_effect(kept.as_deref(), answered.as_deref(), facts.protection == Protection::Deduplicates)
    {
        let record_ids = [kept, answered].map(|id| id.map_or(Json::Null, |id| Json::String(id.into())));
        let change = Change {
            detail: Some(Json::Object(vec![("record_ids".into(), Json::Array(record_ids.into()))])),
            ..Change::default()
        };
        batch.apply(command, approval, &operation.destination, Event::DuplicateSuccess, change)?;
    }
    Ok(transition)
}

/// The attempt that a lease token belonged to, if it is one of this command's.
pub struct PastAttempt {
    pub attempt: i32,
    pub request: Option<String>,
}

/// Looks an older token up in the journal.
pub fn past_attempt(
    connection: &Connection,
    command: &Command,
    token: &[u8; 16],
) -> Result<Option<PastAttempt>, LedgerError> {
    let mark = super::judge::token_mark(token);
    let row =
        CLAIM_OF_TOKEN.first(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key), Arg::Text(&mark)])?;
    Ok(row.map(|r| PastAttempt { attempt: r.int(0).unwrap_or(0), request: r.text(1) }))
}

/// Takes an answer that came after its attempt had ended: never overwrites, never thrown away (I8).
#[allow(clippy::too_many_arguments, reason = "an answer has this many facts")]
pub fn settle_late(
    connection: &Connection,
    batch: &mut Batch,
    command: &mut Command,
    operation: &Operation,
    past: &PastAttempt,
    success: bool,
    record_id: Option<String>,
    result: Option<JsonbArg>,
) -> Result<Transition, LedgerError> {
    let now_us = batch.now_us();
    let rows = ENDS.run(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)], 0)?;
    let ends: Vec<(i32, String)> = rows.iter().map(|r| (r.int(0).unwrap_or(0), r.text_or_empty(1))).collect();
    let confirmed_attempt = ends.iter().rev().find(|(_, kind)| kind == "confirm").map(|(attempt, _)| *attempt);
    let another_uncertain = ends.iter().any(|(attempt, kind)| {
        *attempt != past.attempt && matches!(kind.as_str(), "uncertain" | "lease_over" | "safe_repeat")
    });
    let kept = command.queued.as_ref().and_then(|q| q.kept_record_id.clone());
    let known = command.record_id.clone();
    let earlier_success =
        if command.live.status == Status::Confirmed && (known.is_some() || confirmed_attempt.is_some()) {
            Some(EarlierSuccess { record_id: known.as_deref(), same_attempt: confirmed_attempt == Some(past.attempt) })
        } else if command.live.success_kept {
            Some(EarlierSuccess { record_id: kept.as_deref(), same_attempt: false })
        } else {
            None
        };
    let facts = LateFacts {
        status: command.live.status,
        outcome: if success { LateOutcome::Success } else { LateOutcome::Failure },
        same_request: past.request.is_some() && past.request == command.live.request_digest.map(|d| hex(&d)),
        record_id: record_id.as_deref(),
        earlier_success,
        deduplicates: operation.deduplicates(command.live.first_sent_us, now_us),
        another_uncertain,
    };
    let event = facts.event();
    let (approval, _) = approve::approval_state(connection, operation, command, now_us)?;
    let mut detail = vec![("of_attempt".into(), Json::Number(past.attempt.to_string().into()))];
    if let Some(id) = &record_id {
        detail.push(("record_id".into(), Json::String(id.clone().into())));
    }
    let change = Change {
        detail: Some(Json::Object(detail)),
        record_id,
        evidence: result.map(|result| result.tree().map(Json::into_owned)).transpose()?,
        result,
        skip_lane_on_failure: operation.skips_lane(),
        ..Change::default()
    };
    batch.apply(command, approval, &operation.destination, event, change)
}
