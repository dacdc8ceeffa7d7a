//! Everything that can happen, and what it does.

use command_ledger_domain::fence::{Fence, OnFailover};
use command_ledger_domain::status::Status;

use crate::destination::{Answer, Heard, Looked, Request, arrive, search};
use crate::setup::{Break, Move, Sender, Setup, TICK_US};
use crate::shell::{self, Claim, Finding, Here, Refused};
use crate::world::{Command, Flight, Ledger, Phase, Round, World};

/// One step of anyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time goes on.
    Tick,
    /// A caller registers these params and commits.
    Register(u8),
    /// The same in a transaction that stays open.
    RegisterOpen(u8),
    /// It commits.
    Commit,
    /// It is rolled back.
    RollBack,
    /// A caller revises to these params.
    Revise(u8),
    /// A caller withdraws it.
    Cancel,
    /// This person approves what would be executed now.
    Approve(u8),
    /// The approvals are taken back.
    Revoke,
    /// An approver rejects it.
    Reject,
    /// An operator says what the destination holds; always the truth.
    Reconcile(Finding),
    /// An operator wants it tried again; knowing that nothing was created.
    Retry,
    /// An operator adopts the ledger here (`resend`: knowing that nothing was sent).
    Adopt(bool),
    /// The destination's request is edited.
    Edit,
    /// A sender claims, and the claim commits.
    Claim,
    /// A sender lets the request go, or sees that its time is over.
    Send(u8),
    /// A sender stops waiting for an answer.
    GiveUp(u8),
    /// A request reaches the destination.
    Arrive(u8, Answer),
    /// A sender's end of an attempt is settled.
    Settle(u8),
    /// The sweep over leases.
    SweepLeases,
    /// The sweep over deadlines and approvals.
    SweepOverdue,
    /// A lookup is made.
    LookUp(Looked),
    /// What it brought is settled.
    SettleLookup,
    /// The relay dies and starts again.
    Crash,
    /// This worker dies.
    CrashWorker(u8),
    /// The standby falls behind from here on, or a dump is taken.
    FallBehind,
    /// The standby is promoted, or the dump restored; the first place is dead.
    MoveTo,
}

/// What may happen next, in a fixed order.
pub fn enabled(setup: &Setup, world: &World, actions: &mut Vec<Action>) {
    use Action as A;
    let left = &world.left;
    let if_left = |left: u8, some: &[Action], actions: &mut Vec<Action>| {
        if left > 0 {
            actions.extend_from_slice(some);
        }
    };
    if_left(left.ticks, &[A::Tick], actions);
    // While a claim waits for its commit, others wait for its locks.
    if world.uncommitted.is_some() {
        actions.extend([A::Commit, A::Crash]);
        wire(setup, world, actions);
        return;
    }
    // The first content is as good as the other.
    let register: &[Action] =
        if world.ledger.command.is_some() { &[A::Register(0), A::Register(1)] } else { &[A::Register(0)] };
    if may_register(setup, world) {
        if_left(left.callers, register, actions);
    }
    if world.open_registration.is_some() {
        actions.extend([A::Commit, A::RollBack]);
    } else {
        if_left(left.transactions, &[A::RegisterOpen(0)], actions);
    }
    if world.ledger.command.is_some() {
        if_left(left.callers, &[A::Revise(0), A::Revise(1), A::Cancel], actions);
        if setup.approval.is_some() {
            if_left(left.approvers, &[A::Approve(0), A::Approve(1), A::Revoke, A::Reject], actions);
        }
    }
    operator(setup, world, actions);
    if_left(left.edits, &[A::Edit], actions);
    if runs(setup, world) {
        actions.extend([A::Claim, A::SweepLeases, A::SweepOverdue]);
        if world.round.is_none() && setup.lookup.is_some() {
            actions.extend([A::LookUp(Looked::Search), A::LookUp(Looked::Unusable)]);
            if setup.truth.lag_ticks > 0 {
                actions.push(A::LookUp(Looked::Lagging));
            }
        }
    }
    wire(setup, world, actions);
    if world.round.is_some() {
        actions.push(A::SettleLookup);
    }
    for (i, flight) in (0u8..).zip(&world.flights) {
        if matches!(flight.phase, Phase::Over { .. }) {
            actions.push(A::Settle(i));
        }
    }
    let crashes: Vec<Action> = match setup.sender {
        Sender::Relay => vec![A::Crash],
        Sender::Workers => (0u8..).zip(&world.flights).map(|(i, _)| A::CrashWorker(i)).collect(),
    };
    if_left(left.crashes, &crashes, actions);
    if world.copy.is_none() {
        if_left(left.moves, &[A::FallBehind], actions);
    } else {
        if_left(left.moves, &[A::MoveTo], actions);
    }
}

