//! Reconcile: asking the destination about open cases. A round is one lookup and, where configured, its sentinel with
//! the same credentials; what it proves is decided in the core.

use super::answers;
use super::desk::{Desk, LookupRound, OpenRound, Purpose};
use super::{complain, sends, signals, transaction};
use crate::failpoint;
use crate::ledger::batch::Change;
use crate::ledger::catalog::{self, Operation};
use crate::ledger::command::{self, Command};
use crate::ledger::predicate::{MAX_RECORDS, all, first, lax, list_present, record_id_text, scalar_text};
use crate::ledger::{approve, settle};
use crate::pg::datum;
use crate::pg::jsonb::{self, JsonbArg};
use crate::pg::random;
use crate::pg::report::{Level, log};
use crate::pg::spi::{Arg, Connection, INT, JSONB, Mode, Row, Statement, TEXT, TIME, UUID};
use crate::pg::transaction::nested;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::lookup::{
    LookupAnswer, LookupDecision, LookupFacts, LookupProgress, Record, after_lookup, read_lookup,
};
use command_ledger_domain::request::{Intent, RenderedLookup, render_lookup};
use command_ledger_domain::retry::{Repeat, RepeatFacts, plus_ms, repeat_due};
use command_ledger_domain::status::{CaseReason, Event, Status};
use command_ledger_wire::Outcome;
use std::time::{Duration, Instant};

/// How long a round may take beyond its timeouts before it may be asked again.
const ROUND_SLACK_US: i64 = 10_000_000;
/// When to try again to build a lookup that could not be built for another reason than its case.
const PUT_OFF_US: i64 = 60_000_000;
/// Bytes of a lookup's answer that are read: a list is longer than one record.
const LOOKUP_BYTES: usize = 1 << 20;

static DUE: Statement = Statement::new(
    Mode::Fresh,
    &[TIME, INT],
    "SELECT r.tenant, r.idempotency_key, r.seq FROM command_ledger.reconciliation_case r \
      WHERE r.closed_at IS NULL AND r.next_lookup_at <= $1 ORDER BY r.next_lookup_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED",
);

static TAKE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, TIME, UUID],
    "UPDATE command_ledger.reconciliation_case r SET next_lookup_at=$4, lookup_token=$5 \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.seq = $3",
);

static OPEN: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, TEXT, UUID],
    "SELECT r.seq, r.lookups_done, r.absents_in_a_row, r.evidence_from, r.opened_at FROM command_ledger.reconciliation_case r \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL AND r.lookup_token = $3 FOR NO KEY UPDATE",
);

static PROGRESS: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, INT, INT, INT, TIME, JSONB],
    "UPDATE command_ledger.reconciliation_case r \
        SET lookups_done=$4, absents_in_a_row=$5, next_lookup_at=$6, last_lookup=$7, lookup_token=NULL \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.seq = $3",
);

