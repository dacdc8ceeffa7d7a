use super::*;

#[test]
fn every_word_parses_back_and_is_unique() {
    for status in Status::ALL {
        assert_eq!(Status::parse(status.as_str()), Some(*status));
        assert_eq!(status.to_string(), status.as_str());
    }
    for class in ErrorClass::ALL {
        assert_eq!(ErrorClass::parse(class.as_str()), Some(*class));
    }
    for reason in CaseReason::ALL {
        assert_eq!(CaseReason::parse(reason.as_str()), Some(*reason));
    }
    assert_eq!(Status::parse("Confirmed"), None);
    assert_eq!(Status::parse(""), None);
}

#[test]
fn the_words_are_those_of_the_sql_types() {
    let words: Vec<&str> = Status::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(
        words,
        ["planned", "approved", "dispatched", "confirmed", "failed", "needs_reconciliation", "cancelled"]
    );
    let classes: Vec<&str> = ErrorClass::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(
        classes,
        ["not_sent", "transient", "permanent", "permission", "uncertain", "rejected", "expired", "budget_exhausted"]
    );
}

#[test]
fn final_is_narrower_than_settled() {
    let of = |f: fn(Status) -> bool| Status::ALL.iter().copied().filter(|s| f(*s)).collect::<Vec<_>>();
    assert_eq!(of(Status::is_final), [Status::Confirmed, Status::Cancelled]);
    assert_eq!(of(Status::is_settled), [Status::Confirmed, Status::Failed, Status::Cancelled]);
    assert_eq!(of(Status::needs_person), [Status::Planned, Status::NeedsReconciliation]);
}

#[test]
fn every_reason_is_a_sentence_of_its_own() {
    let mut sentences: Vec<&str> = CaseReason::ALL.iter().map(|r| r.in_words()).collect();
    assert!(sentences.iter().all(|s| s.ends_with('.') && s.len() > 30));
    sentences.sort_unstable();
    let all = sentences.len();
    sentences.dedup();
    assert_eq!(sentences.len(), all);
}

#[test]
fn every_event_has_a_journal_kind_and_every_kind_an_event() {
    let mut kinds: Vec<&str> = every_event().iter().map(Event::kind).chain(["register"]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut listed = JOURNAL_KINDS.to_vec();
    listed.sort_unstable();
    assert_eq!(kinds, listed);
}

#[test]
fn a_lesser_reason_never_hides_a_graver_one() {
    use CaseReason::*;
    assert_eq!(CaseReason::graver(None, LookupUnclear), LookupUnclear);
    assert_eq!(CaseReason::graver(Some(UncertainAnswer), LookupUnclear), LookupUnclear);
    assert_eq!(CaseReason::graver(Some(CancelRequested), LookupUnclear), CancelRequested);
    assert_eq!(CaseReason::graver(Some(CancelRequested), LookupAmbiguous), CancelRequested);
    assert_eq!(CaseReason::graver(Some(DeadlineOver), LookupAmbiguous), LookupAmbiguous);
    assert_eq!(CaseReason::graver(Some(CancelRequested), DuplicateSuccess), DuplicateSuccess);
    assert_eq!(CaseReason::graver(Some(DuplicateSuccess), CancelRequested), DuplicateSuccess);
    for later in [LateOtherRequest, DuplicatePossible, Contradiction] {
        assert_eq!(CaseReason::graver(Some(DuplicateSuccess), later), DuplicateSuccess);
        assert_eq!(CaseReason::graver(Some(later), DuplicateSuccess), DuplicateSuccess);
    }
}

#[test]
fn a_finding_is_about_the_attempt_that_stands() {
    for (attempt, expected, allowed) in [
        (0, None, true),
        (1, None, true),
        (2, None, false),
        (1, Some(1), true),
        (2, Some(2), true),
        (2, Some(1), false),
        (1, Some(2), false),
    ] {
        let checked = check_expected_attempt(attempt, expected).map_err(|error| error.code);
        let code = if allowed { Ok(()) } else { Err(crate::error::Code::IllegalTransition) };
        assert_eq!(checked, code, "{attempt} {expected:?}");
    }
}
