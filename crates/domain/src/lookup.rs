//! What a lookup says about a command, and what follows.
//!
//! A lookup asks the destination for the record that carries the command's key. *Found* is proof. *Absent* is proof
//! only under conditions: a wrong credential often answers with an empty list, and a request that was received may
//! still take effect. Times are microseconds since the Unix epoch, durations milliseconds.

use crate::retry::plus_ms;
use crate::status::{CaseReason, Event};

/// How a destination is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupPolicy {
    /// How long a request already received may still take effect. `None`: the operator does not say, so absence
    /// proves nothing.
    pub settle_delay_ms: Option<i64>,
    /// So many lookups in a row must find nothing (at least 1 counts as 1).
    pub agreeing: u32,
    /// The time between lookups.
    pub interval_ms: i64,
    /// The most lookups for one uncertain attempt.
    pub max_lookups: u32,
}

/// One record of a lookup's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The text of the field that names the key; `None` if the record has none, or it is not a scalar.
    pub match_value: Option<&'a str>,
    /// The text of the record id; `None` if the record has none, or it is not a scalar.
    pub record_id: Option<&'a str>,
    /// The record meets `lookup.when` (true where there is none).
    pub meets_when: bool,
}

/// What a lookup's answer holds.
#[derive(Clone, Copy, Debug)]
pub struct LookupFacts<'a> {
    /// The HTTP status; 0 if there was no answer.
    pub status: u16,
    /// The whole answer was read as JSON and the list of records is there, be it empty. False where the answer was cut.
    pub list_present: bool,
    /// The records.
    pub records: &'a [Record<'a>],
    /// `lookup.record_id` is configured: a found record must have one.
    pub record_id_required: bool,
    /// The key to find.
    pub destination_key: &'a str,
    /// Whether the sentinel was found with the same credential in the same round; `None`: none is configured.
    pub sentinel: Option<bool>,
}

/// What a lookup says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupAnswer {
    /// Exactly one record carries the key.
    Found {
        /// Its id, where one is configured.
        record_id: Option<String>,
    },
    /// Several do.
    Ambiguous {
        /// Their ids, as far as they have any.
        ids: Vec<Option<String>>,
    },
    /// None does, and the answer can be trusted to say so.
    Absent,
    /// Nothing can be concluded.
    Unclear {
        /// Why, in words, without a value.
        why: &'static str,
    },
}

/// Reads a lookup's answer. The first line that fits decides; "carries the key" is equality of the whole text, so a
/// search that matches prefixes or ignores its filter does no harm.
///
/// | answer | meaning |
/// |---|---|
/// | not 2xx, or no list | unclear |
/// | several records that meet `when` carry the key | ambiguous |
/// | one does, and has an id where one is configured | found |
/// | one does, without the id | unclear |
/// | only records that do not meet `when` carry the key | unclear: something was created, a repeat could make a second |
/// | records, but none has the field at all | unclear: the configured path is probably wrong |
/// | the sentinel was not found | unclear |
/// | else | absent |
pub fn read_lookup(facts: &LookupFacts<'_>) -> LookupAnswer {
    let unclear = |why| LookupAnswer::Unclear { why };
    if !(200..=299).contains(&facts.status) {
        return unclear("the lookup was not answered with a 2xx");
    }
    if !facts.list_present {
        return unclear("the answer does not hold the list of records");
    }
    let ours: Vec<&Record<'_>> =
        facts.records.iter().filter(|record| record.match_value == Some(facts.destination_key)).collect();
    let live: Vec<&Record<'_>> = ours.iter().copied().filter(|record| record.meets_when).collect();
    match live.as_slice() {
        [record] if record.record_id.is_none() && facts.record_id_required => unclear("the record found has no id"),
        [record] => LookupAnswer::Found { record_id: record.record_id.map(str::to_owned) },
        [_, _, ..] => {
            LookupAnswer::Ambiguous { ids: live.iter().map(|record| record.record_id.map(str::to_owned)).collect() }
        }
        [] if !ours.is_empty() => unclear("a record carries the key but does not meet the condition"),
        [] if !facts.records.is_empty() && facts.records.iter().all(|record| record.match_value.is_none()) => {
            unclear("no record has the field that should name the key")
        }
        [] if facts.sentinel == Some(false) => unclear("the sentinel was not found, so an empty list proves nothing"),
        [] => LookupAnswer::Absent,
    }
}

/// How far the lookups for one uncertain attempt have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupProgress {
    /// Absents in a row that count.
    pub absents_in_a_row: u32,
    /// Lookups made.
    pub lookups_done: u32,
    /// The moment after which the attempt can no longer have sent: see [`evidence_start_us`].
    pub evidence_start_us: i64,
}

impl LookupProgress {
    /// Nothing asked yet.
    pub fn new(evidence_start_us: i64) -> Self {
        Self { absents_in_a_row: 0, lookups_done: 0, evidence_start_us }
    }
}

