//! The monitoring kit: every query runs with the capability audit alone and gives the columns it declares, and every
//! figure, alert, panel and runbook page refers to what exists.

use std::collections::BTreeSet;
use std::process::Command;

use pg_test::markdown::{blocks, headings, read, repository, statements};
use pg_test::prelude::*;

/// A query of the kit, as both exporters declare it.
#[derive(Debug, Default, PartialEq)]
struct Query {
    name: String,
    labels: Vec<String>,
    values: Vec<String>,
    sql: String,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// What stands in the block after `at` that is indented deeper than its line.
fn block(lines: &[&str], at: usize) -> String {
    let deeper = lines[at + 1..].iter().take_while(|l| indent(l) > indent(lines[at]));
    deeper.map(|l| l.trim()).collect::<Vec<_>>().join("\n")
}

fn postgres_exporter() -> Vec<Query> {
    let text = read("ops/prometheus/postgres_exporter.yaml");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).collect();
    let mut queries: Vec<Query> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if indent(line) == 0 {
            queries.push(Query { name: line.trim_end_matches(':').to_owned(), ..Query::default() });
        }
        let query = queries.last_mut().expect("a name comes first");
        if *line == "  query: |" {
            query.sql = block(&lines, at);
        }
        if let Some(column) = line.strip_prefix("    - ") {
            let column = column.trim_end_matches(':').to_owned();
            match lines[at + 1].trim() {
                "usage: \"LABEL\"" => query.labels.push(column),
                "usage: \"GAUGE\"" | "usage: \"COUNTER\"" => query.values.push(column),
                other => panic!("{column}: {other}"),
            }
        }
    }
    queries
}

fn sql_exporter() -> Vec<Query> {
    let text = read("ops/prometheus/sql_exporter.yml");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).collect();
    let list = |l: &str| l.trim_matches(['[', ']']).split(", ").filter(|n| !n.is_empty()).map(str::to_owned).collect();
    let mut queries: Vec<Query> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix("      - name: ") {
            queries.push(Query { name: name.to_owned(), ..Query::default() });
        }
        let Some(query) = queries.last_mut() else { continue };
        match line.trim().split_once(": ") {
            Some(("labels", names)) => query.labels = list(names),
            Some(("values", names)) => query.values = list(names),
            Some(("query", "|")) => query.sql = block(&lines, at),
            _ => {}
        }
    }
    queries
}

/// The names of all figures that reach Prometheus.
fn figures() -> BTreeSet<String> {
    postgres_exporter().iter().flat_map(|q| q.values.iter().map(|v| format!("{}_{v}", q.name))).collect()
}

/// The names in a text that look like figures of the ledger.
fn mentioned(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|w| w.starts_with("command_ledger_")).map(str::to_owned).collect()
}

