//! What the checker looks at: what destinations saw and did, what callers were told, and what the ledger says. Plain
//! data, so that a test can write it by hand. All times are microseconds of the ledger's clock.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What a command type promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Its destination.
    pub destination: String,
    /// The destination deduplicates: an unknown outcome may be repeated without a lookup.
    pub deduplicates: bool,
    /// Attempts in all.
    pub max_attempts: usize,
    /// A second send takes a person.
    pub needs_person: bool,
}

/// A request that a destination read whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The key that it carries.
    pub key: String,
    /// When its last byte had been read.
    pub at_us: i64,
    /// The parameters in it.
    pub params: Value,
    /// The record that it made.
    pub effect: Option<String>,
    /// The network made it out of the request before: no second send.
    pub duplicated: bool,
    /// What went wrong with it, and what was answered.
    pub story: String,
}

/// What the callers know of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The type that it was registered with.
    pub command_type: String,
    /// The parameters that it may have: as registered, or by a revision whose answer is known or not.
    pub params: Vec<Value>,
    /// A registration was acknowledged after its commit.
    pub acknowledged: bool,
    /// It was rolled back, and never registered otherwise.
    pub rolled_back: bool,
    /// A receipt called it confirmed, with this record.
    pub confirmed_as: Option<String>,
    /// A worker's confirmation was taken.
    pub worker_confirmed: bool,
}

/// The record of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the columns of the command, under their names")]
pub struct Command {
    pub key: String,
    pub command_type: String,
    pub status: String,
    pub attempt: usize,
    pub counted_attempts: usize,
    pub maybe_sent: bool,
    pub record_id: Option<String>,
    pub params: Value,
    /// The server computes the stored hash from the stored parameters.
    pub params_match: bool,
    pub intent_hash: String,
    pub approvals_required: usize,
    pub deadline_us: Option<i64>,
    pub journal_seq: usize,
    /// `verify_journal()`
    pub chain_holds: bool,
    pub open_case: bool,
    /// In the outbox.
    pub queued: bool,
    /// In the approval queue.
    pub awaits_approval: bool,
}

/// An entry of the journal (entry 0 is the command).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the columns of the timeline, under their names")]
pub struct Entry {
    pub seq: usize,
    pub at_us: i64,
    pub kind: String,
    pub from: String,
    pub to: String,
    pub attempt: usize,
}

/// An approval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the columns of the approval, under their names")]
pub struct Approval {
    pub intent_hash: String,
    pub granted_us: i64,
    pub expires_us: i64,
}

/// A span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// From here.
    pub from_us: i64,
    /// To here, both included.
    pub to_us: i64,
    /// Why.
    pub why: String,
}

impl Span {
    /// Whether a moment lies in it.
    pub fn holds(&self, at_us: i64) -> bool {
        (self.from_us..=self.to_us).contains(&at_us)
    }
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// By command type.
    pub contracts: BTreeMap<String, Contract>,
    /// In order of arrival.
    pub requests: Vec<Request>,
    /// By key.
    pub told: BTreeMap<String, Told>,
    /// In any order.
    pub commands: Vec<Command>,
    /// By key, in order.
    pub entries: BTreeMap<String, Vec<Entry>>,
    /// By key.
    pub approvals: BTreeMap<String, Vec<Approval>>,
    /// Keys that have, or had, a case.
    pub cases: BTreeSet<String>,
    /// Keys that a person gave up.
    pub abandoned: BTreeSet<String>,
    /// Times in which nothing may be sent: a copy that nobody has adopted.
    pub silences: Vec<Span>,
    /// Times in which a place sent whose last commits were lost with it.
    pub lost_checkpoints: Vec<Span>,
    /// Most requests at once by destination, and how many may be.
    pub in_flight: BTreeMap<String, (usize, usize)>,
    /// What an actor saw that must not be: key, invariant, words.
    pub seen: Vec<(String, &'static str, String)>,
    /// How far the ledger's clock may stand from the destinations'.
    pub clock_slack_us: i64,
}
