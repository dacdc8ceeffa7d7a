//! Command types and destinations as the functions and the relay use them: parsed once per backend and kept. While no
//! session has written a definition they are used without looking (see [`crate::pg::watch`]); after that a row is
//! recognised by what never changes for it (table, name, version or revision, moment of definition), so that neither a
//! rolled-back definition nor a recreated extension can leave a stale one.

use crate::pg::spi::{Arg, Connection, INT, Mode, Row, Statement, TEXT};
use crate::pg::watch;
use command_ledger_domain::approval::ApprovalRule;
use command_ledger_domain::canonical::Pointer;
use command_ledger_domain::config::{self, CommandTypePolicy, DestinationConfig, Effective, LaneOnFailure, Limits};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;
use command_ledger_domain::lookup::LookupPolicy;
use command_ledger_domain::retry::{RetryPolicy, window_end_us};
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::rc::Rc;

/// What identifies one version of a type together with one revision of its destination.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag {
    table: Oid,
    version: i32,
    type_defined_us: i64,
    revision: i32,
    destination_defined_us: i64,
}

/// One version of a command type, joined with its destination as it is now.
pub struct Operation {
    pub command_type: String,
    pub version: i32,
    pub destination: String,
    pub policy: CommandTypePolicy,
    pub effective: Effective,
    /// Digest of everything that decides what is sent; part of the intent hash.
    pub request_config_digest: [u8; 32],
    pub immaterial: Vec<Pointer>,
}

/// Most operations kept per backend; beyond, the cache starts anew.
const CACHE_LIMIT: usize = 1_000;

/// Operations by type name and version, each with what it was built from.
type Cache = HashMap<(String, i32), (Tag, Rc<Operation>)>;

/// Operations that are good without looking, by name and version (`None`: the newest), under one generation.
#[derive(Default)]
struct Known {
    generation: u64,
    operations: HashMap<(String, Option<i32>), Rc<Operation>>,
}

const DESTINATIONS: &CStr = c"destination";
const COMMAND_TYPES: &CStr = c"command_type";

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::new(HashMap::new());
    static KNOWN: RefCell<Known> = RefCell::default();
    /// Destinations, good under one generation.
    static REACHED: RefCell<(u64, HashMap<String, Rc<Destination>>)> = RefCell::default();
}

macro_rules! operation_columns {
    () => {
        "SELECT t.version, t.destination, t.tableoid, t.defined_at, d.revision, d.defined_at \
           FROM command_ledger.command_type t JOIN command_ledger.destination d ON (d.name = t.destination) "
    };
}

static NEWEST: Statement = Statement::new(
    Mode::Latest,
    &[TEXT],
    concat!(operation_columns!(), "WHERE t.name = $1 ORDER BY t.version DESC LIMIT 1"),
);

static VERSION: Statement =
    Statement::new(Mode::Latest, &[TEXT, INT], concat!(operation_columns!(), "WHERE t.name = $1 AND t.version = $2"));

static DOCUMENTS: Statement = Statement::new(
    Mode::Latest,
    &[TEXT, INT],
    "SELECT t.policy, d.config FROM command_ledger.command_type t \
       JOIN command_ledger.destination d ON (d.name = t.destination) WHERE t.name = $1 AND t.version = $2",
);

/// CL003 for a type.
pub fn unknown_type() -> LedgerError {
    LedgerError::new(Code::UnknownName, "no such command type").hint(
        "Define it with command_ledger.define_command_type(name, policy); the table command_type lists what there is.",
    )
}

/// CL003 for a destination.
pub fn unknown_destination() -> LedgerError {
    LedgerError::new(Code::UnknownName, "no such destination").hint(
        "Define it with command_ledger.define_destination(name, config); the table destination lists what there is.",
    )
}

fn resolve(connection: &Connection, name: &str, row: Option<Row>) -> Result<Rc<Operation>, LedgerError> {
    let row = row.ok_or_else(unknown_type)?;
    let tag = Tag {
        version: row.int(0).unwrap_or(0),
        table: row.oid(2).unwrap_or(Oid::INVALID),
        type_defined_us: row.time(3).unwrap_or(0),
        revision: row.int(4).unwrap_or(0),
        destination_defined_us: row.time(5).unwrap_or(0),
    };
    let key = (name.to_owned(), tag.version);
    if let Some(known) = CACHE.with_borrow(|c| c.get(&key).filter(|(t, _)| *t == tag).map(|(_, o)| Rc::clone(o))) {
        return Ok(known);
    }
    let destination = row.text_or_empty(1);
    let documents = DOCUMENTS.first(connection, &[Arg::Text(name), Arg::Int(tag.version)])?.ok_or_else(unknown_type)?;
    let missing = || LedgerError::new(Code::InvalidDefinition, "a definition has no document");
    let policy = CommandTypePolicy::parse(&documents.json(0)?.ok_or_else(missing)?)?;
    let config = DestinationConfig::parse(&documents.json(1)?.ok_or_else(missing)?)?;
    let operation = Rc::new(build(name, tag.version, &destination, policy, &config)?);
    CACHE.with_borrow_mut(|c| {
        if c.len() >= CACHE_LIMIT {
            c.clear();
        }
        c.insert(key, (tag, Rc::clone(&operation)));
    });
    Ok(operation)
}

