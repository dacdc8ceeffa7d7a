//! What holds for every event in every reachable state.

use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;
use crate::error::Code;

const APPROVALS: [ApprovalState; 3] = [ApprovalState::NotNeeded, ApprovalState::Valid, ApprovalState::Missing];

/// More attempts change nothing that the table looks at.
const ATTEMPTS_MODELLED: i32 = 3;

/// Every state that any sequence of events reaches; approvals come and go on their own.
fn reachable_states() -> HashSet<State> {
    let events = every_event();
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    for approval in APPROVALS {
        let first = registered(approval == ApprovalState::Missing);
        open.push(State {
            status: first.to,
            maybe_sent: first.maybe_sent,
            attempt: first.attempt,
            approval,
            success_kept: false,
            case: None,
            redacted: false,
        });
    }
    while let Some(state) = open.pop() {
        if !seen.insert(state) {
            continue;
        }
        for event in &events {
            if let Ok(transition) = next(&state, event)
                && transition.attempt <= ATTEMPTS_MODELLED
            {
                open.push(state.after(&transition));
            }
        }
        if state.approval != ApprovalState::NotNeeded {
            open.push(State { approval: ApprovalState::Valid, ..state });
            open.push(State { approval: ApprovalState::Missing, ..state });
        }
        if state.status.is_settled() {
            open.push(State { redacted: true, ..state });
        }
    }
    seen
}

fn every_step(mut check: impl FnMut(&State, &Event, &Transition)) {
    let states = reachable_states();
    assert!(states.len() > 500, "the exploration stops early: {} states", states.len());
    let events = every_event();
    for state in &states {
        for event in &events {
            if let Ok(transition) = next(state, event) {
                check(state, event, &transition);
            }
        }
    }
}

fn persons_finding(event: &Event) -> bool {
    matches!(event, Event::ReconcileFound { .. } | Event::ReconcileNotFound | Event::Abandon)
}

#[test]
fn nothing_leaves_maybe_sent_but_confirmation_or_a_persons_finding() {
    every_step(|state, event, t| {
        if state.maybe_sent && !t.maybe_sent {
            assert!(t.to == Status::Confirmed || persons_finding(event), "{event:?} on {state:?}: {t:?}");
        }
        if state.maybe_sent && t.maybe_sent {
            let open = [Status::Planned, Status::Approved, Status::Dispatched, Status::NeedsReconciliation];
            assert!(open.contains(&t.to), "{event:?} on {state:?}: {t:?}");
        }
    });
}

#[test]
fn the_flag_never_stands_on_a_settled_command() {
    assert!(reachable_states().iter().all(|state| !(state.maybe_sent && state.status.is_settled())));
}

#[test]
fn while_maybe_sent_every_other_exit_is_needs_reconciliation() {
    every_step(|state, event, t| {
        if !state.maybe_sent || t.to == state.status || persons_finding(event) {
            return;
        }
        let permitted = match t.to {
            Status::Confirmed | Status::NeedsReconciliation => true,
            // A permitted repeat on its way.
            Status::Dispatched => *event == Event::Claim,
            Status::Approved => matches!(
                event,
                Event::Approve { quorum: true }
                    | Event::Release
                    | Event::NotSent { .. }
                    | Event::SafeRepeat { .. }
                    | Event::Adopted { repeat_safe: true }
                    | Event::LookupAbsent { repeat_allowed: true }
            ),
            Status::Planned | Status::Failed | Status::Cancelled => false,
        };
        assert!(permitted, "{event:?} on {state:?}: {t:?}");
    });
}

/// The view of runs does not read a journal of two entries whose command is confirmed after one claim.
#[test]
fn what_is_confirmed_by_the_first_entry_after_its_claim_was_answered_plainly() {
    every_step(|state, event, t| {
        assert_eq!(t.attempt > state.attempt, *event == Event::Claim, "{event:?} on {state:?}: {t:?}");
        if state.status == Status::Dispatched && t.to == Status::Confirmed && !state.success_kept {
            assert_eq!(*event, Event::Confirm, "{state:?}");
        }
        assert!(*event != Event::Claim || !t.success_kept, "{state:?}");
    });
}

