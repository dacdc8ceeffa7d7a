//! Function destinations: a handler's writes and its confirmation are one transaction, in a worker of its own.

mod functions_scene;

use functions_scene::{Bench, FUNCTIONS};
use pg_test::prelude::*;

#[test]
fn a_handlers_writes_and_its_confirmation_are_one() {
    let mut bench = Bench::start();
    bench.handler(
        "book",
        "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, d.params ->> 'item');
                           RETURN jsonb_build_object('id', 'B-' || (d.params ->> 'item'), 'who', current_user);",
    );
    bench.destination("book", json!({"success": {"record_id": "$.id", "when": "$.who == \"clerk\""}}));
    bench.ledger.register("book", "B-1", json!({"item": "chair"}));
    let receipt = bench.ledger.wait_status("B-1", "confirmed");
    assert_eq!(receipt.destination_record_id.as_deref(), Some("B-chair"));
    assert_eq!(receipt.result, Some(json!({"id": "B-chair", "who": "clerk"})), "it runs as its owner");
    assert_eq!((receipt.attempt, receipt.maybe_sent), (1, false));
    assert_eq!(bench.effects("B-1"), 1);
    assert_eq!(bench.journal("B-1"), ["register", "claim", "confirm"]);
    // The row of the effect and the one of the confirmation were written by the same transaction.
    let same = "SELECT e.xmin = c.xmin FROM effect e, command_ledger.command c WHERE c.idempotency_key = e.key AND e.key = 'B-1'";
    assert!(bench.ledger.one::<bool>(same, &[]));
    bench.assert_whole();
}

#[test]
fn what_a_failing_handler_wrote_is_gone_and_it_is_tried_again_by_budget() {
    let mut bench = Bench::start();
    let insert = "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x');";
    let cases = [
        ("raises", "RAISE EXCEPTION 'no stock'; RETURN '{}';", "no stock"),
        ("divides", "RETURN to_jsonb(1 / (d.attempt - d.attempt));", "division by zero"),
        ("becomes", "SET ROLE postgres; RETURN '{}';", "role"),
        ("commits", "COMMIT; RETURN '{}';", "invalid transaction termination"),
        ("makes_temporary", "CREATE TEMP TABLE t (a int); RETURN '{}';", "temporary"),
        ("holds", "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1'; RETURN '{}';", "WITH HOLD"),
        ("is_null", "RETURN NULL;", "success rule"),
        ("is_no_object", "RETURN '[1]';", "success rule"),
        ("has_no_id", "RETURN '{\"id\": {}}';", "success rule"),
        ("is_large", "RETURN jsonb_build_object('id', repeat('x', 100000));", "larger"),
        ("ends_itself", "PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN '{}';", ""),
        ("is_slow", "PERFORM pg_sleep(100); RETURN '{}';", "took longer than its timeout of 500 ms"),
        ("reads_secrets", "RETURN to_jsonb(pg_read_file('postgresql.conf'));", "permission denied"),
        ("defers", "SET CONSTRAINTS ALL DEFERRED; INSERT INTO child VALUES (1); RETURN '{}';", "deferred"),
        ("dangles", "INSERT INTO child VALUES (1); RETURN '{}';", "violates foreign key"),
    ];
    for (name, body, _) in cases {
        bench.handler(name, &format!("{insert} {body}"));
        bench.destination(name, json!({"success": {"record_id": "$.id"}, "timeout": "500ms"}));
        bench.ledger.register(name, &format!("F-{name}"), json!({}));
    }
    for (name, _, says) in cases {
        let key = format!("F-{name}");
        let receipt = bench.ledger.wait_status(&key, "failed");
        let message = receipt.error_message.clone().unwrap_or_default();
        assert_eq!(receipt.attempt, 2, "{name}: {receipt:?}");
        assert_eq!(receipt.error.as_deref(), Some("budget_exhausted"), "{name}");
        assert!(!receipt.maybe_sent, "{name}");
        assert!(message.contains(says), "{name}: {message}");
        assert_eq!(bench.effects(&key), 0, "{name}");
        assert_eq!(bench.journal(&key), ["register", "claim", "not_sent", "claim", "budget_over"], "{name}");
    }
    assert_eq!(bench.ledger.one::<i64>("SELECT count(*) FROM child", &[]), 0);
    // What a handler said may name what it was given: it goes with the payload.
    let redacted = bench.ledger.call("redact", json!({"idempotency_key": "F-raises"}));
    assert_eq!((redacted.status.as_str(), redacted.error_message), ("failed", None));
    bench.assert_works();
}

