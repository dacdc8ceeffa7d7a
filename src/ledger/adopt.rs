//! Adopting a ledger: a person declares that this database is the one that sends, after a restore, a copy or a
//! promotion. The journals of all open commands are checked first; what another place may have sent counts as maybe
//! sent from then on, unless the person says that it was not.

use super::batch::{Actor, Batch, Change};
use super::command::{self, Command};
use super::{catalog, fence, journal, settle};
use crate::pg::datum;
use crate::pg::spi::{self, Arg, BIGINT, Connection, INT, Mode, Statement, TEXT, TIME};
use crate::pg::transaction;
use crate::relay::wake;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::status::{ApprovalState, Event, Status};

/// Commands per SPI connection, whose memory is given back after each.
const CHUNK: i32 = 500;

static LOCK_ADOPTION: Statement =
    Statement::new(Mode::Fresh, &[], "SELECT pg_catalog.pg_advisory_xact_lock(5492010533047313)");

macro_rules! open_keys {
    () => {
        "SELECT k.tenant, k.idempotency_key FROM ( \
           (SELECT o.tenant, o.idempotency_key FROM command_ledger.outbox o \
             WHERE (o.tenant, o.idempotency_key) > ($1, $2) ORDER BY o.tenant, o.idempotency_key LIMIT $3) \
           UNION \
           (SELECT r.tenant, r.idempotency_key FROM command_ledger.approval_request r \
             WHERE (r.tenant, r.idempotency_key) > ($1, $2) ORDER BY r.tenant, r.idempotency_key LIMIT $3) \
           UNION \
           (SELECT c.tenant, c.idempotency_key FROM command_ledger.reconciliation_case c \
             WHERE c.closed_at IS NULL AND (c.tenant, c.idempotency_key) > ($1, $2) \
             ORDER BY c.tenant, c.idempotency_key LIMIT $3)) AS k \
         ORDER BY k.tenant, k.idempotency_key LIMIT $3"
    };
}

/// The next open commands in the order of their keys: queued, awaiting approval, or with an open case.
static OPEN_THEN: Statement = Statement::new(Mode::Snapshot, &[TEXT, TEXT, INT], open_keys!());
static OPEN_NOW: Statement = Statement::new(Mode::Fresh, &[TEXT, TEXT, INT], open_keys!());

static TAKE_OVER: Statement = Statement::new(
    Mode::Write,
    &[BIGINT],
    "UPDATE command_ledger.outbox o SET ledger_identity=$1 WHERE o.ledger_identity <> $1",
);

/// What lookups found before counts no more: the other place may have sent since.
static RESTART_LOOKUPS: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TEXT, TIME, TIME],
    "UPDATE command_ledger.reconciliation_case r \
        SET next_lookup_at=$3, evidence_from=$4, lookups_done=0, absents_in_a_row=0, lookup_token=NULL \
      WHERE r.tenant = $1 AND r.idempotency_key = $2 AND r.closed_at IS NULL",
);

/// In a ledger that came to another place and goes on there, lookups that began elsewhere prove nothing: the other place
/// may have sent since.
static RESTART_ALL_LOOKUPS: Statement = Statement::new(
    Mode::Write,
    &[TIME],
    "UPDATE command_ledger.reconciliation_case r \
        SET evidence_from=$1, lookups_done=0, absents_in_a_row=0, lookup_token=NULL \
      WHERE r.closed_at IS NULL AND r.next_lookup_at IS NOT NULL AND (r.evidence_from IS NULL OR r.evidence_from < $1)",
);

/// Lets the settle delay and the row of agreeing lookups of every case begin now.
pub fn restart_lookups(connection: &Connection) -> Result<(), LedgerError> {
    RESTART_ALL_LOOKUPS.execute(connection, &[Arg::Time(datum::now_us())])?;
    Ok(())
}

/// Walks all open commands in the order of their keys, chunk by chunk.
fn each_open(
    keys: &Statement,
    mut chunk: impl FnMut(&Connection, Vec<(String, String)>) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut last = (String::new(), String::new());
    loop {
        let found = spi::connect(|connection| {
            let rows = keys.run(connection, &[Arg::Text(&last.0), Arg::Text(&last.1), Arg::Int(CHUNK)], 0)?;
            let found: Vec<_> = rows.iter().map(|r| (r.text_or_empty(0), r.text_or_empty(1))).collect();
            if let Some(end) = found.last() {
                last = end.clone();
                chunk(connection, found)?;
                return Ok(true);
            }
            Ok(false)
        })?;
        if !found {
            return Ok(());
        }
        pgrx::check_for_interrupts!();
    }
}

