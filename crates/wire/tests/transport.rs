//! What each failure of the transport is called, against real sockets.

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use command_ledger_wire::{Wire, WireConfig};
use common::*;
use sha2::{Digest, Sha256};

#[test]
fn a_refused_connection_is_not_sent() {
    let port = TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address").port();
    let reason = not_sent(&wire(), call(1, format!("http://127.0.0.1:{port}/")));
    assert!(reason.contains("127.0.0.1") && reason.contains("failed"), "{reason}");
}

#[test]
fn a_connect_timeout_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    // SAFETY: plain system call on a descriptor that lives here. The shortest backlog: a full one drops what follows.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().expect("address");
    let mut fillers = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        fillers.push(stream);
        assert!(fillers.len() < 100, "the backlog never fills");
    }
    let mut slow = call(1, format!("http://{address}/"));
    slow.connect_timeout_ms = 200;
    let reason = not_sent(&wire(), slow);
    assert!(reason.contains("timed out") || reason.contains("took longer"), "{reason}");
}

#[test]
fn a_name_that_does_not_resolve_is_not_sent() {
    let reason = not_sent(&wire(), call(1, "http://no-such-host.invalid/"));
    assert!(reason.contains("no-such-host.invalid"), "{reason}");
}

#[test]
fn an_invalid_request_is_not_sent_and_never_connects() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let wire = wire();
    not_sent(&wire, call(1, "not a url"));
    let mut injected = call(2, server.url("/"));
    injected.headers.push(("X-A".to_owned(), "a\r\nX-B: b".to_owned()));
    not_sent(&wire, injected);
    let mut odd_method = call(3, server.url("/"));
    odd_method.method = "PO ST".to_owned();
    not_sent(&wire, odd_method);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_call_whose_time_has_passed_is_not_sent() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let mut late = call(1, server.url("/"));
    late.not_after = Instant::now();
    assert!(not_sent(&wire(), late).contains("time for sending passed"));
}

#[test]
fn dangerous_destinations_are_refused_in_every_spelling() {
    let wire = wire();
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://0251.0376.0251.0376/",
        "http://0.0.0.0:1/",
        "http://[::]:1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
    ] {
        let reason = not_sent(&wire, call(1, url));
        assert!(reason.contains("refused: "), "{url}: {reason}");
    }
}

#[test]
fn an_allowed_host_is_an_exception_from_the_refused_addresses() {
    let server = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let port = server.address.port();
    let url = format!("http://0.0.0.0:{port}/");
    let wire = Wire::start(WireConfig { allowed_hosts: vec![format!("0.0.0.0:{port}")], ..config() }).expect("start");
    assert_eq!(answer(&wire, call(1, url.as_str())).status, 200);
    wire.reconfigure(config()).expect("valid");
    not_sent(&wire, call(2, url));
}

#[test]
fn a_reset_before_the_request_was_read_is_no_answer_once_a_byte_left() {
    let server = Server::start(|stream| {
        let mut byte = [0_u8; 1];
        assert_eq!(stream.peek(&mut byte).expect("a byte of the request"), 1);
        reset(stream);
    });
    no_answer(&wire(), call(1, server.url("/")));
}

#[test]
fn a_reset_or_close_after_the_request_was_read_is_no_answer() {
    let resetting = Server::start(|mut stream| {
        read_request(&mut stream);
        reset(stream);
    });
    let closing = Server::start(|mut stream| {
        read_request(&mut stream);
    });
    let half_a_head = Server::answering_once("HTTP/1.1 200 OK\r\ncontent-le");
    let wire = wire();
    for (id, server) in [resetting, closing, half_a_head].iter().enumerate() {
        no_answer(&wire, call(id as u64, server.url("/")));
    }
}

#[test]
fn a_hang_after_the_request_was_sent_is_no_answer() {
    let server = Server::start(|mut stream| wait_for_close(&mut stream));
    let mut hanging = call(1, server.url("/"));
    hanging.timeout_ms = 300;
    let reason = no_answer(&wire(), hanging);
    assert!(reason.contains("300 ms"), "{reason}");
}

#[test]
fn an_answer_that_is_not_http_or_has_a_huge_head_is_no_answer() {
    let wire = wire();
    no_answer(&wire, call(1, Server::answering_once("SSH-2.0-OpenSSH\r\n\r\n").url("/")));
    let huge = format!("HTTP/1.1 200 OK\r\nx-huge: {}\r\n\r\n", "a".repeat(200_000));
    no_answer(&wire, call(2, Server::answering_once(huge).url("/")));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-a: 1\r\n".repeat(1_000));
    no_answer(&wire, call(3, Server::answering_once(many).url("/")));
}

#[test]
fn a_body_that_ends_early_is_an_answer_that_is_not_complete() {
    let wire = wire();
    for response in [
        &b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{\"id\":"[..],
        b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n6\r\n{\"id\":\r\n",
    ] {
        let server = Server::answering_once(response);
        let answer = answer(&wire, call(1, server.url("/")));
        assert_eq!((answer.status, answer.complete, answer.truncated), (201, false, false));
        assert_eq!(answer.body, b"{\"id\":");
    }
}

#[test]
fn a_slow_body_ends_with_the_timeout_and_keeps_what_came() {
    let server = Server::start(|mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc");
        wait_for_close(&mut stream);
    });
    let mut slow = call(1, server.url("/"));
    slow.timeout_ms = 500;
    let answer = answer(&wire(), slow);
    assert_eq!((answer.status, answer.complete, answer.body.as_slice()), (200, false, &b"abc"[..]));
}

#[test]
fn an_endless_body_is_cut_and_is_not_complete() {
    let server = Server::start(|mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        let block = [b'x'; 65_536];
        while stream.write_all(&block).is_ok() {}
    });
    let answer = answer(&wire(), call(1, server.url("/")));
    assert_eq!((answer.status, answer.complete, answer.truncated), (200, false, true));
    assert_eq!(answer.body.len(), 65_536);
    assert!(answer.body_bytes >= 65_536);
}

