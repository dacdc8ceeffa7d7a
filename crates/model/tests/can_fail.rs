//! Every property can fail: with one rule taken out, the check finds a way, and the way can be repeated.

mod common;

use command_ledger_model::{Break, Setup, invariants, replay, setups};

/// A rule, where its loss shows, and what it breaks.
type Case = (Break, fn() -> Setup, &'static str);

const RULES: &[Case] = &[
    (Break::CompareKeyOnly, setups::approved, "I1"),
    (Break::SendRolledBack, setups::rolled_back, "I7"),
    (Break::SendBeforeCheckpoint, setups::searchable, "I2"),
    (Break::RepeatWithoutLookup, setups::searchable, "I3"),
    (Break::ForgetMaybeSent, setups::deduplicating, "I5"),
    (Break::AbsentWithoutSettleDelay, setups::workers, "I3"),
    (Break::IgnoreWindow, setups::deduplicating, "I3"),
    (Break::SkipApprovalCheck, setups::approved, "I6"),
    (Break::ApproveAnyContent, setups::approved, "I6"),
    (Break::SendAfterLease, setups::approved, "I6"),
    (Break::LateOverwrites, setups::deduplicating_workers, "I8"),
    (Break::LateThrownAway, setups::deduplicating_workers, "I8"),
    (Break::NoLeaseEpoch, setups::deduplicating, "I9"),
    (Break::NoBudget, setups::unique_reference, "I9"),
    (Break::IgnoreDeadline, setups::timed, "I9"),
    (Break::ForgetCase, setups::unprotected, "I4"),
    (Break::ForgetOldLeases, setups::unprotected, "I4"),
    (Break::UncertainIsFailure, setups::searchable, "I5"),
    (Break::UncertainIsSuccess, setups::searchable, "I5"),
    (Break::RefusedRepeatIsFailure, setups::deduplicating, "I5"),
    (Break::RetryAnything, setups::halted, "I10"),
    (Break::IgnoreFence, setups::restored, "I11"),
    (Break::EndBlindly, setups::halted, "I5"),
    (Break::KeepOldAbsence, setups::promoted_searchable, "I3"),
    (Break::RepeatOtherRequest, setups::deduplicating_workers, "I3"),
];

fn property(number: &str) -> &'static str {
    let named = |name: &&str| name.split(' ').next() == Some(number);
    invariants().iter().map(|p| p.name).find(named).unwrap_or_else(|| panic!("no invariant {number}"))
}

#[test]
fn the_check_finds_every_rule_that_is_taken_out_and_the_trace_repeats_it() {
    for (rule, setup, number) in RULES {
        let (setup, property) = (setup().without(*rule), property(number));
        let trace = common::counterexample(&setup, property);
        println!("{rule:?} in {}: {property}\n{}", setup.name, common::told(&trace));
        let (_, broken) = replay(&setup, &trace).unwrap_or_else(|at| panic!("{rule:?}: step {at} cannot be repeated"));
        assert!(broken.contains(&property), "{rule:?}: the repeated trace breaks {broken:?}");
        let whole = Setup { broken: None, ..setup };
        let holds = replay(&whole, &trace).map_or(true, |(_, broken)| broken.is_empty());
        assert!(holds, "{rule:?}: the same steps break an invariant with the rule in place");
    }
}

#[test]
fn every_rule_and_every_invariant_has_its_case() {
    for rule in Break::ALL {
        assert!(RULES.iter().any(|(r, _, _)| r == rule), "{rule:?} is taken out nowhere");
    }
    for invariant in invariants() {
        let number = invariant.name.split(' ').next();
        assert!(RULES.iter().any(|(_, _, n)| Some(*n) == number), "nothing breaks {}", invariant.name);
    }
}
