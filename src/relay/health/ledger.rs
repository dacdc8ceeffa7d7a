//! What the ledger holds: due work, open cases, and whether its own guards are in place.

use super::{Check, Tenants, only, span};
use crate::ledger::fence;
use crate::pg::spi::{Arg, BIGINT, Connection, Mode, Statement, TEXTS};
use crate::settings;
use command_ledger_domain::error::LedgerError;

/// A command that is due and not claimed for this long is a sign that something is wrong.
const OVERDUE_MIN_US: i64 = 60_000_000;

/// A case that nobody closed for this long.
const CASE_OLD_US: i64 = 24 * 3_600_000_000;
/// So many faults of the guards are named, the rest is counted.
const FAULTS_SHOWN: usize = 10;

/// Oldest due command, by destination: one short index read each.
static OLDEST_DUE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT d.name, q.due_at FROM command_ledger.destination d CROSS JOIN LATERAL ( \
       SELECT o.due_at FROM command_ledger.outbox o \
        WHERE o.destination = d.name AND o.lease_token IS NULL AND ($1 IS NULL OR o.tenant = ANY ($1)) \
        ORDER BY o.due_at LIMIT 1) q ORDER BY q.due_at LIMIT 1",
);

static CASES: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.count(*), pg_catalog.min(r.opened_at) FROM command_ledger.reconciliation_case r \
      WHERE r.closed_at IS NULL AND ($1 IS NULL OR r.tenant = ANY ($1))",
);

static FOREIGN: Statement = Statement::new(
    Mode::Fresh,
    &[BIGINT, TEXTS],
    "SELECT pg_catalog.count(*) FROM command_ledger.outbox o \
      WHERE o.ledger_identity <> $1 AND ($2 IS NULL OR o.tenant = ANY ($2))",
);

pub fn outbox(connection: &Connection, tenants: Tenants, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "outbox";
    let Some(row) = OLDEST_DUE.first(connection, &[only(tenants)])? else {
        return Ok(Check::good(NAME, "nothing waits to be sent"));
    };
    let age_us = now_us - row.time(1).unwrap_or(now_us);
    let destination = row.text_or_empty(0);
    if age_us <= 0 {
        return Ok(Check::good(NAME, format!("nothing is due; the next is in {} ({destination})", span(-age_us))));
    }
    let limit_us = OVERDUE_MIN_US.max(i64::from(settings::MAX_SLEEP_MS.get()) * 2_000);
    let detail = format!("the oldest that is due waits for {} ({destination})", span(age_us));
    if age_us <= limit_us {
        return Ok(Check::good(NAME, detail));
    }
    Ok(Check::bad(NAME, detail, "SELECT * FROM command_ledger.dispatch_queue says what it waits for."))
}

pub fn reconciliation(connection: &Connection, tenants: Tenants, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "reconciliation";
    let row = CASES.first(connection, &[only(tenants)])?;
    let open = row.as_ref().and_then(|row| row.big(0)).unwrap_or(0);
    if open == 0 {
        return Ok(Check::good(NAME, "no open case"));
    }
    let age_us = row.and_then(|row| row.time(1)).map_or(0, |us| now_us - us);
    let detail = format!("{open} open, the oldest for {}", span(age_us));
    const HINT: &str = "SELECT * FROM command_ledger.reconciliation_queue: each row says what is known and what to do.";
    Ok(if age_us > CASE_OLD_US { Check::bad(NAME, detail, HINT) } else { Check::good(NAME, detail).hint(HINT) })
}

pub fn other_identity(connection: &Connection, tenants: Tenants) -> Result<Check, LedgerError> {
    const NAME: &str = "other_identity";
    let own = fence::own_tag();
    let foreign = FOREIGN.first(connection, &[Arg::Big(own), only(tenants)])?.and_then(|row| row.big(0)).unwrap_or(0);
    if foreign == 0 {
        return Ok(Check::good(NAME, "all commands in the outbox were written by this ledger"));
    }
    Ok(Check::bad(
        NAME,
        format!("{foreign} commands in the outbox were written by another ledger (this is a copy): they are not sent"),
        "SELECT command_ledger.adopt_relay() takes them over, after you made sure that the other does not send them.",
    ))
}

static INSTALLED: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT x.extversion FROM pg_catalog.pg_extension x WHERE x.extname = 'command_ledger'",
);

/// The library is replaced for all databases at once, the SQL objects one database after the other.
pub fn version(connection: &Connection) -> Result<Check, LedgerError> {
    const NAME: &str = "version";
    const LIBRARY: &str = env!("CARGO_PKG_VERSION");
    let objects = INSTALLED.first(connection, &[])?.and_then(|row| row.text(0)).unwrap_or_default();
    if objects == LIBRARY {
        return Ok(Check::good(NAME, format!("the library and the SQL objects are of version {LIBRARY}")));
    }
    Ok(Check::bad(
        NAME,
        format!("the library is of version {LIBRARY}, the SQL objects of this database are of version {objects}"),
        "ALTER EXTENSION command_ledger UPDATE; where the library is the older one, restart the server with the one \
         that belongs to the objects.",
    ))
}

/// The tables whose triggers `sql/guard.sql` makes.
const GUARDED: [&str; 12] = [
    "relay_fence",
    "destination",
    "command_type",
    "command",
    "command_event",
    "approval_request",
    "approval",
    "outbox",
    "lane",
    "reconciliation_case",
    "inbox",
    "access",
];

