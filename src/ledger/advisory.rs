//! Advisory locks of the ledger, held until the transaction ends: for what has no row of its own to lock.

use crate::pg::datum;
use command_ledger_domain::hash::sha256;
use pgrx::pg_sys::{self, Datum};

/// A 64-bit lock number from a name, in this ledger's own part of the advisory lock space.
fn number(parts: &[&[u8]]) -> i64 {
    let mut bytes = b"command_ledger.lock".to_vec();
    for part in parts {
        bytes.push(0);
        bytes.extend_from_slice(part);
    }
    let digest = sha256(&bytes);
    let mut number = [0u8; 8];
    number.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(number)
}

/// Waits for the lock of this name.
pub fn lock(name: &[&[u8]]) {
    take(number(name));
}

/// Waits for the lock under which attempts in flight at a destination are counted and started. Its number is
/// `hashtextextended('command_ledger.claim/' || destination, 0)`, so that a DBA can find it in pg_locks.
pub fn lock_destination(destination: &str) {
    let name = datum::text(&format!("command_ledger.claim/{destination}"));
    let (function, collation) = (pg_sys::F_HASHTEXTEXTENDED.into(), pg_sys::C_COLLATION_OID);
    // SAFETY: the function takes a text and a seed.
    take(unsafe { pg_sys::OidFunctionCall2Coll(function, collation, name, Datum::from(0)) }.value() as i64);
}

fn take(number: i64) {
    // SAFETY: the function takes a bigint; it waits, and an error (a cancel, a deadlock) unwinds.
    unsafe { pgrx::direct_function_call_as_datum(pg_sys::pg_advisory_xact_lock_int8, &[Some(Datum::from(number))]) };
}
