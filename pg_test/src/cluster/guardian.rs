//! A guardian process per cluster: when the test process ends in any way (Ctrl-C, kill -9, a cluster kept in a
//! `static` that is never dropped), the guardian sees its pipe close, stops the server by pid and removes the files.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
while read -r _; do :; done
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$1/data"; then
    kill -QUIT "$pid"
    n=0
    while [ $n -lt 100 ] && kill -0 "$pid" 2>/dev/null; do n=$((n + 1)); sleep 0.1; done
fi
[ "$2" = keep ] || rm -rf "$1"
"#;

/// Watches over one cluster directory for as long as this value lives.
#[derive(Debug)]
pub struct Guardian(Child);

impl Guardian {
    /// Starts to watch.
    pub fn watch(directory: &Path, keep_files: bool) -> Guardian {
        let child = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guardian"])
            .arg(directory)
            .arg(if keep_files { "keep" } else { "remove" })
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Guardian(child.unwrap_or_else(|e| panic!("guardian: {e}")))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
