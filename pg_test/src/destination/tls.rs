//! TLS in front of a destination: certificates of an authority that the test owns, and a port that takes TLS only and
//! hands every request on to the destination's plain port.

use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::Destination;
use crate::http::{Connection, read_request, response_bytes};

/// How long a client may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// A certificate authority that nobody knows until its certificate is given to them.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one.
    #[allow(clippy::new_without_default, reason = "every one is another one")]
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, key()).unwrap_or_else(|e| panic!("an authority: {e}"));
        Authority { issuer }
    }

    /// Its own certificate, for `command_ledger.ca_file`.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A port with a certificate of this authority for these names, in front of the destination.
    pub fn front(&self, destination: &Destination, names: &[&str]) -> TlsFront {
        let key = key();
        let certificate = params(names).signed_by(&key, &self.issuer).unwrap_or_else(|e| panic!("certificate: {e}"));
        TlsFront::start(certificate.der().clone(), &key, destination)
    }
}

fn key() -> KeyPair {
    KeyPair::generate().unwrap_or_else(|e| panic!("a key: {e}"))
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).unwrap_or_else(|e| panic!("names of a certificate: {e}"))
}

/// The port. Stops taking connections when dropped.
pub struct TlsFront {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl TlsFront {
    /// With a certificate that signs itself, for these names.
    pub fn self_signed(destination: &Destination, names: &[&str]) -> TlsFront {
        let key = key();
        let certificate = params(names).self_signed(&key).unwrap_or_else(|e| panic!("certificate: {e}"));
        TlsFront::start(certificate.der().clone(), &key, destination)
    }

    fn start(certificate: CertificateDer<'static>, key: &KeyPair, destination: &Destination) -> TlsFront {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key));
        let config = Arc::new(config.unwrap_or_else(|e| panic!("TLS: {e}")));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap_or_else(|e| panic!("listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("address: {e}"));
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted, behind) = (Arc::clone(&stop), Arc::clone(&connections), destination.url("/"));
        let thread = spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), config, behind) = (stream, Arc::clone(&config), behind.clone()) else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                spawn(move || serve(stream, config, &behind));
            }
        });
        TlsFront { address, stop, connections, thread: Some(thread) }
    }

    /// `https://HOST:PORT` and the path.
    pub fn url(&self, host: &str, path: &str) -> String {
        format!("https://{host}:{}{path}", self.address.port())
    }

    /// The same without TLS, which it does not speak.
    pub fn plain_url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }

    /// How many connections came, whatever became of them.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes accept(); the connection itself is dropped there.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection: requests in, the same requests to the plain port, its answers back.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, behind: &str) {
    let _ = stream.set_read_timeout(Some(SILENCE));
    let Ok(connection) = ServerConnection::new(config) else { return };
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    while let Ok(Some(request)) = read_request(&mut reader) {
        let framing =
            |name: &str| ["host", "content-length", "connection"].contains(&name.to_ascii_lowercase().as_str());
        let headers: Vec<(&str, &str)> = request
            .headers
            .iter()
            .filter(|(name, _)| !framing(name))
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = Connection::open(behind)
            .and_then(|mut plain| plain.call(&request.method, &request.target, &headers, &request.body));
        let Ok(answer) = answer else { return };
        let headers = answer.headers.into_iter().filter(|(name, _)| !framing(name)).collect();
        let bytes = response_bytes(answer.status, &headers, &answer.body);
        if reader.get_mut().write_all(&bytes).and_then(|()| reader.get_mut().flush()).is_err() {
            return;
        }
    }
}
