//! Everything that can happen to a registered command.

use super::reason::CaseReason;
use super::words::ErrorClass;

/// Something that happened to a command, or that somebody asks for. Registration is not here: it has no state before
/// it (see [`registered`](super::registered)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `revise()`: other parameters; does the new intent need an approval?
    Revise {
        /// Policy asks for an approval of the new intent.
        approval_needed: bool,
    },
    /// `approve()`: one approval was added.
    Approve {
        /// With it, the quorum stands for the current intent hash.
        quorum: bool,
    },
    /// `reject()` by an approver.
    Reject,
    /// `revoke_approval()`: every approval of this command is revoked.
    Revoke,
    /// The quorum broke because an approval ran out.
    ApprovalLapsed,
    /// `cancel()`.
    Cancel,
    /// A claim: one more attempt starts.
    Claim,
    /// `release()` of the current attempt: provably not sent, due again at once.
    Release,
    /// The current attempt provably had no effect (not sent, 429, 425), and the budget permits another.
    NotSent {
        /// `not_sent` or `transient`.
        error: ErrorClass,
    },
    /// The current attempt may have had an effect, the destination deduplicates, its window is open, and the budget
    /// permits the same bytes again.
    SafeRepeat {
        /// What the attempt met (`uncertain` or `transient`).
        error: ErrorClass,
    },
    /// The current attempt succeeded: answer, or `confirm()` with the current lease token.
    Confirm,
    /// The destination refused the current attempt, or the request could not be built.
    Refused {
        /// `permanent`, `permission` or `rejected`.
        error: ErrorClass,
    },
    /// The current attempt may have had an effect, and nothing permits a repeat now.
    Uncertain {
        /// Why it is not known.
        reason: CaseReason,
    },
    /// The lease of the current attempt ran out without an answer.
    LeaseOver,
    /// The deadline passed.
    DeadlineOver,
    /// No further attempt is permitted, and the last one (if any is running) provably had no effect.
    BudgetOver {
        /// `budget_exhausted`, or what the last attempt met where policy permits no second send.
        error: ErrorClass,
    },
    /// The stored parameters do not match their hash.
    Tampered,
    /// The fence asks for a lookup or a person: another place may have sent this command.
    Fence,
    /// A repeat with the same key is no longer safe (found before a send).
    WindowOver,
    /// The repeat would differ from what was sent first (found before a send).
    RequestChanged,
    /// Another place may have sent it: a person adopted a copy with `resend => false`, or a ledger that came to another
    /// place goes on there.
    Adopted {
        /// The destination deduplicates on this key and its window, counted from registration, is still open.
        repeat_safe: bool,
    },
    /// The lookup found exactly one record with this key.
    LookupFound {
        /// On a confirmed command: it is the record that is known.
        same_record: bool,
    },
    /// Enough lookups in a row proved absence, or absence proves nothing here.
    LookupAbsent {
        /// Settled, agreed, and budget, deadline and policy permit a repeat.
        repeat_allowed: bool,
    },
    /// The lookup cannot answer.
    LookupUnclear {
        /// `lookup_unclear` or `lookup_ambiguous`.
        reason: CaseReason,
    },
    /// A success for an older attempt, or through a callback.
    LateSuccess {
        /// Its request digest is the current one.
        same_request: bool,
        /// On a confirmed command: it is the record that is known, or the same attempt said so again.
        same_record: bool,
        /// Another attempt ended uncertain, and the destination does not deduplicate.
        second_effect_possible: bool,
    },
    /// A failure for an older attempt.
    LateFailure,
    /// A second success that may be a second record.
    DuplicateSuccess,
    /// `reconcile(…, 'found')`.
    ReconcileFound {
        /// On a confirmed command: it is the record that is known.
        same_record: bool,
    },
    /// `reconcile(…, 'not_found')`.
    ReconcileNotFound,
    /// `reconcile(…, 'abandon')`.
    Abandon,
    /// `retry()` by an operator.
    OperatorRetry,
}

impl Event {
    /// The journal kind of this event.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Revise { .. } => "revise",
            Self::Approve { .. } => "approve",
            Self::Reject => "reject",
            Self::Revoke => "revoke_approval",
            Self::ApprovalLapsed => "approval_lapsed",
            Self::Cancel => "cancel",
            Self::Claim => "claim",
            Self::Release => "release",
            Self::NotSent { .. } => "not_sent",
            Self::SafeRepeat { .. } => "safe_repeat",
            Self::Confirm => "confirm",
            Self::Refused { .. } => "refused",
            Self::Uncertain { .. } => "uncertain",
            Self::LeaseOver => "lease_over",
            Self::DeadlineOver => "deadline_over",
            Self::BudgetOver { .. } => "budget_over",
            Self::Tampered => "tampered",
            Self::Fence => "fence",
            Self::WindowOver => "window_over",
            Self::RequestChanged => "request_changed",
            Self::Adopted { .. } => "adopted",
            Self::LookupFound { .. } => "lookup_found",
            Self::LookupAbsent { .. } => "lookup_absent",
            Self::LookupUnclear { .. } => "lookup_unclear",
            Self::LateSuccess { .. } => "late_success",
            Self::LateFailure => "late_failure",
            Self::DuplicateSuccess => "duplicate_success",
            Self::ReconcileFound { .. } => "reconcile_found",
            Self::ReconcileNotFound => "reconcile_not_found",
            Self::Abandon => "abandon",
            Self::OperatorRetry => "retry",
        }
    }

    /// The SQL call by which a caller causes this event; `None` for what only the ledger's own sweeps and the relay
    /// find out.
    pub const fn call(&self) -> Option<&'static str> {
        Some(match self {
            Self::Revise { .. } => "revise",
            Self::Approve { .. } => "approve",
            Self::Reject => "reject",
            Self::Revoke => "revoke_approval",
            Self::Cancel => "cancel",
            Self::Claim => "claim",
            Self::Release => "release",
            Self::NotSent { .. } | Self::Refused { .. } => "fail",
            Self::Confirm => "confirm",
            Self::Uncertain { .. } => "uncertain",
            Self::ReconcileFound { .. } | Self::ReconcileNotFound | Self::Abandon => "reconcile",
            Self::OperatorRetry => "retry",
            _ => return None,
        })
    }
}

/// Every kind that a journal entry can have; `register` is entry 0.
pub const JOURNAL_KINDS: &[&str] = &[
    "register",
    "revise",
    "approve",
    "reject",
    "revoke_approval",
    "approval_lapsed",
    "cancel",
    "claim",
    "release",
    "not_sent",
    "safe_repeat",
    "confirm",
    "refused",
    "uncertain",
    "lease_over",
    "deadline_over",
    "budget_over",
    "tampered",
    "fence",
    "window_over",
    "request_changed",
    "adopted",
    "lookup_found",
    "lookup_absent",
    "lookup_unclear",
    "late_success",
    "late_failure",
    "duplicate_success",
    "reconcile_found",
    "reconcile_not_found",
    "abandon",
    "retry",
];
