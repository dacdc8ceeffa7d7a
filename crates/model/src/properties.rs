//! The invariants, as the design numbers them.

use command_ledger_domain::status::Status;
use stateright::{Model, Property};

use crate::actions::{Action, enabled, step};
use crate::setup::Setup;
use crate::shell::{self, Here};
use crate::world::{Phase, World};

/// A setup that is checked.
#[derive(Clone, Debug)]
pub struct Check(pub Setup);

impl Model for Check {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        enabled(&self.0, world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        step(&self.0, world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = invariants();
        // What must be reached, or the rest says nothing.
        all.push(Property::sometimes("a command is confirmed", |_, world: &World| is(world, Status::Confirmed)));
        all.push(Property::sometimes("a person is asked", |_, world: &World| is(world, Status::NeedsReconciliation)));
        all.push(Property::sometimes("a second request leaves", |_, world: &World| world.seen.sends > 1));
        all
    }
}

fn is(world: &World, status: Status) -> bool {
    world.ledger.command.as_ref().is_some_and(|c| c.status == status)
}

/// What holds in every state.
pub fn invariants() -> Vec<Property<Check>> {
    vec![
        Property::always("I1 one key, one intent", |_, world: &World| !world.seen.mixed_up),
        Property::always("I2 no send before the checkpoint", |_, world: &World| !world.seen.unmarked_send),
        Property::always("I3 at most one effect", |_, world: &World| {
            world.records.len() <= 1 && !world.seen.differing_send
        }),
        Property::always("I4 nothing is lost", |check: &Check, world: &World| in_a_queue(&check.0, world)),
        Property::always("I5 nothing uncertain is called success or failure", |_, world: &World| called_rightly(world)),
        Property::always("I6 no send without a valid approval", |_, world: &World| !world.seen.unapproved_send),
        Property::always("I7 nothing rolled back is sent", |_, world: &World| !world.seen.rolled_back_send),
        Property::always("I8 a late answer neither overwrites nor is lost", |_, world: &World| {
            !world.seen.overwrote && what_was_told_is_kept(world)
        }),
        Property::always("I9 budgets hold", |_, world: &World| {
            !world.seen.overdue_send && world.seen.sends <= world.seen.granted && in_flight(world) <= 1
        }),
        Property::always("I10 what is final stays", |_, world: &World| !world.seen.left_final),
        Property::always("I11 a copy sends nothing", |_, world: &World| !world.seen.fenced_send),
    ]
}

/// Attempts of the command that their senders may still send or wait for under a lease.
fn in_flight(world: &World) -> usize {
    let alive = |phase| matches!(phase, Phase::Held | Phase::Sent);
    world.flights.iter().filter(|f| alive(f.phase) && f.lease_expires_us > world.now_us).count()
}

/// Every command is settled, or stands where somebody or something takes it up again.
fn in_a_queue(setup: &Setup, world: &World) -> bool {
    let Some(command) = &world.ledger.command else { return true };
    match command.status {
        Status::Confirmed | Status::Cancelled | Status::Failed => command.queued.is_none(),
        Status::Planned => command.queued.is_none() && setup.approval.is_some(),
        Status::Approved => command.queued.is_some() && command.lease().is_none(),
        Status::NeedsReconciliation => command.queued.is_none() && command.case.is_some(),
        Status::Dispatched => {
            let Some(lease) = command.lease() else { return false };
            let held = world.flights.iter().any(|f| f.serial == lease.serial);
            let mut later = Here::of(setup, world);
            later.now_us = lease.expires_us.max(world.now_us);
            held || shell::expired_lease(&later, &mut command.clone(), world.epoch)
        }
    }
}

/// Confirmed means that there is an effect; failed, cancelled or "not maybe sent" means that there is none, and that
/// none can come any more. A person who gives up answers for it, and so does a failover that lost commits.
fn called_rightly(world: &World) -> bool {
    let Some(command) = &world.ledger.command else { return true };
    if world.seen.decided_blindly {
        return false;
    }
    if command.status == Status::Confirmed {
        return !world.records.is_empty();
    }
    if world.seen.abandoned || world.seen.moved {
        return true;
    }
    let nothing = world.records.is_empty() && world.network.iter().all(|r| r.not_after_us < world.now_us);
    let ended = matches!(command.status, Status::Failed | Status::Cancelled) && command.case.is_none();
    let surely_not = !command.maybe_sent && command.status != Status::Dispatched && command.case.is_none();
    nothing || !(ended || surely_not)
}

/// A success that was reported confirms the command, or waits for the attempt in flight, or is a question.
fn what_was_told_is_kept(world: &World) -> bool {
    let Some(command) = &world.ledger.command else { return true };
    !world.seen.told
        || world.seen.abandoned
        || world.seen.moved
        || command.status == Status::Confirmed
        || command.success_kept
        || command.case.is_some()
}
