//! What an answer means for the command, now and late.

mod late;
mod meaning;

pub use late::{EarlierSuccess, LateFacts, LateMeaning, LateOutcome, late, second_effect};
pub use meaning::{
    AfterAnswer, Facts, IdempotencyMode, Meaning, NoAnswer, NotSent, Protection, RuleOutcome, Wire, event_after,
    meaning, protection,
};

#[cfg(test)]
mod tests;
