//! Nothing in this crate sends a request twice, whatever a destination does to kept connections; and what a reply says
//! about sending is true. The sink notes every request id whose bytes arrived, read or not.

mod common;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use command_ledger_wire::{Outcome, Wire};
use common::*;

const CALLS: u64 = 6_000;
/// Every so many requests of the whole sink the fault happens: 1 %.
const EVERY: usize = 100;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// Reset when bytes of a request have arrived and none was read. Only on used connections.
    BeforeRead,
    /// Reset when the request was read.
    AfterRead,
    /// Reset in the middle of the response head.
    WithinHead,
    /// Close right after a whole response, unannounced: races with the next request.
    CloseAfterAnswer,
    /// Reset right after a whole response, unannounced: races with the next request.
    ResetAfterAnswer,
}

#[derive(Default)]
struct Seen {
    /// How often each id's bytes arrived.
    arrivals: Mutex<HashMap<u64, usize>>,
    /// Ids whose bytes arrived and were left without a response head.
    dropped: Mutex<HashSet<u64>>,
    requests: AtomicUsize,
    faults: AtomicUsize,
}

impl Seen {
    fn arrived(&self, head: &str) -> u64 {
        let id = header_of(head, "x-call").expect("every call has its id").parse().expect("a number");
        *self.arrivals.lock().expect("lock").entry(id).or_default() += 1;
        id
    }

    fn left_unread(&self, bytes: &[u8]) {
        let id = self.arrived(std::str::from_utf8(bytes).expect("an ASCII request"));
        self.dropped.lock().expect("lock").insert(id);
    }
}

fn sink(fault: Fault, seen: &Arc<Seen>) -> Server {
    let seen = Arc::clone(seen);
    Server::start(move |stream| serve(stream, fault, &seen))
}

fn serve(stream: TcpStream, fault: Fault, seen: &Seen) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut stream = stream;
    let mut used = false;
    loop {
        let is_due = |seen: &Seen| seen.requests.fetch_add(1, Ordering::SeqCst) % EVERY == EVERY - 1;
        if fault == Fault::BeforeRead && used && reader.buffer().is_empty() {
            // Peeking leaves the bytes unread in the kernel, so that closing resets the connection.
            let mut bytes = [0_u8; 2_048];
            match stream.peek(&mut bytes) {
                Ok(read) if read > 0 => {
                    if is_due(seen) {
                        seen.left_unread(&bytes[..read]);
                        seen.faults.fetch_add(1, Ordering::SeqCst);
                        drop(reader);
                        return reset(stream);
                    }
                }
                _ => return,
            }
        }
        let Some(head) = read_head(&mut reader) else { return };
        let id = seen.arrived(&head);
        let due = fault != Fault::BeforeRead && is_due(seen);
        if due {
            seen.faults.fetch_add(1, Ordering::SeqCst);
        }
        match fault {
            Fault::AfterRead if due => {
                seen.dropped.lock().expect("lock").insert(id);
                drop(reader);
                return reset(stream);
            }
            Fault::WithinHead if due => {
                seen.dropped.lock().expect("lock").insert(id);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-");
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            _ => {}
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
            return;
        }
        used = true;
        if due {
            // Spread over the time in which the next request comes, so that some of these meet it.
            let step = seen.faults.load(Ordering::SeqCst) as u64 % 16;
            std::thread::sleep(Duration::from_millis(step * 2));
            let mut bytes = [0_u8; 2_048];
            stream.set_nonblocking(true).expect("the mode");
            if let Ok(read) = stream.peek(&mut bytes)
                && read > 0
            {
                seen.left_unread(&bytes[..read]);
            }
        }
        match fault {
            Fault::CloseAfterAnswer if due => return,
            Fault::ResetAfterAnswer if due => {
                drop(reader);
                return reset(stream);
            }
            _ => {}
        }
    }
}

/// One request head with its body of two bytes.
fn read_head(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut body = [0_u8; 2];
    std::io::Read::read_exact(reader, &mut body).ok()?;
    Some(head)
}

fn run(fault: Fault) {
    let seen = Arc::new(Seen::default());
    let server = sink(fault, &seen);
    let wire = wire();
    let mut outcomes: HashMap<u64, Outcome> = HashMap::new();
    let mut next = 0;
    while (outcomes.len() as u64) < CALLS {
        while next < CALLS && wire.in_flight() < 48 {
            let mut call = call(next, server.url("/"));
            call.headers.push(("X-Call".to_owned(), next.to_string()));
            wire.send(call).expect("room in the queue");
            next += 1;
        }
        for reply in replies(&wire, 1) {
            assert!(outcomes.insert(reply.id, reply.outcome).is_none(), "one reply per call");
        }
    }
    stop(wire);

    let arrivals = seen.arrivals.lock().expect("lock");
    let dropped = seen.dropped.lock().expect("lock");
    let faults = seen.faults.load(Ordering::SeqCst);
    assert!(faults >= 30, "{fault:?}: only {faults} faults happened");
    assert!(server.connections() < CALLS as usize / 4, "connections were not reused");
    assert!(arrivals.values().sum::<usize>() <= CALLS as usize, "more requests than calls");
    let repeated: Vec<_> = arrivals.iter().filter(|(_, times)| **times > 1).collect();
    assert!(repeated.is_empty(), "{fault:?}: sent twice: {repeated:?}");
    let mut counts = [0_usize; 3];
    for (id, outcome) in &outcomes {
        match outcome {
            Outcome::NotSent { reason, .. } => {
                counts[0] += 1;
                assert!(!arrivals.contains_key(id), "{fault:?}: {id} arrived but \"{reason}\"");
            }
            Outcome::NoAnswer { .. } => counts[1] += 1,
            Outcome::Answered(answer) => {
                counts[2] += 1;
                assert!(answer.complete && answer.status == 200);
                assert!(arrivals.contains_key(id) && !dropped.contains(id), "{fault:?}: {id} has an answer of another");
            }
        }
    }
    for id in dropped.iter() {
        assert!(matches!(outcomes[id], Outcome::NoAnswer { .. }), "{fault:?}: {id} arrived and was left unanswered");
    }
    println!(
        "{fault:?}: {faults} faults, {} connections, not sent / no answer / answered: {counts:?}",
        server.connections()
    );
}

fn stop(wire: Wire) {
    let report = wire.shutdown(PATIENCE);
    assert!(report.stopped && report.unknown == 0 && report.replies.is_empty());
}

#[test]
fn resets_before_the_request_is_read_repeat_nothing() {
    run(Fault::BeforeRead);
}

#[test]
fn resets_after_the_request_was_read_repeat_nothing() {
    run(Fault::AfterRead);
}

#[test]
fn closes_within_the_response_head_repeat_nothing() {
    run(Fault::WithinHead);
}

#[test]
fn closes_of_idle_connections_repeat_nothing() {
    run(Fault::CloseAfterAnswer);
}

#[test]
fn resets_of_idle_connections_repeat_nothing() {
    run(Fault::ResetAfterAnswer);
}
