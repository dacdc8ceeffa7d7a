//! How fast a destination may be sent to: a rate limit, and a breaker that rests after failures in a row.
//!
//! Rate: in no second, wherever it begins, start more than `per_second` sends. What was sent in the last second is
//! remembered; nothing is saved up. Of the time before the start nothing is known, so the second before it counts as
//! used up: a restart gives nobody a second helping.
//!
//! | breaker | a send ends well | fails | says nothing about the destination | may send |
//! |---|---|---|---|---|
//! | closed | failures = 0 | failures + 1; at the limit: open until now + cool-down | no change | as the rate permits |
//! | open | closed | no change | no change | nothing before the cool-down is over |
//! | half-open (cool-down over) | closed | the probe's: open again; an older send's: no change | the probe's: the next may go | one at a time, the probe |
//!
//! A failure is an answer that says nothing about this request alone: not sent, no answer, 429, 5xx. A send that was
//! kept back by the ledger itself (a missing secret, a stop) says nothing.

use std::collections::VecDeque;

/// The limits of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// Sends per second; `None`: unlimited.
    pub per_second: Option<i64>,
    /// Failures in a row that open the breaker, and its cool-down; `None`: no breaker.
    pub breaker: Option<(i64, i64)>,
}

/// How a send ended, as far as the destination as a whole is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendEnd {
    /// It answered.
    Well,
    /// It did not, or is busy, or is broken.
    Failure,
    /// The send never got to it, for a reason of our own.
    Nothing,
}

/// What keeps sends back at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Failures in a row.
    pub failures: i64,
    /// The breaker is not closed: nothing before this moment, and from then on one probe at a time.
    pub open_until_us: Option<i64>,
    /// The second's sends are used up until then.
    pub full_until_us: Option<i64>,
}

/// What is remembered of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Sends of the last second, oldest first: when, and how many.
    recent: VecDeque<(i64, i64)>,
    failures: i64,
    open_until_us: Option<i64>,
    /// How often the breaker has opened; a send carries the number that it started under.
    opened: u64,
    probing: bool,
}

const SECOND_US: i64 = 1_000_000;
/// Sends that start within this time are remembered together.
const TOGETHER_US: i64 = 1_000;

impl Throttle {
    /// A destination that nothing is known of, in a relay that began at `began_us`.
    pub fn new(limits: &ThrottleLimits, began_us: i64) -> Self {
        let before = limits.per_second.map(|per_second| (began_us, per_second));
        Self { recent: before.into_iter().collect(), failures: 0, open_until_us: None, opened: 0, probing: false }
    }

    /// The limits are others now: the breaker starts closed, what was sent stays sent.
    pub fn limits_changed(&mut self) {
        self.failures = 0;
        self.open_until_us = None;
        self.probing = false;
        self.opened += 1;
    }

    /// How many of `wanted` sends may start now. Nothing is spent yet; see [`Throttle::sent`].
    pub fn permitted(&mut self, limits: &ThrottleLimits, wanted: i64, now_us: i64) -> i64 {
        let by_breaker = match self.open_until_us {
            Some(until_us) if now_us < until_us => 0,
            Some(_) if self.probing => 0,
            Some(_) => 1,
            None => wanted,
        };
        self.forget(now_us);
        let by_rate = match limits.per_second {
            None => wanted,
            Some(per_second) => per_second.saturating_sub(self.sent_lately()),
        };
        wanted.min(by_breaker).min(by_rate).max(0)
    }

    fn forget(&mut self, now_us: i64) {
        while self.recent.front().is_some_and(|(at_us, _)| *at_us <= now_us.saturating_sub(SECOND_US)) {
            self.recent.pop_front();
        }
        // The clock was set back: what was sent "later" was sent just now, at the latest.
        for (at_us, _) in &mut self.recent {
            *at_us = (*at_us).min(now_us);
        }
    }

    fn sent_lately(&self) -> i64 {
        self.recent.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// So many sends were started. The answer goes with each of them and comes back in [`Throttle::ended`].
    pub fn sent(&mut self, limits: &ThrottleLimits, count: i64, now_us: i64) -> u64 {
        if count > 0 {
            if limits.per_second.is_some() {
                match self.recent.back_mut() {
                    // Under the later moment, so that a send is never forgotten too early.
                    Some((at_us, sum)) if now_us.saturating_sub(*at_us) < TOGETHER_US => {
                        (*at_us, *sum) = (now_us, sum.saturating_add(count));
                    }
                    _ => self.recent.push_back((now_us, count)),
                }
            }
            self.probing |= self.open_until_us.is_some();
        }
        self.opened
    }

    /// A send ended that had started under `mark`.
    pub fn ended(&mut self, limits: &ThrottleLimits, mark: u64, end: SendEnd, now_us: i64) {
        let Some((failures, cool_down_ms)) = limits.breaker else { return };
        let is_open = self.open_until_us.is_some();
        let is_probe = is_open && mark == self.opened;
        if is_probe {
            self.probing = false;
        }
        match end {
            SendEnd::Nothing => {}
            SendEnd::Well => {
                self.failures = 0;
                self.open_until_us = None;
                self.probing = false;
            }
            SendEnd::Failure => {
                self.failures = self.failures.saturating_add(1);
                if is_probe || !is_open && self.failures >= failures {
                    self.open_until_us = Some(now_us.saturating_add(cool_down_ms.saturating_mul(1_000)));
                    self.opened += 1;
                }
            }
        }
    }

    /// When a send may be possible again, if none is now.
    pub fn again_at_us(&self, limits: &ThrottleLimits, now_us: i64) -> Option<i64> {
        let open = self.open_until_us.filter(|until_us| *until_us > now_us);
        open.max(self.full_until_us(limits, now_us))
    }

    fn full_until_us(&self, limits: &ThrottleLimits, now_us: i64) -> Option<i64> {
        let is_full = self.sent_lately() >= limits.per_second?;
        let until_us = self.recent.front()?.0.saturating_add(SECOND_US);
        (is_full && until_us > now_us).then_some(until_us)
    }

    /// What keeps sends back now.
    pub fn held(&self, limits: &ThrottleLimits, now_us: i64) -> Held {
        Held {
            failures: self.failures,
            open_until_us: self.open_until_us,
            full_until_us: self.full_until_us(limits, now_us),
        }
    }
}

#[cfg(test)]
mod tests;
