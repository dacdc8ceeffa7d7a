//! When the payload of a settled command goes, and when the command itself may be forgotten.
//!
//! Times are microseconds since the Unix epoch, durations milliseconds; every sum saturates, and a moment that never
//! comes is `i64::MAX`.

use crate::retry::{Window, plus_ms};

/// How long a command that stands in the way of others waits before it is looked at again.
const LOOK_AGAIN_MS: i64 = 86_400_000;

/// What a command type says, counted from settlement. `None`: kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRule {
    /// Params, results and evidence.
    pub payload_ms: Option<i64>,
    /// The command, its journal and its key.
    pub key_ms: Option<i64>,
}

/// What is known of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionFacts {
    /// Confirmed, failed or cancelled, and no case is open.
    pub settled: bool,
    /// Since when, or since the last evidence about it.
    pub settled_us: i64,
    /// The payload is gone already.
    pub redacted: bool,
    /// It failed, and others wait behind it in its lane: forgetting it would let them go.
    pub blocks_lane: bool,
    /// Until when the destination may recognise the key ([`recognised_until_us`]); a new command under the same key
    /// would be answered with the old one's record.
    pub recognised_until_us: i64,
    /// The deadline: until then an honest caller repeats the key, and an operator may retry.
    pub deadline_us: Option<i64>,
    /// The type's own retry horizon, counted from registration: the same.
    pub repeats_until_us: Option<i64>,
    /// Now.
    pub now_us: i64,
}

/// What retention does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetentionStep {
    /// Remove the payload; look again then, if ever.
    Redact {
        /// When the command itself may go.
        next_us: Option<i64>,
    },
    /// Remove the command.
    Delete,
    /// Nothing now; look again then.
    Wait {
        /// Then.
        until_us: i64,
    },
    /// Nothing, ever.
    Keep,
}

/// Until when a destination may recognise a key that was last sent before `settled_us`: the window, with the margin on
/// the safe side, which here is the later one. A window of 0 is no promise, and recognises nothing.
pub fn recognised_until_us(window: Window, margin_ms: i64, settled_us: i64) -> i64 {
    match window {
        Window::Unlimited => i64::MAX,
        Window::Ms(window_ms) if window_ms <= 0 => i64::MIN,
        Window::Ms(window_ms) => plus_ms(settled_us, window_ms.saturating_add(margin_ms.max(0))),
    }
}

/// When the command itself may go; `None`: never.
pub fn key_due_us(rule: &RetentionRule, facts: &RetentionFacts) -> Option<i64> {
    let retained_us = plus_ms(facts.settled_us, rule.key_ms?);
    let due_us = [Some(facts.recognised_until_us), facts.deadline_us, facts.repeats_until_us]
        .into_iter()
        .flatten()
        .fold(retained_us, i64::max);
    (due_us != i64::MAX).then_some(due_us)
}

