//! What is checked: one destination and command type, what is true of the outside, the bounds, and the rule taken out.

use command_ledger_domain::answer::IdempotencyMode;
use command_ledger_domain::approval::ApprovalRule;
use command_ledger_domain::fence::OnFailover;
use command_ledger_domain::lookup::LookupPolicy;
use command_ledger_domain::retry::{RetryPolicy, Window};

use crate::destination::Answer;

/// One step of the clock.
pub const TICK_MS: i64 = 10_000;
/// The same in microseconds.
pub const TICK_US: i64 = TICK_MS * 1_000;

/// Who carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The relay: it dies as a whole, and its leases carry its epoch.
    Relay,
    /// Workers that claim: each dies by itself, and may answer after its lease.
    Workers,
}

/// What the destination really does with a repeated key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognises {
    /// The same record again, so many ticks after the first use and in the whole of the last of them: a request takes
    /// less time than the margin.
    Key {
        /// `None`: for ever.
        ticks: Option<i64>,
    },
    /// A conflict (409), for ever.
    Reference,
    /// Another record.
    Nothing,
}

/// What holds outside, whatever the definitions say.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// What the destination does with a repeated key.
    pub recognises: Recognises,
    /// A request takes effect at most so many ticks after its sender's end.
    pub delay_ticks: i64,
    /// A record may be missing in the search for so many ticks.
    pub lag_ticks: i64,
    /// A registration that a failover lost is repeated so soon that the time since its first send fits into the margin.
    pub lost_are_repeated_soon: bool,
}

/// How the ledger can come to another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// An asynchronous standby is promoted: the last commits are lost.
    Promotion,
    /// A dump is restored into another cluster.
    Restore,
}

/// How much may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Steps of the clock.
    pub ticks: u8,
    /// Calls by callers: register, revise, cancel.
    pub callers: u8,
    /// Calls by approvers: approve, revoke, reject.
    pub approvers: u8,
    /// Calls by operators: reconcile, retry, adopt.
    pub operators: u8,
    /// Deaths of the relay or of a worker.
    pub crashes: u8,
    /// Moves to another place.
    pub moves: u8,
    /// Edits of the destination's request.
    pub edits: u8,
    /// Registrations in transactions that stay open for a while, and may be rolled back.
    pub transactions: u8,
}

/// One rule that is taken out. Each is a mistake that somebody could make in the code around the decisions, or in one
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// A repeat is compared by its key alone.
    CompareKeyOnly,
    /// A rolled back registration is claimed.
    SendRolledBack,
    /// The request leaves before the claim is committed.
    SendBeforeCheckpoint,
    /// An uncertain attempt is repeated as if the destination deduplicated.
    RepeatWithoutLookup,
    /// The flag *maybe sent* is never set.
    ForgetMaybeSent,
    /// A lookup that finds nothing counts from its attempt's end on.
    AbsentWithoutSettleDelay,
    /// The window in which a key is recognised never ends.
    IgnoreWindow,
    /// A claim takes every approval as valid.
    SkipApprovalCheck,
    /// Whatever the approval was given for.
    ApproveAnyContent,
    /// The sender does not look at its lease before the first byte.
    SendAfterLease,
    /// A late answer is settled as if it were the current attempt's.
    LateOverwrites,
    /// A late answer is dropped.
    LateThrownAway,
    /// A running relay judges its own leases.
    NoLeaseEpoch,
    /// Attempts are not counted.
    NoBudget,
    /// Deadlines are not looked at.
    IgnoreDeadline,
    /// A case is not written down.
    ForgetCase,
    /// A relay never judges leases of the one before it.
    ForgetOldLeases,
    /// What may have happened is called a failure.
    UncertainIsFailure,
    /// What may have happened is called a success.
    UncertainIsSuccess,
    /// A refused repeat is a failure although an earlier attempt may have had its effect.
    RefusedRepeatIsFailure,
    /// An operator's retry is applied to any settled command.
    RetryAnything,
    /// The fence is always open.
    IgnoreFence,
    /// What another place may have sent is ended and rewritten as if it were not.
    EndBlindly,
    /// What was found out in another place counts in this one.
    KeepOldAbsence,
    /// A repeat may differ from what was sent first.
    RepeatOtherRequest,
}

impl Break {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::CompareKeyOnly,
        Self::SendRolledBack,
        Self::SendBeforeCheckpoint,
        Self::RepeatWithoutLookup,
        Self::ForgetMaybeSent,
        Self::AbsentWithoutSettleDelay,
        Self::IgnoreWindow,
        Self::SkipApprovalCheck,
        Self::ApproveAnyContent,
        Self::SendAfterLease,
        Self::LateOverwrites,
        Self::LateThrownAway,
        Self::NoLeaseEpoch,
        Self::NoBudget,
        Self::IgnoreDeadline,
        Self::ForgetCase,
        Self::ForgetOldLeases,
        Self::UncertainIsFailure,
        Self::UncertainIsSuccess,
        Self::RefusedRepeatIsFailure,
        Self::RetryAnything,
        Self::IgnoreFence,
        Self::EndBlindly,
        Self::KeepOldAbsence,
        Self::RepeatOtherRequest,
    ];
}

/// One check.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name in traces.
    pub name: &'static str,
    /// Who carries the requests.
    pub sender: Sender,
    /// As configured.
    pub mode: IdempotencyMode,
    /// As configured.
    pub window: Window,
    /// As configured.
    pub margin_ms: i64,
    /// As configured.
    pub lookup: Option<LookupPolicy>,
    /// As configured.
    pub retry: RetryPolicy,
    /// `retry.deadline`.
    pub deadline_ms: Option<i64>,
    /// As configured; always asked for where there is one.
    pub approval: Option<ApprovalRule>,
    /// How long a claim lasts.
    pub lease_ms: i64,
    /// The setting.
    pub on_failover: OnFailover,
    /// How the ledger moves.
    pub moves_by: Move,
    /// What holds outside.
    pub truth: Truth,
    /// What the destination may answer to a request that it takes.
    pub answers: &'static [Answer],
    /// How much may happen.
    pub bounds: Bounds,
    /// The rule taken out, if any.
    pub broken: Option<Break>,
}

impl Setup {
    /// Whether this rule is taken out.
    pub fn breaks(&self, rule: Break) -> bool {
        self.broken == Some(rule)
    }

    /// The same with one more of everything that it bounds.
    #[must_use]
    pub fn deeper(mut self) -> Self {
        let more = |n: &mut u8| *n += u8::from(*n > 0);
        let bounds = &mut self.bounds;
        for n in [&mut bounds.ticks, &mut bounds.callers, &mut bounds.operators] {
            more(n);
        }
        self
    }

    /// The same with one rule taken out.
    #[must_use]
    pub fn without(mut self, rule: Break) -> Self {
        self.broken = Some(rule);
        self
    }

    /// The same with other bounds.
    #[must_use]
    pub fn bounded(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }
}
