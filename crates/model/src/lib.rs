//! A model of the whole: callers, approvers, operators, a relay or workers that may die at any step, a network that
//! loses, delays and reorders, destinations of every kind, a clock, and failover. The decisions in it are those of
//! `command_ledger_domain`, called as the extension calls them; [`shell`] stands for the extension's own code around
//! them. [`properties`] are the invariants; [`Break`] takes one rule out at a time, so that every property is seen to
//! fail.
//!
//! Times are microseconds, in whole [`TICK_US`]; one command is followed through its life.

mod actions;
mod destination;
mod properties;
mod setup;
pub mod setups;
mod shell;
mod trace;
#[allow(missing_docs, reason = "the fields are the columns of the tables that they stand for")]
mod world;

pub use actions::Action;
pub use destination::{Answer, Looked};
pub use properties::{Check, invariants};
pub use setup::{Bounds, Break, Move, Recognises, Sender, Setup, TICK_MS, TICK_US, Truth};
pub use trace::{replay, walk};
pub use world::World;
