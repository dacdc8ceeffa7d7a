//! Approve: the queue of commands that wait for an approval, one row each.

use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT, TIME};
use crate::pg::table::Table;
use command_ledger_domain::error::LedgerError;

const COLUMNS: &[&str] = &["tenant", "idempotency_key", "requested_at", "deadline"];

static INSERT: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TIME],
    "INSERT INTO command_ledger.approval_request (tenant, idempotency_key, requested_at, deadline) VALUES ($1, $2, $3, $4)",
);

static DELETE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT],
    "DELETE FROM command_ledger.approval_request r WHERE r.tenant = $1 AND r.idempotency_key = $2",
);

/// A command waits for approval; its caller holds the record, or has just inserted it.
pub fn insert(
    connection: &Connection,
    tenant: &str,
    key: &str,
    now_us: i64,
    deadline_us: Option<i64>,
) -> Result<(), LedgerError> {
    if let Some(table) = Table::open(c"approval_request", COLUMNS) {
        let row = vec![
            Some(datum::text(tenant)),
            Some(datum::text(key)),
            Some(datum::time(now_us)),
            deadline_us.map(datum::time),
        ];
        let done = table.insert(&[row]);
        table.close();
        return done;
    }
    let args = [Arg::Text(tenant), Arg::Text(key), Arg::Time(now_us), Arg::or_null(deadline_us, Arg::Time)];
    INSERT.execute(connection, &args).map(drop)
}

/// A command waits no longer.
pub fn delete(connection: &Connection, tenant: &str, key: &str) -> Result<(), LedgerError> {
    DELETE.execute(connection, &[Arg::Text(tenant), Arg::Text(key)]).map(drop)
}
