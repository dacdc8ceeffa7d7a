//! Every order of events up to the bounds of each setup: the invariants hold.

use command_ledger_model::{Check, Setup, setups};
use stateright::{Checker, Model};
use std::time::{Duration, Instant};

fn check(setup: Setup) {
    let name = setup.name;
    let started = Instant::now();
    let most = std::env::var("MODEL_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3_600);
    let checked = Check(setup).checker().threads(2).timeout(Duration::from_secs(most)).spawn_bfs().join();
    println!(
        "{name}: {} states, depth {}, {:.1} s",
        checked.unique_state_count(),
        checked.max_depth(),
        started.elapsed().as_secs_f64()
    );
    let broken: Vec<_> = checked.discoveries().into_iter().filter(|(name, _)| name.starts_with('I')).collect();
    for (property, path) in &broken {
        println!("{name}: {property}");
        for action in path.clone().into_actions() {
            println!("    {action:?}");
        }
    }
    assert!(broken.is_empty());
    checked.assert_properties();
}

#[test]
fn the_invariants_hold_in_every_order_of_events() {
    let only = std::env::var("MODEL_SETUP").ok();
    for setup in setups::all().into_iter().filter(|s| only.as_ref().is_none_or(|o| o == s.name)) {
        let name = setup.name;
        if std::panic::catch_unwind(|| check(setup)).is_err() {
            println!("FAILED {name}");
        }
    }
}
