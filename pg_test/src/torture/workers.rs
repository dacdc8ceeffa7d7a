//! Pull workers: they claim, do the effect themselves and report, or fail to in every way that the contract allows. A
//! worker sends early in its lease or not at all.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::dice::Dice;
use super::faults::Fault;
use super::profile::Profile;
use super::world::{Chair, Failure, World};

const LEASE: &str = "2 s";
/// Nothing is sent later than this after the claim was asked for.
const SENDS_WITHIN: Duration = Duration::from_millis(700);
/// The lease is over by then.
const AFTER_LEASE: Duration = Duration::from_millis(2_600);

struct Job {
    key: String,
    token: String,
    params: Value,
    asked: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Well,
    VanishesBefore,
    VanishesAfter,
    UnsureBefore,
    UnsureAfter,
    Fails(&'static str),
    Releases,
    Late,
    Twice,
    Extends,
}

const WAYS: &[(Way, u64)] = &[
    (Way::Well, 52),
    (Way::VanishesBefore, 7),
    (Way::VanishesAfter, 7),
    (Way::UnsureBefore, 4),
    (Way::UnsureAfter, 4),
    (Way::Fails("not_sent"), 3),
    (Way::Fails("transient"), 3),
    (Way::Fails("permanent"), 1),
    (Way::Fails("permission"), 1),
    (Way::Releases, 4),
    (Way::Late, 4),
    (Way::Twice, 5),
    (Way::Extends, 5),
];

/// Works until the run is over.
pub fn live(world: &World, number: u64) {
    let mut dice = world.climate.dice("worker", number);
    let mut chair = Chair::new(world, "worker");
    while !world.is_over() {
        let found = {
            let _inside = world.enter();
            let profile = *dice.pick(&[Profile::Desk, Profile::Shelf]);
            let jobs = claim(&mut chair, profile, &format!("w{number}"), dice.between(1, 3));
            for job in &jobs {
                work(world, &mut dice, &mut chair, profile, job);
            }
            !jobs.is_empty()
        };
        sleep(Duration::from_millis(if found { 10 } else { 120 }));
    }
}

fn claim(chair: &mut Chair<'_>, profile: Profile, name: &str, at_most: u64) -> Vec<Job> {
    let asked = Instant::now();
    let sql = format!(
        "SELECT idempotency_key, lease_token::text, params::text \
           FROM command_ledger.claim('{}', {at_most}, '{LEASE}', '{name}')",
        profile.name()
    );
    let rows = chair.call(|ledger| ledger.try_rows(&sql, &[])).unwrap_or_default();
    let job = |row: &postgres::Row| {
        let params: String = row.get(2);
        let params = serde_json::from_str(&params).unwrap_or_default();
        Job { key: row.get(0), token: row.get(1), params, asked }
    };
    rows.iter().map(job).collect()
}

fn work(world: &World, dice: &mut Dice, chair: &mut Chair<'_>, profile: Profile, job: &Job) {
    let way = if world.climate.is_calm() { Way::Well } else { dice.weighted(WAYS) };
    let fault = match way {
        Way::VanishesBefore | Way::VanishesAfter => Some(Fault::WorkerVanishes),
        Way::UnsureBefore | Way::UnsureAfter => Some(Fault::WorkerUnsure),
        Way::Late => Some(Fault::WorkerLate),
        Way::Twice => Some(Fault::WorkerTwice),
        _ => None,
    };
    if let Some(fault) = fault {
        world.climate.strike(fault);
    }
    let mut say = |function: &str, extra: Value| {
        let mut named = json!({"idempotency_key": job.key, "lease_token": job.token});
        if let (Value::Object(named), Value::Object(extra)) = (&mut named, extra) {
            named.extend(extra);
        }
        let said = chair.call(|ledger| ledger.try_call_named(function, named));
        if function == "confirm"
            && said.is_ok()
            && let Some(told) = world.notebook().told.get_mut(&job.key)
        {
            told.worker_confirmed = true;
        }
        match said {
            Ok(receipt) => world.look_at(&receipt),
            Err(Failure::Refused(error)) if error.sqlstate != "CL006" => {
                world.saw(&job.key, "I8", format!("{function}() of a worker met {error}"));
            }
            Err(_) => {}
        }
    };
    match way {
        Way::VanishesBefore => return,
        Way::UnsureBefore => return say("uncertain", json!({})),
        Way::Fails(error) => return say("fail", json!({"error": error})),
        Way::Releases => return say("release", json!({})),
        Way::Extends => say("extend_lease", json!({"lease": "3 s"})),
        _ => {}
    }
    if job.asked.elapsed() > SENDS_WITHIN {
        // Too late to be sure of the lease.
        return say("fail", json!({"error": "not_sent"}));
    }
    let Some(site) = world.sites.get(&profile) else { return };
    let (status, body) = site.work(&job.key, &job.params, "by a worker");
    let record = if status == 201 {
        body.get("id").and_then(Value::as_str).map(str::to_owned)
    } else {
        // Not unique: it is there already.
        site.store().truth(&job.key).0.into_iter().next()
    };
    let confirmed = json!({"destination_record_id": record});
    match way {
        Way::VanishesAfter => {}
        Way::UnsureAfter => say("uncertain", json!({})),
        Way::Late => {
            sleep(AFTER_LEASE);
            say("confirm", confirmed);
        }
        Way::Twice => {
            say("confirm", confirmed.clone());
            say("confirm", confirmed);
        }
        _ => say("confirm", confirmed),
    }
}
