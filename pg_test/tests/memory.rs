//! A call gives back what it only looked at: its memory does not grow with what stands in the queue.

use pg_test::desk::{assert_journals, claim, desk};
use pg_test::prelude::*;

const PASSED_OVER: i32 = 4_000;
/// What a claim may need beyond what its session needed before: less than 3 KiB for each that it passes over.
const GROWTH_KIB: u64 = 12_000;

/// The most memory that a process ever had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The keys that a new session claims, once it has claimed before; fails if its memory grows.
fn claimed_by_a_worker(ledger: &Ledger) -> Vec<String> {
    let mut worker = ledger.another();
    // Everything that a session reads once.
    assert!(claim(&mut worker, 1).len() == 1);
    let before = peak_kib(worker.backend_pid());
    let keys: Vec<String> = claim(&mut worker, 10).into_iter().map(|job| job.key).collect();
    let grown = peak_kib(worker.backend_pid()) - before;
    assert!(grown < GROWTH_KIB, "{grown} KiB for a claim that passes over {PASSED_OVER} commands");
    keys
}

#[test]
fn a_claim_that_passes_over_a_long_lane_gives_back_what_it_looked_at() {
    let (_cluster, mut ledger) = desk(json!({}));
    ledger.register_with("task", "head", json!({}), json!({"ordering_key": "lane"}));
    assert_eq!(claim(&mut ledger, 1).len(), 1);
    ledger.register("task", "free0", json!({}));
    ledger.exec(&format!(
        "SELECT command_ledger.register('task', 'behind' || i, '{{}}', ordering_key => 'lane') \
           FROM pg_catalog.generate_series(1, {PASSED_OVER}) i"
    ));
    ledger.register("task", "free1", json!({}));
    assert_eq!(claimed_by_a_worker(&ledger), ["free1"]);
    assert!(claim(&mut ledger, 10).is_empty());
    assert_journals(&mut ledger);
}
