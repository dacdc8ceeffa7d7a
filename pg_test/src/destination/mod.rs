//! A scriptable HTTP destination on loopback that knows exactly what reached it: every request with its bytes, every
//! effect, every connection.
//!
//! Writes (any method but GET) follow the script; without one they are accepted as the profile says. GETs are
//! searches: they answer a JSON list of records, or follow the script for lookups.

pub mod behaviour;
mod deaf;
pub(crate) mod port;
mod records;
mod serve;
mod tls;

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use behaviour::{Behaviour, Script, accept};
pub use deaf::Deaf;
use port::Port;
pub use records::{Profile, Record, Search};
pub use tls::{Authority, TlsFront};

use crate::http::Request;
use records::Records;

/// How long a test waits for requests before it fails.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// One request as it arrived (dereferences to the request).
#[derive(Clone, Debug)]
pub struct Received {
    /// The request.
    pub request: Request,
    /// Which connection brought it, counted from 1.
    pub connection: u64,
    /// When its last byte had been read.
    pub arrived: Instant,
    /// The same as wall clock time, to compare with what the ledger wrote down.
    pub arrived_at: SystemTime,
}

impl Deref for Received {
    type Target = Request;
    fn deref(&self) -> &Request {
        &self.request
    }
}

type Choice = Arc<dyn Fn(&Request, usize) -> Behaviour + Send + Sync>;

