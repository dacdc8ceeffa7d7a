//! The table of transitions as callers and triggers see it.

use super::event::Event;
use super::state::State;
use super::words::{ApprovalState, Status};
use crate::error::{Code, LedgerError};

/// The SQL calls that can succeed in a state. Some need more (attempt 0, an open case, an approval): [`next`] decides.
///
/// [`next`]: super::next
pub const fn legal_calls(status: Status) -> &'static [&'static str] {
    match status {
        Status::Planned => &["revise", "approve", "reject", "revoke_approval", "cancel", "reconcile"],
        Status::Approved => &["revise", "approve", "revoke_approval", "cancel", "claim", "reconcile"],
        Status::Dispatched => {
            &["confirm", "fail", "uncertain", "release", "extend_lease", "revoke_approval", "reconcile"]
        }
        Status::NeedsReconciliation => &["reconcile", "assign_case", "revoke_approval"],
        Status::Failed => &["retry", "revoke_approval", "reconcile"],
        Status::Confirmed | Status::Cancelled => &["reconcile"],
    }
}

/// Whether some event takes a command from one state to the other (or writes its row in the same state: a revision,
/// the flag). What the trigger on the table of commands asks; the tests hold it equal to [`next`](super::next).
pub const fn reachable_transition(from: Status, to: Status) -> bool {
    use Status::*;
    match from {
        Planned => matches!(to, Planned | Approved | Failed | NeedsReconciliation | Cancelled),
        Approved => {
            matches!(to, Planned | Approved | Dispatched | Confirmed | Failed | NeedsReconciliation | Cancelled)
        }
        Dispatched => matches!(to, Approved | Dispatched | Confirmed | Failed | NeedsReconciliation),
        NeedsReconciliation => matches!(to, Planned | Approved | Confirmed | Failed | NeedsReconciliation),
        Failed => matches!(to, Planned | Approved | NeedsReconciliation),
        Confirmed | Cancelled => false,
    }
}

/// Whether the attempt that a person looked at is the one that stands now: `not_found` about attempt 1 must not settle
/// attempt 2. It may be left out only while there was at most one attempt.
///
/// # Errors
/// `CL006` if another attempt is given, or none beyond attempt 1.
pub fn check_expected_attempt(attempt: i32, expected: Option<i32>) -> Result<(), LedgerError> {
    let error = |message: &str| {
        Err(LedgerError::new(Code::IllegalTransition, message)
            .detail(format!("The current attempt is {attempt}."))
            .hint("Check what this attempt did, then call reconcile() with expected_attempt set to it."))
    };
    match expected {
        Some(expected) if expected != attempt => error("the finding is about another attempt than the current one"),
        None if attempt > 1 => error("a finding of not_found beyond the first attempt must name the attempt"),
        _ => Ok(()),
    }
}

/// The error for an event that the state does not allow.
pub(super) fn illegal(state: &State, event: &Event) -> LedgerError {
    let what = match event.call() {
        Some(call) => format!("{call}() is not possible"),
        None => format!("the event \"{}\" is not possible", event.kind()),
    };
    let message = format!("{what} for a command that is {}{}", state.status, circumstance(state, event));
    LedgerError::new(Code::IllegalTransition, message)
        .detail(format!("In state {} these calls are legal: {}.", state.status, legal_calls(state.status).join(", ")))
        .hint(hint(state, event))
}

/// What beside the state stands in the way.
fn circumstance(state: &State, event: &Event) -> &'static str {
    let open = matches!(state.status, Status::Planned | Status::Approved);
    match event {
        Event::Revise { .. } if open && state.attempt > 0 => " and was dispatched before",
        Event::Revise { .. } if open && state.maybe_sent => " and may have been sent",
        Event::Claim if state.status == Status::Approved && !state.approval.permits_send() => {
            " but has no valid approval"
        }
        Event::Claim if state.status == Status::Approved && state.case.is_some() => " but has an open case",
        Event::Revoke if state.approval == ApprovalState::NotNeeded && !state.status.is_final() => {
            " and needs no approval"
        }
        Event::ReconcileNotFound | Event::Abandon if state.status.is_final() => " and has no open case",
        Event::OperatorRetry if state.status == Status::Failed && state.redacted => " and was redacted",
        Event::OperatorRetry if state.status == Status::Failed && state.maybe_sent => " and may have been sent",
        _ => "",
    }
}

fn hint(state: &State, event: &Event) -> &'static str {
    match (state.status, event) {
        (Status::Planned | Status::Approved, Event::Revise { .. }) => {
            "Once an attempt was made the content is fixed. Cancel it, and register the new content with a new key."
        }
        (Status::Approved, Event::Reject) => "It is approved already: revoke_approval() takes the approval back.",
        (Status::Planned, Event::Claim) => "It waits for an approval: see the view approval_queue.",
        (Status::Approved, Event::Claim) => {
            "See the views approval_queue and reconciliation_queue for what is missing."
        }
        (_, Event::Revoke) if state.approval == ApprovalState::NotNeeded => "cancel() withdraws the command.",
        (Status::Failed, Event::OperatorRetry) if state.redacted => {
            "Its parameters are gone. Register the intent with a new key."
        }
        (Status::Planned | Status::Approved, Event::ReconcileNotFound | Event::Abandon) => {
            "No case is open. cancel() withdraws the command, or opens a case if it may have been sent."
        }
        (Status::Planned, _) => "Approve, reject, revise or cancel it.",
        (Status::Approved, _) => "It will be sent when it is due; until then it can be cancelled.",
        (Status::Dispatched, _) => "An attempt is in flight: wait for its end (wait_for), then look at status().",
        (Status::NeedsReconciliation, _) => {
            "Find out what happened and call reconcile(): the view reconciliation_queue has the call ready."
        }
        (Status::Failed, _) => "An operator can retry() it; for other content register a new key.",
        (Status::Confirmed, _) => "Its effect is proven and final; a new intent needs a new key.",
        (Status::Cancelled, _) => "It was withdrawn for good; a new intent needs a new key.",
    }
}
