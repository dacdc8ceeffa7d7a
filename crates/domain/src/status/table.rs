//! The table of transitions.

use super::event::Event;
use super::legal::illegal;
use super::reason::CaseReason;
use super::state::{CaseAction, State, Transition};
use super::words::{ApprovalState, ErrorClass, Status};
use crate::error::LedgerError;

/// Decides what an event does to a command.
///
/// | from \ to | planned | approved | dispatched | confirmed | failed | needs_reconciliation | cancelled |
/// |---|---|---|---|---|---|---|---|
/// | (new) | register | register (no approval needed) | | | | | |
/// | planned | revise, adopted (repeat safe) | approve (quorum), revise (none needed) | | | reject, deadline | late success, adopted, any exit while maybe sent | cancel |
/// | approved | revise, revoke, approval lapsed | revise (none needed), adopted (repeat safe) | claim | late success or found, for this request | deadline, budget, retry policy | tampered, fence, window over, request changed, adopted, late success of another request, any exit while maybe sent | cancel |
/// | dispatched | | release, not sent, safe repeat, adopted (repeat safe) | late success of another request | confirm, kept success | refused, budget | uncertain, lease over, deadline, tampered, fence, window over, request changed, adopted, refused repeat | |
/// | needs_reconciliation | not_found, no valid approval | not_found, approval valid; lookup absent and repeat allowed | | found, late success, lookup found | abandon; not_found where it must not be sent | more evidence | |
/// | failed | retry, no valid approval | retry | | | | late success, found | |
/// | confirmed, cancelled | final: evidence opens a case, which reconcile closes without a transition | | | | | | |
///
/// Five rules stand over the table, each in one place (`settle`):
/// 1. *maybe sent* (I5): while the flag is set, an exit to planned, failed or cancelled becomes
///    `needs_reconciliation`, with the exit as the case's reason. The flag falls by confirmation or by a person's
///    finding, by nothing else; a lookup that finds nothing leaves it.
/// 2. A success kept during an attempt confirms the command when that attempt ends in any other way (I8), unless the
///    row was tampered with; where the attempt may have had an effect of its own, a case stays open.
/// 3. An open case stops sending: what would go back to the outbox while one stays open needs reconciliation.
/// 4. A case never takes a lesser reason, and a question about a second effect outlives the
///    confirmation until a person closes it.
/// 5. A redacted command has nothing to send: what would make it wait for an approval or a send ends `failed`.
///
/// Decided for safety where more than one reading is possible:
/// - `not_found` for a command that somebody asked to cancel or reject, or of which a success was reported, ends
///   `failed` (`rejected`): sending it again takes an operator's `retry`.
/// - A late success of another request takes the command out of the outbox and sets *maybe sent*: there is an effect.
/// - `revise` needs attempt 0 and the flag not set: a copy's original may have sent the old content.
///
/// # Errors
/// `CL006` with the state and the call, DETAIL the calls that are legal in this state, HINT what to do.
pub fn next(state: &State, event: &Event) -> Result<Transition, LedgerError> {
    match table(state, event) {
        Some(draft) => Ok(settle(state, event, draft)),
        None => Err(illegal(state, event)),
    }
}

/// A cell of the table, before the five rules.
struct Draft {
    to: Status,
    flag: Flag,
    case: CaseAction,
    error: Option<ErrorClass>,
    /// The reason of the case if rule 1 turns this exit into one.
    otherwise: CaseReason,
    keep_success: bool,
    writes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    Keep,
    Set,
    /// Confirmation or a person's finding.
    Clear,
}

impl Draft {
    fn go(to: Status) -> Self {
        Self {
            to,
            flag: Flag::Keep,
            case: CaseAction::None,
            error: None,
            otherwise: CaseReason::UncertainAnswer,
            keep_success: false,
            writes: true,
        }
    }

    /// An exit, and the reason of the case that it becomes while maybe sent.
    fn exit(to: Status, error: Option<ErrorClass>, otherwise: CaseReason) -> Self {
        Self { error, otherwise, ..Self::go(to) }
    }

    fn confirm() -> Self {
        Self { flag: Flag::Clear, case: CaseAction::Close, ..Self::go(Status::Confirmed) }
    }

