//! Function destinations: the handler and its confirmation in one transaction per command, so that an error or a lost
//! session proves that there was no effect.

use super::desk::Desk;
use super::sends::{self, Sent};
use super::transaction;
use crate::failpoint;
use crate::ledger::command;
use crate::ledger::dispatch::{self, Claim, Claimed};
use crate::ledger::settle::{self, Ending};
use crate::pg::report::{Level, log};
use crate::pg::role::ActingAs;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use crate::pg::transaction::{force_durable_commit, nested};
use command_ledger_domain::answer::{NotSent, RuleOutcome, Wire};
use command_ledger_domain::config::Transport;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::json::Json;
use pgrx::pg_sys;
use std::ffi::CString;

/// How long a handler may run.
const HANDLER_LEASE_MS: i64 = 60_000;
/// Handlers that run before answers of other destinations are looked after again.
const AT_ONCE: i32 = 5;

static RESOLVE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT p.proowner, pg_catalog.format('%I.%I', n.nspname, p.proname) FROM pg_catalog.pg_proc p \
       JOIN pg_catalog.pg_namespace n ON (n.oid = p.pronamespace) \
      WHERE p.oid = pg_catalog.to_regprocedure($1 || '(command_ledger.dispatch)')::oid",
);

/// Runs the handlers of due commands.
pub fn run_due(desk: &mut Desk, fence: Fence, destination: &str) -> Result<Sent, LedgerError> {
    let epoch = desk.epoch();
    let (claimed, any) = transaction::run(|connection| {
        let mut batch = sends::batch();
        let claim = Claim {
            destination,
            max: AT_ONCE,
            lease_ms: Some(HANDLER_LEASE_MS),
            worker: None,
            epoch: Some(epoch),
            tenants: None,
            command_types: None,
        };
        let claimed = dispatch::claim(connection, &mut batch, fence, &claim)?;
        let any = !batch.is_empty();
        batch.flush(connection)?;
        force_durable_commit();
        Ok((claimed, any))
    })?;
    for one in &claimed {
        failpoint::hit("relay_before_handler");
        let done = transaction::run(|connection| run(connection, one));
        if let Err(error) = done {
            // The handler's writes are gone with its transaction: nothing happened.
            let failed = transaction::run(|connection| not_done(connection, one, &error));
            if let Err(error) = failed {
                log(
                    Level::Warning,
                    &format!("command_ledger relay: a handler's failure could not be settled: {error}"),
                );
            }
        }
    }
    Ok(Sent { any, again_at_us: None })
}

fn lock(connection: &Connection, one: &Claimed) -> Result<Option<command::Command>, LedgerError> {
    let locked = command::lock(connection, &one.command.tenant, &one.command.key)?;
    Ok(locked.filter(|c| c.lease().is_some_and(|l| l.token == one.lease.token)))
}

fn run(connection: &Connection, one: &Claimed) -> Result<(), LedgerError> {
    let Some(mut command) = lock(connection, one)? else { return Ok(()) };
    let Transport::Function { function } = &one.operation.effective.transport else { return Ok(()) };
    let answer = call_handler(connection, function, one)?;
    let mut batch = sends::batch();
    let mut ending = Ending::of(Wire::Answered { status: 200 });
    ending.success_rule_met = true;
    ending.result = answer;
    ending.ended_us = Some(batch.now_us());
    settle::settle(connection, &mut batch, &mut command, &one.operation, ending)?;
    batch.flush(connection)?;
    force_durable_commit();
    failpoint::hit("relay_before_handler_commit");
    Ok(())
}

fn not_done(connection: &Connection, one: &Claimed, error: &LedgerError) -> Result<(), LedgerError> {
    let Some(mut command) = lock(connection, one)? else { return Ok(()) };
    let mut batch = sends::batch();
    let mut ending = Ending::of(Wire::NotSent { reason: NotSent::Withheld });
    ending.matched_rule = Some(RuleOutcome::Transient);
    ending.message = Some(format!("the handler failed: {}", error.message));
    ending.ended_us = Some(batch.now_us());
    settle::settle(connection, &mut batch, &mut command, &one.operation, ending)?;
    batch.flush(connection)
}

/// Calls the handler with its owner's rights. Its name was resolved and quoted by the server.
fn call_handler(connection: &Connection, function: &str, one: &Claimed) -> Result<Option<Json<'static>>, LedgerError> {
    let missing = || {
        LedgerError::new(Code::UnknownName, "the function of the destination does not exist any more")
            .hint("Create it again, or define the destination anew.")
    };
    let found = RESOLVE.first(connection, &[Arg::Text(function)])?.ok_or_else(missing)?;
    let (owner, name) = (found.oid(0).ok_or_else(missing)?, found.text_or_empty(1));
    let command = &one.command;
    let sql = format!(
        "SELECT {name}(ROW($1, NULL::pg_catalog.uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10)::command_ledger.dispatch)::pg_catalog.jsonb"
    );
    let sql = CString::new(sql).map_err(|_| missing())?;
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
    ]
    .map(|a| a.value());
    let mut types = [
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
    let mut values = args.map(|a| a.unwrap_or(pg_sys::Datum::from(0)));
    let nulls = args.map(|a| if a.is_none() { b'n' } else { b' ' } as std::ffi::c_char);
    let _owner = ActingAs::restricted(owner);
    nested(|| {
        // SAFETY: ten types, values and nulls; the statement calls one function by its quoted name.
        let code = unsafe {
            pg_sys::SPI_execute_with_args(
                sql.as_ptr(),
                10,
                types.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_ptr(),
                false,
                1,
            )
        };
        if code < 0 {
            return Err(missing());
        }
        match crate::pg::row::last_rows().row(0) {
            Some(row) => row.json(0),
            None => Ok(None),
        }
    })
}
