//! Callers: agents that register, repeat, change their mind, and keep a log of what they were told.

use std::time::Duration;

use serde_json::{Value, json};

use super::dice::Dice;
use super::faults::Fault;
use super::profile::{Form, Kind};
use super::world::{Chair, Failure, World};

/// Keys that a caller comes back to.
const REMEMBERED: usize = 300;

#[derive(Clone)]
struct Own {
    key: String,
    kind: Kind,
    params: Value,
    acknowledged: bool,
}

struct Caller<'w> {
    world: &'w World,
    dice: Dice,
    chair: Chair<'w>,
    name: String,
    next: u64,
    own: Vec<Own>,
}

#[derive(Clone, Copy)]
enum Act {
    New,
    NewInTransaction,
    Shared,
    Repeat,
    Changed,
    RolledBack,
    Leaves,
    Revise,
    Cancel,
    Look,
    Wait,
    Trespass,
}

const ACTS: &[(Act, u64)] = &[
    (Act::New, 36),
    (Act::NewInTransaction, 8),
    (Act::Shared, 6),
    (Act::Repeat, 14),
    (Act::Changed, 6),
    (Act::RolledBack, 3),
    (Act::Leaves, 2),
    (Act::Revise, 4),
    (Act::Cancel, 3),
    (Act::Look, 12),
    (Act::Wait, 2),
    (Act::Trespass, 4),
];

/// Lives until the run calms down; `pause_ms` is the longest pause between two acts.
pub fn live(world: &World, number: u64, pause_ms: u64) {
    let mut caller = Caller {
        world,
        dice: world.climate.dice("caller", number),
        chair: Chair::new(world, "agent"),
        name: format!("c{number}"),
        next: 0,
        own: Vec::new(),
    };
    while !world.climate.is_calm() && !world.is_over() {
        {
            let _inside = world.enter();
            caller.act();
        }
        let pause = caller.dice.between(pause_ms / 4, pause_ms);
        std::thread::sleep(Duration::from_millis(pause));
    }
}

