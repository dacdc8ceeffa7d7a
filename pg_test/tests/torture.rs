//! A short torture with fixed seeds: everything that goes wrong in the long one (`make torture`), for a few seconds.

use std::time::Duration;

use pg_test::torture::{Fault, Plan, Run};

#[test]
fn under_faults_of_every_kind_nothing_is_doubled_lost_or_guessed() {
    use Fault::*;
    let summary = Run {
        seed: 11,
        lasts: Duration::from_secs(20),
        callers: 4,
        pause_ms: 150,
        plan: Plan {
            first: vec![RelayKilled, DumpRestored, Outage, ClockJump, PostmasterKilled, PromotedAsync],
            pause_ms: (300, 800),
            ..Plan::default()
        },
        fsync: false,
    }
    .make();
    assert!(summary.commands > 30 && summary.faults_in_all() > 40, "too little happened to show anything: {summary}");
    assert_eq!((summary.duplicates, summary.losses), (0, 0));
}
