//! The state of everything.

use command_ledger_domain::fence::{Fence, Identity, Place, judge};
use command_ledger_domain::retry::Deadline;
use command_ledger_domain::status::{ApprovalState, CaseReason, ErrorClass, State, Status};

use crate::destination::{Heard, Record, Request};
use crate::setup::{Bounds, Break, Setup};

/// One approval as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Approved {
    pub role: u8,
    pub intent: u8,
    pub expires_us: i64,
    pub revoked: bool,
}

/// One attempt's hold on the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub serial: u8,
    pub expires_us: i64,
    pub epoch: u8,
}

/// The outbox row beside the live state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queued {
    pub due_us: i64,
    pub approved_until_us: Option<i64>,
    pub identity: u8,
    pub lease: Option<Lease>,
    pub kept_record: Option<u8>,
    pub absence_place: Option<(u8, u8)>,
}

/// The open case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    pub reason: CaseReason,
    pub next_lookup_us: Option<i64>,
    pub evidence_from_us: Option<i64>,
    pub opened_us: i64,
    pub lookups_done: u32,
    pub absents_in_a_row: u32,
    pub round: Option<u8>,
}

/// A claim as the journal keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claimed {
    pub serial: u8,
    pub attempt: i32,
    pub content: u8,
}

/// How an attempt ended, as far as late answers are judged by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Confirmed,
    Uncertain,
}

/// The command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// The params: 0 or 1.
    pub params: u8,
    /// What an approval signs: params and the version of the destination's request.
    pub intent: u8,
    pub registered_us: i64,
    pub deadline_us: Option<i64>,
    pub deadline_relative: bool,
    pub status: Status,
    pub maybe_sent: bool,
    pub attempt: i32,
    pub counted: i32,
    pub sent_content: Option<u8>,
    pub first_sent_us: Option<i64>,
    pub success_kept: bool,
    pub record: Option<u8>,
    pub error: Option<ErrorClass>,
    pub queued: Option<Queued>,
    pub case: Option<Case>,
    pub approvals: Vec<Approved>,
    pub claims: Vec<Claimed>,
    pub ends: Vec<(i32, End)>,
}

impl Command {
    pub fn state(&self, approval: ApprovalState) -> State {
        State {
            status: self.status,
            maybe_sent: self.maybe_sent,
            attempt: self.attempt,
            approval,
            success_kept: self.success_kept,
            case: self.case.map(|case| case.reason),
            redacted: false,
        }
    }

    pub fn deadline(&self) -> Deadline {
        Deadline { at_us: self.deadline_us, relative: self.deadline_relative }
    }

    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline_us = deadline.at_us;
        self.deadline_relative = deadline.relative;
    }

    pub fn lease(&self) -> Option<Lease> {
        self.queued.and_then(|queued| queued.lease)
    }
}

/// What is committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The identity and place that it was adopted in.
    pub adopted: (u8, u8),
    pub command: Option<Command>,
    /// The version of the destination's request.
    pub request_version: u8,
}

/// Where an attempt stands at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Claimed, not sent.
    Held,
    /// On its way; nothing heard.
    Sent,
    /// Withheld, or given up, or answered; `None` for nothing heard.
    Over { sent: bool, heard: Option<Heard>, ended_us: i64 },
}

/// An attempt at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    pub serial: u8,
    pub content: u8,
    pub lease_expires_us: i64,
    /// When the approvals that its claim found first break.
    pub approved_until_us: Option<i64>,
    pub deadline_us: Option<i64>,
    pub phase: Phase,
}

/// A lookup on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    pub token: u8,
    pub started_us: i64,
    /// What came back: `None` for nothing usable.
    pub records: Option<Vec<u8>>,
}

/// What was seen that must never be, and what the properties need to know of the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Other params were answered as a replay.
    pub mixed_up: bool,
    /// A request left whose claim no commit holds.
    pub unmarked_send: bool,
    pub unapproved_send: bool,
    /// A repeat differed from a request that had, or still could have, its effect.
    pub differing_send: bool,
    pub overdue_send: bool,
    pub fenced_send: bool,
    /// A request left of a registration that no commit holds.
    pub rolled_back_send: bool,
    /// In a place where another may have sent, it was ended or rewritten as if that were known.
    pub decided_blindly: bool,
    /// A late answer touched a newer attempt.
    pub overwrote: bool,
    /// A final state was left, or `failed` by something else than a retry or late success.
    pub left_final: bool,
    /// A true success was reported to the ledger.
    pub told: bool,
    /// A person gave the question up: what is true of the destination is then their word.
    pub abandoned: bool,
    /// Commits were lost by a failover.
    pub moved: bool,
    /// The registration itself was among them.
    pub lost_registration: bool,
    /// When the first request of all left.
    pub first_send_us: Option<i64>,
    /// Requests that left, and how many may.
    pub sends: u8,
    pub granted: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now_us: i64,
    /// Which identity and place this is.
    pub here: (u8, u8),
    pub epoch: u8,
    pub serials: u8,
    pub rounds: u8,
    pub ledger: Ledger,
    /// What the standby has, once it has fallen behind; or the dump.
    pub copy: Option<Box<Ledger>>,
    /// A claim that is not committed: only where requests leave before it.
    pub uncommitted: Option<Box<Command>>,
    /// A registration in a transaction that is still open.
    pub open_registration: Option<Box<Ledger>>,
    pub flights: Vec<Flight>,
    pub round: Option<Round>,
    pub network: Vec<Request>,
    pub records: Vec<Record>,
    pub left: Bounds,
    pub seen: Seen,
}

impl World {
    /// Nothing has happened.
    pub fn new(setup: &Setup) -> Self {
        Self {
            now_us: 1_000 * crate::setup::TICK_US,
            here: (1, 1),
            epoch: 1,
            serials: 0,
            rounds: 0,
            ledger: Ledger { adopted: (1, 1), command: None, request_version: 0 },
            copy: None,
            uncommitted: None,
            open_registration: None,
            flights: Vec::new(),
            round: None,
            network: Vec::new(),
            records: Vec::new(),
            left: setup.bounds,
            seen: Seen::default(),
        }
    }

    /// What the fence says here.
    pub fn fence(&self, setup: &Setup) -> Fence {
        if setup.breaks(Break::IgnoreFence) { Fence::Open } else { self.true_fence(setup) }
    }

    /// What it has to say.
    pub fn true_fence(&self, setup: &Setup) -> Fence {
        let point = |(identity, place): (u8, u8)| {
            (identity_of(identity), Place { timeline: u32::from(place), control_inode: 1 })
        };
        judge(Some(point(self.ledger.adopted)), point(self.here), setup.on_failover)
    }

    /// Whether anything that was sent, or still can be, may take an effect from now on.
    pub fn outstanding(&self) -> bool {
        let can_send = |f: &Flight| f.phase == Phase::Held && f.lease_expires_us > self.now_us;
        self.network.iter().any(|r| r.not_after_us >= self.now_us) || self.flights.iter().any(can_send)
    }
}

/// An identity as the core knows it.
pub fn identity_of(number: u8) -> Identity {
    Identity { system_identifier: u64::from(number), database_oid: 1, extension_oid: 1 }
}
