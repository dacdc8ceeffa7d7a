//! One command of a function destination: claimed, its handler called, and settled.
//!
//! The claim is a transaction of its own, durable before the handler runs: a handler that takes the whole server down
//! stops at max attempts. Handler and confirmation are one transaction, so that either both are there or neither. What
//! ends otherwise is undone, and a second transaction says why.
//!
//! | the handler | its writes | the attempt |
//! |---|---|---|
//! | returns a document that meets the success rule (without a rule: returns at all), or that a rule calls confirmed | stay | confirmed |
//! | returns one that a rule calls transient, permanent or permission | undone | that |
//! | returns anything else: no success, too large, not a document that the ledger can hold | undone | not_sent: again by budget |
//! | raises, is cancelled, takes longer than the destination's timeout, is gone, may not be executed | undone | not_sent |
//! | dies with its session | undone | not_sent, by the next functions worker |
//!
//! A handler is foreign code. It runs as its owner in a security-restricted operation: no SET ROLE, no temporary
//! objects, no cursor that outlives it, no COMMIT. Settings that it changes are put back, advisory locks that it leaves
//! are released, and deferrable constraints are checked at the end of each of its statements, because at commit they
//! would be checked with another's rights.

use super::answers;
use super::counters::{self, Counter};
use super::desk::throttle_limits;
use super::pace::Pace;
use super::sends::{self, actor};
use super::transaction::{self, Limits};
use super::{complain, signals};
use crate::failpoint;
use crate::ledger::command::{self, Command};
use crate::ledger::dispatch::{self, Claim, Claimed, Claims};
use crate::ledger::room;
use crate::ledger::settle::{self, Ending};
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::{Level, log};
use crate::pg::role::ActingAs;
use crate::pg::spi::{self, Arg, Connection, Mode, Statement, TEXT};
use crate::pg::transaction::{force_durable_commit, settings_put_back};
use crate::settings;
use command_ledger_domain::answer::{NotSent, RuleOutcome, Wire};
use command_ledger_domain::config::{DestinationConfig, Transport};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::throttle::SendEnd;
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CString;

/// A lease outlives the timeout of its handler by so much: what claiming and starting take.
const LEASE_MARGIN_MS: i64 = 5_000;

static CONFIG: Statement =
    Statement::new(Mode::Fresh, &[TEXT], "SELECT d.config FROM command_ledger.destination d WHERE d.name = $1");

static RESOLVE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT p.proowner, pg_catalog.format('%I.%I', n.nspname, p.proname) FROM pg_catalog.pg_proc p \
       JOIN pg_catalog.pg_namespace n ON (n.oid = p.pronamespace) \
      WHERE p.oid = pg_catalog.to_regprocedure($1 || '(command_ledger.dispatch)')::oid",
);

/// What came of a turn at one destination.
pub struct Turn {
    /// A command was claimed or judged.
    pub any: bool,
    /// When the destination's rate or breaker permits the next, if they hold it back.
    pub again_at_us: Option<i64>,
}

/// Claims the next due command of a destination, if there is one, and runs its handler.
pub fn run_next(pace: &mut Pace, fence: Fence, destination: &str, run: i64) -> Result<Turn, LedgerError> {
    let (claimed, any) = match transaction::run(|connection| claim(connection, pace, fence, destination, run, true)) {
        Err(error) if error.code != Code::Canceled => {
            complain("command_ledger functions: a claim failed and is made command by command", &error);
            transaction::run(|connection| claim(connection, pace, fence, destination, run, false))?
        }
        claimed => claimed?,
    };
    if let Some(one) = claimed {
        let mark = pace.sent(destination);
        counters::count(Counter::RelayAttempts);
        let began_us = datum::now_us();
        failpoint::hit("relay_before_handler");
        let failure = attempt(&one).err();
        counters::count_end(datum::now_us().saturating_sub(began_us));
        let failed = failure.as_ref().is_some_and(|f| f.said.is_none());
        pace.ended(destination, mark, if failed { SendEnd::Failure } else { SendEnd::Well });
        if let Some(failure) = failure {
            let settled = transaction::run(|connection| not_done(connection, &one, &failure));
            if let Err(error) = settled {
                // The lease stays; the next functions worker judges it.
                complain("command_ledger functions: a handler's failure could not be settled", &error);
            }
        }
    }
    Ok(Turn { any, again_at_us: pace.again_at_us(destination) })
}

