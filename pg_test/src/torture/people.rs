//! People: an approver who decides about intents, and an operator who answers open questions by what the destination's
//! log says.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use super::dice::Dice;
use super::world::{Chair, Failure, World};

/// A question is answered when it stood this long: whatever was under way has arrived by then.
const THINKING: Duration = Duration::from_millis(3_500);
/// A command that was tried this often to no effect is given up.
const PATIENCE: i32 = 8;
const ROUND: Duration = Duration::from_millis(150);

/// Approves, rejects, names wrong hashes and takes approvals back; when things calm down, approves everything.
pub fn approve(world: &World) {
    let mut dice = world.climate.dice("approver", 0);
    let mut chair = Chair::new(world, "manager");
    let mut given: Vec<String> = Vec::new();
    while !world.is_over() {
        {
            let _inside = world.enter();
            approval_round(world, &mut dice, &mut chair, &mut given);
        }
        sleep(ROUND);
    }
}

fn approval_round(world: &World, dice: &mut Dice, chair: &mut Chair<'_>, given: &mut Vec<String>) {
    let calm = world.climate.is_calm();
    let waiting = "SELECT idempotency_key, intent_hash::text FROM command_ledger.approval_queue LIMIT 20";
    let Ok(rows) = chair.call(|ledger| ledger.try_rows(waiting, &[])) else { return };
    for row in rows {
        let (key, hash): (String, String) = (row.get(0), row.get(1));
        // Some wait a little longer.
        if !calm && dice.percent(25) {
            continue;
        }
        let what = if calm { 99 } else { dice.below(100) };
        let (function, named) = match what {
            0..=4 => ("reject", json!({"idempotency_key": key, "intent_hash": hash, "reason": "no"})),
            5..=8 => {
                ("approve", json!({"idempotency_key": key, "intent_hash": format!("{}00", &hash[..hash.len() - 2])}))
            }
            9..=28 => {
                let life = format!("{} ms", dice.between(1_000, 3_000));
                ("approve", json!({"idempotency_key": key, "intent_hash": hash, "expires_in": life}))
            }
            _ => ("approve", json!({"idempotency_key": key, "intent_hash": hash})),
        };
        match chair.call(|ledger| ledger.try_call_named(function, named)) {
            Ok(_) if (5..=8).contains(&what) && !hash.ends_with("00") => {
                world.saw(&key, "I6", "approved for another hash than its own".to_owned());
            }
            Ok(receipt) => {
                world.look_at(&receipt);
                given.push(key);
            }
            Err(Failure::Lost) => return,
            Err(Failure::Refused(_)) => {}
        }
    }
    if !calm && dice.percent(10) && !given.is_empty() {
        let key = given.swap_remove(usize::try_from(dice.below(given.len() as u64)).unwrap_or(0));
        let _ = chair.call(|ledger| ledger.try_call_named("revoke_approval", json!({"idempotency_key": key})));
    }
    given.truncate(50);
}

/// Answers open questions with the truth, gives up what cannot be done, and retries some of what failed.
pub fn operate(world: &World) {
    let mut dice = world.climate.dice("operator", 0);
    let (mut clerk, mut reader) = (Chair::new(world, "clerk"), Chair::new(world, "postgres"));
    let mut since: HashMap<(String, String, i32), Instant> = HashMap::new();
    while !world.is_over() {
        {
            let _inside = world.enter();
            answer_questions(world, &mut dice, &mut clerk, &mut since);
            if !world.climate.is_calm() && dice.percent(20) {
                retry_failed(world, &mut dice, &mut clerk, &mut reader);
            }
        }
        sleep(ROUND);
    }
}

fn answer_questions(
    world: &World,
    dice: &mut Dice,
    clerk: &mut Chair<'_>,
    since: &mut HashMap<(String, String, i32), Instant>,
) {
    let queue = "SELECT idempotency_key, reason, attempt, destination, next_lookup_at IS NOT NULL, status::text \
                   FROM command_ledger.reconciliation_queue LIMIT 300";
    let Ok(rows) = clerk.call(|ledger| ledger.try_rows(queue, &[])) else { return };
    let mut open = HashMap::new();
    for row in rows {
        let (key, reason, attempt): (String, String, i32) = (row.get(0), row.get(1), row.get(2));
        let (destination, asks_itself, status): (String, bool, String) = (row.get(3), row.get(4), row.get(5));
        let question = (key.clone(), reason, attempt);
        let asked = since.remove(&question).unwrap_or_else(Instant::now);
        open.insert(question, asked);
        // While the ledger asks by itself, a person steps in rarely.
        if asked.elapsed() < THINKING || asks_itself && !dice.percent(2) {
            continue;
        }
        let (records, pending) = world.truth(&destination, &key);
        if pending {
            continue;
        }
        let mut named = json!({"idempotency_key": key, "expected_attempt": attempt});
        let gives_up = attempt >= PATIENCE || !world.climate.is_calm() && dice.percent(5);
        match records.first() {
            Some(record) => {
                named["finding"] = json!("found");
                named["destination_record_id"] = json!(record);
            }
            None if gives_up && status == "needs_reconciliation" => {
                named["finding"] = json!("abandon");
                world.notebook().abandoned.insert(key.clone());
            }
            None => named["finding"] = json!("not_found"),
        }
        match clerk.call(|ledger| ledger.try_call_named("reconcile", named)) {
            Ok(receipt) => world.look_at(&receipt),
            Err(Failure::Lost) => return,
            // It went on meanwhile.
            Err(Failure::Refused(_)) => {}
        }
    }
    *since = open;
}

fn retry_failed(world: &World, dice: &mut Dice, clerk: &mut Chair<'_>, reader: &mut Chair<'_>) {
    let failed = "SELECT idempotency_key, attempt FROM command_ledger.command \
                   WHERE status = 'failed' AND NOT maybe_sent ORDER BY updated_at DESC LIMIT 20";
    let Ok(rows) = reader.call(|ledger| ledger.try_rows(failed, &[])) else { return };
    for row in rows {
        let (key, attempt): (String, i32) = (row.get(0), row.get(1));
        if attempt < 5 && dice.percent(10) && !world.notebook().abandoned.contains(&key) {
            let _ = clerk.call(|ledger| ledger.try_call_named("retry", json!({"idempotency_key": key})));
        }
    }
}
