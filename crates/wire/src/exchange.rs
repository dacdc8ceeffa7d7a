//! One connection, and one request and response on it. The connection is driven by the task of the call that uses it:
//! when that task stops, so does every write.

use std::future::{Future, poll_fn};
use std::os::fd::RawFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::call::Answer;
use crate::fault::{Cause, Fault};
use crate::gate::{Gate, SentFlag, Stream};
use crate::limits::{
    BODY_READ_MAX_BYTES, HEADER_VALUE_MAX_BYTES, HEADERS_KEPT_MAX, IDLE_MARGIN, IDLE_MAX, RESPONSE_HEAD_MAX_BYTES,
};

type Connection = http1::Connection<Stream, Full<Bytes>>;

/// What one request needs besides itself.
pub(crate) struct Terms {
    pub(crate) not_after: std::time::Instant,
    pub(crate) deadline: Instant,
    pub(crate) timeout: Duration,
    pub(crate) response_limit: usize,
}

/// An open connection.
pub(crate) struct Live {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: Option<Connection>,
    gate: Rc<Gate>,
    descriptor: RawFd,
    /// Which configuration opened it; older ones are not used again.
    pub(crate) generation: u64,
    reusable: bool,
    idle_max: Duration,
}

impl Live {
    pub(crate) async fn new(
        stream: Stream,
        gate: Rc<Gate>,
        descriptor: RawFd,
        generation: u64,
    ) -> Result<Live, String> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(RESPONSE_HEAD_MAX_BYTES)
            // Some servers still compare names with case.
            .title_case_headers(true)
            .handshake(stream)
            .await
            .map_err(|error| format!("HTTP could not be set up: {error}"))?;
        Ok(Live {
            sender,
            connection: Some(connection),
            gate,
            descriptor,
            generation,
            reusable: false,
            idle_max: IDLE_MAX,
        })
    }

    /// Makes the exchange. `Err` is a failure without a response head; whether something was sent is in `sent`.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        terms: &Terms,
        sent: &SentFlag,
    ) -> Result<Answer, Fault> {
        self.reusable = false;
        self.gate.arm(terms.not_after, sent.clone());
        let response = self.sender.send_request(request);
        let response = match timeout_at(terms.deadline, drive(&mut self.connection, response)).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) if self.gate.was_late() => {
                return Err(Fault::new(Cause::Late, "the time for sending passed before the first byte"));
            }
            Ok(Err(error)) => return Err(describe(&error, sent)),
            Err(_) => {
                return Err(Fault::new(Cause::Timeout, format!("no answer within {} ms", terms.timeout.as_millis())));
            }
        };
        let answer = self.read(response, terms).await;
        if answer.complete && answer.status != StatusCode::SWITCHING_PROTOCOLS.as_u16() {
            self.reusable = self.is_ready().await;
        }
        self.gate.disarm();
        Ok(answer)
    }

    /// May this connection be kept for another request?
    pub(crate) fn is_reusable(&self) -> bool {
        self.reusable && self.idle_max > Duration::ZERO
    }

    /// How long it may be idle.
    pub(crate) fn idle_max(&self) -> Duration {
        self.idle_max
    }

    /// Is it still usable after having been idle? Asks the kernel (a close or stray bytes are seen at once) and HTTP.
    /// Nothing is written.
    pub(crate) async fn is_still_usable(&mut self) -> bool {
        socket_is_quiet(self.descriptor) && self.is_ready().await
    }

    async fn is_ready(&mut self) -> bool {
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if connection.as_mut().is_some_and(|open| open.poll_without_shutdown(cx).is_ready()) {
                *connection = None;
            }
            Poll::Ready(())
        })
        .await;
        self.connection.is_some() && self.sender.is_ready()
    }

    async fn read(&mut self, response: Response<Incoming>, terms: &Terms) -> Answer {
        let (head, mut incoming) = response.into_parts();
        self.idle_max = idle_max(&head.headers);
        let mut body = Body::new(terms.response_limit);
        let connection = &mut self.connection;
        let whole = async {
            loop {
                match drive(connection, incoming.frame()).await {
                    None => return true,
                    Some(Err(_)) => return false,
                    Some(Ok(frame)) => {
                        let goes_on = frame.data_ref().is_none_or(|data| body.add(data));
                        if !goes_on {
                            return false;
                        }
                    }
                }
            }
        };
        let complete = timeout_at(terms.deadline, whole).await.unwrap_or(false);
        Answer {
            status: head.status.as_u16(),
            headers: kept_headers(&head.headers),
            truncated: body.read_bytes > body.kept.len() as u64,
            body_bytes: body.read_bytes,
            body_sha256: body.digest.finalize().into(),
            body: body.kept,
            complete,
        }
    }
}

