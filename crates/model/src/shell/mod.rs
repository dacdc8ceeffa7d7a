//! The code around the decisions, as small as it can be: it reads, asks the core, and writes. Each function stands for
//! the one of the same name in the extension and makes the same calls in the same order.

mod claim;
mod lookups;
mod people;
mod settle;
mod sweep;

pub use claim::{Claim, claim};
pub use lookups::{settle_round, start_lookup};
pub use people::{Finding, Refused, adopt, approve, cancel, reconcile, register, reject, retry, revise, revoke};
pub use settle::settle_flight;
pub use sweep::{expired_lease, overdue};

use command_ledger_domain::approval::{Actor, Approval, quorum};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::{Fence, sent_elsewhere};
use command_ledger_domain::lookup::first_lookup_at;
use command_ledger_domain::retry::{Deadline, RetryPolicy, window_end_us, window_open};
use command_ledger_domain::status::{ApprovalState, CaseAction, Event, Status, Transition, next};

use crate::setup::{Break, Setup};
use crate::world::{Case, Claimed, Command, End, Lease, Queued, World};

/// What a decision is made in.
pub struct Here<'a> {
    pub setup: &'a Setup,
    pub now_us: i64,
    pub fence: Fence,
    pub here: (u8, u8),
    pub request_version: u8,
}

impl<'a> Here<'a> {
    pub fn of(setup: &'a Setup, world: &World) -> Self {
        Self {
            setup,
            now_us: world.now_us,
            fence: world.fence(setup),
            here: world.here,
            request_version: world.ledger.request_version,
        }
    }

    pub fn breaks(&self, rule: Break) -> bool {
        self.setup.breaks(rule)
    }

    pub fn retry(&self) -> RetryPolicy {
        self.setup.retry
    }

    pub fn window_end_us(&self, first_sent_us: i64) -> Option<i64> {
        if self.breaks(Break::IgnoreWindow) || self.breaks(Break::RepeatWithoutLookup) {
            return None;
        }
        window_end_us(first_sent_us, self.setup.window, self.setup.margin_ms)
    }

    pub fn deduplicates(&self, first_sent_us: Option<i64>) -> bool {
        use command_ledger_domain::answer::IdempotencyMode;
        if self.breaks(Break::RepeatWithoutLookup) {
            return true;
        }
        self.setup.mode != IdempotencyMode::None
            && first_sent_us.is_none_or(|first| window_open(self.window_end_us(first), self.now_us))
    }

    pub fn intent(&self, params: u8) -> u8 {
        params + 2 * self.request_version
    }

    /// What the approvals say about the command now, and until when.
    pub fn approval_state(&self, command: &Command) -> (ApprovalState, Option<i64>) {
        let Some(rule) = self.setup.approval else { return (ApprovalState::NotNeeded, None) };
        let hashes: Vec<[u8; 1]> = command.approvals.iter().map(|a| [a.intent]).collect();
        let approvals: Vec<Approval> = command
            .approvals
            .iter()
            .zip(&hashes)
            .map(|(a, hash)| Approval {
                approver: Actor { role: ["anna", "bert", "carl"][usize::from(a.role) % 3], stated: None },
                intent_hash: if self.breaks(Break::ApproveAnyContent) { &[0] } else { hash },
                expires_us: a.expires_us,
                revoked: a.revoked,
            })
            .collect();
        let current: [u8; 1] = if self.breaks(Break::ApproveAnyContent) { [0] } else { [command.intent] };
        let standing = quorum(&rule, &approvals, &current, self.now_us);
        match standing.missing {
            0 => (ApprovalState::Valid, standing.valid_until_us),
            _ => (ApprovalState::Missing, None),
        }
    }

    /// Brings the intent to what would be executed now, as long as nothing may have been sent.
    pub fn refresh_intent(&self, command: &mut Command) {
        let open = matches!(command.status, Status::Planned | Status::Approved | Status::Failed);
        if open && !command.maybe_sent {
            command.intent = self.intent(command.params);
        }
    }
}

/// Marks a command that another place may have sent, before it is ended or rewritten here.
pub fn mark_sent_elsewhere(here: &Here, command: &mut Command) {
    let open = matches!(command.status, Status::Planned | Status::Approved) && !command.maybe_sent;
    let absent = command.queued.is_some_and(|q| q.absence_place == Some(here.here));
    if open && sent_elsewhere(here.fence, absent) && !here.breaks(Break::EndBlindly) {
        command.maybe_sent = true;
        command.first_sent_us = Some(command.registered_us);
    }
}

/// What comes with an event beyond the transition itself.
#[derive(Clone, Copy, Default)]
pub struct Change {
    pub due_us: Option<i64>,
    pub approved_until_us: Option<i64>,
    pub deadline: Option<Deadline>,
    pub record: Option<u8>,
    pub lease: Option<Lease>,
    pub content: Option<u8>,
    pub next_lookup_us: Option<i64>,
    pub evidence_from_us: Option<i64>,
    pub uncounted: bool,
}

/// Plans the first lookup of a case that opens now, where the destination can be asked.
pub fn schedule_lookup(here: &Here, change: &mut Change, evidence_from_us: i64) {
    if let Some(policy) = here.setup.lookup {
        change.evidence_from_us = Some(evidence_from_us);
        change.next_lookup_us = Some(first_lookup_at(&policy, evidence_from_us));
    }
}