#[test]
fn a_rule_of_the_destination_says_what_a_returned_document_means() {
    let mut bench = Bench::start();
    bench.handler(
        "judged",
        "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x');
                             RETURN d.params || jsonb_build_object('attempt', d.attempt);",
    );
    let rules: Vec<Value> = ["confirmed", "transient", "permanent", "permission", "uncertain"]
        .iter()
        .map(|outcome| json!({"when": format!("$.say == \"{outcome}\" && $.attempt == 1"), "outcome": outcome}))
        .collect();
    bench.destination("judged", json!({"rules": rules, "success": {"when": "$.say != \"no\""}}));
    for (say, status, error, attempt, effects) in [
        ("confirmed", "confirmed", None, 1, 1),
        ("transient", "confirmed", None, 2, 1),
        ("permanent", "failed", Some("permanent"), 1, 0),
        ("permission", "failed", Some("permission"), 1, 0),
        // Its writes are undone, so that nothing is uncertain about it.
        ("uncertain", "confirmed", None, 2, 1),
    ] {
        let key = format!("J-{say}");
        bench.ledger.register("judged", &key, json!({"say": say}));
        let receipt = bench.ledger.wait_status(&key, status);
        assert_eq!((receipt.error.as_deref(), receipt.attempt), (error, attempt), "{say}: {receipt:?}");
        assert_eq!(bench.effects(&key), effects, "{say}");
    }
    bench.assert_whole();
}

#[test]
fn a_handler_leaves_nothing_behind_for_the_next_one() {
    let mut bench = Bench::start();
    bench.handler(
        "litters",
        "PERFORM set_config('search_path', 'public', false);
         PERFORM set_config('statement_timeout', '1', false);
         PERFORM set_config('app.leak', 'yes', false);
         SET LOCAL synchronous_commit = off;
         PERFORM pg_advisory_lock(4711);
         PERFORM pg_advisory_unlock_all();
         PERFORM pg_advisory_lock(4712);
         RETURN '{\"id\": 1}';",
    );
    bench.handler(
        "looks",
        "RETURN jsonb_build_object('leak', current_setting('app.leak', true), 'path', current_setting('search_path'),
           'limit', current_setting('statement_timeout'), 'locks', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
           'worker', (SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND objid = 2 AND pid = pg_backend_pid()));",
    );
    bench.destination("litters", json!({}));
    bench.destination("looks", json!({}));
    for round in 0..2 {
        bench.ledger.register("litters", &format!("L-{round}"), json!({}));
        bench.ledger.wait_status(&format!("L-{round}"), "confirmed");
        bench.ledger.register("looks", &format!("N-{round}"), json!({}));
        let seen = bench.ledger.wait_status(&format!("N-{round}"), "confirmed").result.unwrap_or_default();
        assert!(seen["leak"].is_null() || seen["leak"] == "", "{seen}");
        assert_eq!(seen["path"], "pg_catalog, pg_temp");
        assert_eq!((&seen["limit"], &seen["locks"], &seen["worker"]), (&json!("0"), &json!(0), &json!(1)), "{seen}");
    }
    bench.assert_works();
}

#[test]
fn a_handler_that_is_gone_changed_or_forbidden_fails_its_own_commands_only() {
    let mut bench = Bench::start();
    for name in ["dropped", "replaced", "revoked"] {
        bench.handler(name, "RETURN '{\"id\": 1}';");
        bench.destination(name, json!({}));
        bench.ledger.exec(&format!("SELECT command_ledger.pause('{name}')"));
        bench.ledger.register(name, &format!("G-{name}"), json!({}));
    }
    bench.ledger.exec("DROP FUNCTION app.dropped");
    bench.handler("replaced", "RETURN '{\"id\": 2}';");
    bench.ledger.exec("REVOKE EXECUTE ON FUNCTION app.revoked FROM PUBLIC, clerk");
    for name in ["dropped", "replaced", "revoked"] {
        bench.ledger.exec(&format!("SELECT command_ledger.resume('{name}')"));
    }
    assert_eq!(bench.ledger.wait_status("G-replaced", "confirmed").result, Some(json!({"id": 2})));
    let gone = bench.ledger.wait_status("G-dropped", "failed").error_message.unwrap_or_default();
    assert!(gone.contains("does not exist"), "{gone}");
    let forbidden = bench.ledger.wait_status("G-revoked", "failed").error_message.unwrap_or_default();
    assert!(forbidden.contains("permission denied"), "{forbidden}");
    // Once it is there again, a retry goes through.
    bench.handler("dropped", "RETURN '{\"id\": 3}';");
    bench.ledger.call("retry", json!({"idempotency_key": "G-dropped", "reason": "the function is back"}));
    bench.ledger.wait_status("G-dropped", "confirmed");
    bench.assert_works();
}

