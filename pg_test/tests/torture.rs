//! A short torture with fixed seeds: everything that goes wrong in the long one (`make torture`), for a few seconds.

use std::time::Duration;

use pg_test::torture::{Fault, Plan, Run};

#[test]
fn under_faults_of_every_kind_nothing_is_doubled_lost_or_guessed() {
    use Fault::*;
    let summary = Run {
        seed: 11,
        lasts: Duration::from_secs(12),
        callers: 4,
        pause_ms: 150,
        plan: Plan {
            first: vec![RelayKilled, DumpRestored, ClockJump, PromotedSync],
            pause_ms: (300, 800),
            ..Plan::default()
        },
        fsync: false,
        misled: false,
    }
    .make();
    assert!(summary.commands > 15 && summary.faults_in_all() > 20, "too little happened to show anything: {summary}");
    assert_eq!((summary.duplicates, summary.losses), (0, 0));
}

#[test]
fn a_ledger_that_is_misled_about_its_destinations_is_found_out() {
    let run = Run {
        seed: 12,
        lasts: Duration::from_secs(4),
        callers: 6,
        pause_ms: 40,
        plan: Plan { only: vec![Fault::Disconnected], pause_ms: (1_000, 2_000), ..Plan::default() },
        fsync: false,
        misled: true,
    };
    let (outcome, _world) = run.outcome();
    let doubled = |f: &pg_test::torture::check::Finding| f.invariant == "I3";
    assert!(outcome.findings.iter().any(doubled), "{:#?}", outcome.findings);
    assert!(outcome.summary.duplicates > 0 && outcome.told.contains("what its destination saw"), "{}", outcome.told);
}
