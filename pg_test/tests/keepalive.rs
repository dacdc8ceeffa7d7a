//! Nothing between the ledger and the socket repeats a request: on connections that are kept and that break at any
//! moment, the destination counts exactly the attempts that the ledger wrote down.

use pg_test::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

const COMMANDS: usize = 2_000;

fn scene() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let ledger = cluster.ledger("app");
    (cluster, ledger)
}

/// Resets after the request was read in about one of 60 (half of them after the effect), before it was read in one
/// of 59: together about 3 of 100.
fn unreliable(profile: Profile) -> Destination {
    let erp = Destination::start(profile);
    erp.otherwise_by(|_, nth| match nth {
        n if n % 120 == 0 => reset().after_commit(),
        n if n % 120 == 60 => reset(),
        _ => accept(),
    });
    erp.reset_unread_every(Some(59));
    erp
}

fn config(erp: &Destination) -> Value {
    json!({
        "transport": "http",
        "request": {"url": erp.url("/records"), "body": {"reference": "{{ destination_key }}"}},
        "success": {"record_id": "$.id"},
        "limits": {"in_flight": 24, "retries_in_flight": 12},
    })
}

/// Registers all commands at once and waits until nothing is in the outbox.
fn send_all(ledger: &mut Ledger, command_type: &str, commands: usize) {
    ledger.exec(&format!(
        "select count(command_ledger.register('{command_type}', '{command_type}-' || lpad(n::text, 5, '0'), '{{}}')) \
         from generate_series(1, {commands}) n"
    ));
    ledger.wait_until("select not exists (select from command_ledger.outbox)", 120);
}

/// Attempts of which something may have left, by the ledger.
fn sent_attempts(ledger: &mut Ledger, command_type: &str) -> usize {
    let sent: i64 = ledger.one(
        "select count(*) from command_ledger.attempts where command_type = $1 and transport is distinct from 'connection_lost'",
        &[&command_type],
    );
    let others: i64 = ledger.one(
        "select count(*) from command_ledger.attempts where command_type = $1 \
         and transport not in ('connection_lost', 'reset')",
        &[&command_type],
    );
    assert_eq!(others, 0, "nothing else went wrong");
    usize::try_from(sent).expect("a count")
}

fn assert_seen_once(erp: &Destination) {
    let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
    for write in erp.writes() {
        *seen.entry(write.body.clone()).or_default() += 1;
    }
    assert!(seen.values().all(|times| *times == 1), "a request came twice");
}

fn assert_counts_agree(ledger: &mut Ledger, erp: &Destination, command_type: &str) {
    let arrived = erp.writes().len() + usize::try_from(erp.unread_resets()).expect("a count");
    assert_eq!(sent_attempts(ledger, command_type), arrived);
    assert!(erp.unread_resets() > 20, "{} requests were reset unread", erp.unread_resets());
    let connections = usize::try_from(erp.connections()).expect("a count");
    assert!(connections * 3 < arrived, "{connections} connections for {arrived} requests: they are not kept");
}

#[test]
fn a_deduplicating_destination_gets_exactly_the_recorded_attempts_and_has_one_effect_each() {
    let (_cluster, mut ledger) = scene();
    let pay = unreliable(Profile::deduplicating("Idempotency-Key"));
    let mut config = config(&pay);
    config["idempotency"] = json!({"mode": "key", "window": "24h"});
    ledger.define_destination("pay", config);
    ledger.define_type(
        "pay",
        json!({"destination": "pay", "retry": {"max_attempts": 20, "base": "10ms", "cap": "50ms"}}),
    );
    send_all(&mut ledger, "pay", COMMANDS);
    let confirmed: i64 = ledger.one("select count(*) from command_ledger.command where status = 'confirmed'", &[]);
    assert_eq!(usize::try_from(confirmed), Ok(COMMANDS));
    assert_counts_agree(&mut ledger, &pay, "pay");
    assert_eq!(pay.effects(), COMMANDS);
}

#[test]
fn an_unprotected_destination_never_sees_a_command_twice() {
    let (_cluster, mut ledger) = scene();
    let mail = unreliable(Profile::Plain);
    ledger.define_destination("mail", config(&mail));
    ledger.define_type(
        "mail",
        json!({"destination": "mail", "retry": {"max_attempts": 20, "base": "10ms", "cap": "50ms"}}),
    );
    send_all(&mut ledger, "mail", COMMANDS);
    assert_counts_agree(&mut ledger, &mail, "mail");
    assert_seen_once(&mail);
    let (confirmed, open): (i64, i64) = {
        let row = ledger.row(
            "select count(*) filter (where status = 'confirmed'), \
             count(*) filter (where status = 'needs_reconciliation' and maybe_sent) from command_ledger.command",
            &[],
        );
        (row.get(0), row.get(1))
    };
    assert_eq!(usize::try_from(confirmed + open), Ok(COMMANDS), "each is proven or stands in the queue");
    assert!(confirmed > 0 && open > 0);
    let effects = i64::try_from(mail.effects()).expect("a count");
    assert!(effects >= confirmed && effects <= confirmed + open);
}

/// Ends the thread that drops connections, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn connections_that_are_dropped_at_any_moment_make_no_request_come_twice() {
    let (_cluster, mut ledger) = scene();
    let mail = Destination::start(Profile::Plain);
    ledger.define_destination("mail", config(&mail));
    ledger.define_type(
        "mail",
        json!({"destination": "mail", "retry": {"max_attempts": 20, "base": "10ms", "cap": "50ms"}}),
    );
    let done = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(50));
                mail.close_connections();
            }
        });
        let _stop = Stop(&done);
        send_all(&mut ledger, "mail", 1_000);
    });
    assert_seen_once(&mail);
    // What was written into a connection that was being dropped counts as sent, although nobody read it.
    let (sent, arrived) = (sent_attempts(&mut ledger, "mail"), mail.writes().len());
    assert!(arrived <= sent, "{arrived} requests came, {sent} attempts are recorded");
    let confirmed: i64 = ledger.one("select count(*) from command_ledger.command where status = 'confirmed'", &[]);
    assert!(usize::try_from(confirmed).is_ok_and(|n| n <= arrived), "{confirmed} confirmed, {arrived} arrived");
}