/// Whether the relay works here, as its round decides by the fence.
fn runs(setup: &Setup, world: &World) -> bool {
    matches!(world.fence(setup), Fence::Open | Fence::Moved { halted: false })
}

/// A caller whose registration was lost by a failover repeats it soon, or the window would count from too late.
fn may_register(setup: &Setup, world: &World) -> bool {
    let Some(first_send_us) = world.seen.first_send_us.filter(|_| world.seen.lost_registration) else { return true };
    let since_us = world.now_us - first_send_us + setup.truth.delay_ticks * TICK_US;
    !setup.truth.lost_are_repeated_soon || since_us <= setup.margin_ms * 1_000
}

fn operator(setup: &Setup, world: &World, actions: &mut Vec<Action>) {
    use Action as A;
    if world.left.operators == 0 {
        return;
    }
    let nothing_there = world.records.is_empty() && !world.outstanding();
    if world.ledger.command.is_some() {
        if let Some(last) = world.records.len().checked_sub(1) {
            actions.push(A::Reconcile(Finding::Found(u8::try_from(last).unwrap_or(u8::MAX))));
        }
        if nothing_there {
            actions.extend([A::Reconcile(Finding::NotFound), A::Retry]);
        }
        actions.push(A::Reconcile(Finding::Abandon));
    }
    if world.fence(setup) != Fence::Open {
        if nothing_there {
            actions.push(A::Adopt(true));
        }
        // Who adopts has seen that the other place sent nothing that this ledger does not know.
        if nothing_there || !world.seen.lost_registration {
            actions.push(A::Adopt(false));
        }
    }
}

fn wire(setup: &Setup, world: &World, actions: &mut Vec<Action>) {
    for (i, flight) in (0u8..).zip(&world.flights) {
        match flight.phase {
            Phase::Held => actions.push(Action::Send(i)),
            Phase::Sent => actions.push(Action::GiveUp(i)),
            Phase::Over { .. } => {}
        }
    }
    for (i, request) in (0u8..).zip(&world.network) {
        let waits = world.flights.iter().any(|f| f.serial == request.serial && f.phase == Phase::Sent);
        if waits {
            actions.extend(setup.answers.iter().map(|answer| Action::Arrive(i, *answer)));
        } else {
            actions.push(Action::Arrive(i, Answer::DoneLost));
        }
    }
}

/// What an action does; `None` if nothing.
pub fn step(setup: &Setup, before: &World, action: Action) -> Option<World> {
    let mut world = before.clone();
    match act(setup, &mut world, action) {
        Ok(()) if world != *before => {
            watch(setup, before, &mut world, action);
            Some(world)
        }
        _ => None,
    }
}

type Done = Result<(), Refused>;

