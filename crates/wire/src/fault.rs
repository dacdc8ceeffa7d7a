//! Why a call ended without an answer: a word for programs and a sentence for people.

use std::fmt;

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request itself cannot be sent, now or ever: its URL, method, headers or size.
    Invalid,
    /// The address is refused, and `allowed_hosts` has no exception for it.
    NotAllowed,
    /// The host's name was not resolved.
    Unresolved,
    /// A secret that the request needs cannot be had.
    NoSecret,
    /// Nobody took the connection: refused, unreachable, out of descriptors.
    Refused,
    /// Connecting took too long.
    ConnectTimeout,
    /// TLS failed: certificate, name, protocol.
    Tls,
    /// The proxy opened no tunnel.
    Proxy,
    /// The connection ended: reset or closed.
    Lost,
    /// The time for the whole exchange passed.
    Timeout,
    /// What came back is not HTTP.
    Unreadable,
    /// No connection came free in time, or `not_after` passed before the first byte.
    Late,
    /// The wire was stopped.
    Stopped,
    /// A defect of this crate.
    Defect,
}

/// The word and the sentence. The sentence names hosts, addresses and errors of the operating system, never a path, a
/// header value or a body.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) cause: Cause,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(cause: Cause, reason: impl Into<String>) -> Fault {
        Fault { cause, reason: reason.into() }
    }

    /// For `map_err`, where a sentence is there already.
    pub(crate) fn of(cause: Cause) -> impl Fn(String) -> Fault {
        move |reason| Fault { cause, reason }
    }

    /// The same, said about the proxy.
    pub(crate) fn at_proxy(self) -> Fault {
        Fault { reason: format!("proxy: {}", self.reason), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
