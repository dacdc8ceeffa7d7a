//! Answers: whatever comes back, nothing unproven is called success, nothing that may have happened is called failure,
//! and nothing is repeated where a repeat could make a second record. An input's bytes choose the facts; what follows
//! them is read as the records of a lookup and as a `Retry-After`.

use super::driver::{Target, Verdict};
use command_ledger_domain::answer::{
    Facts, Meaning, NoAnswer, NotSent, Protection, RuleOutcome, Wire, event_after, meaning,
};
use command_ledger_domain::lookup::{LookupAnswer, LookupFacts, Record, read_lookup};
use command_ledger_domain::retry::{MAX_RETRY_AFTER_MS, Repeat, parse_retry_after};
use command_ledger_domain::status::{ErrorClass, Event};

const TARGET: Target = Target {
    name: "answer",
    words: &["\0\0", "\u{1}", "key", "key1", ",", "Wed, 21 Oct 2026 07:28:00 GMT", "120", "\u{7f}"],
    inputs: 60_000,
};

fn facts(input: &[u8]) -> Facts {
    let byte = |n: usize| input.get(n).copied().unwrap_or(0);
    let reasons = [NotSent::Refused, NotSent::Invalid, NotSent::Withheld, NotSent::Tls, NotSent::NoSecret];
    let silences = [NoAnswer::Reset, NoAnswer::Timeout, NoAnswer::Stopped, NoAnswer::LeaseOver, NoAnswer::Unreadable];
    let rules = [
        None,
        Some(RuleOutcome::Confirmed),
        Some(RuleOutcome::Transient),
        Some(RuleOutcome::Permanent),
        Some(RuleOutcome::Permission),
        Some(RuleOutcome::Uncertain),
        Some(RuleOutcome::Lookup),
        None,
    ];
    let wire = match byte(0) % 4 {
        0 => Wire::NotSent { reason: reasons[usize::from(byte(1)) % reasons.len()] },
        1 => Wire::NoAnswer { reason: silences[usize::from(byte(1)) % silences.len()] },
        _ => Wire::Answered { status: 100 + u16::from(byte(1)) * 2 + u16::from(byte(2) & 1) },
    };
    let flags = byte(3);
    Facts {
        wire,
        success_rule_met: flags & 1 != 0,
        matched_rule: if flags & 2 != 0 { rules[usize::from(byte(2) >> 1) % rules.len()] } else { None },
        maybe_sent_before: flags & 4 != 0,
        absence_established: flags & 8 != 0,
        protection: [Protection::Deduplicates, Protection::LookupOnly, Protection::Neither]
            [usize::from(flags >> 4) % 3],
        has_lookup: flags & 64 != 0,
    }
}

