//! The checker: what the ledger says, held against what the destinations did and what callers were told. Pure; it
//! knows the invariants of the design and nothing of how the run was made.

mod effects;
mod history;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use super::evidence::{Approval, Command, Contract, Entry, Evidence, Request, Told};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `I1` to `I12`.
    pub invariant: &'static str,
    /// Of which command.
    pub key: String,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.key, self.what)
    }
}

/// Everything about one key.
struct Case<'a> {
    key: &'a str,
    told: Option<&'a Told>,
    commands: Vec<&'a Command>,
    requests: Vec<&'a Request>,
    entries: &'a [Entry],
    approvals: &'a [Approval],
    contract: Option<&'a Contract>,
    all: &'a Evidence,
}

impl Case<'_> {
    fn command(&self) -> Option<&Command> {
        self.commands.first().copied()
    }

    fn effects(&self) -> Vec<&str> {
        self.requests.iter().filter_map(|request| request.effect.as_deref()).collect()
    }

    fn claims(&self) -> impl Iterator<Item = &Entry> {
        self.kind("claim")
    }

    fn kind<'k>(&'k self, kind: &'k str) -> impl Iterator<Item = &'k Entry> {
        self.entries.iter().filter(move |entry| entry.kind == kind)
    }

    fn is_abandoned(&self) -> bool {
        self.all.abandoned.contains(self.key)
    }

    fn finding(&self, invariant: &'static str, what: impl Into<String>) -> Finding {
        Finding { invariant, key: self.key.to_owned(), what: what.into() }
    }
}

/// Everything that does not hold.
pub fn check(all: &Evidence) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (key, invariant, what) in &all.seen {
        findings.push(Finding { invariant, key: key.clone(), what: what.clone() });
    }
    for (destination, (peak, limit)) in &all.in_flight {
        if peak > limit {
            let what = format!("{peak} requests at once at {destination}, {limit} are allowed");
            findings.push(Finding { invariant: "I9", key: String::new(), what });
        }
    }
    for case in by_key(all) {
        findings.extend(records::check(&case));
        findings.extend(effects::check(&case));
        findings.extend(history::check(&case));
    }
    findings
}

fn by_key(all: &Evidence) -> Vec<Case<'_>> {
    let mut cases: BTreeMap<&str, Case<'_>> = BTreeMap::new();
    fn at<'c, 'a>(cases: &'c mut BTreeMap<&'a str, Case<'a>>, key: &'a str, all: &'a Evidence) -> &'c mut Case<'a> {
        cases.entry(key).or_insert_with(|| Case {
            key,
            told: all.told.get(key),
            commands: Vec::new(),
            requests: Vec::new(),
            entries: all.entries.get(key).map_or(&[], Vec::as_slice),
            approvals: all.approvals.get(key).map_or(&[], Vec::as_slice),
            contract: None,
            all,
        })
    }
    for command in &all.commands {
        let case = at(&mut cases, &command.key, all);
        case.contract = all.contracts.get(&command.command_type);
        case.commands.push(command);
    }
    for request in &all.requests {
        at(&mut cases, &request.key, all).requests.push(request);
    }
    for key in all.told.keys().chain(all.entries.keys()) {
        at(&mut cases, key, all);
    }
    cases.into_values().collect()
}
