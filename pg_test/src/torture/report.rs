//! What a person reads: the faults so far, the figures at the end, and for each finding the journal of the command and
//! what its destination saw.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::check::Finding;
use super::evidence::Evidence;
use super::faults::Counts;
use super::world::World;
use crate::session::Session;

/// Findings of more keys than this are counted, not shown.
const SHOWN: usize = 5;

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its seed.
    pub seed: u64,
    /// How long it took, with the drain.
    pub took: Duration,
    /// Commands in the ledger.
    pub commands: usize,
    /// Attempts started.
    pub attempts: usize,
    /// Requests that destinations and workers saw.
    pub requests: usize,
    /// Records made.
    pub effects: usize,
    /// Journal entries.
    pub entries: usize,
    /// Commands that had a case.
    pub cases: usize,
    /// By status.
    pub statuses: BTreeMap<String, usize>,
    /// Keys with more than one effect.
    pub duplicates: usize,
    /// Acknowledged registrations that are not there.
    pub losses: usize,
    /// By name.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Of a run that was collected.
    pub fn of(seed: u64, took: Duration, all: &Evidence, counts: &Counts) -> Summary {
        let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
        for request in all.requests.iter().filter(|request| request.effect.is_some()) {
            *effects.entry(&request.key).or_default() += 1;
        }
        let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
        for command in &all.commands {
            *statuses.entry(command.status.clone()).or_default() += 1;
        }
        let known: std::collections::BTreeSet<&str> = all.commands.iter().map(|c| c.key.as_str()).collect();
        let acknowledged = all.told.iter().filter(|(_, told)| told.acknowledged);
        Summary {
            seed,
            took,
            commands: all.commands.len(),
            attempts: all.commands.iter().map(|command| command.attempt).sum(),
            requests: all.requests.len(),
            effects: effects.values().sum(),
            entries: all.entries.values().map(Vec::len).sum(),
            cases: all.cases.len(),
            statuses,
            duplicates: effects.values().filter(|made| **made > 1).count(),
            losses: acknowledged.filter(|(key, _)| !known.contains(key.as_str())).count(),
            faults: counts.by_name(),
        }
    }

    /// Faults in all.
    pub fn faults_in_all(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults by kind:")?;
        for (name, count) in &self.faults {
            writeln!(f, "  {count:>7}  {name}")?;
        }
        let minutes = self.took.as_secs_f64() / 60.0;
        writeln!(f, "seed {}, {minutes:.1} minutes with the drain", self.seed)?;
        writeln!(
            f,
            "{} commands ({}), {} attempts, {} requests, {} effects, {} commands had a case, {} journal entries",
            self.commands,
            self.statuses.iter().map(|(status, n)| format!("{n} {status}")).collect::<Vec<_>>().join(", "),
            self.attempts,
            self.requests,
            self.effects,
            self.cases,
            self.entries
        )?;
        write!(f, "faults {}, duplicates {}, losses {}", self.faults_in_all(), self.duplicates, self.losses)
    }
}

/// One line while it runs.
pub fn progress(world: &World, elapsed: Duration) {
    let requests: usize = world.sites.values().map(|site| site.store().log().len()).sum();
    let searches: u64 = world.sites.values().map(|site| site.searches()).sum();
    let (keys, seen) = {
        let notebook = world.notebook();
        (notebook.told.len(), notebook.seen.len())
    };
    println!(
        "torture: {:>5} s, {keys} keys, {requests} requests, {searches} lookups, {} faults, {} moves, {seen} seen{}",
        elapsed.as_secs(),
        world.climate.counts.total(),
        world.moves(),
        if world.climate.is_calm() { ", draining" } else { "" }
    );
}

/// The findings, with everything about the keys of the first ones.
pub fn findings(world: &World, session: &mut Session, findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut keys: Vec<&str> = findings.iter().map(|finding| finding.key.as_str()).collect();
    keys.dedup();
    for finding in findings.iter().take(60) {
        text.push_str(&format!("{finding}\n"));
    }
    text.push_str("--- what happened around the ledger\n");
    for (at_us, what) in &world.notebook().chronicle {
        text.push_str(&format!("{at_us} {what}\n"));
    }
    for key in keys.into_iter().filter(|key| !key.is_empty()).take(SHOWN) {
        text.push_str(&format!("--- {key}: its journal\n"));
        let quoted = key.replace('\'', "''");
        for table in ["command", "timeline", "approval", "reconciliation_case"] {
            let order = match table {
                "timeline" | "approval" | "reconciliation_case" => "t.seq",
                _ => "t.idempotency_key",
            };
            let sql = format!(
                "SELECT pg_catalog.to_jsonb(t)::text AS {table} FROM command_ledger.{table} t \
                  WHERE t.idempotency_key = '{quoted}' ORDER BY {order}"
            );
            text.push_str(&session.shown(&sql));
        }
        text.push_str(&format!("--- {key}: what its destination saw\n"));
        for site in world.sites.values() {
            for request in site.store().log_of(key) {
                text.push_str(&format!(
                    "{} at {}: {}, effect {:?}{}\n",
                    site.profile.name(),
                    request.at_us,
                    request.story,
                    request.effect,
                    if request.duplicated { ", a copy" } else { "" }
                ));
            }
        }
    }
    text
}
