//! Every bound of this crate that is not a setting, in one place.

use std::time::Duration;

/// A response body beyond this many bytes is not kept, whatever the call asks for.
pub(crate) const RESPONSE_LIMIT_MAX_BYTES: usize = 16 * 1024 * 1024;
/// A body is read (and hashed) up to this many bytes; there the reading stops and the answer is not complete.
pub(crate) const BODY_READ_MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The largest request body.
pub(crate) const REQUEST_BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// All bytes that accepted calls may hold until their replies are taken: request bodies and reserved response space.
pub(crate) const HELD_MAX_BYTES: usize = 256 * 1024 * 1024;
/// The response head (and hyper's read buffer). hyper refuses less than 8 KiB.
pub(crate) const RESPONSE_HEAD_MAX_BYTES: usize = 64 * 1024;
/// Header fields of a request, and the bytes of all of them.
pub(crate) const REQUEST_HEADERS_MAX: usize = 100;
/// See [`REQUEST_HEADERS_MAX`].
pub(crate) const REQUEST_HEADERS_MAX_BYTES: usize = 64 * 1024;
/// The longest URL.
pub(crate) const URL_MAX_BYTES: usize = 8 * 1024;
/// A response header value longer than this is cut.
pub(crate) const HEADER_VALUE_MAX_BYTES: usize = 1024;
/// Response header fields that are kept.
pub(crate) const HEADERS_KEPT_MAX: usize = 32;
/// The answer of a proxy to CONNECT.
pub(crate) const PROXY_HEAD_MAX_BYTES: usize = 8 * 1024;
/// Addresses of one name that are tried.
pub(crate) const ADDRESSES_MAX: usize = 8;
/// Threads that wait for the resolver of the operating system.
pub(crate) const RESOLVER_THREADS_MAX: usize = 16;
/// Names that are being resolved or wait for a resolver thread.
pub(crate) const LOOKUPS_MAX: usize = 256;
/// Calls that are accepted beyond those that have a connection: per connection.
pub(crate) const QUEUE_PER_CONNECTION: usize = 4;
/// The longest reason text of a reply.
pub(crate) const REASON_MAX_BYTES: usize = 300;

/// How long an idle connection may be used again. Short on purpose: a request written into a connection that the server
/// is closing just then has an uncertain outcome, which costs a lookup or a person's time, while a new connection costs
/// one or two round trips. Under load a connection is idle for milliseconds. Common servers close after 2 s (gunicorn),
/// 5 s (node, Apache) or more; a `Keep-Alive: timeout=` in the response shortens it further.
pub(crate) const IDLE_MAX: Duration = Duration::from_millis(1_500);
/// How much earlier than the server's own `Keep-Alive: timeout=` a connection is given up.
pub(crate) const IDLE_MARGIN: Duration = Duration::from_millis(1_000);
/// How often idle connections are looked through while there are any.
pub(crate) const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// The longest timeout of a call.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