/// Joins a type's policy with its destination.
pub fn build(
    name: &str,
    version: i32,
    destination: &str,
    policy: CommandTypePolicy,
    config: &DestinationConfig,
) -> Result<Operation, LedgerError> {
    let effective = config::effective(config, &policy)?;
    Ok(Operation {
        command_type: name.to_owned(),
        version,
        destination: destination.to_owned(),
        request_config_digest: effective.request_config_digest(),
        immaterial: policy.immaterial.iter().map(|p| Pointer::parse(p)).collect::<Result<_, _>>()?,
        policy,
        effective,
    })
}

/// The newest version of a command type (CL003).
pub fn newest(connection: &Connection, name: &str) -> Result<Rc<Operation>, LedgerError> {
    known(name, None, || resolve(connection, name, NEWEST.first(connection, &[Arg::Text(name)])?))
}

/// One version of a command type (CL003).
pub fn version(connection: &Connection, name: &str, version: i32) -> Result<Rc<Operation>, LedgerError> {
    let read = || VERSION.first(connection, &[Arg::Text(name), Arg::Int(version)]);
    known(name, Some(version), || resolve(connection, name, read()?))
}

/// The operation as it was read last, while no definition was written since; otherwise it is read.
fn known(
    name: &str,
    version: Option<i32>,
    read: impl FnOnce() -> Result<Rc<Operation>, LedgerError>,
) -> Result<Rc<Operation>, LedgerError> {
    let Some(generation) = watch::generation(&[DESTINATIONS, COMMAND_TYPES]) else { return read() };
    let found = KNOWN.with_borrow_mut(|known| {
        if known.generation != generation || known.operations.len() >= CACHE_LIMIT {
            known.operations.clear();
            known.generation = generation;
        }
        known.operations.get(&(name.to_owned(), version)).map(Rc::clone)
    });
    if let Some(operation) = found {
        return Ok(operation);
    }
    let operation = read()?;
    KNOWN.with_borrow_mut(|known| {
        if known.generation == generation {
            known.operations.insert((name.to_owned(), version), Rc::clone(&operation));
        }
    });
    Ok(operation)
}

/// What a claim needs to know of a destination.
pub struct Destination {
    pub transport: String,
    pub limits: Limits,
    pub paused: bool,
}

static DESTINATION: Statement = Statement::new(
    Mode::Latest,
    &[TEXT],
    "SELECT d.paused_at IS NOT NULL, d.config FROM command_ledger.destination d WHERE d.name = $1",
);

/// A destination as it is now (CL003); kept like an operation.
pub fn destination(connection: &Connection, name: &str) -> Result<Rc<Destination>, LedgerError> {
    let generation = watch::generation(&[DESTINATIONS]);
    let known =
        REACHED.with_borrow(|(of, known)| if generation == Some(*of) { known.get(name).map(Rc::clone) } else { None });
    if let Some(destination) = known {
        return Ok(destination);
    }
    let row = DESTINATION.first(connection, &[Arg::Text(name)])?.ok_or_else(unknown_destination)?;
    let config = row.json(1)?.ok_or_else(unknown_destination)?;
    let transport = config.get("transport").and_then(Json::as_str).unwrap_or_default().to_owned();
    let destination = Rc::new(Destination { transport, limits: config::pace(&config)?.0, paused: row.bool(0) });
    if let Some(generation) = generation {
        REACHED.with_borrow_mut(|(of, known)| {
            if *of != generation || known.len() >= CACHE_LIMIT {
                known.clear();
                *of = generation;
            }
            known.insert(name.to_owned(), Rc::clone(&destination));
        });
    }
    Ok(destination)
}

/// What every writer of definitions says when it has written.
pub fn changed() {
    watch::changed(DESTINATIONS);
    watch::changed(COMMAND_TYPES);
}

impl Operation {
    /// How often and how soon attempts are repeated.
    pub fn retry(&self) -> RetryPolicy {
        let retry = &self.policy.retry;
        RetryPolicy {
            auto: retry.auto,
            max_attempts: i32::try_from(retry.max_attempts).unwrap_or(i32::MAX),
            base_ms: retry.base_ms,
            cap_ms: retry.cap_ms,
        }
    }

    /// What a send needs; none if the type asks for no approval at all.
    pub fn approval_rule(&self) -> Option<ApprovalRule> {
        self.policy.approval.as_ref().map(|a| ApprovalRule {
            approvers: u32::try_from(a.approvers).unwrap_or(1),
            ttl_ms: a.ttl_ms,
            separate_proposer: a.separate_proposer,
        })
    }

    /// How the destination is asked, if it can be.
    pub fn lookup_policy(&self) -> Option<LookupPolicy> {
        self.effective.lookup.as_ref().map(|l| LookupPolicy {
            settle_delay_ms: l.settle_delay_ms,
            agreeing: u32::try_from(l.agreeing).unwrap_or(u32::MAX),
            interval_ms: l.interval_ms,
            max_lookups: u32::try_from(l.max_lookups).unwrap_or(u32::MAX),
        })
    }

    /// Until when a repeat with the same key is recognised, for a first send at this moment; `None`: for ever.
    pub fn window_end_us(&self, first_sent_us: i64) -> Option<i64> {
        window_end_us(first_sent_us, self.effective.idempotency.window, self.effective.idempotency.margin_ms)
    }

    /// Whether the destination still deduplicates on the key at a moment.
    pub fn deduplicates(&self, first_sent_us: Option<i64>, now_us: i64) -> bool {
        self.effective.idempotency.mode != config::IdempotencyMode::None
            && first_sent_us
                .is_none_or(|first| command_ledger_domain::retry::window_open(self.window_end_us(first), now_us))
    }

    /// Whether a failed command lets its lane go on.
    pub fn skips_lane(&self) -> bool {
        self.policy.lane_on_failure == LaneOnFailure::Skip
    }
}
