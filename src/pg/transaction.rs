//! Facts about the running transaction, durability of its commit, and subtransactions.

use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys;

/// Whether the caller's statement is part of a transaction block, so that its commit is not in our hands.
pub fn in_block() -> bool {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::IsTransactionBlock() || pg_sys::GetCurrentTransactionNestLevel() > 1 }
}

/// Whether an earlier statement of the same pipeline (before its Sync) is part of the running transaction.
pub fn in_pipeline() -> bool {
    // SAFETY: reads a variable of the running transaction.
    unsafe { pg_sys::MyXactFlags & pg_sys::XACT_FLAGS_PIPELINING as i32 != 0 }
}

/// Makes the transaction commit with this very statement, also where a client sends more before its Sync.
pub fn commit_with_this_statement() {
    // SAFETY: sets a flag of the running transaction, as the server does for statements that need it.
    unsafe { pg_sys::MyXactFlags |= pg_sys::XACT_FLAGS_NEEDIMMEDIATECOMMIT as i32 };
}

/// Whether each statement of the transaction sees what others committed before it.
pub fn is_read_committed() -> bool {
    // SAFETY: reads a variable of the running transaction.
    unsafe { pg_sys::XactIsoLevel == pg_sys::XACT_READ_COMMITTED as i32 }
}

/// Whether this server replays another's log and takes no writes.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared state.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Makes the commit of this transaction wait until it is flushed, whatever the settings say, and until the standbys
/// have it where the settings ask for more than that. The caller cannot take it back before the commit.
pub fn force_durable_commit() {
    // SAFETY: sets a flag of the running transaction; the setting is raised for this transaction only, never lowered.
    unsafe {
        pg_sys::ForceSyncCommit();
        if pg_sys::synchronous_commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"on".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Runs `work`, and puts back every setting that it changed, for the session or the transaction. After an error the end
/// of the transaction does so.
pub fn settings_put_back<T>(work: impl FnOnce() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    // SAFETY: a level of settings is opened and closed, as the server does around functions with a SET clause; on a way
    // out that skips the second call the transaction is undone, which closes all levels.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        let done = work();
        pg_sys::AtEOXact_GUC(false, level);
        done
    }
}

/// Runs `work` in a subtransaction: an inner error, a server error or a panic undoes it alone and comes back as `Err`.
pub fn nested<T>(work: impl FnOnce() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    // SAFETY: the memory context and resource owner of the outer transaction are restored on both ways out, as
    // plpgsql's exception blocks do; `work` unwinds (never jumps) to here because every server call is guarded.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let result = match outcome {
            Ok(Ok(value)) => {
                pg_sys::ReleaseCurrentSubTransaction();
                Ok(value)
            }
            failed => {
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
                Err(match failed {
                    Ok(Err(error)) => error,
                    Err(panic) => super::spi::error_from_panic(panic),
                    Ok(Ok(_)) => super::report::defect("unreachable"),
                })
            }
        };
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// Refuses to write in a read-only transaction, and on a standby, whose transactions all are.
pub fn require_writable() -> Result<(), LedgerError> {
    // SAFETY: reads two variables of the backend.
    let (read_only, standby) = unsafe { (pg_sys::XactReadOnly, pg_sys::RecoveryInProgress()) };
    match (standby, read_only) {
        (true, _) => Err(LedgerError::new(Code::ReadOnly, "this server is a standby: its ledger is read-only")),
        (false, true) => {
            Err(LedgerError::new(Code::ReadOnly, "this transaction is read-only, and the call would write"))
        }
        (false, false) => Ok(()),
    }
}
