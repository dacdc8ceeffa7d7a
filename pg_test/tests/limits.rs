//! What holds a destination's traffic back: attempts in flight, repeats, rate, breaker, pause; and that no destination
//! holds up another.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use pg_test::desk::assert_journals;
use pg_test::prelude::*;

/// Every test has a database of it.
static CLUSTER: LazyLock<Cluster> =
    LazyLock::new(|| Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "24").start());

/// A destination of this name with these members, and a command type of the same name; its answers name records.
fn define(ledger: &mut Ledger, name: &str, destination: &Destination, members: Value) {
    let mut config = json!({
        "transport": "http",
        "request": {"url": destination.url("/records"), "body": {"reference": "{{ destination_key }}"}},
        "success": {"record_id": "$.id"},
    });
    for (member, value) in members.as_object().into_iter().flatten() {
        config[member] = value.clone();
    }
    ledger.define_destination(name, config);
    let retry = json!({"base": "1ms", "cap": "1ms", "max_attempts": 1000});
    ledger.define_type(name, json!({"destination": name, "retry": retry}));
}

/// A command that an undisturbed destination confirms: whatever the relay could have done before it, it has done.
fn a_round_passes(ledger: &mut Ledger, quiet: &str, key: &str) {
    ledger.register(quiet, key, json!({}));
    ledger.wait_status(key, "confirmed");
}

fn register_many(ledger: &mut Ledger, command_type: &str, prefix: &str, count: i32) {
    ledger.rows(
        "SELECT command_ledger.register($1, $2 || i, '{}') FROM pg_catalog.generate_series(1, $3::int) i",
        &[&command_type, &prefix, &count],
    );
}

fn wait_all_confirmed(ledger: &mut Ledger, prefix: &str) {
    let all = format!(
        "SELECT pg_catalog.bool_and(status = 'confirmed') FROM command_ledger.command WHERE idempotency_key LIKE '{prefix}%'"
    );
    ledger.wait_until(&all, 60);
}

#[test]
fn attempts_in_flight_reach_the_limit_and_never_pass_it() {
    let mut ledger = CLUSTER.ledger("in_flight");
    let erp = Destination::start(Profile::Plain);
    erp.otherwise(accept().delay(15));
    define(&mut ledger, "erp", &erp, json!({"limits": {"in_flight": 3}}));
    register_many(&mut ledger, "erp", "k", 40);
    wait_all_confirmed(&mut ledger, "k");
    assert_eq!(erp.peak_in_flight(), 3);
    assert_eq!((erp.writes().len(), erp.effects()), (40, 40));
    assert_journals(&mut ledger);
}

#[test]
fn repeats_have_a_limit_of_their_own_and_never_crowd_out_first_attempts() {
    let mut ledger = CLUSTER.ledger("repeats");
    let erp = Destination::start(Profile::Plain);
    let seen = Mutex::new(HashSet::new());
    erp.otherwise_by(move |request, _| {
        let key = request.json().unwrap_or_default()["reference"].to_string();
        let first = seen.lock().unwrap().insert(key.clone());
        match (key.contains("bad"), first) {
            (true, true) => answer(429, json!({})),
            (true, false) => hang_after_commit(),
            (false, _) => accept(),
        }
    });
    define(&mut ledger, "erp", &erp, json!({"limits": {"in_flight": 4, "retries_in_flight": 2}}));
    register_many(&mut ledger, "erp", "bad", 8);
    erp.wait_for_held(2);
    // The rest waits for its repeat; the view says what for.
    let queue = "SELECT count(*) FROM command_ledger.dispatch_queue WHERE ";
    ledger
        .wait_until(&format!("SELECT ({queue} blocked_by = 'limit' AND why LIKE '%limit for repeats is 2%') = 6"), 20);
    register_many(&mut ledger, "erp", "good", 20);
    wait_all_confirmed(&mut ledger, "good");
    assert_eq!(ledger.one::<i64>(&format!("{queue} state = 'leased' AND attempt = 2"), &[]), 2);
    assert_eq!(erp.in_flight(), 2, "the repeats hang all the time");
    erp.otherwise(accept());
    erp.release();
    wait_all_confirmed(&mut ledger, "bad");
    assert!(erp.peak_in_flight() <= 4, "{}", erp.peak_in_flight());
    assert_eq!(erp.effects(), 28);
    assert_journals(&mut ledger);
}

#[test]
fn no_second_holds_more_sends_than_the_rate_across_a_restart_of_the_relay_too() {
    let mut ledger = CLUSTER.ledger("rate");
    let erp = Destination::start(Profile::Plain);
    define(&mut ledger, "erp", &erp, json!({"limits": {"per_second": 6}}));
    register_many(&mut ledger, "erp", "k", 20);
    ledger.wait_until("SELECT bool_or(blocked_by = 'rate') FROM command_ledger.dispatch_queue", 20);
    ledger.wait_until("SELECT state = 'rate_used_up' FROM command_ledger.destination_status", 20);
    erp.wait_for_write(6);
    ledger.terminate_relay();
    wait_all_confirmed(&mut ledger, "k");
    // By the ledger's clock no second is over the rate, wherever it begins.
    let most = "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN CURRENT ROW AND \
                INTERVAL '999999 microseconds' FOLLOWING) AS n FROM command_ledger.attempts) w";
    assert_eq!(ledger.one::<i64>(most, &[]), 6);
    // By the destination's: requests may bunch on their way, so its window is wider and may touch three seconds.
    let writes = erp.writes();
    let within = |from: usize| {
        let end = writes[from].arrived + Duration::from_millis(1_500);
        writes[from..].iter().filter(|write| write.arrived <= end).count()
    };
    let bunch = (0..writes.len()).map(within).max();
    assert!(bunch <= Some(18), "{bunch:?}");
    assert_eq!((writes.len(), erp.effects()), (20, 20));
}