/// Starts the rounds that are due. Says whether there were any.
pub fn start(desk: &mut Desk, limit: usize) -> Result<bool, LedgerError> {
    // A round is up to two calls.
    let room = (desk.room() / 2).min(limit);
    if room == 0 {
        return Ok(false);
    }
    let (rounds, any) = transaction::run(|connection| {
        let now_us = datum::now_us();
        let rows = DUE.run(
            connection,
            &[Arg::Time(now_us), Arg::Int(i32::try_from(room).unwrap_or(i32::MAX))],
            i64::try_from(room).unwrap_or(i64::MAX),
        )?;
        let due: Vec<(String, String, i32)> =
            rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1), r.int(2).unwrap_or(0))).collect();
        let mut rounds = Vec::new();
        for (tenant, key, seq) in &due {
            let (lookup, next_us) = match nested(|| rendered(connection, tenant, key)) {
                Ok(Some(lookup)) => {
                    let wait_ms = lookup.request.timeout_ms.saturating_mul(2);
                    (Some(lookup), Some(plus_ms(now_us, wait_ms).saturating_add(ROUND_SLACK_US)))
                }
                // There is nothing to ask: a person decides.
                Ok(None) => (None, None),
                Err(error) if signals::stop_asked() => return Err(error),
                // A table that somebody locks, a time limit: it says nothing about the case.
                Err(error) => {
                    log(Level::Warning, &format!("command_ledger relay: a lookup of a case is put off: {error}"));
                    (None, Some(now_us.saturating_add(PUT_OFF_US)))
                }
            };
            let token = random::uuid().unwrap_or_default();
            TAKE.execute(
                connection,
                &[
                    Arg::Text(tenant),
                    Arg::Text(key),
                    Arg::Int(*seq),
                    Arg::or_null(next_us, Arg::Time),
                    Arg::Uuid(&token),
                ],
            )?;
            if let Some(lookup) = lookup {
                let sentinel_expected = lookup.sentinel.is_some();
                let (tenant, key) = (tenant.clone(), key.clone());
                rounds.push((LookupRound { tenant, key, token, started_us: now_us, sentinel_expected }, lookup));
            }
        }
        Ok((rounds, !due.is_empty()))
    })?;
    failpoint::hit("relay_before_lookup");
    for (round, lookup) in rounds {
        let open = OpenRound { round: round.clone(), answer: None, sentinel: None };
        desk.rounds.insert(round.token, open);
        let not_after = Instant::now() + Duration::from_secs(120);
        if let Some(sentinel) = lookup.sentinel {
            desk.send(Purpose::Sentinel(round.clone()), sentinel, LOOKUP_BYTES, not_after);
        }
        desk.send(Purpose::Lookup(round), lookup.request, LOOKUP_BYTES, not_after);
    }
    Ok(any)
}

/// The lookup of a command; `None` where it cannot be built (no lookup any more, redacted, a template that fails).
fn rendered(connection: &Connection, tenant: &str, key: &str) -> Result<Option<RenderedLookup>, LedgerError> {
    let Some(command) = command::read_fresh(connection, tenant, key)? else { return Ok(None) };
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let Some(params) = settle::params_of(connection, &command)? else { return Ok(None) };
    if operation.effective.lookup.is_none() {
        return Ok(None);
    }
    let (id, destination_key) = (key::uuid_text(&command.id()), command.destination_key());
    let intent = Intent {
        params: &params,
        destination_key: &destination_key,
        command_id: &id,
        tenant,
        command_type: &command.command_type,
    };
    match render_lookup(&operation.effective, &intent) {
        Ok(lookup) => Ok(Some(lookup)),
        Err(error) => {
            let what = format!("a lookup of command type {:?} cannot be built", command.command_type);
            log(Level::Warning, &format!("command_ledger relay: {what}: {} at {}", error.reason, error.path));
            Ok(None)
        }
    }
}

/// An answer of a round came in.
pub fn answered(desk: &mut Desk, round: LookupRound, outcome: Outcome, sentinel: bool) {
    if let Some(open) = desk.rounds.get_mut(&round.token) {
        if sentinel {
            open.sentinel = Some(outcome);
        } else {
            open.answer = Some(outcome);
        }
    }
}

/// Settles the rounds whose answers are complete.
pub fn settle_rounds(desk: &mut Desk) {
    let complete: Vec<[u8; 16]> = desk
        .rounds
        .iter()
        .filter(|(_, open)| open.answer.is_some() && (open.sentinel.is_some() || !open.round.sentinel_expected))
        .map(|(token, _)| *token)
        .collect();
    for token in complete {
        let Some(open) = desk.rounds.remove(&token) else { continue };
        failpoint::hit("relay_before_lookup_settle");
        if let Err(error) = transaction::run(|connection| settle_round(connection, &open)) {
            complain("command_ledger relay: a lookup could not be settled and is asked again", &error);
        }
    }
}

/// One record as the destination gave it, read through the configured paths.
struct Found {
    record: Json<'static>,
    match_value: Option<String>,
    record_id: Option<String>,
    meets_when: bool,
}

