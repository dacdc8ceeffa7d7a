//! A destination of the run: HTTP on loopback over a store, with faults that follow from the seed.

use std::io::{BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

use serde_json::{Value, json};
use socket2::SockRef;

use super::climate::Climate;
use super::faults::Fault;
use super::profile::{LATEST_EFFECT_MS, Profile, TIMEOUT_MS};
use super::store::{Start, Store};
use super::trouble;
use crate::destination::port::Port;
use crate::http::{Headers, Request, read_request, response_bytes};

/// The relay has given up on a request by then, at the latest.
const GIVEN_UP: Duration = Duration::from_millis(TIMEOUT_MS - 50);

/// Requests whose client still waits. A new era forgets those of before: their client is dead.
#[derive(Debug, Default)]
struct Flights {
    now: usize,
    peak: usize,
    era: u64,
}

/// One destination.
pub struct Site {
    /// What it does with repeats.
    pub profile: Profile,
    climate: Arc<Climate>,
    store: Mutex<Store>,
    flights: Mutex<Flights>,
    connections: Mutex<Vec<Arc<TcpStream>>>,
    port: Mutex<Option<Port>>,
    number: u16,
    searches: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the connection becomes after a request.
#[derive(PartialEq, Eq)]
enum After {
    Keep,
    Close,
    Reset,
}

impl Site {
    /// Listens on a free port of loopback.
    pub fn start(profile: Profile, climate: &Arc<Climate>) -> Arc<Site> {
        let port = Port::take();
        let site = Arc::new(Site {
            profile,
            climate: Arc::clone(climate),
            store: Mutex::new(Store::new(profile)),
            flights: Mutex::default(),
            connections: Mutex::default(),
            number: port.number(),
            port: Mutex::new(Some(port)),
            searches: AtomicU64::new(0),
        });
        site.listen();
        site
    }

    /// Where its records are.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/records", self.number)
    }

    /// Takes connections.
    pub fn listen(self: &Arc<Site>) {
        let site = Arc::clone(self);
        if let Some(port) = locked(&self.port).as_mut() {
            port.listen(move |stream| {
                let site = Arc::clone(&site);
                spawn(move || site.serve(&Arc::new(stream)));
            });
        }
    }

    /// Refuses connections.
    pub fn refuse(&self) {
        if let Some(port) = locked(&self.port).as_mut() {
            port.refuse();
        }
    }

    /// Closes what is open.
    pub fn disconnect(&self) {
        for stream in locked(&self.connections).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The end: the port is given back, and nothing holds the site any more.
    pub fn close(&self) {
        self.refuse();
        self.disconnect();
        locked(&self.port).take();
    }

    /// Its store.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        locked(&self.store)
    }

    /// Whoever waited for an answer is dead.
    pub fn new_era(&self) {
        let mut flights = locked(&self.flights);
        flights.era += 1;
        flights.now = 0;
    }

    /// Most requests at once so far.
    pub fn peak(&self) -> usize {
        locked(&self.flights).peak
    }

    /// How many searches it answered.
    pub fn searches(&self) -> u64 {
        self.searches.load(Ordering::Relaxed)
    }

    /// A worker's call: the effect, as the profile has it.
    pub fn work(&self, key: &str, params: &Value, story: &str) -> (u16, Value) {
        let now_us = self.climate.now_us();
        let mut store = self.store();
        let (place, _) = store.arrive(key, params, false, now_us);
        store.tell(place, story.to_owned());
        store.effect(place, now_us)
    }

    fn serve(&self, stream: &Arc<TcpStream>) {
        {
            let mut connections = locked(&self.connections);
            connections.retain(|known| Arc::strong_count(known) > 1);
            connections.push(Arc::clone(stream));
        }
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
        let mut reader = BufReader::new(&**stream);
        let after = loop {
            match read_request(&mut reader) {
                Ok(Some(request)) => {
                    let after = if request.method == "GET" {
                        self.searched(stream, &request)
                    } else {
                        self.written(stream, &request)
                    };
                    if after != After::Keep {
                        break after;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(None) | Err(_) => break After::Close,
            }
        };
        if after == After::Reset {
            let _ = SockRef::from(&**stream).set_linger(Some(Duration::ZERO));
        } else {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn take_off(&self) -> u64 {
        let mut flights = locked(&self.flights);
        flights.now += 1;
        flights.peak = flights.peak.max(flights.now);
        flights.era
    }

    fn land(&self, era: u64) {
        let mut flights = locked(&self.flights);
        if flights.era == era {
            flights.now = flights.now.saturating_sub(1);
        }
    }

    fn written(&self, stream: &TcpStream, request: &Request) -> After {
        let Some((key, params)) = content(self.profile, request) else {
            return write(stream, &response_bytes(400, &Headers::new(), b"{}"));
        };
        let era = self.take_off();
        let (place, start, fault) = {
            let mut store = self.store();
            let fault = trouble::with_write(&self.climate, self.profile, &key, store.seen(&key));
            let (place, start) = store.arrive(&key, &params, false, self.climate.now_us());
            (place, start, fault)
        };
        if let Some(fault) = fault {
            self.climate.strike(fault);
        }
        let (after, said) = self.act(stream, place, start, fault, era);
        if fault == Some(Fault::DeliveredTwice) {
            let mut store = self.store();
            let now_us = self.climate.now_us();
            let (copy, start) = store.arrive(&key, &params, true, now_us);
            if start == Start::Fresh {
                store.effect(copy, now_us);
            }
            store.tell(copy, "delivered again by the network".to_owned());
        }
        let story = format!("{}, answer {said}", fault.map_or("no fault", Fault::word));
        self.store().tell(place, story);
        after
    }

    /// Does what the fault says with the effect and with the answer; what was answered.
    fn act(&self, stream: &TcpStream, place: usize, start: Start, fault: Option<Fault>, era: u64) -> (After, u16) {
        use Fault::*;
        let fresh = start == Start::Fresh;
        let honest = match fault {
            Some(DropBefore | ResetBefore) => Some((0, json!({}))),
            Some(Honest500) => Some((500, json!({"error": "internal"}))),
            Some(Honest503) => Some((503, json!({"error": "overloaded"}))),
            Some(Throttled) => Some((429, json!({"error": "too many requests"}))),
            Some(Refused400) => Some((400, json!({"error": "refused"}))),
            Some(Refused401) => Some((401, json!({"error": "unknown key"}))),
            Some(ErrorIn200) => Some((200, json!({"error": {"code": 17}}))),
            Some(Html200) => Some((200, Value::Null)),
            _ => None,
        };
        let wait = match fault {
            Some(Delay) => Duration::from_millis(20 + u64::try_from(place).unwrap_or(0) % 280),
            Some(LateEffect) => Duration::from_millis(LATEST_EFFECT_MS),
            _ => Duration::ZERO,
        };
        let early = wait.min(GIVEN_UP);
        sleep(early);
        let mut in_time = true;
        if wait > early {
            self.land(era);
            in_time = false;
            sleep(wait - early);
        }
        let now_us = self.climate.now_us();
        let (status, body) = match (honest, start) {
            (Some((status, body)), _) => {
                if fresh {
                    self.store().refuse(place, status, &body, now_us);
                }
                (status, body)
            }
            (None, Start::Known(status, body)) => (status, body),
            (None, Start::Fresh) => self.store().effect(place, now_us),
        };
        if fault == Some(LateAnswer) {
            sleep(GIVEN_UP);
            self.land(era);
            in_time = false;
            sleep(Duration::from_millis(150));
        }
        if in_time {
            // What the client sees next may follow at once on another connection.
            self.land(era);
        }
        self.answer(stream, fault, status, &body)
    }

    fn answer(&self, stream: &TcpStream, fault: Option<Fault>, status: u16, body: &Value) -> (After, u16) {
        use Fault::*;
        let (status, body) = match fault {
            Some(Lying502) => (502, json!({"error": "bad gateway"})),
            Some(Lying503) => (503, json!({"error": "unavailable"})),
            Some(Lying504) => (504, json!({"error": "gateway timeout"})),
            Some(LyingErrorIn200) => (200, json!({"error": {"code": 18}})),
            Some(Accepted202) => (202, json!({"state": "accepted"})),
            _ => (status, body.clone()),
        };
        let mut headers: Headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        let mut bytes = body.to_string().into_bytes();
        if fault == Some(Html200) {
            headers = vec![("Content-Type".to_owned(), "text/html".to_owned())];
            bytes = b"<html><body>Please log in</body></html>".to_vec();
        }
        if fault == Some(Throttled) {
            headers.push(("Retry-After".to_owned(), "1".to_owned()));
        }
        let whole = response_bytes(status, &headers, &bytes);
        let after = match fault {
            Some(DropBefore | DropAfter) => return (After::Close, 0),
            Some(ResetBefore | ResetAfter) => return (After::Reset, 0),
            Some(CutBody) => {
                write(stream, &whole[..whole.len() - bytes.len().div_ceil(2)]);
                return (After::Close, 0);
            }
            Some(Garbage) => {
                write(stream, b"\x15\x03\x01 this is not HTTP\r\n\r\n");
                return (After::Close, 0);
            }
            Some(AnsweredTwice) => write(stream, &[whole.clone(), whole].concat()),
            _ => write(stream, &whole),
        };
        (after, status)
    }

    fn searched(&self, stream: &TcpStream, request: &Request) -> After {
        let key = request.query("reference").unwrap_or_default();
        self.searches.fetch_add(1, Ordering::Relaxed);
        let nth = self.store().search(&key);
        let is_sentinel = key == "SENTINEL";
        let fault = trouble::with_search(&self.climate, &key, nth, is_sentinel);
        if let Some(fault) = fault {
            self.climate.strike(fault);
        }
        let json = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        match fault {
            Some(Fault::LookupDropped) => return After::Close,
            Some(Fault::Lookup500) => return write(stream, &response_bytes(500, &json, b"{}")),
            Some(Fault::LookupHtml) => {
                let html = vec![("Content-Type".to_owned(), "text/html".to_owned())];
                return write(stream, &response_bytes(200, &html, b"<html>Please log in</html>"));
            }
            Some(Fault::LookupBlind) => return write(stream, &response_bytes(200, &json, b"[]")),
            Some(Fault::LookupSlow) => sleep(Duration::from_millis(400)),
            _ => {}
        }
        let found = if is_sentinel {
            json!([{"id": "SENTINEL", "reference": "SENTINEL"}])
        } else {
            self.store().find(&key, fault == Some(Fault::LookupUnfiltered))
        };
        write(stream, &response_bytes(200, &json, found.to_string().as_bytes()))
    }
}

/// The key of a request, where this destination looks for it, and the parameters in its body.
fn content(profile: Profile, request: &Request) -> Option<(String, Value)> {
    let mut body: Value = serde_json::from_slice(&request.body).ok()?;
    let key = if profile.remembers() {
        request.header("idempotency-key")?.to_owned()
    } else {
        body.get("reference")?.as_str()?.to_owned()
    };
    Some((key, body.get_mut("params")?.take()))
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> After {
    if stream.write_all(bytes).is_ok() { After::Keep } else { After::Close }
}
