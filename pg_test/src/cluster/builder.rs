//! What a cluster is configured with before its first start.

use std::path::PathBuf;

use super::programs::Programs;
use super::site::Site;
use super::{Cluster, template};

/// What every cluster of the harness has; a test's own settings come after and win.
const HARNESS_SETTINGS: &[(&str, &str)] = &[
    ("shared_buffers", "32MB"),
    ("max_connections", "100"),
    ("log_line_prefix", "%m [%p] %b %d "),
    ("lc_messages", "C"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_checkpoints", "off"),
];

/// Configures a cluster; `start()` boots it.
#[derive(Clone, Debug, Default)]
pub struct ClusterBuilder {
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    preload: bool,
    programs: Option<PathBuf>,
}

impl ClusterBuilder {
    /// The directory of the server's programs (default: those that the suite runs on).
    #[must_use]
    pub fn programs(mut self, directory: PathBuf) -> Self {
        self.programs = Some(directory);
        self
    }

    /// A line of postgresql.conf.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable of the server's environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether `shared_preload_libraries` holds the extension (default: no).
    #[must_use]
    pub fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// fsync off (default: on), for tests that crash nothing.
    #[must_use]
    pub fn fsync_off(self) -> Self {
        self.setting("fsync", "off")
    }

    /// Boots the cluster and waits until it accepts connections.
    pub fn start(self) -> Cluster {
        let cluster = self.prepare();
        cluster.start_again();
        cluster
    }

    /// The same, or why the server does not start, with the end of its log.
    pub fn try_start(self) -> Result<Cluster, String> {
        let cluster = self.prepare();
        cluster.try_start_again()?;
        Ok(cluster)
    }

    /// The cluster with its data directory, not started.
    pub fn prepare(self) -> Cluster {
        let mut site = Site::new(self.programs.map_or_else(Programs::from_environment, Programs::below));
        site.environment = self.environment;
        template::make_data_directory(&site.programs, &site.data());
        let preloaded = self.preload.then_some(("shared_preload_libraries", "command_ledger"));
        for (name, value) in HARNESS_SETTINGS.iter().copied().chain(preloaded) {
            site.append_setting(name, value);
        }
        for (name, value) in &self.settings {
            site.append_setting(name, value);
        }
        Cluster::at(site)
    }
}
