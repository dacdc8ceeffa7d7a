//! The journal: entries chained by hash, and the check of a chain. Entry 0 is the command row itself.

use super::batch::Actor;
use super::command::{Command, HeldRows};
use super::rows;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, BYTEA, Connection, INT, Mode, Statement, TEXT};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::{JournalEntry, hex, journal_hash, journal_start};
use command_ledger_domain::json::Json;
use command_ledger_domain::status::Status;

/// Kind of entry 0, which is the command row itself.
pub const REGISTER: &str = "register";
/// Kind of the entry that says that payload was removed.
pub const REDACT: &str = "redact";
/// Kind of the entry that says that an edited definition changed what would be sent, and so the intent hash.
pub const INTENT_CHANGED: &str = "intent_changed";

/// One entry to be written.
pub struct Row {
    pub tenant: String,
    pub key: String,
    pub seq: i32,
    pub attempt: i32,
    pub at_us: i64,
    pub from: Status,
    pub to: Status,
    pub kind: &'static str,
    pub actor: String,
    pub stated: Option<String>,
    pub detail: Option<String>,
    pub hash: [u8; 32],
}

impl Row {
    /// The entry that follows the command's last one.
    #[allow(clippy::too_many_arguments, reason = "an entry has this many facts")]
    pub fn chained(
        command: &Command,
        at_us: i64,
        from: Status,
        to: Status,
        attempt: i32,
        kind: &'static str,
        actor: &Actor,
        detail: Option<&Json>,
    ) -> Result<Self, LedgerError> {
        let seq = command.live.seq.checked_add(1).ok_or_else(|| defect("the journal of a command is full"))?;
        let detail = detail.map(canonical).transpose()?;
        let hash = journal_hash(
            &command.live.head,
            &JournalEntry {
                seq,
                kind,
                from: Some(from.as_str()),
                to: to.as_str(),
                attempt,
                actor: &actor.role,
                stated_actor: actor.stated.as_deref(),
                at_us,
                detail: detail.as_deref(),
            },
        );
        Ok(Self {
            tenant: command.tenant.clone(),
            key: command.key.clone(),
            seq,
            attempt,
            at_us,
            from,
            to,
            kind,
            actor: actor.role.clone(),
            stated: actor.stated.clone(),
            detail,
            hash,
        })
    }
}

/// Hash of entry 0. Its detail is the pair of content hashes, so that what was registered is part of the chain.
pub fn first_hash(
    command_id: &[u8; 16],
    proposer: &str,
    at_us: i64,
    to: Status,
    params_hash: &[u8],
    intent_hash: &[u8],
) -> [u8; 32] {
    chain_first(command_id, proposer, at_us, to.as_str(), &content(&hex(params_hash), &hex(intent_hash)))
}

fn content(params_hash: &str, intent_hash: &str) -> String {
    format!("{params_hash}:{intent_hash}")
}

fn chain_first(command_id: &[u8; 16], proposer: &str, at_us: i64, to: &str, detail: &str) -> [u8; 32] {
    journal_hash(
        &journal_start(command_id),
        &JournalEntry {
            seq: 0,
            kind: REGISTER,
            from: None,
            to,
            attempt: 0,
            actor: proposer,
            stated_actor: None,
            at_us,
            detail: Some(detail),
        },
    )
}

/// Entry 0 as it was when it was chained: a revision or an edited definition replaced the content hashes in the row
/// since, and the journal remembers the first ones.
pub struct First<'a> {
    /// What was registered, in lower-case hexadecimal.
    pub params_hash: String,
    /// What would have been executed.
    pub intent_hash: String,
    /// The status that it was registered with.
    pub to: &'a str,
    /// Its hashed detail.
    pub detail: String,
}

impl<'a> First<'a> {
    /// Read from the command and its entries.
    pub fn of(command: &'a Command, entries: &'a [Stored]) -> Self {
        let change = content_changes(entries).next();
        let original = |name: &str, now: &[u8; 32]| remembered(change, name, now);
        let params_hash = original("old_params_hash", &command.params_hash);
        let intent_hash = original("old_intent_hash", &command.intent_hash);
        Self {
            detail: content(&params_hash, &intent_hash),
            params_hash,
            intent_hash,
            to: entries.first().map_or(command.live.status.as_str(), |e| e.from.as_str()),
        }
    }

    /// Its place in the chain.
    pub fn hash(&self, command: &Command) -> [u8; 32] {
        chain_first(&command.id(), &command.proposer, command.registered_us, self.to, &self.detail)
    }
}

/// The details of the entries that replaced content hashes, in order.
fn content_changes(entries: &[Stored]) -> impl DoubleEndedIterator<Item = &Json<'static>> {
    entries.iter().filter_map(|e| e.detail.as_ref()).filter(|d| d.get("old_intent_hash").is_some())
}

/// A hash that a change wrote down, or what the row holds where nothing changed.
fn remembered(change: Option<&Json>, name: &str, now: &[u8; 32]) -> String {
    change.and_then(|d| d.get(name)).and_then(Json::as_str).map_or_else(|| hex(now), str::to_owned)
}

