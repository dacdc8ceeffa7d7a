//! Making room: DROP DATABASE, ALTER DATABASE … RENAME or SET TABLESPACE, and CREATE DATABASE … TEMPLATE need a database
//! that nobody is connected to, and would wait five seconds for a relay and then fail. So the relay is asked to leave
//! first, may not come back before that transaction ends, and is started again by the launcher afterwards.
//!
//! | command | seen by | who may make the relay leave |
//! |---|---|---|
//! | DROP DATABASE | object access hook, after the server checked the right | who may drop it |
//! | RENAME, SET TABLESPACE | utility hook, before the server checks anything | its owner |
//! | CREATE DATABASE … TEMPLATE | utility hook | its owner, or who may create databases if it is a template |
//!
//! Where the library is not preloaded there are no hooks: stop_relay() first, or DROP DATABASE … WITH (FORCE).

use super::{shared, wake};
use crate::pg::latch::nap;
use crate::pg::report::{Level, log};
use pgrx::pg_sys::{self, NodeTag, Oid};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// How long a session waits for the relay to leave: the longest shutdown grace that is sensible, and some. The server
/// itself waits another five seconds before it gives up.
const LEAVE_MAX_MS: i64 = 10_000;
const LOOK_EVERY_MS: i64 = 20;

/// The database that this session wants empty until its transaction ends; 0 for none.
static HELD: AtomicU32 = AtomicU32::new(0);

static mut PREVIOUS_ACCESS: pg_sys::object_access_hook_type = None;
static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;

/// Puts the hooks in place. In the postmaster, while shared libraries are being preloaded.
pub fn register() {
    // SAFETY: hook variables are only touched by the postmaster's one thread at this time.
    unsafe {
        PREVIOUS_ACCESS = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(on_access);
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(on_utility);
    }
}

/// Ends this session's hold on a database. Only atomics and a latch: called in the commit and abort callback.
pub fn let_go() {
    let database = HELD.swap(0, SeqCst);
    if database == 0 {
        return;
    }
    if let Some(slot) = shared::find(database) {
        // SAFETY: reads a backend variable.
        let me = unsafe { pg_sys::MyProcPid };
        let _ = slot.hold_pid.compare_exchange(me, 0, SeqCst, SeqCst);
    }
    if let Some(shared) = shared::shared() {
        shared.rescan.store(1, SeqCst);
        shared::wake_launcher();
    }
}

/// The frames of both hooks hold nothing to be dropped: an error of a previous hook or of the server passes through.
unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: Oid,
    object: Oid,
    sub: std::ffi::c_int,
    arg: *mut std::ffi::c_void,
) {
    // SAFETY: the previous hook gets what we got; our own part turns an error into a server error at this boundary.
    unsafe {
        if let Some(previous) = PREVIOUS_ACCESS {
            previous(access, class, object, sub, arg);
        }
        if class == pg_sys::DatabaseRelationId || class == pg_sys::ExtensionRelationId {
            pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard(|| seen(access, class, object));
        }
    }
}

fn seen(access: pg_sys::ObjectAccessType::Type, class: Oid, object: Oid) {
    use pg_sys::ObjectAccessType::{OAT_DROP, OAT_POST_CREATE};
    let database = class == pg_sys::DatabaseRelationId;
    match access {
        OAT_DROP if database => make_room(object),
        // A new database may be a copy of one with a ledger.
        OAT_POST_CREATE if database => wake::launcher(),
        // Which extension it is does not matter: the worker looks.
        OAT_POST_CREATE => wake::extension_changed(),
        OAT_DROP if shared::my_known_slot().is_some() => wake::extension_changed(),
        _ => {}
    }
}

unsafe extern "C-unwind" fn on_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const std::ffi::c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the server hands in a utility statement; our own part is guarded, and the rest is called with what we got,
    // as the server would have called it.
    unsafe {
        let node = (*statement).utilityStmt;
        if !node.is_null()
            && matches!((*node).type_, NodeTag::T_CreatedbStmt | NodeTag::T_RenameStmt | NodeTag::T_AlterDatabaseStmt)
        {
            pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard(|| before(node));
        }
        match PREVIOUS_UTILITY {
            Some(previous) => {
                previous(statement, query, read_only_tree, context, params, environment, dest, completion);
            }
            None => {
                standard_process_utility(
                    statement,
                    query,
                    read_only_tree,
                    context,
                    params,
                    environment,
                    dest,
                    completion,
                );
            }
        }
    }
}

