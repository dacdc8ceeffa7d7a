//! A port that listens and takes no connection: whoever connects waits until he gives up.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Connections that may be needed until the kernel takes no more; the shortest backlog holds one or two.
const FILLERS_MAX: usize = 16;
/// A connection that is not there after this time will not come.
const PATIENCE: Duration = Duration::from_millis(150);

/// Holds the port, and the connections that fill its backlog.
pub struct Deaf {
    _listener: Socket,
    _fillers: Vec<TcpStream>,
    number: u16,
}

impl Deaf {
    /// On a free port of 127.0.0.1.
    pub fn start() -> Deaf {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap_or_else(|e| panic!("socket: {e}"));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&any.into()).and_then(|()| listener.listen(0)).unwrap_or_else(|e| panic!("listen: {e}"));
        let address = listener.local_addr().ok().and_then(|address| address.as_socket());
        let address = address.unwrap_or_else(|| panic!("a bound socket has an address"));
        let mut fillers = Vec::new();
        while let Ok(filler) = TcpStream::connect_timeout(&address, PATIENCE) {
            fillers.push(filler);
            assert!(fillers.len() <= FILLERS_MAX, "{address} still takes connections");
        }
        Deaf { _listener: listener, _fillers: fillers, number: address.port() }
    }

    /// `http://127.0.0.1:PORT` and the path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.number)
    }
}
