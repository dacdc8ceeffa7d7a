//! Whoever makes things go wrong around the ledger: kills, outages, clocks, slow steps. One thing at a time.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::dice::Dice;
use super::faults::Fault;
use super::moves;
use super::profile::{LATEST_EFFECT_MS, Profile};
use super::site::Site;
use super::world::{World, connect};
use crate::cluster::Mode;
use crate::ledger::Ledger;
use crate::process::Process;
use crate::session::SqlError;

/// What goes wrong, by weight.
const WEIGHTS: &[(Fault, u64)] = &[
    (Fault::BackendTerminated, 16),
    (Fault::Outage, 16),
    (Fault::Disconnected, 14),
    (Fault::Paused, 6),
    (Fault::RelayTerminated, 8),
    (Fault::SlowStep, 10),
    (Fault::StepPanics, 4),
    (Fault::ClockJitter, 8),
    (Fault::BackendKilled, 5),
    (Fault::RelayKilled, 6),
    (Fault::PostmasterKilled, 5),
    (Fault::EverythingKilled, 3),
    (Fault::ClockJump, 2),
    (Fault::DumpRestored, 2),
    (Fault::PromotedSync, 1),
    (Fault::PromotedAsync, 1),
];
/// Where the relay can be slowed or broken.
const STEPS: &[&str] = &[
    "relay_before_claim_commit",
    "relay_after_claim",
    "relay_before_settle",
    "relay_before_settle_commit",
    "relay_after_settle",
    "relay_before_lookup",
    "relay_before_lookup_settle",
];
/// What a dead process left in the kernel has arrived at the destinations by then.
pub(super) const BUFFERS_EMPTY: Duration = Duration::from_millis(400);

/// When what happens.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// These first, in this order; then by weight.
    pub first: Vec<Fault>,
    /// Only these, when there are any.
    pub only: Vec<Fault>,
    /// The pause between two, from and to, in milliseconds.
    pub pause_ms: (u64, u64),
}

/// Lives until the run calms down, and leaves everything as it should be.
pub fn live(world: &World, plan: &Plan) {
    let mut chaos = Chaos { world, dice: world.climate.dice("chaos", 0), jitter_s: 0, alive: Vec::new() };
    let mut first = plan.first.iter().copied().peekable();
    let weights: Vec<(Fault, u64)> =
        WEIGHTS.iter().copied().filter(|(fault, _)| plan.only.is_empty() || plan.only.contains(fault)).collect();
    while !world.climate.is_calm() && !world.is_over() {
        if first.peek().is_none() {
            world.rehearsed();
        }
        sleep(Duration::from_millis(chaos.dice.between(plan.pause_ms.0, plan.pause_ms.1)));
        let fault = first.next().unwrap_or_else(|| chaos.dice.weighted(&weights));
        if chaos.strike(fault) {
            world.climate.strike(fault);
            world.notebook().chronicle.push((world.climate.now_us(), fault.word()));
        }
    }
    chaos.set("command_ledger.failpoint", None);
    chaos.set_clock(0);
}

struct Chaos<'w> {
    world: &'w World,
    dice: Dice,
    jitter_s: i64,
    alive: Vec<u32>,
}

