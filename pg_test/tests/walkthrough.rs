//! The pages that a reader types in are run as they stand, and give what they say: `-- → a | b` is the first row of the
//! statement above it, `-- → ERROR CL001` its error. Only the port of the ERP is another one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use pg_test::http::get;
use pg_test::markdown::{blocks, read};
use pg_test::prelude::*;

/// The small ERP, as the page starts it.
struct Erp {
    child: Child,
    port: u16,
    file: std::path::PathBuf,
}

impl Erp {
    fn start(page: &str, lost_answers: &str) -> Erp {
        let command = page.lines().find(|l| l.contains("--bin erp --")).expect("the page starts the ERP");
        assert!(command.contains(&format!("--lose-answers {lost_answers}")), "{command}");
        let name = format!("walkthrough_{}_{lost_answers}.jsonl", std::process::id());
        let file = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&file);
        let mut child = Command::new(env!("CARGO_BIN_EXE_erp"))
            .args(["--lose-answers", lost_answers, "--file"])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut port).expect("prints");
        Erp { child, port: port.trim().parse().expect("a port"), file }
    }

    fn records(&self, query: &str) -> usize {
        let url = format!("http://127.0.0.1:{}/requisitions{query}", self.port);
        get(&url).expect("answers").json().as_array().expect("a list").len()
    }
}

impl Drop for Erp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// A statement and what the page says it gives.
struct Step {
    sql: String,
    expected: Option<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut sql = String::new();
    for line in blocks(page, "sql").iter().flat_map(|block| block.lines()) {
        if let Some(expected) = line.strip_prefix("-- → ") {
            assert!(sql.is_empty(), "what is expected stands below its statement: {line}");
            steps.last_mut().expect("a statement").expected = Some(expected.to_owned());
        } else if !(sql.is_empty() && (line.is_empty() || line.starts_with("--"))) {
            sql.push_str(line);
            sql.push('\n');
            if line.ends_with(';') {
                steps.push(Step { sql: std::mem::take(&mut sql), expected: None });
            }
        }
    }
    assert!(sql.is_empty(), "no semicolon: {sql}");
    steps
}

fn outcome(session: &mut Session, sql: &str) -> String {
    match session.try_table(sql) {
        Ok((_, rows)) => {
            let first = rows.into_iter().next().unwrap_or_default();
            first.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" | ")
        }
        Err(error) => format!("ERROR {}", error.sqlstate),
    }
}

/// Runs a page; how many results it compared. What only reads is asked again for a while: the page says that the relay
/// may be slower than the reader.
fn walk(session: &mut Session, page: &str, port: u16) -> usize {
    let mut compared = 0;
    for Step { sql, expected } in steps(page) {
        let sql = sql.replace("18080", &port.to_string());
        let reads = sql.starts_with("SELECT")
            && ["_queue", ".status(", ".wait_for(", ".timeline", ".health("].iter().any(|name| sql.contains(name))
            && !sql.contains(".approve(");
        let mut got = outcome(session, &sql);
        for _ in 0..400 {
            if !reads || expected.as_ref().is_none_or(|e| *e == got) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            got = outcome(session, &sql);
        }
        match expected {
            Some(expected) => {
                assert_eq!(got, expected, "of:\n{sql}");
                compared += 1;
            }
            None => assert!(!got.starts_with("ERROR"), "{got}\nof:\n{sql}"),
        }
    }
    compared
}

#[test]
fn the_tutorial_gives_what_it_says() {
    let page = read("docs/tutorial.md");
    let erp = Erp::start(&page, "2");
    let cluster = Cluster::builder().preload(true).start();
    cluster.create_database("tutorial");
    let mut session = cluster.connect("tutorial");
    assert!(walk(&mut session, &page, erp.port) >= 25);
    for key in ["R-1", "B-1", "R-3"] {
        assert_eq!(erp.records(&format!("?reference={key}")), 1, "{key}");
    }
    assert_eq!(erp.records(""), 3);
}

#[test]
fn the_readme_gives_what_it_says() {
    let page = read("README.md");
    let section =
        page.split("## Five minutes, by hand").nth(1).and_then(|s| s.split("\n## ").next()).expect("a section");
    let erp = Erp::start(section, "1");
    let cluster = Cluster::builder().preload(true).start();
    cluster.create_database("readme");
    let mut session = cluster.connect("readme");
    assert!(walk(&mut session, section, erp.port) >= 5);
    assert_eq!(erp.records(""), 1);
}

#[test]
fn what_the_install_page_and_the_worksheet_say_can_be_typed_in() {
    let cluster = Cluster::builder().preload(true).start();
    for page in ["docs/install.md", "docs/worksheet.md"] {
        let database = page.trim_start_matches("docs/").trim_end_matches(".md");
        cluster.create_database(database);
        let mut session = cluster.connect(database);
        if !read(page).contains("CREATE EXTENSION") {
            session.exec("create extension command_ledger");
        }
        walk(&mut session, &read(page), 0);
        assert!(session.one::<i64>("select count(*) from command_ledger.destination", &[]) > 0);
    }
    let mut session = cluster.connect("install");
    session.exec("select command_ledger.resume('erp')");
    let healthy = "select bool_and(ok) from command_ledger.health() where check_name <> 'secrets'";
    session.wait_until(healthy, 20);
}