fn read_records(
    connection: &Connection,
    operation: &Operation,
    body: &Json,
) -> Result<(bool, Vec<Found>), LedgerError> {
    let Some(spec) = &operation.effective.lookup else { return Ok((false, Vec::new())) };
    let body = jsonb::to_datum(body);
    let present = list_present(body, &spec.records)?;
    let mut found = Vec::new();
    let mut records = Vec::new();
    for (stored, record) in all(connection, body, &spec.records)? {
        // A path that names the list itself means what is in it: a predicate over an array would look at any element.
        match record {
            Json::Array(_) => records.extend(all(connection, stored, "$[*]")?),
            _ => records.push((stored, record)),
        }
    }
    for (stored, record) in records {
        let match_value = first(connection, stored, &spec.match_field)?.as_ref().and_then(scalar_text);
        let record_id = first(connection, stored, &spec.record_id)?.as_ref().and_then(record_id_text);
        let meets_when = match &spec.when {
            Some(path) => lax(stored, path)?,
            None => true,
        };
        found.push(Found { record, match_value, record_id, meets_when });
    }
    // A list that is longer than what is looked at is as good as cut off.
    let whole = i64::try_from(found.len()).is_ok_and(|n| n < MAX_RECORDS);
    Ok((present && whole, found))
}

/// Whether the sentinel's answer holds the record that must be there.
fn sentinel_found(
    connection: &Connection,
    operation: &Operation,
    outcome: Option<&Outcome>,
) -> Result<Option<bool>, LedgerError> {
    let Some(sentinel) = operation.effective.lookup.as_ref().and_then(|l| l.sentinel.as_ref()) else { return Ok(None) };
    let Some(Outcome::Answered(answer)) = outcome else { return Ok(Some(false)) };
    let Some(body) = answers::document(answer) else { return Ok(Some(false)) };
    let (_, found) = read_records(connection, operation, &body)?;
    let there = found.iter().any(|f| f.match_value.as_deref() == Some(sentinel.equals.as_str()));
    Ok(Some((200..300).contains(&answer.status) && there))
}

fn status_of(outcome: Option<&Outcome>) -> u16 {
    match outcome {
        Some(Outcome::Answered(answer)) => answer.status,
        _ => 0,
    }
}

/// What the queue shows of a lookup.
fn summary(open: &OpenRound, answer: &LookupAnswer, now_us: i64) -> Json<'static> {
    let mut members = vec![
        ("at_us".into(), Json::Number(now_us.to_string().into())),
        ("http_status".into(), Json::Number(status_of(open.answer.as_ref()).to_string().into())),
    ];
    let word = match answer {
        LookupAnswer::Found { record_id } => {
            members.extend(record_id.as_ref().map(|id| ("record_id".into(), Json::String(id.clone().into()))));
            "found"
        }
        LookupAnswer::Ambiguous { ids } => {
            let ids = ids.iter().take(20).map(|id| match id {
                Some(id) => Json::String(id.clone().into()),
                None => Json::Null,
            });
            members.push(("record_ids".into(), Json::Array(ids.collect())));
            "ambiguous"
        }
        LookupAnswer::Absent => "absent",
        LookupAnswer::Unclear { why } => {
            members.push(("why".into(), Json::String((*why).into())));
            "unclear"
        }
    };
    members.push(("answer".into(), Json::String(word.into())));
    if let Some(Outcome::NotSent { reason, .. } | Outcome::NoAnswer { reason, .. }) = &open.answer {
        members.push(("transport".into(), Json::String(reason.clone().into())));
    }
    Json::Object(members)
}