impl Chaos<'_> {
    /// Does it; false when there was nothing to do it to.
    fn strike(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::BackendTerminated => self.terminate_backend(),
            Fault::BackendKilled => self.kill(BACKENDS),
            Fault::RelayKilled => self.kill(RELAYS),
            Fault::RelayTerminated => self.signal_relay(),
            Fault::Outage => self.outage(),
            Fault::Disconnected => {
                self.site().disconnect();
                true
            }
            Fault::Paused => self.pause(),
            Fault::SlowStep => {
                let (step, ms) = (*self.dice.pick(STEPS), self.dice.between(50, 400));
                self.at_a_step(&format!("{step}=sleep:{ms}"), 1_500)
            }
            Fault::StepPanics => {
                let step = *self.dice.pick(STEPS);
                self.at_a_step(&format!("{step}=panic"), 300)
            }
            Fault::ClockJitter => {
                self.set_clock(1 - self.jitter_s);
                true
            }
            Fault::PostmasterKilled => {
                self.restart_after(|cluster| cluster.kill9_postmaster());
                true
            }
            Fault::EverythingKilled => {
                self.restart_after(|cluster| cluster.kill9_everything());
                true
            }
            Fault::ClockJump => self.clock_jump(),
            Fault::DumpRestored => moves::by_dump(self.world),
            Fault::PromotedSync => moves::by_promotion(self.world, true),
            Fault::PromotedAsync => moves::by_promotion(self.world, false),
            _ => false,
        }
    }

    fn site(&mut self) -> Arc<Site> {
        let served: Vec<Arc<Site>> =
            self.world.sites.values().filter(|site| !site.profile.is_pulled()).cloned().collect();
        Arc::clone(self.dice.pick(&served))
    }

    fn outage(&mut self) -> bool {
        let site = self.site();
        site.refuse();
        if self.dice.percent(50) {
            site.disconnect();
        }
        sleep(Duration::from_millis(self.dice.between(100, 1_200)));
        site.listen();
        true
    }

    fn pause(&mut self) -> bool {
        let name = self.dice.pick(&Profile::ALL).name();
        self.admin(&format!("SELECT command_ledger.pause('{name}')"));
        sleep(Duration::from_millis(self.dice.between(100, 800)));
        self.admin(&format!("SELECT command_ledger.resume('{name}')"));
        true
    }

    fn terminate_backend(&mut self) -> bool {
        let Some(pid) = self.one_of(BACKENDS) else { return false };
        self.admin(&format!("SELECT pg_catalog.pg_terminate_backend({pid})"));
        true
    }

    fn signal_relay(&mut self) -> bool {
        let Some(process) = self.one_of(RELAYS).and_then(Process::find) else { return false };
        process.signal(nix::sys::signal::Signal::SIGTERM);
        true
    }

    /// kill -9 of one process: the server ends all others and recovers.
    fn kill(&mut self, which: &str) -> bool {
        let Some(process) = self.one_of(which).and_then(Process::find) else { return false };
        let Some(mut witness) = connect(self.world, "postgres") else { return false };
        process.kill9();
        process.wait_gone(30);
        // The postmaster notices a moment later; until then the server looks as if nothing had been.
        let begun = Instant::now();
        while witness.try_exec("SELECT 1").is_ok() && begun.elapsed() < Duration::from_secs(10) {
            sleep(Duration::from_millis(10));
        }
        self.world.new_era();
        // Whatever comes next finds a server.
        connect(self.world, "postgres").is_some()
    }

    fn one_of(&mut self, which: &str) -> Option<u32> {
        let rows = self.ask(|ledger| ledger.try_rows(which, &[]))?;
        self.alive = rows.iter().map(|row| row.get::<_, i32>(0).cast_unsigned()).collect();
        self.alive.sort_unstable();
        if self.alive.is_empty() { None } else { Some(*self.dice.pick(&self.alive)) }
    }

    fn restart_after(&mut self, kill: impl FnOnce(&crate::cluster::Cluster)) {
        let place = self.world.place();
        kill(&place.cluster);
        self.world.new_era();
        if self.dice.percent(30) {
            sleep(Duration::from_millis(self.dice.between(100, 1_500)));
        }
        place.cluster.start_again();
    }

    /// The relay meets this at one of its steps for a while.
    fn at_a_step(&mut self, what: &str, ms: u64) -> bool {
        self.set("command_ledger.failpoint", Some(what));
        sleep(Duration::from_millis(ms));
        self.set("command_ledger.failpoint", None);
        true
    }

    /// The server is down, and hours or days pass; nothing is under way while they do.
    fn clock_jump(&mut self) -> bool {
        let world = self.world;
        let _alone = world.hold_all();
        let hours = *self.dice.pick(&[1, 1, 2, 25, 50]);
        let place = world.place();
        let total_s = world.climate.ahead_s() + hours * 3_600 + self.jitter_s;
        self.admin(&format!("ALTER SYSTEM SET command_ledger.clock_offset = '{total_s}'"));
        place.cluster.stop(Mode::Immediate);
        world.new_era();
        sleep(BUFFERS_EMPTY + Duration::from_millis(LATEST_EFFECT_MS));
        world.climate.pass(Duration::from_secs(u64::try_from(hours).unwrap_or(1) * 3_600));
        place.cluster.start_again();
        true
    }

    /// The ledger's clock stands so many seconds before the destinations'.
    fn set_clock(&mut self, jitter_s: i64) {
        self.jitter_s = jitter_s;
        let offset_s = self.world.climate.ahead_s() + jitter_s;
        self.set("command_ledger.clock_offset", Some(&offset_s.to_string()));
    }

    fn set(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.admin(&format!("ALTER SYSTEM SET {name} = '{value}'")),
            None => self.admin(&format!("ALTER SYSTEM RESET {name}")),
        }
        self.admin("SELECT pg_catalog.pg_reload_conf()");
    }

    fn admin(&mut self, sql: &str) {
        self.ask(|ledger| ledger.try_exec(sql));
    }

    /// Asks until there is an answer: sessions end while the server recovers.
    fn ask<T>(&mut self, work: impl Fn(&mut Ledger) -> Result<T, SqlError>) -> Option<T> {
        let begun = Instant::now();
        loop {
            let mut ledger = connect(self.world, "postgres")?;
            match work(&mut ledger) {
                Ok(answer) => return Some(answer),
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "an administrator met {error}"),
            }
            sleep(Duration::from_millis(40));
        }
    }
}

const BACKENDS: &str = "SELECT pid FROM pg_catalog.pg_stat_activity \
                         WHERE backend_type = 'client backend' AND usename <> 'postgres'";
const RELAYS: &str = "SELECT pid FROM pg_catalog.pg_stat_activity \
                       WHERE backend_type LIKE 'command_ledger relay%' AND datname = pg_catalog.current_database()";
