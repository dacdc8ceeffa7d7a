//! Copies of a cluster, each with its own directory and port: base backup, streaming standby, cold file copy.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Cluster;
use super::programs::run;
use super::site::Site;

/// How a standby follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Commits do not wait for it.
    Async,
    /// Commits of the primary wait for it (`synchronous_standby_names` is set).
    Sync,
}

impl Cluster {
    /// A base backup of the running cluster, as a cluster of its own that is not started yet.
    pub fn base_backup(&self) -> Cluster {
        self.take_backup(&[])
    }

    fn take_backup(&self, extra: &[&str]) -> Cluster {
        let site = Site::new(self.site.programs.clone());
        let mut command = self.site.client_program("pg_basebackup");
        run(command.args(["-X", "stream", "-c", "fast", "--no-sync"]).args(extra).arg("-D").arg(site.data()));
        Cluster::at(site)
    }

    /// A running standby that streams from this cluster; returns when it streams.
    pub fn standby(&self, replication: Replication) -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("standby{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let standby = self.take_backup(&["-R"]);
        // The last line wins: this replaces what pg_basebackup wrote, with a name to wait for.
        let address = format!("host=127.0.0.1 port={} user=postgres application_name={name}", self.port());
        append_auto_setting(&standby.data_directory(), "primary_conninfo", &address);
        standby.start_again();
        let mut session = self.connect("postgres");
        if replication == Replication::Sync {
            session.alter_system("synchronous_standby_names", Some(&name));
        }
        let state = if replication == Replication::Sync { "sync" } else { "async" };
        session.wait_until(
            &format!(
                "SELECT count(*) = 1 FROM pg_catalog.pg_stat_replication \
                 WHERE application_name = '{name}' AND state = 'streaming' AND sync_state = '{state}'"
            ),
            60,
        );
        standby
    }

    /// Waits until the standby has replayed everything that this cluster has written so far.
    pub fn wait_for_replay(&self, standby: &Cluster) {
        let position = self.connect("postgres").text("SELECT pg_catalog.pg_current_wal_flush_lsn()");
        standby
            .connect("postgres")
            .wait_until(&format!("SELECT pg_catalog.pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"), 60);
    }

    /// Promotes this standby and waits until it accepts writes.
    pub fn promote(&self) {
        let promoted = self.connect("postgres").one::<bool>("SELECT pg_catalog.pg_promote(true, 60)", &[]);
        assert!(promoted, "not promoted within a minute\n{}", self.site.log_tail());
    }

    /// A file copy of the stopped cluster, as a cluster of its own that is not started yet: same system identifier,
    /// other place.
    pub fn copy_files_cold(&self) -> Cluster {
        assert!(!self.is_running(), "a cold copy needs a stopped server");
        let site = Site::new(self.site.programs.clone());
        let mut copy = self.site.programs.any_command(Path::new("cp"), &site.directory);
        run(copy.args(["-R", "-p"]).arg(self.data_directory()).arg(site.data()));
        Cluster::at(site)
    }
}

fn append_auto_setting(data: &Path, name: &str, value: &str) {
    use std::io::Write;
    let path = data.join("postgresql.auto.conf");
    let written = std::fs::File::options()
        .append(true)
        .open(&path)
        .and_then(|mut file| writeln!(file, "{name} = '{}'", value.replace('\'', "''")));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
