//! `health()`: says in words whether the ledger and its relay can work, and if nothing moves, why not and what to do.
//!
//! Facts about the server are for whoever has a capability that looks after the ledger; ages of commands and cases are
//! limited to the tenants of the caller's grants.
//!
//! | file | rows |
//! |---|---|
//! | `server` | preloaded, standby, durability, clock, worker_slots |
//! | `functions` | functions_worker |
//! | `relay` | relay_running, relay_enabled, fence, paused_destinations, secrets |
//! | `ledger` | outbox, reconciliation, other_identity, guards, version |

mod functions;
mod ledger;
mod relay;
mod server;

use crate::ledger::access::{Caller, Capability, as_owner};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, Mode, OID, Statement, TEXTS};
use crate::pg::tuple::RowSet;
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys::Datum;

/// A refusal to start a worker, or a step of the clock, is reported this long.
const RECENT_US: i64 = 3_600_000_000;

static GRANTS: Statement = Statement::new(
    Mode::Fresh,
    &[OID, TEXTS],
    "SELECT DISTINCT a.tenant FROM command_ledger.access a \
      WHERE a.capability = ANY ($2) AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE')",
);

/// The tenants for which the caller has one of the capabilities: `None` nothing, `Some(None)` all, else these.
pub fn tenants_of(
    caller: &Caller,
    connection: &Connection,
    capabilities: &[Capability],
) -> Result<Option<Option<Vec<String>>>, LedgerError> {
    if caller.is_superuser() {
        return Ok(Some(None));
    }
    let words: Vec<String> = capabilities.iter().map(|c| c.as_str().to_owned()).collect();
    let rows = GRANTS.run(connection, &[Arg::Oid(caller.role), Arg::Texts(&words)], 0)?;
    if rows.len() == 0 {
        return Ok(None);
    }
    let tenants: Vec<Option<String>> = rows.iter().map(|row| row.text(0)).collect();
    Ok(Some(tenants.into_iter().collect()))
}

/// The tenants that the caller may look at; `None`: all.
type Tenants<'a> = Option<&'a [String]>;

fn only(tenants: Tenants) -> Arg {
    Arg::or_null(tenants, Arg::Texts)
}

/// One row of the answer.
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
    hint: Option<String>,
}

impl Check {
    fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, ok: true, detail: detail.into(), hint: None }
    }

    fn bad(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, ok: false, detail: detail.into(), hint: Some(hint.into()) }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A span of time for a person.
fn span(us: i64) -> String {
    let s = us.max(0) / 1_000_000;
    match s {
        0..=119 => format!("{s} s"),
        120..=7_199 => format!("{} min", s / 60),
        7_200..=172_799 => format!("{} h", s / 3_600),
        _ => format!("{} days", s / 86_400),
    }
}

/// `health()`
pub fn health(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let set = RowSet::start(call)?;
    let checks = as_owner(call, |caller, connection| {
        const LOOKING_AFTER: [Capability; 3] = [Capability::Audit, Capability::Operate, Capability::Administer];
        let Some(tenants) = tenants_of(caller, connection, &LOOKING_AFTER)? else {
            return Err(LedgerError::new(
                Code::InsufficientPrivilege,
                format!("role {} may not see the state of the ledger", caller.name()),
            )
            .hint("An administrator can allow it: SELECT command_ledger.grant_access(role, 'audit')."));
        };
        let tenants = tenants.as_deref();
        let now_us = datum::now_us();
        Ok([
            server::preloaded(),
            server::standby(),
            relay::running(connection, now_us)?,
            functions::worker(connection, tenants, now_us)?,
            relay::enabled(),
            relay::fenced(connection)?,
            server::durability(),
            relay::paused(connection, now_us)?,
            relay::secrets(connection)?,
            ledger::outbox(connection, tenants, now_us)?,
            ledger::reconciliation(connection, tenants, now_us)?,
            server::clock(connection, now_us)?,
            server::worker_slots(now_us),
            ledger::other_identity(connection, tenants)?,
            ledger::guards(connection)?,
            ledger::version(connection)?,
        ])
    })?;
    for check in checks {
        set.push(&[
            Some(datum::text(check.name)),
            Some(Datum::from(check.ok)),
            Some(datum::text(&check.detail)),
            check.hint.as_deref().map(datum::text),
        ])?;
    }
    Ok(None)
}

crate::sql_function!(ledger_health, pg_finfo_ledger_health, health);
