//! How fast a destination may be sent to: a rate limit, and a breaker that rests after failures in a row.
//!
//! | breaker | on success | on failure | may send |
//! |---|---|---|---|
//! | closed | failures = 0 | failures + 1; at the limit: open until now + cool-down | as the rate permits |
//! | open | closed | stays open | nothing before the cool-down is over |
//! | half-open (cool-down over) | closed | open again | one attempt at a time, the probe |
//!
//! A failure is an answer that says nothing about this request alone: not sent, no answer, 429, 5xx.

/// The limits of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// Sends per second; `None`: unlimited.
    pub per_second: Option<i64>,
    /// Failures in a row that open the breaker, and its cool-down; `None`: no breaker.
    pub breaker: Option<(i64, i64)>,
}

/// What is remembered of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Micro-permits: one send costs a million.
    permits_u: i64,
    refilled_us: i64,
    failures: i64,
    open_until_us: Option<i64>,
    probing: bool,
}

const ONE_U: i64 = 1_000_000;

impl Throttle {
    /// A destination that nothing is known of: one second's worth of permits, breaker closed.
    pub fn new(limits: &ThrottleLimits, now_us: i64) -> Self {
        let permits_u = limits.per_second.unwrap_or(0).saturating_mul(ONE_U);
        Self { permits_u, refilled_us: now_us, failures: 0, open_until_us: None, probing: false }
    }

    /// How many of `wanted` sends may start now. Nothing is spent yet; see [`Throttle::sent`].
    pub fn permitted(&mut self, limits: &ThrottleLimits, wanted: i64, now_us: i64) -> i64 {
        let by_breaker = match self.open_until_us {
            Some(until_us) if now_us < until_us => 0,
            Some(_) if self.probing => 0,
            Some(_) => 1,
            None => wanted,
        };
        let by_rate = match limits.per_second {
            None => wanted,
            Some(per_second) => {
                let passed_us = now_us.saturating_sub(self.refilled_us).clamp(0, 1_000_000);
                let full_u = per_second.saturating_mul(ONE_U);
                // One second refills `per_second` permits: a microsecond refills `per_second` micro-permits.
                self.permits_u = self.permits_u.saturating_add(passed_us.saturating_mul(per_second)).min(full_u);
                self.refilled_us = now_us;
                self.permits_u / ONE_U
            }
        };
        wanted.min(by_breaker).min(by_rate).max(0)
    }

    /// So many sends were started.
    pub fn sent(&mut self, limits: &ThrottleLimits, count: i64) {
        if limits.per_second.is_some() {
            self.permits_u = self.permits_u.saturating_sub(count.saturating_mul(ONE_U));
        }
        if self.open_until_us.is_some() && count > 0 {
            self.probing = true;
        }
    }

    /// An attempt ended.
    pub fn ended(&mut self, limits: &ThrottleLimits, failure: bool, now_us: i64) {
        let Some((failures, cool_down_ms)) = limits.breaker else { return };
        self.probing = false;
        if !failure {
            self.failures = 0;
            self.open_until_us = None;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= failures || self.open_until_us.is_some() {
            self.open_until_us = Some(now_us.saturating_add(cool_down_ms.saturating_mul(1_000)));
        }
    }

    /// When a send may be possible again, if none is now.
    pub fn again_at_us(&self, limits: &ThrottleLimits, now_us: i64) -> Option<i64> {
        if let Some(until_us) = self.open_until_us
            && until_us > now_us
        {
            return Some(until_us);
        }
        let per_second = limits.per_second?;
        let missing_u = ONE_U.saturating_sub(self.permits_u);
        (missing_u > 0).then(|| now_us.saturating_add(missing_u / per_second.max(1) + 1))
    }

    /// Whether the breaker keeps sends back.
    pub fn is_open(&self) -> bool {
        self.open_until_us.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKER: ThrottleLimits = ThrottleLimits { per_second: None, breaker: Some((2, 1_000)) };
    const RATE: ThrottleLimits = ThrottleLimits { per_second: Some(10), breaker: None };

    #[test]
    fn the_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let mut t = Throttle::new(&BREAKER, 0);
        t.ended(&BREAKER, true, 0);
        t.ended(&BREAKER, false, 0);
        t.ended(&BREAKER, true, 0);
        assert_eq!(t.permitted(&BREAKER, 5, 0), 5, "a success between two failures starts the row anew");
        t.ended(&BREAKER, true, 0);
        assert_eq!(t.permitted(&BREAKER, 5, 999_999), 0);
        assert_eq!(t.again_at_us(&BREAKER, 0), Some(1_000_000));
        assert_eq!(t.permitted(&BREAKER, 5, 1_000_000), 1);
        t.sent(&BREAKER, 1);
        assert_eq!(t.permitted(&BREAKER, 5, 1_000_001), 0, "one probe at a time");
        t.ended(&BREAKER, true, 1_000_002);
        assert_eq!(t.permitted(&BREAKER, 5, 1_500_000), 0);
        assert_eq!(t.permitted(&BREAKER, 5, 2_000_002), 1);
        t.sent(&BREAKER, 1);
        t.ended(&BREAKER, false, 2_000_003);
        assert_eq!(t.permitted(&BREAKER, 5, 2_000_004), 5);
        assert!(!t.is_open());
    }

    #[test]
    fn the_rate_never_lets_more_than_a_second_of_permits_through_at_once() {
        let mut t = Throttle::new(&RATE, 0);
        assert_eq!(t.permitted(&RATE, 100, 0), 10);
        t.sent(&RATE, 10);
        assert_eq!(t.permitted(&RATE, 100, 0), 0);
        let again = t.again_at_us(&RATE, 0).unwrap_or(0);
        assert!((100_000..=100_002).contains(&again), "{again}");
        assert_eq!(t.permitted(&RATE, 100, again), 1);
        t.sent(&RATE, 1);
        assert_eq!(t.permitted(&RATE, 100, 3_600_000_000), 10);
    }

    #[test]
    fn a_clock_that_steps_back_gives_no_permits() {
        let mut t = Throttle::new(&RATE, 1_000_000);
        t.sent(&RATE, 10);
        assert_eq!(t.permitted(&RATE, 1, 0), 0);
    }
}