fn alerts() -> Vec<String> {
    let text = read("ops/prometheus/alerts.yml");
    text.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

/// A ledger with something to say in every view: a confirmed command, a question, one that waits, one to approve.
fn ledger(cluster: &Cluster) -> Ledger {
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("note", json!({"destination": "desk"}));
    ledger.define_type("order", json!({"destination": "desk", "approval": {}}));
    for key in ["done", "KEY"] {
        ledger.register("note", key, json!({"key": key}));
        let token = ledger.text("select lease_token from command_ledger.claim('desk')");
        match key {
            "done" => ledger.call("confirm", json!({"idempotency_key": key, "lease_token": token})),
            _ => ledger.call("uncertain", json!({"idempotency_key": key, "lease_token": token})),
        };
    }
    ledger.register("note", "waits", json!({}));
    ledger.register("order", "asks", json!({}));
    ledger.exec("create role monitor login; select command_ledger.grant_access('monitor', 'audit')");
    ledger
}

#[test]
fn every_query_runs_with_audit_alone_and_gives_the_columns_it_declares() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let ledger = ledger(&cluster);
    let queries = postgres_exporter();
    assert!(queries.len() >= 6, "{queries:?}");
    let mut monitor = ledger.as_role("monitor");
    let mut seen = BTreeSet::new();
    for query in &queries {
        let rows = monitor.rows(&query.sql, &[]);
        let Some(first) = rows.first() else { panic!("no row from {}", query.name) };
        let names: Vec<&str> = first.columns().iter().map(|c| c.name()).collect();
        let declared: Vec<&str> = query.labels.iter().chain(&query.values).map(String::as_str).collect();
        assert_eq!(names, declared, "{}", query.name);
        for column in first.columns() {
            let number = ["float8", "int4", "int8"].contains(&column.type_().name());
            assert_eq!(number, query.values.iter().any(|v| v == column.name()), "{} of {}", column.name(), query.name);
        }
        let (names, rows) = monitor.try_table(&query.sql).expect("runs");
        for row in rows {
            seen.extend(
                names.iter().zip(row).filter(|(_, value)| value.is_some()).map(|(n, _)| format!("{}_{n}", query.name)),
            );
        }
    }
    let silent: Vec<_> = figures().into_iter().filter(|name| !seen.contains(name)).collect();
    assert!(silent.is_empty(), "no value ever for {silent:?}");
    monitor.expect_sqlstate("42501", "select command_ledger.pause('desk')");
}

#[test]
fn both_exporters_ask_the_same() {
    assert_eq!(sql_exporter(), postgres_exporter());
}

#[test]
fn alerts_and_dashboard_speak_of_figures_that_exist() {
    let figures = figures();
    for file in ["ops/prometheus/alerts.yml", "ops/prometheus/alerts_test.yml", "ops/grafana/command_ledger.json"] {
        let mentioned = mentioned(&read(file));
        assert!(!mentioned.is_empty(), "{file}");
        let unknown: Vec<_> = mentioned.difference(&figures).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard: Value = serde_json::from_str(&read("ops/grafana/command_ledger.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.iter().all(|p| p["targets"].as_array().is_some_and(|t| t.iter().all(|t| t["expr"].is_string()))));
}

#[test]
fn every_alert_has_its_page_in_the_runbook_and_its_test() {
    let alerts = alerts();
    assert!(alerts.len() >= 10);
    assert_eq!(headings(&read("docs/runbook.md"), 2), alerts, "one page per alert, in the order of the rules");
    let rules = read("ops/prometheus/alerts.yml");
    let tests = read("ops/prometheus/alerts_test.yml");
    for alert in &alerts {
        assert!(rules.contains(&format!("docs/runbook.md#{}", alert.to_lowercase())), "{alert} names its page");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has a test");
    }
}

#[test]
fn the_statements_of_the_runbook_run() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = ledger(&cluster);
    let mut ran = 0;
    for sql in blocks(&read("docs/runbook.md"), "sql").iter().flat_map(|block| statements(block)) {
        let sql = sql.replace("'DESTINATION'", "'desk'").replace("'MONITOR'", "'monitor'");
        let alone = sql.starts_with("VACUUM");
        if !alone {
            ledger.exec("begin");
        }
        match ledger.try_table(&sql) {
            Ok(_) => {}
            // The finding for attempt 2 of a command with one attempt.
            Err(error) if error.sqlstate == "CL006" && sql.contains("expected_attempt => 2") => {}
            Err(error) => panic!("{error}\nof: {sql}"),
        }
        if !alone {
            ledger.exec("rollback");
        }
        ran += 1;
    }
    assert!(ran > 30, "{ran} statements");
}

#[test]
fn the_alerts_fire_when_they_should_and_not_before() {
    let Ok(output) = Command::new("promtool")
        .args(["test", "rules", "alerts_test.yml"])
        .current_dir(repository().join("ops/prometheus"))
        .output()
    else {
        // The rest of the kit is checked without it.
        return pg_test::skipped("the alert rules", "promtool is not there (scripts/bootstrap.sh fetches it)");
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("SUCCESS"), "{said}");
}