static OWN_HEAD: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, BYTEA],
    "UPDATE command_ledger.command c SET journal_seq=$3, journal_head=$4 WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

static QUEUED_HEAD: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, BYTEA],
    "UPDATE command_ledger.outbox o SET journal_seq=$3, journal_head=$4 WHERE o.tenant = $1 AND o.idempotency_key = $2",
);

/// Appends an entry that is no transition ([`REDACT`], [`INTENT_CHANGED`]) to a locked command, and moves its head.
pub fn note(
    connection: &Connection,
    command: &mut Command,
    at_us: i64,
    kind: &'static str,
    actor: &Actor,
    detail: Option<&Json>,
) -> Result<(), LedgerError> {
    let (status, attempt) = (command.live.status, command.live.attempt);
    let row = Row::chained(command, at_us, status, status, attempt, kind, actor, detail)?;
    rows::insert_events(connection, std::slice::from_ref(&row))?;
    let head = if command.queued.is_some() { &QUEUED_HEAD } else { &OWN_HEAD };
    head.execute(
        connection,
        &[Arg::Text(&command.tenant), Arg::Text(&command.key), Arg::Int(row.seq), Arg::Bytes(&row.hash)],
    )?;
    command.live.seq = row.seq;
    command.live.head = row.hash;
    command.held_rows = HeldRows::default();
    Ok(())
}

/// The detail of an entry that replaces the content hashes of a command's row. [`verify`] reads it.
pub fn content_change(command: &Command, params_hash: &[u8; 32], intent_hash: &[u8; 32]) -> Json<'static> {
    let text = |hash: &[u8; 32]| Json::String(hex(hash).into());
    Json::Object(vec![
        ("old_params_hash".into(), text(&command.params_hash)),
        ("old_intent_hash".into(), text(&command.intent_hash)),
        ("params_hash".into(), text(params_hash)),
        ("intent_hash".into(), text(intent_hash)),
    ])
}

static ENTRIES: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT],
    "SELECT e.seq, e.attempt, e.at, e.from_status::text, e.to_status::text, e.kind, e.actor, e.stated_actor, e.detail, e.hash \
       FROM command_ledger.command_event e WHERE e.tenant = $1 AND e.idempotency_key = $2 ORDER BY e.seq",
);

/// A stored entry.
pub struct Stored {
    pub seq: i32,
    pub attempt: i32,
    pub at_us: i64,
    pub from: String,
    pub to: String,
    pub kind: String,
    pub actor: String,
    pub stated: Option<String>,
    pub detail: Option<Json<'static>>,
    pub hash: Option<[u8; 32]>,
}

/// The stored entries of a command, from 1.
pub fn read(connection: &Connection, tenant: &str, key: &str) -> Result<Vec<Stored>, LedgerError> {
    ENTRIES
        .run(connection, &[Arg::Text(tenant), Arg::Text(key)], 0)?
        .iter()
        .map(|row| {
            Ok(Stored {
                seq: row.int(0).unwrap_or(0),
                attempt: row.int(1).unwrap_or(0),
                at_us: row.time(2).unwrap_or(0),
                from: row.text_or_empty(3),
                to: row.text_or_empty(4),
                kind: row.text_or_empty(5),
                actor: row.text_or_empty(6),
                stated: row.text(7),
                detail: row.json(8)?,
                hash: row.hash(9),
            })
        })
        .collect()
}

/// Checks the chain from entry 0 to the head: nothing missing, nothing changed, nothing added. `Err` says in words
/// where it breaks.
pub fn verify(command: &Command, entries: &[Stored]) -> Result<(), String> {
    // What the last change wrote is what the row must hold since.
    let last_change = content_changes(entries).next_back();
    for (name, now) in [("params_hash", &command.params_hash), ("intent_hash", &command.intent_hash)] {
        if remembered(last_change, name, now) != hex(now) {
            return Err(format!("the {name} of the command is not the one that its last change wrote"));
        }
    }
    let mut head = First::of(command, entries).hash(command);
    for (i, entry) in entries.iter().enumerate() {
        if usize::try_from(entry.seq) != Ok(i + 1) {
            return Err(format!("entry {} is missing", i + 1));
        }
        let detail = entry.detail.as_ref().map(canonical).transpose().map_err(|e| e.message)?;
        head = journal_hash(
            &head,
            &JournalEntry {
                seq: entry.seq,
                kind: &entry.kind,
                from: Some(&entry.from),
                to: &entry.to,
                attempt: entry.attempt,
                actor: &entry.actor,
                stated_actor: entry.stated.as_deref(),
                at_us: entry.at_us,
                detail: detail.as_deref(),
            },
        );
        if entry.hash != Some(head) {
            return Err(format!("entry {} does not follow from the one before it", entry.seq));
        }
    }
    if i32::try_from(entries.len()) != Ok(command.live.seq) {
        return Err(format!("the command counts {} entries, the journal holds {}", command.live.seq, entries.len()));
    }
    if head != command.live.head {
        return Err("the last entry is not the one that the command names".to_owned());
    }
    Ok(())
}
