//! Retention: a key is freed when nothing can rest on it any more and not before, by the relay itself, in small batches.

use pg_test::prelude::*;

/// Claims everything that is due at `desk` and confirms it.
fn confirm_all(ledger: &mut Ledger) {
    let claimed = ledger.table("select idempotency_key, lease_token from command_ledger.claim('desk', 200)");
    for row in claimed {
        let named = json!({"idempotency_key": row[0], "lease_token": row[1], "destination_record_id": "N"});
        ledger.call("confirm", named);
    }
}

fn is_past(ledger: &mut Ledger, moment: &str) {
    ledger.wait_until(&format!("select clock_timestamp() > timestamptz '{moment}'"), 30);
}

#[test]
fn a_key_is_freed_only_after_window_deadline_and_retry_horizon() {
    // Without a relay: what purge() does is counted here.
    let cluster = Cluster::builder().fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let keyed =
        |window: &str| json!({"transport": "pull", "idempotency": {"mode": "key", "window": window, "margin": "1s"}});
    // Each case has one thing that outlasts a retention of a millisecond; `plain` has none.
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_destination("short", keyed("2s"));
    ledger.define_destination("for_ever", keyed("unlimited"));
    let keep = json!({"key": "1ms"});
    ledger.define_type("plain", json!({"destination": "desk", "retention": keep}));
    ledger.define_type("window", json!({"destination": "short", "retention": keep}));
    ledger.define_type("for_ever", json!({"destination": "for_ever", "retention": keep}));
    ledger.define_type("horizon", json!({"destination": "desk", "retention": keep, "retry": {"deadline": "4s"}}));
    let deadline = ledger.text("select clock_timestamp() + interval '4 s'");
    for kind in ["plain", "window", "for_ever", "horizon"] {
        ledger.register(kind, kind, json!({}));
    }
    ledger.register_with("plain", "deadline", json!({}), json!({"deadline": deadline}));
    ledger.register("plain", "open", json!({}));
    let horizon = ledger.text("select registered_at + interval '4 s' from command_ledger.status('horizon')");
    for destination in ["desk", "short", "for_ever"] {
        let claimed = ledger
            .table(&format!("select idempotency_key, lease_token from command_ledger.claim('{destination}', 10)"));
        for row in claimed.into_iter().filter(|row| row[0].as_deref() != Some("open")) {
            ledger.call("confirm", json!({"idempotency_key": row[0], "lease_token": row[1]}));
        }
    }
    let window_over = ledger.text("select updated_at + interval '3 s' from command_ledger.status('window')");

    ledger.wait_until(
        "select bool_and(retain_until < clock_timestamp()) from command_ledger.command where idempotency_key = 'plain'",
        10,
    );
    assert_eq!(ledger.text("select command_ledger.purge()"), "1");
    assert!(ledger.find("plain").is_none());
    // Whatever outlasts it: still a replay, still a conflict.
    for kind in ["window", "for_ever", "horizon"] {
        assert_eq!(ledger.register(kind, kind, json!({})).outcome.as_deref(), Some("replayed"), "{kind}");
        assert_eq!(ledger.try_register(kind, kind, json!({"n": 1})).unwrap_err().sqlstate, "CL001", "{kind}");
    }
    for (kind, moment) in [("window", window_over), ("deadline", deadline), ("horizon", horizon)] {
        if ledger.one::<bool>("select clock_timestamp() < $1::text::timestamptz", &[&moment]) {
            ledger.exec("select command_ledger.purge()");
            if ledger.one::<bool>("select clock_timestamp() < $1::text::timestamptz", &[&moment]) {
                assert!(ledger.find(kind).is_some(), "{kind} was freed before {moment}");
            }
        }
        is_past(&mut ledger, &moment);
        ledger.exec("select command_ledger.purge()");
        assert!(ledger.find(kind).is_none(), "{kind}");
        let again = if kind == "deadline" { "plain" } else { kind };
        assert_eq!(ledger.register(again, kind, json!({"n": 1})).outcome.as_deref(), Some("created"));
    }
    assert_eq!(ledger.text("select command_ledger.purge()"), "0");
    assert!(ledger.find("for_ever").is_some() && ledger.find("open").is_some());
}

#[test]
fn the_relay_forgets_by_itself_in_small_transactions() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull", "limits": {"in_flight": 5000}}));
    ledger.define_type("note", json!({"destination": "desk", "retention": {"payload": "1ms", "key": "1s"}}));
    // The owner watches how much goes at once.
    ledger.exec("create table public.gone (xid xid8, was text)");
    ledger.exec(
        "create function public.watch() returns trigger language plpgsql as $$ begin \
           insert into public.gone values (pg_current_xact_id(), tg_op); return null; end $$",
    );
    ledger.exec(
        "create trigger watch_delete after delete on command_ledger.command for each row execute function public.watch()",
    );
    ledger.exec(
        "create trigger watch_redact after update on command_ledger.command for each row \
           when (old.redacted_at is null and new.redacted_at is not null) execute function public.watch()",
    );
    ledger.exec(
        "select command_ledger.register('note', 'n-' || i, jsonb_build_object('i', i)) from generate_series(1, 1200) i",
    );
    for _ in 0..6 {
        confirm_all(&mut ledger);
    }
    let settled = "select count(*) from command_ledger.command where status <> 'confirmed'";
    assert_eq!(ledger.one::<i64>(settled, &[]), 0);
    ledger.wait_until(
        "select coalesce(bool_and(retain_until < clock_timestamp()), true) from command_ledger.command",
        10,
    );
    // A run of the relay soon does its first round, and comes back for the rest without a pause.
    ledger.terminate_relay();
    ledger.wait_until("select count(*) = 0 from command_ledger.command", 60);
    for table in ["command_event", "outbox", "approval", "reconciliation_case", "lane"] {
        assert_eq!(ledger.one::<i64>(&format!("select count(*) from command_ledger.{table}"), &[]), 0, "{table}");
    }
    let most: i64 = ledger.one("select max(n) from (select count(*) as n from public.gone group by xid) x", &[]);
    assert!((1..=500).contains(&most), "{most} commands in one transaction");
    assert_eq!(ledger.one::<i64>("select count(*) from public.gone where was = 'DELETE'", &[]), 1200);
}
