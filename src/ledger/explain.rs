//! Audit: the story of a command for a person, from its journal. Deterministic wording, no payload values.

use super::access::{as_owner, key_of, tenant_of};
use super::approve;
use super::catalog::{self, Operation};
use super::command::Command;
use super::evidence;
use super::journal::{self, Stored};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, Mode, Statement, TEXT, TIME};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::status::{CaseReason, Status};
use pgrx::pg_sys::Datum;

static CLOCK: Statement = Statement::new(
    Mode::Snapshot,
    &[TIME],
    "SELECT pg_catalog.to_char($1 AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z'",
);

static NEXT_STEP: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT],
    "SELECT 'The last lookup said ' || q.last_lookup || '.', q.advice, q.suggested_next_step \
       FROM command_ledger.open_question q WHERE q.tenant = $1 AND q.idempotency_key = $2 LIMIT 1",
);

static APPROVE_CALL: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT, TEXT],
    "SELECT pg_catalog.format('SELECT command_ledger.approve(%L, %L, tenant => %L);', $2, $3, $1)",
);

static WAITS: Statement = Statement::new(
    Mode::Snapshot,
    &[TEXT, TEXT],
    "SELECT q.why FROM command_ledger.queued_work q WHERE q.tenant = $1 AND q.idempotency_key = $2 LIMIT 1",
);

fn when(connection: &Connection, at_us: i64) -> Result<String, LedgerError> {
    Ok(CLOCK.first(connection, &[Arg::Time(at_us)])?.map(|row| row.text_or_empty(0)).unwrap_or_default())
}

fn member<'a>(entry: &'a Stored, name: &str) -> Option<&'a str> {
    match entry.detail.as_ref()?.get(name)? {
        Json::String(text) | Json::Number(text) => Some(text),
        _ => None,
    }
}

/// What came back, or why nothing did, in brackets, where the journal knows it.
fn answer(entry: &Stored) -> String {
    match (member(entry, "http_status"), member(entry, "transport")) {
        (Some(status), _) => format!(" (HTTP {status})"),
        (None, Some(why)) => format!(" ({})", why.replace('_', " ")),
        (None, None) => String::new(),
    }
}

/// One entry in words.
fn sentence(entry: &Stored) -> String {
    let n = entry.attempt;
    let answer = answer(entry);
    let told = match entry.kind.as_str() {
        "claim" => format!("attempt {n} starts: its checkpoint is committed before the first byte leaves"),
        "confirm" => format!("attempt {n} succeeded{answer}"),
        "release" => format!("attempt {n} was given back, not sent"),
        "not_sent" => format!("attempt {n} had no effect{answer}: it may be made again"),
        "safe_repeat" => {
            format!(
                "attempt {n} ended without proof{answer}; the destination recognises a repeat, so the same bytes go again"
            )
        }
        "refused" => format!("attempt {n} was refused{answer}"),
        "uncertain" => format!("attempt {n} ended, and whether it had its effect is not known{answer}"),
        "lease_over" => format!("attempt {n} never reported back: whether it had its effect is not known"),
        "lookup_found" => match member(entry, "record_id") {
            Some(id) => format!("the destination was asked and has exactly one record with this key: {id}"),
            None => "the destination was asked and has exactly one record with this key".to_owned(),
        },
        "lookup_absent" => "the destination was asked and has no record with this key".to_owned(),
        "lookup_unclear" => "the destination was asked, and its answer decides nothing".to_owned(),
        "late_success" => "a success arrived late, from an older attempt".to_owned(),
        "late_failure" => "a failure arrived late, from an older attempt: noted, nothing changes".to_owned(),
        "duplicate_success" => "a second success arrived: there may be two records".to_owned(),
        "approve" => "approved".to_owned(),
        "reject" => "rejected".to_owned(),
        "revoke_approval" => "the approvals were taken back".to_owned(),
        "approval_lapsed" => "the approval is no longer valid".to_owned(),
        "revise" => {
            format!("revised{}: approvals given before are void", content(entry))
        }
        journal::INTENT_CHANGED => {
            format!("the definition of the request was edited{}: approvals given before are void", content(entry))
        }
        journal::REDACT => "its contents were removed; key, hashes and outcome stay".to_owned(),
        "cancel" => "cancel was asked".to_owned(),
        "deadline_over" => "the deadline passed".to_owned(),
        "budget_over" => format!("no further attempt is made{answer}"),
        "window_over" => "the time in which the destination recognises a repeat is over".to_owned(),
        "request_changed" => "the request would differ from the one that was sent first".to_owned(),
        "tampered" => "the stored parameters do not match their hash".to_owned(),
        "fence" | "adopted" => "another copy of this ledger may have sent it".to_owned(),
        "reconcile_found" => "a person found its record".to_owned(),
        "reconcile_not_found" => "a person found that nothing was created".to_owned(),
        "abandon" => "a person gave it up".to_owned(),
        "retry" => "an operator asked for one more attempt".to_owned(),
        other => other.replace('_', " "),
    };
    let who = match &entry.stated {
        Some(person) => format!(" by {} for {person}", entry.actor),
        None if entry.actor.starts_with("command_ledger") => String::new(),
        None => format!(" by {}", entry.actor),
    };
    let moved = if entry.from == entry.to { String::new() } else { format!(" -> {}", entry.to) };
    format!("{told}{who}{moved}")
}

