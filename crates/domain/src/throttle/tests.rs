use proptest::prelude::*;

use super::*;

const BREAKER: ThrottleLimits = ThrottleLimits { per_second: None, breaker: Some((2, 1_000)) };
const RATE: ThrottleLimits = ThrottleLimits { per_second: Some(10), breaker: None };
/// Long before everything else happens.
const BEGAN: i64 = -10_000_000;

fn open_breaker() -> Throttle {
    let mut t = Throttle::new(&BREAKER, BEGAN);
    let mark = t.sent(&BREAKER, 2, 0);
    t.ended(&BREAKER, mark, SendEnd::Failure, 0);
    t.ended(&BREAKER, mark, SendEnd::Failure, 0);
    t
}

#[test]
fn the_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() {
    let mut t = Throttle::new(&BREAKER, BEGAN);
    for end in [SendEnd::Failure, SendEnd::Well, SendEnd::Failure] {
        let mark = t.sent(&BREAKER, 1, 0);
        t.ended(&BREAKER, mark, end, 0);
    }
    assert_eq!(t.permitted(&BREAKER, 5, 0), 5, "a success between two failures starts the row anew");
    let mark = t.sent(&BREAKER, 1, 0);
    t.ended(&BREAKER, mark, SendEnd::Failure, 0);
    assert_eq!(t.permitted(&BREAKER, 5, 999_999), 0);
    assert_eq!(t.again_at_us(&BREAKER, 0), Some(1_000_000));
    assert_eq!(t.permitted(&BREAKER, 5, 1_000_000), 1);
    let probe = t.sent(&BREAKER, 1, 1_000_000);
    assert_eq!(t.permitted(&BREAKER, 5, 1_000_001), 0, "one probe at a time");
    t.ended(&BREAKER, probe, SendEnd::Failure, 1_000_002);
    assert_eq!(t.permitted(&BREAKER, 5, 1_500_000), 0);
    assert_eq!(t.permitted(&BREAKER, 5, 2_000_002), 1);
    let probe = t.sent(&BREAKER, 1, 2_000_002);
    t.ended(&BREAKER, probe, SendEnd::Well, 2_000_003);
    assert_eq!(t.permitted(&BREAKER, 5, 2_000_004), 5);
    assert_eq!(t.held(&BREAKER, 2_000_004), Held::default());
}

#[test]
fn a_send_from_before_the_breaker_opened_neither_frees_the_probe_nor_prolongs_the_rest() {
    let mut t = Throttle::new(&BREAKER, BEGAN);
    let old = t.sent(&BREAKER, 4, 0);
    t.ended(&BREAKER, old, SendEnd::Failure, 0);
    t.ended(&BREAKER, old, SendEnd::Failure, 0);
    t.ended(&BREAKER, old, SendEnd::Failure, 900_000);
    assert_eq!(t.again_at_us(&BREAKER, 0), Some(1_000_000));
    assert_eq!(t.permitted(&BREAKER, 5, 1_000_000), 1);
    t.sent(&BREAKER, 1, 1_000_000);
    t.ended(&BREAKER, old, SendEnd::Failure, 1_000_001);
    assert_eq!(t.permitted(&BREAKER, 5, 9_000_000), 0, "the probe is still out");
    t.ended(&BREAKER, old, SendEnd::Well, 9_000_000);
    assert_eq!(t.permitted(&BREAKER, 5, 9_000_000), 5, "whoever answers is there");
}

#[test]
fn what_our_own_setup_kept_back_neither_closes_nor_opens_the_breaker() {
    let mut t = open_breaker();
    t.permitted(&BREAKER, 1, 1_000_000);
    let probe = t.sent(&BREAKER, 1, 1_000_000);
    t.ended(&BREAKER, probe, SendEnd::Nothing, 1_000_001);
    assert_eq!(t.held(&BREAKER, 1_000_001).open_until_us, Some(1_000_000));
    assert_eq!(t.permitted(&BREAKER, 5, 1_000_002), 1, "the next probe may go");
    let mut t = Throttle::new(&BREAKER, BEGAN);
    for end in [SendEnd::Failure, SendEnd::Nothing, SendEnd::Nothing] {
        let mark = t.sent(&BREAKER, 1, 0);
        t.ended(&BREAKER, mark, end, 0);
    }
    assert_eq!(t.permitted(&BREAKER, 5, 0), 5);
}

#[test]
fn other_limits_close_the_breaker_and_keep_what_was_sent() {
    let both = ThrottleLimits { per_second: Some(10), ..BREAKER };
    let mut t = Throttle::new(&both, BEGAN);
    let mark = t.sent(&both, 7, 0);
    t.ended(&both, mark, SendEnd::Failure, 0);
    t.ended(&both, mark, SendEnd::Failure, 0);
    assert_eq!(t.permitted(&both, 5, 0), 0);
    t.limits_changed();
    assert_eq!(t.permitted(&both, 5, 0), 3);
}

#[test]
fn a_second_holds_no_more_than_its_rate_and_saves_nothing_up() {
    let mut t = Throttle::new(&RATE, BEGAN);
    assert_eq!(t.permitted(&RATE, 100, 3_600_000_000), 10);
    let start = 3_600_000_000;
    t.sent(&RATE, 4, start);
    assert_eq!(t.permitted(&RATE, 100, start + 300_000), 6);
    t.sent(&RATE, 6, start + 300_000);
    assert_eq!(t.permitted(&RATE, 100, start + 999_999), 0);
    assert_eq!(t.again_at_us(&RATE, start + 300_000), Some(start + 1_000_000));
    assert_eq!(t.permitted(&RATE, 100, start + 1_000_000), 4);
    t.sent(&RATE, 4, start + 1_000_000);
    assert_eq!(t.permitted(&RATE, 100, start + 1_300_000), 6);
}

#[test]
fn a_new_start_gives_no_second_helping() {
    let mut t = Throttle::new(&RATE, 0);
    assert_eq!(t.permitted(&RATE, 100, 0), 0);
    assert_eq!(t.again_at_us(&RATE, 0), Some(1_000_000));
    assert_eq!(t.permitted(&RATE, 100, 1_000_000), 10);
}

#[test]
fn a_clock_that_steps_back_gives_no_permits_and_blocks_for_a_second_only() {
    let mut t = Throttle::new(&RATE, BEGAN);
    t.sent(&RATE, 10, 3_600_000_000);
    assert_eq!(t.permitted(&RATE, 1, 0), 0);
    assert_eq!(t.again_at_us(&RATE, 0), Some(1_000_000));
    assert_eq!(t.permitted(&RATE, 1, 1_000_000), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_second_ever_holds_more_than_its_rate(
        steps in prop::collection::vec((0..400_000i64, 0..30i64), 1..80),
    ) {
        let mut t = Throttle::new(&RATE, BEGAN);
        let (mut now_us, mut log) = (0i64, Vec::new());
        for (passes_us, wanted) in steps {
            now_us += passes_us;
            let count = t.permitted(&RATE, wanted, now_us);
            prop_assert!((0..=wanted).contains(&count));
            t.sent(&RATE, count, now_us);
            log.push((now_us, count));
            let second: i64 = log.iter().filter(|(at_us, _)| *at_us > now_us - 1_000_000).map(|(_, n)| n).sum();
            prop_assert!(second <= 10);
            prop_assert!(t.recent.len() <= 1_001);
        }
    }
}
