//! Confirm, for workers that claimed: what they say of an attempt.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::approve;
use super::batch::{Actor, Batch, Change};
use super::catalog::{self, Operation};
use super::claim::lease_of;
use super::command::{self, Command};
use super::receipt::{self, Outcome};
use super::settle::{self, Ending};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT, TIME};
use crate::pg::tuple::RowSet;
use crate::relay::wake;
use command_ledger_domain::answer::{NoAnswer, NotSent, RuleOutcome, Wire};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::{hex, sha256};
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::retry::lease_expiry_us;
use command_ledger_domain::status::{CaseReason, Event, Status};
use pgrx::pg_sys::{self, Datum};
use std::rc::Rc;

static EXTEND: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME],
    "UPDATE command_ledger.outbox o SET lease_expires_at=$3 WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

/// Most commands of one confirm_many().
const MAX_CONFIRMED: usize = 1_000;

/// A batch of transitions that this caller makes now.
pub fn batch_of(caller: &Caller) -> Batch {
    let actor = Actor { role: caller.name(), stated: None };
    Batch::new(datum::now_us(), actor)
}

/// A command that a worker speaks of, locked, and whether the token is that of the attempt in flight.
struct Spoken {
    command: Command,
    operation: Rc<Operation>,
    past: Option<settle::PastAttempt>,
}

fn speak(
    caller: &Caller,
    connection: &Connection,
    tenant: &str,
    key: &str,
    token: &[u8; 16],
) -> Result<Spoken, LedgerError> {
    caller.require(connection, Capability::Execute, tenant, None)?;
    spoken(caller, connection, command::lock_existing(connection, tenant, key)?, token)
}

fn spoken(caller: &Caller, connection: &Connection, command: Command, token: &[u8; 16]) -> Result<Spoken, LedgerError> {
    caller.require(connection, Capability::Execute, &command.tenant, Some(&command.command_type))?;
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let current = command.lease().is_some_and(|l| l.token == *token);
    let past = if current {
        None
    } else {
        Some(settle::past_attempt(connection, &command, token)?.ok_or_else(|| {
            LedgerError::new(Code::UnknownLease, "no attempt of this command has this lease token")
                .detail(format!("The command is {} (attempt {}).", command.live.status, command.live.attempt))
                .hint("Use the lease_token that claim() or register_and_claim() handed out for this very command.")
        })?)
    };
    Ok(Spoken { command, operation, past })
}

/// What a worker says of an attempt.
enum Says {
    Confirmed { record_id: Option<String>, result: Option<JsonbArg> },
    Ended(Box<Ending>),
    Released,
}

/// A command whose attempt ended, decided and not yet written.
struct Ended {
    command: Command,
    operation: Rc<Operation>,
    outcome: Outcome,
    /// The command's row is now what `command` says, its result included.
    complete: bool,
}

fn end(connection: &Connection, batch: &mut Batch, spoken: Spoken, says: Says) -> Result<Ended, LedgerError> {
    let Spoken { mut command, operation, past } = spoken;
    let mut complete = false;
    let outcome = match (past, says) {
        (Some(past), says) => {
            let (success, record_id, result) = match says {
                Says::Confirmed { record_id, result } => (true, record_id, result),
                _ => (false, None, None),
            };
            settle::settle_late(connection, batch, &mut command, &operation, &past, success, record_id, result)?;
            Outcome::Late
        }
        (None, Says::Confirmed { record_id, result }) => {
            let mut ending = Ending::of(Wire::Answered { status: 200 });
            ending.success_rule_met = true;
            ending.record_id = record_id;
            ending.result = result;
            settle::settle(connection, batch, &mut command, &operation, ending)?;
            complete = command.live.status == Status::Confirmed;
            command.result = result.map(|result| result.datum());
            Outcome::Changed
        }
        (None, Says::Ended(mut ending)) => {
            ending.ended_us = Some(batch.now_us());
            settle::settle(connection, batch, &mut command, &operation, *ending)?;
            Outcome::Changed
        }
        (None, Says::Released) => {
            let now_us = batch.now_us();
            let (approval, _) = approve::approval_state(connection, &operation, &command, now_us)?;
            let change = Change { due_us: Some(now_us), uncounted: true, ..Change::default() };
            batch.apply(&mut command, approval, &operation.destination, Event::Release, change)?;
            Outcome::Changed
        }
    };
    Ok(Ended { command, operation, outcome, complete })
}