fn act(setup: &Setup, world: &mut World, action: Action) -> Done {
    use Action as A;
    let here = Here::of(setup, world);
    match action {
        A::Tick => {
            world.left.ticks -= 1;
            world.now_us += TICK_US;
            let now_us = world.now_us;
            world.network.retain(|r| r.not_after_us >= now_us);
        }
        A::Register(params) => {
            world.left.callers -= 1;
            register(&here, world, params)?;
        }
        A::RegisterOpen(params) => {
            world.left.transactions -= 1;
            let mut open = world.ledger.clone();
            if open.command.is_some() {
                return Err(Refused);
            }
            shell::register(&here, &mut open, params)?;
            world.open_registration = Some(Box::new(open));
        }
        A::Commit => commit(setup, world),
        A::RollBack => world.open_registration = None,
        A::Revise(params) => {
            world.left.callers -= 1;
            on_command(world, |command| shell::revise(&here, command, params))?;
        }
        A::Cancel => {
            world.left.callers -= 1;
            on_command(world, |command| shell::cancel(&here, command))?;
        }
        A::Approve(role) => {
            world.left.approvers -= 1;
            on_command(world, |command| shell::approve(&here, command, role))?;
        }
        A::Revoke => {
            world.left.approvers -= 1;
            on_command(world, |command| shell::revoke(&here, command))?;
        }
        A::Reject => {
            world.left.approvers -= 1;
            on_command(world, |command| shell::reject(&here, command))?;
        }
        A::Reconcile(finding) => {
            world.left.operators -= 1;
            on_command(world, |command| shell::reconcile(&here, command, finding))?;
        }
        A::Retry => {
            world.left.operators -= 1;
            on_command(world, |command| shell::retry(&here, command))?;
        }
        A::Adopt(resend) => {
            world.left.operators -= 1;
            shell::adopt(&here, &mut world.ledger, resend)?;
        }
        A::Edit => {
            world.left.edits -= 1;
            world.ledger.request_version ^= 1;
        }
        A::Claim => claim(&here, setup, world)?,
        A::Send(i) => send(setup, world, i)?,
        A::GiveUp(i) => {
            let now_us = world.now_us;
            let flight = world.flights.get_mut(usize::from(i)).ok_or(Refused)?;
            flight.phase = Phase::Over { sent: true, heard: None, ended_us: now_us };
            let serial = flight.serial;
            world.sender_ended(setup, serial);
        }
        A::Arrive(i, answer) => {
            let request = world.network.remove(usize::from(i));
            let heard = arrive(setup, world, request, answer);
            let now_us = world.now_us;
            let waiting = world.flights.iter_mut().find(|f| f.serial == request.serial && f.phase == Phase::Sent);
            if let (Some(flight), Some(heard)) = (waiting, heard) {
                flight.phase = Phase::Over { sent: true, heard: Some(heard), ended_us: now_us };
            }
        }
        A::Settle(i) => {
            let flight = world.flights.remove(usize::from(i));
            on_command(world, |command| {
                shell::settle_flight(&here, command, &flight);
                Ok(())
            })?;
            world.seen.told |= matches!(flight.phase, Phase::Over { heard: Some(Heard::Success(_)), .. });
        }
        A::SweepLeases => {
            let epoch = world.epoch;
            on_command(world, |command| shell::expired_lease(&here, command, epoch).then_some(()).ok_or(Refused))?;
        }
        A::SweepOverdue => {
            on_command(world, |command| shell::overdue(&here, command).then_some(()).ok_or(Refused))?;
        }
        A::LookUp(looked) => {
            let token = world.rounds + 1;
            on_command(world, |command| shell::start_lookup(&here, command, token).then_some(()).ok_or(Refused))?;
            world.rounds = token;
            let records = (looked != Looked::Unusable).then(|| search(setup, world, looked));
            world.round = Some(Round { token, started_us: world.now_us, records });
        }
        A::SettleLookup => {
            let round = world.round.take().ok_or(Refused)?;
            on_command(world, |command| {
                shell::settle_round(&here, command, &round);
                Ok(())
            })?;
        }
        A::Crash => {
            world.left.crashes = world.left.crashes.saturating_sub(1);
            die(setup, world);
        }
        A::CrashWorker(i) => {
            world.left.crashes -= 1;
            let flight = world.flights.remove(usize::from(i));
            world.sender_ended(setup, flight.serial);
        }
        A::FallBehind => world.copy = Some(Box::new(world.ledger.clone())),
        A::MoveTo => move_to(setup, world)?,
    }
    Ok(())
}

fn on_command(world: &mut World, call: impl FnOnce(&mut Command) -> Done) -> Done {
    world.ledger.command.as_mut().map_or(Err(Refused), call)
}

