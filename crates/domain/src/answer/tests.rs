//! Every cell of the tables.

mod late;

use super::*;
use crate::retry::Repeat;
use crate::status::{ApprovalState, CaseReason as R, ErrorClass as C, Event, State, Status, next};

const REFUSED: Meaning = Meaning::Refused(C::Permanent);
const FORBIDDEN: Meaning = Meaning::Refused(C::Permission);

fn lookup(reason: R) -> Meaning {
    Meaning::Lookup { reason }
}

fn case(reason: R) -> Meaning {
    Meaning::Case { reason }
}

fn again(class: C, maybe_sent_after: bool) -> Meaning {
    Meaning::RepeatByBudget { maybe_sent_after, class }
}

/// The columns: deduplicates with lookup, deduplicates without, lookup only, neither.
const COLUMNS: [(Protection, bool); 4] = [
    (Protection::Deduplicates, true),
    (Protection::Deduplicates, false),
    (Protection::LookupOnly, true),
    (Protection::Neither, false),
];

fn facts(wire: Wire, column: usize, repeat: bool) -> Facts {
    let (protection, has_lookup) = COLUMNS[column];
    Facts {
        wire,
        success_rule_met: false,
        matched_rule: None,
        maybe_sent_before: repeat,
        absence_established: repeat && protection != Protection::Deduplicates,
        protection,
        has_lookup,
    }
}

/// One row: what the first send means in each column, and what a repeat while maybe sent means.
struct Row {
    wires: Vec<Wire>,
    first: [Meaning; 4],
    repeat: [Meaning; 4],
}

fn statuses(statuses: impl IntoIterator<Item = u16>) -> Vec<Wire> {
    statuses.into_iter().map(|status| Wire::Answered { status }).collect()
}

fn uncertain_row(reason: R) -> [Meaning; 4] {
    [again(C::Uncertain, true), again(C::Uncertain, true), lookup(reason), case(reason)]
}

fn look_up_row(reason: R) -> [Meaning; 4] {
    [lookup(reason), case(reason), lookup(reason), case(reason)]
}

fn the_table() -> Vec<Row> {
    let both = |wires, row: [Meaning; 4]| Row { wires, first: row, repeat: row };
    vec![
        Row {
            wires: NotSent::ALL
                .iter()
                .filter(|reason| **reason != NotSent::Invalid)
                .map(|reason| Wire::NotSent { reason: *reason })
                .collect(),
            first: [again(C::NotSent, false); 4],
            repeat: [again(C::NotSent, true); 4],
        },
        Row {
            wires: vec![Wire::NotSent { reason: NotSent::Invalid }],
            first: [Meaning::Refused(C::Rejected); 4],
            repeat: look_up_row(R::RefusedRepeat),
        },
        Row {
            wires: statuses([425, 429]),
            first: [again(C::Transient, false); 4],
            repeat: [again(C::Transient, true); 4],
        },
        both(statuses(200..=299), look_up_row(R::UnprovenSuccess)),
        both(
            statuses((100..=199).chain(300..=399).chain([408]).chain(500..=599).chain([0, 99, 600, 999, u16::MAX])),
            uncertain_row(R::UncertainAnswer),
        ),
        both(
            [NoAnswer::Reset, NoAnswer::Timeout, NoAnswer::Unreadable, NoAnswer::Stopped]
                .map(|reason| Wire::NoAnswer { reason })
                .to_vec(),
            uncertain_row(R::NoAnswer),
        ),
        both(vec![Wire::NoAnswer { reason: NoAnswer::LeaseOver }], uncertain_row(R::LeaseOver)),
        Row {
            wires: statuses([409]),
            first: [lookup(R::KeyConflict), case(R::KeyConflict), lookup(R::KeyConflict), REFUSED],
            repeat: look_up_row(R::KeyConflict),
        },
        Row { wires: statuses([401, 403, 407]), first: [FORBIDDEN; 4], repeat: [case(R::RepeatNotPermitted); 4] },
        Row {
            wires: statuses((400..=499).filter(|s| ![401, 403, 407, 408, 409, 425, 429].contains(s))),
            first: [REFUSED; 4],
            repeat: look_up_row(R::RefusedRepeat),
        },
    ]
}

#[test]
fn every_cell_of_the_table_of_answers() {
    for row in the_table() {
        for wire in &row.wires {
            for (column, protection) in COLUMNS.iter().enumerate() {
                let at = format!("{wire:?} in {protection:?}");
                assert_eq!(meaning(&facts(*wire, column, false)), row.first[column], "first send: {at}");
                assert_eq!(meaning(&facts(*wire, column, true)), row.repeat[column], "repeat: {at}");
            }
        }
    }
}

