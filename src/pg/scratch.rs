//! Memory for what is looked at and let go, many times in one call.

use pgrx::pg_sys;
use std::ffi::CStr;

/// A memory context of its own.
pub struct Scratch {
    context: pg_sys::MemoryContext,
}

impl Scratch {
    /// An empty one below the current context, for small things: it ends with that one at the latest.
    pub fn new() -> Self {
        let sizes = [pg_sys::ALLOCSET_SMALL_MINSIZE, pg_sys::ALLOCSET_SMALL_INITSIZE, pg_sys::ALLOCSET_SMALL_MAXSIZE];
        // SAFETY: the current context is one.
        unsafe { Self::below(pg_sys::CurrentMemoryContext, c"command_ledger scratch", sizes) }
    }

    /// An empty one for as long as the process lives, for what each step of a worker needs, whatever that is.
    pub fn for_steps() -> Self {
        let sizes =
            [pg_sys::ALLOCSET_DEFAULT_MINSIZE, pg_sys::ALLOCSET_DEFAULT_INITSIZE, pg_sys::ALLOCSET_DEFAULT_MAXSIZE];
        // SAFETY: the process's long-lived memory.
        unsafe { Self::below(pg_sys::TopMemoryContext, c"command_ledger relay step", sizes) }
    }

    unsafe fn below(parent: pg_sys::MemoryContext, name: &'static CStr, sizes: [u32; 3]) -> Self {
        let [least, first, most] = sizes.map(|size| size as usize);
        // SAFETY: a child of a context; the name is static, as the server keeps no copy.
        Self { context: unsafe { pg_sys::AllocSetContextCreateInternal(parent, name.as_ptr(), least, first, most) } }
    }

    /// Runs `work`, and gives back what the server allocated for it: no datum may leave.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the context lives as long as this value. An error leaves it current, and the one who catches it
        // switches to a context of his own.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.context);
            let done = work();
            pg_sys::MemoryContextSwitchTo(before);
            pg_sys::MemoryContextReset(self.context);
            done
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // While an error unwinds it may be the current context; it goes with its parent then.
        if !std::thread::panicking() {
            // SAFETY: made by `new`, and not current outside of `within`.
            unsafe { pg_sys::MemoryContextDelete(self.context) };
        }
    }
}
