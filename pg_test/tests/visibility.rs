//! What a person sees: the state of destinations, why a command waits, what the relay does now, what the log says.

use std::sync::LazyLock;

use pg_test::desk::{claim, define_desk, define_task, fail};
use pg_test::prelude::*;

static CLUSTER: LazyLock<Cluster> =
    LazyLock::new(|| Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "16").start());

/// `state blocked_by` of a queued command, and its reason in words.
fn waits(ledger: &mut Ledger, key: &str) -> (String, String) {
    let sql = "SELECT state || coalesce(' ' || blocked_by, ''), why FROM command_ledger.dispatch_queue WHERE idempotency_key = $1";
    let row = ledger.row(sql, &[&key]);
    (row.get(0), row.get(1))
}

fn assert_waits(ledger: &mut Ledger, key: &str, state: &str, words: &str) {
    let (is, why) = waits(ledger, key);
    assert!(is == state && why.contains(words), "{key}: {is}: {why}");
}

fn http(ledger: &mut Ledger, name: &str, destination: &Destination, members: Value) {
    ledger.define_http_destination(name, &destination.url("/records"), members);
    ledger.define_type(name, json!({"destination": name}));
}

#[test]
fn the_queue_says_of_every_command_why_it_waits() {
    let mut ledger = CLUSTER.ledger("reasons");
    let erp = Destination::start(Profile::Plain);
    define_desk(&mut ledger, json!({"limits": {"in_flight": 2}}));
    define_task(&mut ledger, json!({}));
    http(&mut ledger, "erp", &erp, json!({}));
    ledger.exec("SELECT command_ledger.pause('erp')");
    let lane = json!({"ordering_key": "account-7"});
    ledger.register_with("task", "head", json!({}), lane.clone());
    ledger.register_with("task", "behind", json!({}), lane);
    ledger.register("task", "again", json!({}));
    let jobs = claim(&mut ledger, 10);
    assert_eq!(jobs.iter().map(|job| job.key.as_str()).collect::<Vec<_>>(), ["head", "again"]);
    assert_waits(&mut ledger, "head", "leased", "Attempt 1 is in flight");
    assert_waits(&mut ledger, "behind", "blocked lane", "lane account-7 behind head");
    ledger.register("task", "full", json!({}));
    assert_waits(&mut ledger, "full", "blocked limit", "2 attempts are in flight at the destination, the limit is 2");
    assert_eq!(ledger.text("SELECT state FROM command_ledger.destination_status WHERE destination = 'desk'"), "full");
    fail(&mut ledger, &jobs[1], "transient");
    ledger.exec("SELECT command_ledger.claim('desk', 10)");
    let hour = ledger.text("SELECT (clock_timestamp() + interval '1 h')::text");
    ledger.register_with("task", "later", json!({}), json!({"not_before": hour}));
    assert_waits(&mut ledger, "later", "waiting not_before", "not before");
    ledger.register("erp", "paused", json!({}));
    assert_waits(&mut ledger, "paused", "blocked pause", "paused since");
    ledger.define_type("signed", json!({"destination": "desk", "approval": {}}));
    ledger.register("signed", "planned", json!({}));
    assert_eq!(
        ledger.one::<i64>("SELECT count(*) FROM command_ledger.dispatch_queue WHERE idempotency_key = 'planned'", &[]),
        0
    );
    assert_eq!(ledger.text("SELECT idempotency_key FROM command_ledger.approval_queue"), "planned");
    // No word of the view stands for nothing: each row has one, and who is not blocked has none.
    let mute = "SELECT count(*) FROM command_ledger.dispatch_queue WHERE why IS NULL OR why = '' OR state IS NULL \
                OR (state IN ('due', 'leased')) <> (blocked_by IS NULL)";
    assert_eq!(ledger.one::<i64>(mute, &[]), 0);
    assert_eq!(erp.requests().len(), 0);
    ledger.into_session();
    CLUSTER.connect("postgres").exec("CREATE DATABASE reasons_copy TEMPLATE reasons");
    let mut copy = Ledger::over(CLUSTER.connect("reasons_copy"));
    assert_waits(&mut copy, "later", "blocked fence", "not adopted");
    assert_eq!(
        copy.text("SELECT string_agg(DISTINCT state, ' ') FROM command_ledger.destination_status"),
        "fenced paused"
    );
}