#[test]
fn the_breaker_opens_after_failures_sends_nothing_while_open_and_probes_one_at_a_time() {
    const COOL_DOWN: Duration = Duration::from_millis(600);
    let mut ledger = CLUSTER.ledger("breaker");
    let (erp, quiet) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    define(&mut ledger, "quiet", &quiet, json!({}));
    let breaker = json!({"failures": 3, "cool_down": "600ms"});
    define(&mut ledger, "erp", &erp, json!({"breaker": breaker, "limits": {"in_flight": 8}}));
    erp.next(answer(429, json!({})).times(4).then(hang_after_commit()));
    ledger.register("erp", "k0", json!({}));
    erp.wait_for_write(3);
    ledger.wait_until("SELECT bool_or(breaker <> 'closed') FROM command_ledger.destination_status", 20);
    register_many(&mut ledger, "erp", "k", 9);
    // The fourth is a probe that fails, the fifth one that hangs; meanwhile nothing else goes.
    erp.wait_for_held(1);
    a_round_passes(&mut ledger, "quiet", "q1");
    assert_eq!((erp.writes().len(), erp.in_flight()), (5, 1));
    let status = "SELECT state || ' ' || breaker || ' ' || (breaker_failures >= 4) FROM command_ledger.destination_status \
                  WHERE destination = 'erp'";
    assert_eq!(ledger.text(status), "breaker_half_open half_open true");
    let waiting =
        "SELECT count(*) FROM command_ledger.dispatch_queue WHERE blocked_by = 'breaker' AND why LIKE '%probe%'";
    assert_eq!(ledger.one::<i64>(waiting, &[]), 9);
    erp.release();
    wait_all_confirmed(&mut ledger, "k");
    assert_eq!(ledger.text(status), "ready closed false");
    let writes = erp.writes();
    for probe in [3, 4] {
        let rest = writes[probe].arrived - writes[probe - 1].arrived;
        assert!(rest >= COOL_DOWN, "{rest:?} before write {}", probe + 1);
    }
    assert_eq!((writes.len(), erp.effects()), (14, 10));
    assert_journals(&mut ledger);
}

#[test]
fn our_own_missing_secret_neither_opens_nor_closes_the_breaker() {
    let mut ledger = CLUSTER.ledger("own_fault");
    let erp = Destination::start(Profile::Plain);
    let auth = json!({"bearer": {"secret": "nobody_wrote_it"}});
    let request = json!({"url": erp.url("/records"), "auth": auth});
    define(&mut ledger, "erp", &erp, json!({"request": request, "breaker": {"failures": 1, "cool_down": "1h"}}));
    register_many(&mut ledger, "erp", "k", 3);
    ledger.wait_until("SELECT count(*) = 3 FROM command_ledger.dispatch_queue WHERE error = 'not_sent'", 20);
    let status = "SELECT breaker || ' ' || last_error || ' ' || (last_error_message LIKE '%nobody_wrote_it%') \
                  FROM command_ledger.destination_status";
    assert_eq!(ledger.text(status), "closed not_sent true");
    assert_eq!(erp.requests().len(), 0);
}

#[test]
fn a_paused_destination_gets_nothing_new_and_its_open_answers_count() {
    let mut ledger = CLUSTER.ledger("pause");
    let (erp, quiet) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    define(&mut ledger, "quiet", &quiet, json!({}));
    define(&mut ledger, "erp", &erp, json!({}));
    erp.next(hang_after_commit());
    ledger.register("erp", "before", json!({}));
    erp.wait_for_held(1);
    ledger.exec("SELECT command_ledger.pause('erp')");
    ledger.register("erp", "after", json!({}));
    a_round_passes(&mut ledger, "quiet", "q1");
    erp.release();
    ledger.wait_status("before", "confirmed");
    a_round_passes(&mut ledger, "quiet", "q2");
    assert_eq!(erp.writes().len(), 1);
    let waits = "SELECT state || ' ' || blocked_by FROM command_ledger.dispatch_queue WHERE idempotency_key = 'after'";
    assert_eq!(ledger.text(waits), "blocked pause");
    ledger.exec("SELECT command_ledger.resume('erp')");
    ledger.wait_status("after", "confirmed");
    assert_eq!((erp.writes().len(), erp.effects()), (2, 2));
}

#[test]
fn a_destination_that_hangs_holds_up_no_other() {
    let mut ledger = CLUSTER.ledger("hang");
    let (slow, fast) = (Destination::start(Profile::Plain), Destination::start(Profile::Plain));
    slow.otherwise(hang_after_commit());
    define(&mut ledger, "slow", &slow, json!({}));
    define(&mut ledger, "fast", &fast, json!({"limits": {"in_flight": 64}}));
    register_many(&mut ledger, "slow", "s", 40);
    slow.wait_for_held(16);
    register_many(&mut ledger, "fast", "f", 500);
    wait_all_confirmed(&mut ledger, "f");
    assert_eq!((slow.writes().len(), slow.in_flight()), (16, 16), "they hang all the time");
    let in_flight = "SELECT in_flight FROM command_ledger.destination_status WHERE destination = 'slow'";
    assert_eq!(ledger.one::<i64>(in_flight, &[]), 16);
    slow.otherwise(accept());
    slow.release();
    wait_all_confirmed(&mut ledger, "s");
    assert_eq!(slow.peak_in_flight(), 16);
    assert_eq!((slow.effects(), fast.effects(), fast.writes().len()), (40, 500, 500));
}
