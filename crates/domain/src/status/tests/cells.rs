//! One row per cell of the table.

use super::*;
use CaseReason as R;
use ErrorClass as C;
use Status::*;

pub(super) const APPROVED: State = State {
    status: Approved,
    maybe_sent: false,
    attempt: 0,
    approval: ApprovalState::Valid,
    success_kept: false,
    case: None,
    redacted: false,
};

pub(super) fn to(state: &State, event: Event) -> Transition {
    match next(state, &event) {
        Ok(transition) => transition,
        Err(error) => panic!("{event:?} on {state:?}: {error}"),
    }
}

/// The state and the flag afterwards, what happens to the case, the error class.
pub(super) fn outcome(state: &State, event: Event) -> (Status, bool, CaseAction, Option<ErrorClass>) {
    let t = to(state, event);
    (t.to, t.maybe_sent, t.case, t.error)
}

pub(super) const NO_CASE: CaseAction = CaseAction::None;

pub(super) fn open(reason: CaseReason) -> CaseAction {
    CaseAction::Open(reason)
}

#[test]
fn registration_waits_for_an_approval_only_where_one_is_needed() {
    assert_eq!(registered(true).to, Planned);
    assert_eq!(registered(false).to, Approved);
    assert_eq!(registered(true).kind, "register");
    assert!(!registered(false).maybe_sent);
}

#[test]
fn exits_while_nothing_can_have_been_sent() {
    let planned = in_state(Planned);
    let approved = in_state(Approved);
    let flying = in_state(Dispatched);
    let failed = in_state(Failed);
    let unapproved = State { approval: ApprovalState::Missing, ..failed };
    let rows: &[(State, Event, Status, Option<ErrorClass>)] = &[
        (planned, Event::Revise { approval_needed: true }, Planned, None),
        (planned, Event::Revise { approval_needed: false }, Approved, None),
        (planned, Event::Approve { quorum: true }, Approved, None),
        (planned, Event::Approve { quorum: false }, Planned, None),
        (planned, Event::Reject, Failed, Some(C::Rejected)),
        (planned, Event::DeadlineOver, Failed, Some(C::Expired)),
        (planned, Event::Cancel, Cancelled, None),
        (approved, Event::Revise { approval_needed: true }, Planned, None),
        (approved, Event::Revise { approval_needed: false }, Approved, None),
        (approved, Event::Revoke, Planned, None),
        (approved, Event::ApprovalLapsed, Planned, None),
        (approved, Event::Claim, Dispatched, None),
        (approved, Event::DeadlineOver, Failed, Some(C::Expired)),
        (approved, Event::BudgetOver { error: C::BudgetExhausted }, Failed, Some(C::BudgetExhausted)),
        (approved, Event::Cancel, Cancelled, None),
        (flying, Event::Release, Approved, None),
        (flying, Event::NotSent { error: C::Transient }, Approved, Some(C::Transient)),
        (flying, Event::Confirm, Confirmed, None),
        (flying, Event::Refused { error: C::Permanent }, Failed, Some(C::Permanent)),
        (flying, Event::Refused { error: C::Permission }, Failed, Some(C::Permission)),
        (flying, Event::BudgetOver { error: C::NotSent }, Failed, Some(C::NotSent)),
        (failed, Event::OperatorRetry, Approved, None),
        (unapproved, Event::OperatorRetry, Planned, None),
    ];
    for (state, event, status, error) in rows {
        assert_eq!(outcome(state, *event), (*status, false, NO_CASE, *error), "{event:?} on {}", state.status);
    }
}

#[test]
fn the_same_exits_while_maybe_sent_need_reconciliation() {
    let planned = State { maybe_sent: true, ..in_state(Planned) };
    let approved = State { maybe_sent: true, attempt: 1, ..in_state(Approved) };
    let flying = State { maybe_sent: true, attempt: 2, ..in_state(Dispatched) };
    let rows: &[(State, Event, CaseReason)] = &[
        (planned, Event::Reject, R::RejectRequested),
        (planned, Event::DeadlineOver, R::DeadlineOver),
        (planned, Event::Cancel, R::CancelRequested),
        (approved, Event::Revoke, R::ApprovalRevoked),
        (approved, Event::ApprovalLapsed, R::ApprovalLapsed),
        (approved, Event::DeadlineOver, R::DeadlineOver),
        (approved, Event::BudgetOver { error: C::BudgetExhausted }, R::BudgetExhausted),
        (approved, Event::Cancel, R::CancelRequested),
        (flying, Event::Refused { error: C::Permanent }, R::RefusedRepeat),
        (flying, Event::Refused { error: C::Rejected }, R::RefusedRepeat),
        (flying, Event::Refused { error: C::Permission }, R::RepeatNotPermitted),
        (flying, Event::BudgetOver { error: C::BudgetExhausted }, R::BudgetExhausted),
        (flying, Event::BudgetOver { error: C::Expired }, R::DeadlineOver),
        (flying, Event::BudgetOver { error: C::NotSent }, R::RepeatNeedsPerson),
    ];
    for (state, event, reason) in rows {
        assert_eq!(
            outcome(state, *event),
            (NeedsReconciliation, true, open(*reason), Some(C::Uncertain)),
            "{event:?} on {}",
            state.status
        );
    }
}

