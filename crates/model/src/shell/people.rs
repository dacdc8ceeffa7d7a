//! What people and agents call: `ledger/{register,revise,cancel,approve,reconcile,adopt}.rs`.

use command_ledger_domain::answer::second_effect;
use command_ledger_domain::approval::{Actor, approval_expiry_us, check_approver};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::hash::params_hash;
use command_ledger_domain::json::Json;
use command_ledger_domain::retry::Deadline;
use command_ledger_domain::status::{ApprovalState, Event, Status, next, registered};

use std::sync::LazyLock;

use super::{Change, Here, apply, look_up_if_maybe_sent, mark_sent_elsewhere, schedule_lookup};
use crate::destination::record_id;
use crate::setup::Break;
use crate::world::{Approved, Case, Command, Ledger, Queued};

/// A call that was refused: it changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

type Done = Result<(), Refused>;

/// The hashes of the params that callers use.
static HASHES: LazyLock<[[u8; 32]; 2]> = LazyLock::new(|| {
    ["{\"amount\": 0}", "{\"amount\": 1}"].map(|text| {
        Json::parse(text).ok().and_then(|json| params_hash("default", "order", &json, &[]).ok()).unwrap_or_default()
    })
});

fn hash_of(params: u8) -> [u8; 32] {
    HASHES[usize::from(params) % 2]
}

/// `register()`: `true` for a replay.
pub fn register(here: &Here, ledger: &mut Ledger, params: u8) -> Result<bool, Refused> {
    if let Some(existing) = &ledger.command {
        let same = here.breaks(Break::CompareKeyOnly) || hash_of(existing.params) == hash_of(params);
        return if same { Ok(true) } else { Err(Refused) };
    }
    let created = registered(here.setup.approval.is_some());
    let mut deadline = Deadline::default();
    let approved = created.to == Status::Approved;
    if approved {
        deadline = deadline.counted_from(here.now_us, here.setup.deadline_ms);
    }
    ledger.command = Some(Command {
        params,
        intent: here.intent(params),
        registered_us: here.now_us,
        deadline_us: deadline.at_us,
        deadline_relative: deadline.relative,
        status: created.to,
        maybe_sent: created.maybe_sent,
        attempt: created.attempt,
        counted: 0,
        sent_content: None,
        first_sent_us: None,
        success_kept: false,
        record: None,
        error: None,
        queued: approved.then_some(Queued {
            due_us: here.now_us,
            approved_until_us: None,
            identity: here.here.0,
            lease: None,
            kept_record: None,
            absence_place: None,
        }),
        case: None,
        approvals: Vec::new(),
        claims: Vec::new(),
        ends: Vec::new(),
    });
    Ok(false)
}

/// `revise()`, by a caller who saw the current content.
pub fn revise(here: &Here, command: &mut Command, params: u8) -> Done {
    mark_sent_elsewhere(here, command);
    let (approval, _) = here.approval_state(command);
    let event = Event::Revise { approval_needed: here.setup.approval.is_some() };
    next(&command.state(approval), &event).map_err(|_| Refused)?;
    if command.params == params {
        return Err(Refused);
    }
    let starts = here.setup.approval.is_none() && command.deadline_us.is_none();
    let counted = command.deadline().counted_from(here.now_us, here.setup.deadline_ms);
    command.params = params;
    command.intent = here.intent(params);
    for given in &mut command.approvals {
        given.revoked = true;
    }
    if let Some(queued) = &mut command.queued {
        queued.approved_until_us = None;
    }
    let change = Change { deadline: starts.then_some(counted), ..Change::default() };
    apply(here, command, approval, event, change).map(drop).map_err(|_| Refused)
}

/// `cancel()`
pub fn cancel(here: &Here, command: &mut Command) -> Done {
    stop(here, command, Event::Cancel)
}

/// `reject()`
pub fn reject(here: &Here, command: &mut Command) -> Done {
    here.refresh_intent(command);
    stop(here, command, Event::Reject)
}

fn stop(here: &Here, command: &mut Command, event: Event) -> Done {
    if event != Event::Revoke {
        mark_sent_elsewhere(here, command);
    }
    let (approval, _) = here.approval_state(command);
    let mut change = Change::default();
    look_up_if_maybe_sent(here, command, &mut change);
    apply(here, command, approval, event, change).map(drop).map_err(|_| Refused)
}