#[test]
fn the_table_has_a_row_for_every_status() {
    let rows = the_table();
    let listed: Vec<u16> = rows
        .iter()
        .flat_map(|row| &row.wires)
        .filter_map(|wire| match wire {
            Wire::Answered { status } => Some(*status),
            _ => None,
        })
        .collect();
    for status in 100..=599 {
        assert_eq!(listed.iter().filter(|s| **s == status).count(), 1, "{status}");
    }
}

#[test]
fn only_faults_of_the_own_setup_leave_the_budget_alone() {
    let own: Vec<NotSent> = NotSent::ALL.iter().copied().filter(|reason| reason.is_own_setup()).collect();
    assert_eq!(own, [NotSent::NotAllowed, NotSent::NoSecret, NotSent::Withheld]);
}

#[test]
fn an_answer_that_meets_the_success_rule_confirms_in_every_column() {
    for status in [200, 201, 202, 303, 409] {
        for column in 0..COLUMNS.len() {
            for repeat in [false, true] {
                let facts = Facts { success_rule_met: true, ..facts(Wire::Answered { status }, column, repeat) };
                assert_eq!(meaning(&facts), Meaning::Confirmed, "{status} {column} {repeat}");
            }
        }
    }
}

#[test]
fn every_cell_of_the_table_of_rules() {
    let rows: [(RuleOutcome, [Meaning; 4], [Meaning; 4]); 6] = [
        (RuleOutcome::Confirmed, [Meaning::Confirmed; 4], [Meaning::Confirmed; 4]),
        (RuleOutcome::Transient, [again(C::Transient, false); 4], [again(C::Transient, true); 4]),
        (RuleOutcome::Permanent, [REFUSED; 4], look_up_row(R::RefusedRepeat)),
        (RuleOutcome::Permission, [FORBIDDEN; 4], [case(R::RepeatNotPermitted); 4]),
        (RuleOutcome::Uncertain, uncertain_row(R::UncertainAnswer), uncertain_row(R::UncertainAnswer)),
        (RuleOutcome::Lookup, look_up_row(R::RuleAsksLookup), look_up_row(R::RuleAsksLookup)),
    ];
    assert_eq!(rows.len(), RuleOutcome::ALL.len());
    for (rule, first, repeat) in rows {
        // A rule decides over the success rule and over the status.
        for (status, success_rule_met) in [(200, true), (200, false), (400, false), (409, false), (503, false)] {
            for column in 0..COLUMNS.len() {
                let of = |repeat| Facts {
                    matched_rule: Some(rule),
                    success_rule_met,
                    ..facts(Wire::Answered { status }, column, repeat)
                };
                assert_eq!(meaning(&of(false)), first[column], "first send: {rule} {status} {column}");
                assert_eq!(meaning(&of(true)), repeat[column], "repeat: {rule} {status} {column}");
            }
        }
    }
}

#[test]
fn a_rule_is_not_asked_where_there_is_no_answer() {
    for rule in RuleOutcome::ALL {
        for wire in [Wire::NotSent { reason: NotSent::Refused }, Wire::NoAnswer { reason: NoAnswer::Reset }] {
            for column in 0..COLUMNS.len() {
                let plain = facts(wire, column, true);
                let ruled = Facts { matched_rule: Some(*rule), success_rule_met: true, ..plain };
                assert_eq!(meaning(&ruled), meaning(&plain), "{rule} {wire:?}");
            }
        }
    }
}

#[test]
fn no_effect_is_not_repeated_when_neither_key_nor_finding_protects_the_earlier_attempt() {
    let wires = [
        (Wire::NotSent { reason: NotSent::Refused }, None),
        (Wire::Answered { status: 429 }, None),
        (Wire::Answered { status: 500 }, Some(RuleOutcome::Transient)),
    ];
    for (wire, matched_rule) in wires {
        let of = |column| Facts { absence_established: false, matched_rule, ..facts(wire, column, true) };
        assert_eq!(meaning(&of(2)), lookup(R::WindowOver), "{wire:?}");
        assert_eq!(meaning(&of(3)), case(R::WindowOver), "{wire:?}");
        for column in [0, 1] {
            assert!(matches!(meaning(&of(column)), Meaning::RepeatByBudget { .. }), "{wire:?}");
        }
    }
}

#[test]
fn nothing_is_refused_while_an_earlier_attempt_may_have_had_its_effect() {
    for wire in the_table().iter().flat_map(|row| &row.wires) {
        for matched_rule in RuleOutcome::ALL.iter().copied().map(Some).chain([None]) {
            for column in 0..COLUMNS.len() {
                for absence_established in [false, true] {
                    let facts = Facts { matched_rule, absence_established, ..facts(*wire, column, true) };
                    let means = meaning(&facts);
                    assert!(!matches!(means, Meaning::Refused(_)), "{facts:?}");
                    let keeps = matches!(means, Meaning::RepeatByBudget { maybe_sent_after: false, .. });
                    assert!(!keeps, "the flag is lost: {facts:?}");
                }
            }
        }
    }
}