fn claim(
    connection: &Connection,
    pace: &mut Pace,
    fence: Fence,
    destination: &str,
    run: i64,
    together: bool,
) -> Result<(Option<Claimed>, bool), LedgerError> {
    let Some(config) = CONFIG.first(connection, &[Arg::Text(destination)])?.and_then(|r| r.json(0).transpose()) else {
        return Ok((None, false));
    };
    let config = DestinationConfig::parse(&config?)?;
    let Transport::Function { timeout_ms, .. } = config.transport else { return Ok((None, false)) };
    if pace.permitted(destination, throttle_limits(&config.limits, config.breaker.as_ref()), 1) == 0 {
        return Ok((None, false));
    }
    let claim = Claim {
        destination,
        // One at a time: a handler that takes its worker down must not cost others an attempt.
        max: 1,
        lease_ms: Some(timeout_ms.saturating_add(LEASE_MARGIN_MS)),
        worker: None,
        epoch: Some(run),
        tenants: None,
        command_types: None,
    };
    let places = room::enter(connection, destination, claim.max)?;
    let Claims { mut claimed, any, .. } = if together {
        dispatch::claim_together(connection, sends::batch(), fence, &claim, &places)?
    } else {
        dispatch::claim_each(connection, sends::batch, fence, &claim, &places)?
    };
    if claimed.iter().any(|one| !matches!(one.operation.effective.transport, Transport::Function { .. })) {
        // Defined anew since its config was read: nothing is claimed, the next look sees it as it is.
        return Err(LedgerError::new(Code::Internal, "the destination calls no function any more"));
    }
    force_durable_commit();
    Ok((claimed.pop(), any))
}

/// Why an attempt did not succeed.
struct Failure {
    /// What a rule of the destination says of the document that the handler returned.
    said: Option<RuleOutcome>,
    message: String,
}

/// Runs the handler and confirms, all or nothing.
fn attempt(one: &Claimed) -> Result<(), Failure> {
    let failed = |message: String| Failure { said: None, message };
    let Transport::Function { function, timeout_ms } = &one.operation.effective.transport else {
        return Err(failed("the destination calls no function any more".into()));
    };
    if signals::stop_asked() {
        return Err(failed("the relay is stopping".into()));
    }
    let limits = Limits { statement_ms: i32::try_from(*timeout_ms).unwrap_or(i32::MAX), lock_ms: 0 };
    let activity = format!(
        "command_ledger: handler {function} for destination {}, attempt {}",
        one.operation.destination, one.command.live.attempt
    );
    let activity = CString::new(activity).unwrap_or_default();
    let started_ms = signals::monotonic_ms();
    let mut said = None;
    let done = transaction::run_within(limits, &activity, |connection| call_and_confirm(connection, one, &mut said));
    done.map_err(|error| {
        let too_long = signals::monotonic_ms() - started_ms >= *timeout_ms;
        let message = match (error.code, too_long) {
            (Code::Canceled, _) if signals::stop_asked() => "the handler was stopped with its worker".into(),
            (Code::Canceled, true) => format!("the handler took longer than its timeout of {timeout_ms} ms"),
            (Code::Canceled, false) => "the handler was cancelled".into(),
            _ => format!("the handler failed: {}", error.message),
        };
        Failure { said, message }
    })
}

/// The command, if this attempt is still the one in flight.
fn lock(connection: &Connection, one: &Claimed) -> Result<Option<Command>, LedgerError> {
    let locked = command::lock(connection, &one.command.tenant, &one.command.key)?;
    Ok(locked.filter(|c| c.lease().is_some_and(|l| l.token == one.lease.token)))
}

