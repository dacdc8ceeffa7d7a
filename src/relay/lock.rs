//! The locks that make a relay, and a functions worker, the only one of its database, held by the session for its whole
//! life.
//!
//! They are of the kind "userlock": the same table and the same rules as an advisory lock, but no SQL function can take
//! one, so that nobody can keep a relay from working by taking its lock. In pg_locks: locktype `userlock`, the database,
//! classid 1129071687 ("CLDG"), objid 1 for the relay and 2 for the functions worker.

use crate::pg::spi::{Arg, Connection, Mode, OID, Statement};
use command_ledger_domain::error::LedgerError;
use pgrx::pg_sys;

/// "CLDG"
const CLASS: u32 = 0x434C_4447;
const RELAY: u32 = 1;
const FUNCTIONS: u32 = 2;

static HOLDER: Statement = Statement::new(
    Mode::Fresh,
    &[OID],
    "SELECT l.pid, a.backend_start, a.application_name FROM pg_catalog.pg_locks l \
       JOIN pg_catalog.pg_database d ON (d.oid = l.database AND d.datname = pg_catalog.current_database()) \
       LEFT JOIN pg_catalog.pg_stat_activity a ON (a.pid = l.pid) \
      WHERE l.locktype = 'userlock' AND l.classid = 1129071687 AND l.objid = $1 AND l.granted LIMIT 1",
);

/// The process that holds the lock.
pub struct Holder {
    /// Its process id.
    pub pid: i32,
    /// When it started, Unix microseconds.
    pub since_us: Option<i64>,
}

fn holder_of(connection: &Connection, object: u32) -> Result<Option<Holder>, LedgerError> {
    let row = HOLDER.first(connection, &[Arg::Oid(object.into())])?;
    Ok(row.and_then(|row| Some(Holder { pid: row.int(0)?, since_us: row.time(1) })))
}

/// Who holds the relay's lock of this database; works without shared memory, and on a standby.
pub fn holder(connection: &Connection) -> Result<Option<Holder>, LedgerError> {
    holder_of(connection, RELAY)
}

/// Who holds the lock of the functions worker.
pub fn functions_holder(connection: &Connection) -> Result<Option<Holder>, LedgerError> {
    holder_of(connection, FUNCTIONS)
}

fn take_object(object: u32) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: super::shared::my_database(),
        locktag_field2: CLASS,
        locktag_field3: object,
        locktag_field4: 1,
        locktag_type: pg_sys::LockTagType::LOCKTAG_USERLOCK as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    };
    // SAFETY: a well-formed tag; a session lock needs no resource owner and is released when the process ends.
    let answer = unsafe { pg_sys::LockAcquire(&tag, pg_sys::ExclusiveLock as pg_sys::LOCKMODE, true, true) };
    answer != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Takes the relay's lock for the life of this session, without waiting. False: another process holds it.
pub fn take() -> bool {
    take_object(RELAY)
}

/// The same for the lock of the functions worker.
pub fn take_functions() -> bool {
    take_object(FUNCTIONS)
}

/// Gives back what advisory locks a handler left with the session, and makes sure of the worker's own lock, which
/// `pg_advisory_unlock_all()` gives back too. False: another process has it now. That harms nothing: what a handler did
/// is protected by the row of its command, not by this lock.
pub fn only_functions() -> bool {
    // SAFETY: outside of a transaction; releases this session's locks of one kind.
    unsafe { pg_sys::LockReleaseSession(pg_sys::USER_LOCKMETHOD as u16) };
    take_functions()
}
