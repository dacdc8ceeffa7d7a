//! Advisory locks of the ledger, held until the transaction ends: for what has no row of its own to lock.

use crate::pg::datum;
use command_ledger_domain::hash::short;
use pgrx::pg_sys::{self, Datum};

/// A 64-bit lock number from a name, in this ledger's own part of the advisory lock space.
fn number(parts: &[&[u8]]) -> i64 {
    let mut bytes = b"command_ledger.lock".to_vec();
    for part in parts {
        bytes.push(0);
        bytes.extend_from_slice(part);
    }
    short(&bytes).cast_signed()
}

/// Waits for the lock of this name.
pub fn lock(name: &[&[u8]]) {
    take(number(name));
}

/// Waits for the lock under which attempts in flight at a destination are counted and started, to hold it alone. Its
/// number is `hashtextextended('command_ledger.claim/' || destination, 0)`, so that a DBA can find it in pg_locks.
pub fn lock_destination(destination: &str) {
    take(destination_number(destination));
}

/// Waits for a destination's lock, to share it with others who start attempts but do not count.
pub fn share_destination(destination: &str) {
    let tag = tag(destination_number(destination));
    // SAFETY: the server's own call for pg_advisory_xact_lock_shared; it waits, and an error (a cancel) unwinds.
    unsafe { pg_sys::LockAcquire(&tag, pg_sys::ShareLock as pg_sys::LOCKMODE, false, false) };
}

/// Gives a shared destination's lock back before the transaction ends, when nothing was done under it.
pub fn leave_destination(destination: &str) {
    let tag = tag(destination_number(destination));
    // SAFETY: taken by `share_destination` under the same resource owner.
    unsafe { pg_sys::LockRelease(&tag, pg_sys::ShareLock as pg_sys::LOCKMODE, false) };
}

fn destination_number(destination: &str) -> i64 {
    let name = datum::text(&format!("command_ledger.claim/{destination}"));
    let (function, collation) = (pg_sys::F_HASHTEXTEXTENDED.into(), pg_sys::C_COLLATION_OID);
    // SAFETY: the function takes a text and a seed.
    unsafe { pg_sys::OidFunctionCall2Coll(function, collation, name, Datum::from(0)) }.value() as i64
}

/// The lock tag of an advisory lock with one number.
fn tag(number: i64) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: reads a variable of the backend.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: (number >> 32) as u32,
        locktag_field3: number as u32,
        // 1: an advisory lock of one bigint.
        locktag_field4: 1,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    }
}

fn take(number: i64) {
    // SAFETY: the function takes a bigint; it waits, and an error (a cancel, a deadlock) unwinds.
    unsafe { pgrx::direct_function_call_as_datum(pg_sys::pg_advisory_xact_lock_int8, &[Some(Datum::from(number))]) };
}
