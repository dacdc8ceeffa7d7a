//! Whether a command that is due may be sent now, and what follows if not (I3, I6).

use crate::fence::ClaimAllowed;
use crate::retry::lease_expiry_us;
use crate::status::{ApprovalState, ErrorClass, Event};

/// What the decision rests on, read from rows that the claim holds.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What the fence says of this row.
    pub fence: ClaimAllowed,
    /// Whether the approval holds.
    pub approval: ApprovalState,
    /// By when it must be on its way, Unix microseconds.
    pub deadline_us: Option<i64>,
    /// Attempts that count, and how many there may be.
    pub counted_attempts: i32,
    /// See `counted_attempts`.
    pub max_attempts: i32,
    /// An earlier attempt may have had an effect.
    pub maybe_sent: bool,
    /// It was established since that there is no record.
    pub absence_established: bool,
    /// A repeat with the same key is still recognised; what is asked only of a command that may have been sent.
    pub deduplicates: bool,
    /// The destination can be asked.
    pub has_lookup: bool,
}

impl Facts {
    /// Whether nothing but the destination's memory of the key stands between a repeat and a second effect.
    pub fn rests_on_key(&self) -> bool {
        self.maybe_sent && !self.absence_established
    }
}

/// Why a command is not sent, where a person wants to know more than the event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The deadline passed before it was sent.
    DeadlineOver,
    /// All attempts are used.
    BudgetUsed,
}

/// What becomes of a command that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    /// It may be sent, if the request is the one that was sent before ([`same_request`]) and time is left
    /// ([`lease_until`]).
    Send,
    /// This happens to it instead; `look_up`: the destination is asked.
    Instead {
        /// The event.
        event: Event,
        /// Whether a lookup is planned.
        look_up: bool,
        /// For the receipt.
        why: Option<Why>,
    },
    /// Nothing: it stays where it is.
    Leave,
}

/// Decides in this order; the first line that applies is the answer.
///
/// | condition | what follows | lookup |
/// |---|---|---|
/// | the fence is shut | stays | |
/// | the fence: ask the destination first | `fence` | yes |
/// | the fence: a person decides | `fence` | no |
/// | the approval lapsed or was taken back | `approval_lapsed` | no |
/// | the deadline is over | `deadline_over` | if it may have been sent and can be asked |
/// | all attempts are used | `budget_over` (budget_exhausted) | if it may have been sent and can be asked |
/// | may have been sent, no absence established, the window is over | `window_over` | if it can be asked |
/// | else | sent | |
pub fn may_send(facts: &Facts, now_us: i64) -> Permit {
    let instead = |event, look_up, why| Permit::Instead { event, look_up, why };
    let ask = facts.has_lookup && facts.maybe_sent;
    match facts.fence {
        // The caller marks a repeat before it asks.
        ClaimAllowed::Yes | ClaimAllowed::AsRepeat => {}
        ClaimAllowed::No(_) => return Permit::Leave,
        ClaimAllowed::LookupFirst => return instead(Event::Fence, true, None),
        ClaimAllowed::Case => return instead(Event::Fence, false, None),
    }
    if !facts.approval.permits_send() {
        return instead(Event::ApprovalLapsed, false, None);
    }
    if facts.deadline_us.is_some_and(|deadline_us| deadline_us <= now_us) {
        return instead(Event::DeadlineOver, ask, Some(Why::DeadlineOver));
    }
    if facts.counted_attempts >= facts.max_attempts {
        let event = Event::BudgetOver { error: ErrorClass::BudgetExhausted };
        return instead(event, ask, Some(Why::BudgetUsed));
    }
    if facts.rests_on_key() && !facts.deduplicates {
        return instead(Event::WindowOver, facts.has_lookup, None);
    }
    Permit::Send
}

/// Whether what would be sent is what may have been sent before: a destination that knows the key answers for that, and
/// nobody knows for which.
pub fn same_request<T: PartialEq>(maybe_sent: bool, sent: Option<T>, now: &T) -> bool {
    !maybe_sent || sent.is_none_or(|sent| sent == *now)
}

