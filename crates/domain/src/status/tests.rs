//! The table of transitions, cell by cell, and what holds over every reachable state.

mod cells;
mod everywhere;
mod late;
mod words;

use super::*;

/// Every event, with every value of its parameters that the table tells apart.
fn every_event() -> Vec<Event> {
    let mut events = vec![
        Event::Reject,
        Event::Revoke,
        Event::ApprovalLapsed,
        Event::Cancel,
        Event::Claim,
        Event::Release,
        Event::Confirm,
        Event::LeaseOver,
        Event::DeadlineOver,
        Event::Tampered,
        Event::Fence,
        Event::WindowOver,
        Event::RequestChanged,
        Event::LateFailure,
        Event::DuplicateSuccess,
        Event::ReconcileNotFound,
        Event::Abandon,
        Event::OperatorRetry,
        Event::SafeRepeat { error: ErrorClass::Uncertain },
        Event::NotSent { error: ErrorClass::NotSent },
        Event::NotSent { error: ErrorClass::Transient },
        Event::Refused { error: ErrorClass::Permanent },
        Event::Refused { error: ErrorClass::Permission },
        Event::Refused { error: ErrorClass::Rejected },
        Event::BudgetOver { error: ErrorClass::BudgetExhausted },
        Event::BudgetOver { error: ErrorClass::Expired },
        Event::BudgetOver { error: ErrorClass::NotSent },
        Event::LookupUnclear { reason: CaseReason::LookupUnclear },
        Event::LookupUnclear { reason: CaseReason::LookupAmbiguous },
    ];
    events.extend(
        [
            CaseReason::UncertainAnswer,
            CaseReason::NoAnswer,
            CaseReason::UnprovenSuccess,
            CaseReason::KeyConflict,
            CaseReason::WorkerUncertain,
            CaseReason::RuleAsksLookup,
            CaseReason::WindowOver,
            CaseReason::RefusedRepeat,
            CaseReason::RepeatNotPermitted,
            CaseReason::RepeatNeedsPerson,
            CaseReason::DeadlineOver,
            CaseReason::BudgetExhausted,
        ]
        .map(|reason| Event::Uncertain { reason }),
    );
    for yes in [false, true] {
        events.extend([
            Event::Revise { approval_needed: yes },
            Event::Approve { quorum: yes },
            Event::Adopted { repeat_safe: yes },
            Event::LookupFound { same_record: yes },
            Event::LookupAbsent { repeat_allowed: yes },
            Event::ReconcileFound { same_record: yes },
        ]);
        for same_record in [false, true] {
            for second_effect_possible in [false, true] {
                events.push(Event::LateSuccess { same_request: yes, same_record, second_effect_possible });
            }
        }
    }
    events
}

/// A command in a state, with what usually goes with it.
fn in_state(status: Status) -> State {
    State {
        status,
        maybe_sent: status == Status::NeedsReconciliation,
        attempt: i32::from(!matches!(status, Status::Planned | Status::Approved)),
        approval: if status == Status::Planned { ApprovalState::Missing } else { ApprovalState::Valid },
        success_kept: false,
        case: (status == Status::NeedsReconciliation).then_some(CaseReason::UncertainAnswer),
        redacted: false,
    }
}
