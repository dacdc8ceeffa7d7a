//! From an origin to a connection that HTTP can use. Every failure here is a `NotSent`: no byte of a request exists yet.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::config::Settings;
use crate::exchange::Live;
use crate::fault::{Cause, Fault};
use crate::gate::{Gate, Gated, Stream};
use crate::proxy;
use crate::request::Origin;
use crate::resolve::Resolver;

/// Opens a connection to the origin, through the proxy if there is one, within `limit`.
pub(crate) async fn connect(
    origin: &Origin,
    settings: &Settings,
    resolver: &Rc<Resolver>,
    limit: Duration,
    generation: u64,
) -> Result<Live, Fault> {
    let deadline = Instant::now() + limit;
    match timeout_at(deadline, open(origin, settings, resolver, deadline, generation)).await {
        Ok(opened) => opened,
        Err(_) => Err(Fault::new(
            Cause::ConnectTimeout,
            format!("connecting to {} took longer than {} ms", origin.authority(), limit.as_millis()),
        )),
    }
}

async fn open(
    origin: &Origin,
    settings: &Settings,
    resolver: &Rc<Resolver>,
    deadline: Instant,
    generation: u64,
) -> Result<Live, Fault> {
    if let Some(why) = settings.guard.refused_name(&origin.host, origin.port) {
        return Err(Fault::new(Cause::NotAllowed, format!("host {} is refused: {why}", origin.host)));
    }
    let tcp = match &settings.proxy {
        None => {
            let addresses = resolve(&origin.host, resolver).await?;
            let allowed = allowed_addresses(origin, settings, addresses)?;
            open_tcp(&allowed, deadline).await?
        }
        Some(proxy) => {
            check_host_text(origin, settings)?;
            // The proxy itself is the operator's choice and may be anywhere.
            let addresses = resolve(&proxy.host, resolver).await.map_err(Fault::at_proxy)?;
            let sockets: Vec<SocketAddr> = addresses.iter().map(|ip| SocketAddr::new(*ip, proxy.port)).collect();
            open_tcp(&sockets, deadline).await.map_err(Fault::at_proxy)?
        }
    };
    // Small requests must not wait for more; if the option is not available, they do.
    let _ = tcp.set_nodelay(true);
    let descriptor = tcp.as_raw_fd();
    let gate = Gate::new();
    let mut gated = Gated::new(tcp, Rc::clone(&gate));
    if !origin.tls {
        return Live::new(Stream::Plain(gated), gate, descriptor, generation).await.map_err(Fault::of(Cause::Lost));
    }
    if let Some(proxy) = &settings.proxy {
        proxy::open_tunnel(&mut gated, &origin.authority(), proxy).await.map_err(Fault::of(Cause::Proxy))?;
    }
    let name = ServerName::try_from(origin.host.clone())
        .map_err(|_| format!("TLS: \"{}\" is not a host name that a certificate can have", origin.host))
        .map_err(Fault::of(Cause::Tls))?;
    let tls = TlsConnector::from(settings.tls.clone())
        .connect(name, gated)
        .await
        .map_err(|error| Fault::new(Cause::Tls, format!("TLS with {} failed: {error}", origin.authority())))?;
    Live::new(Stream::Tls(Box::new(tls)), gate, descriptor, generation).await.map_err(Fault::of(Cause::Lost))
}

async fn resolve(host: &str, resolver: &Rc<Resolver>) -> Result<Vec<IpAddr>, Fault> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    match resolver.lookup(host).await {
        Ok(found) if found.is_empty() => Err(Fault::new(Cause::Unresolved, format!("host {host} has no address"))),
        Ok(found) => Ok(found),
        Err(reason) => Err(Fault::new(Cause::Unresolved, format!("host {host} could not be resolved: {reason}"))),
    }
}

/// What may be connected to: exactly these addresses are used, so what was checked is what is called.
fn allowed_addresses(origin: &Origin, settings: &Settings, addresses: Vec<IpAddr>) -> Result<Vec<SocketAddr>, Fault> {
    let mut allowed = Vec::with_capacity(addresses.len());
    let mut refusal = None;
    for address in addresses {
        match settings.guard.refused_address(&origin.host, address, origin.port) {
            None => allowed.push(SocketAddr::new(address, origin.port)),
            Some(why) => refusal = Some(format!("host {} is refused: {address} is {why}", origin.host)),
        }
    }
    match refusal {
        Some(reason) if allowed.is_empty() => Err(Fault::new(Cause::NotAllowed, reason)),
        _ => Ok(allowed),
    }
}

/// Behind a proxy only the text can be checked: an address in it, and no number that the proxy might read as one.
fn check_host_text(origin: &Origin, settings: &Settings) -> Result<(), Fault> {
    let refusal = match origin.host.parse::<IpAddr>() {
        Ok(address) => settings.guard.refused_address(&origin.host, address, origin.port),
        Err(_) if settings.guard.host_is_exempt(&origin.host, origin.port) => None,
        Err(_) => proxy::is_disguised_address(&origin.host).then_some("an address in an unusual form"),
    };
    match refusal {
        Some(why) => Err(Fault::new(Cause::NotAllowed, format!("host {} is refused: it is {why}", origin.host))),
        None => Ok(()),
    }
}

/// Tries the addresses in turn; each gets an equal part of the time that is left.
async fn open_tcp(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Fault> {
    let mut failure = Fault::new(Cause::Unresolved, "there is no address to connect to");
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let parts = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX).max(1);
        failure = match timeout(left / parts, TcpStream::connect(*address)).await {
            // A connection from a port to itself is possible while nobody listens there; it is no destination.
            Ok(Ok(tcp)) if tcp.local_addr().is_ok_and(|local| local == *address) => {
                Fault::new(Cause::Refused, format!("connecting to {address} failed: nobody listens there"))
            }
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => Fault::new(Cause::Refused, format!("connecting to {address} failed: {error}")),
            Err(_) => Fault::new(Cause::ConnectTimeout, format!("connecting to {address} timed out")),
        };
    }
    Err(failure)
}