/// The moment from which `settle_delay` counts: the end of the attempt where its sender reported one; for a sender
/// that is gone, the later of now and the lease's expiry, because until then it may still have sent.
pub fn evidence_start_us(attempt_end_us: Option<i64>, lease_expires_us: i64, now_us: i64) -> i64 {
    attempt_end_us.unwrap_or_else(|| now_us.max(lease_expires_us))
}

/// When to ask first: after one interval, but not later than `settle_delay`. An early lookup can only find; what it
/// does not find does not count yet.
pub fn first_lookup_at(policy: &LookupPolicy, evidence_start_us: i64) -> i64 {
    let interval_ms = policy.interval_ms.max(0);
    plus_ms(evidence_start_us, policy.settle_delay_ms.unwrap_or(interval_ms).clamp(0, interval_ms))
}

/// What to do after a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupDecision {
    /// The command is confirmed by this record.
    Confirm {
        /// Its id, where one is configured.
        record_id: Option<String>,
    },
    /// Ask again.
    LookAgain {
        /// Then.
        at_us: i64,
    },
    /// Nothing was created: a repeat may be made.
    AllowRepeat,
    /// A person must decide; nothing more is asked.
    Case(CaseReason),
}

impl LookupDecision {
    /// The event for [`next`](crate::status::next); `None` while it is asked again.
    pub fn event(&self) -> Option<Event> {
        match self {
            Self::Confirm { .. } => Some(Event::LookupFound { same_record: true }),
            Self::LookAgain { .. } => None,
            Self::AllowRepeat => Some(Event::LookupAbsent { repeat_allowed: true }),
            Self::Case(CaseReason::LookupAbsent) => Some(Event::LookupAbsent { repeat_allowed: false }),
            Self::Case(reason) => Some(Event::LookupUnclear { reason: *reason }),
        }
    }
}

/// The decision, and the progress to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupStep {
    /// What to do.
    pub decision: LookupDecision,
    /// The progress afterwards.
    pub progress: LookupProgress,
}

/// What follows from a lookup's answer. `started_us` is when this lookup began; `repeat_allowed` says whether budget,
/// deadline, approval and policy would permit another attempt.
///
/// | answer | condition | decision |
/// |---|---|---|
/// | found | | confirm |
/// | ambiguous | | case (`lookup_ambiguous`) |
/// | absent | no `settle_delay` | case (`lookup_absent`) |
/// | absent | started before evidence start + `settle_delay` | does not count: again, not before that moment |
/// | absent | fewer than `agreeing` in a row, this one included | again after `interval` |
/// | absent | `agreeing` in a row | repeat if allowed, else case (`lookup_absent`) |
/// | unclear | | breaks the row; again after `interval` |
/// | again, but `max_lookups` are used | last absent / unclear | case (`lookup_absent` / `lookup_unclear`) |
pub fn after_lookup(
    policy: &LookupPolicy,
    progress: &LookupProgress,
    answer: &LookupAnswer,
    started_us: i64,
    repeat_allowed: bool,
    now_us: i64,
) -> LookupStep {
    let mut progress = LookupProgress { lookups_done: progress.lookups_done.saturating_add(1), ..*progress };
    let next_us = plus_ms(now_us, policy.interval_ms.max(0));
    let decision = match (answer, policy.settle_delay_ms) {
        (LookupAnswer::Found { record_id }, _) => LookupDecision::Confirm { record_id: record_id.clone() },
        (LookupAnswer::Ambiguous { .. }, _) => LookupDecision::Case(CaseReason::LookupAmbiguous),
        (LookupAnswer::Absent, None) => LookupDecision::Case(CaseReason::LookupAbsent),
        (LookupAnswer::Absent, Some(delay_ms)) => {
            let settled_us = plus_ms(progress.evidence_start_us, delay_ms.max(0));
            let counts = started_us >= settled_us;
            if counts {
                progress.absents_in_a_row = progress.absents_in_a_row.saturating_add(1);
            }
            if !counts || progress.absents_in_a_row < policy.agreeing.max(1) {
                again(policy, &progress, next_us.max(settled_us), CaseReason::LookupAbsent)
            } else if repeat_allowed {
                LookupDecision::AllowRepeat
            } else {
                LookupDecision::Case(CaseReason::LookupAbsent)
            }
        }
        (LookupAnswer::Unclear { .. }, _) => {
            progress.absents_in_a_row = 0;
            again(policy, &progress, next_us, CaseReason::LookupUnclear)
        }
    };
    LookupStep { decision, progress }
}

fn again(policy: &LookupPolicy, progress: &LookupProgress, at_us: i64, otherwise: CaseReason) -> LookupDecision {
    if progress.lookups_done >= policy.max_lookups {
        LookupDecision::Case(otherwise)
    } else {
        LookupDecision::LookAgain { at_us }
    }
}

#[cfg(test)]
mod tests;
