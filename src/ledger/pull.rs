//! Execute and confirm, for workers that claim with SQL and make the call themselves.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::batch::{Actor, Batch, Change};
use super::catalog::{self, Operation};
use super::command::{self, Command, Lease};
use super::dispatch::{self, Claim, Claimed};
use super::receipt::{self, Outcome};
use super::register::{intent_from, register_intent};
use super::settle::{self, Ending};
use super::sweep;
use super::{approve, fence};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb::{self, JsonbArg};
use crate::pg::report::defect;
use crate::pg::spi::{Arg, Connection, Mode, OID, Statement, TEXT, TIME};
use crate::pg::transaction;
use crate::pg::tuple::{RowSet, RowType};
use crate::relay::wake;
use command_ledger_domain::answer::{NoAnswer, NotSent, RuleOutcome, Wire};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::{hex, sha256};
use command_ledger_domain::json::Json;
use command_ledger_domain::retry::{check_lease, lease_expiry_us};
use command_ledger_domain::status::{CaseReason, Event, Status};
use pgrx::pg_sys::{self, Datum};
use std::rc::Rc;

/// Most commands of one claim.
const MAX_CLAIM: i32 = 1_000;
/// Most leases that ran out which one claim judges on its way.
const SWEEP_ON_CLAIM: i64 = 50;

static GRANTS: Statement = Statement::new(
    Mode::Snapshot,
    &[OID],
    "SELECT a.tenant, a.command_types FROM command_ledger.access a \
      WHERE a.capability = 'execute' AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE')",
);

static EXTEND: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME],
    "UPDATE command_ledger.outbox o SET lease_expires_at=$3 WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

static TRANSPORT: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT d.config ->> 'transport' FROM command_ledger.destination d WHERE d.name = $1",
);

/// CL013, and what else a claim needs of its transaction.
fn require_own_transaction() -> Result<(), LedgerError> {
    if transaction::in_block() || transaction::in_pipeline() {
        return Err(LedgerError::new(Code::ClaimInTransaction, "a claim inside a transaction block")
            .detail("The attempt must be committed before the call is made, and in a block the commit comes later.")
            .hint("Run the claim as a statement of its own with autocommit on, then make the call."));
    }
    // SAFETY: reads a variable of the running transaction.
    if unsafe { pg_sys::XactIsoLevel } != pg_sys::XACT_READ_COMMITTED as i32 {
        return Err(LedgerError::new(Code::NotSupported, "a claim needs isolation level READ COMMITTED")
            .hint("SET default_transaction_isolation = 'read committed' for the workers' sessions."));
    }
    transaction::commit_with_this_statement();
    transaction::force_durable_commit();
    Ok(())
}

fn lease_of(call: &Call, argument: usize) -> Result<i64, LedgerError> {
    check_lease(call.interval_us(argument).map_or(60_000, |us| us / 1_000))
}

fn worker_of(call: &Call, argument: usize) -> Result<Option<&str>, LedgerError> {
    let worker = call.text(argument);
    if worker.is_some_and(|w| w.len() > 255 || w.chars().any(char::is_control)) {
        return Err(LedgerError::new(
            Code::InvalidArgument,
            "worker must have at most 255 bytes and no control characters",
        ));
    }
    Ok(worker)
}

fn require_pull(connection: &Connection, destination: &str) -> Result<(), LedgerError> {
    let transport = TRANSPORT
        .first(connection, &[Arg::Text(destination)])?
        .ok_or_else(catalog::unknown_destination)?
        .text_or_empty(0);
    if transport == "pull" {
        return Ok(());
    }
    Err(LedgerError::new(
        Code::InvalidArgument,
        format!("the destination has transport {transport}: the relay sends to it"),
    )
    .hint("Workers claim from destinations with transport pull."))
}

/// Tenants and types that the caller may execute for; `None` means all.
type Scope = (Option<Vec<String>>, Option<Vec<String>>);

fn scope(caller: &Caller, connection: &Connection, tenant: Option<&str>) -> Result<Scope, LedgerError> {
    if let Some(tenant) = tenant {
        caller.require(connection, Capability::Execute, tenant, None)?;
    }
    let wanted = tenant.map(|t| vec![t.to_owned()]);
    if caller.is_superuser() {
        return Ok((wanted, None));
    }
    let (mut tenants, mut types) = (Some(Vec::new()), Some(Vec::new()));
    let rows = GRANTS.run(connection, &[Arg::Oid(caller.role)], 0)?;
    for row in rows.iter() {
        match (row.text(0), &mut tenants) {
            (None, _) => tenants = None,
            (Some(tenant), Some(list)) => list.push(tenant),
            (Some(_), None) => {}
        }
        match (row.texts(1), &mut types) {
            (None, _) => types = None,
            (Some(names), Some(list)) => list.extend(names),
            (Some(_), None) => {}
        }
    }
    if rows.len() == 0 {
        caller.require(connection, Capability::Execute, tenant.unwrap_or("default"), None)?;
    }
    Ok((wanted.or(tenants), types))
}