/// CL015 if the journal of an open command is broken: then nobody can say what was done before.
fn require_whole_journals() -> Result<usize, LedgerError> {
    let (mut checked, mut broken, mut first) = (0, 0, None);
    each_open(&OPEN_THEN, |connection, keys| {
        for (tenant, key) in keys {
            checked += 1;
            let fault = match command::read(connection, &tenant, &key)? {
                Some(command) => journal::verify(&command, &journal::read(connection, &tenant, &key)?).err(),
                None => Some("the command itself is missing".to_owned()),
            };
            if let Some(fault) = fault {
                broken += 1;
                first.get_or_insert((tenant, key, fault));
            }
        }
        Ok(())
    })?;
    let Some((tenant, key, fault)) = first else { return Ok(checked) };
    Err(LedgerError::new(
        Code::RelayFenced,
        format!("this ledger is not adopted: the journals of {broken} open command(s) are broken"),
    )
    .detail(format!("The first is {key:?} of tenant {tenant:?}: {fault}."))
    .hint(
        "Restore the ledger's tables again, complete and from one moment. A command that stays broken can be settled by cancel() or reconcile() first; evidence() shows its journal.",
    ))
}

/// What became of the open commands.
#[derive(Default)]
struct Tally {
    repeatable: usize,
    questions: usize,
    as_they_were: usize,
}

/// Whether another place may have sent this command, so that it must count as maybe sent.
fn concerns(command: &Command, fence: Fence, here: i64) -> bool {
    let queued_here = command.queued.as_ref().is_some_and(|q| q.identity == here);
    match (command.live.status, fence) {
        (Status::Confirmed | Status::Cancelled | Status::Failed, _) => false,
        // Put into the outbox by this very ledger, which no other place shares.
        (_, Fence::Unadopted) if queued_here => false,
        // In flight from here, or judged when its lease is over: uncertain either way.
        (Status::Dispatched, Fence::Moved { halted: false }) => false,
        _ => true,
    }
}

/// Marks one locked command as maybe sent elsewhere.
fn adopt_one(
    connection: &Connection,
    batch: &mut Batch,
    command: &mut Command,
    here: i64,
    tally: &mut Tally,
) -> Result<(), LedgerError> {
    let now_us = batch.now_us();
    let operation = catalog::version(connection, &command.command_type, command.type_version)?;
    // The original may have sent it from its registration on.
    let repeat_safe = operation.deduplicates(Some(command.registered_us), now_us);
    command.live.first_sent_us = Some(command.registered_us);
    if let Some(queued) = &mut command.queued {
        queued.identity = here;
        queued.absence_place = None;
    }
    let mut change = Change::default();
    settle::schedule_lookup(&operation, &mut change, now_us);
    let had_case = command.live.open_case.is_some();
    let lookup = change.next_lookup_us.zip(change.evidence_from_us);
    // The table does not read the approval here: what is left to be sent is checked again at its claim.
    let state = ApprovalState::NotNeeded;
    batch.apply(command, state, &operation.destination, Event::Adopted { repeat_safe }, change)?;
    if command.live.status != Status::NeedsReconciliation {
        tally.repeatable += 1;
        return Ok(());
    }
    tally.questions += 1;
    if had_case {
        RESTART_LOOKUPS.execute(
            connection,
            &[
                Arg::Text(&command.tenant),
                Arg::Text(&command.key),
                Arg::or_null(lookup.map(|l| l.0), Arg::Time),
                Arg::Time(now_us),
            ],
        )?;
    }
    Ok(())
}

/// Adopts this ledger in this place; says in words what it did. `by` is the role that asked for it.
///
/// | `resend` | open commands |
/// |---|---|
/// | false | count as maybe sent: repeated where the destination still deduplicates (its window counted from registration), else looked up or shown to a person |
/// | true | go on as they are; an attempt that was in flight is uncertain when its lease is over |
///
/// # Errors
/// CL015 on a standby, and if the journal of an open command is broken.
pub fn adopt_open_commands(connection: &Connection, by: &str, resend: bool) -> Result<String, LedgerError> {
    if transaction::in_recovery() {
        return Err(LedgerError::new(Code::RelayFenced, "a standby cannot be adopted: it sends nothing")
            .hint("Promote it first, then SELECT command_ledger.adopt_relay()."));
    }
    LOCK_ADOPTION.first(connection, &[])?;
    let fence = fence::state(connection)?;
    if fence == Fence::Open {
        return Ok("already adopted here; nothing was changed".to_owned());
    }
    let checked = require_whole_journals()?;
    let (now_us, here) = (datum::now_us(), fence::own_tag());
    let mut tally = Tally::default();
    if !resend {
        each_open(&OPEN_NOW, |connection, keys| {
            let actor = Actor { role: by.to_owned(), stated: None };
            let mut batch = Batch::new(now_us, actor);
            for (tenant, key) in keys {
                match command::lock(connection, &tenant, &key)? {
                    Some(mut command) if concerns(&command, fence, here) => {
                        adopt_one(connection, &mut batch, &mut command, here, &mut tally)?;
                    }
                    _ => tally.as_they_were += 1,
                }
            }
            batch.flush(connection)
        })?;
    }
    TAKE_OVER.execute(connection, &[Arg::Big(here)])?;
    fence::adopt(connection, now_us, by)?;
    wake::at_commit();
    Ok(if resend {
        format!("adopted; the journals of {checked} open command(s) are whole, and they go on as they are")
    } else {
        format!(
            "adopted; the journals of {checked} open command(s) are whole; {} may be repeated safely, {} must be looked up or decided by a person first, {} stay as they were",
            tally.repeatable, tally.questions, tally.as_they_were
        )
    })
}
