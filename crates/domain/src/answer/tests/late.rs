//! Late answers.

use super::*;

fn late_facts(status: Status) -> LateFacts<'static> {
    LateFacts {
        status,
        outcome: LateOutcome::Success,
        same_request: true,
        record_id: Some("r1"),
        earlier_success: None,
        deduplicates: false,
        another_uncertain: false,
    }
}

fn earlier(record_id: Option<&str>) -> Option<EarlierSuccess<'_>> {
    Some(EarlierSuccess { record_id, same_attempt: false })
}

#[test]
fn every_cell_of_the_table_of_late_answers() {
    use LateMeaning::{Case, Duplicate, JournalOnly, Kept};
    let confirms = LateMeaning::Confirms { second_effect_possible: false };
    let other = Case(R::LateOtherRequest);
    let rows = [
        // state, this request with none / the same / another record known before, another request with none known
        (Status::Planned, Case(R::LateSuccess), Case(R::LateSuccess), Case(R::LateSuccess)),
        (Status::Failed, Case(R::LateSuccess), Case(R::LateSuccess), Case(R::LateSuccess)),
        (Status::Approved, confirms, confirms, other),
        (Status::NeedsReconciliation, confirms, confirms, other),
        (Status::Dispatched, Kept, Kept, other),
        (Status::Confirmed, Duplicate, JournalOnly, Duplicate),
        (Status::Cancelled, Case(R::Contradiction), Case(R::Contradiction), Case(R::Contradiction)),
    ];
    for (status, none_before, same_before, other_request) in rows {
        let facts = late_facts(status);
        assert_eq!(late(&facts), none_before, "{status}");
        assert_eq!(late(&LateFacts { earlier_success: earlier(Some("r1")), ..facts }), same_before, "{status}");
        assert_eq!(late(&LateFacts { earlier_success: earlier(Some("r2")), ..facts }), Duplicate, "{status}");
        assert_eq!(late(&LateFacts { same_request: false, ..facts }), other_request, "{status}");
        let failure = LateFacts { outcome: LateOutcome::Failure, ..facts };
        assert_eq!(late(&failure), JournalOnly, "{status}");
        assert_eq!(failure.event(), Event::LateFailure, "{status}");
    }
}

#[test]
fn a_second_success_without_a_record_is_the_same_only_where_the_destination_deduplicates() {
    assert!(second_effect(Some("a"), Some("b"), true));
    assert!(second_effect(Some("a"), Some("b"), false));
    for deduplicates in [false, true] {
        assert!(!second_effect(Some("a"), Some("a"), deduplicates));
        assert_eq!(second_effect(Some("a"), None, deduplicates), !deduplicates);
        assert_eq!(second_effect(None, Some("a"), deduplicates), !deduplicates);
        assert_eq!(second_effect(None, None, deduplicates), !deduplicates);
    }
}

#[test]
fn the_same_attempt_may_say_so_again_but_not_with_another_record() {
    let again = |before, now| {
        late(&LateFacts {
            earlier_success: Some(EarlierSuccess { record_id: before, same_attempt: true }),
            record_id: now,
            ..late_facts(Status::Confirmed)
        })
    };
    assert_eq!(again(Some("r1"), Some("r1")), LateMeaning::JournalOnly);
    assert_eq!(again(Some("r1"), None), LateMeaning::JournalOnly);
    assert_eq!(again(None, None), LateMeaning::JournalOnly);
    assert_eq!(again(Some("r1"), Some("r2")), LateMeaning::Duplicate);
}

#[test]
fn another_uncertain_attempt_may_have_made_a_second_record_unless_the_destination_deduplicates() {
    for (deduplicates, second_effect_possible) in [(false, true), (true, false)] {
        let facts = LateFacts { another_uncertain: true, deduplicates, ..late_facts(Status::NeedsReconciliation) };
        assert_eq!(late(&facts), LateMeaning::Confirms { second_effect_possible });
    }
}

#[test]
fn a_late_answer_and_the_transition_it_causes_agree() {
    let known = [None, earlier(Some("r1")), earlier(Some("r2")), earlier(None)];
    for status in Status::ALL {
        for outcome in LateOutcome::ALL {
            for earlier_success in known {
                for bits in 0..8 {
                    let facts = LateFacts {
                        outcome: *outcome,
                        earlier_success,
                        same_request: bits & 1 != 0,
                        deduplicates: bits & 2 != 0,
                        another_uncertain: bits & 4 != 0,
                        ..late_facts(*status)
                    };
                    agree(&facts);
                }
            }
        }
    }
}

fn agree(facts: &LateFacts<'_>) {
    let state = State {
        status: facts.status,
        maybe_sent: false,
        attempt: 2,
        approval: ApprovalState::Valid,
        success_kept: false,
        case: None,
        redacted: false,
    };
    let Ok(t) = next(&state, &facts.event()) else { panic!("{facts:?}") };
    let case = state.after(&t).case;
    match late(facts) {
        LateMeaning::Confirms { second_effect_possible } => {
            assert_eq!(t.to, Status::Confirmed, "{facts:?}");
            assert_eq!(case, second_effect_possible.then_some(R::DuplicatePossible), "{facts:?}");
        }
        LateMeaning::Kept => assert!(t.success_kept && !t.transition && case.is_none(), "{facts:?}"),
        LateMeaning::Case(reason) => assert_eq!(case, Some(reason), "{facts:?}"),
        LateMeaning::Duplicate => assert_eq!(case, Some(R::DuplicateSuccess), "{facts:?}"),
        LateMeaning::JournalOnly => assert!(!t.transition && case.is_none(), "{facts:?}"),
    }
}
