//! The example programs do what they say: one requisition however often they run, and a conflict is a conflict.

use std::path::Path;
use std::process::Command;

use pg_test::markdown::repository;
use pg_test::prelude::*;

fn world() -> (Cluster, Ledger, Destination) {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    ledger.define_http_destination(
        "erp",
        &erp.url("/records"),
        json!({
            "request": {"body": {"reference": "{{ destination_key }}", "material": "{{ params.material }}",
                                 "quantity": "{{ params.quantity }}"}},
            "success": {"statuses": [200, 201], "record_id": "$.id"},
            "lookup": {"url": format!("{}?reference={{{{ destination_key }}}}", erp.url("/records")), "records": "$[*]",
                       "match": "$.reference", "record_id": "$.id", "settle_delay": "300ms", "interval": "200ms"},
        }),
    );
    ledger.define_type("create_requisition", json!({"destination": "erp"}));
    ledger.exec("create table requisition (number text primary key, material text, quantity numeric)");
    (cluster, ledger, erp)
}

/// Exit code and output.
fn run(mut command: Command, arguments: [&str; 4]) -> (Option<i32>, String) {
    let output = command.args(arguments).output().expect("starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn assert_works(program: impl Fn() -> Command, address: impl Fn(&Cluster) -> String) {
    let (cluster, mut ledger, erp) = world();
    let address = address(&cluster);
    erp.next(drop_after_commit());
    let (code, said) = run(program(), [&address, "R-1", "BEARING-6204", "40"]);
    assert_eq!((code, said.split(' ').take(2).collect::<Vec<_>>()), (Some(0), vec!["created", "confirmed"]));
    let (code, again) = run(program(), [&address, "R-1", "BEARING-6204", "40"]);
    assert_eq!((code, again), (Some(0), said.replace("created", "replayed")));
    let (code, said) = run(program(), [&address, "R-1", "BEARING-6204", "41"]);
    assert_eq!(code, Some(2));
    assert!(said.starts_with("conflict "), "{said}");
    assert_eq!(erp.effects_for("requisition-R-1"), 1);
    assert_eq!(ledger.text("select string_agg(number || ' ' || quantity, ',') from requisition"), "R-1 40");
    assert_eq!(ledger.status("requisition-R-1").attempt, 1);
}

fn conninfo(cluster: &Cluster) -> String {
    format!("host={} port={} user=postgres dbname=app", cluster.directory().display(), cluster.port())
}

#[test]
fn the_rust_example_makes_one_requisition() {
    assert_works(|| Command::new(env!("CARGO_BIN_EXE_requisition")), conninfo);
}

#[test]
fn the_python_example_makes_one_requisition() {
    let python = std::env::var("LEDGER_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_driver = Command::new(&python).args(["-c", "import psycopg"]).output().is_ok_and(|o| o.status.success());
    if !has_driver {
        println!("no psycopg in {python} (LEDGER_PYTHON names another): the example was not run");
        return;
    }
    let program = || {
        let mut command = Command::new(&python);
        command.arg(repository().join("examples/python/requisition.py"));
        command
    };
    assert_works(program, conninfo);
}

#[test]
fn the_typescript_example_makes_one_requisition() {
    // A directory whose node_modules has pg, and tsx where Node does not strip types by itself.
    let Ok(modules) = std::env::var("LEDGER_NODE_DIRECTORY") else {
        println!("LEDGER_NODE_DIRECTORY names no directory with the driver pg: the example was not run");
        return;
    };
    let file = Path::new(&modules).join("requisition.ts");
    std::fs::copy(repository().join("examples/typescript/requisition.ts"), &file).expect("copies");
    let program = || {
        let tsx = Path::new(&modules).join("node_modules/.bin/tsx");
        let mut command = Command::new(if tsx.exists() { tsx } else { "node".into() });
        command.arg(&file);
        command
    };
    assert_works(program, |cluster| format!("postgres://postgres@127.0.0.1:{}/app", cluster.port()));
}