#[test]
fn a_destinations_row_says_how_it_stands_and_what_went_wrong_last() {
    let mut ledger = CLUSTER.ledger("destinations");
    let erp = Destination::start(Profile::Plain);
    let members = json!({"limits": {"in_flight": 5, "per_second": 100}, "breaker": {"failures": 9, "cool_down": "1h"}});
    http(&mut ledger, "erp", &erp, members);
    let row = |ledger: &mut Ledger| {
        let sql =
            "SELECT pg_catalog.to_jsonb(d)::text FROM command_ledger.destination_status d WHERE destination = 'erp'";
        serde_json::from_str::<Value>(&ledger.text(sql)).unwrap()
    };
    let new = row(&mut ledger);
    let known = ["state", "breaker", "queued", "due", "in_flight", "in_flight_limit", "per_second_limit", "open_cases"];
    let seen: Vec<Value> = known.iter().map(|name| new[name].clone()).collect();
    assert_eq!(json!(seen), json!(["ready", "closed", 0, 0, 0, 5, 100, 0]));
    assert_eq!((&new["last_error"], &new["oldest_overdue"]), (&Value::Null, &Value::Null));
    erp.next(hang().then(answer(429, json!({})).header("Retry-After", "3600")));
    ledger.register("erp", "hangs", json!({}));
    erp.wait_for_held(1);
    ledger.register("erp", "waits", json!({}));
    ledger.wait_until("SELECT error IS NOT NULL FROM command_ledger.status('waits')", 20);
    let busy = row(&mut ledger);
    assert_eq!((&busy["queued"], &busy["in_flight"], &busy["due"]), (&json!(2), &json!(1), &json!(0)));
    assert_eq!((&busy["last_error"], &busy["breaker_failures"]), (&json!("transient"), &json!(1)));
    assert!(
        busy["last_error_message"].as_str().unwrap_or_default().contains("429") && !busy["last_error_at"].is_null()
    );
    ledger.exec("SELECT command_ledger.pause('erp')");
    ledger.register("erp", "due", json!({}));
    let paused = row(&mut ledger);
    assert_eq!((&paused["state"], &paused["due"]), (&json!("paused"), &json!(1)));
    assert!(!paused["oldest_overdue"].is_null());
    erp.release();
    ledger.wait_status("hangs", "needs_reconciliation");
    let asked = row(&mut ledger);
    assert_eq!((&asked["open_cases"], &asked["in_flight"]), (&json!(1), &json!(0)));
}

#[test]
fn the_servers_list_of_processes_says_what_the_relay_does() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    http(&mut ledger, "erp", &erp, json!({}));
    let activity = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'app' AND backend_type = 'command_ledger relay' \
                    AND application_name = 'command_ledger relay' AND ";
    ledger.wait_until(&format!("{activity} state = 'idle' AND wait_event = 'Extension')"), 20);
    ledger.failpoint("relay_before_claim_commit", "hang");
    ledger.register("erp", "k", json!({}));
    ledger.wait_until(&format!("{activity} state = 'active' AND query = 'command_ledger: claiming what is due')"), 20);
    ledger.failpoint("relay_before_settle_commit", "hang");
    ledger.wait_until(&format!("{activity} state = 'active' AND query = 'command_ledger: settling answers')"), 20);
    ledger.failpoints_off();
    ledger.wait_status("k", "confirmed");
    let launcher = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'command_ledger launcher'";
    assert_eq!(ledger.one::<i64>(launcher, &[]), 1);
}

#[test]
fn the_log_is_quiet_unless_deliveries_are_asked_for_and_never_holds_a_payload() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let secrets = cluster.make_directory("secrets");
    cluster.write_file("secrets/token", "s3cret-value");
    cluster.set("command_ledger.secrets_directory", secrets.to_str().unwrap_or_default());
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    http(&mut ledger, "erp", &erp, json!({"request": {"auth": {"bearer": {"secret": "token"}}}}));
    cluster.wait_for_log("relay of database \"app\" is started", 0, 60);
    let params = json!({"iban": "payload-value"});
    let mark = cluster.log_mark();
    erp.next(answer(429, json!({"echo": "payload-value"})).header("Retry-After", "0"));
    ledger.register("erp", "quiet", params.clone());
    ledger.wait_status("quiet", "confirmed");
    assert_eq!(cluster.log_since(mark), "", "nothing is logged of what goes well, nor of an ordinary retry");
    cluster.set("command_ledger.log_deliveries", "on");
    let mark = cluster.log_mark();
    erp.next(answer(429, json!({"echo": "payload-value"})).header("Retry-After", "0"));
    ledger.register("erp", "say \"it\" loud", params);
    ledger.wait_until("SELECT bool_and(status = 'confirmed') FROM command_ledger.command", 20);
    let log = cluster.log_since(mark);
    let lines: Vec<&str> = log.lines().filter_map(|line| line.split_once("relay: ").map(|(_, rest)| rest)).collect();
    let line = |attempt, kind, status| {
        format!(
            "destination=\"erp\" tenant=\"default\" key=\"say \\\"it\\\" loud\" attempt={attempt} kind={kind} status={status}"
        )
    };
    assert_eq!(lines, [line(1, "not_sent", "approved"), line(2, "confirm", "confirmed")], "{log}");
    for secret in ["payload-value", "s3cret-value"] {
        assert!(!cluster.log().contains(secret), "{secret} is in the log");
    }
}
