//! How fast the handlers of each function destination may be called: its rate and its breaker, kept by the worker.

use crate::pg::datum;
use command_ledger_domain::throttle::{Throttle, ThrottleLimits};
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
            (*known, *throttle) = (limits, Throttle::new(&limits, now_us));
        }
        throttle.permitted(&limits, wanted, now_us)
    }

    /// So many sends were started.
    pub fn sent(&mut self, destination: &str, count: usize) {
        if let Some((limits, throttle)) = self.throttles.get_mut(destination) {
            throttle.sent(limits, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A send ended; a failure here says something about the destination, not about the one request.
    pub fn ended(&mut self, destination: &str, failure: bool) {
        if let Some((limits, throttle)) = self.throttles.get_mut(destination) {
            throttle.ended(limits, failure, datum::now_us());
        }
    }

    /// When the destination may be sent to again, if its rate or breaker holds it back.
    pub fn again_at_us(&self, destination: &str) -> Option<i64> {
        let (limits, throttle) = self.throttles.get(destination)?;
        throttle.again_at_us(limits, datum::now_us())
    }
}
