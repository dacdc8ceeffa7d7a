//! TLS and the proxy: every failure before the request is a `NotSent`, and a tunnel carries what TLS protects.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use command_ledger_wire::{Wire, WireConfig};
use common::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("the file");
        Authority { issuer, directory }
    }

    /// A server's settings with a certificate for these names.
    fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        server_config(certificate.der().clone(), &key)
    }

    fn config(&self) -> WireConfig {
        WireConfig { ca_file: Some(self.directory.path().join("ca.pem")), ..config() }
    }
}

fn server_config(certificate: rustls::pki_types::CertificateDer<'static>, key: &KeyPair) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a server");
    Arc::new(config)
}

/// A TLS server that counts requests and answers each with `response`; closes without a closing message.
fn tls_server(config: Arc<ServerConfig>, response: &'static [u8], once: bool) -> (Server, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = Server::start(move |tcp| {
        let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
        let mut tls = StreamOwned::new(connection, tcp);
        while read_request(&mut tls).is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
            if tls.write_all(response).and_then(|()| tls.flush()).is_err() || once {
                return;
            }
        }
    });
    (server, requests)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn https(server: &Server, host: &str) -> String {
    format!("https://{host}:{}/", server.address.port())
}

#[test]
fn tls_against_a_plain_port_is_not_sent() {
    let server = Server::start(|mut stream| {
        let _ = stream.peek(&mut [0_u8; 1]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        wait_for_close(&mut stream);
    });
    assert!(not_sent(&wire(), call(1, https(&server, "127.0.0.1"))).contains("TLS"));
    let closing = Server::start(drop);
    assert!(not_sent(&wire(), call(1, https(&closing, "127.0.0.1"))).contains("TLS"));
}

#[test]
fn a_tls_handshake_that_hangs_is_a_connect_timeout_and_not_sent() {
    let server = Server::start(|mut stream| wait_for_close(&mut stream));
    let mut hanging = call(1, https(&server, "127.0.0.1"));
    hanging.connect_timeout_ms = 200;
    assert!(not_sent(&wire(), hanging).contains("took longer than 200 ms"));
}

#[test]
fn a_certificate_of_nobody_known_is_not_sent() {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate");
    let (server, requests) = tls_server(server_config(certificate.der().clone(), &key), OK, false);
    let reason = not_sent(&wire(), call(1, https(&server, "localhost")));
    assert!(reason.contains("TLS"), "{reason}");
    assert_eq!(requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_private_authority_is_trusted_when_its_file_is_named_and_only_for_the_certificates_names() {
    let authority = Authority::new();
    let (server, requests) = tls_server(authority.server(&["localhost", "127.0.0.1"]), OK, false);
    let wire = Wire::start(authority.config()).expect("start");
    for id in 0..10 {
        assert_eq!(answer(&wire, call(id, https(&server, "localhost"))).body, b"ok");
    }
    assert_eq!((server.connections(), requests.load(Ordering::SeqCst)), (1, 10));
    assert_eq!(answer(&wire, call(11, https(&server, "127.0.0.1"))).body, b"ok");

    let (other, requests) = tls_server(authority.server(&["erp.example"]), OK, false);
    assert!(not_sent(&wire, call(12, https(&other, "localhost"))).contains("TLS"));
    assert_eq!(requests.load(Ordering::SeqCst), 0);

    wire.reconfigure(config()).expect("valid");
    assert!(not_sent(&wire, call(13, https(&server, "localhost"))).contains("TLS"));
}

#[test]
fn an_answer_of_unknown_length_that_tls_did_not_close_is_not_complete() {
    let authority = Authority::new();
    let (server, _) = tls_server(authority.server(&["localhost"]), b"HTTP/1.1 200 OK\r\n\r\npart", true);
    let wire = Wire::start(authority.config()).expect("start");
    let answer = answer(&wire, call(1, https(&server, "localhost")));
    assert_eq!((answer.complete, answer.body.as_slice()), (false, &b"part"[..]));
}

#[test]
fn a_file_without_authorities_is_an_error_of_the_settings() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ca.pem");
    let with_file = || WireConfig { ca_file: Some(path.clone()), ..config() };
    assert!(Wire::start(with_file()).is_err(), "no such file");
    std::fs::write(&path, "not a certificate").expect("the file");
    assert!(with_file().check().is_err());
    let wire = wire();
    assert!(wire.reconfigure(with_file()).is_err());
    assert!(wire.is_alive());
}

/// A proxy that notes request heads, answers plain requests itself, and opens tunnels to loopback ports.
fn proxy(tunnel_status: &'static str) -> (Server, Arc<Mutex<Vec<String>>>) {
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&heads);
    let server = Server::start(move |mut client| {
        let Some(request) = read_request(&mut client) else { return };
        noted.lock().expect("lock").push(request.head.clone());
        let Some(target) = request.head.strip_prefix("CONNECT ") else {
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nproxy");
            return wait_for_close(&mut client);
        };
        let _ = client.write_all(format!("HTTP/1.1 {tunnel_status}\r\n\r\n").as_bytes());
        if !tunnel_status.starts_with("200") {
            return;
        }
        let port = target.split(' ').next().and_then(|authority| authority.rsplit(':').next()).expect("a port");
        let upstream = TcpStream::connect(("127.0.0.1", port.parse::<u16>().expect("a number"))).expect("upstream");
        let (mut from, mut to) = (client.try_clone().expect("a handle"), upstream.try_clone().expect("a handle"));
        std::thread::spawn(move || copy(&mut from, &mut to));
        copy(&mut { upstream }, &mut client);
    });
    (server, heads)
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) {
    let mut bytes = [0_u8; 4_096];
    while let Ok(read) = from.read(&mut bytes)
        && read > 0
        && to.write_all(&bytes[..read]).is_ok()
    {}
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn through(proxy: &Server, base: WireConfig) -> Wire {
    let proxy = Some(format!("http://ann:pw@{}", proxy.address));
    Wire::start(WireConfig { proxy, ..base }).expect("start")
}

#[test]
fn a_plain_call_goes_to_the_proxy_with_its_whole_target() {
    let (server, heads) = proxy("200 OK");
    let wire = through(&server, config());
    assert_eq!(answer(&wire, call(1, "http://erp.example/a?b")).body, b"proxy");
    let heads = heads.lock().expect("lock");
    assert!(heads[0].starts_with("POST http://erp.example/a?b HTTP/1.1\r\n"), "{}", heads[0]);
    assert_eq!(header_of(&heads[0], "proxy-authorization"), Some("Basic YW5uOnB3"));
    assert_eq!(header_of(&heads[0], "host"), Some("erp.example"));
}

#[test]
fn a_tls_call_goes_through_a_tunnel_and_the_proxys_password_stays_at_the_proxy() {
    let authority = Authority::new();
    let (destination, requests) = tls_server(authority.server(&["localhost"]), OK, false);
    let (server, heads) = proxy("200 Connection established");
    let wire = through(&server, authority.config());
    for id in 0..3 {
        assert_eq!(answer(&wire, call(id, https(&destination, "localhost"))).body, b"ok");
    }
    assert_eq!((requests.load(Ordering::SeqCst), server.connections()), (3, 1));
    let heads = heads.lock().expect("lock");
    assert!(heads[0].starts_with(&format!("CONNECT localhost:{} ", destination.address.port())), "{}", heads[0]);
}

#[test]
fn a_refused_tunnel_is_not_sent() {
    let (server, _) = proxy("407 Proxy Authentication Required");
    let wire = through(&server, config());
    assert!(not_sent(&wire, call(1, "https://erp.example/")).contains("status 407"));
}

#[test]
fn dangerous_destinations_are_refused_behind_a_proxy_too() {
    let (server, _) = proxy("200 OK");
    let wire = through(&server, config());
    for url in
        ["http://169.254.169.254/", "http://metadata.google.internal/", "http://2852039166/", "https://0xA9FEA9FE/"]
    {
        assert!(not_sent(&wire, call(1, url)).contains("refused: "), "{url}");
    }
    assert_eq!(server.connections(), 0);
}