#[test]
fn final_states_are_never_left() {
    every_step(|state, event, t| {
        if state.status.is_final() {
            assert!(t.to == state.status && !t.transition, "{event:?} on {state:?}: {t:?}");
        }
    });
}

#[test]
fn failed_is_left_only_by_an_operators_retry_or_by_a_success() {
    every_step(|state, event, t| {
        if state.status == Status::Failed && t.to != Status::Failed {
            let success = matches!(
                event,
                Event::LateSuccess { .. }
                    | Event::DuplicateSuccess
                    | Event::LookupFound { .. }
                    | Event::ReconcileFound { .. }
            );
            assert!(
                *event == Event::OperatorRetry || (success && t.to == Status::NeedsReconciliation),
                "{event:?} on {state:?}: {t:?}"
            );
        }
    });
}

#[test]
fn no_attempt_starts_without_a_valid_approval_or_beside_an_open_case() {
    every_step(|state, event, t| {
        if t.attempt != state.attempt || (t.to == Status::Dispatched && state.status != Status::Dispatched) {
            assert_eq!(*event, Event::Claim);
            assert_eq!(state.status, Status::Approved);
            assert_eq!(t.attempt, state.attempt + 1);
            assert!(state.approval.permits_send() && state.case.is_none(), "{state:?}");
        }
    });
}

#[test]
fn a_command_without_its_parameters_never_waits_to_be_sent() {
    for state in reachable_states() {
        let waits = matches!(state.status, Status::Planned | Status::Approved | Status::Dispatched);
        assert!(!state.redacted || !waits, "{state:?}");
    }
}

#[test]
fn needs_reconciliation_is_always_a_visible_case_and_the_outbox_never_is() {
    for state in reachable_states() {
        match state.status {
            Status::NeedsReconciliation => assert!(state.case.is_some(), "{state:?}"),
            Status::Planned | Status::Approved | Status::Failed => assert!(state.case.is_none(), "{state:?}"),
            Status::Dispatched | Status::Confirmed | Status::Cancelled => {}
        }
    }
}

#[test]
fn a_case_is_closed_only_by_confirmation_by_a_person_or_by_proven_absence() {
    every_step(|state, event, t| {
        if t.case == CaseAction::Close {
            assert!(state.case.is_some());
            assert!(
                t.to == Status::Confirmed
                    || persons_finding(event)
                    || *event == Event::LookupAbsent { repeat_allowed: true },
                "{event:?} on {state:?}: {t:?}"
            );
            if state.case.is_some_and(CaseReason::outlives_confirmation) {
                assert!(persons_finding(event), "{event:?} on {state:?}");
            }
        }
    });
}

#[test]
fn what_is_journal_only_changes_neither_state_nor_flag_nor_attempt() {
    every_step(|state, event, t| {
        if !t.transition {
            assert_eq!((t.to, t.maybe_sent, t.attempt), (state.status, state.maybe_sent, state.attempt), "{event:?}");
        }
    });
}

#[test]
fn a_kept_success_is_never_lost() {
    every_step(|state, event, t| {
        if state.success_kept && t.to != Status::Dispatched && *event != Event::Tampered {
            assert_eq!(t.to, Status::Confirmed, "{event:?} on {state:?}");
        }
        if state.success_kept && t.to == Status::Dispatched {
            assert!(t.success_kept, "{event:?} on {state:?}");
        }
    });
}

