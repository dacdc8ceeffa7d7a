//! Applying decisions: every transition of every command goes through [`Batch::apply`], which asks the table of
//! transitions, extends the journal chain and collects the row changes; [`Batch::flush`] writes them set by set.

use super::command::{Command, Lease, Queued};
use super::journal;
use super::{fence, requests, rows};
use crate::pg::jsonb::JsonbArg;
use crate::pg::spi::{Arg, Connection};
use crate::relay::counters::{self, Counter};
use crate::relay::flights;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::json::Json;
use command_ledger_domain::retry::Deadline;
use command_ledger_domain::status::{ApprovalState, CaseAction, CaseReason, Event, Status, Transition, next};

/// Who acts, and when.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The database role (or the relay).
    pub role: String,
    /// The person that the role says it acts for.
    pub stated: Option<String>,
}

/// What comes with an event beyond the transition itself.
#[derive(Default)]
pub struct Change {
    /// Particulars for the journal; digests and facts, never payload.
    pub detail: Option<Json<'static>>,
    /// When a command that goes back to the outbox is due; now if not said.
    pub due_us: Option<i64>,
    /// Until when the quorum stands, for a command that goes to the outbox.
    pub approved_until_us: Option<i64>,
    /// A new deadline.
    pub deadline: Option<Deadline>,
    /// What the error was, for the receipt.
    pub message: Option<String>,
    /// The record that the destination made.
    pub record_id: Option<String>,
    /// The destination's answer, for the receipt; good until the batch is written.
    pub result: Option<JsonbArg>,
    /// A claim's lease and the digest of the request that it sends.
    pub lease: Option<Lease>,
    pub request_digest: Option<[u8; 32]>,
    /// For a case that opens: when the first lookup may run, and from when an absence counts.
    pub next_lookup_us: Option<i64>,
    pub evidence_from_us: Option<i64>,
    /// What to keep with the case.
    pub evidence: Option<Json<'static>>,
    /// For a case that closes: the finding.
    pub finding: Option<String>,
    /// The attempt is given back and does not count against the budget.
    pub uncounted: bool,
    /// A failed command does not block its lane.
    pub skip_lane_on_failure: bool,
}

/// A case row to be opened.
pub struct OpenedCase {
    pub tenant: String,
    pub key: String,
    pub seq: i32,
    pub attempt: i32,
    pub reason: CaseReason,
    pub next_lookup_us: Option<i64>,
    pub evidence_from_us: Option<i64>,
    pub evidence: Option<Json<'static>>,
}

/// Transitions that are decided and not yet written.
pub struct Batch {
    now_us: i64,
    actor: Actor,
    identity: i64,
    events: Vec<journal::Row>,
    queue_inserts: Vec<(Command, String)>,
    queue_updates: Vec<Command>,
    queue_deletes: Vec<rows::Leaving>,
    at_rest: Vec<rows::AtRest>,
    opened: Vec<OpenedCase>,
    reasons: Vec<(String, String, CaseReason)>,
    closed: Vec<(String, String, Option<String>, Option<Json<'static>>)>,
    requests: Vec<(String, String, Option<i64>)>,
    answered_requests: Vec<(String, String)>,
    left_lanes: Vec<(String, String, String, String)>,
    /// Attempts that ended: where, and whether they were repeats.
    landed: Vec<(String, bool)>,
}

impl Batch {
    /// An empty batch at one moment, by one actor, in this ledger.
    pub fn new(now_us: i64, actor: Actor) -> Self {
        Self {
            now_us,
            actor,
            identity: fence::own_tag(),
            events: Vec::new(),
            queue_inserts: Vec::new(),
            queue_updates: Vec::new(),
            queue_deletes: Vec::new(),
            at_rest: Vec::new(),
            opened: Vec::new(),
            reasons: Vec::new(),
            closed: Vec::new(),
            requests: Vec::new(),
            answered_requests: Vec::new(),
            left_lanes: Vec::new(),
            landed: Vec::new(),
        }
    }

    /// The moment of this batch, Unix microseconds.
    pub fn now_us(&self) -> i64 {
        self.now_us
    }

