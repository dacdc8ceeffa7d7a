//! Processes by pid and start time, read from `/proc`: a reused pid is never taken for the old process.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long one look at `/proc` waits for the next.
const POLL: Duration = Duration::from_millis(10);

/// One process: a pid together with the tick at which it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The pid.
    pub pid: u32,
    started_ticks: u64,
}

/// What `/proc/PID/stat` says that matters here.
struct Stat {
    state: char,
    parent: u32,
    started_ticks: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold blanks and parentheses; the fields start after the last one.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}

impl Process {
    /// The process that has this pid now, if it lives.
    pub fn find(pid: u32) -> Option<Process> {
        let stat = stat(pid)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Process { pid, started_ticks: stat.started_ticks })
    }

    /// The live children of a pid.
    pub fn children_of(parent: u32) -> Vec<Process> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent))
            .filter_map(Process::find)
            .collect()
    }

    /// Whether it still runs. A zombie does not: it holds neither memory nor locks nor sockets.
    pub fn is_alive(&self) -> bool {
        Process::find(self.pid) == Some(*self)
    }

    /// Sends a signal, unless the process is gone already.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            let _ = kill(Pid::from_raw(self.pid.cast_signed()), signal);
        }
    }

    /// Stops it where it is. When this returns it starts nothing any more: the signal alone only asks for that.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        for _ in 0..1_000 {
            if !self.is_alive() || stat(self.pid).is_some_and(|stat| matches!(stat.state, 'T' | 't')) {
                return;
            }
            sleep(POLL);
        }
    }

    /// kill -9.
    pub fn kill9(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Waits until it is gone; false when it still lives after the limit.
    pub fn wait_gone(&self, limit_s: u32) -> bool {
        for _ in 0..limit_s.saturating_mul(100).max(1) {
            if !self.is_alive() {
                return true;
            }
            sleep(POLL);
        }
        !self.is_alive()
    }
}
