//! Traces: what happened, step by step, so that it can be read and repeated exactly.

use crate::actions::{Action, enabled, step};
use crate::properties::{Check, invariants};
use crate::setup::Setup;
use crate::world::World;

/// Repeats actions from the start; the invariants that are broken at the end, and the end.
///
/// # Errors
/// The place of the first action that is not possible there.
pub fn replay(setup: &Setup, actions: &[Action]) -> Result<(World, Vec<&'static str>), usize> {
    let mut world = World::new(setup);
    for (at, action) in actions.iter().enumerate() {
        let mut possible = Vec::new();
        enabled(setup, &world, &mut possible);
        if !possible.contains(action) {
            return Err(at);
        }
        world = step(setup, &world, *action).ok_or(at)?;
    }
    let broken = broken(setup, &world);
    Ok((world, broken))
}

fn broken(setup: &Setup, world: &World) -> Vec<&'static str> {
    let check = Check(setup.clone());
    invariants().iter().filter(|p| !(p.condition)(&check, world)).map(|p| p.name).collect()
}

/// One random life of at most `steps` steps; the same seed is the same life. Stops where an invariant breaks.
pub fn walk(setup: &Setup, seed: u64, steps: usize) -> (Vec<Action>, Vec<&'static str>) {
    let (mut world, mut taken, mut random) = (World::new(setup), Vec::new(), seed);
    for _ in 0..steps {
        let mut possible = Vec::new();
        enabled(setup, &world, &mut possible);
        let next: Vec<(Action, World)> =
            possible.into_iter().filter_map(|action| Some((action, step(setup, &world, action)?))).collect();
        let Some(count) = u64::try_from(next.len()).ok().filter(|n| *n > 0) else { break };
        // SplitMix64: every seed, 0 included, gives a life of its own.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let chosen = usize::try_from((mixed ^ (mixed >> 31)) % count).unwrap_or(0);
        let Some((action, after)) = next.into_iter().nth(chosen) else { break };
        taken.push(action);
        world = after;
        let broken = broken(setup, &world);
        if !broken.is_empty() {
            return (taken, broken);
        }
    }
    (taken, Vec::new())
}
