//! Throwaway clusters: booted in about a second, killed in any way, restarted, copied, and gone when dropped.

mod builder;
mod copies;
mod dump;
mod guardian;
mod programs;
mod server;
mod site;
mod template;
mod upgrade;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

pub use builder::ClusterBuilder;
pub use copies::Replication;
pub use dump::{Dump, DumpFormat};
pub use server::Mode;

use crate::ledger::Ledger;
use crate::session::{Session, SqlError};
use guardian::Guardian;
use server::Server;
pub(crate) use site::Site;

/// One PostgreSQL cluster of a test. All methods take `&self`: a test may share it between threads, or keep it in a
/// `static` (a guardian process cleans up when the test process ends).
///
/// On drop the server is stopped by pid and the files are removed. When the test failed, the tail of the server's log
/// is printed, and `LEDGER_KEEP=1` keeps the files.
#[derive(Debug)]
pub struct Cluster {
    site: Arc<Site>,
    server: Mutex<Option<Server>>,
    _guardian: Guardian,
}

impl Cluster {
    /// A cluster to be configured: `Cluster::builder().setting("fsync", "off").preload(true).start()`.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// A cluster as it comes: no extension preloaded, fsync on.
    pub fn start() -> Cluster {
        Cluster::builder().start()
    }

    fn at(site: Site) -> Cluster {
        let guardian = Guardian::watch(&site.directory, keeps_files());
        Cluster { site: Arc::new(site), server: Mutex::new(None), _guardian: guardian }
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Starts the stopped server on the same port, and waits until it accepts connections.
    pub fn start_again(&self) {
        self.try_start_again().unwrap_or_else(|e| panic!("{e}"));
    }

    /// The same with further arguments of the program `postgres`: `&["-b"]` is what pg_upgrade starts it with.
    pub fn start_with(&self, arguments: &[&str]) {
        self.try_start_with(arguments).unwrap_or_else(|e| panic!("{e}"));
    }

    /// As `start_again()`, or why it does not start, with the end of its log.
    pub fn try_start_again(&self) -> Result<(), String> {
        self.try_start_with(&[])
    }

    fn try_start_with(&self, arguments: &[&str]) -> Result<(), String> {
        let mut server = self.server();
        assert!(server.is_none(), "the server runs already");
        *server = Some(Server::start(&self.site, arguments).map_err(|e| format!("{e}\n{}", self.site.log_tail()))?);
        Ok(())
    }

    /// Starts the stopped server and expects that it refuses to start; answers what its log says.
    pub fn start_expecting_refusal(&self) -> String {
        let mark = self.log_mark();
        match Server::start(&self.site, &[]) {
            Ok(server) => {
                *self.server() = Some(server);
                panic!("the server started, which it should not");
            }
            Err(_) => self.log_since(mark),
        }
    }

    /// Stops the server and waits until it is gone; a server that is not gone within a minute fails the test.
    pub fn stop(&self, mode: Mode) {
        assert!(self.stop_within(mode, 60), "{mode:?} stop: still running after 60 s\n{}", self.site.log_tail());
    }

    /// Asks the server to stop; false when it still runs after the limit.
    pub fn stop_within(&self, mode: Mode, limit_s: u32) -> bool {
        let mut server = self.server();
        let gone = server.as_mut().is_none_or(|server| server.stop(mode, limit_s));
        if gone {
            *server = None;
        }
        gone
    }

    /// kill -9 the postmaster alone, then wait until it and all its children are gone: the children notice and leave
    /// on their own; one that is still there after 10 s (busy, or hung in a failpoint) is killed as well, because
    /// what it holds in shared memory would keep the next server from starting.
    pub fn kill9_postmaster(&self) {
        self.take_running().kill9_postmaster();
    }

    /// kill -9 every process of the server at one moment, so that none of them can notice: as a power cut, except
    /// that what the kernel already holds reaches the disk.
    pub fn kill9_everything(&self) {
        self.take_running().kill9_everything();
    }

    /// `kill9_postmaster()` and `start_again()`.
    pub fn crash_restart(&self) {
        self.kill9_postmaster();
        self.start_again();
    }

    /// A clean stop and start.
    pub fn restart(&self) {
        self.stop(Mode::Fast);
        self.start_again();
    }

    fn take_running(&self) -> Server {
        self.server().take().unwrap_or_else(|| panic!("the server does not run"))
    }

    /// The postmaster's pid.
    pub fn pid(&self) -> u32 {
        self.server().as_ref().map(Server::pid).unwrap_or_else(|| panic!("the server does not run"))
    }

    /// Whether the postmaster runs.
    pub fn is_running(&self) -> bool {
        self.server().as_mut().is_some_and(Server::is_running)
    }

    /// The TCP port on 127.0.0.1 (the unix socket has the same number).
    pub fn port(&self) -> u16 {
        self.site.port()
    }

    /// The directory of its programs.
    pub fn programs_directory(&self) -> PathBuf {
        self.site.programs.directory().to_owned()
    }

    /// The data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.site.data()
    }

    /// The cluster's own directory: data, log, socket; removed with the cluster. A place for secrets and files that
    /// the server must read (it belongs to the server's user).
    pub fn directory(&self) -> &Path {
        &self.site.directory
    }

