//! Sending: claim a batch, commit (the checkpoint), hand it to the wire; and settling the answers, a batch at a time,
//! row by row when one of them fails.

use super::answers;
use super::counters::{self, Counter};
use super::desk::{Attempt, Desk, Ended, Purpose, throttle_limits};
use super::transaction::{self, Limits};
use super::{complain, signals};
use crate::failpoint;
use crate::ledger::batch::{Actor, Batch};
use crate::ledger::command::{self, Command};
use crate::ledger::dispatch::{self, Claim, Claims};
use crate::ledger::{catalog, room, settle};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::transaction::force_durable_commit;
use crate::settings;
use command_ledger_domain::config::pace;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_wire::Cause;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// Who the journal says acted.
const RELAY: &str = "command_ledger relay";
/// An answer waits for a row that a person's session holds, not the relay for the person.
const SETTLING: Limits = Limits { lock_ms: 250, ..Limits::DEFAULT };
const SETTLING_NAME: &CStr = c"command_ledger: settling answers";
const CLAIMING_NAME: &CStr = c"command_ledger: claiming what is due";
/// How long a destination is left alone whose due commands cannot even be claimed.
const FAILED_FOR_US: i64 = 10_000_000;

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

/// Sends what is due at one destination, as far as its limits permit. A destination at which that fails is left alone for
/// a while and keeps no other waiting.
pub fn send_due(desk: &mut Desk, fence: Fence, destination: &str, limit: usize) -> Result<Sent, LedgerError> {
    match try_send_due(desk, fence, destination, limit) {
        Err(error) if !signals::stop_asked() => {
            log(
                Level::Warning,
                &format!("command_ledger relay: destination {destination:?} cannot be served: {error}"),
            );
            Ok(Sent { any: false, again_at_us: Some(datum::now_us().saturating_add(FAILED_FOR_US)) })
        }
        sent => sent,
    }
}

fn try_send_due(desk: &mut Desk, fence: Fence, destination: &str, limit: usize) -> Result<Sent, LedgerError> {
    let room = desk.room().min(limit);
    if room == 0 {
        return Ok(Sent { any: false, again_at_us: None });
    }
    let started = Instant::now();
    let together = transaction::run_within(Limits::DEFAULT, CLAIMING_NAME, |connection| {
        claim(connection, desk, fence, destination, room, true)
    });
    let (claims, now_us) = match together {
        Err(error) if !signals::stop_asked() => {
            log(Level::Warning, &format!("command_ledger relay: a batch is claimed one by one: {error}"));
            transaction::run_within(Limits::DEFAULT, CLAIMING_NAME, |connection| {
                claim(connection, desk, fence, destination, room, false)
            })?
        }
        together => together?,
    };
    let Claims { claimed, any, .. } = claims;
    failpoint::hit("relay_after_claim");
    let throttle_mark = desk.sent(destination, claimed.len());
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
            throttle_mark,
            claimed_us: now_us,
        };
        // A stop request may have cut the wait for a standby short: then the checkpoint is not where it must be.
        if signals::stop_asked() {
            desk.refuse(Purpose::Attempt(attempt), Cause::Stopped, "the relay is stopping".to_owned());
            continue;
        }
        counters::count(Counter::RelayAttempts);
        let limit = usize::try_from(one.operation.effective.limits.response_bytes).unwrap_or(65_536);
        desk.send(Purpose::Attempt(attempt), *request, limit, started + Duration::from_micros(lease_us));
    }
    Ok(Sent { any, again_at_us: desk.again_at_us(destination) })
}

