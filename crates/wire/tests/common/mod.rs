//! A scriptable destination on loopback, and the few lines that every test needs.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use command_ledger_wire::{Answer, Call, Outcome, Reply, Wire, WireConfig};

/// How long a test waits for something that must come. A bound against hanging, never a measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A listener with a thread per connection.
pub struct Server {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Server {
    pub fn start(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let connections = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let handle = Arc::new(handle);
        let (counted, stopped) = (Arc::clone(&connections), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                stream.set_nodelay(true).expect("nodelay");
                counted.fetch_add(1, Ordering::SeqCst);
                let handle = Arc::clone(&handle);
                std::thread::spawn(move || handle(stream));
            }
        });
        Server { address, connections, stop }
    }

    /// Answers every request of a connection with the same bytes.
    pub fn answering(response: impl Into<Vec<u8>>) -> Server {
        let response = response.into();
        Server::start(move |mut stream| {
            while read_request(&mut stream).is_some() {
                if stream.write_all(&response).is_err() {
                    return;
                }
            }
        })
    }

    /// Answers one request with these bytes and closes.
    pub fn answering_once(response: impl Into<Vec<u8>>) -> Server {
        let response = response.into();
        Server::start(move |mut stream| {
            if read_request(&mut stream).is_some() {
                let _ = stream.write_all(&response);
                let _ = stream.shutdown(Shutdown::Write);
                wait_for_close(&mut stream);
            }
        })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// A request as it arrived.
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, wanted: &str) -> Option<&str> {
        header_of(&self.head, wanted)
    }
}

pub fn header_of<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

/// Reads exactly one request; `None` at the end of the connection.
pub fn read_request(stream: &mut impl Read) -> Option<Request> {
    let mut head = Vec::new();
    let mut byte = [0_u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8(head).expect("an ASCII head");
    let length = header_of(&head, "content-length").map_or(0, |value| value.parse().expect("a length"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { head, body })
}

/// Closes with a reset, whatever is unread or unsent.
pub fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's struct is on this frame and has the size that is given.
    let failed = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(failed, 0);
    drop(stream);
}

pub fn wait_for_close(stream: &mut impl Read) {
    let mut sink = [0_u8; 1024];
    while matches!(stream.read(&mut sink), Ok(read) if read > 0) {}
}

pub fn config() -> WireConfig {
    WireConfig { ca_file: None, proxy: None, allowed_hosts: Vec::new(), max_connections: 64 }
}

pub fn wire() -> Wire {
    Wire::start(config()).expect("the wire starts")
}

pub fn call(id: u64, url: impl Into<String>) -> Call {
    Call {
        id,
        method: "POST".to_owned(),
        url: url.into(),
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: b"{}".to_vec(),
        timeout_ms: 30_000,
        connect_timeout_ms: 10_000,
        response_limit: 65_536,
        not_after: Instant::now() + Duration::from_secs(60),
    }
}

/// Waits for the descriptor and takes, until `count` replies are there.
pub fn replies(wire: &Wire, count: usize) -> Vec<Reply> {
    let until = Instant::now() + PATIENCE;
    let mut taken = Vec::new();
    while taken.len() < count {
        assert!(Instant::now() < until, "{} of {count} replies came", taken.len());
        let mut poll = libc::pollfd { fd: wire.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on this frame.
        unsafe { libc::poll(&raw mut poll, 1, 1_000) };
        taken.extend(wire.take(64));
    }
    taken
}

pub fn outcome(wire: &Wire, call: Call) -> Outcome {
    let id = call.id;
    wire.send(call).expect("room in the queue");
    let reply = replies(wire, 1).pop().expect("one reply");
    assert_eq!(reply.id, id);
    reply.outcome
}

pub fn answer(wire: &Wire, call: Call) -> Answer {
    match outcome(wire, call) {
        Outcome::Answered(answer) => answer,
        other => panic!("not answered: {other:?}"),
    }
}

pub fn not_sent(wire: &Wire, call: Call) -> String {
    match outcome(wire, call) {
        Outcome::NotSent { reason, .. } => reason,
        other => panic!("not a NotSent: {other:?}"),
    }
}

pub fn no_answer(wire: &Wire, call: Call) -> String {
    match outcome(wire, call) {
        Outcome::NoAnswer { reason, .. } => reason,
        other => panic!("not a NoAnswer: {other:?}"),
    }
}