#[test]
fn protection_needs_the_mode_and_the_open_window() {
    use IdempotencyMode::{Key, None, Reference};
    for mode in [Key, Reference] {
        for has_lookup in [false, true] {
            assert_eq!(protection(mode, true, has_lookup), Protection::Deduplicates);
        }
        assert_eq!(protection(mode, false, true), Protection::LookupOnly);
        assert_eq!(protection(mode, false, false), Protection::Neither);
    }
    for open in [false, true] {
        assert_eq!(protection(None, open, true), Protection::LookupOnly);
        assert_eq!(protection(None, open, false), Protection::Neither);
    }
}

#[test]
fn every_cell_of_what_follows_when_a_repeat_is_or_is_not_possible() {
    let at = Repeat::At { due_us: 7 };
    let rows = [
        (at, Event::NotSent { error: C::NotSent }, Event::SafeRepeat { error: C::Uncertain }),
        (
            Repeat::NeedsPerson,
            Event::BudgetOver { error: C::NotSent },
            Event::Uncertain { reason: R::RepeatNeedsPerson },
        ),
        (
            Repeat::BudgetExhausted,
            Event::BudgetOver { error: C::BudgetExhausted },
            Event::Uncertain { reason: R::BudgetExhausted },
        ),
        (Repeat::DeadlineOver, Event::BudgetOver { error: C::Expired }, Event::Uncertain { reason: R::DeadlineOver }),
        (Repeat::WindowOver, Event::WindowOver, Event::Uncertain { reason: R::WindowOver }),
    ];
    for (repeat, without_effect, maybe) in rows {
        for has_lookup in [false, true] {
            for before in [false, true] {
                let after = event_after(&again(C::NotSent, before), has_lookup, |flag| {
                    assert_eq!(flag, before);
                    repeat
                });
                assert_eq!(after.event, without_effect, "{repeat:?}");
                assert_eq!(after.look_up, has_lookup && before && repeat != at, "{repeat:?}");
                assert_eq!(after.due_us, (repeat == at).then_some(7));
            }
            let after = event_after(&again(C::Uncertain, true), has_lookup, |_| repeat);
            assert_eq!(after.event, maybe, "{repeat:?}");
            assert_eq!(after.look_up, has_lookup && repeat != at, "{repeat:?}");
            assert_eq!(after.due_us, (repeat == at).then_some(7));
        }
    }
}

#[test]
fn what_needs_no_repeat_does_not_ask_for_one() {
    let rows = [
        (Meaning::Confirmed, Event::Confirm, false),
        (REFUSED, Event::Refused { error: C::Permanent }, false),
        (lookup(R::KeyConflict), Event::Uncertain { reason: R::KeyConflict }, true),
        (case(R::KeyConflict), Event::Uncertain { reason: R::KeyConflict }, false),
        (lookup(R::LeaseOver), Event::LeaseOver, true),
        (case(R::LeaseOver), Event::LeaseOver, false),
    ];
    for (means, event, look_up) in rows {
        let after = event_after(&means, true, |_| panic!("asked for a repeat"));
        assert_eq!((after.event, after.look_up, after.due_us), (event, look_up, None));
    }
}

#[test]
fn every_answer_of_a_flying_attempt_is_a_legal_event_and_keeps_the_promise() {
    let repeats = [
        Repeat::At { due_us: 1 },
        Repeat::NeedsPerson,
        Repeat::BudgetExhausted,
        Repeat::DeadlineOver,
        Repeat::WindowOver,
    ];
    for wire in the_table().iter().flat_map(|row| &row.wires) {
        for column in 0..COLUMNS.len() {
            for before in [false, true] {
                for repeat in repeats {
                    let facts = facts(*wire, column, before);
                    let state = State {
                        status: Status::Dispatched,
                        maybe_sent: before,
                        attempt: 2,
                        approval: ApprovalState::Valid,
                        success_kept: false,
                        case: None,
                        redacted: false,
                    };
                    let after = event_after(&meaning(&facts), facts.has_lookup, |_| repeat);
                    let Ok(t) = next(&state, &after.event) else { panic!("{:?} for {facts:?}", after.event) };
                    let no_effect = matches!(wire, Wire::NotSent { .. })
                        || matches!(wire, Wire::Answered { status: 400..=499 } if !t.maybe_sent);
                    assert!(t.maybe_sent || (no_effect && !before), "{facts:?} {t:?}");
                    assert!(!(t.maybe_sent && t.to.is_settled()), "{facts:?} {t:?}");
                    assert!(!after.look_up || t.to == Status::NeedsReconciliation, "{facts:?} {t:?}");
                }
            }
        }
    }
}
