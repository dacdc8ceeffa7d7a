//! Audit: everything that proves what happened to a command, with its verified chain.

use super::access::{Caller, Capability, as_owner, key_of, tenant_of};
use super::catalog;
use super::command::{self, Command};
use super::journal::{self, Stored};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::key::uuid_text;
use command_ledger_domain::status::CaseReason;
use pgrx::pg_sys::Datum;

/// The parts that are plain rows, as the server writes them. No lease token stands in any of them.
static PARTS: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT],
    "SELECT pg_catalog.jsonb_build_object( \
       'params', c.params, 'result', c.result, 'refs', c.refs, 'proposal', c.proposal, 'run_id', c.run_id, \
       'step_id', c.step_id, 'workflow_version', c.workflow_version, 'redacted_at', c.redacted_at, \
       'approvals', coalesce((SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( \
           'role', a.role, 'approver', a.approver, 'granted_at', a.granted_at, 'expires_at', a.expires_at, \
           'revoked_at', a.revoked_at, 'note', a.note, 'intent_hash', pg_catalog.encode(a.intent_hash, 'hex')) \
           ORDER BY a.seq) FROM command_ledger.approval a \
           WHERE a.tenant = c.tenant AND a.idempotency_key = c.idempotency_key), '[]'), \
       'cases', coalesce((SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object( \
           'reason', r.reason, 'attempt', r.attempt, 'opened_at', r.opened_at, 'closed_at', r.closed_at, \
           'closed_by', r.closed_by, 'finding', r.finding, 'owner', r.owner, \
           'assigned_at', pg_catalog.to_jsonb(r) -> 'assigned_at', 'lookups_done', r.lookups_done, \
           'next_lookup_at', r.next_lookup_at, 'last_lookup', r.last_lookup, 'evidence', r.evidence) ORDER BY r.seq) \
           FROM command_ledger.reconciliation_case r \
           WHERE r.tenant = c.tenant AND r.idempotency_key = c.idempotency_key), '[]')) \
      FROM command_ledger.command c WHERE c.tenant = $1 AND c.idempotency_key = $2",
);

/// Who may see the proof: whoever audits, operates or approves there. A proposer reads receipts.
const READERS: &[Capability] = &[Capability::Audit, Capability::Operate, Capability::Approve];

/// The command and its journal, for a reader who may have them (CL011, 42501).
pub fn open(
    caller: &Caller,
    connection: &Connection,
    tenant: &str,
    key: &str,
) -> Result<(Command, Vec<Stored>), LedgerError> {
    caller.require_any(connection, READERS, tenant, None)?;
    let command = command::read(connection, tenant, key)?.ok_or_else(command::no_such_command)?;
    caller.require_any(connection, READERS, tenant, Some(&command.command_type))?;
    let entries = journal::read(connection, tenant, key)?;
    Ok((command, entries))
}

fn text(value: impl Into<String>) -> Json<'static> {
    Json::String(value.into().into())
}

fn maybe(value: Option<impl Into<String>>) -> Json<'static> {
    value.map_or(Json::Null, text)
}

fn int(value: i64) -> Json<'static> {
    Json::Number(value.to_string().into())
}

fn object<const N: usize>(members: [(&'static str, Json<'static>); N]) -> Json<'static> {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// The whole chain, every hashed part as it was hashed: whoever has this document can compute it again (the record
/// that is hashed is described at [`command_ledger_domain::hash::journal_hash`]). The mark of a lease is a digest: it
/// names a token and cannot be used as one.
fn journal_of(command: &Command, entries: &[Stored]) -> Json<'static> {
    let first = journal::First::of(command, entries);
    let mut all = vec![object([
        ("seq", int(0)),
        ("kind", text(journal::REGISTER)),
        ("at_us", int(command.registered_us)),
        ("from", Json::Null),
        ("to", text(first.to)),
        ("attempt", int(0)),
        ("actor", text(command.proposer.clone())),
        ("stated_actor", Json::Null),
        ("detail", text(first.detail.clone())),
        ("hash", text(hex(&first.hash(command)))),
    ])];
    all.extend(entries.iter().map(|e| {
        object([
            ("seq", int(e.seq.into())),
            ("kind", text(e.kind.clone())),
            ("at_us", int(e.at_us)),
            ("from", text(e.from.clone())),
            ("to", text(e.to.clone())),
            ("attempt", int(e.attempt.into())),
            ("actor", text(e.actor.clone())),
            ("stated_actor", maybe(e.stated.clone())),
            ("detail", e.detail.clone().unwrap_or(Json::Null)),
            ("hash", maybe(e.hash.map(|h| hex(&h)))),
        ])
    }));
    Json::Array(all)
}

/// `evidence(key, tenant)`
pub fn evidence(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    as_owner(call, |caller, connection| {
        let (command, entries) = open(caller, connection, tenant, key)?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        let parts = PARTS.first(connection, &[Arg::Text(tenant), Arg::Text(key)])?;
        let parts = parts.map(|row| row.json(0)).transpose()?.flatten().unwrap_or(Json::Null);
        let live = &command.live;
        let chain = match journal::verify(&command, &entries) {
            Ok(()) => object([("verified", Json::Bool(true)), ("why", Json::Null)]),
            Err(why) => object([("verified", Json::Bool(false)), ("why", text(why))]),
        };
        let mut proof = vec![
            ("command_id".into(), text(uuid_text(&command.id()))),
            ("tenant".into(), text(tenant)),
            ("idempotency_key".into(), text(key)),
            ("command_type".into(), text(command.command_type.clone())),
            ("type_version".into(), int(command.type_version.into())),
            ("destination".into(), text(operation.destination.clone())),
            ("destination_key".into(), text(command.destination_key())),
            ("status".into(), text(live.status.as_str())),
            ("attempt".into(), int(live.attempt.into())),
            ("maybe_sent".into(), Json::Bool(live.maybe_sent)),
            ("error".into(), maybe(live.error.map(|e| e.as_str()))),
            ("error_message".into(), maybe(live.error_message.clone())),
            ("proposer".into(), text(command.proposer.clone())),
            ("params_hash".into(), text(hex(&command.params_hash))),
            ("intent_hash".into(), text(hex(&command.intent_hash))),
            ("request_digest".into(), maybe(live.request_digest.map(|d| hex(&d)))),
            ("destination_record_id".into(), maybe(command.record_id.clone())),
            ("chain".into(), chain),
            ("journal".into(), journal_of(&command, &entries)),
        ];
        if let Json::Object(members) = parts {
            proof.extend(members);
        }
        let proof = Json::Object(proof);
        Ok(connection.for_caller(|| Some(jsonb::to_datum(&proof))))
    })
}

/// `verify_journal(key, tenant)`
pub fn verify_journal(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    as_owner(call, |caller, connection| {
        let (command, entries) = open(caller, connection, tenant, key)?;
        Ok(Some(Datum::from(journal::verify(&command, &entries).is_ok())))
    })
}

/// `reason_in_words(reason)`
pub fn reason_in_words(call: &Call) -> Result<Option<Datum>, LedgerError> {
    Ok(call.text(0).and_then(CaseReason::parse).map(|reason| datum::text(reason.in_words())))
}

crate::sql_function!(ledger_evidence, pg_finfo_ledger_evidence, evidence);
crate::sql_function!(ledger_verify_journal, pg_finfo_ledger_verify_journal, verify_journal);
crate::sql_function!(ledger_reason_in_words, pg_finfo_ledger_reason_in_words, reason_in_words);