#[test]
fn a_handler_may_register_the_next_command() {
    let mut bench = Bench::start();
    let erp = Destination::start(Profile::Plain);
    bench.http("mail", &erp);
    bench.ledger.exec("SELECT command_ledger.grant_access('clerk', 'propose', 'default')");
    let body = "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x');
                PERFORM command_ledger.register('mail', 'mail-' || d.idempotency_key, jsonb_build_object('of', d.idempotency_key));
                IF d.attempt = 1 AND d.params ? 'fail' THEN RAISE EXCEPTION 'not yet'; END IF;
                RETURN '{\"id\": 1}';";
    bench.handler("order", body);
    bench.destination("order", json!({}));
    bench.ledger.register("order", "O-1", json!({}));
    bench.ledger.register("order", "O-2", json!({"fail": true}));
    for (key, attempt) in [("O-1", 1), ("O-2", 2)] {
        assert_eq!(bench.ledger.wait_status(key, "confirmed").attempt, attempt);
        let mail = bench.ledger.wait_status(&format!("mail-{key}"), "confirmed");
        assert_eq!(mail.attempt, 1);
        assert_eq!(bench.effects(key), 1);
    }
    assert_eq!(erp.writes().len(), 2, "what the failed attempt registered was undone with it");
    bench.assert_whole();
}

#[test]
fn the_worker_is_visible_with_what_it_does_and_only_where_it_is_needed() {
    let mut bench = Bench::start();
    let none = format!("SELECT NOT EXISTS ({FUNCTIONS})");
    assert!(bench.ledger.one::<bool>(&none, &[]));
    let health = "SELECT ok AND detail LIKE $1 FROM command_ledger.health() WHERE check_name = 'functions_worker'";
    assert!(bench.ledger.one::<bool>(health, &[&"no destination%"]));
    bench.handler("waits", "PERFORM pg_advisory_xact_lock(1); RETURN '{\"id\": 1}';");
    bench.destination("waits", json!({}));
    assert!(bench.ledger.one::<bool>(&none, &[]), "nothing is due");
    assert!(bench.ledger.one::<bool>(health, &[&"%is started when%"]));
    let gate = bench.gate();
    bench.ledger.register("waits", "W-1", json!({}));
    bench.ledger.wait_until(
        "SELECT state = 'active' AND query LIKE '%handler app.waits for destination waits, attempt 1' \
           AND wait_event_type = 'Lock' FROM pg_stat_activity WHERE backend_type = 'command_ledger functions' \
           AND datname = current_database()",
        30,
    );
    assert!(bench.ledger.one::<bool>(health, &[&"the functions worker runs (pid %"]));
    bench.open(gate);
    bench.ledger.wait_status("W-1", "confirmed");
    bench.assert_whole();
}

#[test]
fn the_example_of_the_documentation_works() {
    let mut bench = Bench::start();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/functions.md")).unwrap_or_default();
    let example =
        page.split("```").find_map(|block| block.strip_prefix("sql\n")).unwrap_or_else(|| panic!("no example"));
    let table = "CREATE TABLE billing.invoice (id bigint GENERATED ALWAYS AS IDENTITY, reference text, amount numeric)";
    bench.ledger.exec(&format!("CREATE SCHEMA billing; {table}; {example}"));
    bench.ledger.define_type("invoice", json!({"destination": "billing"}));
    bench.ledger.register("invoice", "I-1", json!({"amount": 12.50}));
    bench.ledger.register("invoice", "I-2", json!({"amount": 0}));
    assert_eq!(bench.ledger.wait_status("I-1", "confirmed").destination_record_id.as_deref(), Some("1"));
    let refused = bench.ledger.wait_status("I-2", "failed");
    assert_eq!((refused.error.as_deref(), refused.attempt), (Some("permanent"), 1));
    let booked = "SELECT string_agg(reference || ' ' || amount, ', ') FROM billing.invoice";
    assert!(bench.ledger.text(booked).ends_with("I-1 12.5"));
}
