//! Evidence that comes late.

use super::cells::{APPROVED, NO_CASE, open, outcome, to};
use super::*;
use CaseReason as R;
use ErrorClass as C;
use Status::*;

#[test]
fn late_success_of_this_request_confirms_from_approved_and_needs_reconciliation() {
    let late = Event::LateSuccess { same_request: true, same_record: true, second_effect_possible: false };
    let waiting = State { maybe_sent: true, attempt: 1, ..APPROVED };
    assert_eq!(outcome(&waiting, late), (Confirmed, false, NO_CASE, None));
    assert_eq!(outcome(&in_state(NeedsReconciliation), late), (Confirmed, false, CaseAction::Close, None));
}

#[test]
fn late_success_confirms_but_leaves_a_case_where_another_attempt_may_have_had_an_effect() {
    let late = Event::LateSuccess { same_request: true, same_record: true, second_effect_possible: true };
    for status in [Approved, NeedsReconciliation] {
        assert_eq!(outcome(&in_state(status), late), (Confirmed, false, open(R::DuplicatePossible), None));
    }
}

#[test]
fn late_success_after_failure_opens_a_case() {
    for status in [Planned, Failed] {
        for same_request in [false, true] {
            let late = Event::LateSuccess { same_request, same_record: true, second_effect_possible: false };
            assert_eq!(
                outcome(&in_state(status), late),
                (NeedsReconciliation, true, open(R::LateSuccess), Some(C::Uncertain))
            );
        }
    }
}

#[test]
fn late_success_of_another_request_stops_sending() {
    let late = Event::LateSuccess { same_request: false, same_record: true, second_effect_possible: false };
    for status in [Approved, NeedsReconciliation] {
        let t = to(&in_state(status), late);
        assert_eq!((t.to, t.maybe_sent, t.case), (NeedsReconciliation, true, open(R::LateOtherRequest)));
    }
    let flying = in_state(Dispatched);
    let t = to(&flying, late);
    assert_eq!((t.to, t.maybe_sent, t.case), (Dispatched, true, open(R::LateOtherRequest)));
    // That attempt ends without an effect: it must not go back to the outbox.
    let after = flying.after(&t);
    let t = to(&after, Event::NotSent { error: C::NotSent });
    assert_eq!((t.to, after.after(&t).case), (NeedsReconciliation, Some(R::LateOtherRequest)));
}

#[test]
fn late_success_is_kept_while_a_newer_attempt_flies_and_decides_if_that_does_not_succeed() {
    let late = Event::LateSuccess { same_request: true, same_record: true, second_effect_possible: false };
    let flying = State { attempt: 2, maybe_sent: true, ..in_state(Dispatched) };
    let t = to(&flying, late);
    assert_eq!((t.to, t.transition, t.success_kept), (Dispatched, false, true));
    let kept = flying.after(&t);
    for event in [
        Event::Release,
        Event::NotSent { error: C::NotSent },
        Event::SafeRepeat { error: C::Uncertain },
        Event::Refused { error: C::Permanent },
        Event::BudgetOver { error: C::BudgetExhausted },
        Event::RequestChanged,
        Event::WindowOver,
        Event::Confirm,
    ] {
        assert_eq!(outcome(&kept, event), (Confirmed, false, NO_CASE, None), "{event:?}");
    }
    // The newer attempt may have had an effect of its own.
    for event in [Event::Uncertain { reason: R::NoAnswer }, Event::LeaseOver, Event::DeadlineOver, Event::Fence] {
        assert_eq!(outcome(&kept, event), (Confirmed, false, open(R::DuplicatePossible), None), "{event:?}");
    }
    assert_eq!(outcome(&kept, Event::Tampered), (NeedsReconciliation, true, open(R::Tampered), Some(C::Uncertain)));
}