fn property(input: &[u8], meaning: fn(&Facts) -> Meaning) -> Verdict {
    let facts = facts(input);
    let said = meaning(&facts);
    let answered = matches!(facts.wire, Wire::Answered { .. });
    let proven = answered && (facts.success_rule_met || facts.matched_rule == Some(RuleOutcome::Confirmed));
    let deduplicates = facts.protection == Protection::Deduplicates;
    let silent = matches!(facts.wire, Wire::NoAnswer { .. });
    match said {
        Meaning::Confirmed if !proven => return Err(format!("success without proof: {facts:?}")),
        Meaning::Refused(_) if facts.maybe_sent_before || silent => {
            return Err(format!("called failure, and may have happened: {facts:?}"));
        }
        Meaning::RepeatByBudget { maybe_sent_after, class } => {
            if (class == ErrorClass::Uncertain || silent) && !(deduplicates && maybe_sent_after) {
                return Err(format!("an unknown outcome is repeated where nothing deduplicates: {facts:?}"));
            }
            if facts.maybe_sent_before && !(deduplicates || facts.absence_established) {
                return Err(format!("repeated although an earlier one may have happened: {facts:?}"));
            }
            if facts.maybe_sent_before && !maybe_sent_after {
                return Err(format!("maybe sent was forgotten: {facts:?}"));
            }
        }
        Meaning::Lookup { .. } if !facts.has_lookup && facts.protection != Protection::LookupOnly => {
            return Err(format!("a lookup where none is: {facts:?}"));
        }
        _ => {}
    }
    for repeat in [
        Repeat::At { due_us: 5 },
        Repeat::NeedsPerson,
        Repeat::BudgetExhausted,
        Repeat::DeadlineOver,
        Repeat::WindowOver,
    ] {
        let after = event_after(&said, facts.has_lookup, |_| repeat);
        let uncertain = matches!(said, Meaning::RepeatByBudget { class: ErrorClass::Uncertain, .. });
        let forgets = matches!(after.event, Event::NotSent { .. } | Event::BudgetOver { .. } | Event::Refused { .. });
        if uncertain && forgets {
            return Err(format!("an unknown outcome became {:?}", after.event));
        }
        if after.due_us.is_some() != matches!((said, repeat), (Meaning::RepeatByBudget { .. }, Repeat::At { .. })) {
            return Err(format!("due without a repeat: {said:?} {repeat:?}"));
        }
    }
    let rest = String::from_utf8_lossy(input.get(4..).unwrap_or_default()).into_owned();
    if parse_retry_after(&rest, 1_790_000_000_000_000).is_some_and(|wait| !(0..=MAX_RETRY_AFTER_MS).contains(&wait)) {
        return Err(format!("a wait out of bounds: {rest:?}"));
    }
    Ok(format!("{said:?} {}", lookup(&rest, input)?))
}

/// Records are separated by commas; those that begin with `-` do not meet `when`.
fn lookup(rest: &str, input: &[u8]) -> Verdict {
    let records: Vec<Record<'_>> = rest
        .split(',')
        .map(|part| Record {
            match_value: (!part.is_empty()).then(|| part.trim_start_matches('-')),
            record_id: part.get(1..).filter(|id| !id.is_empty()),
            meets_when: !part.starts_with('-'),
        })
        .collect();
    let flags = input.first().copied().unwrap_or(0);
    let sentinel = [None, Some(true), Some(false)][usize::from(flags >> 2) % 3];
    let answer = read_lookup(&LookupFacts {
        status: 200 + u16::from(flags >> 7) * 300,
        list_present: flags & 64 == 0,
        records: &records,
        record_id_required: flags & 32 != 0,
        destination_key: "key",
        sentinel,
    });
    let ours = records.iter().filter(|record| record.match_value == Some("key"));
    let live = ours.clone().filter(|record| record.meets_when).count();
    match &answer {
        LookupAnswer::Found { .. } if live != 1 => Err(format!("found, and {live} records carry the key")),
        LookupAnswer::Absent if ours.count() > 0 => Err("absent, and a record carries the key".to_owned()),
        LookupAnswer::Absent if sentinel == Some(false) || flags & 64 != 0 || flags >> 7 != 0 => {
            Err("absent, by an answer that cannot be trusted".to_owned())
        }
        LookupAnswer::Found { .. } => Ok("found".to_owned()),
        LookupAnswer::Ambiguous { ids } => Ok(format!("ambiguous {}", ids.len().min(4))),
        LookupAnswer::Absent => Ok("absent".to_owned()),
        LookupAnswer::Unclear { why } => Ok((*why).to_owned()),
    }
}

#[test]
fn no_answer_is_taken_for_more_than_it_proves() {
    TARGET.holds(|input| property(input, meaning));
}

#[test]
fn a_reading_that_forgets_what_may_have_been_sent_is_found_out() {
    TARGET.is_found_out("may have happened", |input| {
        property(input, |facts| meaning(&Facts { maybe_sent_before: false, ..*facts }))
    });
}

#[test]
fn a_reading_that_takes_any_2xx_for_success_is_found_out() {
    TARGET.is_found_out("without proof", |input| {
        property(input, |facts| match facts.wire {
            Wire::Answered { status: 200..=299 } => Meaning::Confirmed,
            _ => meaning(facts),
        })
    });
}
