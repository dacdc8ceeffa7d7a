//! Prepare: registering an intent, in the caller's transaction, before anything is sent.
//!
//! An existing key is compared first, under its own row's type version; schema, policy and look-alikes run for new
//! keys only, so that a changed definition never turns an honest repeat into a conflict.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::catalog::{self, Operation};
use super::command::{self, Command, Lease, Live, Queued};
use super::receipt::{self, Outcome};
use super::{fence, journal, lane, lookalike, predicate, requests, rows, store};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb::JsonbArg;
use crate::pg::report::defect;
use crate::pg::spi::{Arg, BIGINT, BOOL, BYTEA, Connection, INT, JSONB, Mode, Statement, TEXT, TIME};
use crate::pg::table::Inserted;
use crate::pg::transaction;
use crate::relay::{counters, wake};
use command_ledger_domain::canonical::canonical;
use command_ledger_domain::config::Transport;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::{HASH_VERSION, IntentParts, intent_hash, params_hash};
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::policy::{self, Predicate};
use command_ledger_domain::retry::{Deadline, plus_ms};
use command_ledger_domain::status::{Status, registered};
use pgrx::pg_sys::Datum;
use std::rc::Rc;

/// What the caller of register() says.
pub struct Intent<'a> {
    pub tenant: &'a str,
    pub key: &'a str,
    pub command_type: &'a str,
    pub params: JsonbArg,
    pub run_id: Option<&'a str>,
    pub step_id: Option<&'a str>,
    pub workflow_version: Option<&'a str>,
    pub refs: Option<JsonbArg>,
    pub proposal: Option<JsonbArg>,
    pub ordering_key: Option<&'a str>,
    pub not_before_us: Option<i64>,
    pub deadline_us: Option<i64>,
    pub distinct_from: Option<&'a str>,
}

static INSERT: Statement = Statement::new(
    Mode::Write,
    &[
        TEXT, TEXT, TIME, TIME, TIME, TIME, TEXT, INT, INT, INT, TEXT, BYTEA, BYTEA, BYTEA, TEXT, JSONB, TEXT, TEXT,
        TEXT, TEXT, JSONB, JSONB, BIGINT, BOOL,
    ],
    "INSERT INTO command_ledger.command \
            (tenant, idempotency_key, registered_at, updated_at, not_before, deadline, lookalike_until, status, type_version, \
             hash_version, approvals_required, command_type, params_hash, intent_hash, journal_head, proposer, params, \
             run_id, step_id, workflow_version, ordering_key, refs, proposal, retain_ms, deadline_relative) \
     VALUES ($1, $2, $3, $3, $4, $5, $6, $7::command_ledger.command_status, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
             $17, $18, $19, $20, $21, $22, $23, $24) \
     ON CONFLICT (tenant, idempotency_key) DO NOTHING RETURNING true",
);

/// What registering came to.
pub struct Registered {
    pub command: Command,
    pub operation: Rc<Operation>,
    pub outcome: Outcome,
}

/// Compares a repeat with what is stored: the same content is a replay, other content a conflict (CL001).
fn compare(
    connection: &Connection,
    existing: Command,
    intent: &Intent,
    tree: &Json,
) -> Result<Registered, LedgerError> {
    let operation = catalog::version(connection, &existing.command_type, existing.type_version)?;
    let same = existing.command_type == intent.command_type
        && params_hash(intent.tenant, &existing.command_type, tree, &operation.immaterial)? == existing.params_hash;
    if same {
        counters::count(counters::Counter::ReplaysAnswered);
        return Ok(Registered { command: existing, operation, outcome: Outcome::Replayed });
    }
    counters::count(counters::Counter::ConflictsRefused);
    let what =
        if existing.command_type == intent.command_type { "other material parameters" } else { "another command type" };
    Err(LedgerError::new(Code::IdempotencyConflict, format!("the idempotency key is already registered with {what}"))
        .detail(format!(
            "The command stands at {} (attempt {}), registered as {} version {}.",
            existing.live.status, existing.live.attempt, existing.command_type, existing.type_version
        ))
        .hint(
            "A repeat must carry the same parameters. For a new intent use a new key; to change a command that was never attempted use revise().",
        ))
}

/// What policy says of new params.
pub struct Verdict {
    pub params_hash: [u8; 32],
    pub intent_hash: [u8; 32],
    pub approvals_required: i32,
}

