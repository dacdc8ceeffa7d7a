//! What the answer of the current attempt means.

use crate::retry::Repeat;
use crate::status::{CaseReason, ErrorClass, Event, words};

words! {
    /// Why no byte of the request can have left.
    NotSent {
        /// The connection was refused.
        Refused = "refused",
        /// The name was not resolved.
        Unresolved = "unresolved",
        /// TLS failed.
        Tls = "tls",
        /// It took too long to connect.
        ConnectTimeout = "connect_timeout",
        /// The proxy opened no tunnel.
        Proxy = "proxy",
        /// The connection ended before the request was written.
        ConnectionLost = "connection_lost",
        /// The request itself cannot be sent, now or ever.
        Invalid = "invalid",
        /// The address is refused, and the settings make no exception for it.
        NotAllowed = "not_allowed",
        /// A secret that it needs cannot be had.
        NoSecret = "no_secret",
        /// It was not let go: the relay had no time or no room left, or a worker says that it did not send.
        Withheld = "withheld",
    }
}

impl NotSent {
    /// Whether it lies at the ledger's own setup. Such an attempt does not count against the budget: a person mends
    /// the setup, and what was waiting goes out as if nothing had been.
    ///
    /// | reason | own setup | why |
    /// |---|---|---|
    /// | refused, unresolved, tls, connect_timeout, connection_lost | no | the destination, or the way to it |
    /// | proxy | no | it is a part of the way |
    /// | invalid | no | the command is refused, there is nothing to wait for |
    /// | not_allowed, no_secret | yes | settings and files of this server |
    /// | withheld | yes | the relay's time and room (workers' reports are not judged by this) |
    pub const fn is_own_setup(self) -> bool {
        matches!(self, Self::NotAllowed | Self::NoSecret | Self::Withheld)
    }
}

words! {
    /// Why there is no answer although a byte may have left.
    NoAnswer {
        /// The connection broke.
        Reset = "reset",
        /// It took too long.
        Timeout = "timeout",
        /// The relay stopped while it waited.
        Stopped = "stopped",
        /// The answer was not HTTP, or broke off before its status was known.
        Unreadable = "unreadable",
        /// The lease ran out: whoever held it is gone.
        LeaseOver = "lease_over",
    }
}

/// What the transport knows. Status codes come from the final answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// Nothing can have reached the destination.
    NotSent {
        /// Why.
        reason: NotSent,
    },
    /// Something may have, and no answer came.
    NoAnswer {
        /// Why.
        reason: NoAnswer,
    },
    /// The destination answered.
    Answered {
        /// The HTTP status.
        status: u16,
    },
}

words! {
    /// What a destination's own rule says about an answer; the first rule that matches counts.
    RuleOutcome {
        /// The effect is there.
        Confirmed = "confirmed",
        /// Nothing was done; try again.
        Transient = "transient",
        /// Nothing was done, and never will be for this request.
        Permanent = "permanent",
        /// Nothing was done: the credentials.
        Permission = "permission",
        /// It may have been done.
        Uncertain = "uncertain",
        /// Ask the destination.
        Lookup = "lookup",
    }
}

words! {
    /// What the destination does with a repeated key.
    IdempotencyMode {
        /// It deduplicates on a header.
        Key = "key",
        /// It enforces uniqueness of a reference in the body or the URL.
        Reference = "reference",
        /// Nothing.
        None = "none",
    }
}

/// What protects a repeat after an uncertain attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// The destination deduplicates on this key, and its window is open.
    Deduplicates,
    /// It can be asked.
    LookupOnly,
    /// Nothing.
    Neither,
}

/// What protects a repeat now.
///
/// | mode | window open | window over |
/// |---|---|---|
/// | key, reference | deduplicates | lookup only, or neither |
/// | none | lookup only, or neither | the same |
pub fn protection(mode: IdempotencyMode, window_open: bool, has_lookup: bool) -> Protection {
    match mode {
        IdempotencyMode::Key | IdempotencyMode::Reference if window_open => Protection::Deduplicates,
        _ if has_lookup => Protection::LookupOnly,
        _ => Protection::Neither,
    }
}

/// What is known when an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// What the transport says.
    pub wire: Wire,
    /// The answer meets the success rule: status, `when`, and a declared record id is there and scalar.
    pub success_rule_met: bool,
    /// The first rule that matches the answer.
    pub matched_rule: Option<RuleOutcome>,
    /// An earlier attempt may have had an effect.
    pub maybe_sent_before: bool,
    /// This attempt was permitted because a lookup or a person established that the earlier ones created nothing (and
    /// not because the destination deduplicates). Only read while `maybe_sent_before`.
    pub absence_established: bool,
    /// What protects a repeat, now.
    pub protection: Protection,
    /// A lookup is configured.
    pub has_lookup: bool,
}

