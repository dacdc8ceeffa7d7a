//! The config documents of destinations and command types: typed, with every default, checked as a whole.
//!
//! A command type may carry its own `request`, `success`, `lookup` and `rules`. [`effective`] lays them over the
//! destination's:
//!
//! | part | how the two meet |
//! |---|---|
//! | `request`, `success`, `lookup` | field by field: a field that the type gives replaces the destination's |
//! | `request.headers` | by name, without regard to case |
//! | `request.auth`, `request.body`, `lookup.headers`, `lookup.sentinel` | as a whole |
//! | `rules` | the type's come first, then the destination's; the first that fits decides |
//! | all other fields | belong to one of the two documents only |

mod body;
mod command_type;
mod destination;
mod digest;
mod effective;
mod reader;
mod request;
mod values;

// What the documents say in the words of the decisions.
pub use crate::answer::{IdempotencyMode, RuleOutcome};
pub use crate::policy::LookalikeAction;
pub use crate::retry::Window;

pub use body::{Body, Tree};
pub use command_type::{ApprovalRule, CommandTypePolicy, LaneOnFailure, Lookalike, Retention, RetryRule};
pub use destination::{Breaker, DestinationConfig, Idempotency, KeyFormat, Limits, Transport, pace};
pub use effective::{Effective, LookupSpec, RequestSpec, SuccessSpec, effective};
pub(crate) use reader::member_path;
pub use request::{Auth, LookupPatch, RequestPatch, Rule, Sentinel, SuccessPatch, User};
pub use values::{MAX_DURATION_MS, parse_duration_ms};
pub(crate) use values::{is_header_text, is_url_byte, url_authority_fault};

/// The content type of forms.
pub(crate) const FORM: &str = "application/x-www-form-urlencoded";

#[cfg(test)]
mod tests;