#[test]
fn a_body_beyond_the_limit_is_cut_and_its_digest_covers_all_of_it() {
    let body: Vec<u8> = (0..200_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let mut response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    response.extend_from_slice(&body);
    let server = Server::answering(response);
    let wire = wire();
    let mut limited = call(1, server.url("/"));
    limited.response_limit = 1_000;
    let cut = answer(&wire, limited);
    assert!(cut.truncated && cut.complete);
    assert_eq!(cut.body, body[..1_000]);
    assert_eq!(cut.body_bytes, 200_000);
    assert_eq!(cut.body_sha256, <[u8; 32]>::from(Sha256::digest(&body)));

    let mut exact = call(2, server.url("/"));
    exact.response_limit = 200_000;
    let whole = answer(&wire, exact);
    assert!(!whole.truncated && whole.complete && whole.body == body);
    let mut nothing = call(3, server.url("/"));
    nothing.response_limit = 0;
    let none = answer(&wire, nothing);
    assert!(none.truncated && none.complete && none.body.is_empty());
}

#[test]
fn any_bytes_survive_and_nothing_is_decompressed() {
    let body = b"\x00\xff\xfe\x1f\x8b\x00not utf-8\xc3";
    let mut response =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    response.extend_from_slice(body);
    let answer = answer(&wire(), call(1, Server::answering(response).url("/")));
    assert_eq!(answer.body, body);
    assert!(answer.headers.contains(&("content-encoding".to_owned(), "gzip".to_owned())));
}

#[test]
fn a_redirect_is_an_answer_and_is_not_followed() {
    let target = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let server = Server::answering(format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: {}\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n",
        target.url("/moved")
    ));
    let wire = wire();
    let answer = answer(&wire, call(1, server.url("/")));
    assert_eq!(answer.status, 307);
    assert_eq!(answer.headers[0], ("location".to_owned(), target.url("/moved")));
    assert!(!answer.headers.iter().any(|(name, _)| name == "set-cookie"));
    assert_eq!(target.connections(), 0);
}

#[test]
fn informational_responses_are_skipped() {
    let server = Server::answering(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
         HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok",
    );
    let answer = answer(&wire(), call(1, server.url("/")));
    assert_eq!((answer.status, answer.body.as_slice(), answer.complete), (201, &b"ok"[..], true));
}

#[test]
fn the_request_arrives_as_given() {
    let (sender, seen) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let server = Server::start(move |mut stream| {
        while let Some(request) = read_request(&mut stream) {
            sender.lock().expect("lock").send(request).expect("the test waits");
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let wire = wire();
    let mut full = call(1, server.url("/a%20b?c=%00"));
    full.headers.push(("Idempotency-Key".to_owned(), "k-1".to_owned()));
    full.body = b"\x00\xff{}".to_vec();
    assert_eq!(answer(&wire, full).status, 204);
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    assert!(request.head.starts_with("POST /a%20b?c=%00 HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("idempotency-key"), Some("k-1"));
    assert_eq!(request.header("host"), Some(server.address.to_string().as_str()));
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert_eq!(request.header("cookie"), None);
    assert_eq!(request.body, b"\x00\xff{}");

    let mut get = call(2, server.url(""));
    get.method = "GET".to_owned();
    get.body.clear();
    assert_eq!(answer(&wire, get).status, 204);
    let request = seen.recv_timeout(PATIENCE).expect("the request");
    assert!(request.head.starts_with("GET / HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("content-length"), None);
}

#[test]
fn a_connection_is_used_again_and_a_closed_one_is_not() {
    let keeping = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let wire = wire();
    for id in 0..20 {
        assert_eq!(answer(&wire, call(id, keeping.url("/"))).status, 200);
    }
    assert_eq!(keeping.connections(), 1);

    // Closes after each answer without announcing it: what was closed before the next call is not written to.
    let (closed, is_closed) = mpsc::channel();
    let closed = std::sync::Mutex::new(closed);
    let closing = Server::start(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        drop(stream);
        closed.lock().expect("lock").send(()).expect("the test waits");
    });
    for id in 0..20 {
        assert_eq!(answer(&wire, call(id, closing.url("/"))).status, 200);
        is_closed.recv_timeout(PATIENCE).expect("the server closes");
    }
    assert_eq!(closing.connections(), 20);

    let announcing = Server::answering("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
    for id in 0..3 {
        assert_eq!(answer(&wire, call(id, announcing.url("/"))).status, 200);
    }
    assert_eq!(announcing.connections(), 3);
}

#[test]
fn stray_bytes_on_an_idle_connection_are_never_taken_for_an_answer() {
    let server = Server::start(|mut stream| {
        while read_request(&mut stream).is_some() {
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nstray",
            );
        }
    });
    let wire = wire();
    for id in 0..10 {
        let answer = answer(&wire, call(id, server.url("/")));
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]));
    }
    assert_eq!(server.connections(), 10);
}

#[test]
fn an_early_answer_to_a_large_request_is_an_answer() {
    let server = Server::start(|mut stream| {
        let mut byte = [0_u8; 1];
        let _ = stream.peek(&mut byte);
        let _ = stream.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n");
        wait_for_close(&mut stream);
    });
    let mut large = call(1, server.url("/"));
    large.body = vec![b'x'; 8 * 1024 * 1024];
    assert_eq!(answer(&wire(), large).status, 413);
}
