//! One thread per connection: read a request, do what the script says, answer or not.

use std::io::{BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant, SystemTime};

use socket2::SockRef;

use super::behaviour::{Behaviour, Hold, Reply};
use super::{Received, Shared, State};
use crate::http::{Headers, Request, read_request, response_bytes};

/// A connection serves no more requests than this.
const REQUESTS_MAX: u32 = 1_000_000;
/// A held request looks this often whether it is released and whether its client still waits.
const HOLD_POLL: Duration = Duration::from_millis(20);
/// A held request goes on by itself after this many looks (ten minutes).
const HOLD_POLLS_MAX: u32 = 30_000;
/// An endless body ends after this many bytes, if the client takes them.
const ENDLESS_BODY_BYTES: usize = 1 << 30;
/// How long a client may take to read what is written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the client to read the first half of an answer before the reset throws the rest away.
const BEFORE_RESET: Duration = Duration::from_millis(50);

/// What becomes of the connection after a request.
#[derive(PartialEq, Eq)]
enum After {
    Keep,
    Close,
    Reset,
}

pub(super) fn serve_in_background(stream: TcpStream, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    let stream = Arc::new(stream);
    let number = {
        let mut state = shared.lock();
        state.connections += 1;
        let number = state.connections;
        state.open.insert(number, Arc::clone(&stream));
        number
    };
    spawn(move || {
        let after = serve(&stream, number, &shared);
        shared.lock().open.remove(&number);
        if after == After::Reset {
            // Closing with a linger of zero sends RST in place of FIN.
            let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
        } else {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    });
}

fn serve(stream: &TcpStream, connection: u64, shared: &Shared) -> After {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut reader = BufReader::new(stream);
    for _ in 0..REQUESTS_MAX {
        if reader.buffer().is_empty() && !matches!(stream.peek(&mut [0]), Ok(1)) {
            return After::Close;
        }
        if is_reset_unread(&mut shared.lock()) {
            return After::Reset;
        }
        let request = match read_request(&mut reader) {
            Ok(Some(request)) => request,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let _ = (&*stream).write_all(&response_bytes(400, &Headers::new(), b""));
                return After::Close;
            }
            Ok(None) | Err(_) => return After::Close,
        };
        let close_asked = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let after = handle(stream, connection, request, shared);
        if after != After::Keep {
            return after;
        }
        if close_asked {
            return After::Close;
        }
    }
    After::Close
}

fn is_reset_unread(state: &mut State) -> bool {
    state.arrivals += 1;
    let by_count = state.unread_resets_due > 0;
    state.unread_resets_due = state.unread_resets_due.saturating_sub(1);
    let by_turn = state.unread_reset_every.is_some_and(|n| state.arrivals.is_multiple_of(n));
    let is_reset = by_count || by_turn;
    state.unread_resets += u64::from(is_reset);
    is_reset
}

/// Counts a request as in flight until it is answered, dropped, or its client has left.
struct InFlight<'a> {
    shared: &'a Shared,
    counted: bool,
}