/// Everything the threads of one destination share.
struct State {
    records: Records,
    received: Vec<Received>,
    script: VecDeque<Behaviour>,
    lookup_script: VecDeque<Behaviour>,
    otherwise: Choice,
    lookups_otherwise: Option<Behaviour>,
    writes_seen: usize,
    arrivals: u64,
    unread_resets_due: u64,
    unread_reset_every: Option<u64>,
    unread_resets: u64,
    in_flight: usize,
    peak_in_flight: usize,
    held: usize,
    releases: u64,
    connections: u64,
    open: HashMap<u64, Arc<TcpStream>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running destination. Stops when dropped.
pub struct Destination {
    shared: Arc<Shared>,
    port: Mutex<Port>,
    number: u16,
}

impl Destination {
    /// Starts on a free port of 127.0.0.1.
    pub fn start(profile: Profile) -> Destination {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                records: Records::new(profile),
                received: Vec::new(),
                script: VecDeque::new(),
                lookup_script: VecDeque::new(),
                otherwise: Arc::new(|_, _| accept()),
                lookups_otherwise: None,
                writes_seen: 0,
                arrivals: 0,
                unread_resets_due: 0,
                unread_reset_every: None,
                unread_resets: 0,
                in_flight: 0,
                peak_in_flight: 0,
                held: 0,
                releases: 0,
                connections: 0,
                open: HashMap::new(),
            }),
            changed: Condvar::new(),
        });
        let mut port = Port::take();
        let number = port.number();
        let served = Arc::clone(&shared);
        port.listen(move |stream| serve::serve_in_background(stream, &served));
        Destination { shared, port: Mutex::new(port), number }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    fn port(&self) -> MutexGuard<'_, Port> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `http://127.0.0.1:PORT` and the path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.number)
    }

    // --- what it does

    /// The next writes behave like this (after those already scripted).
    pub fn next(&self, script: impl Into<Script>) {
        self.lock().script.extend(script.into().0);
    }

    /// Writes beyond the script behave like this (default: `accept()`).
    pub fn otherwise(&self, behaviour: Behaviour) {
        self.otherwise_by(move |_, _| behaviour.clone());
    }

    /// Writes beyond the script behave as this function says, from the request and the number of the write (from 1).
    pub fn otherwise_by(&self, choose: impl Fn(&Request, usize) -> Behaviour + Send + Sync + 'static) {
        self.lock().otherwise = Arc::new(choose);
    }

    /// The next GETs behave like this.
    pub fn next_lookups(&self, script: impl Into<Script>) {
        self.lock().lookup_script.extend(script.into().0);
    }

    /// GETs beyond the script behave like this (default: they search).
    pub fn lookups_otherwise(&self, behaviour: Behaviour) {
        self.lock().lookups_otherwise = Some(behaviour);
    }

    /// The next requests of any method are reset before a byte of them is read; they count as `unread_resets`, not as
    /// requests.
    pub fn reset_unread(&self, n: u64) {
        self.lock().unread_resets_due += n;
    }

    /// Every n-th request is reset before a byte of it is read (None: no longer).
    pub fn reset_unread_every(&self, n: Option<u64>) {
        self.lock().unread_reset_every = n;
    }

    /// Lets all held requests go on (`hang`, `hang_after_commit`).
    pub fn release(&self) {
        let mut state = self.lock();
        state.releases += 1;
        // At once, not when each of them notices: what is held next is counted from none.
        state.held = 0;
        drop(state);
        self.shared.changed.notify_all();
    }

    // --- its records and its search

    /// Changes what it does with repeats.
    pub fn set_profile(&self, profile: Profile) {
        self.lock().records.profile = profile;
    }

    /// Changes how searches answer.
    pub fn set_search(&self, search: Search) {
        self.lock().records.search = search;
    }

    /// The query parameter that searches filter by (default `reference`).
    pub fn set_search_parameter(&self, name: &str) {
        name.clone_into(&mut self.lock().records.search_parameter);
    }

    /// A new record is found by searches only after this time.
    pub fn set_search_lag(&self, ms: u64) {
        self.lock().records.search_lag = Duration::from_millis(ms);
    }

    /// From now on this header must have this value: without it searches answer 200 with an empty list (as real
    /// systems do), and writes 401.
    pub fn require_api_key(&self, header: &str, value: &str) {
        self.lock().records.api_key = Some((header.to_owned(), value.to_owned()));
    }

    /// Puts a record there that is no effect of a request (a sentinel, a stranger's record); its id.
    pub fn seed_record(&self, reference: &str) -> String {
        self.lock().records.seed(reference)
    }

    /// The records that requests made.
    pub fn records(&self) -> Vec<Record> {
        self.lock().records.effects().cloned().collect()
    }

    /// How many records requests made.
    pub fn effects(&self) -> usize {
        self.lock().records.effects().count()
    }

    /// How many records carry this key, as their reference or in their deduplicating header.
    pub fn effects_for(&self, key: &str) -> usize {
        let carries = |record: &&Record| [&record.reference, &record.key].iter().any(|k| k.as_deref() == Some(key));
        self.lock().records.effects().filter(carries).count()
    }

    // --- what it has seen

    /// All requests that were read whole, in order of arrival.
    pub fn requests(&self) -> Vec<Received> {
        self.lock().received.clone()
    }

    /// Those that were writes.
    pub fn writes(&self) -> Vec<Received> {
        self.lock().received.iter().filter(|received| received.method != "GET").cloned().collect()
    }

    /// Those that were lookups (GET).
    pub fn lookups(&self) -> Vec<Received> {
        self.lock().received.iter().filter(|received| received.method == "GET").cloned().collect()
    }

    /// How many requests were reset unread.
    pub fn unread_resets(&self) -> u64 {
        self.lock().unread_resets
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.lock().connections
    }

    /// Requests that were read, are not answered yet, and whose client still waits.
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    /// The highest `in_flight` so far.
    pub fn peak_in_flight(&self) -> usize {
        self.lock().peak_in_flight
    }

    /// Waits until n requests (of any method) have arrived; the n-th.
    pub fn wait_for_request(&self, n: usize) -> Received {
        let state = self.wait(&format!("{n} requests"), |state| state.received.len() >= n);
        state.received[n - 1].clone()
    }

    /// Waits until n writes have arrived; the n-th.
    pub fn wait_for_write(&self, n: usize) -> Received {
        self.wait_for_nth(n, "writes", |received| received.method != "GET")
    }

    /// Waits until n lookups have arrived; the n-th.
    pub fn wait_for_lookup(&self, n: usize) -> Received {
        self.wait_for_nth(n, "lookups", |received| received.method == "GET")
    }

    /// Waits until n requests are held by `hang` or `hang_after_commit` at once.
    pub fn wait_for_held(&self, n: usize) {
        drop(self.wait(&format!("{n} held requests"), |state| state.held >= n));
    }

    fn wait_for_nth(&self, n: usize, what: &str, is_one: impl Fn(&Received) -> bool) -> Received {
        let state = self.wait(&format!("{n} {what}"), |state| state.received.iter().filter(|r| is_one(r)).count() >= n);
        let found = state.received.iter().filter(|received| is_one(received)).nth(n - 1).cloned();
        found.unwrap_or_else(|| panic!("{what} are counted from 1"))
    }

    fn wait(&self, what: &str, is_there: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.shared.changed.wait_timeout_while(self.lock(), WAIT_LIMIT, |state| !is_there(state));
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let seen: Vec<String> = state.received.iter().map(|r| format!("{} {}", r.method, r.target)).collect();
            drop(state);
            panic!("no {what} within {} s; seen: {seen:#?}", WAIT_LIMIT.as_secs());
        }
        state
    }

    // --- whether it is there

    /// Refuses new connections (the port stays ours); those that are open go on.
    pub fn refuse_connections(&self) {
        self.port().refuse();
    }

    /// Refuses new connections and closes the open ones: the destination is down.
    pub fn stop(&self) {
        self.refuse_connections();
        self.close_connections();
    }

    /// Closes all open connections, as a load balancer does that drops idle ones.
    pub fn close_connections(&self) {
        for (_, stream) in self.lock().open.drain() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Accepts connections again, on the same port, with the same records.
    pub fn restart(&self) {
        let served = Arc::clone(&self.shared);
        self.port().listen(move |stream| serve::serve_in_background(stream, &served));
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.stop();
        self.release();
    }
}