/// Checks params against shape, schema and policy, and computes the hashes. Used by register, revise and validate.
pub fn judge(
    operation: &Operation,
    tenant: &str,
    key: &str,
    params: &JsonbArg,
    tree: &Json,
) -> Result<Verdict, LedgerError> {
    if tree.as_object().is_none() {
        return Err(LedgerError::new(Code::InvalidParams, "params must be a JSON object")
            .detail("At: (the whole document)")
            .hint("Put the parameters into an object: {\"name\": value}."));
    }
    if let Some(schema) = &operation.policy.schema {
        schema.validate(tree)?;
    }
    if let Some(path) = &operation.policy.deny_when {
        let predicate = predicate::strict(params.datum(), path)?;
        if policy::deny(Some(predicate)) {
            return Err(LedgerError::new(Code::Denied, "the policy of this command type denies the command").detail(
                match predicate {
                    Predicate::Unknown => "deny_when could not be decided for these parameters (a field is missing or of another type), and an undecided gate stays shut.",
                    _ => "deny_when is true for these parameters.",
                },
            ).hint("Change the parameters, or ask an administrator about the policy of this type."));
        }
    }
    let approvals_required = match (&operation.policy.approval, operation.approval_rule()) {
        (Some(configured), Some(rule)) => {
            let when = configured.when.as_ref().map(|path| predicate::strict(params.datum(), path)).transpose()?;
            if policy::approval_needed(Some(&rule), when) {
                i32::try_from(rule.approvers).unwrap_or(1).max(1)
            } else {
                0
            }
        }
        _ => 0,
    };
    Ok(Verdict {
        params_hash: params_hash(tenant, &operation.command_type, tree, &operation.immaterial)?,
        intent_hash: intent_of(operation, tenant, key, tree)?,
        approvals_required,
    })
}

/// The intent hash of these params under this operation.
pub fn intent_of(operation: &Operation, tenant: &str, key: &str, tree: &Json) -> Result<[u8; 32], LedgerError> {
    let id = key::command_id(tenant, key);
    intent_hash(IntentParts {
        command_id: &key::uuid_text(&id),
        command_type: &operation.command_type,
        type_version: operation.version,
        destination: &operation.destination,
        request_config_digest: &operation.request_config_digest,
        params: tree,
    })
}

fn check_times(intent: &Intent, now_us: i64) -> Result<(), LedgerError> {
    if intent.deadline_us.is_some_and(|d| d <= now_us) {
        return Err(LedgerError::new(Code::InvalidArgument, "the deadline is already past")
            .hint("Give a deadline in the future, or none."));
    }
    if let (Some(not_before), Some(deadline)) = (intent.not_before_us, intent.deadline_us)
        && not_before >= deadline
    {
        return Err(LedgerError::new(Code::InvalidArgument, "not_before is not before the deadline")
            .hint("Between not_before and deadline there must be time for an attempt."));
    }
    Ok(())
}

/// Registers an intent: the original command for a known key, a new one otherwise.
pub fn register_intent(caller: &Caller, connection: &Connection, intent: &Intent) -> Result<Registered, LedgerError> {
    let tree = intent.params.tree()?;
    // A few times at most: the winner of a race may be gone again by the time it is read.
    for _ in 0..3 {
        if let Some(existing) = command::read_fresh(connection, intent.tenant, intent.key)? {
            return compare(connection, existing, intent, &tree);
        }
        if let Some(created) = create(caller, connection, intent, &tree)? {
            return Ok(created);
        }
    }
    Err(defect("a key was neither free nor taken"))
}

/// The record of a new command.
pub struct NewRow<'a> {
    pub tenant: &'a str,
    pub key: &'a str,
    pub now_us: i64,
    pub not_before_us: Option<i64>,
    pub deadline: Deadline,
    pub lookalike_until_us: Option<i64>,
    pub status: Status,
    pub type_version: i32,
    pub hash_version: i16,
    pub approvals_required: i16,
    pub command_type: &'a str,
    pub params_hash: &'a [u8; 32],
    pub intent_hash: &'a [u8; 32],
    pub head: &'a [u8; 32],
    pub proposer: &'a str,
    pub params: Datum,
    pub run_id: Option<&'a str>,
    pub step_id: Option<&'a str>,
    pub workflow_version: Option<&'a str>,
    pub ordering_key: Option<&'a str>,
    pub refs: Option<Datum>,
    pub proposal: Option<Datum>,
    pub retain_ms: Option<i64>,
}

