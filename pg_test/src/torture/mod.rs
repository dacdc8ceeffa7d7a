//! Torture: a real cluster with many sessions, scripted destinations of every kind, and faults from a seed; then a
//! drain, and a checker that holds what the ledger says against what the destinations did.
//!
//! | file | what |
//! |---|---|
//! | `dice`, `climate`, `faults` | choices from a seed; the clock; what goes wrong and how often |
//! | `profile`, `store`, `site`, `trouble` | the destinations, and what goes wrong with a request |
//! | `world` | what the actors share, and what they were told |
//! | `callers`, `people`, `workers` | the actors |
//! | `chaos`, `moves` | kills, outages, clocks, dumps, promotions |
//! | `evidence`, `collect`, `check` | what is looked at, and the checker |
//! | `report` | what a person reads |

mod callers;
mod chaos;
pub mod check;
mod climate;
mod collect;
pub mod dice;
pub mod evidence;
pub mod faults;
mod moves;
mod people;
mod profile;
mod report;
mod site;
mod store;
mod trouble;
mod workers;
mod world;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::ledger::Ledger;
pub use chaos::Plan;
use climate::Climate;
pub use faults::Fault;
use profile::{Kind, Profile};
pub use report::Summary;
use site::Site;
use world::{Place, World, connect};

/// How long everything may take to come to rest at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(240);
/// A misled run that shows nothing in this time shows nothing.
const MISLED_LIMIT: Duration = Duration::from_secs(120);
const PROGRESS: Duration = Duration::from_secs(10);

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Every choice follows from it.
    pub seed: u64,
    /// How long faults happen, at least: all that the plan names first do.
    pub lasts: Duration,
    /// Callers at once.
    pub callers: u64,
    /// The longest pause between two acts of a caller.
    pub pause_ms: u64,
    /// What happens around the ledger.
    pub plan: Plan,
    /// Whether the server waits for the disk.
    pub fsync: bool,
    /// The ledger is told that destinations deduplicate which do not: a run that must fail.
    pub misled: bool,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its figures.
    pub summary: Summary,
    /// What does not hold.
    pub findings: Vec<check::Finding>,
    /// The findings with the journals and the destinations' logs of the first.
    pub told: String,
}

impl Run {
    /// Makes everything, lets it go wrong, lets it come to rest and checks it; panics with a report where something
    /// does not hold.
    pub fn make(&self) -> Summary {
        let (outcome, _world) = self.outcome();
        let count = outcome.findings.len();
        assert!(count == 0, "torture: seed {}: {count} findings\n{}", self.seed, outcome.told);
        outcome.summary
    }