/// Guard triggers that are gone, off, or another than `sql/guard.sql` makes. `type` is the server's code for a trigger's
/// moments: 29 after insert, update and delete of a row, 34 before truncate.
static TRIGGERS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.concat('trigger ', s.name, ' of ', s.table_name, ' ', s.fault) FROM ( \
       SELECT w.name, t.name AS table_name, \
              CASE WHEN g.oid IS NULL THEN 'is gone' \
                   WHEN g.tgenabled::text = 'D' OR g.tgenabled::text = 'R' THEN 'is disabled' \
                   WHEN g.tgtype <> w.type OR f.proname::text <> 'refuse_direct_write' OR n.nspname::text <> 'command_ledger' \
                        OR pg_catalog.strpos(pg_catalog.pg_get_triggerdef(g.oid), w.condition) = 0 THEN 'was replaced' \
              END AS fault \
         FROM pg_catalog.unnest($1) AS t (name) \
        CROSS JOIN (VALUES ('guard_rows'::text, 29, 'write_is_guarded()))'::text), ('guard_truncate', 34, '')) \
              AS w (name, type, condition) \
         LEFT JOIN pg_catalog.pg_trigger g ON (g.tgname::text = w.name AND g.tgrelid = \
              (SELECT r.oid FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace m ON (m.oid = r.relnamespace) \
                WHERE m.nspname::text = 'command_ledger' AND r.relname::text = t.name)) \
         LEFT JOIN pg_catalog.pg_proc f ON (f.oid = g.tgfoid) \
         LEFT JOIN pg_catalog.pg_namespace n ON (n.oid = f.pronamespace)) s \
      WHERE s.fault IS NOT NULL",
);

/// What rewrites or hides what a statement on a table does, and is not of the extension.
static TABLES: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.concat('rule ', w.rulename, ' is on ', r.relname) FROM pg_catalog.pg_rewrite w \
       JOIN pg_catalog.pg_class r ON (r.oid = w.ev_class) \
       JOIN pg_catalog.pg_namespace n ON (n.oid = r.relnamespace) \
      WHERE n.nspname::text = 'command_ledger' AND r.relname::text = ANY ($1) \
      UNION ALL \
     SELECT pg_catalog.concat('row security of ', r.relname, ' is off') FROM pg_catalog.pg_class r \
       JOIN pg_catalog.pg_namespace n ON (n.oid = r.relnamespace) \
      WHERE n.nspname::text = 'command_ledger' AND r.relname::text = ANY ($1) AND NOT r.relrowsecurity",
);

/// Functions of the extension that no longer are the library's: each is in C, and its symbol is its name with `ledger_`.
static FUNCTIONS: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT pg_catalog.concat('function ', p.proname, ' was replaced') FROM pg_catalog.pg_depend d \
       JOIN pg_catalog.pg_extension e ON (e.oid = d.refobjid AND e.extname::text = 'command_ledger') \
       JOIN pg_catalog.pg_proc p ON (p.oid = d.objid) \
       JOIN pg_catalog.pg_language l ON (l.oid = p.prolang) \
      WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.refclassid = 'pg_catalog.pg_extension'::regclass \
        AND d.deptype::text = 'e' \
        AND (l.lanname::text <> 'c' OR p.prosrc <> ('ledger_' || p.proname::text) \
             OR pg_catalog.strpos(p.probin, 'command_ledger') = 0)",
);

/// Sessions for which the server fires no ordinary triggers.
static REPLICA_ROLE: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT pg_catalog.concat('session_replication_role is set', ' for database ' || d.datname::text, \
            ' for role ' || r.rolname::text, ': no triggers fire') \
       FROM pg_catalog.pg_db_role_setting s \
       LEFT JOIN pg_catalog.pg_database d ON (d.oid = s.setdatabase) \
       LEFT JOIN pg_catalog.pg_roles r ON (r.oid = s.setrole) \
      WHERE (s.setdatabase = 0 OR d.datname = pg_catalog.current_database()) \
        AND pg_catalog.strpos(pg_catalog.array_to_string(s.setconfig, ','), 'session_replication_role=replica') > 0",
);

/// Whether what keeps the tables from direct writes is as CREATE EXTENSION made it. Who may disable a trigger may undo
/// it again: this row says what is now, `verify_journal()` what was done to a command meanwhile.
pub fn guards(connection: &Connection) -> Result<Check, LedgerError> {
    const NAME: &str = "guards";
    let tables = GUARDED.map(str::to_owned);
    let tables = [Arg::Texts(&tables)];
    let mut faults: Vec<String> = Vec::new();
    for (statement, args) in
        [(&TRIGGERS, &tables[..]), (&TABLES, &tables[..]), (&FUNCTIONS, &[][..]), (&REPLICA_ROLE, &[][..])]
    {
        faults.extend(statement.run(connection, args, 0)?.iter().map(|row| row.text_or_empty(0)));
    }
    if faults.is_empty() {
        return Ok(Check::good(NAME, "the tables are written by the ledger's functions only"));
    }
    faults.sort();
    let more = faults.len().saturating_sub(FAULTS_SHOWN);
    faults.truncate(FAULTS_SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Ok(Check::bad(
        NAME,
        format!("the ledger can be written past its functions: {}{more}", faults.join("; ")),
        "ALTER TABLE ... ENABLE TRIGGER ALL, or restore what was replaced from the extension's script; then find out what \
         was changed meanwhile: SELECT idempotency_key FROM command_ledger.command WHERE NOT \
         command_ledger.verify_journal(idempotency_key, tenant).",
    ))
}
