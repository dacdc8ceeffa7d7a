//! The functional core of command_ledger. Every decision (canonical form, hash, transition, answer, lookup, retry,
//! approval, window, fence) is a pure function here, with its table in the doc comment; nothing in this crate reads
//! a clock, a file, a socket or a database.

pub mod answer;
pub mod approval;
pub mod canonical;
pub mod config;
pub mod error;
pub mod fence;
pub mod hash;
pub mod inflight;
pub mod json;
pub mod key;
pub mod lookup;
pub mod policy;
pub mod request;
pub mod retention;
pub mod retry;
pub mod schema;
pub mod send;
pub mod status;
pub mod template;
pub mod throttle;
