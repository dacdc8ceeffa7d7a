//! `ledger/dispatch.rs`: claiming what is due. The commit of a claim is the checkpoint.

use command_ledger_domain::answer::IdempotencyMode;
use command_ledger_domain::fence::{ClaimAllowed, Fence, RowFacts, claim_allowed};
use command_ledger_domain::send::{Facts, Permit, lease_until, may_send, same_request};
use command_ledger_domain::status::{ApprovalState, Event, Status};

use super::{Change, Here, apply, schedule_lookup};
use crate::setup::Break;
use crate::world::{Command, Lease, identity_of};

/// Why a command that is due may not be sent; the event that follows from it.
enum Verdict {
    Send { lease_expires_us: i64, content: u8 },
    Instead { event: Event, look_up: bool },
    Leave,
}

/// What a claim came to.
pub enum Claim {
    /// Nothing was due, or nothing may be done.
    Nothing,
    /// Something else than a claim: written.
    Judged,
    /// Claimed: written, to be sent.
    Claimed { lease: Lease, content: u8 },
}

/// Claims the command if it is due and may be sent.
pub fn claim(here: &Here, command: &mut Command, serial: u8, epoch: u8) -> Claim {
    let Some(queued) = command.queued else { return Claim::Nothing };
    if command.status != Status::Approved
        || queued.due_us > here.now_us
        || queued.lease.is_some()
        || queued.identity != here.here.0
    {
        return Claim::Nothing;
    }
    let mut judged = false;
    here.refresh_intent(command);
    let (approval, approved_until_us) = approval_now(here, command);
    forget_other_places(here, command);
    if fenced(here, command) == ClaimAllowed::AsRepeat {
        command.first_sent_us = Some(command.registered_us);
        let event = Event::Adopted { repeat_safe: true };
        judged = apply(here, command, approval, event, Change::default()).is_ok();
    }
    match decide(here, command, approval, approved_until_us) {
        Verdict::Leave if judged => Claim::Judged,
        Verdict::Leave => Claim::Nothing,
        Verdict::Instead { event, look_up } => {
            let mut change = Change::default();
            if look_up {
                schedule_lookup(here, &mut change, here.now_us);
            }
            match apply(here, command, approval, event, change) {
                Ok(_) => Claim::Judged,
                Err(_) => Claim::Nothing,
            }
        }
        Verdict::Send { lease_expires_us, content } => {
            let lease = Lease { serial, expires_us: lease_expires_us, epoch };
            let change = Change { lease: Some(lease), content: Some(content), approved_until_us, ..Change::default() };
            match apply(here, command, approval, Event::Claim, change) {
                Ok(_) => Claim::Claimed { lease, content },
                Err(_) => Claim::Nothing,
            }
        }
    }
}

fn approval_now(here: &Here, command: &Command) -> (ApprovalState, Option<i64>) {
    if here.breaks(Break::SkipApprovalCheck) && here.setup.approval.is_some() {
        return (ApprovalState::Valid, None);
    }
    here.approval_state(command)
}

fn forget_other_places(here: &Here, command: &mut Command) {
    if let (Fence::Moved { .. }, Some(queued)) = (here.fence, &mut command.queued)
        && queued.absence_place.is_some_and(|place| place != here.here)
        && !here.breaks(Break::KeepOldAbsence)
    {
        queued.absence_place = None;
    }
}

fn fenced(here: &Here, command: &Command) -> ClaimAllowed {
    let queued = command.queued;
    let row = RowFacts {
        written_by: identity_of(queued.map_or(0, |q| q.identity)),
        deduplicates: here.deduplicates(Some(command.first_sent_us.unwrap_or(command.registered_us))),
        absence_established_here: queued.is_some_and(|q| q.absence_place.is_some()),
        maybe_sent: command.maybe_sent,
        has_lookup: here.setup.lookup.is_some(),
    };
    claim_allowed(here.fence, identity_of(here.here.0), &row)
}

fn decide(here: &Here, command: &Command, approval: ApprovalState, approved_until_us: Option<i64>) -> Verdict {
    let now_us = here.now_us;
    let facts = Facts {
        fence: fenced(here, command),
        approval,
        deadline_us: command.deadline_us.filter(|_| !here.breaks(Break::IgnoreDeadline)),
        counted_attempts: command.counted,
        max_attempts: here.retry().max_attempts,
        maybe_sent: command.maybe_sent,
        absence_established: command.queued.is_some_and(|q| q.absence_place.is_some()),
        deduplicates: here.deduplicates(command.first_sent_us),
        has_lookup: here.setup.lookup.is_some(),
    };
    match may_send(&facts, now_us) {
        Permit::Send => {}
        Permit::Leave => return Verdict::Leave,
        Permit::Instead { event, look_up, .. } => return Verdict::Instead { event, look_up },
    }
    let content = here.intent(command.params);
    if !same_request(command.maybe_sent, command.sent_content, &content) && !here.breaks(Break::RepeatOtherRequest) {
        return Verdict::Instead { event: Event::RequestChanged, look_up: false };
    }
    let uses_key = here.setup.mode != IdempotencyMode::None;
    let window_end_us = command.first_sent_us.filter(|_| uses_key).and_then(|first| here.window_end_us(first));
    match lease_until(&facts, now_us, here.setup.lease_ms, approved_until_us, window_end_us) {
        Some(lease_expires_us) => Verdict::Send { lease_expires_us, content },
        None => Verdict::Leave,
    }
}
