//! `relay/lookups.rs`: asking the destination about an open case.

use command_ledger_domain::lookup::{
    LookupDecision, LookupFacts, LookupPolicy, LookupProgress, Record, after_lookup, read_lookup,
};
use command_ledger_domain::retry::{Repeat, RepeatFacts, repeat_due};
use command_ledger_domain::status::Status;

use super::{Change, Here, apply};
use crate::destination::record_id;
use crate::setup::{Break, TICK_US};
use crate::world::{Command, Round};

const KEY: &str = "K";

/// Takes a case whose lookup is due; until the round is over or long past, it is not asked again.
pub fn start_lookup(here: &Here, command: &mut Command, token: u8) -> bool {
    let Some(case) = &mut command.case else { return false };
    if case.next_lookup_us.is_none_or(|due| due > here.now_us) || here.setup.lookup.is_none() {
        return false;
    }
    case.next_lookup_us = Some(here.now_us + 2 * TICK_US);
    case.round = Some(token);
    true
}

/// Settles a round.
pub fn settle_round(here: &Here, command: &mut Command, round: &Round) {
    let (Some(policy), Some(case)) = (here.setup.lookup, command.case) else { return };
    if case.round != Some(round.token) {
        return;
    }
    let policy = if here.breaks(Break::AbsentWithoutSettleDelay) {
        LookupPolicy { settle_delay_ms: Some(0), ..policy }
    } else {
        policy
    };
    let found: Vec<u8> = round.records.clone().unwrap_or_default();
    let records: Vec<Record> = found
        .iter()
        .map(|index| Record { match_value: Some(KEY), record_id: Some(record_id(*index)), meets_when: true })
        .collect();
    let answer = read_lookup(&LookupFacts {
        status: if round.records.is_some() { 200 } else { 500 },
        list_present: round.records.is_some(),
        records: &records,
        record_id_required: true,
        destination_key: KEY,
        sentinel: None,
    });
    let (approval, approved_until_us) = here.approval_state(command);
    let repeat = repeat(here, command);
    let allowed = matches!(repeat, Repeat::At { .. }) && approval.permits_send();
    let progress = LookupProgress {
        lookups_done: case.lookups_done,
        absents_in_a_row: case.absents_in_a_row,
        evidence_start_us: case.evidence_from_us.unwrap_or(case.opened_us),
    };
    let step = after_lookup(&policy, &progress, &answer, round.started_us, allowed, here.now_us);
    if let Some(case) = &mut command.case {
        case.lookups_done = step.progress.lookups_done;
        case.absents_in_a_row = step.progress.absents_in_a_row;
        case.round = None;
        case.next_lookup_us = match step.decision {
            LookupDecision::LookAgain { at_us } => Some(at_us),
            _ => None,
        };
    }
    let Some(event) = step.decision.event() else { return };
    let due_us = match repeat {
        Repeat::At { due_us } => Some(due_us),
        _ => None,
    };
    let record = match step.decision {
        LookupDecision::Confirm { .. } => found.first().copied(),
        _ => None,
    };
    let _ = apply(here, command, approval, event, Change { approved_until_us, due_us, record, ..Change::default() });
}

fn repeat(here: &Here, command: &Command) -> Repeat {
    let may_release = command.case.is_none_or(|case| case.reason.lookup_may_release());
    if !may_release || command.status != Status::NeedsReconciliation {
        return Repeat::NeedsPerson;
    }
    repeat_due(
        &here.retry(),
        &RepeatFacts {
            counted_attempts: command.counted,
            now_us: here.now_us,
            deadline_us: command.deadline_us,
            retry_after_ms: None,
            window_end_us: None,
            maybe_sent: command.maybe_sent,
        },
        0,
    )
}