    fn case(reason: CaseReason) -> Self {
        Self { case: CaseAction::Open(reason), ..Self::go(Status::NeedsReconciliation) }
    }

    fn sent(self) -> Self {
        Self { flag: Flag::Set, ..self }
    }

    /// Journal (and case) only.
    fn note(state: &State, case: CaseAction) -> Self {
        Self { case, writes: false, ..Self::go(state.status) }
    }
}

fn table(state: &State, event: &Event) -> Option<Draft> {
    use ApprovalState as A;
    use CaseReason as R;
    use Event as E;
    use Status::*;

    let opened = |reason| Draft::note(state, CaseAction::Open(reason));
    let noted = || Draft::note(state, CaseAction::None);

    Some(match (state.status, *event) {
        // Prepare and approve.
        (Planned | Approved, E::Revise { approval_needed }) if state.attempt == 0 && !state.maybe_sent => {
            Draft::go(if approval_needed { Planned } else { Approved })
        }
        (Planned, E::Approve { quorum: true }) => Draft::go(Approved),
        (Planned, E::Approve { quorum: false }) | (Approved, E::Approve { .. }) => noted(),
        (Planned, E::Reject) => Draft::exit(Failed, Some(ErrorClass::Rejected), R::RejectRequested),
        (_, E::Revoke) if state.approval == A::NotNeeded => return None,
        (Approved, E::Revoke) => Draft::exit(Planned, None, R::ApprovalRevoked),
        (Planned | Dispatched | NeedsReconciliation | Failed, E::Revoke) => noted(),
        (Approved, E::ApprovalLapsed) if state.approval != A::NotNeeded => {
            Draft::exit(Planned, None, R::ApprovalLapsed)
        }
        (Planned | Approved, E::Cancel) => Draft::exit(Cancelled, None, R::CancelRequested),
        (Planned | Approved, E::DeadlineOver) => Draft::exit(Failed, Some(ErrorClass::Expired), R::DeadlineOver),

        // Execute.
        (Approved, E::Claim) if may_claim(state) => Draft::go(Dispatched),
        (Dispatched, E::Release) => Draft::go(Approved),
        (Dispatched, E::NotSent { error }) => Draft { error: Some(error), ..Draft::go(Approved) },
        (Dispatched, E::SafeRepeat { error }) => Draft { error: Some(error), ..Draft::go(Approved).sent() },
        (Dispatched, E::Confirm) => Draft::confirm(),
        (Dispatched, E::Refused { error: ErrorClass::Permission }) => {
            Draft::exit(Failed, Some(ErrorClass::Permission), R::RepeatNotPermitted)
        }
        (Dispatched, E::Refused { error }) => Draft::exit(Failed, Some(error), R::RefusedRepeat),
        (Dispatched, E::Uncertain { reason }) => Draft::case(reason).sent(),
        (Dispatched, E::LeaseOver) => Draft::case(R::LeaseOver).sent(),
        (Dispatched, E::DeadlineOver) => Draft::case(R::DeadlineOver).sent(),
        (Approved | Dispatched, E::BudgetOver { error }) => Draft::exit(Failed, Some(error), budget_reason(error)),
        (Approved | Dispatched, E::Tampered) => Draft::case(R::Tampered),
        (Approved | Dispatched, E::WindowOver) => Draft::case(R::WindowOver),
        (Approved | Dispatched, E::RequestChanged) => Draft::case(R::RequestChanged),
        (Approved | Dispatched, E::Fence) => Draft::case(R::Fence).sent(),
        (Planned, E::Adopted { repeat_safe: true }) => Draft::go(Planned).sent(),
        (Approved | Dispatched, E::Adopted { repeat_safe: true }) => Draft::go(Approved).sent(),
        (Planned | Approved | Dispatched | NeedsReconciliation, E::Adopted { .. }) => Draft::case(R::Adopted).sent(),

        // Look up.
        (NeedsReconciliation, E::LookupFound { .. }) => Draft::confirm(),
        (NeedsReconciliation, E::LookupAbsent { repeat_allowed }) => absent(state, repeat_allowed),
        (NeedsReconciliation, E::LookupUnclear { reason }) => opened(reason),
        (_, E::LookupAbsent { .. } | E::LookupUnclear { .. }) => noted(),
        (_, E::LookupFound { same_record }) => success(state, true, same_record, false),

        // Late evidence.
        (_, E::LateSuccess { same_request, same_record, second_effect_possible }) => {
            success(state, same_request, same_record, second_effect_possible)
        }
        (_, E::LateFailure) => noted(),
        (Confirmed | Cancelled, E::DuplicateSuccess) => opened(R::DuplicateSuccess),
        (Dispatched, E::DuplicateSuccess) => {
            Draft { case: CaseAction::Open(R::DuplicateSuccess), ..Draft::go(Dispatched).sent() }
        }
        (_, E::DuplicateSuccess) => Draft::case(R::DuplicateSuccess).sent(),

        // Reconcile.
        (Confirmed | Cancelled, E::ReconcileFound { .. } | E::ReconcileNotFound | E::Abandon)
            if state.case.is_some() =>
        {
            Draft::note(state, CaseAction::Close)
        }
        (NeedsReconciliation, E::ReconcileFound { .. }) => Draft::confirm(),
        (_, E::ReconcileFound { same_record }) => success(state, true, same_record, false),
        (NeedsReconciliation, E::ReconcileNotFound) => not_found(state),
        (NeedsReconciliation, E::Abandon) => Draft {
            flag: Flag::Clear,
            case: CaseAction::Close,
            error: Some(ErrorClass::Uncertain),
            ..Draft::go(Failed)
        },
        (Failed, E::OperatorRetry) if !state.redacted && !state.maybe_sent => {
            Draft::go(if state.approval.permits_send() { Approved } else { Planned })
        }

        (Planned | Approved | Dispatched | NeedsReconciliation | Failed | Confirmed | Cancelled, _) => return None,
    })
}