fn settle_round(connection: &Connection, open: &OpenRound) -> Result<(), LedgerError> {
    let round = &open.round;
    let Some(mut command) = command::lock(connection, &round.tenant, &round.key)? else { return Ok(()) };
    let args = [Arg::Text(&round.tenant), Arg::Text(&round.key), Arg::Uuid(&round.token)];
    // Another round, a late answer or a person was faster: this one has nothing to say any more.
    let Some(case) = OPEN.first(connection, &args)? else { return Ok(()) };
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    let Some(policy) = operation.lookup_policy() else { return Ok(()) };
    let body = match &open.answer {
        Some(Outcome::Answered(answer)) => answers::document(answer),
        _ => None,
    };
    let (list_present, found) = match &body {
        Some(body) => read_records(connection, &operation, body)?,
        None => (false, Vec::new()),
    };
    let records: Vec<Record> = found
        .iter()
        .map(|f| Record {
            match_value: f.match_value.as_deref(),
            record_id: f.record_id.as_deref(),
            meets_when: f.meets_when,
        })
        .collect();
    let destination_key = command.destination_key();
    let answer = read_lookup(&LookupFacts {
        status: status_of(open.answer.as_ref()),
        list_present,
        records: &records,
        record_id_required: true,
        destination_key: &destination_key,
        sentinel: sentinel_found(connection, &operation, open.sentinel.as_ref())?,
    });
    let now_us = datum::now_us();
    let (approval, approved_until_us) = approve::approval_state(connection, &operation, &command, now_us)?;
    let repeat = repeat(&operation, &command, now_us);
    let repeat_allowed = matches!(repeat, Repeat::At { .. }) && approval.permits_send() && !command.redacted;
    let step = after_lookup(&policy, &progress(&case, now_us), &answer, round.started_us, repeat_allowed, now_us);
    let next_us = match step.decision {
        LookupDecision::LookAgain { at_us } => Some(at_us),
        _ => None,
    };
    let summary = summary(open, &answer, now_us);
    PROGRESS.execute(
        connection,
        &[
            Arg::Text(&round.tenant),
            Arg::Text(&round.key),
            Arg::Int(case.int(0).unwrap_or(0)),
            Arg::Int(step.progress.lookups_done.cast_signed()),
            Arg::Int(step.progress.absents_in_a_row.cast_signed()),
            Arg::or_null(next_us, Arg::Time),
            Arg::Json(&summary),
        ],
    )?;
    let Some(event) = step.decision.event() else { return Ok(()) };
    let mut change = Change {
        detail: Some(summary),
        approved_until_us,
        due_us: match repeat {
            Repeat::At { due_us } => Some(due_us),
            _ => None,
        },
        ..Change::default()
    };
    if let LookupDecision::Confirm { record_id } = &step.decision {
        change.record_id.clone_from(record_id);
        let evidence = found.into_iter().find(|f| f.meets_when && f.match_value.as_deref() == Some(&destination_key));
        change.evidence = evidence.as_ref().map(|f| f.record.clone());
        change.result = evidence.map(|f| JsonbArg::of(&f.record));
        change.finding = Some("found by lookup".into());
    } else if matches!(event, Event::LookupAbsent { .. }) {
        change.finding = Some("absent by lookup".into());
        change.message = Some("the lookup found nothing; the command is sent again".into());
    }
    let mut batch = sends::batch();
    batch.apply(&mut command, approval, &operation.destination, event, change)?;
    batch.flush(connection)
}

fn progress(case: &Row, now_us: i64) -> LookupProgress {
    LookupProgress {
        lookups_done: case.int(1).unwrap_or(0).max(0).unsigned_abs(),
        absents_in_a_row: case.int(2).unwrap_or(0).max(0).unsigned_abs(),
        evidence_start_us: case.time(3).or(case.time(4)).unwrap_or(now_us),
    }
}

/// Whether another attempt would be permitted once absence is established.
fn repeat(operation: &Operation, command: &Command, now_us: i64) -> Repeat {
    let may_release = command.live.open_case.is_none_or(CaseReason::lookup_may_release);
    if !may_release || command.live.status != Status::NeedsReconciliation {
        return Repeat::NeedsPerson;
    }
    repeat_due(
        &operation.retry(),
        &RepeatFacts {
            counted_attempts: command.live.counted,
            now_us,
            deadline_us: command.deadline_us,
            retry_after_ms: None,
            window_end_us: None,
            maybe_sent: command.live.maybe_sent,
        },
        random::number(),
    )
}