/// What the end of an attempt means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// The effect is proven.
    Confirmed,
    /// Again, if attempts, deadline and window permit.
    RepeatByBudget {
        /// The flag afterwards.
        maybe_sent_after: bool,
        /// `not_sent` and `transient`: this attempt had no effect. `uncertain`: it may have had one.
        class: ErrorClass,
    },
    /// A case, and the lookup may settle it.
    Lookup {
        /// Why it is not known.
        reason: CaseReason,
    },
    /// A case for a person.
    Case {
        /// Why it is not known.
        reason: CaseReason,
    },
    /// Refused: nothing was done, and no attempt may have had an effect.
    Refused(ErrorClass),
}

/// What the end of an attempt means. A matching rule decides first, then the success rule, then the status.
///
/// | answer | key or reference mode, window open | lookup only | neither |
/// |---|---|---|---|
/// | not_sent, 429, 425 | again by budget | again by budget | again by budget |
/// | not_sent because the request is invalid | first send: rejected; repeat while maybe sent: lookup, else case | same | same |
/// | meets the success rule | confirmed | confirmed | confirmed |
/// | 2xx that does not (202, error body, HTML) | lookup, else case | lookup | case |
/// | 503 | same bytes again, by budget | lookup first | case |
/// | 500, 502, 504, 408, 1xx, 3xx, reset, timeout after send, lease over, any other | same bytes again, by budget | lookup first | case |
/// | 409 | lookup, else case | lookup | first send: permanent; else case |
/// | other 4xx | first send: permanent; repeat while maybe sent: lookup, else case | same | same |
/// | 401, 403, 407 | first send: permission; repeat while maybe sent: case | same | same |
///
/// "First send": no earlier attempt may have had an effect, whatever the number of this one.
///
/// | rule | first send | repeat while maybe sent |
/// |---|---|---|
/// | confirmed | confirmed | confirmed |
/// | transient | again by budget | again by budget (the flag stays) |
/// | permanent | permanent | lookup, else case: the answer speaks of the repeat, not of the first |
/// | permission | permission | case |
/// | uncertain | the row of 500 | the row of 500 |
/// | lookup | lookup, else case | the same |
///
/// A rule that calls an answer transient, permanent or permission states that *this* request had no effect; the
/// operator who wrote it vouches for that, as with 429.
///
/// The first row has one exception, for I3: while maybe sent, where the destination does not deduplicate (any more)
/// and the absence of an earlier effect was not established either, "again" becomes lookup, else case
/// (`window_over`).
pub fn meaning(facts: &Facts) -> Meaning {
    let status = match facts.wire {
        Wire::NotSent { reason: NotSent::Invalid } => return refused(facts, ErrorClass::Rejected),
        Wire::NotSent { .. } => return again(facts, ErrorClass::NotSent),
        Wire::NoAnswer { reason: NoAnswer::LeaseOver } => return uncertain(facts, CaseReason::LeaseOver),
        Wire::NoAnswer { .. } => return uncertain(facts, CaseReason::NoAnswer),
        Wire::Answered { status } => status,
    };
    if let Some(rule) = facts.matched_rule {
        return by_rule(facts, rule);
    }
    if facts.success_rule_met {
        return Meaning::Confirmed;
    }
    match status {
        425 | 429 => again(facts, ErrorClass::Transient),
        200..=299 => look_up(facts, CaseReason::UnprovenSuccess),
        408 => uncertain(facts, CaseReason::UncertainAnswer),
        409 if facts.protection == Protection::Neither && !facts.maybe_sent_before => {
            Meaning::Refused(ErrorClass::Permanent)
        }
        409 => look_up(facts, CaseReason::KeyConflict),
        401 | 403 | 407 => no_permission(facts),
        400..=499 => refused(facts, ErrorClass::Permanent),
        _ => uncertain(facts, CaseReason::UncertainAnswer),
    }
}

fn by_rule(facts: &Facts, rule: RuleOutcome) -> Meaning {
    match rule {
        RuleOutcome::Confirmed => Meaning::Confirmed,
        RuleOutcome::Transient => again(facts, ErrorClass::Transient),
        RuleOutcome::Permanent => refused(facts, ErrorClass::Permanent),
        RuleOutcome::Permission => no_permission(facts),
        RuleOutcome::Uncertain => uncertain(facts, CaseReason::UncertainAnswer),
        RuleOutcome::Lookup => look_up(facts, CaseReason::RuleAsksLookup),
    }
}

