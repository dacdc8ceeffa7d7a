//! The thread, its queue and its end.

mod common;

use std::collections::HashSet;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use command_ledger_wire::{Outcome, Wire, WireConfig};
use common::*;

/// A destination that takes requests and never answers; says when one has arrived.
fn hanging() -> (Server, mpsc::Receiver<()>) {
    let (arrived, arrivals) = mpsc::channel();
    let arrived = std::sync::Mutex::new(arrived);
    let server = Server::start(move |mut stream| {
        while read_request(&mut stream).is_some() {
            let _ = arrived.lock().expect("lock").send(());
        }
    });
    (server, arrivals)
}

fn small(max_connections: usize) -> Wire {
    Wire::start(WireConfig { max_connections, ..config() }).expect("start")
}

#[test]
fn a_destination_that_hangs_does_not_hold_up_another() {
    let (slow, arrivals) = hanging();
    let fast = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let wire = small(8);
    for id in 0..20 {
        wire.send(call(id, slow.url("/"))).expect("room");
    }
    for _ in 0..4 {
        arrivals.recv_timeout(PATIENCE).expect("half of the connections");
    }
    for id in 100..110 {
        assert_eq!(answer(&wire, call(id, fast.url("/"))).status, 200);
    }
    assert_eq!(slow.connections(), 4, "a host has half of the connections at most");
    assert_eq!(wire.in_flight(), 20);
}

#[test]
fn connections_stay_within_the_limit_however_many_hosts_there_are() {
    let servers: Vec<Server> =
        (0..12).map(|_| Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")).collect();
    let wire = small(4);
    // Idle connections of other hosts make room: one after the other, each host gets its call.
    for round in 0..3 {
        for (id, server) in servers.iter().enumerate() {
            assert_eq!(answer(&wire, call(round * 100 + id as u64, server.url("/"))).status, 200);
            assert!(open_connections_to(&servers) <= 4);
        }
    }
}

/// Sockets of this process whose peer is one of the servers.
fn open_connections_to(servers: &[Server]) -> usize {
    let mut open = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("descriptors") {
        let Ok(name) = entry.expect("an entry").file_name().into_string() else { continue };
        let Ok(descriptor) = name.parse::<i32>() else { continue };
        // SAFETY: all zeroes is a valid sockaddr_in.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: the struct and its length are on this frame; a descriptor that is no socket is an error.
        let failed = unsafe { libc::getpeername(descriptor, (&raw mut address).cast(), &raw mut length) };
        let port = u16::from_be(address.sin_port);
        open += usize::from(failed == 0 && servers.iter().any(|server| server.address.port() == port));
    }
    open
}

#[test]
fn a_full_queue_gives_the_call_back_and_has_room_again_when_replies_are_taken() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let wire = small(2);
    let capacity = wire.room();
    for id in 0..capacity as u64 {
        wire.send(call(id, server.url("/"))).expect("room");
    }
    assert_eq!(wire.room(), 0);
    let back = wire.send(call(999, server.url("/"))).expect_err("no room");
    assert_eq!((back.id, back.body.as_slice()), (999, &b"{}"[..]));
    let ids: HashSet<u64> = replies(&wire, capacity).into_iter().map(|reply| reply.id).collect();
    assert_eq!(ids.len(), capacity);
    assert_eq!((wire.in_flight(), wire.room()), (0, capacity));
    assert_eq!(answer(&wire, *Box::new(back)).status, 200);
}

#[test]
fn calls_that_would_hold_too_much_memory_are_given_back() {
    let (server, _arrivals) = hanging();
    let wire = wire();
    let mut accepted = 0_usize;
    loop {
        let mut large = call(accepted as u64, server.url("/"));
        large.response_limit = usize::MAX;
        if wire.send(large).is_err() {
            break;
        }
        accepted += 1;
        assert!(accepted <= 16, "16 MiB each, 256 MiB in all");
    }
    assert!(accepted > 0 && wire.room() > 0);
}

#[test]
fn the_descriptor_stays_readable_while_replies_wait() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let wire = wire();
    let readable = |wait_ms: i32| {
        let mut poll = libc::pollfd { fd: wire.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on this frame.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
    };
    for id in 0..3 {
        wire.send(call(id, server.url("/"))).expect("room");
    }
    let mut taken = 0;
    while taken < 3 {
        assert!(readable(60_000), "a reply waits");
        let some = wire.take(1).len();
        assert!(some <= 1);
        taken += some;
    }
    assert!(wire.take(10).is_empty());
    assert!(!readable(0), "nothing waits");
}

