//! Reads the ledger at the end of a run.

use std::collections::BTreeMap;

use super::evidence::{Approval, Command, Contract, Entry, Evidence};
use super::profile::{Form, IN_FLIGHT, Kind, MAX_ATTEMPTS};
use super::world::World;
use crate::session::Session;

const COMMANDS: &str = "\
    SELECT c.idempotency_key, c.command_type, v.status::text, v.attempt, v.counted_attempts, v.maybe_sent, \
           c.destination_record_id, c.params::text, \
           command_ledger.params_hash(c.command_type, c.params, c.tenant) = c.params_hash, \
           encode(c.intent_hash, 'hex'), c.approvals_required::int, (extract(epoch FROM c.deadline) * 1000000)::bigint, \
           v.journal_seq, command_ledger.verify_journal(c.idempotency_key, c.tenant), v.open_case IS NOT NULL, v.queued, \
           EXISTS (SELECT FROM command_ledger.approval_request r \
                    WHERE r.tenant = c.tenant AND r.idempotency_key = c.idempotency_key) \
      FROM command_ledger.command c JOIN command_ledger.live_command v USING (tenant, idempotency_key)";
const ENTRIES: &str = "\
    SELECT idempotency_key, seq, (extract(epoch FROM at) * 1000000)::bigint, kind, from_status::text, to_status::text, \
           attempt FROM command_ledger.command_event ORDER BY idempotency_key, seq";
const APPROVALS: &str = "\
    SELECT idempotency_key, encode(intent_hash, 'hex'), (extract(epoch FROM granted_at) * 1000000)::bigint, \
           (extract(epoch FROM expires_at) * 1000000)::bigint FROM command_ledger.approval";

fn size(row: &postgres::Row, column: usize) -> usize {
    usize::try_from(row.get::<_, i32>(column)).unwrap_or(0)
}

/// Everything that the checker wants to see.
pub fn evidence(world: &World, session: &mut Session) -> Evidence {
    let mut all = Evidence { clock_slack_us: 1_300_000, contracts: contracts(&world.kinds), ..Evidence::default() };
    {
        let mut notebook = world.notebook();
        all.told = std::mem::take(&mut notebook.told);
        all.seen = std::mem::take(&mut notebook.seen);
        all.abandoned = std::mem::take(&mut notebook.abandoned);
        all.silences = std::mem::take(&mut notebook.silences);
        all.lost_checkpoints = std::mem::take(&mut notebook.lost_checkpoints);
    }
    for site in world.sites.values() {
        all.requests.extend_from_slice(site.store().log());
        if !site.profile.is_pulled() {
            all.in_flight.insert(site.profile.name().to_owned(), (site.peak(), IN_FLIGHT));
        }
    }
    all.requests.sort_by_key(|request| request.at_us);
    all.commands = session.rows(COMMANDS, &[]).iter().map(command).collect();
    for row in session.rows(ENTRIES, &[]) {
        all.entries.entry(row.get(0)).or_default().push(Entry {
            seq: size(&row, 1),
            at_us: row.get(2),
            kind: row.get(3),
            from: row.get::<_, Option<String>>(4).unwrap_or_default(),
            to: row.get(5),
            attempt: size(&row, 6),
        });
    }
    for row in session.rows(APPROVALS, &[]) {
        let approval = Approval { intent_hash: row.get(1), granted_us: row.get(2), expires_us: row.get(3) };
        all.approvals.entry(row.get(0)).or_default().push(approval);
    }
    let cases = "SELECT DISTINCT idempotency_key FROM command_ledger.reconciliation_case";
    all.cases = session.column(cases, &[]).into_iter().collect();
    all
}

fn command(row: &postgres::Row) -> Command {
    Command {
        key: row.get(0),
        command_type: row.get(1),
        status: row.get(2),
        attempt: size(row, 3),
        counted_attempts: size(row, 4),
        maybe_sent: row.get(5),
        record_id: row.get(6),
        params: row.get::<_, Option<String>>(7).and_then(|p| serde_json::from_str(&p).ok()).unwrap_or_default(),
        params_match: row.get::<_, Option<bool>>(8).unwrap_or(false),
        intent_hash: row.get(9),
        approvals_required: size(row, 10),
        deadline_us: row.get(11),
        journal_seq: size(row, 12),
        chain_holds: row.get::<_, Option<bool>>(13).unwrap_or(false),
        open_case: row.get(14),
        queued: row.get(15),
        awaits_approval: row.get(16),
    }
}

fn contracts(kinds: &[Kind]) -> BTreeMap<String, Contract> {
    let contract = |kind: &Kind| Contract {
        destination: kind.profile.name().to_owned(),
        deduplicates: kind.profile.deduplicates(),
        max_attempts: MAX_ATTEMPTS,
        needs_person: kind.form == Form::Single,
    };
    kinds.iter().map(|kind| (kind.name(), contract(kind))).collect()
}
