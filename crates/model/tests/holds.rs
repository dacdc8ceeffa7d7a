//! Every order of events up to the bounds of each setup: the invariants hold.
//!
//! `MODEL_SETUP=name` checks one setup alone; the ignored test goes deeper (minutes, and gigabytes of memory).

mod common;

use command_ledger_model::{Setup, setups};

fn wanted() -> Vec<Setup> {
    let only = std::env::var("MODEL_SETUP").ok();
    setups::all().into_iter().filter(|s| only.as_ref().is_none_or(|name| name == s.name)).collect()
}

fn check(setup: Setup) {
    let (name, checked) = (setup.name, common::check(&setup));
    println!("{name}: {} states, depth {}, {:.1} s", checked.states, checked.depth, checked.seconds);
    for (property, trace) in &checked.broken {
        println!("{name}: {property} is broken:\n{}", common::told(trace));
    }
    assert!(checked.broken.is_empty(), "{name}: {} invariants are broken", checked.broken.len());
    assert_eq!(checked.never, Vec::<&str>::new(), "{name}: the bounds are too narrow to say anything");
}

#[test]
fn the_invariants_hold_in_every_order_of_events() {
    wanted().into_iter().for_each(check);
}

#[test]
#[ignore = "minutes; for a change of the decisions: cargo test -p command_ledger_model -- --ignored --nocapture"]
fn the_invariants_hold_one_step_deeper() {
    wanted().into_iter().map(Setup::deeper).for_each(check);
}

#[test]
fn the_invariants_hold_in_long_random_lives() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (first, lives) = (number("MODEL_SEED", 1), number("MODEL_LIVES", 40));
    for setup in wanted() {
        let deep = setup.clone().bounded(common::wide(setup.bounds));
        for seed in first..first + lives {
            let (trace, broken) = command_ledger_model::walk(&deep, seed, 400);
            assert!(
                broken.is_empty(),
                "{}: {broken:?}; MODEL_SETUP={} MODEL_SEED={seed} MODEL_LIVES=1 repeats it:\n{}",
                setup.name,
                setup.name,
                common::told(&trace)
            );
        }
    }
}

#[test]
fn a_registration_that_a_failover_lost_is_protected_only_if_it_is_repeated_within_the_margin() {
    let mut setup = setups::promoted_deduplicating();
    setup.truth.lost_are_repeated_soon = false;
    setup.bounds.ticks = 4;
    let property = "I3 at most one effect";
    let trace = common::counterexample(&setup, property);
    println!("a known limit:\n{}", common::told(&trace));
    let (world, broken) = command_ledger_model::replay(&setup, &trace).unwrap();
    assert!(broken.contains(&property));
    assert!(!world.seen.differing_send);
    assert!(world.seen.lost_registration, "the ledger that goes on never knew of the first send");
}
