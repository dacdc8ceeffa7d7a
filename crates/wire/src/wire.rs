//! The handle that the main thread holds.

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::call::{Call, Reply};
use crate::config::{Settings, WireConfig};
use crate::engine::{Engine, Job};
use crate::limits::{QUEUE_PER_CONNECTION, RESOLVER_THREADS_MAX};
use crate::port::Port;

/// How long the thread may take to start, and to end beyond the grace.
const THREAD_WAIT: Duration = Duration::from_secs(2);

/// The wire: one thread that makes HTTP calls. All methods return at once, except [`Wire::start`],
/// [`Wire::reconfigure`] (they read the certificate files) and [`Wire::shutdown`] (bounded by its grace).
pub struct Wire {
    jobs: mpsc::UnboundedSender<Job>,
    port: Arc<Port>,
    thread: Option<JoinHandle<()>>,
    ended: std_mpsc::Receiver<()>,
    max_connections: usize,
}

/// How the wire ended.
#[derive(Debug)]
pub struct ShutdownReport {
    /// The replies that were not taken yet, those of calls that the shutdown ended included: nothing sent is `NotSent`,
    /// anything else `NoAnswer` (or what came of it within the grace).
    pub replies: Vec<Reply>,
    /// Calls without a reply: 0 unless the thread could not be stopped. Treat them as sent.
    pub unknown: usize,
    /// The thread has ended. (Threads that wait for the system's resolver may live on; they hold nothing of ours.)
    pub stopped: bool,
}

impl Wire {
    /// Starts the thread, with every signal blocked in it (and in the threads it starts).
    ///
    /// # Errors
    /// A setting that is not valid (`InvalidInput`), no descriptor or thread to be had, or a limit of open files below 4.
    pub fn start(config: WireConfig) -> io::Result<Wire> {
        let mut settings = Settings::new(&config)?;
        settings.max_connections = affordable_connections(settings.max_connections)?;
        let max_connections = settings.max_connections;
        let port = Arc::new(Port::new(max_connections.saturating_mul(1 + QUEUE_PER_CONNECTION))?);
        let (jobs, job_queue) = mpsc::unbounded_channel();
        let (ready, is_ready) = std_mpsc::sync_channel::<io::Result<()>>(1);
        let (end, ended) = std_mpsc::sync_channel::<()>(1);
        let thread_port = Arc::clone(&port);
        let body = move || {
            run_thread(settings, thread_port, job_queue, &ready);
            // The receiver may be gone: the handle was dropped.
            let _ = end.send(());
        };
        let thread = with_signals_blocked(|| std::thread::Builder::new().name("wire".to_owned()).spawn(body))??;
        match is_ready.recv_timeout(THREAD_WAIT) {
            Ok(Ok(())) => Ok(Wire { jobs, port, thread: Some(thread), ended, max_connections }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the wire's thread did not start")),
        }
    }

    /// Accepts a call. Its one reply will come through [`Wire::take`], at the latest `timeout_ms` after the moment when
    /// it got a connection, which is at the latest `not_after` or `timeout_ms` from now.
    ///
    /// # Errors
    /// The call itself, untouched, when the queue is full (see [`Wire::room`]) or the thread has ended
    /// (see [`Wire::is_alive`]).
    #[expect(clippy::result_large_err, reason = "the error is the caller's own call, given back")]
    pub fn send(&self, call: Call) -> Result<(), Call> {
        if !self.is_alive() {
            return Err(call);
        }
        let Some(ticket) = self.port.reserve(call.id, call.held_bytes()) else { return Err(call) };
        match self.jobs.send(Job::Call(Box::new(call), ticket)) {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendError(Job::Call(call, ticket))) => {
                ticket.cancel();
                Err(*call)
            }
            // The job that comes back is the one that was sent, so this arm is never taken.
            Err(_) => Ok(()),
        }
    }

