//! `health()`: says in words whether the ledger and its relay can work, and if nothing moves, why not and what to do.
//!
//! Facts about the server are for whoever has a capability that looks after the ledger; ages of commands and cases are
//! limited to the tenants of the caller's grants.

mod functions;

use super::{lock, shared};
use crate::ledger::access::{Caller, Capability, as_owner};
use crate::ledger::fence;
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::{Arg, BIGINT, Connection, Mode, OID, Statement, TEXTS};
use crate::pg::transaction;
use crate::pg::tuple::RowSet;
use crate::settings;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::fence::Fence;
use command_ledger_domain::json::Json;
use command_ledger_wire::SecretStore;
use pgrx::pg_sys::{self, Datum};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

/// A command that is due and not claimed for this long is a sign that something is wrong.
const OVERDUE_MIN_US: i64 = 60_000_000;
/// A case that nobody closed for this long.
const CASE_OLD_US: i64 = 24 * 3_600_000_000;
/// A moment in the ledger this far ahead of the clock means that the clock was set back.
const FUTURE_US: i64 = 2_000_000;
/// A refusal to start a worker, or a step of the clock, is reported this long.
const RECENT_US: i64 = 3_600_000_000;

static GRANTS: Statement = Statement::new(
    Mode::Fresh,
    &[OID, TEXTS],
    "SELECT DISTINCT a.tenant FROM command_ledger.access a \
      WHERE a.capability = ANY ($2) AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE')",
);

static PAUSED: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT d.name, d.paused_at, d.paused_by FROM command_ledger.destination d WHERE d.paused_at IS NOT NULL ORDER BY d.name",
);

static CONFIGS: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT d.config FROM command_ledger.destination d UNION ALL \
     (SELECT DISTINCT ON (t.name) t.policy FROM command_ledger.command_type t ORDER BY t.name, t.version DESC)",
);

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

/// The latest moment that small tables of the ledger know of.
static LATEST: Statement = Statement::new(
    Mode::Fresh,
    &[],
    "SELECT greatest((SELECT pg_catalog.max(f.adopted_at) FROM command_ledger.relay_fence f), \
                     (SELECT pg_catalog.max(d.defined_at) FROM command_ledger.destination d), \
                     (SELECT pg_catalog.max(t.defined_at) FROM command_ledger.command_type t), \
                     (SELECT pg_catalog.max(a.granted_at) FROM command_ledger.access a), \
                     (SELECT pg_catalog.max(r.opened_at) FROM command_ledger.reconciliation_case r \
                       WHERE r.closed_at IS NULL))",
);

/// The tenants for which the caller has one of the capabilities: `None` nothing, `Some(None)` all, else these.
pub fn tenants_of(
    caller: &Caller,
    connection: &Connection,
    capabilities: &[Capability],
) -> Result<Option<Option<Vec<String>>>, LedgerError> {
    if caller.is_superuser() {
        return Ok(Some(None));
    }
    let words: Vec<String> = capabilities.iter().map(|c| c.as_str().to_owned()).collect();
    let rows = GRANTS.run(connection, &[Arg::Oid(caller.role), Arg::Texts(&words)], 0)?;
    if rows.len() == 0 {
        return Ok(None);
    }
    let tenants: Vec<Option<String>> = rows.iter().map(|row| row.text(0)).collect();
    Ok(Some(tenants.into_iter().collect()))
}

/// The tenants that the caller may look at; `None`: all.
type Tenants<'a> = Option<&'a [String]>;

fn only(tenants: Tenants) -> Arg {
    Arg::or_null(tenants, Arg::Texts)
}

/// One row of the answer.
struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
    hint: Option<String>,
}

impl Check {
    fn good(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, ok: true, detail: detail.into(), hint: None }
    }

    fn bad(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, ok: false, detail: detail.into(), hint: Some(hint.into()) }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A span of time for a person.
fn span(us: i64) -> String {
    let s = us.max(0) / 1_000_000;
    match s {
        0..=119 => format!("{s} s"),
        120..=7_199 => format!("{} min", s / 60),
        7_200..=172_799 => format!("{} h", s / 3_600),
        _ => format!("{} days", s / 86_400),
    }
}