    /// The same, and the findings as an answer. The ledger lives as long as the world.
    pub fn outcome(&self) -> (Outcome, impl Sized) {
        let climate = Arc::new(Climate::new(self.seed));
        let sites: BTreeMap<Profile, Arc<Site>> =
            Profile::ALL.into_iter().map(|profile| (profile, Site::start(profile, &climate))).collect();
        let world = World::new(climate, sites, self.place());
        self.define(&world);
        println!(
            "torture: seed {}, {} s, {}",
            self.seed,
            self.lasts.as_secs(),
            world.place().cluster.directory().display()
        );
        let begun = Instant::now();
        scope(|scope| {
            let _end = EndOf(&world);
            let world = &world;
            let mut actors = Vec::new();
            for number in 0..self.callers {
                actors.push(scope.spawn(move || guarded(world, || callers::live(world, number, self.pause_ms))));
            }
            for number in 0..2 {
                actors.push(scope.spawn(move || guarded(world, || workers::live(world, number))));
            }
            actors.push(scope.spawn(move || guarded(world, || people::approve(world))));
            actors.push(scope.spawn(move || guarded(world, || people::operate(world))));
            let chaos = scope.spawn(move || guarded(world, || chaos::live(world, &self.plan)));
            let mut said = Instant::now();
            while self.goes_on(world, begun) && !world.is_over() {
                sleep(Duration::from_millis(100));
                if said.elapsed() >= PROGRESS {
                    said = Instant::now();
                    report::progress(world, begun.elapsed());
                }
            }
            world.climate.calm_down();
            match chaos.join() {
                Ok(()) if !world.is_over() => drain(world, begun),
                // An actor's panic is the run's: the scope passes it on.
                Ok(()) => {}
                Err(panic) => resume_unwind(panic),
            }
        });
        let mut session = connect_finally(&world).into_session();
        session.exec("SET statement_timeout = 0");
        session.exec("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let evidence = collect::evidence(&world, &mut session);
        session.exec("COMMIT");
        let findings = check::check(&evidence);
        let summary = Summary::of(self.seed, begun.elapsed(), &evidence, &world.climate.counts);
        let told = report::findings(&world, &mut session, &findings);
        world.sites.values().for_each(|site| site.close());
        println!("{summary}");
        (Outcome { summary, findings, told }, world)
    }

    /// Until its time is over and the plan's first faults have happened; one that is misled, until that shows.
    fn goes_on(&self, world: &World, begun: Instant) -> bool {
        let shows = || world.sites.values().any(|site| site.store().doubled() > 0);
        begun.elapsed() < self.lasts
            || !world.is_rehearsed()
            || self.misled && !shows() && begun.elapsed() < MISLED_LIMIT
    }

    fn place(&self) -> Place {
        let builder = Cluster::builder().preload(true).setting("command_ledger.max_sleep", "1s");
        let builder = builder.setting("max_connections", "60").setting("max_worker_processes", "16");
        let cluster = if self.fsync { builder.start() } else { builder.fsync_off().start() };
        cluster.ledger("app");
        Place { cluster: Arc::new(cluster), database: "app".to_owned() }
    }

    fn define(&self, world: &World) {
        let place = world.place();
        let mut ledger = Ledger::over(place.cluster.connect(&place.database));
        for (profile, site) in &world.sites {
            let mut document = profile.destination(&site.url());
            if self.misled && !profile.is_pulled() {
                document["idempotency"] = serde_json::json!({"mode": "key", "window": "24h"});
            }
            ledger.define_destination(profile.name(), document);
        }
        for kind in &world.kinds {
            ledger.define_type(&kind.name(), Kind::policy(*kind));
        }
        for (role, capabilities) in [
            ("agent", &["propose"][..]),
            ("manager", &["approve"][..]),
            ("worker", &["execute"][..]),
            ("clerk", &["operate", "audit"][..]),
        ] {
            ledger.exec(&format!("CREATE ROLE {role} LOGIN"));
            for capability in capabilities {
                ledger.exec(&format!("SELECT command_ledger.grant_access('{role}', '{capability}')"));
            }
        }
    }
}

/// Ends the actors, whatever happens to the one who waits for them.
struct EndOf<'w>(&'w World);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An actor that panics ends the run.
fn guarded(world: &World, life: impl FnOnce()) {
    struct Guard<'w>(&'w World);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.end();
            }
        }
    }
    let _guard = Guard(world);
    life();
}

/// Waits until nothing is open any more.
fn drain(world: &World, begun: Instant) {
    let open = "SELECT (SELECT count(*) FROM command_ledger.outbox) + (SELECT count(*) FROM command_ledger.approval_request) \
                     + (SELECT count(*) FROM command_ledger.reconciliation_case WHERE closed_at IS NULL)";
    let (calm, mut said) = (Instant::now(), Instant::now());
    let mut ledger = connect_finally(world);
    loop {
        let left = ledger.one::<i64>(open, &[]);
        if left == 0 {
            return;
        }
        assert!(
            calm.elapsed() < DRAIN_LIMIT && !world.is_over(),
            "torture: seed {}: {left} still open after {} s\n{}",
            world.climate.seed,
            calm.elapsed().as_secs(),
            ledger.ledger_report()
        );
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            report::progress(world, begun.elapsed());
        }
        sleep(Duration::from_millis(100));
    }
}

fn connect_finally(world: &World) -> Ledger {
    connect(world, "postgres").unwrap_or_else(|| {
        let place = world.place();
        Ledger::over(place.cluster.connect(&place.database))
    })
}
