//! Who calls, and with whose rights the ledger's own statements run.

use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;

/// The current role at entry: SET ROLE decides, not the session's login.
pub fn current() -> Oid {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::GetUserId() }
}

/// Whether the role is a superuser.
pub fn is_superuser(role: Oid) -> bool {
    // SAFETY: a catalog lookup.
    unsafe { pg_sys::superuser_arg(role) }
}

/// Whether there is such a role.
pub fn exists(role: Oid) -> bool {
    // SAFETY: a catalog lookup that may say NULL.
    unsafe { !pg_sys::GetUserNameFromId(role, true).is_null() }
}

/// The name of a role, or its number if it is gone.
pub fn name(role: Oid) -> String {
    // SAFETY: a catalog lookup that may say NULL; the string is copied.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() { role.to_u32().to_string() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// The owner of a SQL function.
pub fn function_owner(function: Oid) -> Option<Oid> {
    // SAFETY: the tuple is only read before it is released; proowner is a fixed column of pg_proc.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, Datum::from(function));
        if tuple.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_proc>();
        let owner = (*form).proowner;
        pg_sys::ReleaseSysCache(tuple);
        Some(owner)
    }
}

/// While this value lives, statements run with another role's rights. An error restores the caller on its own.
pub struct ActingAs {
    role: Oid,
    context: i32,
}

impl ActingAs {
    /// Takes on the rights of `role`, as a SECURITY DEFINER function does.
    pub fn new(role: Oid) -> Self {
        Self::with(role, pg_sys::SECURITY_LOCAL_USERID_CHANGE)
    }

    /// The same for foreign code: it can neither change roles nor leave cursors and temporary objects behind.
    pub fn restricted(role: Oid) -> Self {
        Self::with(role, pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION)
    }

    fn with(role: Oid, flags: u32) -> Self {
        let mut saved = pg_sys::InvalidOid;
        let mut context = 0;
        // SAFETY: saves and sets two backend variables.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut saved, &mut context);
            pg_sys::SetUserIdAndSecContext(role, context | flags.cast_signed());
        }
        Self { role: saved, context }
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        // SAFETY: restores what `new` saved.
        unsafe { pg_sys::SetUserIdAndSecContext(self.role, self.context) }
    }
}
