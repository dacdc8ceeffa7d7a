//! From what the wire brought back to what an attempt's end is made of: the answer's document, the success rule, the
//! destination's own rules, Retry-After. Paths are evaluated by the server.

use super::desk::Ended;
use crate::ledger::catalog::Operation;
use crate::ledger::command::Command;
use crate::ledger::predicate::{first, lax, record_id_text};
use crate::ledger::settle::{Ending, transport_detail};
use crate::pg::jsonb::JsonbArg;
use crate::pg::spi::Connection;
use command_ledger_domain::answer::{NoAnswer, NotSent, RuleOutcome, Wire};
use command_ledger_domain::config::{self, SuccessSpec};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::hash::hex;
use command_ledger_domain::json::Json;
use command_ledger_domain::retry::{own_setup_wait_ms, parse_retry_after};
use command_ledger_domain::throttle::SendEnd;
use command_ledger_wire::{Answer, Cause, Outcome};
use pgrx::pg_sys::Datum;

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

/// What the journal keeps of an answer: facts and a digest, no payload; of an answer that proves nothing, the record id
/// that it names, for the person who looks for it.
fn facts(answer: &Answer, unproven_id: Option<&str>) -> Json<'static> {
    let mut members = vec![
        ("http_status".into(), number(u64::from(answer.status))),
        ("body_sha256".into(), Json::String(hex(&answer.body_sha256).into())),
        ("body_bytes".into(), number(answer.body_bytes)),
    ];
    if let Some(id) = unproven_id {
        members.push(("record_id".into(), Json::String(id.to_owned().into())));
    }
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
        (Some(path), Some(body)) => first(connection, body, path)?.as_ref().and_then(record_id_text),
        _ => None,
    };
    if !rule.statuses.contains(&status) || rule.record_id.is_some() && record_id.is_none() {
        return Ok((false, record_id));
    }
    let met = match (&rule.when, body) {
        (None, _) => true,
        (Some(path), Some(body)) => lax(body, path)?,
        (Some(_), None) => false,
    };
    Ok((met, record_id))
}

fn rule(
    _connection: &Connection,
    rules: &[config::Rule],
    status: u16,
    body: Option<Datum>,
) -> Result<Option<RuleOutcome>, LedgerError> {
    for rule in rules {
        let by_status = rule.status.is_none_or(|s| s == status);
        let matches = by_status
            && match (&rule.when, body) {
                (None, _) => true,
                (Some(path), Some(body)) => lax(body, path)?,
                (Some(_), None) => false,
            };
        if matches {
            return Ok(Some(rule.outcome));
        }
    }
    Ok(None)
}

/// Why nothing left, in the words of the core.
fn not_sent(cause: Cause) -> NotSent {
    match cause {
        Cause::Invalid => NotSent::Invalid,
        Cause::NotAllowed => NotSent::NotAllowed,
        Cause::NoSecret => NotSent::NoSecret,
        Cause::Unresolved => NotSent::Unresolved,
        Cause::Refused => NotSent::Refused,
        Cause::ConnectTimeout | Cause::Timeout => NotSent::ConnectTimeout,
        Cause::Tls => NotSent::Tls,
        Cause::Proxy => NotSent::Proxy,
        Cause::Lost | Cause::Unreadable => NotSent::ConnectionLost,
        Cause::Late | Cause::Stopped | Cause::Defect => NotSent::Withheld,
    }
}

/// Why no answer came, in the words of the core.
fn no_answer(cause: Cause) -> NoAnswer {
    match cause {
        Cause::Timeout | Cause::ConnectTimeout => NoAnswer::Timeout,
        Cause::Unreadable => NoAnswer::Unreadable,
        Cause::Stopped => NoAnswer::Stopped,
        _ => NoAnswer::Reset,
    }
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
pub fn ending(
    connection: &Connection,
    operation: &Operation,
    command: &Command,
    ended: &Ended,
) -> Result<Ending, LedgerError> {
    let mut ending = match &ended.outcome {
        Outcome::NotSent { cause, reason } => {
            let why = not_sent(*cause);
            let mut ending = Ending::of(Wire::NotSent { reason: why });
            ending.message = Some(format!("not sent: {reason}"));
            ending.detail = Some(transport_detail(why.as_str()));
            ending.own_fault = why.is_own_setup();
            // A relay that stops does not make what it gives back wait.
            ending.retry_after_ms = (ending.own_fault && *cause != Cause::Stopped)
                .then(|| own_setup_wait_ms(command.live.attempt.saturating_sub(command.live.counted)));
            ending
        }
        Outcome::NoAnswer { cause, reason } => {
            let why = no_answer(*cause);
            let mut ending = Ending::of(Wire::NoAnswer { reason: why });
            ending.message = Some(format!("no answer: {reason}"));
            ending.detail = Some(transport_detail(why.as_str()));
            ending
        }
        Outcome::Answered(answer) => {
            let body = document(answer);
            let stored = body.as_ref().map(JsonbArg::of);
            let body = stored.map(|stored| stored.datum());
            let mut ending = Ending::of(Wire::Answered { status: answer.status });
            let (met, record_id) = success(connection, &operation.effective.success, answer.status, body)?;
            ending.matched_rule = rule(connection, &operation.effective.rules, answer.status, body)?;
            ending.success_rule_met = met;
            ending.retry_after_ms = header(answer, "retry-after").and_then(|v| parse_retry_after(v, ended.ended_us));
            // Only what proves the effect names its record.
            let (proof, claim) = if ending.proves_success() { (record_id, None) } else { (None, record_id) };
            ending.record_id = proof;
            ending.detail = Some(facts(answer, claim.as_deref()));
            ending.message = (!met).then(|| format!("HTTP {}", answer.status));
            ending.result = stored;
            ending
        }
    };
    ending.ended_us = Some(ended.ended_us);
    Ok(ending)
}

/// What the end says about the destination as a whole (for the breaker).
pub fn send_end(ended: &Ended) -> SendEnd {
    match &ended.outcome {
        Outcome::NotSent { cause, .. } => {
            let why = not_sent(*cause);
            let ours = why.is_own_setup() || why == NotSent::Invalid || *cause == Cause::Stopped;
            if ours { SendEnd::Nothing } else { SendEnd::Failure }
        }
        Outcome::NoAnswer { .. } => SendEnd::Failure,
        Outcome::Answered(answer) if answer.status == 429 || answer.status >= 500 => SendEnd::Failure,
        Outcome::Answered(_) => SendEnd::Well,
    }
}
