//! A cancel (by a person, a time limit or a stop request) ends the call that it meets, and is not taken for a fault of
//! the command that was just looked at.

use pg_test::desk::{assert_journals, claim, confirm, desk, journal, task};
use pg_test::prelude::*;

/// Locks a table of the ledger against everybody, in a session of its own.
fn lock_table(ledger: &Ledger, table: &str) -> Session {
    let mut holder = ledger.another();
    holder.exec("BEGIN");
    holder.exec(&format!("LOCK TABLE command_ledger.{table} IN ACCESS EXCLUSIVE MODE"));
    holder
}

/// Runs a statement until it waits for a lock, cancels it once, and answers what it said. Should it go on waiting after
/// that, `holder` lets go in the end, and it says something else.
fn cancelled_while_waiting(ledger: &mut Ledger, sql: &str, mut holder: Session) -> Result<Option<String>, SqlError> {
    let pending = ledger.another().in_background(sql);
    ledger.wait_for_lock_wait(pending.backend_pid());
    ledger.exec(&format!("SELECT pg_catalog.pg_cancel_backend({})", pending.backend_pid()));
    let ended = format!(
        "SELECT state <> 'active' OR pg_catalog.cardinality(pg_catalog.pg_blocking_pids(pid)) > 0 \
           AND query_start < pg_catalog.clock_timestamp() - interval '5 s' \
           FROM pg_catalog.pg_stat_activity WHERE pid = {}",
        pending.backend_pid()
    );
    ledger.wait_until(&ended, 30);
    holder.exec("COMMIT");
    pending.finish().1
}

#[test]
fn a_purge_that_is_cancelled_says_so_and_removes_nothing() {
    let (_cluster, mut ledger) = desk(json!({"retention": {"key": "1ms"}}));
    for key in ["a", "b"] {
        task(&mut ledger, key);
    }
    for job in claim(&mut ledger, 2) {
        confirm(&mut ledger, &job, &job.key);
    }
    ledger.wait_until("SELECT bool_and(retain_until < clock_timestamp()) FROM command_ledger.command", 10);
    let holder = lock_table(&ledger, "approval");
    let said = cancelled_while_waiting(&mut ledger, "SELECT command_ledger.purge()", holder);
    assert_eq!(said.unwrap_err().sqlstate, "57014");
    for key in ["a", "b"] {
        assert_eq!(ledger.status(key).status, "confirmed");
    }
    assert_eq!(ledger.text("SELECT command_ledger.purge()"), "2");
    assert!(ledger.find("a").is_none() && ledger.find("b").is_none());
}

#[test]
fn a_claim_that_is_cancelled_says_so_and_hands_nothing_out() {
    let (_cluster, mut ledger) = desk(json!({}));
    ledger.register_with("task", "k", json!({}), json!({"ordering_key": "lane"}));
    let holder = lock_table(&ledger, "lane");
    let said = cancelled_while_waiting(&mut ledger, "SELECT command_ledger.claim('desk', 10)", holder);
    assert_eq!(said.unwrap_err().sqlstate, "57014");
    assert_eq!(journal(&mut ledger, "k").len(), 1, "nothing but its registration");
    let jobs = claim(&mut ledger, 10);
    assert_eq!(jobs.iter().map(|job| job.attempt).collect::<Vec<_>>(), [1]);
    assert_eq!(confirm(&mut ledger, &jobs[0], "R").status, "confirmed");
    assert_journals(&mut ledger);
}

#[test]
fn a_relay_that_is_stopped_while_it_builds_a_lookup_leaves_the_case_to_the_next_one() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    let search = format!("{}?reference={{{{ destination_key }}}}", erp.url("/records"));
    ledger.define_http_destination(
        "erp",
        &erp.url("/records"),
        json!({"request": {"body": {"reference": "{{ destination_key }}"}}, "success": {"record_id": "$.id"},
               "lookup": {"url": search, "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                          "settle_delay": "1h", "interval": "1h"}}),
    );
    ledger.define_type("invoice", json!({"destination": "erp"}));
    erp.next(drop_after_commit());
    ledger.register("invoice", "k", json!({}));
    ledger.wait_status("k", "needs_reconciliation");
    // The next relay has not read the command's type yet, and needs it for the lookup.
    let mut holder = lock_table(&ledger, "command_type");
    ledger.terminate_relay();
    ledger.alter_system("command_ledger.clock_offset", Some("3700"));
    let relay = ledger.relay_pid();
    ledger.wait_for_lock_wait(relay);
    ledger.terminate_relay();
    let waits = "SELECT next_lookup_at IS NOT NULL FROM command_ledger.reconciliation_case WHERE closed_at IS NULL";
    assert!(ledger.one::<bool>(waits, &[]), "the case is left to a person");
    holder.exec("COMMIT");
    let receipt = ledger.wait_status("k", "confirmed");
    assert_eq!((receipt.attempt, receipt.maybe_sent), (1, false));
    assert_eq!(receipt.destination_record_id.as_ref(), Some(&erp.records()[0].id));
    assert_eq!((erp.writes().len(), erp.effects_for("k"), erp.lookups().len()), (1, 1, 1));
    assert_journals(&mut ledger);
}
