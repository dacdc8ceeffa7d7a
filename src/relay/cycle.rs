//! One round of the relay: collect answers and settle them, see what time brought about, claim what is due, commit,
//! hand it to the wire, ask destinations about open cases. No transaction is open while the wire works. What function
//! destinations are due is left to the functions worker.

use super::desk::Desk;
use super::keeper::Keeper;
use super::{Next, complain, lookups, sends, transaction};
use crate::failpoint;
use crate::ledger::sweep::{self, Swept};
use crate::ledger::{adopt, fence, retention};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, BIGINT, Connection, Mode, Statement};
use crate::settings;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::Fence;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

/// How long a destination that had due work but could not take it is left alone, unless an answer or a wake-up comes.
const BLOCKED_FOR_US: i64 = 1_000_000;
/// Rows that one sweep judges.
const SWEEP_LIMIT: i64 = 200;
/// How long beyond the grace a stopping relay waits for its functions worker, whose handler may ignore the stop.
const FUNCTIONS_PATIENCE_MS: i64 = 4_000;
/// Commands that one round of maintenance looks at, in one transaction.
const MAINTENANCE_LIMIT: i32 = 500;
/// Between two rounds of maintenance.
const MAINTENANCE_EVERY_US: i64 = 60_000_000;
/// Between the start of a run and its first round.
const MAINTENANCE_FIRST_US: i64 = 5_000_000;

/// What is due when, one row per destination and kind of timer: the one read of an idle relay.
static AGENDA: Statement = Statement::new(
    Mode::Fresh,
    &[BIGINT],
    "SELECT 'destination', d.name, d.config ->> 'transport', \
            (SELECT o.due_at FROM command_ledger.outbox o \
              WHERE o.destination = d.name AND o.lease_token IS NULL ORDER BY o.due_at LIMIT 1) \
       FROM command_ledger.destination d WHERE d.paused_at IS NULL AND (d.config ->> 'transport') <> 'pull' \
     UNION ALL \
     SELECT 'lookup', NULL, NULL, pg_catalog.min(r.next_lookup_at) FROM command_ledger.reconciliation_case r \
      WHERE r.closed_at IS NULL AND r.next_lookup_at IS NOT NULL \
     UNION ALL \
     SELECT 'lease', NULL, NULL, pg_catalog.min(o.lease_expires_at) FROM command_ledger.outbox o \
      WHERE o.lease_token IS NOT NULL AND (o.relay_epoch IS NULL OR o.relay_epoch <> $1) \
     UNION ALL \
     SELECT 'handler', NULL, NULL, pg_catalog.min(o.lease_expires_at) FROM command_ledger.outbox o \
      WHERE o.lease_token IS NOT NULL AND o.relay_epoch < 0 \
     UNION ALL \
     SELECT 'overdue', NULL, NULL, pg_catalog.min(o.deadline) FROM command_ledger.outbox o \
      WHERE o.deadline IS NOT NULL AND o.lease_token IS NULL \
     UNION ALL \
     SELECT 'overdue', NULL, NULL, pg_catalog.min(o.approved_until) FROM command_ledger.outbox o \
      WHERE o.approved_until IS NOT NULL AND o.lease_token IS NULL \
     UNION ALL \
     SELECT 'overdue', NULL, NULL, pg_catalog.min(r.deadline) FROM command_ledger.approval_request r \
     UNION ALL \
     SELECT 'retention', NULL, NULL, pg_catalog.min(c.retain_until) FROM command_ledger.command c \
      WHERE c.retain_until IS NOT NULL",
);

enum Kind {
    Destination {
        name: String,
        function: bool,
    },
    Lookup,
    Lease,
    /// An attempt of the functions worker, which must be there to end it.
    Handler,
    Overdue,
    Retention,
}

struct Item {
    kind: Kind,
    due_us: i64,
}

