//! How many calls per second one wire makes against a local sink that keeps connections alive.
//!
//! `cargo run --release -p command_ledger_wire --example throughput -- [calls] [concurrent] [body bytes]`
//!
//! The sink is a second wire-sized thread in the same process; the printed CPU time is that of the wire's thread alone.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use command_ledger_wire::{Call, Outcome, Wire, WireConfig};

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default: usize| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (calls, concurrent, body_bytes) = (next(100_000), next(64), next(512));

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || sink(stream, body_bytes));
        }
    });

    let wire = Wire::start(WireConfig { max_connections: concurrent * 2, ..WireConfig::default() })?;
    let mut latencies_us: Vec<u64> = Vec::with_capacity(calls);
    let mut sent_at = vec![Instant::now(); calls];
    let (mut sent, mut failed) = (0, 0);
    let start = Instant::now();
    while latencies_us.len() + failed < calls {
        while sent < calls && wire.in_flight() < concurrent {
            if let Some(at) = sent_at.get_mut(sent) {
                *at = Instant::now();
            }
            if wire.send(call(sent as u64, &url, body_bytes)).is_err() {
                break;
            }
            sent += 1;
        }
        let mut poll = libc::pollfd { fd: wire.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on this frame.
        unsafe { libc::poll(&raw mut poll, 1, 1_000) };
        for reply in wire.take(concurrent) {
            match (reply.outcome, sent_at.get(reply.id as usize)) {
                (Outcome::Answered(answer), Some(at)) if answer.complete => {
                    latencies_us.push(at.elapsed().as_micros() as u64);
                }
                _ => failed += 1,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_of_wire_thread();
    latencies_us.sort_unstable();
    let at = |part: f64| latencies_us.get((latencies_us.len() as f64 * part) as usize).copied().unwrap_or(0);
    println!(
        "{calls} calls, {concurrent} at a time, {body_bytes} B: {:.0}/s; wire thread {:.1} us CPU per call; \
         p50 {} us, p99 {} us; {failed} failed",
        calls as f64 / seconds,
        cpu.as_secs_f64() * 1e6 / calls as f64,
        at(0.50),
        at(0.99)
    );
    wire.shutdown(Duration::from_secs(1));
    Ok(())
}

fn call(id: u64, url: &str, body_bytes: usize) -> Call {
    Call {
        id,
        method: "POST".to_owned(),
        url: url.to_owned(),
        headers: vec![
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Idempotency-Key".to_owned(), format!("key-{id}")),
            ("Authorization".to_owned(), "Bearer 0123456789abcdef".to_owned()),
        ],
        body: vec![b' '; body_bytes],
        timeout_ms: 10_000,
        connect_timeout_ms: 3_000,
        response_limit: 65_536,
        not_after: Instant::now() + Duration::from_secs(10),
    }
}

/// Reads requests (a head, then `body_bytes`) and answers each.
fn sink(mut stream: TcpStream, body_bytes: usize) {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0_u8; 8_192 + body_bytes];
    let mut filled = 0;
    loop {
        let Some(free) = buffer.get_mut(filled..) else { return };
        match stream.read(free) {
            Ok(read) if read > 0 => filled += read,
            _ => return,
        }
        let Some(seen) = buffer.get(..filled) else { return };
        let Some(head) = seen.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        if filled < head + 4 + body_bytes {
            continue;
        }
        filled = 0;
        let answer =
            b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"id\": 4711}";
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

fn cpu_of_wire_thread() -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    for task in tasks.flatten() {
        let path = task.path();
        if std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "wire") {
            let stat = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            return Duration::from_nanos(ns);
        }
    }
    Duration::ZERO
}
