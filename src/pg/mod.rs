//! The PostgreSQL side of the shell: small modules over the server's C interface. Nearly all `unsafe` of the
//! extension lives here, each block with its reason; the rooms above (`ledger`, `relay`) stay ordinary Rust.
//!
//! Invariants of this room: no server error is caught half-way (it unwinds to the outermost function), no Rust value
//! with a destructor is alive when an error is raised, no call is made off the main thread.

pub mod call;
pub mod datum;
pub mod enums;
pub mod guard;
pub mod jsonb;
pub mod jsonpath;
pub mod latch;
pub mod qualify;
pub mod random;
pub mod report;
pub mod role;
pub mod row;
pub mod scan;
pub mod scratch;
pub mod spi;
pub mod table;
mod target;
pub mod transaction;
pub mod tuple;
pub mod watch;
