//! When an attempt may be repeated, how long to wait, and how long a lease and a window last.
//!
//! Times are microseconds since the Unix epoch, durations milliseconds; every sum saturates.

mod http_date;
mod retry_after;

pub use retry_after::{MAX_RETRY_AFTER_MS, parse_retry_after};

use crate::error::{Code, LedgerError};

/// The shortest lease, and the least time before a deadline or a window's end in which an attempt is still started.
pub const MIN_LEASE_MS: i64 = 1_000;
/// The longest lease.
pub const MAX_LEASE_MS: i64 = 3_600_000;

const US_PER_MS: i64 = 1_000;

/// How often and how soon attempts are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// False: never a second send without a person, not even when nothing was sent.
    pub auto: bool,
    /// Attempts in all; released ones do not count.
    pub max_attempts: i32,
    /// The ceiling of the first wait.
    pub base_ms: i64,
    /// The ceiling of every wait.
    pub cap_ms: i64,
}

/// The wait before the attempt after `attempt` attempts: a random duration from 0 to
/// `min(cap, base * 2^(attempt - 1))`, both included ("full jitter": many commands that failed together do not come
/// back together). `random` is uniform over all of u64. Negative durations count as 0, attempts below 1 as 1.
pub fn backoff_ms(attempt: i32, base_ms: i64, cap_ms: i64, random: u64) -> i64 {
    let base = u128::from(base_ms.max(0).unsigned_abs());
    let cap = u128::from(cap_ms.max(0).unsigned_abs());
    // 2^63 times one millisecond is past every cap that an i64 can hold.
    let doublings = attempt.max(1).unsigned_abs().saturating_sub(1).min(63);
    let ceiling = (base << doublings).min(cap);
    let wait = (u128::from(random) * (ceiling + 1)) >> 64;
    i64::try_from(wait).unwrap_or(i64::MAX)
}

/// By when a command must be on its way, and where that comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// No send after this.
    pub at_us: Option<i64>,
    /// It follows from the type's `retry.deadline`, and is counted again at each approval. False: the caller gave it,
    /// or there is none.
    pub relative: bool,
}

impl Deadline {
    /// The one that a caller gave, or none.
    pub fn given(at_us: Option<i64>) -> Self {
        Self { at_us, relative: false }
    }

    /// The deadline of a command that may be sent from `now_us` on (registered without a need for approval, or
    /// approved), under a type whose `retry.deadline` is `policy_ms`.
    ///
    /// | deadline so far | `retry.deadline` | deadline |
    /// |---|---|---|
    /// | given by the caller | any | as it was |
    /// | none, or counted before | none | as it was |
    /// | none, or counted before | set | counted from now |
    #[must_use]
    pub fn counted_from(self, now_us: i64, policy_ms: Option<i64>) -> Self {
        match policy_ms {
            Some(ms) if self.relative || self.at_us.is_none() => {
                Self { at_us: Some(plus_ms(now_us, ms)), relative: true }
            }
            _ => self,
        }
    }

    /// The deadline of a command that waits for approval (again): a counted one starts at the approval.
    #[must_use]
    pub fn while_waiting(self) -> Self {
        if self.relative { Self::default() } else { self }
    }

    /// The deadline after an operator's retry: a past one is not kept, because the command would fail again at once.
    ///
    /// | given with the retry | so far | deadline |
    /// |---|---|---|
    /// | yes | any | the given one |
    /// | no | none, or in the future | as it was |
    /// | no | past | `retry.deadline` from now; without one, none |
    #[must_use]
    pub fn after_retry(self, given_us: Option<i64>, now_us: i64, policy_ms: Option<i64>) -> Self {
        match (given_us, self.at_us) {
            (Some(_), _) => Self::given(given_us),
            (None, Some(at_us)) if at_us <= now_us => Self::default().counted_from(now_us, policy_ms),
            _ => self,
        }
    }
}

/// The wait after a fault of the ledger's own setup: 5 s, doubled with every uncounted attempt before it, at most
/// 10 minutes. No budget ends this row of attempts, so it must not run hot; a short first wait forgives a slip.
pub fn own_setup_wait_ms(uncounted_attempts: i32) -> i64 {
    const FIRST_MS: i64 = 5_000;
    const LONGEST_MS: i64 = 600_000;
    (FIRST_MS << uncounted_attempts.clamp(0, 16)).min(LONGEST_MS)
}

/// What the decision about a repeat needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatFacts {
    /// Attempts started, without released ones; the one that just ended is among them.
    pub counted_attempts: i32,
    /// Now.
    pub now_us: i64,
    /// No send after this.
    pub deadline_us: Option<i64>,
    /// What the destination asked for, already parsed and clamped.
    pub retry_after_ms: Option<i64>,
    /// When the destination may forget the key. `None`: never, or the repeat does not rest on the key because a
    /// lookup or a person established that nothing was created.
    pub window_end_us: Option<i64>,
    /// An attempt may have had an effect (the flag after the attempt that just ended). Without it the window does not
    /// matter: nothing is there to be recognised.
    pub maybe_sent: bool,
}