#[test]
fn a_success_is_never_refused_in_any_state() {
    for state in reachable_states() {
        for event in every_event() {
            let evidence = matches!(
                event,
                Event::LateSuccess { .. }
                    | Event::LateFailure
                    | Event::DuplicateSuccess
                    | Event::LookupFound { .. }
                    | Event::LookupAbsent { .. }
                    | Event::LookupUnclear { .. }
                    | Event::ReconcileFound { .. }
            );
            if evidence {
                assert!(next(&state, &event).is_ok(), "{event:?} on {state:?}");
            }
        }
    }
}

#[test]
fn reachable_transitions_are_exactly_those_of_the_table() {
    let mut edges = BTreeSet::new();
    every_step(|state, _, t| {
        if t.transition {
            edges.insert((state.status, t.to));
        }
    });
    for from in Status::ALL {
        for to in Status::ALL {
            assert_eq!(reachable_transition(*from, *to), edges.contains(&(*from, *to)), "{from} -> {to}");
        }
    }
}

#[test]
fn legal_calls_are_exactly_those_that_can_succeed() {
    let mut calls: BTreeSet<(Status, &str)> = BTreeSet::new();
    every_step(|state, event, _| {
        if let Some(call) = event.call() {
            calls.insert((state.status, call));
        }
    });
    for status in Status::ALL {
        let listed: BTreeSet<&str> = legal_calls(*status)
            .iter()
            .copied()
            // These write no status.
            .filter(|call| !matches!(*call, "extend_lease" | "assign_case"))
            .collect();
        let possible: BTreeSet<&str> = calls.iter().filter(|(s, _)| s == status).map(|(_, call)| *call).collect();
        assert_eq!(listed, possible, "{status}");
    }
}

#[test]
fn what_is_illegal_says_the_state_and_what_is_legal() {
    for state in reachable_states() {
        for event in every_event() {
            let Err(error) = next(&state, &event) else { continue };
            assert_eq!(error.code, Code::IllegalTransition);
            assert!(error.message.contains(state.status.as_str()), "{error}");
            assert!(error.message.contains(event.call().unwrap_or(event.kind())), "{error}");
            let detail = error.detail.unwrap_or_default();
            assert!(legal_calls(state.status).iter().all(|call| detail.contains(call)), "{detail}");
            assert!(error.hint.is_some());
        }
    }
}

/// What is true in the world, kept apart from the ledger: which attempts may have had an effect that nobody settled.
#[derive(Default)]
struct World {
    unsettled: BTreeSet<i32>,
}

impl World {
    /// Records what an event says, before the ledger decides.
    fn observe(&mut self, state: &State, event: &Event) {
        let attempt_uncertain = match event {
            Event::Uncertain { .. } | Event::LeaseOver | Event::SafeRepeat { .. } => true,
            Event::DeadlineOver => state.status == Status::Dispatched,
            _ => false,
        };
        if attempt_uncertain {
            self.unsettled.insert(state.attempt);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_history_calls_an_unsettled_attempt_success_or_failure(
        approval in prop::sample::select(APPROVALS.to_vec()),
        events in prop::collection::vec(prop::sample::select(every_event()), 1..40),
    ) {
        let first = registered(approval == ApprovalState::Missing);
        let mut state = State {
            status: first.to, maybe_sent: false, attempt: 0, approval, success_kept: false, case: None, redacted: false,
        };
        let mut world = World::default();
        for event in events {
            // Random events mostly start nothing: claim whenever it is possible.
            if let Ok(claim) = next(&state, &Event::Claim) {
                state = state.after(&claim);
            }
            let Ok(transition) = next(&state, &event) else { continue };
            world.observe(&state, &event);
            state = state.after(&transition);
            if let Event::Approve { quorum: true } = event {
                state.approval = ApprovalState::Valid;
            }
            if state.status == Status::Confirmed || persons_finding(&event) {
                world.unsettled.clear();
            }
            if !world.unsettled.is_empty() {
                prop_assert!(state.maybe_sent, "{:?} after {:?}", state, event);
                prop_assert!(!state.status.is_settled(), "{:?} after {:?}", state, event);
            }
        }
    }
}
