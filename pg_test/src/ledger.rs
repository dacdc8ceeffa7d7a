//! Helpers over the SQL surface of the ledger.

use std::ops::{Deref, DerefMut};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::Process;
use crate::session::{Lit, Params, Session, SqlError};

/// How long a command may take to come to rest before a test gives up, in seconds.
const SETTLE_LIMIT_S: u32 = 60;

/// What every function of the ledger answers about a command. Times are text as the server prints them; numbers in
/// `result` go through f64, so exact amounts are asserted in SQL.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[allow(missing_docs, reason = "the fields are the columns of the composite type command_ledger")]
pub struct Receipt {
    pub command_id: String,
    pub tenant: String,
    pub idempotency_key: String,
    pub command_type: String,
    pub type_version: i32,
    pub status: String,
    pub outcome: Option<String>,
    pub destination: Option<String>,
    pub destination_key: Option<String>,
    pub destination_record_id: Option<String>,
    pub result: Option<Value>,
    pub params_hash: Option<String>,
    pub intent_hash: Option<String>,
    pub attempt: i32,
    pub maybe_sent: bool,
    pub reconciliation_required: bool,
    pub approvals_missing: Option<i32>,
    pub retry_at: Option<String>,
    pub deadline: Option<String>,
    pub error: Option<String>,
    pub error_message: Option<String>,
    pub registered_at: Option<String>,
    pub updated_at: Option<String>,
}

/// The ledger of one database, through one session (which it dereferences to).
pub struct Ledger {
    session: Session,
}