/// `approve()`, of the content as the approver sees it now.
pub fn approve(here: &Here, command: &mut Command, role: u8) -> Done {
    here.refresh_intent(command);
    let (before, _) = here.approval_state(command);
    next(&command.state(before), &Event::Approve { quorum: false }).map_err(|_| Refused)?;
    let rule = here.setup.approval.ok_or(Refused)?;
    let (proposer, approver) = (Actor { role: "agent", stated: None }, Actor { role: "person", stated: None });
    check_approver(&rule, proposer, approver, &[command.intent], &[command.intent]).map_err(|_| Refused)?;
    let expires_us = approval_expiry_us(&rule, None, here.now_us).map_err(|_| Refused)?;
    command.approvals.push(Approved { role, intent: command.intent, expires_us, revoked: false });
    let (state, approved_until_us) = here.approval_state(command);
    let quorum = state == ApprovalState::Valid;
    let counted = command.deadline().counted_from(here.now_us, here.setup.deadline_ms);
    let change = Change { approved_until_us, deadline: quorum.then_some(counted), ..Change::default() };
    apply(here, command, state, Event::Approve { quorum }, change).map(drop).map_err(|_| Refused)
}

/// `revoke_approval()`
pub fn revoke(here: &Here, command: &mut Command) -> Done {
    stop(here, command, Event::Revoke)?;
    for given in &mut command.approvals {
        given.revoked = true;
    }
    Ok(())
}

/// What a person found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finding {
    /// This record.
    Found(u8),
    /// It is certain that nothing was created.
    NotFound,
    /// It is given up.
    Abandon,
}

/// `reconcile()`, about the current attempt.
pub fn reconcile(here: &Here, command: &mut Command, finding: Finding) -> Done {
    let event = match finding {
        Finding::Found(record) => {
            let deduplicates = here.deduplicates(command.first_sent_us);
            let same_record = !second_effect(command.record.map(record_id), Some(record_id(record)), deduplicates);
            Event::ReconcileFound { same_record }
        }
        Finding::NotFound => Event::ReconcileNotFound,
        Finding::Abandon => Event::Abandon,
    };
    let (approval, approved_until_us) = here.approval_state(command);
    let preview = next(&command.state(approval), &event).map_err(|_| Refused)?;
    let mut change = Change { approved_until_us, ..Change::default() };
    if let Finding::Found(record) = finding
        && (preview.to == Status::Confirmed && preview.transition || preview.success_kept)
    {
        change.record = Some(record);
    }
    if event == Event::ReconcileNotFound && !command.status.is_final() {
        command.counted = command.counted.min(last_of_budget(here));
    }
    apply(here, command, approval, event, change).map(drop).map_err(|_| Refused)
}

fn last_of_budget(here: &Here) -> i32 {
    here.retry().max_attempts.saturating_sub(1).max(0)
}

/// `retry()` by an operator.
pub fn retry(here: &Here, command: &mut Command) -> Done {
    here.refresh_intent(command);
    let (approval, approved_until_us) = here.approval_state(command);
    command.counted = last_of_budget(here);
    let deadline = command.deadline().after_retry(None, here.now_us, here.setup.deadline_ms);
    let change = Change { approved_until_us, deadline: Some(deadline), ..Change::default() };
    apply(here, command, approval, Event::OperatorRetry, change).map(drop).map_err(|_| Refused)
}

/// `adopt_relay(resend)`
pub fn adopt(here: &Here, ledger: &mut Ledger, resend: bool) -> Done {
    if here.fence == Fence::Open {
        return Err(Refused);
    }
    if let Some(command) = &mut ledger.command {
        if !resend && concerns(here, command) {
            adopt_one(here, command)?;
        }
        if let Some(queued) = &mut command.queued {
            queued.identity = here.here.0;
        }
    }
    ledger.adopted = here.here;
    Ok(())
}

/// Whether another place may have sent this command, so that it must count as maybe sent.
fn concerns(here: &Here, command: &Command) -> bool {
    let queued_here = command.queued.is_some_and(|q| q.identity == here.here.0);
    match (command.status, here.fence) {
        (Status::Confirmed | Status::Cancelled | Status::Failed, _) => false,
        (_, Fence::Unadopted) if queued_here => false,
        (Status::Dispatched, Fence::Moved { halted: false }) => false,
        _ => true,
    }
}

fn adopt_one(here: &Here, command: &mut Command) -> Done {
    let repeat_safe = here.deduplicates(Some(command.registered_us));
    command.first_sent_us = Some(command.registered_us);
    if let Some(queued) = &mut command.queued {
        queued.identity = here.here.0;
        queued.absence_place = None;
    }
    let mut change = Change::default();
    schedule_lookup(here, &mut change, here.now_us);
    let had_case = command.case.is_some();
    apply(here, command, ApprovalState::NotNeeded, Event::Adopted { repeat_safe }, change).map_err(|_| Refused)?;
    if command.status == Status::NeedsReconciliation && had_case {
        restart_lookups(command, change.next_lookup_us, here.now_us);
    }
    Ok(())
}

fn restart_lookups(command: &mut Command, next_lookup_us: Option<i64>, now_us: i64) {
    if let Some(case) = &mut command.case {
        *case = Case {
            next_lookup_us,
            evidence_from_us: Some(now_us),
            lookups_done: 0,
            absents_in_a_row: 0,
            round: None,
            ..*case
        };
    }
}
