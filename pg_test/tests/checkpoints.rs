//! The checkpoint of a send is where the settings say that it must be, a standby included, or nothing is sent.

use pg_test::erp_like::unprotected;
use pg_test::prelude::*;

#[test]
fn a_relay_that_waits_for_a_standby_when_its_server_dies_sends_nothing() {
    let primary = Cluster::builder().preload(true).fsync_off().setting("command_ledger.max_sleep", "200ms").start();
    let mut ledger = primary.ledger("app");
    let mail = Destination::start(Profile::Plain);
    unprotected(&mut ledger, &mail);
    ledger.relay_pid();
    let standby = primary.standby(Replication::Sync);
    // The standby knows the command, and then no longer listens: commits wait for it, this session's do not.
    ledger.exec("SELECT command_ledger.pause('mail')");
    ledger.register("letter", "L-1", json!({}));
    standby.stop(Mode::Fast);
    ledger.exec("SET synchronous_commit = local");
    ledger.exec("SELECT command_ledger.resume('mail')");
    ledger.wait_until(
        "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE backend_type = 'command_ledger relay'",
        30,
    );
    assert_eq!(mail.requests().len(), 0, "nothing leaves before its checkpoint");
    primary.kill9_postmaster();
    assert_eq!(mail.requests().len(), 0, "the wait ended with the server, not with the standby's word");
    // The standby never heard of an attempt: what it does now is the first.
    standby.start_again();
    standby.promote();
    let mut promoted = Ledger::over(standby.connect("app"));
    assert_eq!(promoted.status("L-1").attempt, 0);
    promoted.exec("SELECT command_ledger.adopt_relay(resend => true)");
    promoted.exec("SELECT command_ledger.resume('mail')");
    assert_eq!(promoted.wait_status("L-1", "confirmed").attempt, 1);
    assert_eq!(mail.effects_for("L-1"), 1);
}