fn dispatch_fields(claimed: &Claimed) -> [Option<Datum>; 11] {
    let command = &claimed.command;
    [
        Some(datum::uuid(&command.id())),
        Some(datum::uuid(&claimed.lease.token)),
        Some(Datum::from(command.live.attempt)),
        Some(datum::text(&command.tenant)),
        Some(datum::text(&command.key)),
        Some(datum::text(&command.destination_key())),
        Some(datum::text(&command.command_type)),
        Some(Datum::from(command.type_version)),
        Some(jsonb::to_datum(&claimed.params)),
        Some(datum::time(claimed.lease.expires_us)),
        command.deadline_us.map(datum::time),
    ]
}

fn batch_of(caller: &Caller) -> Batch {
    let actor = Actor { role: caller.name(), stated: None };
    Batch::new(datum::now_us(), actor)
}

/// `claim(…)`
pub fn claim(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let destination = call.required_text(0, "destination")?;
    let max = call.int(1).unwrap_or(1);
    if !(1..=MAX_CLAIM).contains(&max) {
        return Err(LedgerError::new(Code::InvalidArgument, format!("max_commands must be from 1 to {MAX_CLAIM}"))
            .detail(format!("Given: {max}.")));
    }
    let (lease_ms, worker) = (lease_of(call, 2)?, worker_of(call, 3)?);
    let tenant = call.datum(4).map(|_| tenant_of(call, 4)).transpose()?;
    require_own_transaction()?;
    let set = RowSet::start(call)?;
    as_owner(call, |caller, connection| {
        let (tenants, command_types) = scope(caller, connection, tenant)?;
        require_pull(connection, destination)?;
        let fence = fence::require_open(connection)?;
        let swept = sweep::expired_leases(connection, Some(destination), None, SWEEP_ON_CLAIM)?;
        let mut batch = batch_of(caller);
        let request = Claim {
            destination,
            max,
            lease_ms: Some(lease_ms),
            worker,
            epoch: None,
            tenants: tenants.as_deref(),
            command_types: command_types.as_deref(),
        };
        let claimed = dispatch::claim(connection, &mut batch, fence, &request)?;
        if swept.changed > 0 || batch.len() > claimed.len() {
            // Something else than a claim: a case to be looked up, a repeat with a time of its own.
            wake::at_commit();
        }
        wake_at_end_of(claimed.iter().map(|one| &one.lease));
        batch.flush(connection)?;
        for one in &claimed {
            if caller.may(connection, Capability::Execute, &one.command.tenant, Some(&one.command.command_type))? {
                set.push(&dispatch_fields(one))?;
            } else {
                return Err(LedgerError::new(
                    Code::InsufficientPrivilege,
                    "this role may execute some types only in some tenants: name the tenant",
                )
                .hint("Call claim() once per tenant: tenant => 'name'."));
            }
        }
        Ok(())
    })?;
    Ok(None)
}

/// The relay judges a lease that ends without a word, and may have read its agenda before this one was given.
fn wake_at_end_of<'a>(leases: impl IntoIterator<Item = &'a Lease>) {
    if let Some(due_us) = leases.into_iter().map(|lease| lease.expires_us).min() {
        wake::at(due_us);
    }
}

