//! Sending: claim a batch, commit (the checkpoint), hand it to the wire; and settling the answers, a batch at a time,
//! row by row when one of them fails.

use super::answers;
use super::desk::{Attempt, Desk, Ended, Purpose, throttle_limits};
use super::{complain, signals, transaction};
use crate::failpoint;
use crate::ledger::batch::{Actor, Batch};
use crate::ledger::dispatch::{self, Claim};
use crate::ledger::{catalog, command, settle};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::transaction::force_durable_commit;
use crate::settings;
use command_ledger_domain::config::pace;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Who the journal says acted.
const RELAY: &str = "command_ledger relay";

static CONFIG: Statement =
    Statement::new(Mode::Fresh, &[TEXT], "SELECT d.config FROM command_ledger.destination d WHERE d.name = $1");

/// What came of an attempt to send.
pub struct Sent {
    /// Something was claimed or judged.
    pub any: bool,
    /// If nothing was: when it may be worth another look.
    pub again_at_us: Option<i64>,
}

/// The relay, as the journal names it.
pub fn actor() -> Actor {
    Actor { role: RELAY.to_owned(), stated: None }
}

/// An empty batch of the relay, now.
pub fn batch() -> Batch {
    Batch::new(datum::now_us(), actor())
}

/// Sends what is due at one destination, as far as its limits permit.
pub fn send_due(desk: &mut Desk, fence: Fence, destination: &str, limit: usize) -> Result<Sent, LedgerError> {
    let room = desk.room().min(limit);
    if room == 0 {
        return Ok(Sent { any: false, again_at_us: None });
    }
    let (epoch, started) = (desk.epoch(), Instant::now());
    let (claimed, any, now_us) = transaction::run(|connection| {
        let Some(config) = CONFIG.first(connection, &[Arg::Text(destination)])?.and_then(|r| r.json(0).transpose())
        else {
            return Ok((Vec::new(), false, 0));
        };
        let (limits, breaker) = pace(&config?)?;
        let wanted = i64::try_from(room).unwrap_or(i64::MAX);
        let permitted = desk.permitted(destination, throttle_limits(&limits, breaker.as_ref()), wanted);
        if permitted == 0 {
            return Ok((Vec::new(), false, 0));
        }
        let mut batch = batch();
        let now_us = batch.now_us();
        let claim = Claim {
            destination,
            max: i32::try_from(permitted).unwrap_or(i32::MAX),
            lease_ms: None,
            worker: None,
            epoch: Some(epoch),
            tenants: None,
            command_types: None,
        };
        let claimed = dispatch::claim(connection, &mut batch, fence, &claim)?;
        if claimed.iter().any(|one| one.request.is_none()) {
            // Defined anew since the agenda was read: nothing is claimed, the next look sees it as it is.
            return Err(LedgerError::new(Code::Internal, "the destination sends no requests any more"));
        }
        let any = !batch.is_empty();
        batch.flush(connection)?;
        force_durable_commit();
        failpoint::hit("relay_before_claim_commit");
        Ok((claimed, any, now_us))
    })?;
    failpoint::hit("relay_after_claim");
    desk.sent(destination, claimed.len());
    for one in claimed {
        let Some(request) = one.request else { continue };
        // The monotonic clock decides at the socket; it started before the wall clock was read.
        let lease_us = u64::try_from(one.lease.expires_us.saturating_sub(now_us)).unwrap_or(0);
        let attempt = Attempt {
            tenant: one.command.tenant.clone(),
            key: one.command.key.clone(),
            token: one.lease.token,
            attempt: one.command.live.attempt,
            destination: destination.to_owned(),
        };
        // A stop request may have cut the wait for a standby short: then the checkpoint is not where it must be.
        if signals::stop_asked() {
            desk.refuse(Purpose::Attempt(attempt), "the relay is stopping".to_owned());
            continue;
        }
        let limit = usize::try_from(one.operation.effective.limits.response_bytes).unwrap_or(65_536);
        desk.send(Purpose::Attempt(attempt), *request, limit, started + Duration::from_micros(lease_us));
    }
    Ok(Sent { any, again_at_us: desk.again_at_us(destination) })
}

/// Settles answers; says which destinations have room again. Answers to lookups go to their rounds.
pub fn settle_replies(desk: &mut Desk, replies: Vec<Ended>) -> BTreeSet<String> {
    let mut attempts: Vec<(Attempt, Ended)> = Vec::new();
    for ended in replies {
        match ended.purpose.clone() {
            Purpose::Attempt(attempt) => {
                desk.sent_ended(&attempt.destination, answers::is_destination_failure(&ended));
                attempts.push((attempt, ended));
            }
            Purpose::Lookup(round) => super::lookups::answered(desk, round, ended.outcome, false),
            Purpose::Sentinel(round) => super::lookups::answered(desk, round, ended.outcome, true),
        }
    }
    if attempts.is_empty() {
        return BTreeSet::new();
    }
    // In the order of the keys, as every batch locks.
    attempts.sort_by(|a, b| (&a.0.tenant, &a.0.key).cmp(&(&b.0.tenant, &b.0.key)));
    let together = transaction::run(|connection| {
        let mut batch = batch();
        for (attempt, ended) in &attempts {
            settle_one(connection, &mut batch, attempt, ended)?;
        }
        batch.flush(connection)?;
        force_durable_commit();
        failpoint::hit("relay_before_settle_commit");
        Ok(())
    });
    if let Err(error) = together {
        complain("command_ledger relay: a batch of answers is settled one by one", &error);
        for (attempt, ended) in &attempts {
            let alone = transaction::run(|connection| {
                let mut batch = batch();
                settle_one(connection, &mut batch, attempt, ended)?;
                batch.flush(connection)?;
                force_durable_commit();
                Ok(())
            });
            if let Err(error) = alone {
                // The lease stays; the next run of the relay judges it, and the answer counts as lost.
                log(
                    Level::Warning,
                    &format!(
                        "command_ledger relay: the answer to attempt {} of a command could not be settled: {error}",
                        attempt.attempt
                    ),
                );
            }
        }
    }
    attempts.into_iter().map(|(attempt, _)| attempt.destination).collect()
}

fn settle_one(connection: &Connection, batch: &mut Batch, attempt: &Attempt, ended: &Ended) -> Result<(), LedgerError> {
    let Some(mut command) = command::lock(connection, &attempt.tenant, &attempt.key)? else { return Ok(()) };
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let ending = answers::ending(connection, &operation, ended)?;
    let transition = if command.lease().is_some_and(|l| l.token == attempt.token) {
        settle::settle(connection, batch, &mut command, &operation, ending)?
    } else {
        let Some(past) = settle::past_attempt(connection, &command, &attempt.token)? else { return Ok(()) };
        let success = ending.success_rule_met;
        settle::settle_late(
            connection,
            batch,
            &mut command,
            &operation,
            &past,
            success,
            ending.record_id,
            ending.result.filter(|_| success),
        )?
    };
    if settings::LOG_DELIVERIES.get() {
        log(
            Level::Log,
            &format!(
                "command_ledger relay: destination={:?} tenant={:?} key={:?} attempt={} kind={} status={}",
                attempt.destination, attempt.tenant, attempt.key, attempt.attempt, transition.kind, transition.to
            ),
        );
    }
    Ok(())
}
