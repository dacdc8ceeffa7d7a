//! How fast the handlers of each function destination may be called: its rate and its breaker, kept by the worker.

use crate::pg::datum;
use command_ledger_domain::throttle::{SendEnd, Throttle, ThrottleLimits};
use std::collections::HashMap;

/// The throttles of the destinations that were sent to.
#[derive(Default)]
pub struct Pace {
    throttles: HashMap<String, (ThrottleLimits, Throttle)>,
}

impl Pace {
    /// How many of `wanted` sends the destination's rate and breaker permit.
    pub fn permitted(&mut self, destination: &str, limits: ThrottleLimits, wanted: i64) -> i64 {
        let now_us = datum::now_us();
        let (known, throttle) =
            self.throttles.entry(destination.to_owned()).or_insert_with(|| (limits, Throttle::new(&limits, now_us)));
        if *known != limits {
            *known = limits;
            throttle.limits_changed();
        }
        throttle.permitted(&limits, wanted, now_us)
    }

    /// A send was started; the answer goes with it to [`Pace::ended`].
    pub fn sent(&mut self, destination: &str) -> u64 {
        match self.throttles.get_mut(destination) {
            Some((limits, throttle)) => throttle.sent(limits, 1, datum::now_us()),
            None => 0,
        }
    }

    /// A send ended.
    pub fn ended(&mut self, destination: &str, mark: u64, end: SendEnd) {
        if let Some((limits, throttle)) = self.throttles.get_mut(destination) {
            throttle.ended(limits, mark, end, datum::now_us());
        }
    }

    /// When the destination may be sent to again, if its rate or breaker holds it back.
    pub fn again_at_us(&self, destination: &str) -> Option<i64> {
        let (limits, throttle) = self.throttles.get(destination)?;
        throttle.again_at_us(limits, datum::now_us())
    }
}
