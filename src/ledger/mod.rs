//! What SQL can call, one file per stage (prepare, approve, execute, confirm, reconcile), and what they share: the
//! record of a command and its writes (`command`, `batch`), the definitions (`catalog`), rights (`access`).
//!
//! Lock order, everywhere: lane (advisory) -> command row -> outbox row -> case and approval rows; several commands in
//! the order of their keys. A claim takes outbox rows alone and never waits (SKIP LOCKED); whoever changes what a
//! claim relies on holds the outbox row while doing so, so that a claimed row is as it was read.

pub mod access;
pub mod adopt;
pub mod advisory;
pub mod approve;
pub mod batch;
pub mod cancel;
pub mod catalog;
pub mod claim;
pub mod command;
pub mod define;
pub mod dispatch;
pub mod due;
pub mod evidence;
pub mod explain;
pub mod fence;
pub mod grants;
pub mod guard;
pub mod inbox;
pub mod journal;
pub mod judge;
pub mod lane;
pub mod lookalike;
pub mod names;
pub mod predicate;
pub mod pull;
pub mod receipt;
pub mod reconcile;
pub mod register;
pub mod requests;
pub mod retention;
pub mod revise;
pub mod room;
pub mod rows;
pub mod settle;
pub mod status;
pub mod store;
pub mod sweep;
pub mod validate;
