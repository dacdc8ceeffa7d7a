//! The destinations and types that are checked.

use command_ledger_domain::answer::IdempotencyMode;
use command_ledger_domain::approval::ApprovalRule;
use command_ledger_domain::fence::OnFailover;
use command_ledger_domain::lookup::LookupPolicy;
use command_ledger_domain::retry::{RetryPolicy, Window};

use crate::destination::Answer;
use crate::setup::{Bounds, Move, Recognises, Sender, Setup, TICK_MS, Truth};

const NONE: Bounds =
    Bounds { ticks: 0, callers: 1, approvers: 0, operators: 0, crashes: 0, moves: 0, edits: 0, transactions: 0 };

/// A destination whose records can be searched by reference, and that accepts every repeat as a new one.
pub fn searchable() -> Setup {
    Setup {
        name: "searchable",
        sender: Sender::Relay,
        mode: IdempotencyMode::None,
        window: Window::Ms(0),
        margin_ms: 0,
        lookup: Some(LookupPolicy {
            settle_delay_ms: Some(2 * TICK_MS),
            agreeing: 1,
            interval_ms: TICK_MS,
            max_lookups: 4,
        }),
        retry: RetryPolicy { auto: true, max_attempts: 2, base_ms: 0, cap_ms: 0 },
        deadline_ms: None,
        approval: None,
        lease_ms: TICK_MS,
        on_failover: OnFailover::Halt,
        moves_by: Move::Promotion,
        truth: Truth { recognises: Recognises::Nothing, delay_ticks: 1, lag_ticks: 1, lost_are_repeated_soon: false },
        answers: &[Answer::Done, Answer::DoneLost, Answer::Refused(500), Answer::Refused(400)],
        bounds: Bounds { ticks: 4, operators: 1, crashes: 1, ..NONE },
        broken: None,
    }
}

/// A destination that deduplicates on a key, for a while.
pub fn deduplicating() -> Setup {
    Setup {
        name: "deduplicating",
        mode: IdempotencyMode::Key,
        window: Window::Ms(3 * TICK_MS),
        margin_ms: TICK_MS,
        lookup: None,
        retry: RetryPolicy { auto: true, max_attempts: 2, base_ms: 0, cap_ms: 0 },
        truth: Truth {
            recognises: Recognises::Key { ticks: Some(3) },
            delay_ticks: 1,
            lag_ticks: 0,
            ..searchable().truth
        },
        bounds: Bounds { ticks: 4, operators: 1, crashes: 1, ..NONE },
        ..searchable()
    }
}

/// A destination that enforces one record per reference.
pub fn unique_reference() -> Setup {
    Setup {
        name: "unique_reference",
        mode: IdempotencyMode::Reference,
        window: Window::Unlimited,
        truth: Truth { recognises: Recognises::Reference, ..searchable().truth },
        bounds: Bounds { ticks: 3, operators: 1, crashes: 1, ..NONE },
        ..searchable()
    }
}

/// A destination that does nothing of it.
pub fn unprotected() -> Setup {
    Setup {
        name: "unprotected",
        lookup: None,
        bounds: Bounds { ticks: 2, operators: 2, crashes: 1, ..NONE },
        ..searchable()
    }
}

/// A person must approve, and approvals end; definitions are edited.
pub fn approved() -> Setup {
    Setup {
        name: "approved",
        approval: Some(ApprovalRule { approvers: 1, ttl_ms: TICK_MS, separate_proposer: true }),
        deadline_ms: Some(2 * TICK_MS),
        answers: &[Answer::Done, Answer::Refused(429)],
        bounds: Bounds { ticks: 2, approvers: 2, callers: 2, edits: 1, ..NONE },
        ..searchable()
    }
}

/// What must be sent soon, by a sender that may be slow.
pub fn timed() -> Setup {
    Setup {
        name: "timed",
        deadline_ms: Some(TICK_MS),
        lease_ms: 2 * TICK_MS,
        answers: &[Answer::Done, Answer::DoneLost, Answer::Refused(429)],
        bounds: Bounds { ticks: 3, operators: 1, callers: 2, crashes: 1, ..NONE },
        ..searchable()
    }
}

/// Workers that claim, die one by one, and answer after their lease.
pub fn workers() -> Setup {
    Setup {
        name: "workers",
        sender: Sender::Workers,
        bounds: Bounds { ticks: 3, operators: 1, ..NONE },
        ..searchable()
    }
}

/// The same at a destination that deduplicates: the next attempt begins while the old worker is still there.
pub fn deduplicating_workers() -> Setup {
    Setup {
        name: "deduplicating_workers",
        sender: Sender::Workers,
        retry: RetryPolicy { auto: true, max_attempts: 2, base_ms: 0, cap_ms: 0 },
        bounds: Bounds { ticks: 4, edits: 1, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost, Answer::Refused(400)],
        ..deduplicating()
    }
}

/// A standby that lost the last commits goes on at a destination that can be searched.
pub fn promoted_searchable() -> Setup {
    Setup {
        name: "promoted_searchable",
        on_failover: OnFailover::Continue,
        bounds: Bounds { ticks: 3, moves: 1, callers: 2, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost],
        ..searchable()
    }
}

/// A standby that lost the last commits goes on at a destination that deduplicates.
pub fn promoted_deduplicating() -> Setup {
    Setup {
        name: "promoted_deduplicating",
        on_failover: OnFailover::Continue,
        bounds: Bounds { ticks: 3, moves: 1, callers: 2, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost],
        truth: Truth { lost_are_repeated_soon: true, ..deduplicating().truth },
        ..deduplicating()
    }
}

/// A standby that lost the last commits waits until it is adopted.
pub fn halted() -> Setup {
    Setup {
        name: "halted",
        bounds: Bounds { ticks: 3, operators: 1, moves: 1, callers: 2, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost],
        ..searchable()
    }
}

/// A dump is restored into another cluster, and adopted.
pub fn restored() -> Setup {
    Setup {
        name: "restored",
        moves_by: Move::Restore,
        bounds: Bounds { ticks: 4, operators: 1, moves: 1, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost],
        ..deduplicating()
    }
}

/// A standby that lost the last commits goes on with what has a deadline and needs approval.
pub fn promoted_approved() -> Setup {
    Setup {
        name: "promoted_approved",
        on_failover: OnFailover::Continue,
        bounds: Bounds { ticks: 2, approvers: 2, callers: 2, operators: 1, moves: 1, ..NONE },
        answers: &[Answer::Done],
        ..approved()
    }
}

/// Transactions of callers stay open, and are rolled back.
pub fn rolled_back() -> Setup {
    Setup {
        name: "rolled_back",
        bounds: Bounds { ticks: 2, callers: 1, transactions: 2, ..NONE },
        answers: &[Answer::Done, Answer::DoneLost],
        ..searchable()
    }
}

/// All of them.
pub fn all() -> Vec<Setup> {
    vec![
        searchable(),
        deduplicating(),
        unique_reference(),
        unprotected(),
        approved(),
        timed(),
        workers(),
        deduplicating_workers(),
        promoted_searchable(),
        promoted_deduplicating(),
        promoted_approved(),
        halted(),
        restored(),
        rolled_back(),
    ]
}
