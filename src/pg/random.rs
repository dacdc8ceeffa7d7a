//! Random numbers from the system.

use pgrx::pg_sys;
use std::cell::RefCell;

/// How much is fetched at once: a claim of a hundred needs a hundred tokens, and each fetch has its fixed price.
const POOL: usize = 512;

/// Bytes that were fetched and not used yet, at the end of the array.
struct Pool {
    bytes: [u8; POOL],
    left: usize,
}

impl Pool {
    /// The next bytes; none of them stays here. `None` if the system has none.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.left < N {
            // SAFETY: fills the array or says false.
            if !unsafe { pg_sys::pg_strong_random(self.bytes.as_mut_ptr().cast(), POOL) } {
                return None;
            }
            self.left = POOL;
        }
        let mut taken = [0u8; N];
        let at = POOL - self.left;
        taken.copy_from_slice(&self.bytes[at..at + N]);
        self.bytes[at..at + N].fill(0);
        self.left -= N;
        Some(taken)
    }
}

thread_local! {
    // Each backend fetches its own: the server forks them before anything is fetched here.
    static UNUSED: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], left: 0 }) };
}

/// A UUIDv4.
pub fn uuid() -> Option<[u8; 16]> {
    let mut bytes: [u8; 16] = UNUSED.with_borrow_mut(Pool::take)?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Some(bytes)
}

/// A number for jitter; zero, which only means none, if the system has none.
pub fn number() -> u64 {
    UNUSED.with_borrow_mut(Pool::take).map_or(0, u64::from_ne_bytes)
}