/// Runs the connection until `wanted` is there. When the connection ends, its drop resolves `wanted`.
async fn drive<F: Future>(connection: &mut Option<Connection>, wanted: F) -> F::Output {
    let mut wanted = pin!(wanted);
    poll_fn(|cx| {
        if let Poll::Ready(output) = wanted.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        // Without shutdown: a closing message of TLS would be the first byte of a request that never was.
        if connection.as_mut().is_some_and(|open| open.poll_without_shutdown(cx).is_ready()) {
            *connection = None;
        }
        wanted.as_mut().poll(cx)
    })
    .await
}

struct Body {
    kept: Vec<u8>,
    limit: usize,
    read_bytes: u64,
    digest: Sha256,
}

impl Body {
    fn new(limit: usize) -> Body {
        Body { kept: Vec::new(), limit, read_bytes: 0, digest: Sha256::new() }
    }

    /// Adds bytes; `false` when enough was read.
    fn add(&mut self, data: &[u8]) -> bool {
        self.digest.update(data);
        self.read_bytes = self.read_bytes.saturating_add(data.len() as u64);
        let room = self.limit.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
        self.read_bytes < BODY_READ_MAX_BYTES
    }
}

fn describe(error: &hyper::Error, sent: &SentFlag) -> Fault {
    use std::error::Error as _;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    let mut detail = String::new();
    while let Some(inner) = cause {
        detail = inner.to_string();
        cause = inner.source();
    }
    let (cause, what) = if !sent.is_set() {
        (Cause::Lost, "the connection ended before the request was written")
    } else if error.is_parse() {
        (Cause::Unreadable, "what came back is not a valid HTTP response")
    } else {
        (Cause::Lost, "the connection ended before an answer came")
    };
    let detail = if detail.is_empty() { error.to_string() } else { detail };
    Fault::new(cause, format!("{what}: {detail}"))
}

/// The response header fields that are kept: what decisions and people need, and nothing that is likely to hold a secret.
fn is_kept(name: &str) -> bool {
    matches!(
        name,
        "content-type"
            | "content-encoding"
            | "content-length"
            | "retry-after"
            | "location"
            | "date"
            | "etag"
            | "last-modified"
            | "request-id"
            | "x-request-id"
            | "x-correlation-id"
            | "x-trace-id"
            | "traceparent"
            | "x-amzn-requestid"
            | "x-amz-request-id"
            | "x-ms-request-id"
            | "cf-ray"
            | "idempotency-key"
            | "original-request"
            | "server"
    ) || name.contains("idempoten")
        || name.contains("replay")
        || name.contains("ratelimit")
        || name.contains("rate-limit")
}

fn kept_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| is_kept(name.as_str()))
        .take(HEADERS_KEPT_MAX)
        .map(|(name, value)| {
            let bytes = value.as_bytes();
            let cut = bytes.get(..bytes.len().min(HEADER_VALUE_MAX_BYTES)).unwrap_or_default();
            (name.as_str().to_owned(), String::from_utf8_lossy(cut).into_owned())
        })
        .collect()
}

/// The server's own limit (`Keep-Alive: timeout=5`) can only shorten ours.
fn idle_max(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keep-alive").and_then(|value| value.to_str().ok()).and_then(|value| {
        value.split(',').find_map(|part| {
            let (name, seconds) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("timeout").then(|| seconds.trim().parse::<u32>().ok()).flatten()
        })
    });
    match seconds {
        Some(seconds) => Duration::from_secs(u64::from(seconds)).saturating_sub(IDLE_MARGIN).min(IDLE_MAX),
        None => IDLE_MAX,
    }
}

/// Open, and nothing to read: not closed by the peer, no stray bytes.
fn socket_is_quiet(descriptor: RawFd) -> bool {
    let mut byte = [0_u8; 1];
    // SAFETY: one writable byte; the descriptor belongs to the connection that the caller holds.
    let read = unsafe { libc::recv(descriptor, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    read < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_keep_alive_time_shortens_ours_and_never_lengthens_it() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("keep-alive", value.parse().expect("value"));
            idle_max(&headers)
        };
        assert_eq!(of("timeout=0"), Duration::ZERO);
        assert_eq!(of("timeout=1, max=100"), Duration::ZERO);
        assert_eq!(of("max=100, Timeout=2"), Duration::from_secs(1));
        assert_eq!(of("timeout=3600"), IDLE_MAX);
        assert_eq!(of("timeout=never"), IDLE_MAX);
        assert_eq!(idle_max(&HeaderMap::new()), IDLE_MAX);
    }

    #[test]
    fn cookies_and_challenges_are_not_kept() {
        assert!(!is_kept("set-cookie") && !is_kept("www-authenticate") && !is_kept("authorization"));
        assert!(is_kept("idempotent-replayed") && is_kept("x-ratelimit-reset") && is_kept("retry-after"));
    }
}