/// Until when the attempt that starts now may take; `None`: no time is left, it stays. `window_end_us` is that of a key
/// which the destination knows.
pub fn lease_until(
    facts: &Facts,
    now_us: i64,
    lease_ms: i64,
    approved_until_us: Option<i64>,
    window_end_us: Option<i64>,
) -> Option<i64> {
    let window_end_us = window_end_us.filter(|_| facts.rests_on_key());
    let until_us = lease_expiry_us(now_us, lease_ms, facts.deadline_us, approved_until_us, window_end_us);
    (until_us > now_us).then_some(until_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000;
    const ALL_WELL: Facts = Facts {
        fence: ClaimAllowed::Yes,
        approval: ApprovalState::Valid,
        deadline_us: None,
        counted_attempts: 1,
        max_attempts: 3,
        maybe_sent: true,
        absence_established: false,
        deduplicates: true,
        has_lookup: true,
    };

    fn instead(facts: &Facts) -> (Event, bool) {
        match may_send(facts, NOW) {
            Permit::Instead { event, look_up, .. } => (event, look_up),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_well_is_sent() {
        assert_eq!(may_send(&ALL_WELL, NOW), Permit::Send);
        let repeat = Facts { fence: ClaimAllowed::AsRepeat, ..ALL_WELL };
        assert_eq!(may_send(&repeat, NOW), Permit::Send);
    }

    #[test]
    fn the_lines_of_the_table_come_in_their_order() {
        let budget = Event::BudgetOver { error: ErrorClass::BudgetExhausted };
        // Everything is wrong; each line is put right in turn, and the next one answers.
        let mut facts = Facts {
            fence: ClaimAllowed::Case,
            approval: ApprovalState::Missing,
            deadline_us: Some(NOW),
            counted_attempts: 3,
            deduplicates: false,
            ..ALL_WELL
        };
        assert_eq!(instead(&facts), (Event::Fence, false));
        facts.fence = ClaimAllowed::LookupFirst;
        assert_eq!(instead(&facts), (Event::Fence, true));
        facts.fence = ClaimAllowed::Yes;
        assert_eq!(instead(&facts), (Event::ApprovalLapsed, false));
        facts.approval = ApprovalState::NotNeeded;
        assert_eq!(instead(&facts), (Event::DeadlineOver, true));
        facts.deadline_us = Some(NOW + 1);
        assert_eq!(instead(&facts), (budget, true));
        facts.counted_attempts = 2;
        assert_eq!(instead(&facts), (Event::WindowOver, true));
        facts.absence_established = true;
        assert_eq!(may_send(&facts, NOW), Permit::Send);
    }

    #[test]
    fn a_shut_fence_leaves_everything_as_it_is() {
        let facts = Facts { fence: ClaimAllowed::No("halted"), approval: ApprovalState::Missing, ..ALL_WELL };
        assert_eq!(may_send(&facts, NOW), Permit::Leave);
    }

    #[test]
    fn nobody_is_asked_about_what_was_never_sent_or_where_nobody_can_be_asked() {
        for (maybe_sent, has_lookup) in [(false, true), (true, false)] {
            let facts = Facts { maybe_sent, has_lookup, deadline_us: Some(NOW), ..ALL_WELL };
            assert_eq!(instead(&facts), (Event::DeadlineOver, false));
        }
        let facts = Facts { has_lookup: false, deduplicates: false, ..ALL_WELL };
        assert_eq!(instead(&facts), (Event::WindowOver, false));
    }

    #[test]
    fn only_a_command_that_may_have_been_sent_is_held_to_its_request() {
        assert!(same_request(false, Some(1), &2));
        assert!(same_request(true, None, &2));
        assert!(same_request(true, Some(2), &2));
        assert!(!same_request(true, Some(1), &2));
    }

    #[test]
    fn a_lease_ends_with_the_window_only_where_the_key_is_what_protects() {
        assert_eq!(lease_until(&ALL_WELL, NOW, 60_000, None, Some(NOW + 5)), Some(NOW + 5));
        let absent = Facts { absence_established: true, ..ALL_WELL };
        assert_eq!(lease_until(&absent, NOW, 60_000, None, Some(NOW + 5)), Some(NOW + 60_000_000));
        assert_eq!(lease_until(&ALL_WELL, NOW, 60_000, Some(NOW), None), None);
    }
}