fn register(here: &Here, world: &mut World, params: u8) -> Done {
    let replayed = shell::register(here, &mut world.ledger, params)?;
    if replayed {
        world.seen.mixed_up |= world.ledger.command.as_ref().is_some_and(|c| c.params != params);
    } else {
        world.grant(here.setup);
    }
    Ok(())
}

fn commit(setup: &Setup, world: &mut World) {
    if let Some(claimed) = world.uncommitted.take() {
        world.ledger.command = Some(*claimed);
    } else if let Some(open) = world.open_registration.take()
        && world.ledger.command.is_none()
    {
        world.ledger.command = open.command;
        world.grant(setup);
    }
}

fn claim(here: &Here, setup: &Setup, world: &mut World) -> Done {
    let (serial, epoch) = (world.serials + 1, world.epoch);
    let open = world.open_registration.as_ref().filter(|_| setup.breaks(Break::SendRolledBack));
    let visible: Option<&Ledger> = open.map(|open| &**open).or(Some(&world.ledger));
    let Some(mut command) = visible.and_then(|ledger| ledger.command.clone()) else { return Err(Refused) };
    let done = shell::claim(here, &mut command, serial, epoch);
    if let Claim::Claimed { lease, content } = done {
        world.serials = serial;
        world.flights.push(Flight {
            serial,
            content,
            lease_expires_us: lease.expires_us,
            approved_until_us: truly_approved_until(setup, &command, content),
            deadline_us: command.deadline_us,
            phase: Phase::Held,
        });
    }
    match done {
        Claim::Nothing => Err(Refused),
        _ if open.is_some() => Ok(()),
        Claim::Claimed { .. } if setup.breaks(Break::SendBeforeCheckpoint) => {
            world.uncommitted = Some(Box::new(command));
            Ok(())
        }
        _ => {
            world.ledger.command = Some(command);
            Ok(())
        }
    }
}

/// Until when enough people stand behind exactly this content, counted apart from the core; `None`: nobody is needed.
fn truly_approved_until(setup: &Setup, command: &Command, content: u8) -> Option<i64> {
    let needed = usize::try_from(setup.approval?.approvers).unwrap_or(usize::MAX);
    let mut until: std::collections::BTreeMap<u8, i64> = std::collections::BTreeMap::new();
    for given in command.approvals.iter().filter(|a| !a.revoked && a.intent == content) {
        let last = until.entry(given.role).or_insert(given.expires_us);
        *last = given.expires_us.max(*last);
    }
    let mut ends: Vec<i64> = until.into_values().collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    Some(ends.get(needed - 1).copied().unwrap_or(i64::MIN))
}

fn send(setup: &Setup, world: &mut World, i: u8) -> Done {
    let now_us = world.now_us;
    let fence = world.true_fence(setup);
    let claimed = |ledger: &Ledger, serial| {
        ledger.command.as_ref().is_some_and(|c| c.claims.iter().any(|claim| claim.serial == serial))
    };
    let flight = world.flights.get_mut(usize::from(i)).ok_or(Refused)?;
    // The sender looks at its lease before the first byte.
    if flight.lease_expires_us <= now_us && !setup.breaks(Break::SendAfterLease) {
        flight.phase = Phase::Over { sent: false, heard: None, ended_us: now_us };
        return Ok(());
    }
    flight.phase = Phase::Sent;
    let flight = *flight;
    let others = world.records.iter().map(|r| r.content).chain(world.network.iter().map(|r| r.content));
    let differs = others.into_iter().any(|content| content != flight.content);
    let seen = &mut world.seen;
    seen.sends += 1;
    seen.first_send_us = seen.first_send_us.or(Some(now_us));
    // What a failover lost, no ledger can know.
    seen.differing_send |= differs && !seen.moved;
    seen.unmarked_send |= !claimed(&world.ledger, flight.serial);
    seen.rolled_back_send |= world.ledger.command.is_none();
    seen.unapproved_send |= flight.approved_until_us.is_some_and(|until| until <= now_us);
    seen.overdue_send |= flight.deadline_us.is_some_and(|deadline| deadline <= now_us);
    seen.fenced_send |= matches!(fence, Fence::Unadopted | Fence::Moved { halted: true });
    world.network.push(Request {
        serial: flight.serial,
        content: flight.content,
        not_after_us: flight.lease_expires_us.max(now_us) + setup.truth.delay_ticks * TICK_US,
    });
    Ok(())
}

