//! Why a reconciliation case is open.

use super::words::words;

words! {
    /// Why a reconciliation case is open.
    CaseReason {
        /// The answer does not say whether there was an effect (5xx, 408, 3xx, anything unexpected).
        UncertainAnswer = "uncertain_answer",
        /// No answer: reset, cut off, or timed out after the first byte may have left.
        NoAnswer = "no_answer",
        /// A 2xx that does not meet the success rule.
        UnprovenSuccess = "unproven_success",
        /// 409: the destination says that the key or the record is in conflict.
        KeyConflict = "key_conflict",
        /// The worker said that it does not know.
        WorkerUncertain = "worker_uncertain",
        /// A rule of the destination asks for a lookup on this answer.
        RuleAsksLookup = "rule_asks_lookup",
        /// The lease ran out without an answer.
        LeaseOver = "lease_over",
        /// A repeat with the same key is no longer safe: the destination may have forgotten the first.
        WindowOver = "window_over",
        /// The ledger runs in another place than the one it was adopted in.
        Fence = "fence",
        /// Adopted from a copy: the original may have sent it.
        Adopted = "adopted",
        /// The lookup gives no usable answer.
        LookupUnclear = "lookup_unclear",
        /// The lookup finds nothing, and no rule permits a repeat.
        LookupAbsent = "lookup_absent",
        /// A repeat was refused while an earlier attempt may have had its effect.
        RefusedRepeat = "refused_repeat",
        /// A repeat met refused credentials while an earlier attempt may have had its effect.
        RepeatNotPermitted = "repeat_not_permitted",
        /// The policy of this type asks for a person before a second send.
        RepeatNeedsPerson = "repeat_needs_person",
        /// The deadline passed while an attempt may have had its effect.
        DeadlineOver = "deadline_over",
        /// The attempts are used up while one may have had its effect.
        BudgetExhausted = "budget_exhausted",
        /// The repeat would not be the request that was sent first.
        RequestChanged = "request_changed",
        /// The stored parameters do not match their hash.
        Tampered = "tampered",
        /// The approval lapsed while an attempt may have had its effect.
        ApprovalLapsed = "approval_lapsed",
        /// The approval was revoked while an attempt may have had its effect.
        ApprovalRevoked = "approval_revoked",
        /// A repeat would be safe, but no approval is valid.
        ApprovalMissing = "approval_missing",
        /// Cancel was asked while an attempt may have had its effect.
        CancelRequested = "cancel_requested",
        /// An approver rejected the command while an attempt may have had its effect.
        RejectRequested = "reject_requested",
        /// The lookup finds several records for one key.
        LookupAmbiguous = "lookup_ambiguous",
        /// A success arrived for a command that was planned or failed.
        LateSuccess = "late_success",
        /// A success arrived for an attempt whose request differs from the current one.
        LateOtherRequest = "late_other_request",
        /// Two successes that may be two records.
        DuplicateSuccess = "duplicate_success",
        /// One attempt succeeded, and another may have had an effect of its own.
        DuplicatePossible = "duplicate_possible",
        /// Evidence contradicts a final state.
        Contradiction = "contradiction",
    }
}