/// A command as it is stored after its end was written, for the receipt.
fn stored(connection: &Connection, command: Command, complete: bool) -> Result<Command, LedgerError> {
    if complete && !cfg!(debug_assertions) {
        return Ok(command);
    }
    let read = command::read_fresh(connection, &command.tenant, &command.key)?.ok_or_else(command::no_such_command)?;
    debug_assert!(!complete || receipt::same(&command, &read), "a confirmation is stored as something else");
    Ok(read)
}

/// What is settled for good leaves the relay nothing to do; anything else has a time of its own.
fn wake_after(command: &Command) {
    if !command.live.status.is_final() || command.live.open_case.is_some() {
        wake::at_commit();
    }
}

fn finish(call: &Call, tenant: &str, key: &str, token: [u8; 16], says: Says) -> Result<Option<Datum>, LedgerError> {
    as_owner(call, |caller, connection| {
        let spoken = speak(caller, connection, tenant, key, &token)?;
        let mut batch = batch_of(caller);
        let Ended { command, operation, outcome, complete } = end(connection, &mut batch, spoken, says)?;
        batch.flush(connection)?;
        wake_after(&command);
        let stored = stored(connection, command, complete)?;
        receipt::one(call, connection, &stored, &operation.destination, outcome)
    })
}

/// A document that is to be stored, within the bounds of the canonical form.
fn bounded(document: Option<JsonbArg>) -> Result<Option<JsonbArg>, LedgerError> {
    document.map(|document| canonical(&document.tree()?).map(|_| document)).transpose()
}

fn bounded_text(call: &Call, argument: usize, name: &str, max: usize) -> Result<Option<String>, LedgerError> {
    within(call.text(argument).map(str::to_owned), name, max)
}

fn within(text: Option<String>, name: &str, max: usize) -> Result<Option<String>, LedgerError> {
    match text {
        Some(text) if text.len() > max => {
            Err(LedgerError::new(Code::InvalidArgument, format!("{name} is longer than {max} bytes")))
        }
        text => Ok(text),
    }
}

/// What the journal keeps of a worker's detail: its digest.
fn digest_detail(detail: Option<JsonbArg>) -> Result<Option<Json<'static>>, LedgerError> {
    let Some(detail) = detail else { return Ok(None) };
    let digest = hex(&sha256(canonical(&detail.tree()?)?.as_bytes()));
    Ok(Some(Json::Object(vec![("detail_sha256".into(), Json::String(digest.into()))])))
}

/// `confirm(…)`
pub fn confirm(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token, tenant) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?, tenant_of(call, 4)?);
    let record_id = bounded_text(call, 2, "destination_record_id", 1_000)?;
    let result = bounded(call.jsonb(3))?;
    finish(call, tenant, key, token, Says::Confirmed { record_id, result })
}

/// An array argument with as many elements as there are keys; none given: NULLs.
fn beside<T>(
    call: &Call,
    argument: usize,
    name: &str,
    count: usize,
    read: impl Fn(Datum) -> T,
) -> Result<Vec<Option<T>>, LedgerError> {
    let Some(array) = call.elements(argument) else { return Ok((0..count).map(|_| None).collect()) };
    if array.len() != count {
        return Err(LedgerError::new(Code::InvalidArgument, format!("{name} has {} elements", array.len()))
            .detail(format!("There are {count} keys, and the n-th elements belong together.")));
    }
    Ok(array.into_iter().map(|element| element.map(&read)).collect())
}

