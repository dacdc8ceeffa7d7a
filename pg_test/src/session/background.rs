//! Several sessions at once.

use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread::{JoinHandle, scope, spawn};

use super::{Session, SqlError};

/// A statement that runs in its own thread, perhaps waiting for a lock.
pub struct Pending {
    backend_pid: u32,
    running: JoinHandle<(Session, Result<Option<String>, SqlError>)>,
}

impl Session {
    /// Runs a statement in the background.
    pub fn in_background(mut self, sql: &str) -> Pending {
        let sql = sql.to_owned();
        let backend_pid = self.backend_pid;
        let running = spawn(move || {
            let result = self.try_text(&sql);
            (self, result)
        });
        Pending { backend_pid, running }
    }
}

impl Pending {
    /// The pid of the backend that runs it.
    pub fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.running.is_finished()
    }

    /// Waits for its end: the session back, and the first value as text or the error.
    pub fn finish(self) -> (Session, Result<Option<String>, SqlError>) {
        self.running.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Runs `work` once per session, each in its own thread, released together. Answers in order; the first panic is the
/// caller's.
pub fn in_parallel<T: Send>(sessions: Vec<Session>, work: impl Fn(usize, &mut Session) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(sessions.len());
    let (start, work) = (&start, &work);
    scope(|scope| {
        let threads: Vec<_> = sessions
            .into_iter()
            .enumerate()
            .map(|(i, mut session)| {
                scope.spawn(move || {
                    start.wait();
                    work(i, &mut session)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