/// A claim needs a valid approval (I6), no open case, and a number for the attempt.
fn may_claim(state: &State) -> bool {
    state.approval.permits_send() && state.case.is_none() && !state.redacted && state.attempt < i32::MAX
}

fn budget_reason(error: ErrorClass) -> CaseReason {
    match error {
        ErrorClass::BudgetExhausted => CaseReason::BudgetExhausted,
        ErrorClass::Expired => CaseReason::DeadlineOver,
        _ => CaseReason::RepeatNeedsPerson,
    }
}

/// The lookup proved absence, or found nothing where that proves nothing.
fn absent(state: &State, repeat_allowed: bool) -> Draft {
    let may_release = repeat_allowed && state.case.is_some_and(CaseReason::lookup_may_release);
    if !may_release {
        Draft::note(state, CaseAction::Open(CaseReason::LookupAbsent))
    } else if state.approval.permits_send() {
        Draft { case: CaseAction::Close, error: Some(ErrorClass::Uncertain), ..Draft::go(Status::Approved) }
    } else {
        Draft::note(state, CaseAction::Open(CaseReason::ApprovalMissing))
    }
}

/// A person found that nothing was created.
fn not_found(state: &State) -> Draft {
    let found = |to| Draft { flag: Flag::Clear, case: CaseAction::Close, ..Draft::go(to) };
    if !state.case.is_none_or(CaseReason::not_found_may_release) {
        Draft { error: Some(ErrorClass::Rejected), ..found(Status::Failed) }
    } else if state.approval.permits_send() {
        found(Status::Approved)
    } else {
        found(Status::Planned)
    }
}

/// A success that is not the answer of the current attempt: of an older one, by a callback, a lookup or a person.
fn success(state: &State, same_request: bool, same_record: bool, second_effect_possible: bool) -> Draft {
    use CaseReason as R;
    use Status::*;
    match state.status {
        Confirmed if same_record => Draft::note(state, CaseAction::None),
        Confirmed => Draft::note(state, CaseAction::Open(R::DuplicateSuccess)),
        Cancelled => Draft::note(state, CaseAction::Open(R::Contradiction)),
        Planned | Failed => Draft::case(R::LateSuccess).sent(),
        Approved | NeedsReconciliation if same_request && second_effect_possible => {
            Draft { case: CaseAction::Open(R::DuplicatePossible), ..Draft::confirm() }
        }
        Approved | NeedsReconciliation if same_request => Draft::confirm(),
        Approved | NeedsReconciliation => Draft::case(R::LateOtherRequest).sent(),
        Dispatched if same_request => Draft { keep_success: true, ..Draft::note(state, CaseAction::None) },
        Dispatched => Draft { case: CaseAction::Open(R::LateOtherRequest), ..Draft::go(Dispatched).sent() },
    }
}

