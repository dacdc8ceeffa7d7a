//! pg_dump and the ways back.

use std::fs;
use std::path::PathBuf;

use super::Cluster;
use super::programs::{run, try_run};
use super::site::new_directory;

/// What pg_dump writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpFormat {
    /// SQL text, restored by psql.
    Plain,
    /// One archive file, restored by pg_restore.
    Custom,
    /// A directory, restored by two jobs of pg_restore.
    Directory,
}

/// A dump of one database; its files are removed with it. Outlives the cluster that it was taken from.
#[derive(Debug)]
pub struct Dump {
    directory: PathBuf,
    format: DumpFormat,
}

impl Dump {
    /// The file (or the directory) that pg_dump wrote.
    pub fn path(&self) -> PathBuf {
        self.directory.join("dump")
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Cluster {
    /// pg_dump of a database.
    pub fn dump(&self, database: &str, format: DumpFormat) -> Dump {
        self.dump_with(database, format, &[])
    }

    /// pg_dump with further options (`--schema-only`, `--inserts`).
    pub fn dump_with(&self, database: &str, format: DumpFormat, options: &[&str]) -> Dump {
        let dump = Dump { directory: new_directory(&self.site.programs, "d"), format };
        let flag = match format {
            DumpFormat::Plain => "-Fp",
            DumpFormat::Custom => "-Fc",
            DumpFormat::Directory => "-Fd",
        };
        let mut command = self.site.client_program("pg_dump");
        run(command.arg(flag).args(options).arg("-f").arg(dump.path()).arg(database));
        dump
    }

    /// Restores a dump into a database that exists; the first error fails the test.
    pub fn restore(&self, dump: &Dump, database: &str) {
        self.try_restore(dump, database, &[]).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Restores with further options of psql or pg_restore; the error output when it fails.
    pub fn try_restore(&self, dump: &Dump, database: &str, options: &[&str]) -> Result<(), String> {
        let mut command = match dump.format {
            DumpFormat::Plain => {
                let mut psql = self.site.client_program("psql");
                psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database]).args(options).arg("-f");
                psql
            }
            DumpFormat::Custom | DumpFormat::Directory => {
                let mut pg_restore = self.site.client_program("pg_restore");
                pg_restore.args(["--exit-on-error", "-d", database]);
                if dump.format == DumpFormat::Directory {
                    pg_restore.arg("--jobs=2");
                }
                pg_restore.args(options);
                pg_restore
            }
        };
        try_run(command.arg(dump.path())).map(drop)
    }
}
