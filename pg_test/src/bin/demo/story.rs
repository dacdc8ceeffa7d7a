//! The story, step by step.

use std::io::ErrorKind;
use std::thread::sleep;
use std::time::Duration;

use pg_test::cluster::Cluster;
use pg_test::http::post_json;
use pg_test::session::Session;
use serde_json::{Value, json};

use crate::erp_process::Erp;
use crate::intent::{Intent, literal};
use crate::screen::Screen;

/// How long the ledger lets a request settle that nobody answered, before it looks it up.
const SETTLE_DELAY: &str = "2s";
/// How often (every 25 ms) a state is looked for before the demo gives up: a minute.
const LOOKS: u32 = 2_400;

pub fn tell(screen: &mut Screen) -> Result<(), String> {
    let intent = Intent::read()?;
    let cluster = boot(screen)?;
    let erp = Erp::start_losing_one_answer(&cluster, "erp")?;
    screen.note(&format!("ERP at {}, process {}: loses its first answer", erp.url(), erp.pid()));
    let mut session = cluster.connect("purchasing");

    define(screen, &mut session, &intent, &erp)?;
    register(screen, &mut session, &intent)?;
    see_the_open_question(screen, &mut session, &intent)?;
    wait_for_the_lookup(screen, &mut session, &intent)?;
    count_records(screen, &erp, &intent)?;
    retry_naively(screen, &cluster, &intent)?;
    ask_again(screen, &mut session, &intent)?;
    change_the_intent(screen, &mut session, &intent)?;
    count_once_more(screen, &erp, &intent)
}

fn boot(screen: &mut Screen) -> Result<Cluster, String> {
    screen.step("A PostgreSQL server with the extension, and an ERP that knows no idempotency keys");
    let cluster = Cluster::builder().preload(true).try_start()?;
    cluster.create_database("purchasing");
    screen.note(&format!(
        "PostgreSQL on port {}, process {}, shared_preload_libraries = 'command_ledger'",
        cluster.port(),
        cluster.pid()
    ));
    Ok(cluster)
}

fn define(screen: &mut Screen, session: &mut Session, intent: &Intent, erp: &Erp) -> Result<(), String> {
    screen.step("Describe the ERP and the operation, once");
    screen.say("Its requests carry our key as \"reference\". It does not refuse a repeat, but it can be searched.");
    screen.run(session, "CREATE EXTENSION command_ledger")?;
    let (url, body) = (erp.url(), intent.body_template());
    let config = format!(
        r#"{{"transport": "http",
 "request": {{"method": "POST", "url": "{url}", "timeout": "5s",
   "body": {body}}},
 "idempotency": {{"mode": "none"}},
 "success": {{"statuses": [201], "record_id": "$.id"}},
 "lookup": {{"url": "{url}?reference={{{{ destination_key }}}}",
   "records": "$[*]", "match": "$.reference", "record_id": "$.id", "settle_delay": "{SETTLE_DELAY}"}}}}"#
    );
    screen.run(session, &format!("SELECT command_ledger.define_destination('erp', {})", literal(&config)))?;
    let policy = literal(&json!({ "destination": "erp" }).to_string());
    let name = literal(&intent.command_type);
    screen.run(session, &format!("SELECT command_ledger.define_command_type({name}, {policy})"))?;
    Ok(())
}

fn register(screen: &mut Screen, session: &mut Session, intent: &Intent) -> Result<(), String> {
    screen.step("One transaction: the business row and the intent to tell the ERP");
    screen.run(session, "CREATE SCHEMA purchase")?;
    screen
        .run(session, "CREATE TABLE purchase.requisition (number text PRIMARY KEY, material text, quantity numeric)")?;
    let (key, name) = (literal(&intent.idempotency_key), literal(&intent.command_type));
    let material = literal(intent.params["material"].as_str().unwrap_or_default());
    screen.run(session, "BEGIN")?;
    screen
        .run(session, &format!("INSERT INTO purchase.requisition VALUES ({key}, {material}, {})", intent.quantity()))?;
    let params = intent.params_literal();
    let rows = screen.run(
        session,
        &format!("SELECT outcome, status, attempt\nFROM command_ledger.register({name}, {key}, {params})"),
    )?;
    screen.run(session, "COMMIT")?;
    screen.expect(
        "registered in the transaction of the row: both are committed, or neither",
        first(&rows) == Some("created"),
    );
    Ok(())
}

fn see_the_open_question(screen: &mut Screen, session: &mut Session, intent: &Intent) -> Result<(), String> {
    screen.step("The relay has sent it. The ERP stored it, and the answer was lost on the way back");
    let key = literal(&intent.idempotency_key);
    let queued = format!("SELECT count(*) > 0 FROM command_ledger.reconciliation_queue WHERE idempotency_key = {key}");
    let seen = comes_true(session, &queued)?;
    let queue = format!("SELECT * FROM command_ledger.reconciliation_queue WHERE idempotency_key = {key}");
    let rows = screen.run(session, &queue)?;
    screen.expect("what is not known is shown as not known", seen && !rows.is_empty());
    let status = format!("SELECT status, attempt, maybe_sent FROM command_ledger.status({key})");
    let rows = screen.run(session, &status)?;
    screen.expect("it is neither called a success nor a failure, and not sent again", {
        first(&rows) == Some("needs_reconciliation") && value(&rows, 1) == Some("1")
    });
    Ok(())
}

