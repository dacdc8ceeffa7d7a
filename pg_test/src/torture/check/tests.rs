//! The checker can fail: an honest log passes, and each hand-made lie is refused under its invariant.

use serde_json::json;

use super::check;
use crate::torture::evidence::{Approval, Command, Contract, Entry, Evidence, Request, Span, Told};

fn entry(seq: usize, at_us: i64, kind: &str, from: &str, to: &str, attempt: usize) -> Entry {
    Entry { seq, at_us, kind: kind.into(), from: from.into(), to: to.into(), attempt }
}

/// A gated command that was approved, sent, lost its answer, was looked up as absent, sent again and confirmed.
fn honest() -> Evidence {
    let params = json!({"amount": 7});
    let mut all = Evidence { clock_slack_us: 5, ..Evidence::default() };
    all.contracts.insert(
        "gated".into(),
        Contract { destination: "erp".into(), deduplicates: false, max_attempts: 3, needs_person: false },
    );
    all.told.insert(
        "k".into(),
        Told {
            command_type: "gated".into(),
            params: vec![params.clone()],
            acknowledged: true,
            confirmed_as: Some("R-1".into()),
            ..Told::default()
        },
    );
    all.commands.push(Command {
        key: "k".into(),
        command_type: "gated".into(),
        status: "confirmed".into(),
        attempt: 2,
        counted_attempts: 2,
        record_id: Some("R-1".into()),
        params: params.clone(),
        params_match: true,
        intent_hash: "aa".into(),
        approvals_required: 1,
        journal_seq: 6,
        chain_holds: true,
        ..Command::default()
    });
    all.entries.insert(
        "k".into(),
        vec![
            entry(1, 100, "approve", "planned", "approved", 0),
            entry(2, 200, "claim", "approved", "dispatched", 1),
            entry(3, 300, "uncertain", "dispatched", "needs_reconciliation", 1),
            entry(4, 400, "lookup_absent", "needs_reconciliation", "approved", 1),
            entry(5, 500, "claim", "approved", "dispatched", 2),
            entry(6, 600, "confirm", "dispatched", "confirmed", 2),
        ],
    );
    all.approvals.insert("k".into(), vec![Approval { intent_hash: "aa".into(), granted_us: 100, expires_us: 1_000 }]);
    all.cases.insert("k".into());
    let request = |at_us, effect: Option<&str>| Request {
        key: "k".into(),
        at_us,
        params: params.clone(),
        effect: effect.map(str::to_owned),
        ..Request::default()
    };
    all.requests = vec![request(210, None), request(510, Some("R-1"))];
    all
}

fn refused(invariant: &str, lie: impl FnOnce(&mut Evidence)) {
    let mut all = honest();
    lie(&mut all);
    let found = check(&all);
    assert!(found.iter().any(|f| f.invariant == invariant), "expected {invariant}, found {found:#?}");
}

fn entries(all: &mut Evidence) -> &mut Vec<Entry> {
    all.entries.get_mut("k").expect("there")
}

#[test]
fn an_honest_log_passes() {
    assert_eq!(check(&honest()), []);
}

#[test]
fn a_second_effect_is_refused() {
    refused("I3", |all| all.requests[0].effect = Some("R-0".into()));
}

#[test]
fn a_lost_command_is_refused() {
    refused("I4", |all| {
        all.commands.clear();
        all.entries.clear();
        all.requests.clear();
    });
}

#[test]
fn a_command_in_no_queue_is_refused() {
    for status in ["planned", "approved", "dispatched", "needs_reconciliation"] {
        refused("I4", |all| all.commands[0].status = status.into());
    }
}

#[test]
fn a_false_success_is_refused() {
    refused("I5", |all| all.requests[1].effect = None);
    refused("I5", |all| all.commands[0].record_id = Some("R-other".into()));
    refused("I5", |all| all.told.get_mut("k").expect("there").confirmed_as = Some("R-other".into()));
}

#[test]
fn a_false_failure_is_refused_unless_a_person_answers_for_it() {
    let fail = |all: &mut Evidence| {
        all.commands[0].status = "failed".into();
        entries(all)[5] = entry(6, 600, "refused", "dispatched", "failed", 2);
        all.told.get_mut("k").expect("there").confirmed_as = None;
    };
    refused("I5", fail);
    let mut all = honest();
    fail(&mut all);
    all.abandoned.insert("k".into());
    assert_eq!(check(&all), []);
}

#[test]
fn a_final_command_that_is_maybe_sent_is_refused() {
    refused("I5", |all| all.commands[0].maybe_sent = true);
}

