//! What the actors of a run share: where the ledger is, the destinations, and the notebook of what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::climate::Climate;
use super::evidence::{Span, Told};
use super::profile::{Kind, Profile};
use super::site::Site;
use crate::cluster::Cluster;
use crate::ledger::{Ledger, Receipt};
use crate::session::SqlError;

/// A server that is not back after this time will not come.
const CONNECT_LIMIT: Duration = Duration::from_secs(180);

/// Where the ledger is now.
#[derive(Clone)]
pub struct Place {
    /// The server.
    pub cluster: Arc<Cluster>,
    /// The database.
    pub database: String,
}

/// What is written down while the run goes on.
#[derive(Debug, Default)]
pub struct Notebook {
    /// By key.
    pub told: BTreeMap<String, Told>,
    /// What must not be.
    pub seen: Vec<(String, &'static str, String)>,
    /// Keys that a person gave up.
    pub abandoned: BTreeSet<String>,
    /// When nothing may be sent.
    pub silences: Vec<Span>,
    /// What happened around the ledger, and when it had happened.
    pub chronicle: Vec<(i64, &'static str)>,
    /// When checkpoints were lost with their place.
    pub lost_checkpoints: Vec<Span>,
}

/// Everything that is shared.
pub struct World {
    /// Seed, counts, clock.
    pub climate: Arc<Climate>,
    /// The destinations.
    pub sites: BTreeMap<Profile, Arc<Site>>,
    /// The command types.
    pub kinds: Vec<Kind>,
    notebook: Mutex<Notebook>,
    gate: RwLock<()>,
    place: RwLock<Place>,
    moves: AtomicU64,
    over: AtomicBool,
    rehearsed: AtomicBool,
}

impl World {
    /// With the ledger at this place.
    pub fn new(climate: Arc<Climate>, sites: BTreeMap<Profile, Arc<Site>>, place: Place) -> World {
        World {
            climate,
            sites,
            kinds: Kind::all(),
            notebook: Mutex::default(),
            gate: RwLock::new(()),
            place: RwLock::new(place),
            moves: AtomicU64::new(0),
            over: AtomicBool::new(false),
            rehearsed: AtomicBool::new(false),
        }
    }

    /// Where the ledger is.
    pub fn place(&self) -> Place {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It is somewhere else now.
    pub fn move_to(&self, place: Place) {
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = place;
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// How often it moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Held while an actor does something; a move waits for all of them.
    pub fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody does anything until this is dropped.
    pub fn hold_all(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that had to happen in this run has happened.
    pub fn rehearsed(&self) {
        self.rehearsed.store(true, Ordering::SeqCst);
    }

    /// Whether it has.
    pub fn is_rehearsed(&self) -> bool {
        self.rehearsed.load(Ordering::SeqCst)
    }

    /// The actors go home.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Whether they shall go home.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The notebook.
    pub fn notebook(&self) -> MutexGuard<'_, Notebook> {
        self.notebook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever waited for answers is dead.
    pub fn new_era(&self) {
        self.sites.values().for_each(|site| site.new_era());
    }

    /// The records of a key at its destination, and whether one may still come.
    pub fn truth(&self, destination: &str, key: &str) -> (Vec<String>, bool) {
        let site = self.sites.values().find(|site| site.profile.name() == destination);
        site.map_or((Vec::new(), false), |site| site.store().truth(key))
    }

    // --- the notebook

    /// Somebody is about to register this.
    pub fn intend(&self, key: &str, command_type: &str, params: &Value) {
        let mut notebook = self.notebook();
        let told = notebook.told.entry(key.to_owned()).or_default();
        command_type.clone_into(&mut told.command_type);
        if !told.params.contains(params) {
            told.params.push(params.clone());
        }
    }

    /// A registration (or a replay) was acknowledged.
    pub fn acknowledge(&self, receipt: &Receipt) {
        if let Some(told) = self.notebook().told.get_mut(&receipt.idempotency_key) {
            told.acknowledged = true;
        }
        self.look_at(receipt);
    }

    /// What a receipt says of a success is held against the destination at the end.
    pub fn look_at(&self, receipt: &Receipt) {
        if receipt.status == "confirmed"
            && let Some(told) = self.notebook().told.get_mut(&receipt.idempotency_key)
        {
            told.confirmed_as.clone_from(&receipt.destination_record_id);
        }
    }

    /// The record that somebody was told of so far.
    pub fn told_record(&self, key: &str) -> Option<String> {
        self.notebook().told.get(key)?.confirmed_as.clone()
    }

    /// An actor saw what must not be.
    pub fn saw(&self, key: &str, invariant: &'static str, what: String) {
        self.notebook().seen.push((key.to_owned(), invariant, what));
    }
}

/// Why a call came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// The connection is gone: what came of the call is not known.
    Lost,
    /// The server said no.
    Refused(SqlError),
}

/// A role's session, made again when it is lost or when the ledger moves.
pub struct Chair<'w> {
    world: &'w World,
    role: &'static str,
    held: Option<(u64, Ledger)>,
}

impl<'w> Chair<'w> {
    /// Not connected yet.
    pub fn new(world: &'w World, role: &'static str) -> Chair<'w> {
        Chair { world, role, held: None }
    }

    /// Calls the ledger.
    pub fn call<T>(&mut self, work: impl FnOnce(&mut Ledger) -> Result<T, SqlError>) -> Result<T, Failure> {
        let moves = self.world.moves();
        if self.held.as_ref().is_none_or(|(made, ledger)| *made != moves || ledger.is_closed()) {
            self.held = None;
            self.held = Some((moves, connect(self.world, self.role).ok_or(Failure::Lost)?));
        }
        let Some((_, ledger)) = &mut self.held else { return Err(Failure::Lost) };
        work(ledger).map_err(|error| {
            // Ended by an administrator, by a crash elsewhere, or starting up.
            if error.is_connection_lost() || error.sqlstate.starts_with("57P") {
                self.held = None;
                Failure::Lost
            } else {
                Failure::Refused(error)
            }
        })
    }

    /// Leaves as it is.
    pub fn leave(&mut self) {
        self.held = None;
    }
}

/// A session at the ledger's place, as soon as there can be one; none when the run is over.
pub fn connect(world: &World, role: &str) -> Option<Ledger> {
    let begun = Instant::now();
    while !world.is_over() {
        let place = world.place();
        match place.cluster.try_connect(&place.database, role) {
            Ok(session) => return Some(Ledger::over(session)),
            Err(error) => assert!(begun.elapsed() < CONNECT_LIMIT, "no connection as {role}: {error}"),
        }
        sleep(Duration::from_millis(40));
    }
    None
}
