//! What left and what came of it: I2, I3, I5, I9, I11.

use super::{Case, Finding};

pub(super) fn check(case: &Case<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for silence in &case.all.silences {
        for request in case.requests.iter().filter(|request| silence.holds(request.at_us)) {
            found.push(case.finding("I11", format!("sent at {} while silent: {}", request.at_us, silence.why)));
        }
    }
    found.extend(checkpoints(case));
    let effects = case.effects();
    if effects.len() > 1 {
        found.push(case.finding("I3", format!("{} effects: {}", effects.len(), effects.join(", "))));
    }
    let Some(command) = case.command() else { return found };
    for request in case.requests.iter().filter(|request| request.params != command.params) {
        found.push(case.finding("I6", format!("other parameters were sent at {}", request.at_us)));
    }
    let ended = matches!(command.status.as_str(), "failed" | "cancelled");
    match command.status.as_str() {
        "confirmed" if effects.is_empty() => {
            found.push(case.finding("I5", "it is confirmed, and the destination has no record of it"));
        }
        "confirmed" if command.record_id.as_deref().is_none_or(|id| !effects.contains(&id)) => {
            let what = format!("it is confirmed by {:?}, and its records are {effects:?}", command.record_id);
            found.push(case.finding("I5", what));
        }
        _ if ended && !effects.is_empty() && !case.is_abandoned() => {
            let what = format!("it is {}, and the destination has {effects:?}", command.status);
            found.push(case.finding("I5", what));
        }
        _ => {}
    }
    if let Some(told) = case.told.and_then(|told| told.confirmed_as.as_deref())
        && !effects.contains(&told)
    {
        found.push(case.finding("I5", format!("a receipt named the record {told}, its records are {effects:?}")));
    }
    if let Some(contract) = case.contract {
        let sends = sends(case).count();
        let lost = case.requests.len() - case.requests.iter().filter(|r| is_kept(case, r.at_us)).count();
        let granted = contract.max_attempts + case.kind("retry").count() + case.kind("reconcile_not_found").count();
        if sends > granted + lost {
            found.push(case.finding("I9", format!("{sends} sends, {granted} were granted")));
        }
        let unpermitted = !contract.deduplicates && case.kind("safe_repeat").next().is_some();
        if unpermitted {
            found.push(case.finding("I3", "repeated without a look, at a destination that does not deduplicate"));
        }
    }
    found
}

/// Requests that are sends of their own.
fn sends<'a>(case: &'a Case<'_>) -> impl Iterator<Item = &'a super::Request> {
    case.requests.iter().copied().filter(|request| !request.duplicated)
}

/// Whether the checkpoints of this moment are still in the ledger.
fn is_kept(case: &Case<'_>, at_us: i64) -> bool {
    !case.all.lost_checkpoints.iter().any(|span| span.holds(at_us))
}

/// The n-th request was preceded by n claims.
fn checkpoints(case: &Case<'_>) -> Vec<Finding> {
    let slack_us = case.all.clock_slack_us;
    let kept = sends(case).filter(|request| is_kept(case, request.at_us));
    let late = kept.enumerate().filter_map(|(n, request)| {
        let claimed = case.claims().filter(|claim| claim.at_us <= request.at_us + slack_us).count();
        (claimed <= n)
            .then(|| case.finding("I2", format!("send {} arrived at {}, after {claimed} claims", n + 1, request.at_us)))
    });
    late.collect()
}
