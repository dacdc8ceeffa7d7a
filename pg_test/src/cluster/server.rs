//! The running server of a cluster: one postmaster, our direct child.

use std::fs::File;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Site;
use crate::process::Process;
use crate::session::Session;

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Waits for the sessions to leave.
    Smart,
    /// Ends the sessions, writes a checkpoint.
    Fast,
    /// Leaves at once; the next start recovers.
    Immediate,
}

const POLL: Duration = Duration::from_millis(10);
/// A server that does not accept connections after this many polls (a minute) has failed.
const START_POLLS: u32 = 6_000;
/// How often a start tries another port.
const PORT_ATTEMPTS: u32 = 5;
/// How long children may take to notice that their postmaster is dead.
const ORPHANS_LEAVE_S: u32 = 10;

#[derive(Debug)]
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts the postmaster and waits until it accepts connections; an error says why it did not.
    /// `arguments` are further ones of the program.
    pub(super) fn start(site: &Site, arguments: &[&str]) -> Result<Server, String> {
        for _ in 0..PORT_ATTEMPTS {
            let log_mark = site.log().len();
            let error = match Server::start_on_port(site, arguments) {
                Ok(server) => return Ok(server),
                Err(error) => error,
            };
            let said = site.log().get(log_mark..).unwrap_or_default().to_owned();
            // A cluster that was up before keeps its port: others (a standby) know it.
            if !said.contains("Address already in use") || log_mark > 0 {
                return Err(error);
            }
            site.change_port();
            let _ = std::fs::remove_file(site.log_path());
        }
        Err(format!("no usable port in {PORT_ATTEMPTS} attempts"))
    }

    fn start_on_port(site: &Site, arguments: &[&str]) -> Result<Server, String> {
        let log = File::options().create(true).append(true).open(site.log_path()).map_err(|e| e.to_string())?;
        let mut command = site.programs.command("postgres", &site.directory);
        command.envs(site.environment.iter().map(|(name, value)| (name, value)));
        command.arg("-D").arg(site.data()).args(arguments);
        for setting in [
            format!("port={}", site.port()),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", site.directory.display()),
            "logging_collector=off".to_owned(),
        ] {
            command.arg("-c").arg(setting);
        }
        let errors = log.try_clone().map_err(|e| e.to_string())?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let mut server = Server { child: child.map_err(|e| format!("cannot start postgres: {e}"))? };
        for _ in 0..START_POLLS {
            if !server.is_running() {
                return Err("the server ended while starting".to_owned());
            }
            if Session::answers(site) {
                return Ok(server);
            }
            sleep(POLL);
        }
        server.kill9_everything();
        Err("the server accepts no connections after a minute".to_owned())
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = Process::find(self.pid()) {
            process.signal(signal);
        }
    }

    pub(super) fn stop(&mut self, mode: Mode, limit_s: u32) -> bool {
        self.signal(match mode {
            Mode::Smart => Signal::SIGTERM,
            Mode::Fast => Signal::SIGINT,
            Mode::Immediate => Signal::SIGQUIT,
        });
        for _ in 0..limit_s.saturating_mul(100).max(1) {
            if !self.is_running() {
                return true;
            }
            sleep(POLL);
        }
        false
    }

    pub(super) fn kill9_postmaster(mut self) {
        // A stopped postmaster starts no new children between the look at them and its end.
        self.freeze();
        let children = Process::children_of(self.pid());
        self.reap_killed();
        for child in children {
            if !child.wait_gone(ORPHANS_LEAVE_S) {
                child.kill9();
                assert!(child.wait_gone(ORPHANS_LEAVE_S), "process {} survives kill -9", child.pid);
            }
        }
    }

    pub(super) fn kill9_everything(mut self) {
        // A stopped postmaster starts no new children and reacts to no death.
        self.freeze();
        let children = Process::children_of(self.pid());
        for child in &children {
            child.signal(Signal::SIGSTOP);
        }
        children.iter().for_each(Process::kill9);
        self.reap_killed();
        for child in children {
            assert!(child.wait_gone(ORPHANS_LEAVE_S), "process {} survives kill -9", child.pid);
        }
    }

    fn freeze(&self) {
        if let Some(postmaster) = Process::find(self.pid()) {
            postmaster.freeze();
        }
    }

    /// Kills the postmaster and takes its exit status: as a zombie it would keep its pid, and the next server would
    /// believe that it still runs.
    fn reap_killed(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
