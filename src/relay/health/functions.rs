//! Whether the functions worker runs where it is needed.

use super::{Check, Tenants, only, span};
use crate::pg::spi::{Connection, Mode, Statement, TEXTS};
use crate::pg::transaction;
use crate::relay::lock;
use command_ledger_domain::error::LedgerError;

/// Work that is due for this long and nobody is there to do it: something is wrong.
const PATIENCE_US: i64 = 5_000_000;

/// How many function destinations there are, and since when one that is not paused has due work.
static FUNCTIONS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.count(*), pg_catalog.min(q.due_at) FILTER (WHERE d.paused_at IS NULL) \
       FROM command_ledger.destination d LEFT JOIN LATERAL ( \
         SELECT o.due_at FROM command_ledger.outbox o \
          WHERE o.destination = d.name AND o.lease_token IS NULL AND ($1 IS NULL OR o.tenant = ANY ($1)) \
          ORDER BY o.due_at LIMIT 1) q ON (true) \
      WHERE (d.config ->> 'transport') = 'function'",
);

/// `functions_worker`
pub fn worker(connection: &Connection, tenants: Tenants, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "functions_worker";
    if let Some(holder) = lock::functions_holder(connection)? {
        let since = holder.since_us.map_or_else(String::new, |us| format!(", for {}", span(now_us - us)));
        return Ok(Check::good(NAME, format!("the functions worker runs (pid {}{since})", holder.pid))
            .hint("pg_stat_activity shows which handler it runs."));
    }
    if transaction::in_recovery() {
        return Ok(Check::good(NAME, "no functions worker runs, as it should be on a standby"));
    }
    let row = FUNCTIONS.first(connection, &[only(tenants)])?;
    if row.as_ref().and_then(|r| r.big(0)).unwrap_or(0) == 0 {
        return Ok(Check::good(NAME, "no destination of transport function is defined, and no functions worker runs"));
    }
    Ok(match row.and_then(|r| r.time(1)).map(|due_us| now_us - due_us) {
        Some(late_us) if late_us > PATIENCE_US => Check::bad(
            NAME,
            format!("a command of a function destination is due for {}, and no functions worker runs", span(late_us)),
            "The relay starts it: see the rows relay_running, relay_enabled, fence and worker_slots, and the server's log.",
        ),
        _ => {
            Check::good(NAME, "no functions worker runs; it is started when a command of a function destination is due")
        }
    })
}
