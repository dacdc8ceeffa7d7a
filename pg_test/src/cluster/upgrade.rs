//! pg_upgrade: what a cluster holds, in a new cluster of the same major or a later one.

use super::Cluster;
use super::programs::{Programs, run};

impl Cluster {
    /// pg_upgrade of this stopped cluster into the prepared one, which is as initdb made it and not started. The files
    /// are copied: this cluster could be started again. The error output when pg_upgrade refuses.
    pub fn upgrade_into(&self, new: &Cluster) -> Result<(), String> {
        assert!(!self.is_running() && !new.is_running(), "pg_upgrade needs stopped servers");
        same_checksums(self, new);
        let (from, to) = (&self.site, &new.site);
        let mut command = to.programs.command("pg_upgrade", &to.directory);
        command.arg("-b").arg(from.programs.directory()).arg("-B").arg(to.programs.directory());
        command.arg("-d").arg(from.data()).arg("-D").arg(to.data()).arg("--socketdir").arg(&to.directory);
        command.args(["-U", "postgres", "-p", &from.port().to_string(), "-P", &to.port().to_string()]);
        // It says on its standard output what it does not like.
        let said = command.output().map_err(|e| format!("pg_upgrade: {e}"))?;
        if said.status.success() {
            return Ok(());
        }
        Err([said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
    }

    /// The major of its server.
    pub fn major(&self) -> u32 {
        major_of(&self.site.programs)
    }
}

fn major_of(programs: &Programs) -> u32 {
    let said = run(programs.command("postgres", &std::env::temp_dir()).arg("--version"));
    let version = said.split_whitespace().find_map(|word| word.split('.').next()?.parse().ok());
    version.unwrap_or_else(|| panic!("no version in {said:?}"))
}

/// Since 18, initdb switches checksums on; pg_upgrade wants both clusters the same.
fn same_checksums(old: &Cluster, new: &Cluster) {
    let has = |cluster: &Cluster| {
        let programs = &cluster.site.programs;
        let said = run(programs.command("pg_controldata", &cluster.site.directory).arg(cluster.data_directory()));
        let line = said.lines().find_map(|line| line.strip_prefix("Data page checksum version:"));
        line.is_some_and(|version| version.trim() != "0")
    };
    let wanted = has(old);
    if has(new) != wanted {
        let mut command = new.site.programs.command("pg_checksums", &new.site.directory);
        command.arg(if wanted { "--enable" } else { "--disable" }).arg("-D").arg(new.data_directory());
        run(&mut command);
    }
}