/// This attempt had no effect; the budget decides.
fn again(facts: &Facts, class: ErrorClass) -> Meaning {
    let safe = !facts.maybe_sent_before || facts.absence_established || facts.protection == Protection::Deduplicates;
    if safe {
        Meaning::RepeatByBudget { maybe_sent_after: facts.maybe_sent_before, class }
    } else {
        look_up(facts, CaseReason::WindowOver)
    }
}

/// This attempt may have had an effect.
fn uncertain(facts: &Facts, reason: CaseReason) -> Meaning {
    match facts.protection {
        Protection::Deduplicates => Meaning::RepeatByBudget { maybe_sent_after: true, class: ErrorClass::Uncertain },
        Protection::LookupOnly => Meaning::Lookup { reason },
        Protection::Neither => Meaning::Case { reason },
    }
}

fn look_up(facts: &Facts, reason: CaseReason) -> Meaning {
    if facts.has_lookup { Meaning::Lookup { reason } } else { Meaning::Case { reason } }
}

fn refused(facts: &Facts, class: ErrorClass) -> Meaning {
    if facts.maybe_sent_before { look_up(facts, CaseReason::RefusedRepeat) } else { Meaning::Refused(class) }
}

fn no_permission(facts: &Facts) -> Meaning {
    if facts.maybe_sent_before {
        Meaning::Case { reason: CaseReason::RepeatNotPermitted }
    } else {
        Meaning::Refused(ErrorClass::Permission)
    }
}

/// What the end of an attempt does to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AfterAnswer {
    /// For [`next`](crate::status::next).
    pub event: Event,
    /// If the command now needs reconciliation: whether the lookup is asked on its own.
    pub look_up: bool,
    /// When the next attempt is due, if there is one.
    pub due_us: Option<i64>,
}

/// Joins what an answer means with whether a repeat is possible. `repeat` is asked only where the meaning is "again by
/// budget"; it is given the flag after this attempt.
///
/// | the attempt | repeat at | needs person | budget exhausted | deadline over | window over |
/// |---|---|---|---|---|---|
/// | had no effect | not_sent | budget_over (its class) | budget_over | budget_over (`expired`) | window_over |
/// | may have had one | safe_repeat | uncertain | uncertain | uncertain | uncertain |
pub fn event_after(meaning: &Meaning, has_lookup: bool, repeat: impl FnOnce(bool) -> Repeat) -> AfterAnswer {
    let done = |event| AfterAnswer { event, look_up: false, due_us: None };
    let (maybe_sent_after, class) = match *meaning {
        Meaning::Confirmed => return done(Event::Confirm),
        Meaning::Refused(error) => return done(Event::Refused { error }),
        Meaning::Lookup { reason } => return AfterAnswer { look_up: true, ..done(open(reason)) },
        Meaning::Case { reason } => return done(open(reason)),
        Meaning::RepeatByBudget { maybe_sent_after, class } => (maybe_sent_after, class),
    };
    let repeat = repeat(maybe_sent_after);
    let event = if class == ErrorClass::Uncertain {
        match repeat {
            Repeat::At { .. } => Event::SafeRepeat { error: class },
            Repeat::NeedsPerson => open(CaseReason::RepeatNeedsPerson),
            Repeat::BudgetExhausted => open(CaseReason::BudgetExhausted),
            Repeat::DeadlineOver => open(CaseReason::DeadlineOver),
            Repeat::WindowOver => open(CaseReason::WindowOver),
        }
    } else {
        match repeat {
            Repeat::At { .. } => Event::NotSent { error: class },
            Repeat::NeedsPerson => Event::BudgetOver { error: class },
            Repeat::BudgetExhausted => Event::BudgetOver { error: ErrorClass::BudgetExhausted },
            Repeat::DeadlineOver => Event::BudgetOver { error: ErrorClass::Expired },
            Repeat::WindowOver => Event::WindowOver,
        }
    };
    match repeat {
        Repeat::At { due_us } => AfterAnswer { event, look_up: false, due_us: Some(due_us) },
        _ => AfterAnswer { event, look_up: has_lookup && maybe_sent_after, due_us: None },
    }
}

fn open(reason: CaseReason) -> Event {
    if reason == CaseReason::LeaseOver { Event::LeaseOver } else { Event::Uncertain { reason } }
}
