//! Look-alikes: the same content under another key a short time ago, which may be the same intent by mistake.

use super::advisory;
use super::catalog::Operation;
use crate::pg::spi::{Arg, BYTEA, Connection, Mode, Statement, TEXT, TIME};
use crate::relay::counters;
use command_ledger_domain::config::{Lookalike, LookalikeAction};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::policy;
use command_ledger_domain::retry::plus_ms;

static LOOKALIKES: Statement = Statement::new(
    Mode::Latest,
    &[BYTEA, TEXT, TIME, TEXT],
    "SELECT c.idempotency_key FROM command_ledger.command c \
      WHERE c.params_hash = $1 AND c.lookalike_until IS NOT NULL AND c.command_type = $2 AND c.registered_at > $3 \
        AND c.idempotency_key <> $4 ORDER BY c.registered_at DESC LIMIT 20",
);

/// Keys of the tenant's other commands of this type with the same content within the look-alike window.
pub fn commands_like(
    connection: &Connection,
    operation: &Operation,
    key: &str,
    hash: &[u8; 32],
    now_us: i64,
) -> Result<Vec<String>, LedgerError> {
    let Some(Lookalike { window_ms, .. }) = &operation.policy.lookalike else { return Ok(Vec::new()) };
    let since_us = plus_ms(now_us, -window_ms);
    let rows = LOOKALIKES.run(
        connection,
        &[Arg::Bytes(hash), Arg::Text(&operation.command_type), Arg::Time(since_us), Arg::Text(key)],
        20,
    )?;
    Ok(rows.iter().filter_map(|r| r.text(0)).collect())
}

/// CL010 for a command that looks like these.
pub fn blocked(keys: &[&str]) -> LedgerError {
    LedgerError::new(
        Code::LookalikeBlocked,
        "a command of this type with the same content was registered under another key a short time ago",
    )
    .detail(format!("{} such command(s); the newest has the key {:?}.", keys.len(), keys.first().unwrap_or(&"")))
    .hint("If this is the same intent, use that key. If it is meant twice, say so: distinct_from => that key.")
}

/// Look-alikes of new content that the caller did not name as different.
pub fn check(
    connection: &Connection,
    operation: &Operation,
    key: &str,
    hash: &[u8; 32],
    distinct_from: Option<&str>,
    now_us: i64,
) -> Result<Vec<String>, LedgerError> {
    let Some(Lookalike { action, .. }) = &operation.policy.lookalike else { return Ok(Vec::new()) };
    if *action == LookalikeAction::Block {
        // Two look-alikes under different keys at the same moment must see each other.
        advisory::lock(&[b"lookalike", hash]);
    }
    let others = commands_like(connection, operation, key, hash, now_us)?;
    let named: Vec<&str> = distinct_from.into_iter().collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    Ok(match policy::lookalike(*action, &others, &named) {
        policy::Lookalike::Clear => Vec::new(),
        policy::Lookalike::Flag(keys) => keys.into_iter().map(str::to_owned).collect(),
        policy::Lookalike::Block(keys) => {
            counters::count(counters::Counter::LookalikesStopped);
            return Err(blocked(&keys));
        }
    })
}