/// `register_and_claim(…)`
pub fn register_and_claim(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (lease_ms, worker) = (lease_of(call, 3)?, worker_of(call, 4)?);
    let intent = intent_from(call, 5)?;
    require_own_transaction()?;
    as_owner(call, |caller, connection| {
        for capability in [Capability::Propose, Capability::Execute] {
            caller.require(connection, capability, intent.tenant, Some(intent.command_type))?;
        }
        let fence = fence::require_open(connection)?;
        let done = register_intent(caller, connection, &intent)?;
        let destination = done.operation.destination.clone();
        require_pull(connection, &destination)?;
        let mut command = done.command;
        let mut lease = None;
        // Only what was created here, or is provably unsent and due, may be called; everything else was made before,
        // is open elsewhere, or waits for a person.
        if command.live.status == Status::Approved {
            let mut batch = batch_of(caller);
            let request = Claim {
                destination: &destination,
                max: 1,
                lease_ms: Some(lease_ms),
                worker,
                epoch: None,
                tenants: None,
                command_types: None,
            };
            if let Some(claimed) = dispatch::claim_one(connection, &mut batch, fence, &request, &command)? {
                command = claimed.command;
                wake_at_end_of([&claimed.lease]);
                lease = Some(claimed.lease);
            }
            batch.flush(connection)?;
            if lease.is_none() {
                command =
                    command::read_fresh(connection, intent.tenant, intent.key)?.ok_or_else(command::no_such_command)?;
            }
        }
        let missing = approve::missing(connection, &command)?;
        connection.for_caller(|| {
            let row = RowType::of(call)?;
            let inner = RowType::of_column(&row, 0)?;
            let receipt = receipt::datum_of(&inner, &command, &destination, done.outcome, missing)?;
            row.datum(&[
                Some(receipt),
                lease.as_ref().map(|l| datum::uuid(&l.token)),
                lease.as_ref().map(|l| datum::time(l.expires_us)),
            ])
            .map(Some)
        })
    })
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
    let command = command::lock_existing(connection, tenant, key)?;
    caller.require(connection, Capability::Execute, tenant, Some(&command.command_type))?;
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
    Confirmed { record_id: Option<String>, result: Option<Json<'static>> },
    Ended(Box<Ending>),
    Released,
}

fn finish(call: &Call, tenant: &str, key: &str, token: [u8; 16], says: Says) -> Result<Option<Datum>, LedgerError> {
    as_owner(call, |caller, connection| {
        let mut spoken = speak(caller, connection, tenant, key, &token)?;
        let mut batch = batch_of(caller);
        let (command, operation) = (&mut spoken.command, &spoken.operation);
        let outcome = match (spoken.past, says) {
            (Some(past), says) => {
                let (success, record_id, result) = match says {
                    Says::Confirmed { record_id, result } => (true, record_id, result),
                    _ => (false, None, None),
                };
                settle::settle_late(connection, &mut batch, command, operation, &past, success, record_id, result)?;
                Outcome::Late
            }
            (None, Says::Confirmed { record_id, result }) => {
                let mut ending = Ending::of(Wire::Answered { status: 200 });
                ending.success_rule_met = true;
                ending.record_id = record_id;
                ending.result = result;
                settle::settle(connection, &mut batch, command, operation, ending)?;
                Outcome::Changed
            }
            (None, Says::Ended(mut ending)) => {
                ending.ended_us = Some(batch.now_us());
                settle::settle(connection, &mut batch, command, operation, *ending)?;
                Outcome::Changed
            }
            (None, Says::Released) => {
                let now_us = batch.now_us();
                let (approval, _) = approve::approval_state(connection, operation, command, now_us)?;
                let change = Change { due_us: Some(now_us), uncounted: true, ..Change::default() };
                batch.apply(command, approval, &operation.destination, Event::Release, change)?;
                Outcome::Changed
            }
        };
        batch.flush(connection)?;
        wake::at_commit();
        let stored = command::read_fresh(connection, tenant, key)?.ok_or_else(command::no_such_command)?;
        receipt::one(call, connection, &stored, &operation.destination, outcome)
    })
}

fn bounded(document: Option<JsonbArg>) -> Result<Option<Json<'static>>, LedgerError> {
    let Some(document) = document else { return Ok(None) };
    let tree = document.tree()?.into_owned();
    canonical(&tree)?;
    Ok(Some(tree))
}

fn bounded_text(call: &Call, argument: usize, name: &str, max: usize) -> Result<Option<String>, LedgerError> {
    match call.text(argument) {
        Some(text) if text.len() > max => {
            Err(LedgerError::new(Code::InvalidArgument, format!("{name} is longer than {max} bytes")))
        }
        text => Ok(text.map(str::to_owned)),
    }
}

/// What the journal keeps of a worker's detail: its digest.
fn digest_detail(detail: &Option<Json<'static>>) -> Result<Option<Json<'static>>, LedgerError> {
    let Some(detail) = detail else { return Ok(None) };
    let digest = hex(&sha256(canonical(detail)?.as_bytes()));
    Ok(Some(Json::Object(vec![("detail_sha256".into(), Json::String(digest.into()))])))
}

/// `confirm(…)`
pub fn confirm(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, token, tenant) = (key_of(call, 0)?, call.required_uuid(1, "lease_token")?, tenant_of(call, 4)?);
    let record_id = bounded_text(call, 2, "destination_record_id", 1_000)?;
    let result = bounded(call.jsonb(3))?;
    finish(call, tenant, key, token, Says::Confirmed { record_id, result })
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
    ending.detail = digest_detail(&bounded(call.jsonb(4))?)?;
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
    ending.detail = digest_detail(&bounded(call.jsonb(3))?)?;
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

crate::sql_function!(ledger_claim, pg_finfo_ledger_claim, claim);
crate::sql_function!(ledger_register_and_claim, pg_finfo_ledger_register_and_claim, register_and_claim);
crate::sql_function!(ledger_extend_lease, pg_finfo_ledger_extend_lease, extend_lease);
crate::sql_function!(ledger_confirm, pg_finfo_ledger_confirm, confirm);
crate::sql_function!(ledger_fail, pg_finfo_ledger_fail, fail);
crate::sql_function!(ledger_uncertain, pg_finfo_ledger_uncertain, uncertain);
crate::sql_function!(ledger_release, pg_finfo_ledger_release, release);
