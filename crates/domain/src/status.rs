//! States of a command, and the one function that decides every transition.
//!
//! - [`Status`], [`ErrorClass`], [`CaseReason`]: the words.
//! - [`Event`]: what can happen. [`State`]: what a decision needs to know. [`next`]: the table of transitions.
//! - [`legal_calls`], [`reachable_transition`]: the same table as callers and triggers see it.

mod event;
mod legal;
mod reason;
mod state;
mod table;
mod words;

pub use event::{Event, JOURNAL_KINDS};
pub use legal::{check_expected_attempt, legal_calls, reachable_transition};
pub use reason::CaseReason;
pub use state::{CaseAction, State, Transition, registered};
pub use table::next;
pub(crate) use words::words;
pub use words::{ApprovalState, ErrorClass, Status};

#[cfg(test)]
mod tests;