    /// A descriptor that is readable while replies wait. Only to be waited on; [`Wire::take`] reads it.
    pub fn fd(&self) -> RawFd {
        self.port.fd()
    }

    /// Up to `max` replies, oldest first; never waits. If more wait, the descriptor stays readable.
    pub fn take(&self, max: usize) -> Vec<Reply> {
        self.port.take(max)
    }

    /// Calls that were accepted and whose reply was not taken yet.
    pub fn in_flight(&self) -> usize {
        self.port.outstanding()
    }

    /// How many calls will be accepted before the queue is full (as long as they do not hold 256 MiB together).
    pub fn room(&self) -> usize {
        self.port.room()
    }

    /// The number of connections that this process can afford (at start); see [`WireConfig::max_connections`].
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Whether the thread runs. It ends only by a defect; then every accepted call has its reply all the same, and a new
    /// wire must be started.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && !self.jobs.is_closed()
    }

    /// Takes new settings for calls that are accepted from now on. Calls under way keep the old ones. The queue keeps its
    /// size.
    ///
    /// # Errors
    /// A setting that is not valid; the old ones stay.
    pub fn reconfigure(&self, config: WireConfig) -> io::Result<()> {
        let mut settings = Settings::new(&config)?;
        settings.max_connections = affordable_connections(settings.max_connections)?;
        self.jobs
            .send(Job::Reconfigure(Box::new(settings)))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the wire's thread has ended"))
    }

    /// Ends the wire. Calls of which nothing was sent end at once; the others have `grace` to get their answer. Returns
    /// when all are done, and at the latest 2 s after the grace; never waits for a name lookup.
    pub fn shutdown(mut self, grace: Duration) -> ShutdownReport {
        // If the thread has ended already, there is nothing to ask for.
        let _ = self.jobs.send(Job::Shutdown { grace });
        let stopped = !matches!(
            self.ended.recv_timeout(grace.saturating_add(THREAD_WAIT)),
            Err(std_mpsc::RecvTimeoutError::Timeout)
        );
        if stopped && let Some(thread) = self.thread.take() {
            // The thread caught its own panics.
            let _ = thread.join();
        }
        let replies = self.port.take(usize::MAX);
        ShutdownReport { replies, unknown: self.port.outstanding(), stopped }
    }
}

/// The whole life of the thread. No panic leaves it, and no blocking lookup holds it.
fn run_thread(
    settings: Settings,
    port: Arc<Port>,
    jobs: mpsc::UnboundedReceiver<Job>,
    ready: &std_mpsc::SyncSender<io::Result<()>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(RESOLVER_THREADS_MAX)
        .thread_name("wire-resolver")
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    let outcome: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| {
        let local = LocalSet::new();
        local.block_on(&runtime, Engine::new(settings, port).run(jobs));
        // Dropping the tasks makes the unfinished calls reply; their sockets close here.
        drop(local);
    }));
    runtime.shutdown_background();
    if let Err(panic) = outcome {
        // What a panic carries may itself panic when it is dropped.
        std::mem::forget(panic);
    }
}

/// Runs `spawn` while the current thread blocks every signal, so that the new thread inherits that and the signals of the
/// server are only ever delivered to its main thread.
fn with_signals_blocked<T>(spawn: impl FnOnce() -> T) -> io::Result<T> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`, pthread_sigmask initialises `before`; both point to this frame.
    let failed = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    let spawned = spawn();
    // SAFETY: `before` was filled by the successful call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    Ok(spawned)
}

/// The wished number of connections, but at most half of the process's limit of open files: the rest belongs to the
/// server.
fn affordable_connections(wished: usize) -> io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes into the struct on this frame.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let half = usize::try_from(limit.rlim_cur / 2).unwrap_or(usize::MAX);
    if half < 2 {
        return Err(io::Error::other("the limit of open files leaves no room for connections"));
    }
    Ok(wished.min(half).min(tokio::sync::Semaphore::MAX_PERMITS))
}