/// The same for a command that leaves its way while it may have been sent.
pub fn look_up_if_maybe_sent(here: &Here, command: &Command, change: &mut Change) {
    if command.maybe_sent {
        schedule_lookup(here, change, here.now_us);
    }
}

/// The table's decision, or what a broken one would say.
fn decide(here: &Here, command: &Command, approval: ApprovalState, event: &Event) -> Result<Transition, LedgerError> {
    let state = command.state(approval);
    if here.breaks(Break::RetryAnything) && *event == Event::OperatorRetry {
        let opened = command_ledger_domain::status::State { status: Status::Failed, maybe_sent: false, ..state };
        return next(&opened, event);
    }
    let mut transition = next(&state, event)?;
    let uncertain = matches!(event, Event::Uncertain { .. } | Event::LeaseOver);
    if uncertain && here.breaks(Break::UncertainIsFailure) {
        transition = Transition { to: Status::Failed, maybe_sent: false, case: CaseAction::None, ..transition };
    }
    if uncertain && here.breaks(Break::UncertainIsSuccess) {
        transition = Transition { to: Status::Confirmed, maybe_sent: false, case: CaseAction::None, ..transition };
    }
    if here.breaks(Break::ForgetMaybeSent) {
        transition.maybe_sent = false;
    }
    Ok(transition)
}

/// Decides what the event does to the command, and writes it.
pub fn apply(
    here: &Here,
    command: &mut Command,
    approval: ApprovalState,
    event: Event,
    change: Change,
) -> Result<Transition, LedgerError> {
    let transition = decide(here, command, approval, &event)?;
    journal(command, &event, &transition, &change);
    case(here, command, &transition, &change);
    if event == Event::Claim {
        if !here.breaks(Break::NoBudget) {
            command.counted = command.counted.saturating_add(1);
        }
        if !command.maybe_sent || command.first_sent_us.is_none() {
            command.first_sent_us = Some(here.now_us);
        }
        if !command.maybe_sent || command.sent_content.is_none() {
            command.sent_content = change.content.or(command.sent_content);
        }
    }
    if change.uncounted {
        command.counted = (command.counted - 1).max(0);
    }
    let kept_before = command.success_kept;
    command.attempt = transition.attempt;
    command.success_kept = transition.success_kept;
    if transition.transition {
        command.status = transition.to;
        command.maybe_sent = transition.maybe_sent;
        command.error = transition.error;
    }
    let deadline = change.deadline.unwrap_or(command.deadline());
    command.set_deadline(if transition.to == Status::Planned { deadline.while_waiting() } else { deadline });
    place(here, command, event, &transition, change, kept_before);
    Ok(transition)
}

fn journal(command: &mut Command, event: &Event, transition: &Transition, change: &Change) {
    if let (Event::Claim, Some(lease), Some(content)) = (event, change.lease, change.content) {
        command.claims.push(Claimed { serial: lease.serial, attempt: transition.attempt, content });
    }
    match transition.kind {
        "confirm" => command.ends.push((transition.attempt, End::Confirmed)),
        "uncertain" | "lease_over" | "safe_repeat" => command.ends.push((transition.attempt, End::Uncertain)),
        _ => {}
    }
}

fn case(here: &Here, command: &mut Command, transition: &Transition, change: &Change) {
    match (transition.case, &mut command.case) {
        (CaseAction::None, _) => {}
        (CaseAction::Open(reason), Some(open)) => open.reason = reason,
        (CaseAction::Open(_), None) if here.breaks(Break::ForgetCase) => {}
        (CaseAction::Open(reason), none) => {
            *none = Some(Case {
                reason,
                next_lookup_us: change.next_lookup_us.filter(|_| !transition.to.is_final()),
                evidence_from_us: change.evidence_from_us,
                opened_us: here.now_us,
                lookups_done: 0,
                absents_in_a_row: 0,
                round: None,
            });
        }
        (CaseAction::Close, open) => *open = None,
    }
}

/// Puts the live state where it belongs: the outbox row while the command is approved or dispatched, else its own.
fn place(here: &Here, command: &mut Command, event: Event, transition: &Transition, change: Change, kept_before: bool) {
    let old = command.queued.take();
    if matches!(command.status, Status::Approved | Status::Dispatched) {
        let kept = change.record.filter(|_| transition.success_kept && !kept_before);
        command.queued = Some(Queued {
            due_us: match (&old, change.due_us) {
                (_, Some(due_us)) => due_us,
                (Some(old), None) if !transition.transition || command.status == Status::Dispatched => old.due_us,
                _ => here.now_us,
            },
            approved_until_us: change.approved_until_us.or(old.and_then(|o| o.approved_until_us)),
            identity: old.map_or(here.here.0, |o| o.identity),
            kept_record: kept.or(old.and_then(|o| o.kept_record)),
            absence_place: match event {
                Event::LookupAbsent { .. } | Event::ReconcileNotFound => Some(here.here),
                Event::SafeRepeat { .. } => None,
                _ => old.and_then(|o| o.absence_place),
            },
            lease: match command.status {
                Status::Dispatched => change.lease.or(old.and_then(|o| o.lease)),
                _ => None,
            },
        });
        return;
    }
    let kept = old.and_then(|o| o.kept_record).filter(|_| kept_before && command.status == Status::Confirmed);
    let record = change.record.or(kept).filter(|_| command.status == Status::Confirmed && transition.transition);
    if command.record.is_none() {
        command.record = record;
    }
}
