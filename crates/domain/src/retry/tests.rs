use proptest::prelude::*;

use super::*;
use crate::error::Code;

const POLICY: RetryPolicy = RetryPolicy { auto: true, max_attempts: 5, base_ms: 1_000, cap_ms: 300_000 };
const NOW: i64 = 1_700_000_000_000_000;

fn facts() -> RepeatFacts {
    RepeatFacts {
        counted_attempts: 1,
        now_us: NOW,
        deadline_us: None,
        retry_after_ms: None,
        window_end_us: None,
        maybe_sent: false,
    }
}

fn in_ms(ms: i64) -> i64 {
    NOW + ms * 1_000
}

#[test]
fn backoff_doubles_up_to_the_cap() {
    let highest = |attempt| backoff_ms(attempt, 1_000, 300_000, u64::MAX);
    assert_eq!([1, 2, 3, 4, 5].map(highest), [1_000, 2_000, 4_000, 8_000, 16_000]);
    assert_eq!(
        [9, 10, 31, 62, 63, 64, 65, 1_000, i32::MAX].map(highest),
        [256_000, 300_000, 300_000, 300_000, 300_000, 300_000, 300_000, 300_000, 300_000]
    );
    assert_eq!([0, -1, i32::MIN].map(highest), [1_000, 1_000, 1_000]);
}

#[test]
fn backoff_uses_the_whole_range_from_zero_to_its_ceiling() {
    assert_eq!(backoff_ms(3, 1_000, 300_000, 0), 0);
    assert_eq!(backoff_ms(3, 1_000, 300_000, u64::MAX / 2), 2_000);
    assert_eq!(backoff_ms(3, 1_000, 300_000, u64::MAX), 4_000);
}