impl Caller<'_> {
    fn act(&mut self) {
        match self.dice.weighted(ACTS) {
            Act::New => {
                let own = self.fresh("");
                self.register(own, false);
            }
            Act::NewInTransaction => {
                let own = self.fresh("t");
                self.register(own, true);
            }
            Act::Shared => self.shared(),
            Act::Repeat => {
                if let Some(own) = self.one_of_mine() {
                    self.register(own, false);
                }
            }
            Act::Changed => self.changed(),
            Act::RolledBack => self.rolled_back(false),
            Act::Leaves => self.rolled_back(true),
            Act::Revise => self.revise(),
            Act::Cancel => self.cancel(),
            Act::Look => self.look(None),
            Act::Wait => self.look(Some("200 ms")),
            Act::Trespass => self.trespass(),
        }
    }

    fn fresh(&mut self, mark: &str) -> Own {
        self.next += 1;
        let key = format!("{}{mark}-{:06}", self.name, self.next);
        let kind = *self.dice.pick(&self.world.kinds);
        Own { params: params(&mut self.dice), key, kind, acknowledged: false }
    }

    fn one_of_mine(&mut self) -> Option<Own> {
        (!self.own.is_empty()).then(|| self.dice.pick(&self.own).clone())
    }

    fn register(&mut self, mut own: Own, in_transaction: bool) {
        self.world.intend(&own.key, &own.kind.name(), &own.params);
        let done = self.chair.call(|ledger| {
            if in_transaction {
                ledger.try_exec("BEGIN")?;
            }
            let receipt = ledger.try_register(&own.kind.name(), &own.key, own.params.clone());
            if in_transaction {
                ledger.try_exec(if receipt.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
            }
            receipt
        });
        match done {
            Ok(receipt) => {
                self.world.acknowledge(&receipt);
                own.acknowledged = true;
            }
            Err(Failure::Lost) => {}
            // It was revised meanwhile: then the first content is another.
            Err(Failure::Refused(error)) if error.sqlstate == "CL001" && own.kind.form == Form::Gated => return,
            Err(Failure::Refused(error)) => self.world.saw(&own.key, "I4", format!("registration refused: {error}")),
        }
        self.own.retain(|known| known.key != own.key);
        self.own.push(own);
        if self.own.len() > REMEMBERED {
            self.own.remove(0);
        }
    }

    /// A key that every caller may register, with the same content.
    fn shared(&mut self) {
        let slot = self.world.notebook().told.len() / 40;
        let mut dice = self.world.climate.dice("shared", slot as u64);
        let plain: Vec<Kind> = self.world.kinds.iter().copied().filter(|kind| kind.form == Form::Plain).collect();
        let kind = *dice.pick(&plain);
        let own = Own { key: format!("shared-{slot:05}"), kind, params: params(&mut dice), acknowledged: false };
        self.register(own, false);
    }

    /// The same key with other parameters must be refused, whatever became of the command.
    fn changed(&mut self) {
        let Some(own) = self.one_of_mine().filter(|own| own.acknowledged) else { return };
        let mut other = own.params.clone();
        other["amount"] = json!(1_000_000 + self.dice.below(1000));
        match self.chair.call(|ledger| ledger.try_register(&own.kind.name(), &own.key, other)) {
            Ok(receipt) => {
                let what = format!("other parameters were taken under its key: {:?}", receipt.outcome);
                self.world.saw(&own.key, "I1", what);
            }
            Err(Failure::Refused(error)) if error.sqlstate != "CL001" => {
                self.world.saw(&own.key, "I1", format!("other parameters met {error}"));
            }
            Err(_) => {}
        }
    }

    fn rolled_back(&mut self, leaves: bool) {
        let own = self.fresh("r");
        self.world.intend(&own.key, &own.kind.name(), &own.params);
        if let Some(told) = self.world.notebook().told.get_mut(&own.key) {
            told.rolled_back = true;
        }
        let done = self.chair.call(|ledger| {
            ledger.try_exec("BEGIN")?;
            ledger.try_register(&own.kind.name(), &own.key, own.params.clone())?;
            if leaves { Ok(()) } else { ledger.try_exec("ROLLBACK") }
        });
        if leaves {
            self.chair.leave();
        }
        if done.is_ok() {
            self.world.climate.strike(if leaves { Fault::CallerLeaves } else { Fault::RolledBack });
        }
    }

    fn revise(&mut self) {
        let gated: Vec<Own> = self.own.iter().filter(|own| own.kind.form == Form::Gated).cloned().collect();
        let Some(own) = gated.last() else { return };
        let Ok(Some(seen)) = self.chair.call(|ledger| find(ledger, &own.key)) else { return };
        if seen.status != "planned" {
            return;
        }
        let other = params(&mut self.dice);
        self.world.intend(&own.key, &own.kind.name(), &other);
        let named = json!({"idempotency_key": own.key, "params": other, "expected_hash": seen.intent_hash});
        if let Ok(receipt) = self.chair.call(|ledger| ledger.try_call_named("revise", named)) {
            self.world.look_at(&receipt);
            // Its first content is no longer a repeat.
            self.own.retain(|known| known.key != own.key);
        }
    }

    fn cancel(&mut self) {
        let Some(own) = self.own.last().cloned() else { return };
        if let Ok(receipt) =
            self.chair.call(|ledger| ledger.try_call_named("cancel", json!({"idempotency_key": own.key})))
        {
            self.world.look_at(&receipt);
        }
    }

    fn look(&mut self, wait: Option<&str>) {
        let Some(own) = self.one_of_mine().filter(|own| own.acknowledged) else { return };
        let before = self.world.told_record(&own.key);
        let found = self.chair.call(|ledger| match wait {
            None => find(ledger, &own.key),
            Some(timeout) => {
                ledger.try_call_named("wait_for", json!({"idempotency_key": own.key, "timeout": timeout})).map(Some)
            }
        });
        match found {
            Ok(Some(receipt)) if receipt.status != "confirmed" && before.is_some() => {
                let what = format!("it was confirmed by {before:?}, and is {} later", receipt.status);
                self.world.saw(&own.key, "I10", what);
            }
            Ok(Some(receipt)) => self.world.look_at(&receipt),
            Ok(None) => self.world.saw(&own.key, "I4", "acknowledged, and status() knows nothing of it".to_owned()),
            Err(Failure::Refused(error)) => self.world.saw(&own.key, "I4", format!("status() says {error}")),
            Err(Failure::Lost) => {}
        }
    }

    /// An agent may propose and nothing else.
    fn trespass(&mut self) {
        let Some(own) = self.one_of_mine() else { return };
        let key = &own.key;
        let calls = [
            format!("SELECT command_ledger.reconcile('{key}', 'found')"),
            format!("SELECT command_ledger.retry('{key}')"),
            format!("SELECT command_ledger.approve('{key}', '\\x00')"),
            "SELECT * FROM command_ledger.claim('desk')".to_owned(),
            format!("SELECT command_ledger.confirm('{key}', '00000000-0000-0000-0000-000000000000')"),
            "SELECT command_ledger.adopt_relay()".to_owned(),
            format!("UPDATE command_ledger.command SET status = 'confirmed' WHERE idempotency_key = '{key}'"),
        ];
        let call = self.dice.pick(&calls);
        if let Ok(()) = self.chair.call(|ledger| ledger.try_exec(call)) {
            self.world.saw(key, "I12", format!("an agent may {call}"));
        }
    }
}

fn params(dice: &mut Dice) -> Value {
    json!({"amount": dice.between(1, 999), "lines": [dice.below(9), "ünï\\\"x\u{1F600}", null], "n": dice.below(1 << 40)})
}

fn find(
    ledger: &mut crate::ledger::Ledger,
    key: &str,
) -> Result<Option<crate::ledger::Receipt>, crate::session::SqlError> {
    let known = "SELECT pg_catalog.count(*) FROM command_ledger.status($1)";
    let rows = ledger.try_rows(known, &[&key])?;
    if rows.first().is_none_or(|row| row.get::<_, i64>(0) == 0) {
        return Ok(None);
    }
    ledger.try_call_named("status", json!({"idempotency_key": key})).map(Some)
}