/// What retention does to a command. The first line that fits decides:
///
/// | condition | step |
/// |---|---|
/// | not settled | keep (its settlement asks again) |
/// | failed, and others wait behind it | wait a day |
/// | key retention, recognition, deadline and retry horizon are past | delete |
/// | payload retention is past, payload there | redact |
/// | one of them comes later | wait until the first |
/// | else | keep |
pub fn retention_step(rule: &RetentionRule, facts: &RetentionFacts) -> RetentionStep {
    if !facts.settled {
        return RetentionStep::Keep;
    }
    if facts.blocks_lane {
        return RetentionStep::Wait { until_us: plus_ms(facts.now_us, LOOK_AGAIN_MS) };
    }
    let key_us = key_due_us(rule, facts);
    if key_us.is_some_and(|due| due <= facts.now_us) {
        return RetentionStep::Delete;
    }
    let payload_us = rule.payload_ms.filter(|_| !facts.redacted).map(|ms| plus_ms(facts.settled_us, ms));
    match (payload_us, key_us) {
        (Some(due), _) if due <= facts.now_us => RetentionStep::Redact { next_us: key_us },
        (None, None) => RetentionStep::Keep,
        (payload_us, key_us) => {
            RetentionStep::Wait { until_us: payload_us.into_iter().chain(key_us).min().unwrap_or(i64::MAX) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RetentionStep::{Delete, Keep, Redact, Wait};
    use super::*;

    const SECOND_US: i64 = 1_000_000;

    /// Settled at 100 s; the payload goes after 10 s, the key after 50 s.
    fn at(now_s: i64) -> (RetentionRule, RetentionFacts) {
        let rule = RetentionRule { payload_ms: Some(10_000), key_ms: Some(50_000) };
        let facts = RetentionFacts {
            settled: true,
            settled_us: 100 * SECOND_US,
            redacted: false,
            blocks_lane: false,
            recognised_until_us: i64::MIN,
            deadline_us: None,
            repeats_until_us: None,
            now_us: now_s * SECOND_US,
        };
        (rule, facts)
    }

    #[test]
    fn the_payload_goes_first_and_the_key_later() {
        let cases = [
            (105, false, Wait { until_us: 110 * SECOND_US }),
            (110, false, Redact { next_us: Some(150 * SECOND_US) }),
            (110, true, Wait { until_us: 150 * SECOND_US }),
            (149, true, Wait { until_us: 150 * SECOND_US }),
            (150, true, Delete),
            (150, false, Delete),
        ];
        for (now_s, redacted, step) in cases {
            let (rule, facts) = at(now_s);
            assert_eq!(retention_step(&rule, &RetentionFacts { redacted, ..facts }), step, "{now_s} {redacted}");
        }
    }

    #[test]
    fn a_key_stays_while_the_destination_or_a_caller_may_still_use_it() {
        let (rule, facts) = at(200);
        let later = 300 * SECOND_US;
        for facts in [
            RetentionFacts { recognised_until_us: later, redacted: true, ..facts },
            RetentionFacts { deadline_us: Some(later), redacted: true, ..facts },
            RetentionFacts { repeats_until_us: Some(later), redacted: true, ..facts },
        ] {
            assert_eq!(retention_step(&rule, &facts), Wait { until_us: later });
            assert_eq!(retention_step(&rule, &RetentionFacts { now_us: later, ..facts }), Delete);
        }
    }

    #[test]
    fn a_key_that_is_recognised_for_ever_is_never_forgotten() {
        let (rule, facts) = at(200);
        let for_ever = RetentionFacts { recognised_until_us: i64::MAX, ..facts };
        assert_eq!(retention_step(&rule, &for_ever), Redact { next_us: None });
        assert_eq!(retention_step(&rule, &RetentionFacts { redacted: true, ..for_ever }), Keep);
    }

    #[test]
    fn what_is_open_or_holds_others_back_is_left_alone() {
        let (rule, facts) = at(1_000);
        assert_eq!(retention_step(&rule, &RetentionFacts { settled: false, ..facts }), Keep);
        let step = retention_step(&rule, &RetentionFacts { blocks_lane: true, ..facts });
        assert_eq!(step, Wait { until_us: facts.now_us + LOOK_AGAIN_MS * 1_000 });
    }

    #[test]
    fn what_no_rule_names_is_kept() {
        let (_, facts) = at(1_000);
        assert_eq!(retention_step(&RetentionRule { payload_ms: None, key_ms: None }, &facts), Keep);
        let payload = RetentionRule { payload_ms: Some(10_000), key_ms: None };
        assert_eq!(retention_step(&payload, &facts), Redact { next_us: None });
        assert_eq!(retention_step(&payload, &RetentionFacts { redacted: true, ..facts }), Keep);
    }

    #[test]
    fn the_margin_lengthens_what_a_destination_may_recognise() {
        assert_eq!(recognised_until_us(Window::Ms(1_000), 500, 0), 1_500_000);
        assert_eq!(recognised_until_us(Window::Ms(0), 500, 0), i64::MIN);
        assert_eq!(recognised_until_us(Window::Unlimited, 500, 0), i64::MAX);
        assert_eq!(recognised_until_us(Window::Ms(i64::MAX), i64::MAX, i64::MAX), i64::MAX);
    }
}