fn preloaded() -> Check {
    if shared::shared().is_some() {
        return Check::good("preloaded", "the library is preloaded: relays are started and woken by themselves");
    }
    Check::bad(
        "preloaded",
        "the library is not preloaded: no launcher, no wake-up at commit, no counters",
        "Add command_ledger to shared_preload_libraries and restart, or SELECT command_ledger.start_relay() after each \
         start of the server.",
    )
}

fn standby() -> Check {
    if transaction::in_recovery() {
        return Check::good("standby", "this server is a standby: no relay runs here, and none should").hint(
            "After a promotion the relay comes by itself where the library is preloaded; see also the row fence.",
        );
    }
    Check::good("standby", "this server is not a standby")
}

fn relay_running(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "relay_running";
    if let Some(holder) = lock::holder(connection)? {
        let since = holder.since_us.map_or_else(String::new, |us| format!(", for {}", span(now_us - us)));
        return Ok(Check::good(NAME, format!("the relay runs (pid {}{since})", holder.pid)));
    }
    if transaction::in_recovery() {
        return Ok(Check::good(NAME, "no relay runs, as it should be on a standby"));
    }
    let Some(all) = shared::shared() else {
        return Ok(Check::bad(NAME, "no relay runs in this database", "SELECT command_ledger.start_relay()."));
    };
    if all.launcher_pid.load(SeqCst) == 0 {
        return Ok(Check::bad(
            NAME,
            "no relay runs, and the launcher does not run either",
            "It is started again within 5 s; if it is not, see the server's log.",
        ));
    }
    use shared::State;
    let (detail, hint) = match shared::find(shared::my_database()).map(shared::Slot::state) {
        Some(State::Starting) => ("the relay is starting", "Look again in a moment."),
        Some(State::Waiting) => {
            ("the relay ended unexpectedly and is started again after a pause of at most 60 s", "See the server's log.")
        }
        Some(State::Held) => (
            "the relay left because a session needs this database empty (DROP, RENAME, TEMPLATE or SET TABLESPACE)",
            "It comes back when that session's transaction has ended.",
        ),
        Some(State::NoWorker) => (
            "no background worker was free for the relay",
            "Raise max_worker_processes and restart the server; until then it is tried again every minute.",
        ),
        Some(State::Absent) => (
            "the launcher did not find the extension in this database when it looked",
            "The next committed command makes it look again.",
        ),
        Some(State::Running | State::Unknown) => ("the relay does not run yet", "Look again in a moment."),
        None => (
            "no relay runs: it was not asked for yet, or all slots of shared memory are taken",
            "The next committed command asks for it; if that does not help, see the server's log.",
        ),
    };
    Ok(Check::bad(NAME, detail, hint))
}

fn relay_enabled() -> Check {
    if settings::RELAY.get() {
        return Check::good("relay_enabled", "command_ledger.relay is on");
    }
    Check::bad(
        "relay_enabled",
        "command_ledger.relay is off: nothing is sent",
        "ALTER SYSTEM SET command_ledger.relay = on; SELECT pg_reload_conf(). Before that make sure that this is not a copy \
         whose original still sends.",
    )
}

fn fenced(connection: &Connection) -> Result<Check, LedgerError> {
    const NAME: &str = "fence";
    if transaction::in_recovery() {
        return Ok(Check::good(NAME, "judged when this server is promoted"));
    }
    const ADOPT: &str = "Make sure that no other copy of this ledger sends, then SELECT command_ledger.adopt_relay(); with \
                         resend => true only if the open commands were certainly not sent.";
    Ok(match fence::state(connection)? {
        Fence::Open => Check::good(NAME, "adopted: this ledger may send from here"),
        Fence::Unadopted if fence::recorded(connection)?.is_none() => Check::bad(
            NAME,
            "not adopted: nothing is sent. The ledger is new, or a copy whose original may still send",
            format!("In a new ledger the first define_destination() adopts it. {ADOPT}"),
        ),
        Fence::Unadopted => Check::bad(NAME, "not adopted: this is a copy of another ledger; nothing is sent", ADOPT),
        Fence::Moved { halted: true } => Check::bad(
            NAME,
            "this ledger runs in another place than the one it was adopted in (promoted, restored or copied): nothing is sent",
            ADOPT,
        ),
        Fence::Moved { halted: false } => Check::bad(
            NAME,
            "this ledger was promoted, restored or copied, and command_ledger.on_failover is continue: destinations that \
             deduplicate go on, everything else is looked up first or waits for a person",
            ADOPT,
        ),
    })
}

