//! What goes in (a call) and what comes out (a reply).

use std::fmt;
use std::time::{Instant, SystemTime};

use crate::fault::Cause;
use crate::limits::{RESPONSE_LIMIT_MAX_BYTES, TIMEOUT_MAX};

/// One HTTP request to make, once.
#[derive(Clone)]
pub struct Call {
    /// The caller's number for it; comes back in [`Reply::id`]. Not sent, and not checked for uniqueness.
    pub id: u64,
    /// The method, in upper case. `CONNECT` is refused.
    pub method: String,
    /// An absolute `http` or `https` URL in ASCII, percent-encoded; no user information. A fragment is dropped.
    pub url: String,
    /// Header fields, secrets already resolved. Fields that frame the message (`content-length`, `transfer-encoding`,
    /// `connection`, ...) are refused. All values are treated as secret: none is ever logged or shown by `Debug`.
    pub headers: Vec<(String, String)>,
    /// The request body; empty for none.
    pub body: Vec<u8>,
    /// From the moment that the call gets a connection slot until the answer is read, in milliseconds. The wait for a
    /// slot is limited by the same length again, and by `not_after`.
    pub timeout_ms: u64,
    /// For name lookup, TCP, proxy and TLS together, in milliseconds; part of `timeout_ms`.
    pub connect_timeout_ms: u64,
    /// Bytes of the response body that are kept, at most 16 MiB.
    pub response_limit: usize,
    /// The first byte does not leave after this moment: checked at the socket, right before it.
    pub not_after: Instant,
}

impl Call {
    pub(crate) fn response_limit_bytes(&self) -> usize {
        self.response_limit.min(RESPONSE_LIMIT_MAX_BYTES)
    }

    pub(crate) fn timeout(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.timeout_ms).min(TIMEOUT_MAX)
    }

    pub(crate) fn connect_timeout(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.connect_timeout_ms).min(TIMEOUT_MAX)
    }

    /// Bytes that this call may hold until its reply is taken.
    pub(crate) fn held_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        headers + self.url.len() + self.body.len() + self.response_limit_bytes()
    }
}

/// Shows no header value, no body, and nothing of the URL: each may hold a secret or a payload.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Call")
            .field("id", &self.id)
            .field("method", &self.method)
            .field("header_names", &names)
            .field("body_bytes", &self.body.len())
            .field("timeout_ms", &self.timeout_ms)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("response_limit", &self.response_limit)
            .finish_non_exhaustive()
    }
}

/// What is known about a call once it is over.
///
/// | what happened | outcome |
/// |---|---|
/// | invalid URL, method, headers or size; refused address; name not resolved | `NotSent` |
/// | connection refused, TLS or proxy tunnel failed, connect timeout, no free slot in time, out of descriptors | `NotSent` |
/// | `not_after` passed, shutdown, or a kept connection found closed or failing, before a byte was accepted by the socket | `NotSent` |
/// | reset, closed, timeout, shutdown, or not HTTP, after a byte was accepted by the socket | `NoAnswer` |
/// | a response head was read (any status, 3xx too) | `Answered` |
/// | the same, then reset, closed early, or timeout within the body | `Answered`, `complete: false` |
///
/// The reasons are for people: they name hosts, addresses and errors of the operating system, never a path, a header
/// value or a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Provably no byte of the request left.
    NotSent {
        /// Why, for programs.
        cause: Cause,
        /// Why, in words.
        reason: String,
    },
    /// A byte of the request may have left and no response head came back.
    NoAnswer {
        /// Why, for programs.
        cause: Cause,
        /// Why, in words.
        reason: String,
    },
    /// A response head came back.
    Answered(Answer),
}

/// A response.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status, 100 to 999; informational responses were skipped (except 101, which ends the exchange).
    pub status: u16,
    /// The header fields that are kept: content type and encoding, `retry-after`, `location`, `date`, `etag`,
    /// `last-modified`, request ids, replay markers and rate limits. Names in lower case, values cut at 1 KiB, bytes that
    /// are not UTF-8 replaced.
    pub headers: Vec<(String, String)>,
    /// The body's bytes as they came (no decompression, any bytes), cut at the call's limit.
    pub body: Vec<u8>,
    /// There were more bytes than `body` holds.
    pub truncated: bool,
    /// SHA-256 of the `body_bytes` bytes that were read, the ones beyond the limit included.
    pub body_sha256: [u8; 32],
    /// How many bytes of the body were read. Reading goes on past the limit (so that the digest covers the whole body) up
    /// to 32 MiB.
    pub body_bytes: u64,
    /// The body was read to its end. `false`: reset, closed early, timeout, or more than 32 MiB.
    pub complete: bool,
}

/// Shows no body and no header value.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("header_names", &names)
            .field("body_bytes", &self.body_bytes)
            .field("truncated", &self.truncated)
            .field("complete", &self.complete)
            .finish_non_exhaustive()
    }
}

/// The end of a call. Each accepted call has exactly one.
#[derive(Clone, Debug)]
pub struct Reply {
    /// [`Call::id`].
    pub id: u64,
    /// What is known.
    pub outcome: Outcome,
    /// When the call left the queue (had a connection slot); for a call that never did, when it was accepted.
    pub started_at: SystemTime,
    /// From `started_at` to the end, in milliseconds of the monotonic clock.
    pub elapsed_ms: u64,
}
