//! What an answer means that comes for an older attempt, through a callback, or for a settled command (I8).

use crate::status::{CaseReason, Event, Status, words};

words! {
    /// What a late answer says.
    LateOutcome {
        /// The effect is there.
        Success = "success",
        /// Anything else.
        Failure = "failure",
    }
}

/// A success that is known already: the one that confirmed the command, or one that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EarlierSuccess<'a> {
    /// The destination's record.
    pub record_id: Option<&'a str>,
    /// The late answer is of the same attempt.
    pub same_attempt: bool,
}

/// What is known when a late answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LateFacts<'a> {
    /// The state now.
    pub status: Status,
    /// What the answer says.
    pub outcome: LateOutcome,
    /// The digest of the request that it answers is the current one.
    pub same_request: bool,
    /// The destination's record in the late answer.
    pub record_id: Option<&'a str>,
    /// A success that is known already.
    pub earlier_success: Option<EarlierSuccess<'a>>,
    /// The destination recognised a repeat of this key when the later of the attempts was made.
    pub deduplicates: bool,
    /// Another attempt of this command ended uncertain and was neither confirmed nor excluded.
    pub another_uncertain: bool,
}

/// What a late answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LateMeaning {
    /// It confirms the command.
    Confirms {
        /// Another attempt may have made a second record: the case stays open.
        second_effect_possible: bool,
    },
    /// A newer attempt is in flight: kept, and decides if that one does not succeed.
    Kept,
    /// A case.
    Case(CaseReason),
    /// A second success that may be a second record: a row among the duplicates, and a case.
    Duplicate,
    /// For the journal alone.
    JournalOnly,
}

/// Whether two successes of one command may be two effects.
///
/// | first \ second | record b | no record |
/// |---|---|---|
/// | record a | a != b | unless the destination deduplicates |
/// | no record | unless the destination deduplicates | unless the destination deduplicates |
pub fn second_effect(first: Option<&str>, second: Option<&str>, deduplicates: bool) -> bool {
    match (first, second) {
        (Some(first), Some(second)) => first != second,
        _ => !deduplicates,
    }
}

/// What a late answer means. A failure is for the journal. A success:
///
/// | state | no success known before | one known, same effect | one known, maybe another effect |
/// |---|---|---|---|
/// | planned, failed | case | case | duplicate |
/// | approved, needs_reconciliation | this request: confirms; another: case | the same | duplicate |
/// | dispatched (a newer attempt is in flight) | this request: kept; another: case | the same | duplicate |
/// | confirmed | duplicate, unless the destination deduplicates | journal | duplicate |
/// | cancelled | case | case | duplicate |
///
/// The same attempt that says so again is the same effect, unless it names another record. A confirmed command
/// without a known success was confirmed by a lookup or a person without a record.
pub fn late(facts: &LateFacts<'_>) -> LateMeaning {
    if facts.outcome == LateOutcome::Failure {
        return LateMeaning::JournalOnly;
    }
    let same_effect = match facts.earlier_success {
        Some(EarlierSuccess { record_id, same_attempt }) => {
            !second_effect(record_id, facts.record_id, same_attempt || facts.deduplicates)
        }
        None => facts.status != Status::Confirmed || facts.deduplicates,
    };
    if !same_effect {
        return LateMeaning::Duplicate;
    }
    match facts.status {
        Status::Confirmed => LateMeaning::JournalOnly,
        Status::Cancelled => LateMeaning::Case(CaseReason::Contradiction),
        Status::Planned | Status::Failed => LateMeaning::Case(CaseReason::LateSuccess),
        _ if !facts.same_request => LateMeaning::Case(CaseReason::LateOtherRequest),
        Status::Dispatched => LateMeaning::Kept,
        Status::Approved | Status::NeedsReconciliation => {
            LateMeaning::Confirms { second_effect_possible: second_effect_possible(facts) }
        }
    }
}

impl LateFacts<'_> {
    /// The same as an event for [`next`](crate::status::next), which comes to the same result.
    pub fn event(&self) -> Event {
        match late(self) {
            LateMeaning::Duplicate => Event::DuplicateSuccess,
            _ if self.outcome == LateOutcome::Failure => Event::LateFailure,
            _ => Event::LateSuccess {
                same_request: self.same_request,
                same_record: true,
                second_effect_possible: second_effect_possible(self),
            },
        }
    }
}

fn second_effect_possible(facts: &LateFacts<'_>) -> bool {
    facts.another_uncertain && !facts.deduplicates
}
