//! Sessions: SQL with plain answers. A call that fails ends the test with the statement and the server's words; the
//! `try_` variants hand the error over.

mod background;
mod error;
mod lit;
mod waiting;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use postgres::types::{FromSqlOwned, ToSql};
use postgres::{Client, Config, NoTls, Row, SimpleQueryMessage};

pub use background::{Pending, in_parallel};
pub use error::SqlError;
pub use lit::Lit;

use crate::cluster::Site;
use crate::process::Process;

/// Parameters of a statement.
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// No statement of a test takes longer; one that does hangs, and the test should end with its text.
const STATEMENT_TIMEOUT_MS: u32 = 180_000;
/// How often a connection is tried while the server starts or recovers (every 50 ms).
const CONNECT_ATTEMPTS: u32 = 1_200;
/// How often a connection is tried again that broke while it was made.
const DROPPED_ATTEMPTS: u32 = 20;
/// `cannot_connect_now`: starting up, shutting down, recovering.
const CANNOT_CONNECT_NOW: &str = "57P03";

/// One connection.
pub struct Session {
    client: Client,
    site: Arc<Site>,
    database: String,
    role: String,
    backend_pid: u32,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Session {
    /// Whether the server of this site accepts connections.
    pub(crate) fn answers(site: &Site) -> bool {
        match config(site, "postgres", "postgres").connect(NoTls) {
            Ok(_) => true,
            Err(error) => {
                let error = SqlError::from(error);
                !error.is_connection_lost() && error.sqlstate != CANNOT_CONNECT_NOW
            }
        }
    }

    /// Connects, and waits while the server is starting up or recovering.
    pub(crate) fn open(site: &Arc<Site>, database: &str, role: &str) -> Result<Session, SqlError> {
        let mut last = Session::open_once(site, database, role);
        let mut dropped = 0;
        for _ in 0..CONNECT_ATTEMPTS {
            match &last {
                Err(error) if error.sqlstate == CANNOT_CONNECT_NOW => {}
                // A server that ends its sessions because one was killed drops new ones as well, for a moment.
                Err(error) if error.is_connection_lost() && dropped < DROPPED_ATTEMPTS => dropped += 1,
                _ => break,
            }
            sleep(Duration::from_millis(50));
            last = Session::open_once(site, database, role);
        }
        last
    }

    pub(crate) fn open_once(site: &Arc<Site>, database: &str, role: &str) -> Result<Session, SqlError> {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&notices);
        let mut client = config(site, database, role)
            .options(&format!("-c statement_timeout={STATEMENT_TIMEOUT_MS}"))
            .notice_callback(move |notice| {
                let text = format!("{}: {}", notice.severity(), notice.message());
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            })
            .connect(NoTls)?;
        let pid: i32 = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[])?.try_get(0)?;
        Ok(Session {
            client,
            site: Arc::clone(site),
            database: database.to_owned(),
            role: role.to_owned(),
            backend_pid: pid.cast_unsigned(),
            notices,
        })
    }

    /// Another session of the same database and role.
    pub fn another(&self) -> Session {
        self.another_as(&self.role)
    }

    /// Another session of the same database, as another role.
    pub fn another_as(&self, role: &str) -> Session {
        Session::open(&self.site, &self.database, role)
            .unwrap_or_else(|e| panic!("connect to {} as {role}: {e}", self.database))
    }

    /// The database it is connected to.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The pid of its backend.
    pub fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Notices and warnings since the last call, as `SEVERITY: text`.
    pub fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The rows of a query, or its error.
    pub fn try_rows(&mut self, sql: &str, params: Params) -> Result<Vec<Row>, SqlError> {
        Ok(self.client.query(sql, params)?)
    }

    /// The rows of a query.
    pub fn rows(&mut self, sql: &str, params: Params) -> Vec<Row> {
        self.try_rows(sql, params).unwrap_or_else(|e| failed(sql, &e))
    }

    /// The one row of a query.
    pub fn row(&mut self, sql: &str, params: Params) -> Row {
        let mut rows = self.rows(sql, params);
        assert!(rows.len() == 1, "{} rows, expected one, of: {sql}", rows.len());
        rows.remove(0)
    }

    /// The one value of a query.
    pub fn one<T: FromSqlOwned>(&mut self, sql: &str, params: Params) -> T {
        self.row(sql, params).try_get(0).unwrap_or_else(|e| panic!("{e}\nof: {sql}"))
    }

    /// The first column of all rows.
    pub fn column<T: FromSqlOwned>(&mut self, sql: &str, params: Params) -> Vec<T> {
        let rows = self.rows(sql, params);
        rows.iter().map(|row| row.try_get(0).unwrap_or_else(|e| panic!("{e}\nof: {sql}"))).collect()
    }

    /// A statement with parameters; how many rows it touched.
    pub fn run(&mut self, sql: &str, params: Params) -> u64 {
        self.try_run(sql, params).unwrap_or_else(|e| failed(sql, &e))
    }

    /// The same, or its error.
    pub fn try_run(&mut self, sql: &str, params: Params) -> Result<u64, SqlError> {
        Ok(self.client.execute(sql, params)?)
    }

    /// One or more statements without parameters. Several in one text are one implicit transaction.
    pub fn exec(&mut self, sql: &str) {
        self.try_exec(sql).unwrap_or_else(|e| failed(sql, &e));
    }

    /// The same, or its error.
    pub fn try_exec(&mut self, sql: &str) -> Result<(), SqlError> {
        Ok(self.client.batch_execute(sql)?)
    }

    /// The first value of a statement as text, whatever its type; NULL and no row fail the test.
    pub fn text(&mut self, sql: &str) -> String {
        self.maybe_text(sql).unwrap_or_else(|| panic!("NULL or no row from: {sql}"))
    }

    /// The first value as text; None for NULL or no row.
    pub fn maybe_text(&mut self, sql: &str) -> Option<String> {
        self.try_text(sql).unwrap_or_else(|e| failed(sql, &e))
    }

    /// The first value as text, or the error.
    pub fn try_text(&mut self, sql: &str) -> Result<Option<String>, SqlError> {
        let (_, rows) = self.try_table(sql)?;
        Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten())
    }

    /// Column names and all values as text.
    pub fn try_table(&mut self, sql: &str) -> Result<TextTable, SqlError> {
        let mut names = Vec::new();
        let mut rows = Vec::new();
        for message in self.client.simple_query(sql)? {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    names = columns.iter().map(|column| column.name().to_owned()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect());
                }
                _ => {}
            }
        }
        Ok((names, rows))
    }

    /// All values as text.
    pub fn table(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.try_table(sql).unwrap_or_else(|e| failed(sql, &e)).1
    }

    /// The statement must fail with this SQLSTATE; the error, for more assertions.
    pub fn expect_sqlstate(&mut self, sqlstate: &str, sql: &str) -> SqlError {
        match self.try_exec(sql) {
            Ok(()) => panic!("succeeded, expected {sqlstate}: {sql}"),
            Err(error) if error.sqlstate == sqlstate => error,
            Err(error) => panic!("expected {sqlstate}, got {error}\nof: {sql}"),
        }
    }

    /// ALTER SYSTEM SET (None: RESET) and reload; returns when new sessions see it. The value is one string: a list
    /// setting takes one element.
    pub fn alter_system(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.exec(&format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''"))),
            None => self.exec(&format!("ALTER SYSTEM RESET {name}")),
        }
        let loaded_at = self.another().text("SELECT pg_catalog.pg_conf_load_time()");
        self.exec("SELECT pg_catalog.pg_reload_conf()");
        for _ in 0..500 {
            // A new session inherits what the postmaster has loaded.
            if self.another().text("SELECT pg_catalog.pg_conf_load_time()") != loaded_at {
                if value.is_some() {
                    self.wait_until_relays_rest();
                }
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("the server does not reload its settings\n{}", self.site.log_tail());
    }

    /// The relays were told of the reload by now, and one that rests for a moment has taken it in. One that hangs at a
    /// failpoint never rests: waits a while, and goes on.
    fn wait_until_relays_rest(&mut self) {
        let busy = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type LIKE 'command_ledger relay%' \
                     AND (state <> 'idle' OR state_change > clock_timestamp() - interval '100 ms')";
        for _ in 0..100 {
            if self.one::<i64>(busy, &[]) == 0 {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// kill -9 of one backend (or worker) of this server, then waits until it is gone: the server ends all other
    /// sessions and recovers, `Cluster::connect` waits for that.
    pub fn kill9_backend(&self, pid: u32) {
        let process = Process::find(pid).unwrap_or_else(|| panic!("no process {pid}"));
        process.kill9();
        assert!(process.wait_gone(30), "process {pid} survives kill -9");
    }
}

/// Column names, and rows of values as text (None: NULL).
pub type TextTable = (Vec<String>, Vec<Vec<Option<String>>>);

fn config(site: &Site, database: &str, role: &str) -> Config {
    let mut config = Config::new();
    config.host_path(&site.directory).port(site.port()).user(role).dbname(database).application_name("pg_test");
    config
}

fn failed(sql: &str, error: &SqlError) -> ! {
    panic!("{error}\nof: {sql}")
}