fn call_and_confirm(connection: &Connection, one: &Claimed, said: &mut Option<RuleOutcome>) -> Result<(), LedgerError> {
    let unmet = |what: &str| Err(LedgerError::new(Code::InvalidParams, what));
    let Some(mut command) = lock(connection, one)? else { return Ok(()) };
    if one.lease.expires_us <= datum::now_us() {
        return unmet("no time was left on the lease");
    }
    let operation = &one.operation;
    let answer = call(connection, one)?;
    let limit = usize::try_from(operation.effective.limits.response_bytes).unwrap_or(usize::MAX);
    // SAFETY: the handler's result is jsonb.
    if answer.is_some_and(|d| unsafe { datum::varlena_bytes(d) }.len() > limit) {
        return unmet("its answer is larger than the destination's limit response_bytes");
    }
    // SAFETY: as above; the copy does not depend on the row.
    let document = answer.map(|d| unsafe { JsonbArg::new(d) }.copied());
    // Bounded like everything that is stored.
    document.map(|document| document.tree().map(drop)).transpose()?;
    let (met, record_id) = answers::success_of_function(connection, &operation.effective.success, answer)?;
    *said = answers::rule_of_function(connection, &operation.effective.rules, answer)?;
    match *said {
        Some(RuleOutcome::Confirmed) => {}
        None if met => {}
        Some(rule) => return unmet(&format!("a rule of the destination calls its answer {}", rule.as_str())),
        None => return unmet("its answer does not meet the success rule"),
    }
    let mut batch = sends::batch();
    let mut ending = Ending::of(Wire::Answered { status: 200 });
    ending.success_rule_met = true;
    ending.record_id = record_id;
    ending.result = document;
    ending.ended_us = Some(batch.now_us());
    settle::settle(connection, &mut batch, &mut command, operation, ending)?;
    batch.flush(connection)?;
    force_durable_commit();
    log_delivery(one, "confirmed");
    failpoint::hit("relay_before_handler_commit");
    Ok(())
}

/// Settles an attempt whose handler's writes are gone.
fn not_done(connection: &Connection, one: &Claimed, failure: &Failure) -> Result<(), LedgerError> {
    let Some(mut command) = lock(connection, one)? else { return Ok(()) };
    let mut batch = sends::batch();
    let mut ending = match failure.said {
        Some(rule @ (RuleOutcome::Transient | RuleOutcome::Permanent | RuleOutcome::Permission)) => {
            let mut ending = Ending::of(Wire::Answered { status: 200 });
            ending.matched_rule = Some(rule);
            ending
        }
        // Whatever else the document says: nothing of it was done.
        _ => Ending::of(Wire::NotSent { reason: NotSent::Withheld }),
    };
    ending.message = Some(failure.message.clone());
    ending.ended_us = Some(batch.now_us());
    settle::settle(connection, &mut batch, &mut command, &one.operation, ending)?;
    batch.flush(connection)?;
    log_delivery(one, "not done");
    Ok(())
}

fn log_delivery(one: &Claimed, outcome: &str) {
    if settings::LOG_DELIVERIES.get() {
        let (command, destination) = (&one.command, &one.operation.destination);
        log(
            Level::Log,
            &format!(
                "{}: destination={destination:?} tenant={:?} key={:?} attempt={} handler {outcome}",
                actor().role,
                command.tenant,
                command.key,
                command.live.attempt
            ),
        );
    }
}

/// Calls the handler with its owner's rights; its result is good while the connection is open.
fn call(connection: &Connection, one: &Claimed) -> Result<Option<Datum>, LedgerError> {
    let missing = || LedgerError::new(Code::UnknownName, "the function of the destination does not exist any more");
    let Transport::Function { function, .. } = &one.operation.effective.transport else { return Err(missing()) };
    let found = RESOLVE.first(connection, &[Arg::Text(function)])?.ok_or_else(missing)?;
    let (owner, name) = (found.oid(0).ok_or_else(missing)?, found.text_or_empty(1));
    let sql = format!(
        "SELECT {name}(ROW($1, NULL::pg_catalog.uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10)::command_ledger.dispatch)\
         ::pg_catalog.jsonb"
    );
    spi::utility("SET CONSTRAINTS ALL IMMEDIATE")?;
    settings_put_back(|| {
        let _owner = ActingAs::restricted(owner);
        execute(&sql, one)
    })
}

/// Runs the statement that calls the handler. The handler's name in it was resolved and quoted by the server.
fn execute(sql: &str, one: &Claimed) -> Result<Option<Datum>, LedgerError> {
    const TYPES: [Oid; 10] = [
        pg_sys::UUIDOID,
        pg_sys::INT4OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
        pg_sys::INT4OID,
        pg_sys::JSONBOID,
        pg_sys::TIMESTAMPTZOID,
        pg_sys::TIMESTAMPTZOID,
    ];
    let command = &one.command;
    let id = command.id();
    let args = [
        Arg::Uuid(&id),
        Arg::Int(command.live.attempt),
        Arg::Text(&command.tenant),
        Arg::Text(&command.key),
        Arg::Text(&command.destination_key()),
        Arg::Text(&command.command_type),
        Arg::Int(command.type_version),
        Arg::Json(&one.params),
        Arg::Time(one.lease.expires_us),
        Arg::or_null(command.deadline_us, Arg::Time),
    ];
    spi::call_foreign(sql, &TYPES, &args)
}