#[test]
fn what_is_found_before_a_send_opens_a_case_and_leaves_the_flag() {
    for maybe_sent in [false, true] {
        for status in [Approved, Dispatched] {
            let state = State { maybe_sent, ..in_state(status) };
            for (event, reason) in [
                (Event::Tampered, R::Tampered),
                (Event::WindowOver, R::WindowOver),
                (Event::RequestChanged, R::RequestChanged),
            ] {
                let t = to(&state, event);
                assert_eq!((t.to, t.maybe_sent, t.case), (NeedsReconciliation, maybe_sent, open(reason)), "{event:?}");
            }
        }
    }
}

#[test]
fn an_attempt_that_may_have_had_an_effect_sets_the_flag() {
    let flying = in_state(Dispatched);
    let rows = [
        (Event::SafeRepeat { error: C::Uncertain }, Approved, NO_CASE),
        (Event::Uncertain { reason: R::NoAnswer }, NeedsReconciliation, open(R::NoAnswer)),
        (Event::LeaseOver, NeedsReconciliation, open(R::LeaseOver)),
        (Event::DeadlineOver, NeedsReconciliation, open(R::DeadlineOver)),
        (Event::Fence, NeedsReconciliation, open(R::Fence)),
    ];
    for (event, status, case) in rows {
        assert_eq!(outcome(&flying, event), (status, true, case, Some(C::Uncertain)), "{event:?}");
    }
}

#[test]
fn the_flag_of_an_earlier_attempt_survives_one_that_had_no_effect() {
    let flying = State { maybe_sent: true, attempt: 2, ..in_state(Dispatched) };
    for event in [Event::Release, Event::NotSent { error: C::NotSent }] {
        let t = to(&flying, event);
        assert_eq!((t.to, t.maybe_sent), (Approved, true), "{event:?}");
    }
}

#[test]
fn a_lookup_that_finds_confirms_and_closes_the_case() {
    let state = in_state(NeedsReconciliation);
    let event = Event::LookupFound { same_record: false };
    assert_eq!(outcome(&state, event), (Confirmed, false, CaseAction::Close, None));
}

#[test]
fn a_lookup_that_proves_absence_permits_a_repeat_and_keeps_the_flag() {
    let state = in_state(NeedsReconciliation);
    let t = to(&state, Event::LookupAbsent { repeat_allowed: true });
    assert_eq!((t.to, t.maybe_sent, t.case), (Approved, true, CaseAction::Close));
}

#[test]
fn absence_releases_nothing_without_budget_approval_or_a_harmless_case() {
    let state = in_state(NeedsReconciliation);
    let absent = Event::LookupAbsent { repeat_allowed: true };
    let t = to(&state, Event::LookupAbsent { repeat_allowed: false });
    assert_eq!((t.to, t.case, t.transition), (NeedsReconciliation, open(R::LookupAbsent), false));
    let t = to(&State { approval: ApprovalState::Missing, ..state }, absent);
    assert_eq!((t.to, t.case, t.transition), (NeedsReconciliation, open(R::ApprovalMissing), false));
    for reason in CaseReason::ALL {
        let t = to(&State { case: Some(*reason), ..state }, absent);
        assert_eq!(t.to == Approved, reason.lookup_may_release(), "{reason}");
    }
    for stop in [R::CancelRequested, R::RejectRequested, R::Tampered, R::LateSuccess, R::BudgetExhausted] {
        assert!(!stop.lookup_may_release(), "{stop}");
    }
}