/// Claims, up to the commit; `together` or each by itself.
fn claim(
    connection: &Connection,
    desk: &mut Desk,
    fence: Fence,
    destination: &str,
    room: usize,
    together: bool,
) -> Result<(Claims, i64), LedgerError> {
    const NONE: Claims = Claims { claimed: Vec::new(), any: false, others: false };
    let Some(config) = CONFIG.first(connection, &[Arg::Text(destination)])?.and_then(|r| r.json(0).transpose()) else {
        return Ok((NONE, 0));
    };
    let (limits, breaker) = pace(&config?)?;
    let wanted = i64::try_from(room).unwrap_or(i64::MAX);
    let permitted = desk.permitted(destination, throttle_limits(&limits, breaker.as_ref()), wanted);
    if permitted == 0 {
        return Ok((NONE, 0));
    }
    let request = Claim {
        destination,
        max: i32::try_from(permitted).unwrap_or(i32::MAX),
        lease_ms: None,
        worker: None,
        epoch: Some(desk.epoch()),
        tenants: None,
        command_types: None,
    };
    let now_us = datum::now_us();
    let places = room::enter(connection, destination, request.max)?;
    let claims = if together {
        dispatch::claim_together(connection, batch(), fence, &request, &places)?
    } else {
        dispatch::claim_each(connection, batch, fence, &request, &places)?
    };
    if claims.claimed.iter().any(|one| one.request.is_none()) {
        // Defined anew since the agenda was read: nothing is claimed, the next look sees it as it is.
        return Err(LedgerError::new(Code::Internal, "the destination sends no requests any more"));
    }
    force_durable_commit();
    failpoint::hit("relay_before_claim_commit");
    Ok((claims, now_us))
}

/// Settles answers; says which destinations have room again. Answers to lookups go to their rounds.
pub fn settle_replies(desk: &mut Desk, replies: Vec<Ended>) -> BTreeSet<String> {
    let mut attempts: Vec<(Attempt, Ended)> = Vec::new();
    for ended in replies {
        match ended.purpose.clone() {
            Purpose::Attempt(attempt) => {
                if ended.failed == 0 {
                    desk.sent_ended(&attempt, answers::send_end(&ended));
                    counters::count_end(ended.ended_us.saturating_sub(attempt.claimed_us));
                }
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
    let (again, attempts): (Vec<_>, Vec<_>) = attempts.into_iter().partition(|(_, ended)| ended.failed > 0);
    let mut settled: BTreeSet<String> =
        again.into_iter().filter_map(|(attempt, ended)| settle_alone(desk, attempt, ended)).collect();
    if attempts.is_empty() {
        return settled;
    }
    let together = transaction::run_within(SETTLING, SETTLING_NAME, |connection| {
        let mut batch = batch();
        let keys: Vec<_> = attempts.iter().map(|(attempt, _)| (&*attempt.tenant, &*attempt.key)).collect();
        for ((attempt, ended), command) in attempts.iter().zip(command::lock_all(connection, &keys)?) {
            settle_one(connection, &mut batch, command, attempt, ended)?;
        }
        batch.flush(connection)?;
        force_durable_commit();
        failpoint::hit("relay_before_settle_commit");
        Ok(())
    });
    if let Err(error) = together {
        complain("command_ledger relay: a batch of answers is settled one by one", &error);
        settled.extend(attempts.into_iter().filter_map(|(attempt, ended)| settle_alone(desk, attempt, ended)));
    } else {
        settled.extend(attempts.into_iter().map(|(attempt, _)| attempt.destination));
    }
    settled
}

/// Settles one answer in a transaction of its own; the destination that has room again. What cannot be settled now is
/// kept, with its lease, and tried again: nobody else will ever know of this answer.
fn settle_alone(desk: &mut Desk, attempt: Attempt, ended: Ended) -> Option<String> {
    let alone = transaction::run_within(SETTLING, SETTLING_NAME, |connection| {
        let mut batch = batch();
        let command = command::lock(connection, &attempt.tenant, &attempt.key)?;
        settle_one(connection, &mut batch, command, &attempt, &ended)?;
        batch.flush(connection)?;
        force_durable_commit();
        Ok(())
    });
    let Err(error) = alone else { return Some(attempt.destination) };
    log(
        Level::Warning,
        &format!(
            "command_ledger relay: the answer to attempt {} of a command could not be settled and is kept: {error}",
            attempt.attempt
        ),
    );
    desk.keep(ended);
    None
}

/// Settles one answer; its command is locked.
fn settle_one(
    connection: &Connection,
    batch: &mut Batch,
    command: Option<Command>,
    attempt: &Attempt,
    ended: &Ended,
) -> Result<(), LedgerError> {
    let Some(mut command) = command else { return Ok(()) };
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let ending = answers::ending(connection, &operation, &command, ended)?;
    let transition = if command.lease().is_some_and(|l| l.token == attempt.token) {
        settle::settle(connection, batch, &mut command, &operation, ending)?
    } else {
        let Some(past) = settle::past_attempt(connection, &command, &attempt.token)? else { return Ok(()) };
        let success = ending.proves_success();
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