unsafe extern "C-unwind" {
    /// Without pgrx's frame, which every utility statement of the server would pay for.
    #[link_name = "standard_ProcessUtility"]
    fn standard_process_utility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const std::ffi::c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        dest: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// The option of this name in a list of options.
unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<*mut pg_sys::DefElem> {
    // SAFETY: the parser makes a list of DefElem.
    unsafe {
        pgrx::PgList::<pg_sys::DefElem>::from_pg(options)
            .iter_ptr()
            .find(|element| CStr::from_ptr((**element).defname) == name)
    }
}

fn before(node: *mut pg_sys::Node) {
    // SAFETY: the node's tag says which struct it is; names are NUL-terminated strings of the parser.
    unsafe {
        match (*node).type_ {
            NodeTag::T_CreatedbStmt => {
                let create = node.cast::<pg_sys::CreatedbStmt>();
                let template = match option((*create).options, c"template") {
                    Some(element) if !(*element).arg.is_null() => pg_sys::defGetString(element).cast_const(),
                    _ => c"template1".as_ptr(),
                };
                let source = pg_sys::get_database_oid(template, true);
                if may_copy(source) {
                    make_room_in(source);
                }
            }
            NodeTag::T_RenameStmt => {
                let rename = node.cast::<pg_sys::RenameStmt>();
                if (*rename).renameType == pg_sys::ObjectType::OBJECT_DATABASE && !(*rename).subname.is_null() {
                    let database = pg_sys::get_database_oid((*rename).subname, true);
                    if owns(database) {
                        make_room_in(database);
                    }
                }
            }
            NodeTag::T_AlterDatabaseStmt => {
                let alter = node.cast::<pg_sys::AlterDatabaseStmt>();
                if option((*alter).options, c"tablespace").is_some() {
                    let database = pg_sys::get_database_oid((*alter).dbname, true);
                    if owns(database) {
                        make_room_in(database);
                    }
                }
            }
            _ => {}
        }
    }
}

fn owns(database: Oid) -> bool {
    if database == pg_sys::InvalidOid {
        return false;
    }
    let role = crate::pg::role::current();
    // SAFETY: a catalog look-up; it raises if the database vanished, as the statement itself would.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::pg_database_ownercheck(database, role)
    }
    // SAFETY: as above.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, role)
    }
}

fn may_copy(database: Oid) -> bool {
    if database == pg_sys::InvalidOid {
        return false;
    }
    if owns(database) {
        return true;
    }
    // SAFETY: both tuples are only read before they are released; the columns are fixed ones.
    unsafe {
        let tuple =
            pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::DATABASEOID as i32, pg_sys::Datum::from(database));
        if tuple.is_null() {
            return false;
        }
        let is_template = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>()).datistemplate;
        pg_sys::ReleaseSysCache(tuple);
        if !is_template {
            return false;
        }
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::AUTHOID as i32,
            pg_sys::Datum::from(crate::pg::role::current()),
        );
        if tuple.is_null() {
            return false;
        }
        let creates = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_authid>()).rolcreatedb;
        pg_sys::ReleaseSysCache(tuple);
        creates
    }
}

/// Makes room in a database that stays. It may have no slot yet, because the launcher is about to start its relay: that
/// one must see that it may not.
fn make_room_in(database: Oid) {
    if shared::claim(database.to_u32()).is_some() {
        make_room(database);
    }
}

/// Asks the relay of a database and its functions worker to leave, and waits until they have. They may not come back
/// before this transaction ends.
fn make_room(database: Oid) {
    let Some(slot) = shared::find(database.to_u32()) else { return };
    let_go();
    // SAFETY: reads a backend variable.
    slot.hold_pid.store(unsafe { pg_sys::MyProcPid }, SeqCst);
    HELD.store(database.to_u32(), SeqCst);
    let until_ms = super::signals::monotonic_ms() + LEAVE_MAX_MS;
    let mut asked = [0, 0];
    loop {
        let there = [slot.pid.load(SeqCst), slot.functions_pid.load(SeqCst)];
        let Some(pid) = there.into_iter().find(|pid| *pid != 0) else { return };
        for (pid, asked) in there.into_iter().zip(&mut asked) {
            if pid != 0 && pid != *asked {
                stop(pid, database);
                *asked = pid;
            }
        }
        if super::signals::monotonic_ms() > until_ms {
            log(Level::Warning, &format!("the relay (pid {pid}) does not leave the database"));
            return;
        }
        nap(LOOK_EVERY_MS);
    }
}

/// Sends SIGTERM to a relay, after making sure that the process is one of this database.
pub fn stop(pid: i32, database: Oid) -> bool {
    // SAFETY: the array entry is only read; a process that ends meanwhile makes the signal fail, which is as good.
    unsafe {
        let proc = pg_sys::BackendPidGetProc(pid);
        if proc.is_null() || (*proc).databaseId != database {
            return false;
        }
        libc::kill(pid, libc::SIGTERM) == 0
    }
}
