//! Audit: the story of a command for a person, from its journal. Deterministic wording, no payload values.

use super::access::{as_owner, key_of, tenant_of};
use super::catalog;
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
    "SELECT q.advice, q.suggested_next_step FROM command_ledger.open_question q \
      WHERE q.tenant = $1 AND q.idempotency_key = $2 LIMIT 1",
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
        "revise" => "revised: other parameters, approvals given before are void".to_owned(),
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

/// How it stands, in words.
fn standing(command: &Command) -> String {
    let live = &command.live;
    let record = command.record_id.as_ref().map_or_else(String::new, |id| format!(", record {id}"));
    match live.status {
        Status::Confirmed => {
            format!("Confirmed: the effect is proven{record}, after {} attempt(s).", live.attempt)
        }
        Status::Cancelled => "Cancelled: it was never sent.".to_owned(),
        Status::Failed => format!(
            "Failed ({}){}: nothing more is done unless an operator retries it.",
            live.error.map_or("no class", |e| e.as_str()),
            live.error_message.as_ref().map_or_else(String::new, |m| format!(", {m}"))
        ),
        Status::Planned => "Planned: it waits for approval; nothing was sent.".to_owned(),
        Status::Approved if live.maybe_sent => {
            "Approved: it will be sent again; an earlier attempt may have had its effect, and the rules permit the repeat."
                .to_owned()
        }
        Status::Approved => "Approved: it will be sent when it is due.".to_owned(),
        Status::Dispatched => format!("Dispatched: attempt {} is under way.", live.attempt),
        Status::NeedsReconciliation => {
            let reason = live.open_case.map_or("", CaseReason::in_words);
            format!("Needs reconciliation: whether it happened is not known. {reason}")
        }
    }
}

/// `explain(key, tenant)`
pub fn explain(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (key, tenant) = (key_of(call, 0)?, tenant_of(call, 1)?);
    let story = as_owner(call, |caller, connection| {
        let (command, entries) = evidence::open(caller, connection, tenant, key)?;
        let operation = catalog::version(connection, &command.command_type, command.type_version)?;
        let mut lines = vec![
            format!("Command {key} of tenant {tenant}: {} version {}", command.command_type, command.type_version),
            format!("for destination {}, known there as {}", operation.destination, command.destination_key()),
            String::new(),
            format!(
                "{}  registered by {}, content {}, intent {}",
                when(connection, command.registered_us)?,
                command.proposer,
                &hex(&command.params_hash)[..12],
                &hex(&command.intent_hash)[..12]
            ),
        ];
        for entry in &entries {
            lines.push(format!("{}  {}", when(connection, entry.at_us)?, sentence(entry)));
        }
        lines.push(String::new());
        lines.push(standing(&command));
        if let Some(row) = NEXT_STEP.first(connection, &[Arg::Text(tenant), Arg::Text(key)])? {
            lines.extend(row.text(0));
            lines.extend(row.text(1));
        }
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