/// The relay of one database, between its sleeps.
pub struct Cycle {
    desk: Desk,
    keeper: Keeper,
    /// Leases of earlier runs are judged once, at the start.
    older_leases_judged: bool,
    /// In another place, lookups of earlier runs count no more.
    lookups_restarted: bool,
    /// Destinations that could not take what is due, until when.
    blocked_until_us: HashMap<String, i64>,
    maintained_us: i64,
    fenced: bool,
    failed: bool,
}

impl Cycle {
    /// Starts the wire of this run.
    pub fn start(epoch: i64) -> Result<Self, LedgerError> {
        Ok(Self {
            desk: Desk::open(epoch)?,
            keeper: Keeper::default(),
            older_leases_judged: false,
            lookups_restarted: false,
            blocked_until_us: HashMap::new(),
            // A run that ends early shall not keep retention waiting for ever, one that starts has more urgent things to do.
            maintained_us: datum::now_us().saturating_sub(MAINTENANCE_EVERY_US - MAINTENANCE_FIRST_US),
            fenced: false,
            failed: false,
        })
    }

    /// The descriptor that becomes readable when answers are there.
    pub fn wire_fd(&self) -> Option<RawFd> {
        self.desk.wire_fd()
    }

    /// Somebody committed work: nothing is left alone any longer.
    pub fn woken(&mut self) {
        self.blocked_until_us.clear();
    }

    /// Whether the last round failed.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// One round.
    pub fn step(&mut self) -> Next {
        self.failed = false;
        let limit = usize::try_from(settings::RELAY_BATCH.get()).unwrap_or(200);
        let replies = self.desk.collect(limit);
        let mut more = replies.len() >= limit;
        if !replies.is_empty() {
            failpoint::hit("relay_before_settle");
            for destination in sends::settle_replies(&mut self.desk, replies) {
                self.blocked_until_us.remove(&destination);
            }
            failpoint::hit("relay_after_settle");
        }
        lookups::settle_rounds(&mut self.desk);
        if !settings::RELAY.get() {
            return Next { sleep_until_us: self.desk.kept_until_us(), more };
        }
        match self.act(limit) {
            Ok((due_us, again)) => {
                more |= again;
                Next { sleep_until_us: due_us.into_iter().chain(self.desk.kept_until_us()).min(), more }
            }
            Err(error) => {
                complain("command_ledger relay", &error);
                self.failed = true;
                Next { sleep_until_us: Some(datum::now_us().saturating_add(BLOCKED_FOR_US)), more: false }
            }
        }
    }

    fn act(&mut self, limit: usize) -> Result<(Option<i64>, bool), LedgerError> {
        let epoch = self.desk.epoch();
        let (fence, agenda) =
            transaction::run(|connection| Ok((fence::state(connection)?, agenda(connection, epoch)?)))?;
        if !self.may_send(fence) {
            return Ok((None, false));
        }
        if !self.lookups_restarted && matches!(fence, Fence::Moved { .. }) {
            transaction::run(adopt::restart_lookups)?;
            self.lookups_restarted = true;
        }
        let mut next_us = i64::MAX;
        if !self.older_leases_judged {
            let swept = transaction::run(|c| sweep::expired_leases(c, None, Some(epoch), SWEEP_LIMIT))?;
            self.older_leases_judged = swept == Swept::default();
            if swept.changed > 0 {
                return Ok((None, true));
            }
            next_us = look_again_us(swept, datum::now_us());
        }
        let (now_us, mut again) = (datum::now_us(), false);
        for item in agenda {
            if matches!(item.kind, Kind::Handler) {
                next_us = next_us.min(self.keeper.want_if_gone()?.unwrap_or(i64::MAX));
                continue;
            }
            if item.due_us > now_us {
                next_us = next_us.min(item.due_us);
                continue;
            }
            match item.kind {
                Kind::Handler => {}
                Kind::Lookup => again |= lookups::start(&mut self.desk, limit)?,
                Kind::Lease => {
                    let swept = transaction::run(|c| sweep::expired_leases(c, None, Some(epoch), SWEEP_LIMIT))?;
                    again |= swept.changed > 0;
                    next_us = next_us.min(look_again_us(swept, now_us));
                }
                Kind::Overdue => {
                    let swept = transaction::run(|c| sweep::overdue(c, SWEEP_LIMIT))?;
                    again |= swept.changed > 0;
                    next_us = next_us.min(look_again_us(swept, now_us));
                }
                Kind::Retention => {
                    let due_us = self.maintained_us.saturating_add(MAINTENANCE_EVERY_US);
                    if due_us > now_us {
                        next_us = next_us.min(due_us);
                    } else {
                        again |= self.maintain(now_us);
                    }
                }
                Kind::Destination { name, function } => {
                    if let Some(until_us) = self.blocked_until_us.get(&name).filter(|u| **u > now_us) {
                        next_us = next_us.min(*until_us);
                        continue;
                    }
                    if function {
                        self.keeper.want()?;
                        let until_us = now_us.saturating_add(BLOCKED_FOR_US);
                        next_us = next_us.min(until_us);
                        self.blocked_until_us.insert(name, until_us);
                        continue;
                    }
                    let sent = sends::send_due(&mut self.desk, fence, &name, limit)?;
                    if sent.any {
                        again = true;
                    } else {
                        let until_us = sent.again_at_us.unwrap_or(now_us.saturating_add(BLOCKED_FOR_US));
                        next_us = next_us.min(until_us);
                        self.blocked_until_us.insert(name, until_us);
                    }
                }
            }
        }
        Ok(((next_us != i64::MAX).then_some(next_us), again))
    }

