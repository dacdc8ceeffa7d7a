//! Execute, for workers that claim with SQL and make the call themselves.

use super::access::{Caller, Capability, as_owner, tenant_of};
use super::catalog;
use super::command::{self, Lease};
use super::dispatch::{self, Claim, Claimed, Claims};
use super::pull::batch_of;
use super::receipt;
use super::register::{intent_from, register_intent};
use super::room::{self, Room};
use super::sweep::{self, Swept};
use super::{approve, fence};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb;
use crate::pg::spi::{Arg, Connection, Mode, OID, Statement};
use crate::pg::transaction::{self, nested};
use crate::pg::tuple::{RowSet, RowType};
use crate::relay::wake;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::retry::check_lease;
use command_ledger_domain::status::Status;
use pgrx::pg_sys::Datum;
use std::cell::Cell;

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

/// CL013, and what else a claim needs of its transaction.
fn require_own_transaction() -> Result<(), LedgerError> {
    if transaction::in_block() || transaction::in_pipeline() {
        return Err(LedgerError::new(Code::ClaimInTransaction, "a claim inside a transaction block")
            .detail("The attempt must be committed before the call is made, and in a block the commit comes later.")
            .hint("Run the claim as a statement of its own with autocommit on, then make the call."));
    }
    if !transaction::is_read_committed() {
        return Err(LedgerError::new(Code::NotSupported, "a claim needs isolation level READ COMMITTED")
            .hint("SET default_transaction_isolation = 'read committed' for the workers' sessions."));
    }
    transaction::commit_with_this_statement();
    transaction::force_durable_commit();
    Ok(())
}

/// The lease argument of a function, in milliseconds.
pub fn lease_of(call: &Call, argument: usize) -> Result<i64, LedgerError> {
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
    let known = catalog::destination(connection, destination)?;
    if known.transport == "pull" {
        return Ok(());
    }
    Err(LedgerError::new(
        Code::InvalidArgument,
        format!("the destination has transport {}: the relay sends to it", known.transport),
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
        Some(claimed.stored_params.unwrap_or_else(|| jsonb::to_datum(&claimed.params))),
        Some(datum::time(claimed.lease.expires_us)),
        command.deadline_us.map(datum::time),
    ]
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
        // Leases that ran out give their places back. Only if there is one: looking costs a statement.
        let mut room = room::enter(connection, destination, max)?;
        let mut swept = Swept::default();
        if room.first_lease_us.is_some_and(|expires_us| expires_us <= datum::now_us()) {
            swept = sweep::expired_leases(connection, Some(destination), None, SWEEP_ON_CLAIM)?;
            room = room::room(connection, destination, max)?;
        }
        let request = Claim {
            destination,
            max,
            lease_ms: Some(lease_ms),
            worker,
            epoch: None,
            tenants: tenants.as_deref(),
            command_types: command_types.as_deref(),
        };
        let claims = claim_carefully(caller, connection, fence, &request, &room)?;
        if swept.changed > 0 || claims.others {
            // Something else than a claim: a case to be looked up, a repeat with a time of its own.
            wake::at_commit();
        }
        wake_at_end_of(claims.claimed.iter().map(|one| &one.lease));
        for one in &claims.claimed {
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

thread_local! {
    /// Whether the next claim of this session runs in a subtransaction: the first one does, and the one after a failure.
    static CAREFUL: Cell<bool> = const { Cell::new(true) };
}

/// Claims together, and one by one if that fails. A subtransaction costs something, so a session whose last claim went
/// well does without: should this one fail, its error reaches the worker, and the next claim is careful again.
fn claim_carefully(
    caller: &Caller,
    connection: &Connection,
    fence: Fence,
    request: &Claim,
    room: &Room,
) -> Result<Claims, LedgerError> {
    let together = || dispatch::claim_together(connection, batch_of(caller), fence, request, room);
    let claims = if CAREFUL.replace(true) {
        nested(together).or_else(|error| match error.code {
            // Not a command's fault, and not to be swallowed.
            Code::Canceled => Err(error),
            _ => dispatch::claim_each(connection, || batch_of(caller), fence, request, room),
        })?
    } else {
        together()?
    };
    CAREFUL.set(false);
    Ok(claims)
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

crate::sql_function!(ledger_claim, pg_finfo_ledger_claim, claim);
crate::sql_function!(ledger_register_and_claim, pg_finfo_ledger_register_and_claim, register_and_claim);
