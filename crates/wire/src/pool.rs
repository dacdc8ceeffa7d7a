//! Connection slots and idle connections. At any time: connections in use <= slots, and used + idle <= slots.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::exchange::Live;
use crate::limits::REAP_INTERVAL;
use crate::request::Origin;

struct Idle {
    live: Live,
    until: Instant,
    since: Instant,
}

struct Host {
    slots: Arc<Semaphore>,
    /// Oldest in front; the youngest is used first, so that surplus ones age out.
    idle: VecDeque<Idle>,
}

/// All connections.
pub(crate) struct Pool {
    slots: Arc<Semaphore>,
    max: Cell<usize>,
    in_use: Cell<usize>,
    idle: Cell<usize>,
    generation: Cell<u64>,
    hosts: RefCell<HashMap<Origin, Host>>,
    reaping: Cell<bool>,
}

/// The right to have one connection to one host.
pub(crate) struct Slot {
    pool: Rc<Pool>,
    origin: Origin,
    _host: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.in_use.set(self.pool.in_use.get().saturating_sub(1));
    }
}

impl Pool {
    pub(crate) fn new(max: usize) -> Rc<Pool> {
        Rc::new(Pool {
            slots: Arc::new(Semaphore::new(max)),
            max: Cell::new(max),
            in_use: Cell::new(0),
            idle: Cell::new(0),
            generation: Cell::new(0),
            hosts: RefCell::new(HashMap::new()),
            reaping: Cell::new(false),
        })
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// New settings: idle connections of the old ones are closed, used ones are not kept. A smaller limit is reached as
    /// slots come free.
    pub(crate) fn renew(&self, max: usize) {
        self.generation.set(self.generation.get().wrapping_add(1));
        self.hosts.borrow_mut().values_mut().for_each(|host| host.idle.clear());
        self.idle.set(0);
        let old = self.max.replace(max);
        if max >= old {
            self.slots.add_permits(max - old);
            return;
        }
        let slots = Arc::clone(&self.slots);
        tokio::task::spawn_local(async move {
            // One by one: taking all at once would hold back every call until all are free.
            for _ in max..old {
                if let Ok(slot) = slots.acquire().await {
                    slot.forget();
                }
            }
        });
    }

    /// Waits for a slot: first the host's, then one of all, so that a crowded host holds nothing of the others.
    pub(crate) async fn slot(self: &Rc<Self>, origin: &Origin) -> Option<Slot> {
        let host_slots = {
            let mut hosts = self.hosts.borrow_mut();
            let host = hosts.entry(origin.clone()).or_insert_with(|| Host {
                slots: Arc::new(Semaphore::new((self.max.get() / 2).max(1))),
                idle: VecDeque::new(),
            });
            Arc::clone(&host.slots)
        };
        let host = host_slots.acquire_owned().await.ok()?;
        let all = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        self.in_use.set(self.in_use.get() + 1);
        Some(Slot { pool: Rc::clone(self), origin: origin.clone(), _host: host, _all: all })
    }

    /// An idle connection for this slot that is still good, or room for a new one.
    pub(crate) async fn take(&self, slot: &Slot) -> Option<Live> {
        while let Some(mut idle) = self.pop(&slot.origin) {
            if Instant::now() < idle.until && idle.live.is_still_usable().await {
                return Some(idle.live);
            }
        }
        while self.in_use.get() + self.idle.get() > self.max.get() && self.evict_oldest() {}
        None
    }

    /// Keeps a connection for later if it can be used again.
    pub(crate) fn put(self: &Rc<Self>, slot: Slot, live: Live) {
        let origin = slot.origin.clone();
        drop(slot);
        let full = self.in_use.get() + self.idle.get() >= self.max.get();
        if !live.is_reusable() || live.generation != self.generation.get() || full {
            return;
        }
        let since = Instant::now();
        let until = since + live.idle_max();
        if let Some(host) = self.hosts.borrow_mut().get_mut(&origin) {
            host.idle.push_back(Idle { live, until, since });
            self.idle.set(self.idle.get() + 1);
        }
        self.reap_later();
    }

    fn pop(&self, origin: &Origin) -> Option<Idle> {
        let idle = self.hosts.borrow_mut().get_mut(origin)?.idle.pop_back()?;
        self.idle.set(self.idle.get().saturating_sub(1));
        Some(idle)
    }

    fn evict_oldest(&self) -> bool {
        let mut hosts = self.hosts.borrow_mut();
        let oldest = hosts
            .values_mut()
            .filter(|host| !host.idle.is_empty())
            .min_by_key(|host| host.idle.front().map(|idle| idle.since));
        let evicted = oldest.and_then(|host| host.idle.pop_front()).is_some();
        if evicted {
            self.idle.set(self.idle.get().saturating_sub(1));
        }
        evicted
    }

    /// While there are hosts, looks through them now and then; an idle wire has no timer at all.
    pub(crate) fn reap_later(self: &Rc<Self>) {
        if self.reaping.replace(true) {
            return;
        }
        let pool = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while !pool.hosts.borrow().is_empty() {
                tokio::time::sleep(REAP_INTERVAL).await;
                pool.reap();
            }
            pool.reaping.set(false);
        });
    }

    fn reap(&self) {
        let now = Instant::now();
        let mut left = 0;
        self.hosts.borrow_mut().retain(|_, host| {
            host.idle.retain(|idle| now < idle.until);
            left += host.idle.len();
            // Somebody else who holds the slots waits for one or uses one.
            !host.idle.is_empty() || Arc::strong_count(&host.slots) > 1
        });
        self.idle.set(left);
    }
}
