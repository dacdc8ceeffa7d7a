//! From what the wire brought back to what an attempt's end is made of: the answer's document, the success rule, the
//! destination's own rules, Retry-After. Paths are evaluated by the server.

use super::desk::Ended;
use crate::ledger::catalog::Operation;
use crate::ledger::predicate::{first, lax, scalar_text};
use crate::ledger::settle::Ending;
use crate::pg::jsonb;
use crate::pg::spi::Connection;
use command_ledger_domain::answer::{NoAnswer, NotSent, RuleOutcome, Wire};
use command_ledger_domain::config::{self, SuccessSpec};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::retry::parse_retry_after;
use command_ledger_wire::{Answer, Outcome};
use pgrx::pg_sys::Datum;

/// After a fault of the ledger's own setup the next attempt waits this long.
const OWN_FAULT_WAIT_MS: i64 = 30_000;

/// The answer's body as a document that the server can hold; `None` for anything else (HTML, cut, not UTF-8, NUL).
pub fn document(answer: &Answer) -> Option<Json<'static>> {
    if answer.truncated || !answer.complete {
        return None;
    }
    let text = std::str::from_utf8(&answer.body).ok()?;
    Json::parse(text).ok().map(Json::into_owned)
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn number(n: u64) -> Json<'static> {
    Json::Number(n.to_string().into())
}

/// What the journal keeps of an answer: facts and a digest, no payload.
fn facts(answer: &Answer) -> Json<'static> {
    let mut members = vec![
        ("http_status".into(), number(u64::from(answer.status))),
        ("body_sha256".into(), Json::String(hex(&answer.body_sha256).into())),
        ("body_bytes".into(), number(answer.body_bytes)),
    ];
    if answer.truncated {
        members.push(("truncated".into(), Json::Bool(true)));
    }
    if !answer.complete {
        members.push(("complete".into(), Json::Bool(false)));
    }
    Json::Object(members)
}

/// Whether the answer meets the success rule, and the record id that it names.
fn success(
    connection: &Connection,
    rule: &SuccessSpec,
    status: u16,
    body: Option<Datum>,
) -> Result<(bool, Option<String>), LedgerError> {
    let record_id = match (&rule.record_id, body) {
        (Some(path), Some(body)) => first(connection, body, path)?.as_ref().and_then(scalar_text),
        _ => None,
    };
    if !rule.statuses.contains(&status) || rule.record_id.is_some() && record_id.is_none() {
        return Ok((false, record_id));
    }
    let met = match (&rule.when, body) {
        (None, _) => true,
        (Some(path), Some(body)) => lax(connection, body, path)?,
        (Some(_), None) => false,
    };
    Ok((met, record_id))
}

fn rule(
    connection: &Connection,
    rules: &[config::Rule],
    status: u16,
    body: Option<Datum>,
) -> Result<Option<RuleOutcome>, LedgerError> {
    for rule in rules {
        let by_status = rule.status.is_none_or(|s| s == status);
        let matches = by_status
            && match (&rule.when, body) {
                (None, _) => true,
                (Some(path), Some(body)) => lax(connection, body, path)?,
                (Some(_), None) => false,
            };
        if matches {
            return Ok(Some(rule.outcome));
        }
    }
    Ok(None)
}

/// As [`success`], for what a function returned: there is no status.
pub fn success_of_function(
    connection: &Connection,
    rule: &SuccessSpec,
    returned: Option<Datum>,
) -> Result<(bool, Option<String>), LedgerError> {
    success(connection, rule, rule.statuses.first().copied().unwrap_or(200), returned)
}

/// As [`rule`], for what a function returned: there is no status, and a rule that names one never fits.
pub fn rule_of_function(
    connection: &Connection,
    rules: &[config::Rule],
    returned: Option<Datum>,
) -> Result<Option<RuleOutcome>, LedgerError> {
    rule(connection, rules, 0, returned)
}

/// What the end of an attempt is made of.
pub fn ending(connection: &Connection, operation: &Operation, ended: &Ended) -> Result<Ending, LedgerError> {
    let mut ending = match &ended.outcome {
        Outcome::NotSent { reason } => {
            let mut ending = Ending::of(Wire::NotSent { reason: NotSent::Withheld });
            ending.message = Some(format!("not sent: {reason}"));
            ending.own_fault = ended.own_fault;
            ending.retry_after_ms = ended.own_fault.then_some(OWN_FAULT_WAIT_MS);
            ending
        }
        Outcome::NoAnswer { reason } => {
            let mut ending = Ending::of(Wire::NoAnswer { reason: NoAnswer::Reset });
            ending.message = Some(format!("no answer: {reason}"));
            ending
        }
        Outcome::Answered(answer) => {
            let body = document(answer);
            let stored = body.as_ref().map(jsonb::to_datum);
            let mut ending = Ending::of(Wire::Answered { status: answer.status });
            let (met, record_id) = success(connection, &operation.effective.success, answer.status, stored)?;
            ending.matched_rule = rule(connection, &operation.effective.rules, answer.status, stored)?;
            ending.success_rule_met = met;
            ending.record_id = record_id;
            ending.retry_after_ms = header(answer, "retry-after").and_then(|v| parse_retry_after(v, ended.ended_us));
            ending.detail = Some(facts(answer));
            ending.message = (!met).then(|| format!("HTTP {}", answer.status));
            ending.result = body;
            ending
        }
    };
    ending.ended_us = Some(ended.ended_us);
    Ok(ending)
}

/// Whether the end says something about the destination as a whole (for the breaker).
pub fn is_destination_failure(ended: &Ended) -> bool {
    match &ended.outcome {
        Outcome::NotSent { .. } => !ended.own_fault,
        Outcome::NoAnswer { .. } => true,
        Outcome::Answered(answer) => answer.status == 429 || answer.status >= 500,
    }
}