impl<'a> InFlight<'a> {
    fn leave(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.shared.lock().in_flight -= 1;
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

fn handle(stream: &TcpStream, connection: u64, request: Request, shared: &Shared) -> After {
    let (behaviour, mut in_flight) = receive(connection, &request, shared);
    let is_lookup = request.method == "GET";
    let Some(behaviour) = behaviour else {
        let (status, content_type, body) = shared.lock().records.find(&request);
        let headers = vec![("Content-Type".to_owned(), content_type.to_owned())];
        in_flight.leave();
        return write(stream, &response_bytes(status, &headers, &body));
    };
    if !behaviour.delay.is_zero() {
        sleep(behaviour.delay);
    }
    if behaviour.hold == Hold::BeforeEffect {
        hold(stream, shared, &mut in_flight);
    }
    let answer = if is_lookup {
        let (status, _, body) = shared.lock().records.find(&request);
        (status, body)
    } else if behaviour.effect {
        let (status, body) = shared.lock().records.write(&request);
        (status, body.to_string().into_bytes())
    } else {
        (500, Vec::new())
    };
    if behaviour.hold == Hold::AfterEffect {
        hold(stream, shared, &mut in_flight);
    }
    // What the client sees next may follow at once on another connection: this one is over for the count.
    in_flight.leave();
    reply(stream, behaviour, answer)
}

/// Writes the request down and chooses what to do with it; None: a search that follows no script.
fn receive<'a>(connection: u64, request: &Request, shared: &'a Shared) -> (Option<Behaviour>, InFlight<'a>) {
    let mut state = shared.lock();
    let is_lookup = request.method == "GET";
    let behaviour = if is_lookup {
        state.lookup_script.pop_front().or_else(|| state.lookups_otherwise.clone())
    } else {
        state.writes_seen += 1;
        let (otherwise, nth) = (Arc::clone(&state.otherwise), state.writes_seen);
        Some(state.script.pop_front().unwrap_or_else(|| otherwise(request, nth)))
    };
    state.in_flight += 1;
    state.peak_in_flight = state.peak_in_flight.max(state.in_flight);
    let (arrived, arrived_at) = (Instant::now(), SystemTime::now());
    state.received.push(Received { request: request.clone(), connection, arrived, arrived_at });
    shared.changed.notify_all();
    (behaviour, InFlight { shared, counted: true })
}

/// Waits for `Destination::release()`, which takes it off the count of those that are held.
fn hold(stream: &TcpStream, shared: &Shared, in_flight: &mut InFlight) {
    let released = {
        let mut state = shared.lock();
        state.held += 1;
        state.releases
    };
    shared.changed.notify_all();
    for _ in 0..HOLD_POLLS_MAX {
        let state = shared.lock();
        if state.releases > released {
            return;
        }
        drop(shared.changed.wait_timeout(state, HOLD_POLL).unwrap_or_else(PoisonError::into_inner));
        if is_peer_gone(stream) {
            in_flight.leave();
        }
    }
    shared.lock().held -= 1;
}

fn is_peer_gone(stream: &TcpStream) -> bool {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
    let seen = stream.peek(&mut [0]);
    let _ = stream.set_read_timeout(None);
    match seen {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

fn reply(stream: &TcpStream, behaviour: Behaviour, (status, body): (u16, Vec<u8>)) -> After {
    let mut headers = behaviour.headers;
    let json = ("Content-Type".to_owned(), "application/json".to_owned());
    match behaviour.reply {
        Reply::OfProfile => {
            headers.push(json);
            write(stream, &response_bytes(status, &headers, &body))
        }
        Reply::Fixed(status, fixed, body) => {
            headers.extend(fixed);
            write(stream, &response_bytes(status, &headers, &body))
        }
        Reply::Raw(bytes) => {
            write(stream, &bytes);
            After::Close
        }
        Reply::Close => After::Close,
        Reply::Reset => After::Reset,
        Reply::ResetMidBody => {
            headers.push(json);
            let bytes = response_bytes(status, &headers, &body);
            write(stream, &bytes[..bytes.len() - body.len().div_ceil(2)]);
            sleep(BEFORE_RESET);
            After::Reset
        }
        Reply::Slow(per_byte) => {
            headers.push(json);
            let bytes = response_bytes(status, &headers, &body);
            let (head, body) = bytes.split_at(bytes.len() - body.len());
            let mut after = write(stream, head);
            for byte in body {
                if after != After::Keep {
                    break;
                }
                sleep(per_byte);
                after = write(stream, &[*byte]);
            }
            after
        }
        Reply::Endless => {
            write(stream, b"HTTP/1.1 200 Status\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n[");
            let chunk = vec![b' '; 64 * 1024];
            for _ in 0..ENDLESS_BODY_BYTES / chunk.len() {
                if write(stream, &chunk) != After::Keep {
                    break;
                }
            }
            After::Reset
        }
    }
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> After {
    match stream.write_all(bytes) {
        Ok(()) => After::Keep,
        Err(_) => After::Close,
    }
}