fn wait_for_the_lookup(screen: &mut Screen, session: &mut Session, intent: &Intent) -> Result<(), String> {
    screen.step("No second request: the ledger lets it settle, then asks the ERP what it has");
    let key = literal(&intent.idempotency_key);
    let settled = format!("SELECT status = 'confirmed' FROM command_ledger.status({key})");
    let confirmed = comes_true(session, &settled)?;
    let status = format!("SELECT status, destination_record_id, attempt, maybe_sent FROM command_ledger.status({key})");
    let rows = screen.run(session, &status)?;
    screen.expect("the lookup found the record: confirmed, after one attempt", {
        confirmed && value(&rows, 1) == Some("REQ-1001") && value(&rows, 2) == Some("1")
    });
    let sql = format!("SELECT command_ledger.explain({key})");
    screen.show_sql(&sql);
    let explained = session.try_text(&sql).map_err(|e| e.to_string())?.unwrap_or_default();
    screen.block(&explained);
    screen.expect("the ledger can say why", !explained.trim().is_empty());
    Ok(())
}

fn count_records(screen: &mut Screen, erp: &Erp, intent: &Intent) -> Result<(), String> {
    screen.step("What the ERP has");
    let records = show_records(screen, erp, intent)?;
    screen.expect("one requisition", records.len() == 1);
    let quantity = records.first().map(|record| &record["quantity"]);
    screen.expect("with the quantity of the intent", quantity == Some(&intent.params["quantity"]));
    Ok(())
}

fn retry_naively(screen: &mut Screen, cluster: &Cluster, intent: &Intent) -> Result<(), String> {
    screen.step("The same ERP and the same lost answer, with a client that simply tries again");
    let erp = Erp::start_losing_one_answer(cluster, "erp_naive")?;
    let mut body = intent.params.clone();
    body["reference"] = json!(intent.idempotency_key);
    for attempt in 1..=3 {
        match post_json(&erp.url(), &body) {
            Ok(answer) => {
                screen.say(&format!("attempt {attempt}: {} {}", answer.status, answer.json()["id"]));
                break;
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                screen.say(&format!("attempt {attempt}: the connection ended without an answer"));
            }
            Err(error) => return Err(format!("the naive client: {error}")),
        }
    }
    let records = show_records(screen, &erp, intent)?;
    screen.expect("two requisitions for one intent: what the ledger is there to prevent", records.len() == 2);
    Ok(())
}

fn ask_again(screen: &mut Screen, session: &mut Session, intent: &Intent) -> Result<(), String> {
    screen.step("The agent asks again: same key, same parameters");
    let rows = screen.run(session, &register_sql(intent, &intent.params_literal()))?;
    screen.expect("it gets the first receipt, and nothing is sent", {
        first(&rows) == Some("replayed") && value(&rows, 1) == Some("confirmed") && value(&rows, 2) == Some("1")
    });
    Ok(())
}

fn change_the_intent(screen: &mut Screen, session: &mut Session, intent: &Intent) -> Result<(), String> {
    screen.step("The agent uses the same key with another quantity");
    let error = screen.run_refused(session, &register_sql(intent, &intent.other_params_literal()))?;
    screen.expect("refused: one key, one intent", error.sqlstate == "CL001");
    screen.expect("and the error says what to do", !error.detail.is_empty() && !error.hint.is_empty());
    Ok(())
}

fn count_once_more(screen: &mut Screen, erp: &Erp, intent: &Intent) -> Result<(), String> {
    let records = erp.records_of(&intent.idempotency_key)?;
    screen.expect("the ERP of the ledger still has one requisition", records.len() == 1);
    Ok(())
}

fn register_sql(intent: &Intent, params: &str) -> String {
    let (key, name) = (literal(&intent.idempotency_key), literal(&intent.command_type));
    format!("SELECT outcome, status, attempt\nFROM command_ledger.register({name}, {key}, {params})")
}

fn show_records(screen: &Screen, erp: &Erp, intent: &Intent) -> Result<Vec<Value>, String> {
    screen.note(&format!("GET {}?reference={}", erp.url(), intent.idempotency_key));
    let records = erp.records_of(&intent.idempotency_key)?;
    for record in &records {
        screen.block(&record.to_string());
    }
    Ok(records)
}

/// Looks until the query is true; false when it never is within the limit.
fn comes_true(session: &mut Session, sql: &str) -> Result<bool, String> {
    for _ in 0..LOOKS {
        if session.try_text(sql).map_err(|e| format!("{e}\nof: {sql}"))?.as_deref() == Some("t") {
            return Ok(true);
        }
        sleep(Duration::from_millis(25));
    }
    Ok(false)
}

fn first(rows: &[Vec<Option<String>>]) -> Option<&str> {
    value(rows, 0)
}

fn value(rows: &[Vec<Option<String>>], column: usize) -> Option<&str> {
    rows.first()?.get(column)?.as_deref()
}