    /// How many transitions were decided.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was decided.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Decides what the event does to the command, and collects the writes. `destination` is the command's.
    ///
    /// # Errors
    /// CL006 when the state does not allow the event.
    pub fn apply(
        &mut self,
        command: &mut Command,
        approval: ApprovalState,
        destination: &str,
        event: Event,
        change: Change,
    ) -> Result<Transition, LedgerError> {
        let transition = next(&command.state(approval), &event)?;
        let from = command.live.status;
        if transition.transition && from == Status::Dispatched && transition.to != Status::Dispatched {
            self.landed.push((destination.to_owned(), command.live.counted > 1));
        }
        self.journal(command, from, &transition, change.detail.as_ref())?;
        self.case(command, &transition, &change);
        let live = &mut command.live;
        if event == Event::Claim {
            live.counted = live.counted.saturating_add(1);
            // Provably unsent attempts before this one do not start the window, nor fix the request.
            if !live.maybe_sent || live.first_sent_us.is_none() {
                live.first_sent_us = Some(self.now_us);
            }
            if !live.maybe_sent || live.request_digest.is_none() {
                live.request_digest = change.request_digest.or(live.request_digest);
            }
        }
        if change.uncounted {
            live.counted = (live.counted - 1).max(0);
        }
        let kept_before = live.success_kept;
        live.attempt = transition.attempt;
        live.success_kept = transition.success_kept;
        if transition.transition {
            live.status = transition.to;
            live.maybe_sent = transition.maybe_sent;
            live.error = transition.error;
            live.error_message = transition.error.and(change.message.clone());
        }
        let deadline = change.deadline.unwrap_or(command.deadline());
        command.set_deadline(if transition.to == Status::Planned { deadline.while_waiting() } else { deadline });
        let repeat_prevented = matches!(from, Status::Approved | Status::Dispatched)
            && transition.to == Status::NeedsReconciliation
            && transition.maybe_sent;
        if repeat_prevented {
            counters::count(Counter::RepeatsNotSent);
        }
        command.updated_us = self.now_us;
        self.place(command, from, destination, event, &transition, change, kept_before);
        Ok(transition)
    }

    fn journal(
        &mut self,
        command: &mut Command,
        from: Status,
        transition: &Transition,
        detail: Option<&Json<'static>>,
    ) -> Result<(), LedgerError> {
        let row = journal::Row::chained(
            command,
            self.now_us,
            from,
            transition.to,
            transition.attempt,
            transition.kind,
            &self.actor,
            detail,
        )?;
        command.live.seq = row.seq;
        command.live.head = row.hash;
        self.events.push(row);
        Ok(())
    }

