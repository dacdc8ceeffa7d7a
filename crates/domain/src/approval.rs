//! Who may approve what, and how long a quorum stands.
//!
//! Times are microseconds since the Unix epoch, durations milliseconds.

use std::collections::BTreeMap;

use crate::error::{Code, LedgerError};
use crate::retry::plus_ms;

/// What a command type asks for before a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApprovalRule {
    /// So many different approvers (0 counts as 1: a rule that asks for nobody is no rule).
    pub approvers: u32,
    /// The longest life of an approval.
    pub ttl_ms: i64,
    /// Who proposed may not approve.
    pub separate_proposer: bool,
}

/// A database role, and the person whom the application behind it states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor<'a> {
    /// The role.
    pub role: &'a str,
    /// The person, where the application says so.
    pub stated: Option<&'a str>,
}

/// Whether this approver may approve (or reject) this version of the intent.
///
/// With `separate_proposer` the database roles must differ: a role that proposed cannot approve by naming another
/// person, because what it states is only its own word. Different roles that state the same person are refused too.
///
/// # Errors
/// `CL007` if the given intent hash is not the current one; `CL008` for the proposer.
pub fn check_approver(
    rule: &ApprovalRule,
    proposer: Actor<'_>,
    approver: Actor<'_>,
    given_hash: &[u8],
    current_hash: &[u8],
) -> Result<(), LedgerError> {
    if given_hash != current_hash {
        return Err(LedgerError::new(Code::ApprovalMismatch, "the approval is for another version of this command")
            .detail("The intent hash given is not that of what would be executed now.")
            .hint(
                "Look at the command again, and approve with the intent_hash that status() or approval_queue shows.",
            ));
    }
    if !rule.separate_proposer {
        return Ok(());
    }
    let refused = |message: &str, detail: &str| {
        Err(LedgerError::new(Code::ApproverNotAllowed, message)
            .detail(detail)
            .hint("Another person must approve, through a role that did not propose this command."))
    };
    if proposer.role == approver.role {
        return refused(
            "who proposed a command may not approve it",
            "The same database role proposed it, and this command type separates the two.",
        );
    }
    if approver.stated.is_some() && proposer.stated == approver.stated {
        return refused(
            "who proposed a command may not approve it",
            "The same person is stated as proposer and as approver, and this command type separates the two.",
        );
    }
    Ok(())
}

/// When an approval given now ends: after `expires_in`, at most after the rule's ttl.
///
/// # Errors
/// `22023` for an `expires_in` that is not positive.
pub fn approval_expiry_us(rule: &ApprovalRule, expires_in_ms: Option<i64>, now_us: i64) -> Result<i64, LedgerError> {
    match expires_in_ms {
        Some(ms) if ms <= 0 => Err(LedgerError::new(Code::InvalidArgument, "expires_in must be positive")
            .hint("Leave it out for the longest life that the command type permits.")),
        Some(ms) => Ok(plus_ms(now_us, ms.min(rule.ttl_ms))),
        None => Ok(plus_ms(now_us, rule.ttl_ms)),
    }
}

/// One approval as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval<'a> {
    /// Who.
    pub approver: Actor<'a>,
    /// For what.
    pub intent_hash: &'a [u8],
    /// Until when (not at that moment any more).
    pub expires_us: i64,
    /// Taken back.
    pub revoked: bool,
}

/// Where the approvals of a command stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// So many are still missing.
    pub missing: u32,
    /// If none is: the moment when the quorum first breaks by an approval that ends.
    pub valid_until_us: Option<i64>,
}

/// Counts the approvals that hold now: for exactly the current intent hash, not revoked, not over. Each different
/// person stated through a role counts once; an approval without a stated person counts only where that role has no
/// other, because it may be any of them.
pub fn quorum(rule: &ApprovalRule, approvals: &[Approval<'_>], current_hash: &[u8], now_us: i64) -> Quorum {
    let needed = rule.approvers.max(1);
    let holding: Vec<&Approval<'_>> =
        approvals.iter().filter(|a| !a.revoked && a.expires_us > now_us && a.intent_hash == current_hash).collect();
    let count = approvers(&holding, now_us);
    if count < needed {
        return Quorum { missing: needed - count, valid_until_us: None };
    }
    let mut ends: Vec<i64> = holding.iter().map(|a| a.expires_us).collect();
    ends.sort_unstable();
    // At the last of the ends nobody is left, so one is always found.
    Quorum { missing: 0, valid_until_us: ends.into_iter().find(|end| approvers(&holding, *end) < needed) }
}

/// Different approvers among those that still hold at a moment.
fn approvers(approvals: &[&Approval<'_>], at_us: i64) -> u32 {
    let mut persons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for approval in approvals.iter().filter(|a| a.expires_us > at_us) {
        let stated = persons.entry(approval.approver.role).or_default();
        if let Some(person) = approval.approver.stated
            && !stated.contains(&person)
        {
            stated.push(person);
        }
    }
    let count: usize = persons.values().map(|stated| stated.len().max(1)).sum();
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
