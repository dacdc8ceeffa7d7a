//! The HTTP side of the relay: calls go in through a bounded queue, replies come out of another one, and an eventfd says
//! when there are some. No PostgreSQL in here, and nothing of it is needed: one thread with all signals blocked runs one
//! single-threaded runtime.
//!
//! # What a reply proves
//!
//! The ledger decides from a reply whether a second send is safe, so the three outcomes are exact:
//!
//! | outcome | what is proven |
//! |---|---|
//! | [`Outcome::NotSent`] | no byte of the request was handed to the operating system |
//! | [`Outcome::NoAnswer`] | at least one byte may have left, and no complete response head came back |
//! | [`Outcome::Answered`] | a response head came back; [`Answer::complete`] tells whether its body did |
//!
//! The proof is the gate (`gate.rs`): it sits between TLS (or HTTP) and the socket, and every write of a request passes
//! it. It opens with the first byte that the operating system accepts and is closed before that, so "was something sent"
//! is not inferred from the kind of an error.
//!
//! # Why hyper's connection API and not a ready-made client
//!
//! `reqwest` (and the client of `hyper-util` under it) keeps a pool, retries a request that was cancelled on a reused
//! connection, and reports failures by kind, not by "did a byte leave". `Client::retry_canceled_requests` can be turned
//! off below reqwest, but the second question stays open: an error of a pooled connection does not tell which side of the
//! first write it happened on. `hyper::client::conn::http1` is one connection and one request; it never repeats anything.
//! The pool here is a list of idle connections. Nothing in this crate sends a request twice.
//!
//! # Bounds
//!
//! Connections (all, and per host), queued calls, bytes held by calls and replies, response heads, bodies, header values,
//! concurrent name lookups and the time of each call are all limited; see the constants in `limits.rs`.

mod basic;
mod call;
mod config;
mod connect;
mod engine;
mod exchange;
mod fault;
mod gate;
mod guard;
mod limits;
mod pool;
mod port;
mod proxy;
mod request;
mod resolve;
mod secret;
mod wire;

pub use basic::basic_authorization;
pub use call::{Answer, Call, Outcome, Reply};
pub use config::{ConfigError, WireConfig};
pub use fault::Cause;
pub use secret::{Secret, SecretError, SecretStore};
pub use wire::{ShutdownReport, Wire};