/// One command of many that is to be confirmed.
struct Told {
    key: String,
    token: [u8; 16],
    record_id: Option<String>,
    result: Option<JsonbArg>,
}

fn told(call: &Call) -> Result<Vec<Told>, LedgerError> {
    let keys = call.texts(0, "idempotency_keys")?.unwrap_or_default();
    if keys.len() > MAX_CONFIRMED {
        return Err(LedgerError::new(Code::InvalidArgument, format!("more than {MAX_CONFIRMED} commands at once")));
    }
    for key in &keys {
        key::check_idempotency_key(key)?;
    }
    // SAFETY: the arguments are declared uuid[], text[] and jsonb[].
    let tokens = beside(call, 1, "lease_tokens", keys.len(), |d| unsafe { datum::uuid_bytes(d) })?;
    // SAFETY: as above.
    let records = beside(call, 2, "destination_record_ids", keys.len(), |d| unsafe { datum::text_str(d) }.to_owned())?;
    // SAFETY: as above.
    let results = beside(call, 3, "results", keys.len(), |d| unsafe { JsonbArg::new(d) })?;
    let all = keys.into_iter().zip(tokens).zip(records.into_iter().zip(results));
    let mut told: Vec<Told> = Vec::with_capacity(all.size_hint().0);
    for ((key, token), (record_id, result)) in all {
        let token = token.ok_or_else(|| LedgerError::new(Code::NullArgument, "lease_tokens must not contain NULL"))?;
        told.push(Told {
            key,
            token,
            record_id: within(record_id, "destination_record_id", 1_000)?,
            result: bounded(result)?,
        });
    }
    // The order in which every session takes them.
    told.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(twice) = told.windows(2).find(|pair| pair[0].key == pair[1].key) {
        return Err(LedgerError::new(Code::InvalidArgument, "a key stands twice among idempotency_keys")
            .detail(format!("Key: {}.", twice[0].key)));
    }
    Ok(told)
}

/// `confirm_many(…)`
pub fn confirm_many(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (told, tenant) = (told(call)?, tenant_of(call, 4)?);
    let set = RowSet::start(call)?;
    as_owner(call, |caller, connection| {
        let mut batch = batch_of(caller);
        caller.require(connection, Capability::Execute, tenant, None)?;
        let keys: Vec<_> = told.iter().map(|one| (tenant, &*one.key)).collect();
        let commands = command::lock_all(connection, &keys)?;
        let mut done = Vec::with_capacity(told.len());
        for (one, command) in told.into_iter().zip(commands) {
            let Told { key, token, record_id, result } = one;
            let says = Says::Confirmed { record_id, result };
            let ended = command
                .ok_or_else(command::no_such_command)
                .and_then(|command| spoken(caller, connection, command, &token))
                .and_then(|spoken| end(connection, &mut batch, spoken, says))
                .map_err(|error| error.also(&format!("Key: {key}.")))?;
            done.push(ended);
        }
        batch.flush(connection)?;
        for Ended { command, operation, outcome, complete } in done {
            wake_after(&command);
            let stored = stored(connection, command, complete)?;
            receipt::push(connection, &set, &stored, &operation.destination, Some(outcome))?;
        }
        Ok(())
    })?;
    Ok(None)
}

/// `fail(…)`
pub fn fail(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token, tenant) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?, tenant_of(call, 6)?);
    let error = call.oid(2).ok_or_else(|| {
        LedgerError::new(Code::NullArgument, "error must not be NULL")
            .hint("One of not_sent, transient, permanent, permission.")
    })?;
    let (wire, rule) = match enum_label(error).as_str() {
        "not_sent" => (Wire::NotSent { reason: NotSent::Withheld }, None),
        "transient" => (Wire::Answered { status: 429 }, Some(RuleOutcome::Transient)),
        "permanent" => (Wire::Answered { status: 400 }, Some(RuleOutcome::Permanent)),
        "permission" => (Wire::Answered { status: 403 }, Some(RuleOutcome::Permission)),
        other => {
            return Err(LedgerError::new(Code::InvalidArgument, format!("a worker cannot report {other}")).hint(
                "error is one of not_sent, transient, permanent, permission; what is not known is uncertain().",
            ));
        }
    };
    let mut ending = Ending::of(wire);
    ending.matched_rule = rule;
    ending.message = bounded_text(call, 3, "message", 4_000)?;
    ending.detail = digest_detail(call.jsonb(4))?;
    ending.retry_after_ms = call.interval_us(5).map(|us| (us / 1_000).clamp(0, 86_400_000));
    finish(call, tenant, key, token, Says::Ended(Box::new(ending)))
}