    /// Says once in the log when the fence closes or opens.
    fn may_send(&mut self, fence: Fence) -> bool {
        let open = matches!(fence, Fence::Open | Fence::Moved { halted: false });
        if open == self.fenced {
            let what = if open { "may send again" } else { "is fenced and sends nothing: see command_ledger.health()" };
            log(Level::Log, &format!("command_ledger relay {what}"));
            self.fenced = !open;
        }
        open
    }

    fn maintain(&mut self, now_us: i64) -> bool {
        let since_us = std::mem::replace(&mut self.maintained_us, now_us);
        match transaction::run(|_| retention::apply(&sends::actor(), MAINTENANCE_LIMIT, MAINTENANCE_LIMIT)) {
            // There is more of it: no pause, unless all of it failed.
            Ok(done) if done.looked_at >= MAINTENANCE_LIMIT && done.judged > 0 => {
                self.maintained_us = since_us;
                true
            }
            Ok(_) => false,
            Err(error) => {
                complain("command_ledger relay: maintenance", &error);
                false
            }
        }
    }

    /// Settings may have changed.
    pub fn reload(&mut self) {
        self.desk.reload();
    }

    /// Ends within the grace: answers that come are settled; what is unanswered stays leased for the next run. The
    /// functions worker ends with the relay.
    pub fn shutdown(&mut self, grace: Duration) {
        self.keeper.dismiss();
        let grace_ms = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
        let replies = self.desk.close(grace);
        if !replies.is_empty() {
            sends::settle_replies(&mut self.desk, replies);
        }
        self.keeper.wait_gone(grace_ms.saturating_add(FUNCTIONS_PATIENCE_MS));
    }
}

/// When to look again at what others held.
fn look_again_us(swept: Swept, now_us: i64) -> i64 {
    if swept.left > 0 { now_us.saturating_add(BLOCKED_FOR_US) } else { i64::MAX }
}

fn agenda(connection: &Connection, epoch: i64) -> Result<Vec<Item>, LedgerError> {
    let rows = AGENDA.run(connection, &[Arg::Big(epoch)], 0)?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let kind = match row.text_or_empty(0).as_str() {
                "destination" => Kind::Destination {
                    name: row.text_or_empty(1),
                    function: row.text(2).as_deref() == Some("function"),
                },
                "lookup" => Kind::Lookup,
                "lease" => Kind::Lease,
                "retention" => Kind::Retention,
                "handler" => Kind::Handler,
                _ => Kind::Overdue,
            };
            Some(Item { kind, due_us: row.time(3)? })
        })
        .collect())
}
