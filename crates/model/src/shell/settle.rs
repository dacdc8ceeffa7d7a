//! `ledger/settle.rs`: what the end of an attempt means, in time and late.

use command_ledger_domain::answer::{
    EarlierSuccess, Facts, LateFacts, LateOutcome, NoAnswer, NotSent, Protection, Wire, event_after, meaning,
    protection, second_effect,
};
use command_ledger_domain::lookup::evidence_start_us;
use command_ledger_domain::retry::{RepeatFacts, repeat_due};
use command_ledger_domain::status::{CaseReason, Event, Status};

use super::{Change, Here, apply, schedule_lookup};
use crate::destination::{Heard, record_id};
use crate::setup::{Break, Sender};
use crate::world::{Claimed, Command, End, Flight, Phase};

/// How an attempt ended.
#[derive(Clone, Copy)]
pub struct Ending {
    pub wire: Wire,
    pub success: Option<u8>,
    pub ended_us: Option<i64>,
    pub own_fault: bool,
    pub by_worker: bool,
}

/// Settles what a sender brings: by its lease token if the command still has it, late if not.
pub fn settle_flight(here: &Here, command: &mut Command, flight: &Flight) {
    let Phase::Over { sent, heard, ended_us } = flight.phase else { return };
    let by_worker = here.setup.sender == Sender::Workers;
    let (wire, success) = match heard {
        _ if !sent => (Wire::NotSent { reason: NotSent::Withheld }, None),
        None => (Wire::NoAnswer { reason: NoAnswer::Timeout }, None),
        Some(Heard::Status(status)) => (Wire::Answered { status }, None),
        Some(Heard::Success(record)) => (Wire::Answered { status: 200 }, Some(record)),
    };
    let ending = Ending { wire, success, ended_us: Some(ended_us), own_fault: !sent && !by_worker, by_worker };
    let current = command.lease().is_some_and(|lease| lease.serial == flight.serial);
    if current || here.breaks(Break::LateOverwrites) && command.status == Status::Dispatched {
        settle(here, command, ending);
    } else if let Some(past) = command.claims.iter().find(|claim| claim.serial == flight.serial).copied()
        && !here.breaks(Break::LateThrownAway)
    {
        settle_late(here, command, past, ending.success);
    }
}

/// Ends the attempt in flight.
pub fn settle(here: &Here, command: &mut Command, ending: Ending) {
    let has_lookup = here.setup.lookup.is_some();
    let facts = Facts {
        wire: ending.wire,
        success_rule_met: ending.success.is_some(),
        matched_rule: None,
        maybe_sent_before: command.maybe_sent && !here.breaks(Break::RefusedRepeatIsFailure),
        absence_established: command.queued.is_some_and(|q| q.absence_place.is_some()),
        protection: if here.breaks(Break::RepeatWithoutLookup) {
            Protection::Deduplicates
        } else {
            protection(here.setup.mode, here.deduplicates(command.first_sent_us), has_lookup)
        },
        has_lookup,
    };
    let counted_attempts = if ending.own_fault { (command.counted - 1).max(0) } else { command.counted };
    let window_end_us = command.first_sent_us.and_then(|first| here.window_end_us(first));
    let after = event_after(&meaning(&facts), has_lookup, |maybe_sent_after| {
        repeat_due(
            &here.retry(),
            &RepeatFacts {
                counted_attempts,
                now_us: here.now_us,
                deadline_us: command.deadline_us,
                retry_after_ms: None,
                window_end_us: window_end_us.filter(|_| !facts.absence_established),
                maybe_sent: maybe_sent_after,
            },
            0,
        )
    });
    let event = match after.event {
        Event::Uncertain { reason: CaseReason::NoAnswer } if ending.by_worker => {
            Event::Uncertain { reason: CaseReason::WorkerUncertain }
        }
        // Without the flag before it, the table lets a refused repeat end as a failure.
        event @ Event::Refused { .. } if here.breaks(Break::RefusedRepeatIsFailure) => {
            command.maybe_sent = false;
            event
        }
        event => event,
    };
    let (approval, _) = here.approval_state(command);
    let mut change =
        Change { due_us: after.due_us, record: ending.success, uncounted: ending.own_fault, ..Change::default() };
    if after.look_up {
        let lease_expires_us = command.lease().map_or(here.now_us, |l| l.expires_us);
        schedule_lookup(here, &mut change, evidence_start_us(ending.ended_us, lease_expires_us, here.now_us));
    }
    let kept = command.success_kept.then(|| command.queued.and_then(|q| q.kept_record));
    let applied = apply(here, command, approval, event, change);
    if let (Ok(_), Event::Confirm, Some(kept)) = (applied, event, kept)
        && second_effect(
            kept.map(record_id),
            change.record.map(record_id),
            facts.protection == Protection::Deduplicates,
        )
    {
        let _ = apply(here, command, approval, Event::DuplicateSuccess, Change::default());
    }
}

/// Takes an answer that came after its attempt had ended.
fn settle_late(here: &Here, command: &mut Command, past: Claimed, success: Option<u8>) {
    let confirmed = command.ends.iter().rev().find(|(_, end)| *end == End::Confirmed).map(|(attempt, _)| *attempt);
    let another_uncertain =
        command.ends.iter().any(|(attempt, end)| *attempt != past.attempt && *end == End::Uncertain);
    let kept = command.queued.and_then(|q| q.kept_record);
    let known = command.record;
    let earlier_success = if command.status == Status::Confirmed && (known.is_some() || confirmed.is_some()) {
        Some(EarlierSuccess { record_id: known.map(record_id), same_attempt: confirmed == Some(past.attempt) })
    } else if command.success_kept {
        Some(EarlierSuccess { record_id: kept.map(record_id), same_attempt: false })
    } else {
        None
    };
    let event = LateFacts {
        status: command.status,
        outcome: if success.is_some() { LateOutcome::Success } else { LateOutcome::Failure },
        same_request: command.sent_content == Some(past.content),
        record_id: success.map(record_id),
        earlier_success,
        deduplicates: here.deduplicates(command.first_sent_us),
        another_uncertain,
    }
    .event();
    let (approval, _) = here.approval_state(command);
    let _ = apply(here, command, approval, event, Change { record: success, ..Change::default() });
}