#[test]
fn a_shutdown_tells_what_was_sent_from_what_was_not_and_does_not_wait_for_a_destination_that_hangs() {
    let (server, arrivals) = hanging();
    let wire = small(4);
    let patient = |id| {
        let mut call = call(id, server.url("/"));
        call.timeout_ms = 3_600_000;
        call
    };
    for id in 0..6 {
        wire.send(patient(id)).expect("room");
    }
    for _ in 0..2 {
        arrivals.recv_timeout(PATIENCE).expect("a request");
    }
    let report = wire.shutdown(Duration::from_millis(200));
    assert!(report.stopped);
    assert_eq!((report.unknown, report.replies.len()), (0, 6));
    for reply in &report.replies {
        let sent = matches!(&reply.outcome, Outcome::NoAnswer { reason, .. } if reason.contains("shutting down"));
        let unsent = matches!(&reply.outcome, Outcome::NotSent { reason, .. } if reason.contains("shutting down"));
        assert!(if reply.id < 2 { sent } else { unsent }, "{reply:?}");
    }
}

#[test]
fn a_shutdown_lets_a_call_finish_within_the_grace() {
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let (arrived, arrivals) = mpsc::channel();
    let arrived = std::sync::Mutex::new(arrived);
    let server = Server::start(move |mut stream| {
        read_request(&mut stream);
        let _ = arrived.lock().expect("lock").send(());
        let _ = gate.lock().expect("lock").recv_timeout(PATIENCE);
        let _ = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n");
        wait_for_close(&mut stream);
    });
    let wire = wire();
    wire.send(call(1, server.url("/"))).expect("room");
    arrivals.recv_timeout(PATIENCE).expect("the request");
    let ending = std::thread::spawn(move || wire.shutdown(PATIENCE));
    go.send(()).expect("the server waits");
    let report = ending.join().expect("no panic");
    assert!(matches!(&report.replies[0].outcome, Outcome::Answered(answer) if answer.status == 201));
}

#[test]
fn waiting_for_a_connection_ends_with_not_sent() {
    let (server, arrivals) = hanging();
    let wire = small(2);
    wire.send(call(1, server.url("/"))).expect("room");
    arrivals.recv_timeout(PATIENCE).expect("the only connection to the host");
    let mut waiting = call(2, server.url("/"));
    waiting.timeout_ms = 200;
    assert!(not_sent(&wire, waiting).contains("came free"));
}

#[test]
fn every_signal_is_blocked_in_the_wires_thread_and_none_more_in_the_callers() {
    // `None`: the thread (of another test) has ended.
    let mask_of = |task: &str| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/self/task/{task}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("SigBlk:"))?;
        u64::from_str_radix(line.trim_start_matches("SigBlk:").trim(), 16).ok()
    };
    // SAFETY: no arguments.
    let own = unsafe { libc::gettid() }.to_string();
    let before = mask_of(&own);
    assert!(before.is_some());
    let wire = wire();
    assert_eq!(mask_of(&own), before);
    // A lookup starts a resolver thread, which must inherit the mask.
    not_sent(&wire, call(1, "http://2852039166/"));
    let mut threads = 0;
    for entry in std::fs::read_dir("/proc/self/task").expect("tasks") {
        let task = entry.expect("an entry").file_name().into_string().expect("a number");
        let name = std::fs::read_to_string(format!("/proc/self/task/{task}/comm")).unwrap_or_default();
        if !name.starts_with("wire") {
            continue;
        }
        let Some(mask) = mask_of(&task) else { continue };
        threads += 1;
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGHUP,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGALRM,
            libc::SIGCHLD,
            libc::SIGPIPE,
            libc::SIGURG,
            libc::SIGWINCH,
        ] {
            assert!(mask & (1 << (signal - 1)) != 0, "signal {signal} reaches {name}");
        }
    }
    assert!(threads >= 2, "the thread and a resolver");
}

#[test]
fn dropping_the_handle_ends_the_thread() {
    let (server, arrivals) = hanging();
    let wire = wire();
    wire.send(call(1, server.url("/"))).expect("room");
    arrivals.recv_timeout(PATIENCE).expect("the request");
    drop(wire);
    // The connection closes: the server's handler ends, and with it its sender.
    drop(server);
    assert!(matches!(arrivals.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected)));
}