/// The content that an entry left the command with.
fn content(entry: &Stored) -> String {
    match (member(entry, "params_hash"), member(entry, "intent_hash")) {
        (Some(params), Some(intent)) => format!(", content {}, intent {}", short(params), short(intent)),
        _ => String::new(),
    }
}

/// The beginning of a hash, enough to compare by eye.
fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// How it stands, in words.
fn standing(command: &Command) -> String {
    let live = &command.live;
    let record = command.record_id.as_ref().map_or_else(String::new, |id| format!(", record {id}"));
    let question =
        live.open_case.map_or_else(String::new, |case| format!(" But a question is open: {}", case.in_words()));
    match live.status {
        Status::Confirmed => {
            format!("Confirmed: the effect is proven{record}, after {} attempt(s).{question}", live.attempt)
        }
        Status::Cancelled if live.attempt == 0 => format!("Cancelled: it was never sent.{question}"),
        Status::Cancelled => format!(
            "Cancelled: of {} attempt(s) before that, each is known to have had no effect.{question}",
            live.attempt
        ),
        Status::Failed => format!(
            "Failed ({}){}: nothing more is done unless an operator retries it.{question}",
            live.error.map_or("no class", |e| e.as_str()),
            live.error_message.as_ref().map_or_else(String::new, |m| format!(", {m}"))
        ),
        Status::Planned if live.maybe_sent => {
            "Planned: it waits for approval; an earlier attempt may have had its effect.".to_owned()
        }
        Status::Planned if live.attempt == 0 => "Planned: it waits for approval; nothing was sent.".to_owned(),
        Status::Planned => "Planned: it waits for approval; no attempt so far had an effect.".to_owned(),
        Status::Approved if live.maybe_sent => {
            "Approved: it will be sent again; an earlier attempt may have had its effect, and the rules permit the repeat."
                .to_owned()
        }
        Status::Approved => "Approved: it will be sent when it is due.".to_owned(),
        Status::Dispatched => format!("Dispatched: attempt {} is under way.", live.attempt),
        Status::NeedsReconciliation => {
            let reason = live.open_case.map_or("", CaseReason::in_words);
            let known = if live.maybe_sent { "whether it happened is not known" } else { "a person must decide" };
            format!("Needs reconciliation: {known}. {reason}")
        }
    }
}

/// What an open command waits for, and what somebody can do about it.
fn outlook(connection: &Connection, operation: &Operation, command: &Command) -> Result<Vec<String>, LedgerError> {
    let key = [Arg::Text(&command.tenant), Arg::Text(&command.key)];
    let mut lines = Vec::new();
    match command.live.status {
        Status::Planned => {
            let standing = approve::standing(connection, operation, command, datum::now_us())?;
            lines.push(format!("Approvals missing: {}.", standing.map_or(0, |quorum| quorum.missing)));
            let [tenant, key] = key;
            let intent = format!("\\x{}", hex(&command.intent_hash));
            lines.extend(
                APPROVE_CALL.first(connection, &[tenant, key, Arg::Text(&intent)])?.and_then(|row| row.text(0)),
            );
        }
        Status::Approved | Status::Dispatched => {
            lines.extend(WAITS.first(connection, &key)?.and_then(|row| row.text(0)));
            if let Some(until_us) = command.queued.as_ref().and_then(|q| q.approved_until_us) {
                lines.push(format!("Its approval ends at {}.", when(connection, until_us)?));
            }
        }
        _ => {}
    }
    if let (Some(deadline_us), false) = (command.deadline_us, command.live.status.is_settled()) {
        lines.push(format!("Its deadline is {}.", when(connection, deadline_us)?));
    }
    if let Some(row) = NEXT_STEP.first(connection, &[Arg::Text(&command.tenant), Arg::Text(&command.key)])? {
        lines.extend([row.text(0), row.text(1), row.text(2)].into_iter().flatten());
    }
    Ok(lines)
}

/// `explain(key, tenant)`
pub fn explain(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    let story = as_owner(call, |caller, connection| {
        let (command, entries) = evidence::open(caller, connection, tenant, key)?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        let first = journal::First::of(&command, &entries);
        let mut lines = vec![
            format!("Command {key} of tenant {tenant}: {} version {}", command.command_type, command.type_version),
            format!("for destination {}, known there as {}", operation.destination, command.destination_key()),
            String::new(),
            format!(
                "{}  registered by {}, content {}, intent {}",
                when(connection, command.registered_us)?,
                command.proposer,
                short(&first.params_hash),
                short(&first.intent_hash)
            ),
        ];
        for entry in &entries {
            lines.push(format!("{}  {}", when(connection, entry.at_us)?, sentence(entry)));
        }
        lines.push(String::new());
        lines.push(standing(&command));
        lines.extend(outlook(connection, &operation, &command)?);
        lines.push(match journal::verify(&command, &entries) {
            Ok(()) => {
                format!("The journal is whole: {} entries, each chained to the one before it.", entries.len() + 1)
            }
            Err(why) => format!("THE JOURNAL IS NOT WHOLE: {why}."),
        });
        Ok(lines.join("\n"))
    })?;
    Ok(Some(datum::text(&story)))
}

crate::sql_function!(ledger_explain, pg_finfo_ledger_explain, explain);
