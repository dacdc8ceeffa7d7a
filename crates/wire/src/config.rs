//! The settings of the wire, and what they become.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::guard::Guard;
use crate::proxy::Proxy;

/// The settings of the wire. Read at [`Wire::start`](crate::Wire::start) and
/// [`Wire::reconfigure`](crate::Wire::reconfigure), including the files they name.
#[derive(Clone, Default)]
pub struct WireConfig {
    /// A PEM file with certificates of private authorities, trusted besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// `http://[user:password@]host[:port]`, for all calls; TLS destinations are reached through a tunnel. The
    /// environment's proxy variables are ignored.
    pub proxy: Option<String>,
    /// Hosts (`name`, `name:port`, address, `address:port`, CIDR network) that may be called although their address is
    /// link-local, metadata, unspecified, multicast or broadcast. Everything else needs no entry: this is not a list of
    /// the only hosts allowed.
    pub allowed_hosts: Vec<String>,
    /// Open connections at most, idle ones included; half of it (at least one) per host, so that one host that hangs
    /// leaves room for the others. Lowered to half of the process's limit of open files. At least 1.
    pub max_connections: usize,
}

/// Shows no proxy password.
impl fmt::Debug for WireConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireConfig")
            .field("ca_file", &self.ca_file)
            .field("proxy", &self.proxy.as_ref().map(|_| "set"))
            .field("allowed_hosts", &self.allowed_hosts)
            .field("max_connections", &self.max_connections)
            .finish()
    }
}

impl WireConfig {
    /// Whether the wire could start with these settings; reads the files, changes nothing.
    ///
    /// # Errors
    /// The first setting that is not valid.
    pub fn check(&self) -> Result<(), ConfigError> {
        Settings::new(self).map(|_| ())
    }
}

/// A setting that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// An entry of `allowed_hosts` is none of the forms.
    AllowedHost(String),
    /// The proxy is not usable; says why, without the setting's text (it may hold a password).
    Proxy(&'static str),
    /// The file with private authorities cannot be read or holds no certificate.
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS cannot be set up.
    Tls(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::AllowedHost(entry) => {
                write!(
                    f,
                    "allowed host \"{entry}\" is not a name, an address (each with or without a port) or a network"
                )
            }
            ConfigError::Proxy(reason) => write!(f, "the proxy setting is not valid: {reason}"),
            ConfigError::CaFile { path, reason } => write!(f, "CA file \"{}\": {reason}", path.display()),
            ConfigError::Tls(reason) => write!(f, "TLS cannot be set up: {reason}"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

/// The settings, checked and loaded.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) guard: Guard,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) max_connections: usize,
}

impl Settings {
    pub(crate) fn new(config: &WireConfig) -> Result<Settings, ConfigError> {
        let proxy = match config.proxy.as_deref().map(str::trim) {
            None | Some("") => None,
            Some(text) => Some(Proxy::parse(text)?),
        };
        Ok(Settings {
            guard: Guard::new(&config.allowed_hosts)?,
            proxy,
            tls: Arc::new(tls_config(config.ca_file.as_ref())?),
            max_connections: config.max_connections.max(1),
        })
    }
}

/// TLS 1.2 and 1.3, the system's authorities and the private ones. No early data: it could be replayed. HTTP/1.1 only:
/// HTTP/2 lets a server refuse a stream in ways that clients repeat on their own.
fn tls_config(ca_file: Option<&PathBuf>) -> Result<ClientConfig, ConfigError> {
    let mut roots = RootCertStore::empty();
    // Certificates of the system that cannot be read are left out: a call that needs one fails before it is sent.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let broken = |reason: String| ConfigError::CaFile { path: path.clone(), reason };
        let mut found = false;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| broken(error.to_string()))? {
            let certificate = certificate.map_err(|error| broken(error.to_string()))?;
            roots.add(certificate).map_err(|error| broken(error.to_string()))?;
            found = true;
        }
        if !found {
            return Err(broken("it holds no certificate".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConfigError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    tls.enable_early_data = false;
    Ok(tls)
}