/// The five rules over the table.
fn settle(state: &State, event: &Event, draft: Draft) -> Transition {
    let draft = kept_success_decides(state, event, draft);
    let draft = redacted_is_not_sent(state, draft);
    let maybe_sent = match draft.flag {
        Flag::Keep => state.maybe_sent,
        Flag::Set => true,
        Flag::Clear => false,
    };
    let draft = nothing_uncertain_ends(state, maybe_sent, draft);
    let draft = open_case_stops_sending(state, draft);
    let case = grave_case_stays(state, event, &draft);
    let error = match draft.to {
        Status::NeedsReconciliation if maybe_sent => Some(ErrorClass::Uncertain),
        Status::NeedsReconciliation => draft.error.or(Some(ErrorClass::Rejected)),
        _ => draft.error,
    };
    Transition {
        to: draft.to,
        maybe_sent,
        attempt: if *event == Event::Claim { state.attempt.saturating_add(1) } else { state.attempt },
        success_kept: draft.to == Status::Dispatched && (state.success_kept || draft.keep_success),
        case,
        error,
        kind: event.kind(),
        transition: draft.writes,
    }
}

/// Rule 2.
fn kept_success_decides(state: &State, event: &Event, draft: Draft) -> Draft {
    let attempt_ended = state.status == Status::Dispatched && draft.to != Status::Dispatched;
    if !attempt_ended || !state.success_kept || draft.to == Status::Confirmed {
        return draft;
    }
    match event {
        Event::Tampered => draft.sent(),
        Event::Uncertain { .. } | Event::LeaseOver | Event::DeadlineOver | Event::Fence | Event::Adopted { .. } => {
            Draft { case: CaseAction::Open(CaseReason::DuplicatePossible), ..Draft::confirm() }
        }
        _ => Draft::confirm(),
    }
}

/// Rule 1, invariant I5.
fn nothing_uncertain_ends(state: &State, maybe_sent: bool, draft: Draft) -> Draft {
    let stays = draft.to == state.status;
    let exit = matches!(draft.to, Status::Planned | Status::Failed | Status::Cancelled) && !stays;
    if maybe_sent && exit { Draft { flag: draft.flag, ..Draft::case(draft.otherwise) } } else { draft }
}

/// Rule 3.
fn open_case_stops_sending(state: &State, draft: Draft) -> Draft {
    let stays_open = state.case.is_some() && draft.case != CaseAction::Close;
    let back_to_outbox = draft.to == Status::Approved && state.status != Status::Approved;
    if stays_open && back_to_outbox { Draft { to: Status::NeedsReconciliation, ..draft } } else { draft }
}

/// Rule 5.
fn redacted_is_not_sent(state: &State, draft: Draft) -> Draft {
    let would_wait = matches!(draft.to, Status::Planned | Status::Approved);
    if state.redacted && would_wait {
        Draft { to: Status::Failed, error: Some(ErrorClass::Rejected), otherwise: CaseReason::LookupAbsent, ..draft }
    } else {
        draft
    }
}

/// Rule 4.
fn grave_case_stays(state: &State, event: &Event, draft: &Draft) -> CaseAction {
    match draft.case {
        // A question about a second effect is not settled by a success, unless a person says so.
        CaseAction::Close
            if draft.to == Status::Confirmed
                && !state.status.is_final()
                && !matches!(event, Event::ReconcileFound { .. })
                && state.case.is_some_and(CaseReason::outlives_confirmation) =>
        {
            CaseAction::None
        }
        CaseAction::Close if state.case.is_none() => CaseAction::None,
        CaseAction::Open(new) if CaseReason::graver(state.case, new) != new => CaseAction::None,
        other => other,
    }
}
