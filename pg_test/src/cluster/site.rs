//! Where a cluster lives: its directory, port, log and programs.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::programs::Programs;

/// A unix socket's path holds 107 bytes; `/.s.PGSQL.65535` needs 15 of them.
const SOCKET_DIRECTORY_MAX_BYTES: usize = 92;
/// How many lines of the log a failure shows.
const LOG_TAIL_LINES: usize = 60;

/// The place of one cluster; shared by the cluster and its sessions.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) programs: Programs,
    pub(crate) directory: PathBuf,
    /// Variables of the server's environment.
    pub(crate) environment: Vec<(String, String)>,
    port: AtomicU16,
}

impl Site {
    /// A new directory and a port that was free a moment ago.
    pub(crate) fn new(programs: Programs) -> Site {
        let directory = new_directory(&programs, "c");
        Site { programs, directory, environment: Vec::new(), port: AtomicU16::new(free_port()) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// Takes another free port: somebody was quicker with the first.
    pub(crate) fn change_port(&self) {
        self.port.store(free_port(), Ordering::Relaxed);
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.directory.join("log")
    }

    pub(crate) fn log(&self) -> String {
        fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The end of the log, framed, for a failure's report.
    pub(crate) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("--- server log of {} ---\n{}\n---", self.directory.display(), tail.join("\n"))
    }

    /// A client program of PostgreSQL with this cluster's address.
    pub(crate) fn client_program(&self, program: &str) -> Command {
        let mut command = self.programs.command(program, &self.directory);
        command.env("PGHOST", &self.directory).env("PGPORT", self.port().to_string()).env("PGUSER", "postgres");
        command
    }

    pub(crate) fn append_setting(&self, name: &str, value: &str) {
        let path = self.data().join("postgresql.conf");
        let line = format!("{name} = '{}'\n", value.replace('\'', "''"));
        let written = File::options().append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    pub(crate) fn write_file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.directory.join(name);
        if let Some(parent) = path.parent()
            && parent != self.directory
        {
            self.programs.make_directory(parent);
        }
        // Written aside and renamed, so that a reader never sees half of it.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, content)
            .and_then(|()| fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600)))
            .unwrap_or_else(|e| panic!("{}: {e}", unfinished.display()));
        self.programs.hand_over(&unfinished);
        fs::rename(&unfinished, &path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

/// A new directory of the server's user, with a path short enough for a unix socket.
pub(crate) fn new_directory(programs: &Programs, purpose: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ledger_{purpose}.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut directory = std::env::temp_dir().join(&name);
    if directory.as_os_str().len() > SOCKET_DIRECTORY_MAX_BYTES {
        directory = PathBuf::from("/tmp").join(&name);
    }
    // Left by an earlier process with the same pid.
    let _ = fs::remove_dir_all(&directory);
    programs.make_directory(&directory);
    directory
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .unwrap_or_else(|e| panic!("no free port: {e}"))
}
