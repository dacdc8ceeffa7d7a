//! The record of a command against what its callers know: I1, I4, I7, and that nothing is left undone.

use super::{Case, Finding};

pub(super) fn check(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut refuse = |invariant, what: String| found.push(case.finding(invariant, what));
    if case.commands.len() > 1 {
        refuse("I1", format!("{} commands have this key", case.commands.len()));
    }
    let Some(command) = case.command() else {
        if case.told.is_some_and(|told| told.acknowledged) {
            refuse("I4", "its registration was acknowledged, and it is not in the ledger".to_owned());
        }
        if !case.entries.is_empty() {
            refuse("I10", format!("{} journal entries without a command", case.entries.len()));
        }
        if !case.requests.is_empty() {
            let why = match case.told {
                Some(told) if told.rolled_back => "it was rolled back",
                _ => "the ledger has no such command",
            };
            refuse("I7", format!("{} requests left under this key, and {why}", case.requests.len()));
        }
        return found;
    };
    match case.told {
        None => refuse("I7", "nobody registered it".to_owned()),
        Some(told) => {
            if told.rolled_back {
                refuse("I7", "its registration was rolled back, and it is in the ledger".to_owned());
            }
            if told.command_type != command.command_type || !told.params.contains(&command.params) {
                refuse("I1", "its content is not what was registered under this key".to_owned());
            }
        }
    }
    if !command.params_match {
        refuse("I1", "its parameters do not match their hash".to_owned());
    }
    let somewhere = match command.status.as_str() {
        "confirmed" | "failed" | "cancelled" => true,
        "planned" => command.awaits_approval,
        "approved" | "dispatched" => command.queued,
        _ => command.open_case,
    };
    if !somewhere {
        refuse("I4", format!("it is {}, and stands in no queue", command.status));
    }
    if command.queued && !matches!(command.status.as_str(), "approved" | "dispatched") {
        refuse("I4", format!("it is {}, and still in the outbox", command.status));
    }
    if command.maybe_sent && matches!(command.status.as_str(), "confirmed" | "failed" | "cancelled") {
        refuse("I5", format!("it is {}, and maybe sent", command.status));
    }
    found
}
