//! Running a check, and telling a trace.
#![allow(dead_code, reason = "each test file uses a part of it")]

use command_ledger_model::{Action, Bounds, Check, Setup, invariants};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::time::Instant;

/// What a check came to.
pub struct Checked {
    pub states: usize,
    pub depth: usize,
    pub seconds: f64,
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// What must be reached and never was.
    pub never: Vec<&'static str>,
}

/// Every order of events up to the setup's bounds.
pub fn check(setup: &Setup) -> Checked {
    let started = Instant::now();
    let done = Check(setup.clone()).checker().threads(2).spawn_bfs().join();
    let found = done.discoveries();
    let must = done.model().properties();
    let reached = |p: &&stateright::Property<Check>| p.expectation == Expectation::Sometimes;
    Checked {
        states: done.unique_state_count(),
        depth: done.max_depth(),
        seconds: started.elapsed().as_secs_f64(),
        never: must.iter().filter(reached).map(|p| p.name).filter(|name| !found.contains_key(name)).collect(),
        broken: invariants().iter().filter_map(|p| Some((p.name, found.get(p.name)?.clone().into_actions()))).collect(),
    }
}

/// The shortest way to break an invariant, or a panic.
pub fn counterexample(setup: &Setup, property: &'static str) -> Vec<Action> {
    let done = Check(setup.clone()).checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let states = done.unique_state_count();
    match done.discovery(property) {
        Some(path) => path.into_actions(),
        None => panic!("{} {:?}: {property} holds in all {states} states", setup.name, setup.broken),
    }
}

/// One action a line.
pub fn told(trace: &[Action]) -> String {
    trace.iter().enumerate().map(|(i, action)| format!("  {:>2} {action:?}\n", i + 1)).collect()
}

/// More of everything that a setup bounds.
pub fn wide(bounds: Bounds) -> Bounds {
    let more = |n: u8| n.saturating_mul(3);
    Bounds {
        ticks: more(bounds.ticks),
        callers: more(bounds.callers),
        approvers: more(bounds.approvers),
        operators: more(bounds.operators),
        crashes: more(bounds.crashes),
        moves: bounds.moves,
        edits: more(bounds.edits),
        transactions: more(bounds.transactions),
    }
}