#[test]
fn an_unclear_lookup_updates_the_case_only() {
    let t = to(&in_state(NeedsReconciliation), Event::LookupUnclear { reason: R::LookupUnclear });
    assert_eq!((t.to, t.maybe_sent, t.case, t.transition), (NeedsReconciliation, true, open(R::LookupUnclear), false));
    let cancelled = State { case: Some(R::CancelRequested), ..in_state(NeedsReconciliation) };
    assert_eq!(to(&cancelled, Event::LookupUnclear { reason: R::LookupUnclear }).case, NO_CASE);
}

#[test]
fn a_persons_finding_clears_the_flag() {
    let state = in_state(NeedsReconciliation);
    let unapproved = State { approval: ApprovalState::Missing, ..state };
    let rows = [
        (state, Event::ReconcileFound { same_record: false }, Confirmed, None),
        (state, Event::ReconcileNotFound, Approved, None),
        (unapproved, Event::ReconcileNotFound, Planned, None),
        (state, Event::Abandon, Failed, Some(C::Uncertain)),
    ];
    for (state, event, status, error) in rows {
        assert_eq!(outcome(&state, event), (status, false, CaseAction::Close, error), "{event:?}");
    }
}

#[test]
fn not_found_does_not_send_what_somebody_asked_to_stop() {
    for reason in [R::CancelRequested, R::RejectRequested, R::DuplicateSuccess, R::LateOtherRequest] {
        let state = State { case: Some(reason), ..in_state(NeedsReconciliation) };
        assert_eq!(
            outcome(&state, Event::ReconcileNotFound),
            (Failed, false, CaseAction::Close, Some(C::Rejected)),
            "{reason}"
        );
    }
}

#[test]
fn adopting_a_copy_marks_every_open_command_as_maybe_sent() {
    for status in [Planned, Approved, Dispatched, NeedsReconciliation] {
        let t = to(&in_state(status), Event::Adopted { repeat_safe: false });
        assert_eq!((t.to, t.maybe_sent, t.case), (NeedsReconciliation, true, open(R::Adopted)), "{status}");
    }
    for (status, after) in [(Planned, Planned), (Approved, Approved), (Dispatched, Approved)] {
        let t = to(&in_state(status), Event::Adopted { repeat_safe: true });
        assert_eq!((t.to, t.maybe_sent, t.case), (after, true, NO_CASE), "{status}");
    }
    for status in [Confirmed, Failed, Cancelled] {
        assert!(next(&in_state(status), &Event::Adopted { repeat_safe: true }).is_err(), "{status}");
    }
}

#[test]
fn every_claim_starts_the_next_attempt() {
    assert_eq!(to(&APPROVED, Event::Claim).attempt, 1);
    assert_eq!(to(&State { attempt: 41, ..APPROVED }, Event::Claim).attempt, 42);
    assert_eq!(to(&in_state(Dispatched), Event::Release).attempt, 1);
    assert!(next(&State { attempt: i32::MAX, ..APPROVED }, &Event::Claim).is_err());
}

#[test]
fn a_claim_needs_an_approval_no_open_case_and_the_parameters() {
    assert_eq!(to(&State { approval: ApprovalState::NotNeeded, ..APPROVED }, Event::Claim).to, Dispatched);
    for state in [
        State { approval: ApprovalState::Missing, ..APPROVED },
        State { case: Some(R::Contradiction), ..APPROVED },
        State { redacted: true, ..APPROVED },
    ] {
        assert!(next(&state, &Event::Claim).is_err(), "{state:?}");
    }
}

#[test]
fn revise_needs_an_intent_that_was_never_dispatched_nor_maybe_sent() {
    let revise = Event::Revise { approval_needed: true };
    for status in [Planned, Approved] {
        assert!(next(&State { attempt: 0, ..in_state(status) }, &revise).is_ok());
        assert!(next(&State { attempt: 1, ..in_state(status) }, &revise).is_err());
        assert!(next(&State { maybe_sent: true, attempt: 0, ..in_state(status) }, &revise).is_err());
    }
}

#[test]
fn retry_needs_a_failed_command_that_still_has_its_parameters() {
    let failed = in_state(Failed);
    assert!(next(&failed, &Event::OperatorRetry).is_ok());
    assert!(next(&State { redacted: true, ..failed }, &Event::OperatorRetry).is_err());
    assert!(next(&State { maybe_sent: true, ..failed }, &Event::OperatorRetry).is_err());
}

#[test]
fn an_approval_that_is_not_needed_can_neither_lapse_nor_be_revoked() {
    let state = State { approval: ApprovalState::NotNeeded, ..APPROVED };
    for event in [Event::Revoke, Event::ApprovalLapsed] {
        assert!(next(&state, &event).is_err(), "{event:?}");
    }
}