/// Inserts a new record; says whether its key was free. Above READ COMMITTED the statement decides, because a key that
/// the transaction cannot see yet must end as a serialization failure.
fn insert(connection: &Connection, new: &NewRow) -> Result<bool, LedgerError> {
    if transaction::is_read_committed()
        && let Some(inserted) = store::insert_command(new)
    {
        return inserted.map(|inserted| inserted == Inserted::Yes);
    }
    let won = INSERT.first(
        connection,
        &[
            Arg::Text(new.tenant),
            Arg::Text(new.key),
            Arg::Time(new.now_us),
            Arg::or_null(new.not_before_us, Arg::Time),
            Arg::or_null(new.deadline.at_us, Arg::Time),
            Arg::or_null(new.lookalike_until_us, Arg::Time),
            Arg::Text(new.status.as_str()),
            Arg::Int(new.type_version),
            Arg::Int(new.hash_version.into()),
            Arg::Int(new.approvals_required.into()),
            Arg::Text(new.command_type),
            Arg::Bytes(new.params_hash),
            Arg::Bytes(new.intent_hash),
            Arg::Bytes(new.head),
            Arg::Text(new.proposer),
            Arg::Datum(new.params),
            Arg::or_null(new.run_id, Arg::Text),
            Arg::or_null(new.step_id, Arg::Text),
            Arg::or_null(new.workflow_version, Arg::Text),
            Arg::or_null(new.ordering_key, Arg::Text),
            Arg::or_null(new.refs, Arg::Datum),
            Arg::or_null(new.proposal, Arg::Datum),
            Arg::or_null(new.retain_ms, Arg::Big),
            Arg::Bool(new.deadline.relative),
        ],
    )?;
    Ok(won.is_some())
}

/// Tells the relay of a new command: at once if it has something to send, else of the moment at which something is due.
/// Workers come for the commands of pull destinations by themselves; of those only the deadline is the relay's.
fn wake_for(operation: &Operation, command: &Command, now_us: i64) {
    let due_us = match (&operation.effective.transport, &command.queued) {
        (Transport::Pull, _) | (_, None) => None,
        (_, Some(queued)) => Some(queued.due_us),
    };
    match (due_us, command.deadline_us) {
        (Some(due_us), _) if due_us <= now_us => wake::at_commit(),
        (due_us, deadline_us) => due_us.into_iter().chain(deadline_us).for_each(wake::at),
    }
}

