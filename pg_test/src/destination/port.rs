//! The destination's port: listening, or held without listening, so that a connection is refused and nobody else
//! takes the port in between.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How often the port is taken back after it stopped listening.
const BIND_ATTEMPTS: u32 = 200;

enum Use {
    Held(Socket),
    Listening {
        stop: Arc<AtomicBool>,
        thread: JoinHandle<()>,
    },
    /// Only while one of the others becomes the other.
    Changing,
}

pub(crate) struct Port {
    address: SocketAddr,
    used: Use,
}

impl Port {
    /// A free port, held.
    pub(crate) fn take() -> Port {
        let socket = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = socket.local_addr().ok().and_then(|address| address.as_socket());
        Port { address: address.unwrap_or_else(|| panic!("a bound socket has an address")), used: Use::Held(socket) }
    }

    pub(crate) fn number(&self) -> u16 {
        self.address.port()
    }

    /// Accepts connections, each handed to `serve`; nothing changes when it does already.
    pub(crate) fn listen(&mut self, serve: impl Fn(TcpStream) + Send + 'static) {
        match std::mem::replace(&mut self.used, Use::Changing) {
            Use::Held(socket) => {
                socket.listen(BACKLOG).unwrap_or_else(|e| panic!("listen on {}: {e}", self.address));
                let listener = TcpListener::from(socket);
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = Arc::clone(&stop);
                let thread = spawn(move || accept_until(&listener, &stopped, serve));
                self.used = Use::Listening { stop, thread };
            }
            other => self.used = other,
        }
    }

    /// Refuses connections; nothing changes when it does already.
    pub(crate) fn refuse(&mut self) {
        match std::mem::replace(&mut self.used, Use::Changing) {
            Use::Listening { stop, thread } => {
                stop.store(true, Ordering::SeqCst);
                // Wakes accept(); the connection itself is dropped there.
                let _ = TcpStream::connect(self.address);
                let _ = thread.join();
                self.used = Use::Held(bound(self.address));
            }
            other => self.used = other,
        }
    }
}

fn accept_until(listener: &TcpListener, stop: &AtomicBool, serve: impl Fn(TcpStream)) {
    for stream in listener.incoming() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(stream) = stream {
            serve(stream);
        }
    }
}

/// A socket bound to the address, not listening.
fn bound(address: SocketAddr) -> Socket {
    let try_bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        Ok::<_, std::io::Error>(socket)
    };
    let mut last = try_bind();
    for _ in 0..BIND_ATTEMPTS {
        if last.is_ok() {
            break;
        }
        sleep(Duration::from_millis(10));
        last = try_bind();
    }
    last.unwrap_or_else(|e| panic!("bind {address}: {e}"))
}
