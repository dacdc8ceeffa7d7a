//! Where replies wait for the main thread: a bounded queue, an eventfd that is readable while it is not empty, and the
//! counts that bound what is accepted.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::call::{Outcome, Reply};
use crate::fault::{Cause, Fault};
use crate::gate::SentFlag;
use crate::limits::{HELD_MAX_BYTES, REASON_MAX_BYTES};

struct Waiting {
    reply: Reply,
    held_bytes: usize,
}

/// Shared by the main thread and the wire's thread.
pub(crate) struct Port {
    replies: Mutex<VecDeque<Waiting>>,
    event: OwnedFd,
    capacity: usize,
    outstanding: AtomicUsize,
    held_bytes: AtomicUsize,
    stopping: AtomicBool,
}

impl Port {
    pub(crate) fn new(capacity: usize) -> io::Result<Port> {
        // SAFETY: a plain system call without pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Port {
            replies: Mutex::new(VecDeque::new()),
            // SAFETY: the descriptor is new and nobody else has it.
            event: unsafe { OwnedFd::from_raw_fd(event) },
            capacity,
            outstanding: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Takes room for one more call, or says that there is none.
    pub(crate) fn reserve(self: &Arc<Self>, id: u64, held_bytes: usize) -> Option<Ticket> {
        let one_more = |count: usize| (count < self.capacity).then_some(count + 1);
        self.outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        let more_bytes = |held: usize| held.checked_add(held_bytes).filter(|held| *held <= HELD_MAX_BYTES);
        if self.held_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more_bytes).is_err() {
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Ticket {
            id,
            held_bytes,
            started_at: SystemTime::now(),
            started: Instant::now(),
            sent: SentFlag::default(),
            port: Some(Arc::clone(self)),
        })
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.outstanding())
    }

    /// From here on unfinished calls end because of the shutdown, not because of a defect.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn take(&self, max: usize) -> Vec<Reply> {
        // Drained first: a reply that is pushed from here on signals again.
        let mut count = [0_u8; 8];
        // SAFETY: the buffer has the eight bytes that an eventfd wants; the descriptor lives as long as `self`.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        let (taken, more) = {
            let mut replies = self.lock();
            let many = replies.len().min(max);
            let taken: Vec<Waiting> = replies.drain(..many).collect();
            (taken, !replies.is_empty())
        };
        if more {
            self.signal();
        }
        self.give_back(taken.len(), taken.iter().map(|waiting| waiting.held_bytes).sum());
        taken.into_iter().map(|waiting| waiting.reply).collect()
    }

    fn push(&self, reply: Reply, held_bytes: usize) {
        let was_empty = {
            let mut replies = self.lock();
            replies.push_back(Waiting { reply, held_bytes });
            replies.len() == 1
        };
        if was_empty {
            self.signal();
        }
    }

    fn give_back(&self, calls: usize, held_bytes: usize) {
        self.outstanding.fetch_sub(calls, Ordering::AcqRel);
        self.held_bytes.fetch_sub(held_bytes, Ordering::AcqRel);
    }

    fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight readable bytes; the descriptor lives as long as `self`. The only failure (a full counter) means
        // that it is readable already.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// The lock is held for a push or a drain only, so a poisoned one still guards a whole queue.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to reply to one accepted call. Whatever happens to the task that holds it (done, dropped, panicked), exactly
/// one reply is pushed, and it tells the truth about whether something was sent.
pub(crate) struct Ticket {
    id: u64,
    held_bytes: usize,
    started_at: SystemTime,
    started: Instant,
    sent: SentFlag,
    port: Option<Arc<Port>>,
}

impl Ticket {
    /// The call has a connection slot now: its time runs.
    pub(crate) fn start(&mut self) -> Instant {
        self.started_at = SystemTime::now();
        self.started = Instant::now();
        self.started
    }

    pub(crate) fn sent(&self) -> &SentFlag {
        &self.sent
    }

    /// When the call was accepted or, later, started.
    pub(crate) fn since(&self) -> Instant {
        self.started
    }

    pub(crate) fn finish(mut self, outcome: Outcome) {
        self.push(outcome);
    }

    /// Ends a call without an answer; the gate decides which kind of end it is.
    pub(crate) fn fail(mut self, fault: &Fault) {
        self.push_failure(fault.cause, &fault.reason);
    }

    /// The call was not accepted after all: no reply.
    pub(crate) fn cancel(mut self) {
        if let Some(port) = self.port.take() {
            port.give_back(1, self.held_bytes);
        }
    }

    fn push_failure(&mut self, cause: Cause, reason: &str) {
        let reason = bounded(reason);
        let outcome =
            if self.sent.is_set() { Outcome::NoAnswer { cause, reason } } else { Outcome::NotSent { cause, reason } };
        self.push(outcome);
    }

    fn push(&mut self, outcome: Outcome) {
        let Some(port) = self.port.take() else { return };
        let elapsed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        port.push(Reply { id: self.id, outcome, started_at: self.started_at, elapsed_ms }, self.held_bytes);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let stopping = self.port.as_ref().is_some_and(|port| port.stopping.load(Ordering::Acquire));
        let (cause, reason) = if stopping {
            (Cause::Stopped, "the relay is shutting down")
        } else {
            (Cause::Defect, "a defect ended this call")
        };
        self.push_failure(cause, reason);
    }
}

fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(REASON_MAX_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(capacity: usize) -> Arc<Port> {
        Arc::new(Port::new(capacity).expect("an eventfd"))
    }

    #[test]
    fn a_task_that_dies_replies_with_what_is_known_about_sending() {
        let port = port(3);
        let unsent = port.reserve(1, 10).expect("room");
        let sent = port.reserve(2, 10).expect("room");
        sent.sent().set();
        let panicking = port.reserve(3, 10).expect("room");
        drop(unsent);
        drop(sent);
        let died = std::thread::spawn(move || {
            let _ticket = panicking;
            std::panic::resume_unwind(Box::new("a defect"));
        });
        assert!(died.join().is_err());
        let replies = port.take(10);
        let outcomes: Vec<_> = replies.iter().map(|reply| (reply.id, &reply.outcome)).collect();
        assert!(
            matches!(
                outcomes[..],
                [(1, Outcome::NotSent { .. }), (2, Outcome::NoAnswer { .. }), (3, Outcome::NotSent { .. })]
            ),
            "{outcomes:?}"
        );
        assert_eq!((port.outstanding(), port.room()), (0, 3));
    }

    #[test]
    fn a_call_that_was_not_accepted_has_no_reply_and_gives_its_room_back() {
        let port = port(1);
        let ticket = port.reserve(1, HELD_MAX_BYTES).expect("room");
        assert!(port.reserve(2, 0).is_none());
        ticket.cancel();
        assert!(port.take(10).is_empty());
        assert!(port.reserve(3, HELD_MAX_BYTES + 1).is_none());
        assert!(port.reserve(4, HELD_MAX_BYTES).is_some());
    }

    #[test]
    fn reasons_are_cut_at_a_character_and_hold_no_control_characters() {
        let reason = bounded(&format!("a\nb\0{}", "\u{e4}".repeat(REASON_MAX_BYTES)));
        assert!(reason.starts_with("a b ") && reason.len() <= REASON_MAX_BYTES);
    }
}
