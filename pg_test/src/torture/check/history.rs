//! The journal of a command: I5, I6, I8, I9, I10.

use super::{Case, Command, Finding};

/// From where a status may go, as the table of the design has it. Entries that leave the status as it is are notes.
fn may_go(from: &str, to: &str) -> bool {
    match from {
        "planned" => matches!(to, "approved" | "failed" | "cancelled" | "needs_reconciliation"),
        "approved" => {
            matches!(to, "planned" | "dispatched" | "confirmed" | "failed" | "cancelled" | "needs_reconciliation")
        }
        "dispatched" => matches!(to, "approved" | "confirmed" | "failed" | "needs_reconciliation"),
        "needs_reconciliation" => matches!(to, "planned" | "approved" | "confirmed" | "failed"),
        "failed" => matches!(to, "planned" | "approved" | "needs_reconciliation"),
        _ => false,
    }
}

pub(super) fn check(case: &Case<'_>) -> Vec<Finding> {
    let Some(command) = case.command() else { return Vec::new() };
    let mut found = chain(case, command);
    found.extend(unknown_outcomes(case));
    found.extend(approvals(case, command));
    if case.told.is_some_and(|told| told.worker_confirmed)
        && command.status != "confirmed"
        && !case.all.cases.contains(case.key)
    {
        found.push(case.finding("I8", format!("a worker confirmed it, and it is {} without a case", command.status)));
    }
    if let Some(contract) = case.contract {
        if command.counted_attempts > contract.max_attempts {
            found.push(case.finding("I9", format!("{} attempts counted", command.counted_attempts)));
        }
        if command.attempt < case.claims().count() {
            found.push(case.finding("I9", format!("attempt {}, {} claims", command.attempt, case.claims().count())));
        }
    }
    // An operator's retry may move the deadline.
    if let Some(deadline_us) = command.deadline_us
        && case.kind("retry").next().is_none()
    {
        for claim in case.claims().filter(|claim| claim.at_us >= deadline_us) {
            found.push(case.finding("I9", format!("claimed at {}, after its deadline", claim.at_us)));
        }
    }
    found
}

/// Nothing missing, nothing out of order, nothing left that is final.
fn chain(case: &Case<'_>, command: &Command) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut refuse = |what: String| found.push(case.finding("I10", what));
    if !command.chain_holds {
        refuse("verify_journal() says that its chain is broken".to_owned());
    }
    if command.journal_seq != case.entries.len() {
        refuse(format!("{} journal entries, the command counts {}", case.entries.len(), command.journal_seq));
    }
    let mut before = case.entries.first().map_or(command.status.as_str(), |entry| entry.from.as_str());
    for (i, entry) in case.entries.iter().enumerate() {
        if entry.seq != i + 1 {
            refuse(format!("entry {} is missing", i + 1));
        }
        if entry.from != before {
            refuse(format!("entry {} begins in {}, the one before ended in {before}", entry.seq, entry.from));
        }
        if entry.from != entry.to && !may_go(&entry.from, &entry.to) {
            refuse(format!("entry {} ({}) goes from {} to {}", entry.seq, entry.kind, entry.from, entry.to));
        }
        before = &entry.to;
    }
    if before != command.status {
        refuse(format!("its journal ends in {before}, the record says {}", command.status));
    }
    found
}

/// What is not known goes through a lookup or a person before anything is sent again, and through a case.
fn unknown_outcomes(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut unknown = None;
    for entry in case.entries {
        match entry.kind.as_str() {
            "uncertain" | "lease_over" | "deadline_over" if entry.to == "needs_reconciliation" => {
                unknown = Some(entry.seq);
            }
            "claim" => {
                if let Some(seq) = unknown {
                    let what =
                        format!("entry {} claims it again; what entry {seq} left unknown was not asked", entry.seq);
                    found.push(case.finding("I5", what));
                }
            }
            "lookup_found"
            | "lookup_absent"
            | "reconcile_found"
            | "reconcile_not_found"
            | "abandon"
            | "late_success"
            | "adopted"
            | "confirm" => unknown = None,
            _ => {}
        }
    }
    let asked = case.entries.iter().any(|entry| entry.to == "needs_reconciliation");
    if asked && !case.all.cases.contains(case.key) {
        found.push(case.finding("I5", "it needed reconciliation, and there was never a case"));
    }
    found
}

/// Each claim stands on an approval for what was sent, given before it and not taken back or over.
fn approvals(case: &Case<'_>, command: &Command) -> Vec<Finding> {
    if command.approvals_required == 0 {
        return Vec::new();
    }
    // The journal says what came first; clocks are set back in between.
    let slack_us = case.all.clock_slack_us;
    let stands = |claim: &super::Entry| {
        let decided = case.entries.iter().filter(|e| e.seq < claim.seq).rev().find(|e| {
            matches!(e.kind.as_str(), "approve" | "revoke_approval" | "approval_lapsed" | "revise" | "reject")
        });
        let given = decided.is_some_and(|entry| entry.kind == "approve");
        let valid = case.approvals.iter().any(|approval| {
            approval.intent_hash == command.intent_hash
                && approval.granted_us - slack_us <= claim.at_us
                && claim.at_us < approval.expires_us
        });
        given && valid
    };
    let claims = case.claims().filter(|claim| !stands(claim));
    let mut found: Vec<Finding> =
        claims.map(|claim| case.finding("I6", format!("attempt {} has no valid approval", claim.attempt))).collect();
    let covered = |at_us: i64| {
        let ours = case.approvals.iter().filter(|approval| approval.intent_hash == command.intent_hash);
        ours.into_iter().any(|a| (a.granted_us - slack_us..=a.expires_us + slack_us).contains(&at_us))
    };
    for request in case.requests.iter().filter(|request| !covered(request.at_us)) {
        found.push(case.finding("I6", format!("sent at {} without an approval for this content", request.at_us)));
    }
    found
}