impl CaseReason {
    /// One sentence for the person who opens the queue.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::UncertainAnswer => {
                "The destination answered, but the answer does not say whether the effect happened."
            }
            Self::NoAnswer => "The request may have left, and no usable answer came back.",
            Self::UnprovenSuccess => "The destination answered 2xx, but not in the form that proves success.",
            Self::KeyConflict => {
                "The destination reports a conflict (409): it may know this key from an earlier attempt."
            }
            Self::WorkerUncertain => "The worker reported that it does not know what happened.",
            Self::RuleAsksLookup => "A rule of this destination says that this answer must be settled by a lookup.",
            Self::LeaseOver => {
                "The attempt's lease ran out without an answer; the worker may have sent before it died."
            }
            Self::WindowOver => "The time in which the destination recognises a repeated key is over.",
            Self::Fence => "The ledger runs in another place than before; the other place may have sent this command.",
            Self::Adopted => "The ledger was adopted from a copy; the original may have sent this command.",
            Self::LookupUnclear => "The lookup did not give a usable answer.",
            Self::LookupAbsent => "The lookup found no record, but that alone does not permit a repeat here.",
            Self::RefusedRepeat => {
                "The destination refused a repeat, while an earlier attempt may have had its effect."
            }
            Self::RepeatNotPermitted => {
                "The destination refused the credentials of a repeat, while an earlier attempt may have had its effect."
            }
            Self::RepeatNeedsPerson => {
                "This command type asks for a person before a second send, and an attempt may have had its effect."
            }
            Self::DeadlineOver => "The deadline passed while an attempt may have had its effect.",
            Self::BudgetExhausted => "All permitted attempts are used, and one of them may have had its effect.",
            Self::RequestChanged => "The request that would be sent now differs from the one that was sent first.",
            Self::Tampered => {
                "The stored parameters do not match their hash: something changed them outside the ledger."
            }
            Self::ApprovalLapsed => "The approval lapsed while an attempt may have had its effect.",
            Self::ApprovalRevoked => "The approval was revoked while an attempt may have had its effect.",
            Self::ApprovalMissing => "The lookup permits a repeat, but no approval is valid any more.",
            Self::CancelRequested => "Somebody asked to cancel while an attempt may have had its effect.",
            Self::RejectRequested => "An approver rejected the command while an attempt may have had its effect.",
            Self::LookupAmbiguous => "The lookup found several records that carry this key.",
            Self::LateSuccess => "A success arrived for a command that was not waiting for one.",
            Self::LateOtherRequest => "A success arrived for an attempt whose request differs from the current one.",
            Self::DuplicateSuccess => "Two attempts report success and may have created two records.",
            Self::DuplicatePossible => {
                "One attempt succeeded; what another attempt did is not known: there may be a second record."
            }
            Self::Contradiction => "A success arrived for a command that was cancelled.",
        }
    }

    /// Whether a lookup that proves absence may put the command back into the outbox. Where it may not, somebody
    /// wanted the command stopped, a budget is used up, or there is evidence that the lookup contradicts.
    pub const fn lookup_may_release(self) -> bool {
        matches!(self.rank(), Rank::Question)
    }

    /// Whether the question stays open although the command is confirmed: it is about a second effect.
    pub const fn outlives_confirmation(self) -> bool {
        matches!(self.rank(), Rank::SecondEffect | Rank::TwoRecords)
    }

    /// Whether a person's finding that nothing was created puts the command back to be sent. Where somebody asked to
    /// stop it, or a success was reported, it ends as failed instead: only a deliberate `retry` sends it again.
    pub const fn not_found_may_release(self) -> bool {
        matches!(self.rank(), Rank::Question | Rank::Person)
    }

    /// The reason that a case shows after a new one arrives: the graver, and of equals the newer. So a lookup that
    /// stays unclear never hides that somebody asked to cancel.
    pub fn graver(old: Option<Self>, new: Self) -> Self {
        match old {
            Some(old) if old.rank() > new.rank() => old,
            _ => new,
        }
    }

    const fn rank(self) -> Rank {
        match self {
            Self::UncertainAnswer
            | Self::NoAnswer
            | Self::UnprovenSuccess
            | Self::KeyConflict
            | Self::WorkerUncertain
            | Self::RuleAsksLookup
            | Self::LeaseOver
            | Self::WindowOver
            | Self::Fence
            | Self::Adopted
            | Self::LookupUnclear
            | Self::LookupAbsent
            | Self::ApprovalMissing => Rank::Question,
            Self::RefusedRepeat
            | Self::RepeatNotPermitted
            | Self::RepeatNeedsPerson
            | Self::DeadlineOver
            | Self::BudgetExhausted
            | Self::RequestChanged
            | Self::Tampered
            | Self::ApprovalLapsed
            | Self::ApprovalRevoked
            | Self::LookupAmbiguous
            | Self::LateSuccess => Rank::Person,
            Self::CancelRequested | Self::RejectRequested => Rank::Stop,
            Self::LateOtherRequest | Self::DuplicatePossible | Self::Contradiction => Rank::SecondEffect,
            Self::DuplicateSuccess => Rank::TwoRecords,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// What happened is the only question; a lookup may answer it.
    Question,
    /// A person must decide, whatever a lookup says is absent.
    Person,
    /// Somebody said that it must not be done.
    Stop,
    /// There may be a second effect.
    SecondEffect,
    /// Two successes were reported: what arrives later never takes this from the queue.
    TwoRecords,
}
