//! Every order of events up to the bounds of each setup: the invariants hold.

use command_ledger_model::{Check, Setup, setups};
use stateright::{Checker, Model};
use std::time::Instant;

fn check(setup: Setup) {
    let name = setup.name;
    let started = Instant::now();
    let checked = Check(setup).checker().threads(2).spawn_bfs().join();
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
        check(setup);
    }
}
