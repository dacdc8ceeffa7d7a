use super::*;

const KEY: &str = "INV-1";
const MS: i64 = 1_000;

fn record(match_value: Option<&'static str>) -> Record<'static> {
    Record { match_value, record_id: Some("r1"), meets_when: true }
}

fn read(records: &[Record<'_>]) -> LookupAnswer {
    read_lookup(&facts(records))
}

fn facts<'a>(records: &'a [Record<'a>]) -> LookupFacts<'a> {
    LookupFacts {
        status: 200,
        list_present: true,
        records,
        record_id_required: true,
        destination_key: KEY,
        sentinel: None,
    }
}

fn found() -> LookupAnswer {
    LookupAnswer::Found { record_id: Some("r1".to_owned()) }
}

fn is_unclear(answer: &LookupAnswer) -> bool {
    matches!(answer, LookupAnswer::Unclear { .. })
}

#[test]
fn exactly_one_record_with_the_key_is_found() {
    assert_eq!(read(&[record(Some(KEY))]), found());
    assert_eq!(read(&[record(Some("INV-2")), record(Some(KEY)), record(None)]), found());
}

#[test]
fn only_the_whole_key_counts() {
    for near in ["INV-10", "INV", "inv-1", " INV-1", "INV-1 ", ""] {
        assert_eq!(read(&[record(Some(near))]), LookupAnswer::Absent, "{near:?}");
    }
}

#[test]
fn an_empty_list_is_absent() {
    assert_eq!(read(&[]), LookupAnswer::Absent);
}

#[test]
fn several_records_with_the_key_are_ambiguous_with_all_ids() {
    let second = Record { record_id: None, ..record(Some(KEY)) };
    assert_eq!(
        read(&[record(Some(KEY)), second, record(Some("INV-2"))]),
        LookupAnswer::Ambiguous { ids: vec![Some("r1".to_owned()), None] }
    );
}

#[test]
fn a_record_that_does_not_meet_the_condition_is_neither_found_nor_absent() {
    let dead = Record { meets_when: false, ..record(Some(KEY)) };
    assert!(is_unclear(&read(&[dead])));
    assert!(is_unclear(&read(&[dead, dead])));
    assert_eq!(read(&[dead, record(Some(KEY))]), found());
    // Another command's dead record says nothing.
    assert_eq!(read(&[Record { meets_when: false, ..record(Some("INV-2")) }]), LookupAnswer::Absent);
}

#[test]
fn a_found_record_needs_the_configured_id() {
    let nameless = [Record { record_id: None, ..record(Some(KEY)) }];
    assert!(is_unclear(&read(&nameless)));
    assert_eq!(
        read_lookup(&LookupFacts { record_id_required: false, ..facts(&nameless) }),
        LookupAnswer::Found { record_id: None }
    );
}

#[test]
fn what_is_not_a_2xx_with_a_list_is_unclear_even_if_it_seems_to_hold_the_record() {
    for records in [&[][..], &[record(Some(KEY))][..]] {
        for status in [0, 100, 199, 300, 304, 400, 401, 404, 500, 503] {
            assert!(is_unclear(&read_lookup(&LookupFacts { status, ..facts(records) })), "{status}");
        }
        assert!(is_unclear(&read_lookup(&LookupFacts { list_present: false, ..facts(records) })));
    }
    for status in [200, 201, 299] {
        assert_eq!(read_lookup(&LookupFacts { status, ..facts(&[]) }), LookupAnswer::Absent, "{status}");
    }
}

#[test]
fn without_its_sentinel_an_empty_list_proves_nothing_but_a_record_does() {
    let with = |sentinel, records| read_lookup(&LookupFacts { sentinel, ..facts(records) });
    assert_eq!(with(Some(true), &[]), LookupAnswer::Absent);
    assert!(is_unclear(&with(Some(false), &[])));
    assert_eq!(with(Some(false), &[record(Some(KEY))]), found());
}

#[test]
fn records_that_all_lack_the_field_prove_nothing() {
    assert!(is_unclear(&read(&[record(None)])));
    assert!(is_unclear(&read(&[record(None), record(None)])));
    assert_eq!(read(&[record(None), record(Some("INV-2"))]), LookupAnswer::Absent);
}

// What follows.

const POLICY: LookupPolicy =
    LookupPolicy { settle_delay_ms: Some(120_000), agreeing: 2, interval_ms: 10_000, max_lookups: 10 };
const START: i64 = 1_700_000_000_000_000;
const SETTLED: i64 = START + 120_000 * MS;
const UNCLEAR: LookupAnswer = LookupAnswer::Unclear { why: "test" };

fn progress(absents_in_a_row: u32, lookups_done: u32) -> LookupProgress {
    LookupProgress { absents_in_a_row, lookups_done, evidence_start_us: START }
}

/// A lookup that took 50 ms.
fn step(policy: &LookupPolicy, before: LookupProgress, answer: &LookupAnswer, started_us: i64) -> LookupStep {
    after_lookup(policy, &before, answer, started_us, true, started_us + 50 * MS)
}

fn again_at(at_us: i64) -> LookupDecision {
    LookupDecision::LookAgain { at_us }
}

#[test]
fn found_confirms_at_any_time() {
    for (done, started_us) in [(0, START), (9, SETTLED), (99, SETTLED)] {
        let step = step(&POLICY, progress(1, done), &found(), started_us);
        assert_eq!(step.decision, LookupDecision::Confirm { record_id: Some("r1".to_owned()) });
    }
}

#[test]
fn several_records_are_a_case_at_once() {
    let step = step(&POLICY, progress(1, 0), &LookupAnswer::Ambiguous { ids: vec![None, None] }, SETTLED);
    assert_eq!(step.decision, LookupDecision::Case(CaseReason::LookupAmbiguous));
}

#[test]
fn only_agreeing_absents_after_the_settle_delay_permit_a_repeat() {
    // One microsecond too early does not count, and is asked again only when it can count.
    let early = step(&POLICY, progress(0, 0), &LookupAnswer::Absent, SETTLED - 1);
    assert_eq!((early.decision, early.progress), (again_at(SETTLED - 1 + 10_050 * MS), progress(0, 1)));
    let much_earlier = step(&POLICY, progress(0, 0), &LookupAnswer::Absent, START);
    assert_eq!(much_earlier.decision, again_at(SETTLED));
    let first = step(&POLICY, progress(0, 1), &LookupAnswer::Absent, SETTLED);
    assert_eq!((first.decision, first.progress), (again_at(SETTLED + 10_050 * MS), progress(1, 2)));
    let second = step(&POLICY, first.progress, &LookupAnswer::Absent, SETTLED + 1);
    assert_eq!((second.decision, second.progress), (LookupDecision::AllowRepeat, progress(2, 3)));
}

#[test]
fn an_early_absent_decides_nothing_even_after_counted_ones() {
    let step = step(&POLICY, progress(2, 2), &LookupAnswer::Absent, SETTLED - 1);
    assert!(matches!(step.decision, LookupDecision::LookAgain { .. }));
}

#[test]
fn agreeing_absents_are_a_case_where_no_repeat_is_allowed() {
    let step = after_lookup(&POLICY, &progress(1, 1), &LookupAnswer::Absent, SETTLED, false, SETTLED);
    assert_eq!(step.decision, LookupDecision::Case(CaseReason::LookupAbsent));
}

#[test]
fn without_a_settle_delay_absent_is_a_case() {
    let policy = LookupPolicy { settle_delay_ms: None, agreeing: 1, ..POLICY };
    let step = step(&policy, progress(0, 0), &LookupAnswer::Absent, i64::MAX - 50 * MS);
    assert_eq!(step.decision, LookupDecision::Case(CaseReason::LookupAbsent));
}

#[test]
fn an_unclear_lookup_breaks_the_row() {
    let broken = step(&POLICY, progress(1, 1), &UNCLEAR, SETTLED);
    assert_eq!((broken.decision, broken.progress), (again_at(SETTLED + 10_050 * MS), progress(0, 2)));
    let after = step(&POLICY, broken.progress, &LookupAnswer::Absent, SETTLED);
    assert!(matches!(after.decision, LookupDecision::LookAgain { .. }));
}

#[test]
fn after_max_lookups_the_last_answer_is_the_case() {
    assert!(matches!(step(&POLICY, progress(0, 8), &UNCLEAR, SETTLED).decision, LookupDecision::LookAgain { .. }));
    assert_eq!(
        step(&POLICY, progress(0, 9), &UNCLEAR, SETTLED).decision,
        LookupDecision::Case(CaseReason::LookupUnclear)
    );
    for started_us in [START, SETTLED] {
        assert_eq!(
            step(&POLICY, progress(0, 9), &LookupAnswer::Absent, started_us).decision,
            LookupDecision::Case(CaseReason::LookupAbsent)
        );
    }
    // The last one may still decide.
    assert_eq!(step(&POLICY, progress(1, 9), &LookupAnswer::Absent, SETTLED).decision, LookupDecision::AllowRepeat);
}

#[test]
fn nothing_is_asked_for_ever() {
    for answer in [LookupAnswer::Absent, UNCLEAR] {
        for max_lookups in [0, 1, 7] {
            let policy = LookupPolicy { max_lookups, agreeing: u32::MAX, ..POLICY };
            let mut now = progress(0, 0);
            let mut asked = 0;
            loop {
                let step = step(&policy, now, &answer, SETTLED);
                asked += 1;
                now = step.progress;
                if !matches!(step.decision, LookupDecision::LookAgain { .. }) {
                    break;
                }
            }
            assert_eq!(asked, max_lookups.max(1));
        }
    }
}

#[test]
fn agreeing_zero_counts_as_one() {
    let policy = LookupPolicy { agreeing: 0, ..POLICY };
    let early = step(&policy, progress(0, 0), &LookupAnswer::Absent, START);
    assert!(matches!(early.decision, LookupDecision::LookAgain { .. }));
    let settled = step(&policy, progress(0, 0), &LookupAnswer::Absent, SETTLED);
    assert_eq!(settled.decision, LookupDecision::AllowRepeat);
}

#[test]
fn evidence_starts_at_the_end_of_the_attempt_or_when_a_dead_sender_can_no_longer_send() {
    assert_eq!(evidence_start_us(Some(5), 100, 50), 5);
    assert_eq!(evidence_start_us(None, 100, 50), 100);
    assert_eq!(evidence_start_us(None, 100, 150), 150);
}

#[test]
fn the_first_lookup_comes_after_an_interval_but_not_after_the_settle_delay() {
    let at = |settle_delay_ms, interval_ms| {
        first_lookup_at(&LookupPolicy { settle_delay_ms, interval_ms, ..POLICY }, START) - START
    };
    assert_eq!(at(Some(120_000), 10_000), 10_000 * MS);
    assert_eq!(at(Some(2_000), 10_000), 2_000 * MS);
    assert_eq!(at(Some(0), 10_000), 0);
    assert_eq!(at(None, 10_000), 10_000 * MS);
    assert_eq!(at(Some(-1), -1), 0);
}

#[test]
fn each_decision_has_its_event() {
    let event = |decision: LookupDecision| decision.event();
    assert_eq!(event(LookupDecision::Confirm { record_id: None }), Some(Event::LookupFound { same_record: true }));
    assert_eq!(event(again_at(1)), None);
    assert_eq!(event(LookupDecision::AllowRepeat), Some(Event::LookupAbsent { repeat_allowed: true }));
    assert_eq!(
        event(LookupDecision::Case(CaseReason::LookupAbsent)),
        Some(Event::LookupAbsent { repeat_allowed: false })
    );
    for reason in [CaseReason::LookupUnclear, CaseReason::LookupAmbiguous] {
        assert_eq!(event(LookupDecision::Case(reason)), Some(Event::LookupUnclear { reason }));
    }
}