/// Whether and when to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// At this time.
    At {
        /// Due.
        due_us: i64,
    },
    /// Policy wants a person before any second send.
    NeedsPerson,
    /// The attempts are used up.
    BudgetExhausted,
    /// No time is left before the deadline.
    DeadlineOver,
    /// No time is left in which the destination recognises the key.
    WindowOver,
}

/// Whether and when another attempt may be made. The first line that fits decides:
///
/// | condition | answer |
/// |---|---|
/// | `auto` is off | `NeedsPerson` |
/// | counted attempts >= max | `BudgetExhausted` |
/// | less than `MIN_LEASE_MS` to the deadline | `DeadlineOver` |
/// | maybe sent, and less than `MIN_LEASE_MS` to the window's end | `WindowOver` |
/// | else | `At` the later of backoff and Retry-After, but never later than `MIN_LEASE_MS` before the deadline and (maybe sent) the window's end |
///
/// A wait that is too long is shortened, not turned into a failure: the last chance before the deadline is worth an
/// attempt that the budget permits.
pub fn repeat_due(policy: &RetryPolicy, facts: &RepeatFacts, random: u64) -> Repeat {
    if !policy.auto {
        return Repeat::NeedsPerson;
    }
    if facts.counted_attempts >= policy.max_attempts {
        return Repeat::BudgetExhausted;
    }
    let last_chance = |end_us: i64| plus_ms(end_us, -MIN_LEASE_MS);
    let deadline_us = facts.deadline_us.map(last_chance);
    if deadline_us.is_some_and(|latest| facts.now_us > latest) {
        return Repeat::DeadlineOver;
    }
    let window_us = facts.window_end_us.filter(|_| facts.maybe_sent).map(last_chance);
    if window_us.is_some_and(|latest| facts.now_us > latest) {
        return Repeat::WindowOver;
    }
    let backoff = backoff_ms(facts.counted_attempts, policy.base_ms, policy.cap_ms, random);
    let wait_ms = backoff.max(facts.retry_after_ms.unwrap_or(0));
    let due_us = [deadline_us, window_us].into_iter().flatten().fold(plus_ms(facts.now_us, wait_ms), i64::min);
    Repeat::At { due_us }
}

/// How long the destination recognises a key after its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// So long; 0 = not published, so never relied on.
    Ms(i64),
    /// For ever.
    Unlimited,
}

/// When a same-key repeat stops being safe: first send + window - margin. `None`: never.
/// A window that is not longer than its margin ends at or before the first send: it never permits a repeat.
pub fn window_end_us(first_send_us: i64, window: Window, margin_ms: i64) -> Option<i64> {
    match window {
        Window::Unlimited => None,
        Window::Ms(window_ms) => Some(plus_ms(first_send_us, window_ms.max(0).saturating_sub(margin_ms.max(0)))),
    }
}

/// Whether a same-key repeat is still safe at a moment.
pub fn window_open(window_end_us: Option<i64>, now_us: i64) -> bool {
    window_end_us.is_none_or(|end| now_us < end)
}

/// When a lease taken now ends: the earliest of now + lease, deadline, the moment when the approval quorum breaks,
/// and (for a repeat that rests on the key) the window's end. A result <= now means: do not claim.
pub fn lease_expiry_us(
    now_us: i64,
    lease_ms: i64,
    deadline_us: Option<i64>,
    approval_until_us: Option<i64>,
    window_end_us: Option<i64>,
) -> i64 {
    [deadline_us, approval_until_us, window_end_us].into_iter().flatten().fold(plus_ms(now_us, lease_ms), i64::min)
}

/// Checks the length of a lease.
///
/// # Errors
/// `22023` outside 1 s to 1 h.
pub fn check_lease(lease_ms: i64) -> Result<i64, LedgerError> {
    if (MIN_LEASE_MS..=MAX_LEASE_MS).contains(&lease_ms) {
        return Ok(lease_ms);
    }
    Err(LedgerError::new(Code::InvalidArgument, "the lease must be from 1 second to 1 hour")
        .detail(format!("Given: {lease_ms} ms."))
        .hint("A lease is the longest time that one attempt may take, with its answer; extend_lease() prolongs it."))
}

/// A moment and a duration, saturating.
pub fn plus_ms(time_us: i64, duration_ms: i64) -> i64 {
    time_us.saturating_add(duration_ms.saturating_mul(US_PER_MS))
}

#[cfg(test)]
mod tests;
