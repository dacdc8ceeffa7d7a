//! The ERP as a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use pg_test::cluster::Cluster;
use pg_test::http::{get, percent_encoded};
use serde_json::Value;

/// A running `erp`; stopped when dropped.
pub struct Erp {
    child: Child,
    port: u16,
    directory: PathBuf,
}

impl Erp {
    /// Starts `erp --lose-answers 1` with an empty store in a directory of its own.
    pub fn start_losing_one_answer(cluster: &Cluster, name: &str) -> Result<Erp, String> {
        let this = std::env::current_exe().map_err(|e| e.to_string())?;
        let program = this.parent().unwrap_or(Path::new(".")).join("erp");
        if !program.is_file() {
            return Err(format!("no {}: build it with cargo build -p pg_test --bins", program.display()));
        }
        let directory = cluster.make_directory(name);
        let file = directory.join("requisitions.jsonl");
        let mut child = cluster
            .unprivileged_command(&program)
            .args(["--lose-answers", "1", "--file"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(|e| format!("erp: {e}"))?;
        }
        let mut erp = Erp { child, port: 0, directory };
        erp.port = line.trim().parse().map_err(|_| "the ERP did not say its port".to_owned())?;
        Ok(erp)
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/requisitions", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What a person sees who searches the ERP for this reference.
    pub fn records_of(&self, reference: &str) -> Result<Vec<Value>, String> {
        let url = format!("{}?reference={}", self.url(), percent_encoded(reference));
        let found = get(&url).map_err(|e| format!("{url}: {e}"))?.json();
        found.as_array().cloned().ok_or_else(|| format!("{url}: not a list: {found}"))
    }
}

impl Drop for Erp {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
