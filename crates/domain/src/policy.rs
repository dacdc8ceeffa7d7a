//! What policy says about a new command: denied, approval needed, too much like another.

use crate::approval::ApprovalRule;
use crate::status::words;

words! {
    /// What a jsonpath predicate in strict mode says. Lax mode would call a missing field a clean "false", and a
    /// missing field must not open a gate.
    Predicate {
        /// True.
        True = "true",
        /// A clean false.
        False = "false",
        /// NULL, an error, or not a boolean.
        Unknown = "unknown",
    }
}

impl Predicate {
    /// From the three-valued answer of the server; an error of the evaluation is `None` too.
    pub const fn of(value: Option<bool>) -> Self {
        match value {
            Some(true) => Self::True,
            Some(false) => Self::False,
            None => Self::Unknown,
        }
    }

    const fn clean_false(self) -> bool {
        matches!(self, Self::False)
    }
}

/// Whether `deny_when` denies the command.
///
/// | deny_when | none | true | false | unknown |
/// |---|---|---|---|---|
/// | denied | no | yes | no | yes |
pub const fn deny(deny_when: Option<Predicate>) -> bool {
    match deny_when {
        None => false,
        Some(predicate) => !predicate.clean_false(),
    }
}

/// Whether the command needs an approval.
///
/// | approval.when | none | true | false | unknown |
/// |---|---|---|---|---|
/// | no approval configured | no | no | no | no |
/// | approval configured | yes | yes | no | yes |
pub const fn approval_needed(rule: Option<&ApprovalRule>, when: Option<Predicate>) -> bool {
    match (rule, when) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(_), Some(predicate)) => !predicate.clean_false(),
    }
}

words! {
    /// What to do with a command that looks like a recent one.
    LookalikeAction {
        /// Show it.
        Flag = "flag",
        /// Refuse it.
        Block = "block",
    }
}

/// What the look-alikes of a new command mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookalike<'a> {
    /// There is none that the caller did not name as different.
    Clear,
    /// Register it, and show that it looks like these.
    Flag(Vec<&'a str>),
    /// Refuse it (`CL010`): it looks like these.
    Block(Vec<&'a str>),
}

/// Decides about look-alikes. `others` are the keys of the same tenant's other commands of this type with the same
/// material content within the window; those that the caller names in `distinct_from` do not count. Naming one does
/// not excuse the others.
pub fn lookalike<'a>(action: LookalikeAction, others: &[&'a str], distinct_from: &[&str]) -> Lookalike<'a> {
    let unnamed: Vec<&str> = others.iter().copied().filter(|key| !distinct_from.contains(key)).collect();
    match action {
        _ if unnamed.is_empty() => Lookalike::Clear,
        LookalikeAction::Flag => Lookalike::Flag(unnamed),
        LookalikeAction::Block => Lookalike::Block(unnamed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: ApprovalRule = ApprovalRule { approvers: 1, ttl_ms: 1, separate_proposer: true };

    #[test]
    fn anything_but_a_clean_false_denies() {
        assert!(!deny(None));
        assert!(deny(Some(Predicate::True)));
        assert!(!deny(Some(Predicate::False)));
        assert!(deny(Some(Predicate::Unknown)));
    }

    #[test]
    fn anything_but_a_clean_false_needs_the_configured_approval() {
        for when in [None, Some(Predicate::True), Some(Predicate::False), Some(Predicate::Unknown)] {
            assert!(!approval_needed(None, when), "{when:?}");
        }
        assert!(approval_needed(Some(&RULE), None));
        assert!(approval_needed(Some(&RULE), Some(Predicate::True)));
        assert!(!approval_needed(Some(&RULE), Some(Predicate::False)));
        assert!(approval_needed(Some(&RULE), Some(Predicate::Unknown)));
    }

    #[test]
    fn null_is_not_a_clean_false() {
        assert_eq!(Predicate::of(Some(true)), Predicate::True);
        assert_eq!(Predicate::of(Some(false)), Predicate::False);
        assert_eq!(Predicate::of(None), Predicate::Unknown);
    }

    #[test]
    fn a_lookalike_is_flagged_or_blocked_unless_it_is_named_as_distinct() {
        use LookalikeAction::{Block, Flag};
        assert_eq!(lookalike(Flag, &[], &[]), Lookalike::Clear);
        assert_eq!(lookalike(Block, &[], &["a"]), Lookalike::Clear);
        assert_eq!(lookalike(Flag, &["a"], &[]), Lookalike::Flag(vec!["a"]));
        assert_eq!(lookalike(Block, &["a"], &[]), Lookalike::Block(vec!["a"]));
        assert_eq!(lookalike(Block, &["a"], &["a"]), Lookalike::Clear);
        assert_eq!(lookalike(Block, &["a", "b"], &["a"]), Lookalike::Block(vec!["b"]));
        assert_eq!(lookalike(Block, &["a"], &["A"]), Lookalike::Block(vec!["a"]));
    }
}