    fn case(&mut self, command: &mut Command, transition: &Transition, change: &Change) {
        match transition.case {
            CaseAction::None => {}
            CaseAction::Open(reason) => {
                if command.live.open_case.is_some() {
                    self.reasons.push((command.tenant.clone(), command.key.clone(), reason));
                } else {
                    self.opened.push(OpenedCase {
                        tenant: command.tenant.clone(),
                        key: command.key.clone(),
                        seq: command.live.seq,
                        attempt: transition.attempt,
                        reason,
                        next_lookup_us: change.next_lookup_us.filter(|_| !transition.to.is_final()),
                        evidence_from_us: change.evidence_from_us,
                        evidence: change.evidence.clone(),
                    });
                }
                command.live.open_case = Some(reason);
            }
            CaseAction::Close => {
                self.closed.push((
                    command.tenant.clone(),
                    command.key.clone(),
                    change.finding.clone(),
                    change.evidence.clone(),
                ));
                command.live.open_case = None;
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one event has this many facts")]
    /// Puts the live state where it belongs: the outbox row while the command is approved or dispatched, else its own.
    fn place(
        &mut self,
        command: &mut Command,
        from: Status,
        destination: &str,
        event: Event,
        transition: &Transition,
        change: Change,
        kept_before: bool,
    ) {
        let (tenant, key) = (command.tenant.clone(), command.key.clone());
        let was_queued = command.queued.is_some();
        let queued_now = matches!(command.live.status, Status::Approved | Status::Dispatched);
        if queued_now {
            let old = command.queued.take();
            let kept = change.record_id.clone().filter(|_| transition.success_kept && !kept_before);
            command.queued = Some(Queued {
                due_us: match (&old, change.due_us) {
                    (_, Some(due_us)) => due_us,
                    (Some(old), None) if !transition.transition || command.live.status == Status::Dispatched => {
                        old.due_us
                    }
                    _ => self.now_us.max(command.not_before_us.unwrap_or(i64::MIN)),
                },
                approved_until_us: change.approved_until_us.or(old.as_ref().and_then(|o| o.approved_until_us)),
                identity: old.as_ref().map_or(self.identity, |o| o.identity),
                kept_record_id: kept.or(old.as_ref().and_then(|o| o.kept_record_id.clone())),
                absence_place: match event {
                    Event::LookupAbsent { .. } | Event::ReconcileNotFound => Some(fence::place_tag()),
                    Event::SafeRepeat { .. } => None,
                    _ => old.as_ref().and_then(|o| o.absence_place),
                },
                lease: match command.live.status {
                    Status::Dispatched => change.lease.or(old.and_then(|o| o.lease)),
                    _ => None,
                },
            });
            if was_queued {
                self.update_queued(command);
                if change.deadline.is_some() {
                    self.write_at_rest(rows::AtRest::new(command, None, None));
                }
            } else {
                self.queue_inserts.push((command.clone(), destination.to_owned()));
                self.write_at_rest(rows::AtRest::new(command, None, None));
            }
        } else {
            let kept = command.queued.take().and_then(|q| q.kept_record_id);
            if was_queued {
                let same = |last: &Command| last.tenant == tenant && last.key == key;
                self.queue_inserts.pop_if(|(last, _)| same(last));
                self.queue_updates.pop_if(|last| same(last));
                self.queue_deletes.push((tenant.clone(), key.clone(), command.held_rows.queued.take()));
            }
            let record_id =
                change.record_id.or(kept.filter(|_| kept_before && command.live.status == Status::Confirmed));
            // A record id stands in the record only with the confirmation that it is a part of: what an unproven or
            // contradicted answer named must not stand in the way of what is proven later.
            let record_id = record_id.filter(|_| command.live.status == Status::Confirmed);
            let (record_id, result) = if transition.transition { (record_id, change.result) } else { (None, None) };
            if command.record_id.is_none() {
                command.record_id = record_id.clone();
            }
            self.write_at_rest(rows::AtRest::new(command, record_id, result));
        }
        if from != Status::Planned && command.live.status == Status::Planned {
            self.requests.push((tenant.clone(), key.clone(), command.deadline_us));
        } else if from == Status::Planned && command.live.status != Status::Planned {
            self.answered_requests.push((tenant.clone(), key.clone()));
        }
        let leaves =
            command.live.status.is_final() || command.live.status == Status::Failed && change.skip_lane_on_failure;
        if let (true, true, Some(lane)) = (leaves, transition.transition, &command.ordering_key) {
            self.left_lanes.push((tenant, destination.to_owned(), lane.clone(), key));
        }
    }

    /// A row is written once, with what the last of a command's transitions left: a statement that joins two new
    /// states to one row takes either. The transitions of one command follow each other in a batch.
    fn write_at_rest(&mut self, row: rows::AtRest) {
        match self.at_rest.last_mut() {
            Some(last) if last.is_of(&row) => last.follow(row),
            _ => self.at_rest.push(row),
        }
    }

    /// The same for a row of the outbox.
    fn update_queued(&mut self, command: &Command) {
        let same = |other: &Command| other.tenant == command.tenant && other.key == command.key;
        if let Some((inserted, _)) = self.queue_inserts.last_mut().filter(|(last, _)| same(last)) {
            *inserted = command.clone();
        } else if let Some(updated) = self.queue_updates.last_mut().filter(|last| same(last)) {
            *updated = command.clone();
        } else {
            self.queue_updates.push(command.clone());
        }
    }

    /// Writes everything that was decided, in the order of the tables' locks.
    pub fn flush(self, connection: &Connection) -> Result<(), LedgerError> {
        if !self.at_rest.is_empty() {
            rows::write_at_rest(connection, &self.at_rest)?;
        }
        if !self.queue_deletes.is_empty() {
            rows::delete_queued(connection, &self.queue_deletes)?;
        }
        if !self.queue_updates.is_empty() {
            rows::update_queued(connection, &self.queue_updates)?;
        }
        for (command, destination) in &self.queue_inserts {
            rows::insert_queued(connection, command, destination)?;
        }
        if !self.events.is_empty() {
            rows::insert_events(connection, &self.events)?;
        }
        for case in &self.opened {
            rows::open_case(connection, case, self.now_us)?;
        }
        for (tenant, key, reason) in &self.reasons {
            rows::CHANGE_REASON
                .execute(connection, &[Arg::Text(tenant), Arg::Text(key), Arg::Text(reason.as_str())])?;
        }
        let closed_by = self.actor.stated.as_deref().unwrap_or(&self.actor.role);
        for (tenant, key, finding, evidence) in &self.closed {
            rows::CLOSE_CASE.execute(
                connection,
                &[
                    Arg::Text(tenant),
                    Arg::Text(key),
                    Arg::Time(self.now_us),
                    Arg::Text(closed_by),
                    Arg::or_null(finding.as_deref(), Arg::Text),
                    Arg::or_null(evidence.as_ref(), Arg::Json),
                ],
            )?;
        }
        for (tenant, key, deadline_us) in &self.requests {
            requests::insert(connection, tenant, key, self.now_us, *deadline_us)?;
        }
        for (tenant, key) in &self.answered_requests {
            requests::delete(connection, tenant, key)?;
        }
        for (tenant, destination, lane, key) in &self.left_lanes {
            rows::LEAVE_LANE
                .execute(connection, &[Arg::Text(tenant), Arg::Text(destination), Arg::Text(lane), Arg::Text(key)])?;
        }
        for (destination, repeat) in &self.landed {
            flights::landed(self.identity, destination, *repeat);
        }
        Ok(())
    }
}
