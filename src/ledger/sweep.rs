//! Sweeps: what time alone brings about. Each looks for candidates without locks, then locks and checks every row
//! again in a subtransaction of its own, so that one bad row never stops a sweep.

use super::batch::{Actor, Batch, Change};
use super::command::{self, Command};
use super::settle::{self, Ending};
use super::{approve, catalog, fence};
use crate::pg::datum;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, BIGINT, Connection, INT, Mode, Statement, TEXT, TIME};
use crate::pg::transaction::nested;
use command_ledger_domain::answer::{NoAnswer, NotSent, Wire};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::status::{ApprovalState, Event, Status};

/// Who the journal says acted when only time did.
pub const CLOCK: &str = "command_ledger";

static EXPIRED_LEASES: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TIME, BIGINT, INT],
    "SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o \
      WHERE o.lease_token IS NOT NULL AND ($1 IS NULL OR o.destination = $1) \
        AND (o.lease_expires_at <= $2 AND ($3 IS NULL OR $3 > 0 AND o.relay_epoch IS NULL) \
             OR o.relay_epoch <> $3 AND (o.relay_epoch > 0) = ($3 > 0)) \
      ORDER BY o.destination, o.lease_expires_at LIMIT $4",
);

static OVERDUE: Statement = Statement::new(
    Mode::Fresh,
    &[TIME, INT],
    "(SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o \
       WHERE o.deadline <= $1 AND o.lease_token IS NULL LIMIT $2) \
     UNION ALL \
     (SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o \
       WHERE o.approved_until <= $1 AND o.lease_token IS NULL LIMIT $2) \
     UNION ALL \
     (SELECT r.tenant, r.idempotency_key FROM command_ledger.approval_request r WHERE r.deadline <= $1 LIMIT $2)",
);

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// So many commands were changed.
    pub changed: usize,
    /// So many were held by other sessions (or were gone meanwhile) and are to be looked at again soon.
    pub left: usize,
}

/// Locks each candidate and hands it to `judge`, one subtransaction each. What another session holds is left: a claim
/// keeps what it locked until its commit, and two of them must not wait for each other; the relay must not wait for a
/// person's open transaction.
fn each(
    connection: &Connection,
    keys: Vec<(String, String)>,
    judge: impl Fn(&mut Batch, &mut Command) -> Result<(), LedgerError>,
) -> Result<Swept, LedgerError> {
    let mut swept = Swept::default();
    for (tenant, key) in keys {
        let outcome = nested(|| {
            let Some(mut command) = command::lock_free(connection, &tenant, &key)? else { return Ok(None) };
            let actor = Actor { role: CLOCK.to_owned(), stated: None };
            let mut batch = Batch::new(datum::now_us(), actor);
            judge(&mut batch, &mut command)?;
            let any = !batch.is_empty();
            batch.flush(connection)?;
            Ok(Some(any))
        });
        match outcome {
            Ok(Some(any)) => swept.changed += usize::from(any),
            Ok(None) => swept.left += 1,
            // Not the row's fault, and not to be swallowed.
            Err(error) if error.code == Code::Canceled => return Err(error),
            Err(error) => log(Level::Warning, &format!("command_ledger: a sweep left one command as it was: {error}")),
        }
    }
    Ok(swept)
}

/// Ends attempts whose lease is over. `epoch` is the run number of a relay, or of a functions worker (negative): leases of
/// older runs of its kind are judged at once, its own never here (it still awaits their ends, or judges them itself), and
/// those of the other kind never. Leases of pull workers are the relay's to judge, and those of whoever claims.
pub fn expired_leases(
    connection: &Connection,
    destination: Option<&str>,
    epoch: Option<i64>,
    limit: i64,
) -> Result<Swept, LedgerError> {
    let now_us = datum::now_us();
    let rows = EXPIRED_LEASES.run(
        connection,
        &[
            Arg::or_null(destination, Arg::Text),
            Arg::Time(now_us),
            Arg::or_null(epoch, Arg::Big),
            Arg::Int(i32::try_from(limit).unwrap_or(i32::MAX)),
        ],
        limit,
    )?;
    let keys: Vec<_> = rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1))).collect();
    each(connection, keys, |batch, command| {
        let Some(lease) = command.lease().cloned() else { return Ok(()) };
        let over = match (epoch, lease.epoch) {
            (Some(own), Some(of)) => own != of && (own > 0) == (of > 0),
            _ => lease.expires_us <= batch.now_us(),
        };
        if command.live.status != Status::Dispatched || !over {
            return Ok(());
        }
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        // A handler's writes are undone with the session that held the lease, whatever the destination is by now.
        let (wire, why, message) = if lease.epoch.is_some_and(|of| of < 0) {
            let reason = NotSent::Withheld;
            (Wire::NotSent { reason }, reason.as_str(), "the functions worker ended before the handler did")
        } else {
            let reason = NoAnswer::LeaseOver;
            (Wire::NoAnswer { reason }, reason.as_str(), "the lease ran out without an answer")
        };
        let mut ending = Ending::of(wire);
        ending.message = Some(message.into());
        ending.detail = Some(settle::transport_detail(why));
        settle::settle(connection, batch, command, &operation, ending).map(drop)
    })
}

/// Ends commands whose deadline passed before they were sent, and approvals that lapsed.
pub fn overdue(connection: &Connection, limit: i64) -> Result<Swept, LedgerError> {
    let rows = OVERDUE.run(
        connection,
        &[Arg::Time(datum::now_us()), Arg::Int(i32::try_from(limit).unwrap_or(i32::MAX))],
        0,
    )?;
    let keys: Vec<_> = rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1))).collect();
    each(connection, keys, |batch, command| {
        let now_us = batch.now_us();
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        let (approval, _) = approve::approval_state(connection, &operation, command, now_us)?;
        let over = command.deadline_us.is_some_and(|d| d <= now_us);
        if over {
            fence::mark_sent_elsewhere(connection, command)?;
        }
        let mut change = Change { skip_lane_on_failure: operation.skips_lane(), ..Change::default() };
        settle::look_up_if_maybe_sent(&operation, command, &mut change, now_us);
        let event = match command.live.status {
            Status::Planned | Status::Approved if over => {
                change.message = Some("the deadline passed before it was sent".into());
                Event::DeadlineOver
            }
            Status::Approved if approval == ApprovalState::Missing => Event::ApprovalLapsed,
            _ => return Ok(()),
        };
        batch.apply(command, approval, &operation.destination, event, change).map(drop)
    })
}
