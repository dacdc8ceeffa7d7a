//! The server's programs, and the user they run as: never root.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::unistd::{User, geteuid};

/// Variables of the caller's shell that would change what the programs talk to.
const CONFUSING_VARIABLES: &[&str] = &[
    "PGDATA",
    "PGHOST",
    "PGHOSTADDR",
    "PGPORT",
    "PGUSER",
    "PGDATABASE",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSERVICE",
    "PGSERVICEFILE",
    "PGOPTIONS",
    "PGSSLMODE",
    "PGCLIENTENCODING",
    "PGTZ",
    "PGDATESTYLE",
    "PSQLRC",
    "PG_COLOR",
];

/// A directory of PostgreSQL programs and the user to run them as.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
    /// Set when the tests run as root: the ids of `postgres`.
    run_as: Option<(u32, u32)>,
}

impl Programs {
    /// From `LEDGER_PG_BIN`, or else what `pg_config --bindir` says.
    pub fn from_environment() -> Programs {
        Programs::below(std::env::var_os("LEDGER_PG_BIN").map_or_else(bindir_of_pg_config, PathBuf::from))
    }

    /// Those of this directory.
    pub fn below(directory: PathBuf) -> Programs {
        assert!(
            directory.join("initdb").is_file(),
            "no PostgreSQL server programs in {}: point LEDGER_PG_BIN at a directory with initdb and postgres",
            directory.display()
        );
        let run_as = geteuid().is_root().then(|| match User::from_name("postgres") {
            Ok(Some(user)) => (user.uid.as_raw(), user.gid.as_raw()),
            other => panic!("running as root needs a user postgres for the servers, found {other:?}"),
        });
        Programs { directory, run_as }
    }

    /// Where they are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A name for the user they run as, for files that only that user may share.
    pub fn user_id(&self) -> u32 {
        self.run_as.map_or_else(|| geteuid().as_raw(), |(uid, _)| uid)
    }

    /// One of PostgreSQL's programs, ready for its arguments, to run in `cwd`.
    pub fn command(&self, program: &str, cwd: &Path) -> Command {
        self.any_command(&self.directory.join(program), cwd)
    }

    /// Any program as the server's user; `cwd` must be a directory that this user can enter.
    pub fn any_command(&self, program: &Path, cwd: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(cwd).stdin(Stdio::null()).env("LC_ALL", "C");
        for name in CONFUSING_VARIABLES {
            command.env_remove(name);
        }
        if let Some((uid, gid)) = self.run_as {
            // The standard library drops root's supplementary groups together with the uid.
            command.gid(gid).uid(uid).env("HOME", cwd);
        }
        command
    }

    /// Gives a path to the server's user.
    pub fn hand_over(&self, path: &Path) {
        if let Some((uid, gid)) = self.run_as {
            chown(path, Some(uid), Some(gid)).unwrap_or_else(|e| panic!("chown {}: {e}", path.display()));
        }
    }

    /// Makes a directory that belongs to the server's user.
    pub fn make_directory(&self, path: &Path) {
        fs::create_dir_all(path).unwrap_or_else(|e| panic!("mkdir {}: {e}", path.display()));
        self.hand_over(path);
    }
}

fn bindir_of_pg_config() -> PathBuf {
    match Command::new("pg_config").arg("--bindir").output() {
        Ok(output) if output.status.success() => PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()),
        Ok(output) => panic!("pg_config --bindir: {}", String::from_utf8_lossy(&output.stderr)),
        Err(e) => panic!("set LEDGER_PG_BIN to the server's programs (no pg_config in the path: {e})"),
    }
}

/// Runs a command to its end; its output, or its error output with the exit status.
pub fn try_run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } = command.output().map_err(|e| format!("{program}: {e}"))?;
    if status.success() {
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    } else {
        Err(format!("{program}: {status}\n{}", String::from_utf8_lossy(&stderr)))
    }
}

/// The same where failure is the test's failure.
pub fn run(command: &mut Command) -> String {
    try_run(command).unwrap_or_else(|e| panic!("{e}"))
}