#[test]
fn backoff_of_extreme_durations_neither_overflows_nor_goes_below_zero() {
    for attempt in [i32::MIN, 0, 1, 31, 62, 63, 64, 1_000, i32::MAX] {
        assert_eq!(backoff_ms(attempt, i64::MAX, i64::MAX, u64::MAX), i64::MAX);
        assert_eq!(backoff_ms(attempt, i64::MIN, i64::MAX, u64::MAX), 0);
        assert_eq!(backoff_ms(attempt, i64::MAX, i64::MIN, u64::MAX), 0);
        assert_eq!(backoff_ms(attempt, 0, i64::MAX, u64::MAX), 0);
    }
    // One millisecond doubled 62 times still counts; 63 times is past any cap.
    assert_eq!(backoff_ms(63, 1, i64::MAX, u64::MAX), 1 << 62);
    assert_eq!(backoff_ms(64, 1, i64::MAX, u64::MAX), i64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn backoff_stays_between_zero_and_the_cap(
        attempt: i32, base_ms in 0..i64::MAX, cap_ms in 0..i64::MAX, random: u64,
    ) {
        prop_assert!((0..=cap_ms).contains(&backoff_ms(attempt, base_ms, cap_ms, random)));
    }

    #[test]
    fn a_repeat_is_never_due_in_the_past_nor_past_what_limits_it(
        counted_attempts in 0..10i32,
        deadline_ms in prop::option::of(-10_000..1_000_000i64),
        window_ms in prop::option::of(-10_000..1_000_000i64),
        retry_after_ms in prop::option::of(0..MAX_RETRY_AFTER_MS),
        maybe_sent: bool,
        random: u64,
    ) {
        let facts = RepeatFacts {
            counted_attempts,
            deadline_us: deadline_ms.map(in_ms),
            window_end_us: window_ms.map(in_ms),
            retry_after_ms,
            maybe_sent,
            ..facts()
        };
        if let Repeat::At { due_us } = repeat_due(&POLICY, &facts, random) {
            prop_assert!(due_us >= NOW);
            prop_assert!(counted_attempts < POLICY.max_attempts);
            prop_assert!(facts.deadline_us.is_none_or(|end| due_us <= end - 1_000_000));
            prop_assert!(!maybe_sent || facts.window_end_us.is_none_or(|end| due_us <= end - 1_000_000));
        }
    }

    #[test]
    fn any_text_as_retry_after_is_read_or_refused_within_bounds(text in "\\PC{0,40}", now_us: i64) {
        if let Some(ms) = parse_retry_after(&text, now_us) {
            prop_assert!((0..=MAX_RETRY_AFTER_MS).contains(&ms));
        }
    }
}

#[test]
fn a_repeat_needs_policy_budget_time_and_window_in_this_order() {
    let over = RepeatFacts {
        counted_attempts: 5,
        deadline_us: Some(NOW),
        window_end_us: Some(NOW),
        maybe_sent: true,
        ..facts()
    };
    let manual = RetryPolicy { auto: false, ..POLICY };
    assert_eq!(repeat_due(&manual, &over, 0), Repeat::NeedsPerson);
    assert_eq!(repeat_due(&manual, &facts(), 0), Repeat::NeedsPerson);
    assert_eq!(repeat_due(&POLICY, &over, 0), Repeat::BudgetExhausted);
    let over = RepeatFacts { counted_attempts: 4, ..over };
    assert_eq!(repeat_due(&POLICY, &over, 0), Repeat::DeadlineOver);
    let over = RepeatFacts { deadline_us: None, ..over };
    assert_eq!(repeat_due(&POLICY, &over, 0), Repeat::WindowOver);
    let over = RepeatFacts { window_end_us: None, ..over };
    assert_eq!(repeat_due(&POLICY, &over, 0), Repeat::At { due_us: NOW });
}

#[test]
fn the_last_permitted_attempt_is_not_exceeded() {
    let after = |counted_attempts| repeat_due(&POLICY, &RepeatFacts { counted_attempts, ..facts() }, 0);
    assert_eq!(after(4), Repeat::At { due_us: NOW });
    assert_eq!(after(5), Repeat::BudgetExhausted);
    assert_eq!(after(i32::MAX), Repeat::BudgetExhausted);
    let none = RetryPolicy { max_attempts: 0, ..POLICY };
    assert_eq!(repeat_due(&none, &RepeatFacts { counted_attempts: 0, ..facts() }, 0), Repeat::BudgetExhausted);
}

#[test]
fn an_attempt_needs_a_second_before_the_deadline() {
    let at = |ms| repeat_due(&POLICY, &RepeatFacts { deadline_us: Some(in_ms(ms)), ..facts() }, 0);
    assert_eq!(at(1_000), Repeat::At { due_us: NOW });
    assert_eq!(at(999), Repeat::DeadlineOver);
    assert_eq!(at(-1), Repeat::DeadlineOver);
}

#[test]
fn the_window_matters_only_while_maybe_sent() {
    let at =
        |maybe_sent, ms| repeat_due(&POLICY, &RepeatFacts { maybe_sent, window_end_us: Some(in_ms(ms)), ..facts() }, 0);
    assert_eq!(at(true, 1_000), Repeat::At { due_us: NOW });
    assert_eq!(at(true, 999), Repeat::WindowOver);
    assert_eq!(at(false, 999), Repeat::At { due_us: NOW });
}

#[test]
fn the_wait_is_the_later_of_backoff_and_retry_after() {
    let with = |retry_after_ms, random| repeat_due(&POLICY, &RepeatFacts { retry_after_ms, ..facts() }, random);
    assert_eq!(with(None, u64::MAX), Repeat::At { due_us: in_ms(1_000) });
    assert_eq!(with(Some(500), u64::MAX), Repeat::At { due_us: in_ms(1_000) });
    assert_eq!(with(Some(30_000), u64::MAX), Repeat::At { due_us: in_ms(30_000) });
    assert_eq!(with(Some(30_000), 0), Repeat::At { due_us: in_ms(30_000) });
}

#[test]
fn a_wait_past_the_deadline_is_shortened_to_the_last_chance_before_it() {
    let facts = RepeatFacts { retry_after_ms: Some(60_000), deadline_us: Some(in_ms(10_000)), ..facts() };
    assert_eq!(repeat_due(&POLICY, &facts, 0), Repeat::At { due_us: in_ms(9_000) });
    let facts = RepeatFacts { window_end_us: Some(in_ms(5_000)), maybe_sent: true, ..facts };
    assert_eq!(repeat_due(&POLICY, &facts, 0), Repeat::At { due_us: in_ms(4_000) });
}

#[test]
fn times_at_the_ends_of_the_range_do_not_overflow() {
    for now_us in [i64::MIN, 0, i64::MAX] {
        for end in [i64::MIN, i64::MAX] {
            let facts = RepeatFacts {
                now_us,
                deadline_us: Some(end),
                window_end_us: Some(end),
                retry_after_ms: Some(i64::MAX),
                maybe_sent: true,
                ..facts()
            };
            if let Repeat::At { due_us } = repeat_due(&POLICY, &facts, u64::MAX) {
                assert!(due_us >= now_us);
            }
        }
    }
    assert_eq!(lease_expiry_us(i64::MAX, 60_000, None, None, None), i64::MAX);
    assert_eq!(window_end_us(i64::MAX, Window::Ms(i64::MAX), 0), Some(i64::MAX));
    assert_eq!(window_end_us(i64::MIN, Window::Ms(0), i64::MAX), Some(i64::MIN));
}

#[test]
fn retry_after_seconds() {
    let rows = [
        ("0", Some(0)),
        ("1", Some(1_000)),
        ("  120\t", Some(120_000)),
        ("007", Some(7_000)),
        ("86400", Some(MAX_RETRY_AFTER_MS)),
        ("86401", Some(MAX_RETRY_AFTER_MS)),
        ("1000000000000", Some(MAX_RETRY_AFTER_MS)),
        ("99999999999999999999999999", Some(MAX_RETRY_AFTER_MS)),
        ("", None),
        (" ", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("1 s", None),
        ("١", None),
        ("0x10", None),
        ("soon", None),
    ];
    for (text, ms) in rows {
        assert_eq!(parse_retry_after(text, NOW), ms, "{text:?}");
    }
    assert_eq!(parse_retry_after(&"0".repeat(65), NOW), None);
}

#[test]
fn retry_after_dates() {
    // 2023-11-14 22:13:20
    let rows = [
        ("Tue, 14 Nov 2023 22:13:20 GMT", Some(0)),
        ("Tue, 14 Nov 2023 22:13:50 GMT", Some(30_000)),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", Some(30_000)),
        ("Tue Nov 14 22:13:50 2023", Some(30_000)),
        ("Tue, 14 Nov 2023 22:13:19 GMT", Some(0)),
        ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", Some(MAX_RETRY_AFTER_MS)),
        ("Thu, 31 Nov 2023 22:13:50 GMT", None),
    ];
    for (text, ms) in rows {
        assert_eq!(parse_retry_after(text, NOW), ms, "{text:?}");
    }
    // A part of a millisecond counts as a whole one: never before the date.
    assert_eq!(parse_retry_after("Tue, 14 Nov 2023 22:13:50 GMT", NOW + 1), Some(30_000));
    assert_eq!(parse_retry_after("Tue, 14 Nov 2023 22:13:50 GMT", NOW - 1), Some(30_001));
}

#[test]
fn a_window_ends_a_margin_early_and_an_unpublished_one_never_opens() {
    assert_eq!(window_end_us(NOW, Window::Ms(86_400_000), 300_000), Some(in_ms(86_100_000)));
    assert_eq!(window_end_us(NOW, Window::Unlimited, 300_000), None);
    for (window_ms, margin_ms) in [(0, 300_000), (0, 0), (300_000, 300_000), (-5, 0)] {
        let end = window_end_us(NOW, Window::Ms(window_ms), margin_ms);
        assert!(!window_open(end, NOW), "{window_ms} {margin_ms}");
    }
    // A negative margin never lengthens the window.
    assert_eq!(window_end_us(NOW, Window::Ms(1_000), -1_000), Some(in_ms(1_000)));
}

#[test]
fn a_window_is_over_at_its_end() {
    assert!(window_open(Some(NOW), NOW - 1));
    assert!(!window_open(Some(NOW), NOW));
    assert!(window_open(None, i64::MAX));
}

#[test]
fn a_lease_ends_with_the_earliest_of_what_limits_it() {
    let far = Some(in_ms(1_000_000));
    let near = Some(in_ms(2_000));
    assert_eq!(lease_expiry_us(NOW, 60_000, None, None, None), in_ms(60_000));
    assert_eq!(lease_expiry_us(NOW, 60_000, far, far, far), in_ms(60_000));
    assert_eq!(lease_expiry_us(NOW, 60_000, near, far, far), in_ms(2_000));
    assert_eq!(lease_expiry_us(NOW, 60_000, far, near, far), in_ms(2_000));
    assert_eq!(lease_expiry_us(NOW, 60_000, far, far, near), in_ms(2_000));
    assert!(lease_expiry_us(NOW, 60_000, Some(NOW - 1), None, None) <= NOW);
}

#[test]
fn a_lease_lasts_from_a_second_to_an_hour() {
    for ms in [1_000, 60_000, 3_600_000] {
        assert_eq!(check_lease(ms), Ok(ms));
    }
    for ms in [i64::MIN, -1, 0, 999, 3_600_001, i64::MAX] {
        assert_eq!(check_lease(ms).map_err(|e| e.code), Err(Code::InvalidArgument), "{ms}");
    }
}

#[test]
fn the_wait_after_a_fault_of_the_own_setup_grows_and_stays_bounded() {
    let waits: Vec<i64> = [0, 1, 2, 6, 7, 8, 1_000, i32::MAX].map(own_setup_wait_ms).to_vec();
    assert_eq!(waits, [5_000, 10_000, 20_000, 320_000, 600_000, 600_000, 600_000, 600_000]);
    assert_eq!(own_setup_wait_ms(-1), 5_000);
}
