//! The ledger moves: by dump and restore while the relay still sends, and by the promotion of a standby. What the old
//! place did last may be unknown in the new one, which is silent until a person adopts it.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::chaos::BUFFERS_EMPTY;
use super::evidence::Span;
use super::profile::Profile;
use super::world::{Place, World};
use crate::cluster::{DumpFormat, Replication};
use crate::ledger::Ledger;

/// A copy that was silent for so long is silent.
const SILENCE: Duration = Duration::from_millis(700);

fn span(from_us: i64, to_us: i64, why: &str) -> Span {
    Span { from_us, to_us, why: why.to_owned() }
}

fn session(place: &Place) -> Ledger {
    Ledger::over(place.cluster.connect(&place.database))
}

/// The new place is watched for a while, adopted, and is the ledger from then on.
fn settle_in(world: &World, place: Place, from_us: i64, why: &str) {
    let mut ledger = session(&place);
    let state = ledger.text("SELECT command_ledger.fence_state()");
    if !matches!(state.as_str(), "unadopted" | "halted") {
        world.saw("", "I11", format!("{why}: the fence is {state}"));
    }
    sleep(SILENCE);
    world.notebook().silences.push(span(from_us, world.climate.now_us(), why));
    ledger.exec("SELECT command_ledger.adopt_relay()");
    world.move_to(place);
}

/// Dumped while the relay sends, restored beside it, and the old one dropped: what it sent in between is not in the new
/// one. Callers and people wait.
pub fn by_dump(world: &World) -> bool {
    let _alone = world.hold_all();
    let old = world.place();
    let new = Place { cluster: Arc::clone(&old.cluster), database: format!("app{}", world.moves() + 1) };
    let begun_us = world.climate.now_us();
    let format = [DumpFormat::Plain, DumpFormat::Custom][usize::try_from(world.moves() % 2).unwrap_or(0)];
    let dump = old.cluster.dump(&old.database, format);
    new.cluster.create_database(&new.database);
    new.cluster.restore(&dump, &new.database);
    old.cluster.connect("postgres").exec(&format!("DROP DATABASE {} WITH (FORCE)", old.database));
    sleep(BUFFERS_EMPTY);
    let gone_us = world.climate.now_us();
    world.notebook().lost_checkpoints.push(span(begun_us, gone_us, "sent after the dump"));
    world.new_era();
    settle_in(world, new, gone_us, "restored, not adopted");
    true
}

/// The primary dies and its standby is promoted. An asynchronous one has missed the last seconds: what the relay did in
/// them, and some registrations, which their callers repeat.
pub fn by_promotion(world: &World, synchronous: bool) -> bool {
    let old = world.place();
    let replication = if synchronous { Replication::Sync } else { Replication::Async };
    let standby = old.cluster.standby(replication);
    let (mut missed, mut lost) = (None, Vec::new());
    let _alone = if synchronous {
        sleep(Duration::from_secs(2));
        // Callers are in the middle of what they do.
        None
    } else {
        let alone = world.hold_all();
        // What is committed before this moment is known there.
        missed = Some(world.climate.now_us());
        old.cluster.wait_for_replay(&standby);
        standby.stop(crate::cluster::Mode::Fast);
        lost = registered_in_vain(world, &old);
        sleep(Duration::from_millis(500));
        Some(alone)
    };
    old.cluster.kill9_postmaster();
    world.new_era();
    sleep(BUFFERS_EMPTY);
    let dead_us = world.climate.now_us();
    if let Some(missed_us) = missed {
        world.notebook().lost_checkpoints.push(span(missed_us, dead_us, "sent after the standby stopped"));
        standby.start_again();
    }
    standby.promote();
    let place = Place { cluster: Arc::new(standby), database: old.database.clone() };
    settle_in(world, place.clone(), dead_us, "promoted, not adopted");
    let mut ledger = session(&place);
    for (profile, key) in lost {
        let receipt = ledger.register(profile.name(), &key, params_of(&key));
        world.acknowledge(&receipt);
    }
    drop(ledger);
    wait_for_last_user(old);
    true
}

fn params_of(key: &str) -> serde_json::Value {
    json!({"amount": key.len(), "lost": key})
}

/// Registered at a primary whose standby no longer listens, where a repeat makes no second record.
fn registered_in_vain(world: &World, place: &Place) -> Vec<(Profile, String)> {
    let mut ledger = session(place);
    let safe = [Profile::Pins, Profile::Redrives, Profile::Latest, Profile::IgnoresBody, Profile::OnlySuccess];
    let keys = safe.into_iter().chain([Profile::Reference]).enumerate();
    keys.map(|(n, profile)| {
        let key = format!("lost-{}-{n}", world.moves());
        world.intend(&key, profile.name(), &params_of(&key));
        ledger.register(profile.name(), &key, params_of(&key));
        (profile, key)
    })
    .collect()
}

/// The old server's files go when nobody looks at it any more.
fn wait_for_last_user(old: Place) {
    let begun = Instant::now();
    while Arc::strong_count(&old.cluster) > 1 && begun.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(20));
    }
}