#[test]
fn success_with_another_record_on_a_confirmed_command_is_a_case_without_a_transition() {
    let confirmed = in_state(Confirmed);
    let late = |same_record| Event::LateSuccess { same_request: true, same_record, second_effect_possible: false };
    let t = to(&confirmed, late(true));
    assert_eq!((t.to, t.case, t.transition), (Confirmed, NO_CASE, false));
    for event in [late(false), Event::LookupFound { same_record: false }, Event::DuplicateSuccess] {
        let t = to(&confirmed, event);
        assert_eq!((t.to, t.case, t.transition), (Confirmed, open(R::DuplicateSuccess), false), "{event:?}");
    }
}

#[test]
fn success_for_a_cancelled_command_is_a_case_without_a_transition() {
    let late = Event::LateSuccess { same_request: true, same_record: true, second_effect_possible: false };
    let t = to(&in_state(Cancelled), late);
    assert_eq!((t.to, t.maybe_sent, t.case, t.transition), (Cancelled, false, open(R::Contradiction), false));
}

#[test]
fn reconcile_closes_the_case_of_a_final_state_without_a_transition() {
    for status in [Confirmed, Cancelled] {
        let state = State { case: Some(R::DuplicateSuccess), ..in_state(status) };
        for event in [Event::ReconcileFound { same_record: false }, Event::ReconcileNotFound, Event::Abandon] {
            let t = to(&state, event);
            assert_eq!((t.to, t.case, t.transition), (status, CaseAction::Close, false), "{event:?}");
        }
        for event in [Event::ReconcileNotFound, Event::Abandon] {
            assert!(next(&in_state(status), &event).is_err(), "{event:?}");
        }
    }
}

#[test]
fn a_question_about_a_second_effect_outlives_the_confirmation() {
    for event in [
        Event::LookupFound { same_record: true },
        Event::LateSuccess { same_request: true, same_record: true, second_effect_possible: false },
    ] {
        let state = State { case: Some(R::DuplicateSuccess), ..in_state(NeedsReconciliation) };
        assert_eq!(outcome(&state, event), (Confirmed, false, NO_CASE, None), "{event:?}");
    }
    let flying = State { case: Some(R::LateOtherRequest), maybe_sent: true, ..in_state(Dispatched) };
    assert_eq!(outcome(&flying, Event::Confirm), (Confirmed, false, NO_CASE, None));
}

#[test]
fn late_failure_is_for_the_journal_alone_in_every_state() {
    for status in Status::ALL {
        let state = in_state(*status);
        let t = to(&state, Event::LateFailure);
        assert_eq!((t.transition, state.after(&t)), (false, state));
    }
}

#[test]
fn a_kept_success_of_a_tampered_row_leaves_the_flag_for_a_person() {
    let kept = State { success_kept: true, ..in_state(Dispatched) };
    let t = to(&kept, Event::Tampered);
    assert_eq!((t.to, t.maybe_sent, t.case), (NeedsReconciliation, true, open(R::Tampered)));
}

#[test]
fn a_second_success_stops_sending_and_sets_the_flag() {
    for status in [Planned, Approved, NeedsReconciliation, Failed] {
        let state = State { maybe_sent: false, ..in_state(status) };
        let t = to(&state, Event::DuplicateSuccess);
        assert_eq!((t.to, t.maybe_sent, t.case), (NeedsReconciliation, true, open(R::DuplicateSuccess)), "{status}");
    }
    let t = to(&in_state(Dispatched), Event::DuplicateSuccess);
    assert_eq!((t.to, t.maybe_sent, t.case), (Dispatched, true, open(R::DuplicateSuccess)));
}

#[test]
fn evidence_of_a_second_effect_is_closed_only_by_a_person() {
    for reason in [R::LateOtherRequest, R::DuplicateSuccess, R::DuplicatePossible] {
        let state = State { case: Some(reason), ..in_state(NeedsReconciliation) };
        assert_eq!(to(&state, Event::LookupFound { same_record: true }).case, NO_CASE, "{reason}");
        let t = to(&state, Event::ReconcileFound { same_record: false });
        assert_eq!((t.to, t.case), (Confirmed, CaseAction::Close), "{reason}");
    }
}