fn durability() -> Check {
    const NAME: &str = "durability";
    // SAFETY: reads variables of settings.
    let (fsync, full_pages, commit) =
        unsafe { (pg_sys::enableFsync, pg_sys::fullPageWrites, pg_sys::synchronous_commit) };
    if !fsync || !full_pages {
        return Check::bad(
            NAME,
            format!(
                "fsync is {}, full_page_writes is {}: after a crash the ledger may not remember what it sent",
                if fsync { "on" } else { "off" },
                if full_pages { "on" } else { "off" }
            ),
            "Turn both on; without them nothing here is guaranteed.",
        );
    }
    if commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 {
        return Check::good(
            NAME,
            "fsync is on; synchronous_commit is off in this session: a registration that was answered may be lost in a \
             crash. What is sent is always durable first",
        )
        .hint("SET synchronous_commit = on for sessions that register commands.");
    }
    Check::good(NAME, "fsync and full_page_writes are on; what is sent is always durable first")
}

fn paused(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "paused_destinations";
    let paused: Vec<String> = PAUSED
        .run(connection, &[], 0)?
        .iter()
        .map(|row| {
            let since = row.time(1).map_or_else(String::new, |us| span(now_us - us));
            format!("{} (by {}, for {since})", row.text_or_empty(0), row.text_or_empty(2))
        })
        .collect();
    if paused.is_empty() {
        return Ok(Check::good(NAME, "none"));
    }
    Ok(Check::bad(NAME, paused.join(", "), "SELECT command_ledger.resume(destination) when it may go on."))
}

/// Collects the names of secrets: `{"secret": name}` anywhere under a member `auth`.
fn secret_names(json: &Json, under_auth: bool, names: &mut BTreeSet<String>) {
    match json {
        Json::Object(members) => {
            if let ([(name, Json::String(secret))], true) = (members.as_slice(), under_auth)
                && name == "secret"
            {
                names.insert(secret.to_string());
            }
            for (name, value) in members {
                // A request body and a schema are the user's own, whatever their members are called.
                if under_auth || !matches!(name.as_ref(), "body" | "schema") {
                    secret_names(value, under_auth || name == "auth", names);
                }
            }
        }
        Json::Array(items) => items.iter().for_each(|item| secret_names(item, under_auth, names)),
        _ => {}
    }
}

fn secrets(connection: &Connection) -> Result<Check, LedgerError> {
    const NAME: &str = "secrets";
    let mut names = BTreeSet::new();
    for row in CONFIGS.run(connection, &[], 0)?.iter() {
        if let Some(config) = row.json(0)? {
            secret_names(&config, false, &mut names);
        }
    }
    if names.is_empty() {
        return Ok(Check::good(NAME, "no destination names a secret"));
    }
    let mut store = SecretStore::new(settings::text(&settings::SECRETS_DIRECTORY).map(PathBuf::from));
    let faults: Vec<String> =
        names.iter().filter_map(|name| store.read(name).err().map(|error| format!("{name}: {error}"))).collect();
    if faults.is_empty() {
        return Ok(Check::good(NAME, format!("{} named, all readable", names.len())));
    }
    Ok(Check::bad(
        NAME,
        faults.join("; "),
        "One file per secret in command_ledger.secrets_directory, readable by the server's user; it is read again when it \
         changes.",
    ))
}

