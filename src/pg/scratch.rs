//! Memory for what is looked at and let go, many times in one call.

use pgrx::pg_sys;

/// A memory context of its own, below the current one.
pub struct Scratch {
    context: pg_sys::MemoryContext,
}

impl Scratch {
    /// An empty one.
    pub fn new() -> Self {
        // SAFETY: a child of the current context, with small sizes: it ends with that one at the latest.
        let context = unsafe {
            pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"command_ledger scratch".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
            )
        };
        Self { context }
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