fn create(
    caller: &Caller,
    connection: &Connection,
    intent: &Intent,
    tree: &Json,
) -> Result<Option<Registered>, LedgerError> {
    let operation = catalog::newest(connection, intent.command_type)?;
    let now_us = datum::now_us();
    check_times(intent, now_us)?;
    operation.effective.idempotency.check_key(&key::destination_key(intent.tenant, intent.key))?;
    for document in [&intent.refs, &intent.proposal].into_iter().flatten() {
        // Bounded like everything that is stored.
        canonical(&document.tree()?)?;
    }
    let verdict = judge(&operation, intent.tenant, intent.key, &intent.params, tree)?;
    lookalike::check(connection, &operation, intent.key, &verdict.params_hash, intent.distinct_from, now_us)?;
    let proposer = caller.name();
    let to = registered(verdict.approvals_required > 0).to;
    let id = key::command_id(intent.tenant, intent.key);
    let head = journal::first_hash(&id, &proposer, now_us, to, &verdict.params_hash, &verdict.intent_hash);
    let mut deadline = Deadline::given(intent.deadline_us);
    if to == Status::Approved {
        deadline = deadline.counted_from(now_us, operation.policy.retry.deadline_ms);
    }
    if let Some(lane) = intent.ordering_key {
        lane::lock(intent.tenant, &operation.destination, lane);
    }
    let lookalike_until_us = operation.policy.lookalike.as_ref().map(|l| plus_ms(now_us, l.window_ms));
    let retention = &operation.policy.retention;
    let retain_ms = retention.payload_ms.into_iter().chain(retention.key_ms).min();
    let new = NewRow {
        tenant: intent.tenant,
        key: intent.key,
        now_us,
        not_before_us: intent.not_before_us,
        deadline,
        lookalike_until_us,
        status: to,
        type_version: operation.version,
        hash_version: HASH_VERSION,
        approvals_required: i16::try_from(verdict.approvals_required).unwrap_or(i16::MAX),
        command_type: &operation.command_type,
        params_hash: &verdict.params_hash,
        intent_hash: &verdict.intent_hash,
        head: &head,
        proposer: &proposer,
        params: intent.params.datum(),
        run_id: intent.run_id,
        step_id: intent.step_id,
        workflow_version: intent.workflow_version,
        ordering_key: intent.ordering_key,
        refs: intent.refs.as_ref().map(JsonbArg::datum),
        proposal: intent.proposal.as_ref().map(JsonbArg::datum),
        retain_ms,
    };
    if !insert(connection, &new)? {
        return Ok(None);
    }
    let mut command = Command {
        tenant: intent.tenant.to_owned(),
        key: intent.key.to_owned(),
        command_type: operation.command_type.clone(),
        type_version: operation.version,
        hash_version: i32::from(HASH_VERSION),
        registered_us: now_us,
        updated_us: now_us,
        not_before_us: intent.not_before_us,
        deadline_us: deadline.at_us,
        deadline_relative: deadline.relative,
        redacted: false,
        approvals_required: verdict.approvals_required,
        params_hash: verdict.params_hash,
        intent_hash: verdict.intent_hash,
        proposer,
        ordering_key: intent.ordering_key.map(str::to_owned),
        retain_ms,
        record_id: None,
        result: None,
        live: Live::registered(to, head),
        queued: None,
        held_rows: command::HeldRows::default(),
    };
    if let Some(lane) = intent.ordering_key {
        lane::enter(connection, intent.tenant, &operation.destination, lane, intent.key)?;
    }
    if to == Status::Approved {
        command.queued = Some(Queued {
            due_us: intent.not_before_us.unwrap_or(now_us).max(now_us),
            approved_until_us: None,
            identity: fence::own_tag(),
            lease: None::<Lease>,
            kept_record_id: None,
            absence_place: None,
        });
        rows::insert_queued(connection, &command, &operation.destination)?;
        wake_for(&operation, &command, now_us);
    } else {
        requests::insert(connection, intent.tenant, intent.key, now_us, deadline.at_us)?;
    }
    Ok(Some(Registered { command, operation, outcome: Outcome::Created }))
}

/// An optional name among the arguments, checked (22023).
pub fn named<'a>(call: &'a Call, argument: usize, name: &str) -> Result<Option<&'a str>, LedgerError> {
    let Some(text) = call.text(argument) else { return Ok(None) };
    if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
        return Err(LedgerError::new(
            Code::InvalidArgument,
            format!("{name} must have 1 to 255 bytes and no control characters"),
        )
        .detail(format!("It has {} bytes.", text.len()))
        .hint("Leave it out if there is none."));
    }
    Ok(Some(text))
}

/// Reads the arguments that register() and register_and_claim() share: type, key, params, and from `at` on the rest.
pub fn intent_from(call: &Call, at: usize) -> Result<Intent<'_>, LedgerError> {
    Ok(Intent {
        command_type: call.required_text(0, "command_type")?,
        key: key_of(call, 1)?,
        params: call.required_jsonb(2, "params")?,
        run_id: named(call, at, "run_id")?,
        step_id: named(call, at + 1, "step_id")?,
        workflow_version: named(call, at + 2, "workflow_version")?,
        refs: call.jsonb(at + 3),
        proposal: call.jsonb(at + 4),
        ordering_key: named(call, at + 5, "ordering_key")?,
        not_before_us: call.time_us(at + 6),
        deadline_us: call.time_us(at + 7),
        distinct_from: named(call, at + 8, "distinct_from")?,
        tenant: tenant_of(call, at + 9)?,
    })
}

/// `register(…)`
pub fn register(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let intent = intent_from(call, 3)?;
    as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Propose, intent.tenant, Some(intent.command_type))?;
        let done = register_intent(caller, connection, &intent)?;
        receipt::one(call, connection, &done.command, &done.operation.destination, done.outcome)
    })
}

crate::sql_function!(ledger_register, pg_finfo_ledger_register, register);