fn outbox(connection: &Connection, tenants: Tenants, now_us: i64) -> Result<Check, LedgerError> {
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

fn reconciliation(connection: &Connection, tenants: Tenants, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "reconciliation";
    let row = CASES.first(connection, &[only(tenants)])?;
    let open = row.and_then(|row| row.big(0)).unwrap_or(0);
    if open == 0 {
        return Ok(Check::good(NAME, "no open case"));
    }
    let age_us = row.and_then(|row| row.time(1)).map_or(0, |us| now_us - us);
    let detail = format!("{open} open, the oldest for {}", span(age_us));
    const HINT: &str = "SELECT * FROM command_ledger.reconciliation_queue: each row says what is known and what to do.";
    Ok(if age_us > CASE_OLD_US { Check::bad(NAME, detail, HINT) } else { Check::good(NAME, detail).hint(HINT) })
}

fn clock(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
    const NAME: &str = "clock";
    if let Some(latest_us) = LATEST.first(connection, &[])?.and_then(|row| row.time(0))
        && latest_us > now_us + FUTURE_US
    {
        return Ok(Check::bad(
            NAME,
            format!("the clock was set back: the ledger knows a moment {} ahead of it", span(latest_us - now_us)),
            "Set the clock right; due times, leases, deadlines and approvals are judged by it.",
        ));
    }
    if let Some(slot) = shared::find(shared::my_database()) {
        let (step_us, at_us) = (slot.clock_step_us.load(SeqCst), slot.clock_stepped_at_us.load(SeqCst));
        if step_us != 0 && now_us - at_us < RECENT_US {
            let way = if step_us < 0 { "back" } else { "forward" };
            return Ok(Check::bad(
                NAME,
                format!("the clock was set {way} by {}, {} ago", span(step_us.abs()), span(now_us - at_us)),
                "Leases, deadlines and windows that were running then are off by as much. Slew the clock instead of \
                 stepping it.",
            ));
        }
    }
    Ok(Check::good(NAME, "no step seen"))
}

fn worker_slots(now_us: i64) -> Check {
    const NAME: &str = "worker_slots";
    // SAFETY: reads the variable of a setting.
    let max = unsafe { pg_sys::max_worker_processes };
    let refused = shared::shared()
        .and_then(|all| all.slots.iter().map(|slot| slot.refused_at_us.load(SeqCst)).max())
        .filter(|us| *us != 0 && now_us - us < RECENT_US);
    match refused {
        Some(at_us) => Check::bad(
            NAME,
            format!(
                "a relay found no free background worker {} ago (max_worker_processes is {max})",
                span(now_us - at_us)
            ),
            "Each database with a ledger needs one, and one more where it has function destinations; the launcher needs one: \
             raise max_worker_processes and restart.",
        ),
        None => Check::good(NAME, format!("max_worker_processes is {max}; no relay was refused one in the last hour")),
    }
}

fn other_identity(connection: &Connection, tenants: Tenants) -> Result<Check, LedgerError> {
    const NAME: &str = "other_identity";
    let own = fence::identity_tag(fence::identity());
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

/// `health()`
pub fn health(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let set = RowSet::start(call)?;
    let checks = as_owner(call, |caller, connection| {
        const LOOKING_AFTER: [Capability; 3] = [Capability::Audit, Capability::Operate, Capability::Administer];
        let Some(tenants) = tenants_of(caller, connection, &LOOKING_AFTER)? else {
            return Err(LedgerError::new(
                Code::InsufficientPrivilege,
                format!("role {} may not see the state of the ledger", caller.name()),
            )
            .hint("An administrator can allow it: SELECT command_ledger.grant_access(role, 'audit')."));
        };
        let tenants = tenants.as_deref();
        let now_us = datum::now_us();
        Ok([
            preloaded(),
            standby(),
            relay_running(connection, now_us)?,
            functions::worker(connection, tenants, now_us)?,
            relay_enabled(),
            fenced(connection)?,
            durability(),
            paused(connection, now_us)?,
            secrets(connection)?,
            outbox(connection, tenants, now_us)?,
            reconciliation(connection, tenants, now_us)?,
            clock(connection, now_us)?,
            worker_slots(now_us),
            other_identity(connection, tenants)?,
        ])
    })?;
    for check in checks {
        set.push(&[
            Some(datum::text(check.name)),
            Some(Datum::from(check.ok)),
            Some(datum::text(&check.detail)),
            check.hint.as_deref().map(datum::text),
        ])?;
    }
    Ok(None)
}

crate::sql_function!(ledger_health, pg_finfo_ledger_health, health);
