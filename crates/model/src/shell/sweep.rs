//! `ledger/sweep.rs`: what time alone brings about.

use command_ledger_domain::answer::{NoAnswer, Wire};
use command_ledger_domain::status::{ApprovalState, Event, Status};

use super::settle::{Ending, settle};
use super::{Change, Here, apply, look_up_if_maybe_sent, mark_sent_elsewhere};
use crate::setup::{Break, Sender};
use crate::world::Command;

/// Ends the attempt if its lease is over: of an earlier relay at once, of this one never, of a worker when it expires.
pub fn expired_lease(here: &Here, command: &mut Command, epoch: u8) -> bool {
    let Some(lease) = command.lease() else { return false };
    if command.status != Status::Dispatched || here.breaks(Break::ForgetOldLeases) {
        return false;
    }
    let over = match here.setup.sender {
        Sender::Workers => lease.expires_us <= here.now_us,
        Sender::Relay => lease.epoch != epoch || here.breaks(Break::NoLeaseEpoch),
    };
    if over {
        let wire = Wire::NoAnswer { reason: NoAnswer::LeaseOver };
        settle(here, command, Ending { wire, success: None, ended_us: None, own_fault: false, by_worker: false });
    }
    over
}

/// Ends what passed its deadline before it was sent, and approvals that lapsed.
pub fn overdue(here: &Here, command: &mut Command) -> bool {
    if command.lease().is_some() {
        return false;
    }
    let (approval, _) = here.approval_state(command);
    let over = command.deadline_us.is_some_and(|d| d <= here.now_us);
    if over {
        mark_sent_elsewhere(here, command);
    }
    let mut change = Change::default();
    look_up_if_maybe_sent(here, command, &mut change);
    let event = match command.status {
        Status::Planned | Status::Approved if over => Event::DeadlineOver,
        Status::Approved if approval == ApprovalState::Missing => Event::ApprovalLapsed,
        _ => return false,
    };
    apply(here, command, approval, event, change).is_ok()
}
