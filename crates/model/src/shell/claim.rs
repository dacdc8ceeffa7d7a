//! `ledger/dispatch.rs`: claiming what is due. The commit of a claim is the checkpoint.

use command_ledger_domain::answer::IdempotencyMode;
use command_ledger_domain::fence::{ClaimAllowed, Fence, RowFacts, claim_allowed};
use command_ledger_domain::retry::lease_expiry_us;
use command_ledger_domain::status::{ApprovalState, Event, Status};

use super::{Change, EXHAUSTED, Here, apply, schedule_lookup};
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
    let instead = |event| Verdict::Instead { event, look_up: false };
    let has_lookup = here.setup.lookup.is_some();
    let absence = command.queued.is_some_and(|q| q.absence_place.is_some());
    let deadline_us = command.deadline_us.filter(|_| !here.breaks(Break::IgnoreDeadline));
    match fenced(here, command) {
        ClaimAllowed::Yes | ClaimAllowed::AsRepeat => {}
        ClaimAllowed::No(_) => return Verdict::Leave,
        ClaimAllowed::LookupFirst => return Verdict::Instead { event: Event::Fence, look_up: true },
        ClaimAllowed::Case => return instead(Event::Fence),
    }
    if !approval.permits_send() {
        return instead(Event::ApprovalLapsed);
    }
    if deadline_us.is_some_and(|d| d <= now_us) {
        return Verdict::Instead { event: Event::DeadlineOver, look_up: has_lookup && command.maybe_sent };
    }
    if command.counted >= here.retry().max_attempts {
        let event = Event::BudgetOver { error: EXHAUSTED };
        return Verdict::Instead { event, look_up: has_lookup && command.maybe_sent };
    }
    let rests_on_key = command.maybe_sent && !absence;
    if rests_on_key && !here.deduplicates(command.first_sent_us) {
        return Verdict::Instead { event: Event::WindowOver, look_up: has_lookup };
    }
    let content = here.intent(command.params);
    let changed = command.maybe_sent && command.sent_content.is_some_and(|sent| sent != content);
    if changed && !here.breaks(Break::RepeatOtherRequest) {
        return instead(Event::RequestChanged);
    }
    let uses_key = here.setup.mode != IdempotencyMode::None;
    let window_end_us =
        (rests_on_key && uses_key).then(|| command.first_sent_us.and_then(|f| here.window_end_us(f))).flatten();
    let lease_expires_us = lease_expiry_us(now_us, here.setup.lease_ms, deadline_us, approved_until_us, window_end_us);
    if lease_expires_us <= now_us {
        return Verdict::Leave;
    }
    Verdict::Send { lease_expires_us, content }
}
