//! Whether the relay runs and may send, and whether it has what it needs.

use super::{Check, span};
use crate::ledger::fence;
use crate::pg::spi::{Connection, Mode, Statement};
use crate::pg::transaction;
use crate::relay::{lock, shared};
use crate::settings;
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::fence::Fence;
use command_ledger_domain::json::Json;
use command_ledger_wire::SecretStore;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

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

pub fn running(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
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

pub fn enabled() -> Check {
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

pub fn fenced(connection: &Connection) -> Result<Check, LedgerError> {
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

pub fn paused(connection: &Connection, now_us: i64) -> Result<Check, LedgerError> {
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

pub fn secrets(connection: &Connection) -> Result<Check, LedgerError> {
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
