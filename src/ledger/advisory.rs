//! Advisory locks of the ledger, held until the transaction ends: for what has no row of its own to lock.

use crate::pg::spi::{Arg, BIGINT, Connection, Mode, Statement};
use command_ledger_domain::error::LedgerError;

static LOCK: Statement = Statement::new(Mode::Fresh, &[BIGINT], "SELECT pg_catalog.pg_advisory_xact_lock($1)");

/// A 64-bit lock number from a name, in this ledger's own part of the advisory lock space.
fn number(parts: &[&[u8]]) -> i64 {
    let mut bytes = b"command_ledger.lock".to_vec();
    for part in parts {
        bytes.push(0);
        bytes.extend_from_slice(part);
    }
    let digest = command_ledger_domain::hash::sha256(&bytes);
    let mut number = [0u8; 8];
    number.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(number)
}

/// Waits for the lock of this name.
pub fn lock(connection: &Connection, name: &[&[u8]]) -> Result<(), LedgerError> {
    LOCK.first(connection, &[Arg::Big(number(name))])?;
    Ok(())
}
