//! The demo's ERP as its clients see it.

use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use pg_test::http::{Connection, get, post_json};
use pg_test::process::Process;
use serde_json::{Value, json};

struct Erp {
    child: Child,
    base: String,
}

impl Erp {
    fn start(file: &Path, options: &[&str]) -> Erp {
        let mut child = Command::new(env!("CARGO_BIN_EXE_erp"))
            .arg("--file")
            .arg(file)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut port).expect("prints");
        Erp { child, base: format!("http://127.0.0.1:{}/requisitions", port.trim()) }
    }

    fn post(&self, reference: &str) -> std::io::Result<Value> {
        post_json(&self.base, &json!({ "reference": reference, "quantity": 40 })).map(|answer| answer.json())
    }

    fn found(&self, query: &str) -> Vec<Value> {
        get(&format!("{}{query}", self.base)).expect("answers").json().as_array().expect("a list").clone()
    }
}

impl Drop for Erp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of this test's own, removed when dropped.
struct Storage(PathBuf);

impl Storage {
    fn new(test: &str) -> Storage {
        let path = std::env::temp_dir().join(format!("erp_{test}.{}.jsonl", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Storage(path)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn every_post_makes_a_requisition_even_with_the_same_reference() {
    let storage = Storage::new("every_post");
    let erp = Erp::start(&storage.0, &[]);
    assert_eq!(erp.post("a b").expect("answers")["id"], "REQ-1001");
    assert_eq!(erp.post("a b").expect("answers")["id"], "REQ-1002");
    assert_eq!(erp.post("c").expect("answers")["id"], "REQ-1003");
    assert_eq!(erp.found("?reference=a%20b").len(), 2);
    assert_eq!((erp.found("").len(), erp.found("?reference=nothing").len()), (3, 0));
    assert_eq!(get(&format!("{}/REQ-1003", erp.base)).expect("answers").json()["reference"], "c");
    assert_eq!(get(&format!("{}/REQ-9", erp.base)).expect("answers").status, 404);
}

#[test]
fn lost_answers_are_lost_after_the_record_is_stored() {
    let storage = Storage::new("lost");
    let erp = Erp::start(&storage.0, &["--lose-answers", "2"]);
    for stored in 1..=2 {
        assert_eq!(erp.post("a").expect_err("lost").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(erp.found("?reference=a").len(), stored);
    }
    assert_eq!(erp.post("a").expect("answers")["id"], "REQ-1003");
}

#[test]
fn requisitions_survive_kill_9_and_a_torn_last_line() {
    let storage = Storage::new("survive");
    let erp = Erp::start(&storage.0, &[]);
    erp.post("a").expect("answers");
    drop(erp);
    let mut file = std::fs::File::options().append(true).open(&storage.0).expect("is there");
    std::io::Write::write_all(&mut file, b"{\"id\":\"REQ-10").expect("writes");
    let erp = Erp::start(&storage.0, &[]);
    assert_eq!(erp.found("").len(), 1);
    assert_eq!(erp.post("b").expect("answers")["id"], "REQ-1002");
    drop(erp);
    assert_eq!(Erp::start(&storage.0, &[]).found("").len(), 2);
}

#[test]
fn it_ends_with_its_parent_and_on_sigterm() {
    let storage = Storage::new("ends");
    let mut erp = Erp::start(&storage.0, &[]);
    drop(erp.child.stdin.take());
    assert!(erp.child.wait().expect("ends").success());
    let mut erp = Erp::start(&storage.0, &[]);
    Process::find(erp.child.id()).expect("runs").signal(Signal::SIGTERM);
    assert!(!erp.child.wait().expect("ends").success());
}

#[test]
fn what_is_no_requisition_is_refused() {
    let storage = Storage::new("refused");
    let erp = Erp::start(&storage.0, &[]);
    let mut client = Connection::open(&erp.base).expect("connects");
    for (method, target, body, status) in [
        ("POST", "/requisitions", "no json", 400),
        ("POST", "/requisitions", "[1]", 400),
        ("POST", "/other", "{}", 404),
        ("DELETE", "/requisitions", "", 405),
    ] {
        assert_eq!(client.call(method, target, &[], body.as_bytes()).expect("answers").status, status, "{method}");
    }
    assert!(erp.found("").is_empty());
    let refused = Command::new(env!("CARGO_BIN_EXE_erp")).args(["--lose", "1"]).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2));
}