impl Deref for Ledger {
    type Target = Session;
    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Ledger {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Ledger {
    /// Over a session of a database that has the extension.
    pub fn over(session: Session) -> Ledger {
        Ledger { session }
    }

    /// The session itself.
    pub fn into_session(self) -> Session {
        self.session
    }

    /// The same ledger as another role sees it.
    pub fn as_role(&self, role: &str) -> Ledger {
        Ledger::over(self.session.another_as(role))
    }

    /// Defines a destination from its whole document.
    pub fn define_destination(&mut self, name: &str, config: Value) {
        self.rows("SELECT command_ledger.define_destination($1, $2)", &[&name, &Lit(&config.to_string())]);
    }

    /// Defines an http destination that posts to `url`; `overrides` is merged into the document member by member
    /// (null removes one).
    pub fn define_http_destination(&mut self, name: &str, url: &str, overrides: Value) {
        let mut config = json!({ "transport": "http", "request": { "url": url } });
        merge(&mut config, overrides);
        self.define_destination(name, config);
    }

    /// Defines a command type.
    pub fn define_type(&mut self, name: &str, policy: Value) {
        self.rows("SELECT command_ledger.define_command_type($1, $2)", &[&name, &Lit(&policy.to_string())]);
    }

    /// Registers a command.
    pub fn register(&mut self, command_type: &str, key: &str, params: Value) -> Receipt {
        self.register_with(command_type, key, params, json!({}))
    }

    /// Registers with further named arguments: `json!({"tenant": "acme", "deadline": "2030-01-01"})`.
    pub fn register_with(&mut self, command_type: &str, key: &str, params: Value, named: Value) -> Receipt {
        self.try_register_with(command_type, key, params, named)
            .unwrap_or_else(|e| panic!("register {command_type} {key}: {e}"))
    }

    /// Registers, or says why not.
    pub fn try_register(&mut self, command_type: &str, key: &str, params: Value) -> Result<Receipt, SqlError> {
        self.try_register_with(command_type, key, params, json!({}))
    }

    /// Registers with further named arguments, or says why not.
    pub fn try_register_with(
        &mut self,
        command_type: &str,
        key: &str,
        params: Value,
        named: Value,
    ) -> Result<Receipt, SqlError> {
        let params = params.to_string();
        let mut arguments =
            vec![("command_type".to_owned(), command_type.to_owned()), ("idempotency_key".to_owned(), key.to_owned())];
        arguments.push(("params".to_owned(), params));
        arguments.extend(named_arguments(named));
        self.try_call("register", &arguments)
    }

    /// Calls any function that answers a receipt, with named arguments: `call("cancel", json!({...}))`.
    pub fn call(&mut self, function: &str, named: Value) -> Receipt {
        self.try_call(function, &named_arguments(named)).unwrap_or_else(|e| panic!("{function}: {e}"))
    }

    /// The same, or its error.
    pub fn try_call_named(&mut self, function: &str, named: Value) -> Result<Receipt, SqlError> {
        self.try_call(function, &named_arguments(named))
    }

    fn try_call(&mut self, function: &str, arguments: &[(String, String)]) -> Result<Receipt, SqlError> {
        let list: Vec<String> =
            arguments.iter().enumerate().map(|(i, (name, _))| format!("{name} => ${}", i + 1)).collect();
        let sql =
            format!("SELECT pg_catalog.to_jsonb(r)::text FROM command_ledger.{function}({}) AS r", list.join(", "));
        let values: Vec<Lit> = arguments.iter().map(|(_, value)| Lit(value)).collect();
        let params: Vec<&(dyn postgres::types::ToSql + Sync)> = values.iter().map(|value| value as _).collect();
        let mut receipts = self.receipts(&sql, &params)?;
        assert!(receipts.len() == 1, "{} rows, expected one, from {function}", receipts.len());
        Ok(receipts.remove(0))
    }

    fn receipts(&mut self, sql: &str, params: Params) -> Result<Vec<Receipt>, SqlError> {
        let rows = self.try_rows(sql, params)?;
        let read = |row: &postgres::Row| {
            let text: String = row.try_get(0).unwrap_or_else(|e| panic!("{e}\nof: {sql}"));
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("not a receipt ({e}): {text}"))
        };
        Ok(rows.iter().map(read).collect())
    }

    /// What is known of a command; None when the key is unknown.
    pub fn find(&mut self, key: &str) -> Option<Receipt> {
        let sql = "SELECT pg_catalog.to_jsonb(r)::text FROM command_ledger.status($1) AS r";
        self.receipts(sql, &[&key]).unwrap_or_else(|e| panic!("status of {key}: {e}")).pop()
    }

    /// What is known of a command, which must be known.
    pub fn status(&mut self, key: &str) -> Receipt {
        self.find(key).unwrap_or_else(|| panic!("no command {key}"))
    }

    /// Waits until the command has this status.
    pub fn wait_status(&mut self, key: &str, status: &str) -> Receipt {
        let sql = format!("SELECT status = '{status}' FROM command_ledger.status('{}')", key.replace('\'', "''"));
        self.wait_until(&sql, SETTLE_LIMIT_S);
        self.status(key)
    }

    /// The pid of this database's relay worker; waits until there is one.
    pub fn relay_pid(&mut self) -> u32 {
        let relay = relay_query(self.database());
        self.wait_until(&format!("SELECT EXISTS ({relay})"), SETTLE_LIMIT_S);
        let pid = self.one::<i32>(&relay, &[]);
        pid.cast_unsigned()
    }

    /// kill -9 of this database's relay worker. The server ends all sessions and recovers: this ledger gets a new
    /// session.
    pub fn kill9_relay(&mut self) {
        let pid = self.relay_pid();
        self.session.kill9_backend(pid);
        // The postmaster notices a moment later: a session made before that would die with the old ones.
        for _ in 0..1_000 {
            if self.session.try_exec("SELECT 1").is_err() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.reconnect();
    }

    /// SIGTERM to this database's relay worker, then waits until it is gone.
    pub fn terminate_relay(&mut self) {
        let pid = self.relay_pid();
        let relay = Process::find(pid).unwrap_or_else(|| panic!("no process {pid}"));
        relay.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(relay.wait_gone(60), "the relay {pid} ignores SIGTERM\n{}", self.ledger_report());
    }

    /// A new session in place of one that the server ended; waits for the server.
    pub fn reconnect(&mut self) {
        self.session = self.session.another();
    }

    /// Arms a failpoint of the test build (`hang`, `crash`, `panic`, `sleep:MS`) in every process of the cluster.
    pub fn failpoint(&mut self, name: &str, action: &str) {
        self.load_library();
        self.session.alter_system("command_ledger.failpoint", Some(&format!("{name}={action}")));
    }

    /// Disarms all failpoints.
    pub fn failpoints_off(&mut self) {
        self.load_library();
        self.session.alter_system("command_ledger.failpoint", None);
    }

    /// Settings of the extension are known to a session only with its library.
    fn load_library(&mut self) {
        self.session.exec("LOAD 'command_ledger'");
    }
}

fn relay_query(database: &str) -> String {
    format!(
        "SELECT pid FROM pg_catalog.pg_stat_activity WHERE datname = '{}' AND (backend_type ILIKE \
         'command_ledger relay%' OR application_name ILIKE 'command_ledger relay%') LIMIT 1",
        database.replace('\'', "''")
    )
}

/// Names and values as SQL text: strings as they are, null left out, everything else as JSON.
fn named_arguments(named: Value) -> Vec<(String, String)> {
    let Value::Object(members) = named else { panic!("named arguments are an object, not {named}") };
    let text = |value: Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    };
    members.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// JSON merge patch: objects member by member, null removes, everything else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(target) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(&name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn merging_replaces_values_adds_members_and_removes_nulls() {
        let mut document = json!({ "request": { "url": "a", "method": "POST" }, "x": 1 });
        super::merge(&mut document, json!({ "request": { "url": "b", "timeout": "1s" }, "x": null }));
        assert_eq!(document, json!({ "request": { "url": "b", "method": "POST", "timeout": "1s" } }));
    }
}