/// The relay dies: what it held is gone, what it sent may still arrive.
fn die(setup: &Setup, world: &mut World) {
    for flight in std::mem::take(&mut world.flights) {
        world.sender_ended(setup, flight.serial);
    }
    world.round = None;
    world.uncommitted = None;
    world.epoch += 1;
}

fn move_to(setup: &Setup, world: &mut World) -> Done {
    let copy = world.copy.take().ok_or(Refused)?;
    world.left.moves -= 1;
    die(setup, world);
    world.seen.lost_registration = world.ledger.command.is_some() && copy.command.is_none();
    world.ledger = *copy;
    world.open_registration = None;
    world.here.1 += 1;
    if setup.moves_by == Move::Restore {
        world.here.0 += 1;
    }
    world.seen.moved = true;
    world.grant(setup);
    // The relay that starts here lets every lookup begin anew.
    let now_us = world.now_us;
    if setup.moves_by == Move::Promotion
        && setup.on_failover == OnFailover::Continue
        && let Some(case) = world.ledger.command.as_mut().and_then(|c| c.case.as_mut())
        && case.next_lookup_us.is_some()
        && case.evidence_from_us.is_none_or(|from| from < now_us)
    {
        case.evidence_from_us = Some(now_us);
        case.lookups_done = 0;
        case.absents_in_a_row = 0;
        case.round = None;
    }
    Ok(())
}

impl World {
    /// So many more requests may leave.
    fn grant(&mut self, setup: &Setup) {
        let attempts = u8::try_from(setup.retry.max_attempts).unwrap_or(u8::MAX);
        self.seen.granted = self.seen.granted.saturating_add(attempts);
    }

    /// Nobody waits for this request any more: it arrives soon or never.
    fn sender_ended(&mut self, setup: &Setup, serial: u8) {
        let latest_us = self.now_us + setup.truth.delay_ticks * TICK_US;
        for request in self.network.iter_mut().filter(|r| r.serial == serial) {
            request.not_after_us = request.not_after_us.min(latest_us);
        }
    }
}

/// Notes what must never be seen, by comparing before and after.
fn watch(setup: &Setup, before: &World, world: &mut World, action: Action) {
    use Action as A;
    let (Some(old), Some(new)) = (&before.ledger.command, &world.ledger.command) else { return };
    if action == A::MoveTo {
        return;
    }
    let elsewhere = world.true_fence(setup) != Fence::Open;
    let sent = !world.records.is_empty() || world.outstanding();
    let given_up = matches!(action, A::Reconcile(_));
    let seen = &mut world.seen;
    if elsewhere && sent && !given_up {
        let ended = matches!(new.status, Status::Failed | Status::Cancelled) && new.status != old.status;
        seen.decided_blindly |= ended || new.params != old.params;
    }
    if old.status != new.status {
        seen.left_final |= old.status.is_final();
        let late = new.status == Status::NeedsReconciliation && matches!(action, A::Settle(_) | A::Reconcile(_));
        seen.left_final |= old.status == Status::Failed && !late && action != A::Retry;
    }
    if let A::Settle(i) = action
        && let Some(flight) = before.flights.get(usize::from(i))
        && old.status == Status::Dispatched
        && old.lease().is_some_and(|lease| lease.serial != flight.serial)
    {
        seen.overwrote |= new.status != Status::Dispatched || new.lease() != old.lease();
    }
    match action {
        A::Reconcile(Finding::Found(_)) => {
            seen.told = true;
            seen.abandoned |= old.status.is_final();
        }
        A::Reconcile(Finding::NotFound) => {
            seen.granted += 1;
            seen.abandoned |= old.status.is_final();
        }
        A::Reconcile(Finding::Abandon) => seen.abandoned = true,
        A::Retry => seen.granted += 1,
        _ => {}
    }
}
