//! Waiting for a state, and telling what the state was when it did not come.

use std::thread::sleep;
use std::time::Duration;

use super::Session;

/// Two looks at the state are this far apart.
const POLL_MS: u32 = 25;
/// What a failed wait shows of the ledger, newest first.
const LEDGER_STATE: &[&str] = &[
    "SELECT * FROM command_ledger.command ORDER BY 1, 2 LIMIT 20",
    "SELECT * FROM command_ledger.outbox LIMIT 20",
    "SELECT * FROM command_ledger.reconciliation_case LIMIT 20",
    "SELECT * FROM command_ledger.timeline LIMIT 60",
    "SELECT * FROM command_ledger.health()",
];

impl Session {
    /// Polls a query until its value is true. When it is not after about `limit_s` seconds, the test fails with the
    /// query, its last value, the ledger's tables and the end of the server's log.
    pub fn wait_until(&mut self, sql: &str, limit_s: u32) {
        let mut last = None;
        for _ in 0..limit_s.saturating_mul(1000 / POLL_MS).max(1) {
            last = self.maybe_text(sql);
            if last.as_deref() == Some("t") {
                return;
            }
            sleep(Duration::from_millis(POLL_MS.into()));
        }
        let last = last.unwrap_or_else(|| "NULL or no row".to_owned());
        panic!("not true after {limit_s} s (last value: {last}): {sql}\n{}", self.ledger_report());
    }

    /// Waits until the backend waits for a lock of another session.
    pub fn wait_for_lock_wait(&mut self, backend_pid: u32) {
        self.wait_until(
            &format!(
                "SELECT wait_event_type = 'Lock' AND pg_catalog.cardinality(pg_catalog.pg_blocking_pids(pid)) > 0 \
                 FROM pg_catalog.pg_stat_activity WHERE pid = {backend_pid}"
            ),
            60,
        );
    }

    /// The ledger's tables (where this database has them) and the end of the server's log.
    pub fn ledger_report(&self) -> String {
        let mut report = String::new();
        match Session::open(&self.site, &self.database, "postgres") {
            Ok(mut session) => {
                let known = session.try_text("SELECT pg_catalog.to_regclass('command_ledger.command') IS NOT NULL");
                if known == Ok(Some("t".to_owned())) {
                    for sql in LEDGER_STATE {
                        report.push_str(&format!("--- {sql}\n{}", session.shown(sql)));
                    }
                }
            }
            Err(error) => report.push_str(&format!("no connection for a report: {error}\n")),
        }
        report.push_str(&self.site.log_tail());
        report
    }

    /// The result of a query for a person: one line per value, rows apart, NULLs left out.
    pub fn shown(&mut self, sql: &str) -> String {
        match self.try_table(sql) {
            Err(error) => format!("{error}\n"),
            Ok((_, rows)) if rows.is_empty() => "(no rows)\n".to_owned(),
            Ok((names, rows)) => {
                let width = names.iter().map(String::len).max().unwrap_or(0);
                let mut text = String::new();
                for row in rows {
                    for (name, value) in names.iter().zip(row) {
                        if let Some(value) = value {
                            text.push_str(&format!("  {name:width$}  {value}\n"));
                        }
                    }
                    text.push('\n');
                }
                text
            }
        }
    }
}