/// The label of an enum value.
fn enum_label(value: pg_sys::Oid) -> String {
    // SAFETY: enum_out looks the value up and returns a C string, or raises for an unknown one.
    unsafe {
        let text = pg_sys::OidOutputFunctionCall(pg_sys::Oid::from(pg_sys::F_ENUM_OUT), Datum::from(value));
        std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// `uncertain(…)`
pub fn uncertain(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token, tenant) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?, tenant_of(call, 4)?);
    let mut ending = Ending::of(Wire::NoAnswer { reason: NoAnswer::Unreadable });
    ending.message = bounded_text(call, 2, "message", 4_000)?;
    ending.detail = digest_detail(call.jsonb(3))?;
    ending.uncertain_as = Some(CaseReason::WorkerUncertain);
    finish(call, tenant, key, token, Says::Ended(Box::new(ending)))
}

/// `release(…)`
pub fn release(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token, tenant) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?, tenant_of(call, 2)?);
    finish(call, tenant, key, token, Says::Released)
}

/// `extend_lease(…)`
pub fn extend_lease(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?);
    let (lease_ms, tenant) = (lease_of(call, 2)?, tenant_of(call, 3)?);
    as_owner(call, |caller, connection| {
        let mut spoken = speak(caller, connection, tenant, key, &token)?;
        let command = &mut spoken.command;
        let now_us = datum::now_us();
        if spoken.past.is_some() {
            return Err(LedgerError::new(Code::IllegalTransition, "the lease of this attempt is over")
                .detail(format!("The command is {} (attempt {}).", command.live.status, command.live.attempt))
                .hint("Report what happened with confirm(), fail() or uncertain(): a late answer is kept."));
        }
        let (_, approved_until_us) = approve::approval_state(connection, &spoken.operation, command, now_us)?;
        let absence = command.queued.as_ref().is_some_and(|q| q.absence_place.is_some());
        let rests_on_key = command.live.maybe_sent && !absence;
        let window_end_us =
            command.live.first_sent_us.filter(|_| rests_on_key).and_then(|first| spoken.operation.window_end_us(first));
        let expires_us = lease_expiry_us(now_us, lease_ms, command.deadline_us, approved_until_us, window_end_us);
        let lease = command
            .queued
            .as_mut()
            .and_then(|q| q.lease.as_mut())
            .ok_or_else(|| defect("a dispatched command without a lease"))?;
        let changed = expires_us > lease.expires_us;
        if changed {
            lease.expires_us = expires_us;
            EXTEND.execute(connection, &[Arg::Text(tenant), Arg::Text(key), Arg::Time(expires_us)])?;
        }
        let outcome = if changed { Outcome::Changed } else { Outcome::Unchanged };
        receipt::one(call, connection, command, &spoken.operation.destination, outcome)
    })
}

crate::sql_function!(ledger_extend_lease, pg_finfo_ledger_extend_lease, extend_lease);
crate::sql_function!(ledger_confirm, pg_finfo_ledger_confirm, confirm);
crate::sql_function!(ledger_confirm_many, pg_finfo_ledger_confirm_many, confirm_many);
crate::sql_function!(ledger_fail, pg_finfo_ledger_fail, fail);
crate::sql_function!(ledger_uncertain, pg_finfo_ledger_uncertain, uncertain);
crate::sql_function!(ledger_release, pg_finfo_ledger_release, release);
