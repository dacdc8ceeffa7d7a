//! The thread of the wire: takes jobs, runs a task per call, ends in bounded time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use crate::call::{Call, Outcome};
use crate::config::Settings;
use crate::connect::connect;
use crate::exchange::Terms;
use crate::fault::{Cause, Fault};
use crate::gate::SentFlag;
use crate::pool::Pool;
use crate::port::{Port, Ticket};
use crate::request::prepare;
use crate::resolve::Resolver;

/// What the main thread can ask for.
pub(crate) enum Job {
    Call(Box<Call>, Ticket),
    Reconfigure(Box<Settings>),
    Shutdown { grace: Duration },
}

pub(crate) struct Engine {
    settings: RefCell<Rc<Settings>>,
    pool: Rc<Pool>,
    resolver: Rc<Resolver>,
    port: Arc<Port>,
    running: Cell<usize>,
    idle: Notify,
    stopping: Notify,
}

impl Engine {
    pub(crate) fn new(settings: Settings, port: Arc<Port>) -> Rc<Engine> {
        Rc::new(Engine {
            pool: Pool::new(settings.max_connections),
            settings: RefCell::new(Rc::new(settings)),
            resolver: Rc::default(),
            port,
            running: Cell::new(0),
            idle: Notify::new(),
            stopping: Notify::new(),
        })
    }

    /// Until shutdown, or until the handle is gone. What is unfinished then is dropped, and each dropped call replies.
    pub(crate) async fn run(self: Rc<Self>, mut jobs: mpsc::UnboundedReceiver<Job>) {
        while let Some(job) = jobs.recv().await {
            match job {
                Job::Call(call, ticket) => {
                    let running = Running::new(&self);
                    tokio::task::spawn_local(async move { running.engine.call(*call, ticket).await });
                }
                Job::Reconfigure(settings) => {
                    self.pool.renew(settings.max_connections);
                    *self.settings.borrow_mut() = Rc::from(settings);
                }
                Job::Shutdown { grace } => {
                    self.port.stop();
                    jobs.close();
                    while jobs.try_recv().is_ok() {}
                    self.stopping.notify_waiters();
                    let _ = timeout(grace, self.until_idle()).await;
                    return;
                }
            }
        }
        self.port.stop();
    }

    async fn until_idle(&self) {
        while self.running.get() > 0 {
            self.idle.notified().await;
        }
    }

    /// One call from the queue to its reply. A shutdown ends it at once while nothing of it was sent.
    async fn call(self: &Rc<Self>, call: Call, mut ticket: Ticket) {
        let sent = ticket.sent().clone();
        let result = {
            let mut work = pin!(self.work(call, &mut ticket));
            let mut stopping = pin!(self.stopping.notified());
            let mut stopped = false;
            poll_fn(|cx| {
                if !stopped && stopping.as_mut().poll(cx).is_ready() {
                    stopped = true;
                }
                if stopped && !sent.is_set() {
                    return Poll::Ready(Err(stopped_fault()));
                }
                work.as_mut().poll(cx)
            })
            .await
        };
        match result {
            Ok(outcome) => ticket.finish(outcome),
            Err(fault) => ticket.fail(&fault),
        }
    }

    async fn work(self: &Rc<Self>, mut call: Call, ticket: &mut Ticket) -> Result<Outcome, Fault> {
        let settings = Rc::clone(&self.settings.borrow());
        let generation = self.pool.generation();
        let prepared = prepare(&mut call, settings.proxy.as_ref()).map_err(Fault::of(Cause::Invalid))?;
        let timeout = call.timeout();

        let latest_start = call.not_after.min(ticket.since() + timeout);
        self.pool.reap_later();
        let slot = match timeout_at(latest_start.into(), self.pool.slot(&prepared.origin)).await {
            Ok(Some(slot)) => slot,
            Ok(None) => return Err(stopped_fault()),
            Err(_) => {
                let what = format!("no connection to {} came free in time", prepared.origin.authority());
                return Err(Fault::new(Cause::Late, what));
            }
        };
        let started = Instant::from_std(ticket.start());
        let deadline = started + timeout;
        if ticket.since() >= call.not_after {
            return Err(Fault::new(Cause::Late, "the time for sending passed before a connection was free"));
        }
        let mut live = match self.pool.take(&slot).await {
            Some(live) => live,
            None => {
                let limit = call.connect_timeout().min(timeout);
                let limit = limit.min(call.not_after.saturating_duration_since(ticket.since()));
                connect(&prepared.origin, &settings, &self.resolver, limit, generation).await?
            }
        };
        let terms = Terms { not_after: call.not_after, deadline, timeout, response_limit: call.response_limit_bytes() };
        let sent: SentFlag = ticket.sent().clone();
        let answer = live.exchange(prepared.request, &terms, &sent).await?;
        self.pool.put(slot, live);
        Ok(Outcome::Answered(answer))
    }
}

fn stopped_fault() -> Fault {
    Fault::new(Cause::Stopped, "the relay is shutting down")
}

/// Counts a task for as long as it lives, even when it panics.
struct Running {
    engine: Rc<Engine>,
}

impl Running {
    fn new(engine: &Rc<Engine>) -> Running {
        engine.running.set(engine.running.get() + 1);
        Running { engine: Rc::clone(engine) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engine.running.set(self.engine.running.get().saturating_sub(1));
        if self.engine.running.get() == 0 {
            self.engine.idle.notify_one();
        }
    }
}