#[test]
fn an_unknown_outcome_that_nobody_asked_about_is_refused() {
    refused("I5", |all| entries(all)[3].kind = "revise".into());
    refused("I5", |all| all.cases.clear());
}

#[test]
fn an_approval_used_on_other_parameters_is_refused() {
    refused("I6", |all| all.approvals.get_mut("k").expect("there")[0].intent_hash = "bb".into());
    refused("I6", |all| all.requests[1].params = json!({"amount": 8}));
}

#[test]
fn an_approval_that_a_clock_set_back_puts_after_its_claim_is_the_one_before_it() {
    // The first claim is at 200, and clocks step by 5: the journal's order decides within that.
    let granted_at = |at_us: i64| {
        let mut all = honest();
        all.approvals.get_mut("k").expect("there")[0].granted_us = at_us;
        check(&all)
    };
    assert_eq!(granted_at(204), []);
    assert!(granted_at(206).iter().any(|found| found.invariant == "I6"));
}

#[test]
fn an_approval_that_was_over_or_taken_back_is_refused() {
    refused("I6", |all| all.approvals.get_mut("k").expect("there")[0].expires_us = 400);
    refused("I6", |all| entries(all)[3].kind = "revoke_approval".into());
}

#[test]
fn a_broken_chain_is_refused() {
    refused("I10", |all| all.commands[0].chain_holds = false);
    refused("I10", |all| {
        entries(all).remove(2);
    });
    refused("I10", |all| entries(all)[4].from = "planned".into());
    refused("I10", |all| all.commands[0].journal_seq = 7);
}

#[test]
fn a_confirmed_command_that_goes_on_is_refused() {
    refused("I10", |all| {
        entries(all).push(entry(7, 700, "retry", "confirmed", "approved", 2));
        all.commands[0].journal_seq = 7;
        all.commands[0].status = "approved".into();
        all.commands[0].queued = true;
    });
}

#[test]
fn a_send_before_its_checkpoint_is_refused() {
    refused("I2", |all| all.requests[0].at_us = 100);
    refused("I2", |all| all.requests.push(all.requests[0].clone()));
}

#[test]
fn a_send_whose_checkpoint_was_lost_with_its_place_is_no_send_without_one() {
    let mut all = honest();
    all.requests.insert(1, Request { at_us: 450, effect: None, ..all.requests[0].clone() });
    assert!(!check(&all).is_empty());
    all.lost_checkpoints.push(Span { from_us: 440, to_us: 460, why: "dump".into() });
    assert_eq!(check(&all), []);
}

#[test]
fn two_commands_of_one_key_or_other_content_are_refused() {
    refused("I1", |all| all.commands.push(all.commands[0].clone()));
    refused("I1", |all| all.told.get_mut("k").expect("there").params = vec![json!({"amount": 8})]);
    refused("I1", |all| all.commands[0].params_match = false);
}

#[test]
fn what_was_rolled_back_and_sent_is_refused() {
    refused("I7", |all| {
        let told = all.told.get_mut("k").expect("there");
        (told.rolled_back, told.acknowledged) = (true, false);
    });
    refused("I7", |all| {
        all.commands.clear();
        all.entries.clear();
        all.told.clear();
    });
}

#[test]
fn a_worker_whose_confirmation_was_thrown_away_is_refused() {
    refused("I8", |all| {
        all.told.get_mut("k").expect("there").worker_confirmed = true;
        all.commands[0].status = "failed".into();
        all.cases.clear();
    });
}

#[test]
fn more_than_was_granted_is_refused() {
    refused("I9", |all| all.contracts.get_mut("gated").expect("there").max_attempts = 1);
    refused("I9", |all| all.commands[0].deadline_us = Some(450));
    refused("I9", |all| {
        all.in_flight.insert("erp".into(), (5, 4));
    });
}

#[test]
fn a_repeat_without_a_look_where_nothing_deduplicates_is_refused() {
    refused("I3", |all| {
        let journal = entries(all);
        journal[2] = entry(3, 300, "safe_repeat", "dispatched", "approved", 1);
        journal[3] = entry(4, 400, "approve", "approved", "approved", 1);
    });
}

#[test]
fn a_copy_that_sends_is_refused() {
    refused("I11", |all| all.silences.push(Span { from_us: 505, to_us: 515, why: "restored".into() }));
}

#[test]
fn what_an_actor_saw_is_a_finding() {
    refused("I12", |all| all.seen.push(("k".into(), "I12", "an agent approved".into())));
}