    /// Writes a file below `directory()`, readable by the server's user alone; answers its path.
    pub fn write_file(&self, name: &str, content: &str) -> PathBuf {
        self.site.write_file(name, content)
    }

    /// Makes a directory below `directory()` that belongs to the server's user; its path.
    pub fn make_directory(&self, name: &str) -> PathBuf {
        let path = self.site.directory.join(name);
        self.site.programs.make_directory(&path);
        path
    }

    /// One of PostgreSQL's client programs, as the superuser of this cluster, ready for its arguments.
    pub fn client_program(&self, name: &str) -> Command {
        self.site.client_program(name)
    }

    /// A program of our own, to run beside the server as the server's user and never as root. It is copied into
    /// `directory()`, because that user may not be able to read where it was built.
    pub fn unprivileged_command(&self, program: &Path) -> Command {
        let name = program.file_name().unwrap_or_else(|| panic!("{} is no program", program.display()));
        let copy = self.make_directory("programs").join(name);
        if !copy.exists() {
            std::fs::copy(program, &copy).unwrap_or_else(|e| panic!("copy {}: {e}", program.display()));
            self.site.programs.hand_over(&copy);
        }
        self.site.programs.any_command(&copy, &self.site.directory)
    }

    /// The server's whole log.
    pub fn log(&self) -> String {
        self.site.log()
    }

    /// Where the log ends now, for `log_since`.
    pub fn log_mark(&self) -> usize {
        self.site.log().len()
    }

    /// What was logged since the mark.
    pub fn log_since(&self, mark: usize) -> String {
        self.site.log().get(mark..).unwrap_or_default().to_owned()
    }

    /// Waits until the text stands in the log after the mark; fails after the limit.
    pub fn wait_for_log(&self, text: &str, mark: usize, limit_s: u32) {
        for _ in 0..limit_s.saturating_mul(20).max(1) {
            if self.log_since(mark).contains(text) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("not in the log after {limit_s} s: {text:?}\n{}", self.site.log_tail());
    }

    /// ALTER SYSTEM SET and reload; returns when new sessions see it (others follow at their next statement).
    pub fn set(&self, name: &str, value: &str) {
        self.connect("postgres").alter_system(name, Some(value));
    }

    /// ALTER SYSTEM RESET and reload.
    pub fn reset(&self, name: &str) {
        self.connect("postgres").alter_system(name, None);
    }

    /// Appends a setting to postgresql.conf: for a stopped server, such as a fresh copy.
    pub fn append_setting(&self, name: &str, value: &str) {
        self.site.append_setting(name, value);
    }

    /// A session of the superuser `postgres`. Waits while the server is starting up or recovering.
    pub fn connect(&self, database: &str) -> Session {
        self.connect_as(database, "postgres")
    }

    /// A session of another role.
    pub fn connect_as(&self, database: &str, role: &str) -> Session {
        Session::open(&self.site, database, role)
            .unwrap_or_else(|e| panic!("connect to {database} as {role}: {e}\n{}", self.site.log_tail()))
    }

    /// A session, or why there is none.
    pub fn try_connect(&self, database: &str, role: &str) -> Result<Session, SqlError> {
        Session::open_once(&self.site, database, role)
    }

    /// The ledger of a database: the database and the extension are created where they are missing.
    pub fn ledger(&self, database: &str) -> Ledger {
        let known = self
            .connect("postgres")
            .one::<bool>("SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1)", &[&database]);
        if !known {
            self.create_database(database);
        }
        let mut session = self.connect(database);
        session.exec("CREATE EXTENSION IF NOT EXISTS command_ledger");
        Ledger::over(session)
    }

    /// CREATE DATABASE.
    pub fn create_database(&self, name: &str) {
        self.connect("postgres").exec(&format!("CREATE DATABASE \"{name}\""));
    }

    /// DROP DATABASE.
    pub fn drop_database(&self, name: &str) {
        self.connect("postgres").exec(&format!("DROP DATABASE \"{name}\""));
    }

    /// Runs SQL through psql (unaligned, tuples only, stops at the first error); its output.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql).unwrap_or_else(|e| panic!("{e}\nof: {sql}"))
    }

    /// The same where an error is an answer: psql's error output.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = self.site.client_program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql]);
        programs::try_run(&mut command)
    }

    /// Runs `work` in `n` sessions at once: all connect first, then start together. Answers in order; the first panic
    /// of a session is the caller's.
    pub fn in_parallel<T: Send>(
        &self,
        database: &str,
        n: usize,
        work: impl Fn(usize, &mut Session) -> T + Sync,
    ) -> Vec<T> {
        let sessions: Vec<Session> = (0..n).map(|_| self.connect(database)).collect();
        crate::session::in_parallel(sessions, work)
    }
}

/// `LEDGER_KEEP=1`: the files of a failed test stay.
fn keeps_files() -> bool {
    std::env::var("LEDGER_KEEP").is_ok_and(|value| value == "1")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            eprintln!("{}", self.site.log_tail());
        }
        if let Some(mut server) = self.server().take()
            && !server.stop(Mode::Immediate, 15)
        {
            server.kill9_everything();
        }
        if failed && keeps_files() {
            eprintln!("kept: {}", self.site.directory.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.site.directory);
        }
    }
}
