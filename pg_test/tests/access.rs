//! Who may do what: the proposer proposes and nothing else, nobody reaches into another tenant or an operation that
//! was not granted, and what grant_access() gives is what a capability needs, no more and no less.

use pg_test::prelude::*;

const VIEWS: [&str; 11] = [
    "timeline",
    "reconciliation_queue",
    "approval_queue",
    "dispatch_queue",
    "attempts",
    "runs",
    "duplicate_records",
    "lookalikes",
    "destination_status",
    "metrics",
    "measures",
];

const TOKEN: &str = "'00000000-0000-4000-8000-000000000000'";

/// A ledger with two operations at one pull destination (`order` needs an approval, `note` does not), and roles of
/// the tenants acme and zeta.
fn ledger() -> (Cluster, Ledger) {
    let cluster = Cluster::builder().preload(true).start();
    let mut ledger = cluster.ledger("app");
    ledger.define_destination("desk", json!({"transport": "pull"}));
    ledger.define_type("order", json!({"destination": "desk", "approval": {}}));
    ledger.define_type("note", json!({"destination": "desk", "lookalike": {"window": "10m", "action": "flag"}}));
    for (role, capability, tenant) in [
        ("proposer", "propose", "acme"),
        ("approver", "approve", "acme"),
        ("worker", "execute", "acme"),
        ("operator", "operate", "acme"),
        ("auditor", "audit", "acme"),
        ("zeta_proposer", "propose", "zeta"),
        ("zeta_auditor", "audit", "zeta"),
    ] {
        ledger.exec(&format!("create role {role} login"));
        grant(&mut ledger, role, capability, tenant);
    }
    (cluster, ledger)
}

fn grant(ledger: &mut Ledger, role: &str, capability: &str, tenant: &str) {
    ledger.exec(&format!("select command_ledger.grant_access('{role}', '{capability}', '{tenant}')"));
}

/// What only others may do, tried on an existing command of acme.
fn beyond_proposing(hash: &str) -> Vec<String> {
    [
        format!("approve('A-1', '{hash}')"),
        format!("reject('A-1', '{hash}')"),
        "revoke_approval('A-1')".to_owned(),
        "claim('desk', tenant => 'acme')".to_owned(),
        format!("extend_lease('A-1', {TOKEN})"),
        format!("confirm('A-1', {TOKEN})"),
        format!("fail('A-1', {TOKEN}, 'permanent')"),
        format!("uncertain('A-1', {TOKEN})"),
        format!("release('A-1', {TOKEN})"),
        "register_and_claim('note', 'A-2', '{}')".to_owned(),
        "consume('shop', 'm-1')".to_owned(),
        "reconcile('A-1', 'found')".to_owned(),
        "retry('A-1')".to_owned(),
        "assign_case('A-1', 'me')".to_owned(),
        "pause('desk')".to_owned(),
        "resume('desk')".to_owned(),
        "redact('A-1')".to_owned(),
        "purge()".to_owned(),
        "adopt_relay()".to_owned(),
        "define_destination('mine', '{\"transport\": \"pull\"}')".to_owned(),
        "define_command_type('mine', '{\"destination\": \"desk\"}')".to_owned(),
        "grant_access('proposer', 'approve')".to_owned(),
        "revoke_access('approver', 'approve', 'acme')".to_owned(),
        "start_relay()".to_owned(),
        "stop_relay()".to_owned(),
        "health()".to_owned(),
    ]
    .into_iter()
    .map(|call| format!("select command_ledger.{call}"))
    .collect()
}

#[test]
fn a_proposer_registers_and_reads_its_receipt_and_does_nothing_else() {
    let (_cluster, mut ledger) = ledger();
    let mut proposer = ledger.as_role("proposer");
    let receipt = proposer.register("order", "A-1", json!({"n": 1}));
    assert_eq!((receipt.tenant.as_str(), receipt.status.as_str()), ("acme", "planned"));
    assert_eq!(proposer.status("A-1").intent_hash, receipt.intent_hash);
    for proof in ["explain", "evidence", "verify_journal"] {
        proposer.expect_sqlstate("42501", &format!("select command_ledger.{proof}('A-1')"));
    }
    let hash = receipt.intent_hash.unwrap();
    for sql in beyond_proposing(&hash) {
        proposer.expect_sqlstate("42501", &sql);
    }
    for table in ["command", "command_event", "outbox", "access", "destination"].iter().chain(&VIEWS) {
        proposer.expect_sqlstate("42501", &format!("select * from command_ledger.{table}"));
    }
    // The functions themselves refuse too, where somebody handed out EXECUTE by mistake.
    ledger.exec("grant execute on all functions in schema command_ledger to proposer");
    for sql in beyond_proposing(&hash) {
        proposer.expect_sqlstate("42501", &sql);
    }
    let after = proposer.status("A-1");
    assert_eq!((after.status.as_str(), after.approvals_missing), ("planned", Some(1)));
    assert_eq!(proposer.call("cancel", json!({"idempotency_key": "A-1"})).status, "cancelled");
}

/// Calls about a command of acme.
const OF_ANOTHER_TENANT: [&str; 10] = [
    "status('KEY', 'acme')",
    "wait_for('KEY', '0 s', 'acme')",
    "evidence('KEY', 'acme')",
    "explain('KEY', 'acme')",
    "verify_journal('KEY', 'acme')",
    "cancel('KEY', tenant => 'acme')",
    "revise('KEY', '{}', '\\x00', 'acme')",
    "register('order', 'KEY', '{\"n\": 1}', tenant => 'acme')",
    "validate('order', '{}', 'acme')",
    "params_hash('order', '{}', 'acme')",
];

#[test]
fn another_tenant_is_closed_whether_or_not_the_key_exists() {
    let (_cluster, ledger) = ledger();
    ledger.as_role("proposer").register("order", "A-1", json!({"n": 1}));
    ledger.as_role("proposer").register("note", "A-2", json!({"n": 1}));
    let mut stranger = ledger.as_role("zeta_proposer");
    for call in OF_ANOTHER_TENANT {
        let sql = format!("select command_ledger.{call}");
        let known = stranger.expect_sqlstate("42501", &sql.replace("KEY", "A-1"));
        let unknown = stranger.expect_sqlstate("42501", &sql.replace("KEY", "B-1"));
        assert_eq!((known.message, known.detail), (unknown.message, unknown.detail), "{call}");
    }
    assert!(stranger.find("A-1").is_none(), "its own tenant has no such key");
    let own = stranger.register("order", "A-1", json!({"n": 2}));
    assert_eq!((own.tenant.as_str(), own.outcome.as_deref()), ("zeta", Some("created")));
    let mut auditor = ledger.as_role("zeta_auditor");
    assert_eq!(auditor.column::<String>("select distinct tenant from command_ledger.timeline", &[]), ["zeta"]);
    assert_eq!(auditor.column::<String>("select tenant from command_ledger.approval_queue", &[]), ["zeta"]);
    assert_eq!(auditor.one::<i64>("select count(*) from command_ledger.dispatch_queue", &[]), 0);
    assert_eq!(auditor.one::<i64>("select queued from command_ledger.destination_status", &[]), 0);
    let mut auditor = ledger.as_role("auditor");
    assert_eq!(auditor.column::<String>("select distinct tenant from command_ledger.timeline", &[]), ["acme"]);
    assert_eq!(auditor.column::<String>("select tenant from command_ledger.dispatch_queue", &[]), ["acme"]);
    assert_eq!(auditor.one::<i64>("select queued from command_ledger.destination_status", &[]), 1);
}

#[test]
fn a_refusal_reads_no_command_so_that_its_time_tells_nothing() {
    let (_cluster, ledger) = ledger();
    ledger.as_role("proposer").register("order", "A-1", json!({"n": 1}));
    ledger.as_role("zeta_proposer").register("order", "A-1", json!({"n": 1}));
    // A session of its own: what it counted before would be counted again.
    let mut stranger = ledger.as_role("zeta_proposer");
    let scans = "SELECT string_agg(relname, ',') FROM pg_stat_xact_all_tables \
                  WHERE schemaname = 'command_ledger' AND relname <> 'access' AND seq_scan + coalesce(idx_scan, 0) > 0";
    stranger.exec("BEGIN");
    for call in OF_ANOTHER_TENANT {
        stranger.exec("SAVEPOINT s");
        stranger.expect_sqlstate("42501", &format!("SELECT command_ledger.{}", call.replace("KEY", "A-1")));
        stranger.exec("ROLLBACK TO s");
    }
    assert_eq!(stranger.maybe_text(scans), None);
    stranger.exec("SELECT * FROM command_ledger.status('A-1')");
    assert!(stranger.text(scans).contains("command"), "an own command is read");
    stranger.exec("COMMIT");
}

#[test]
fn an_operation_that_was_not_granted_is_refused() {
    let (_cluster, mut ledger) = ledger();
    ledger.exec("create role clerk login; create role notes_auditor login");
    ledger.exec("select command_ledger.grant_access('clerk', 'propose', 'acme', '{note}')");
    ledger.exec("select command_ledger.grant_access('notes_auditor', 'audit', 'acme', '{note}')");
    ledger.as_role("proposer").register("order", "A-1", json!({"n": 1}));
    let mut clerk = ledger.as_role("clerk");
    assert_eq!(clerk.register("note", "A-2", json!({"n": 1})).outcome.as_deref(), Some("created"));
    for call in [
        "register('order', 'A-3', '{}')",
        "register('order', 'A-1', '{\"n\": 1}')",
        "status('A-1')",
        "cancel('A-1')",
        "evidence('A-1')",
        "validate('order', '{}')",
    ] {
        clerk.expect_sqlstate("42501", &format!("select command_ledger.{call}"));
    }
    let mut auditor = ledger.as_role("notes_auditor");
    let keys = auditor.column::<String>("select distinct idempotency_key from command_ledger.timeline", &[]);
    assert_eq!(keys, ["A-2"]);
    assert_eq!(auditor.one::<i64>("select count(*) from command_ledger.approval_queue", &[]), 0);
}

#[test]
fn nothing_in_the_schema_is_left_to_public() {
    let (_cluster, mut ledger) = ledger();
    let functions = "select count(*) from pg_proc where pronamespace = 'command_ledger'::regnamespace";
    assert!(ledger.one::<i64>(functions, &[]) > 40);
    let open = ledger.column::<String>(
        "select p.oid::regprocedure::text from pg_proc p, \
                aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a \
          where p.pronamespace = 'command_ledger'::regnamespace and a.grantee = 0 \
         union all \
         select c.oid::regclass::text from pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a \
          where c.relnamespace = 'command_ledger'::regnamespace and c.relkind in ('r', 'v') and a.grantee = 0 \
         union all \
         select n.nspname::text from pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a \
          where n.nspname = 'command_ledger' and a.grantee = 0",
        &[],
    );
    assert_eq!(open, [""; 0]);
    ledger.exec("create role nobody login");
    ledger.as_role("nobody").expect_sqlstate("42501", "select command_ledger.canonical('{}')");
}

#[test]
fn the_current_role_decides_and_not_the_login() {
    let (_cluster, mut ledger) = ledger();
    ledger.exec("create role agent login noinherit; grant proposer to agent");
    let mut agent = ledger.as_role("agent");
    agent.expect_sqlstate("42501", "select command_ledger.register('order', 'A-1', '{}')");
    agent.exec("set role proposer");
    let receipt = agent.register("order", "A-1", json!({}));
    assert_eq!(ledger.text("select command_ledger.evidence('A-1', 'acme') ->> 'proposer'"), "proposer");
    // A superuser's login gains nothing while it acts as the proposer.
    let approve = format!("select command_ledger.approve('A-1', '{}')", receipt.intent_hash.unwrap());
    ledger.exec("set role proposer");
    ledger.expect_sqlstate("42501", &approve);
    ledger.exec("reset role; set role approver");
    ledger.exec(&approve);
    assert_eq!(ledger.status("A-1").status, "approved");
    let actors = ledger.column::<String>("select actor from command_ledger.timeline order by seq", &[]);
    assert_eq!(actors, ["proposer", "approver"]);
}

#[test]
fn the_tenant_of_a_session_follows_the_grants_and_its_setting() {
    let (_cluster, mut ledger) = ledger();
    let mut session = ledger.as_role("proposer");
    let current = "select command_ledger.current_tenant()";
    assert_eq!([session.text(current), session.text(current)], ["acme", "acme"]);
    // An old snapshot sees the grants of its time; what it was told must not outlive it.
    session.exec("begin isolation level repeatable read");
    assert_eq!(session.text(current), "acme");
    grant(&mut ledger, "proposer", "propose", "zeta");
    session.text(current);
    session.exec("commit");
    assert_eq!(session.text(current), "default", "two tenants are granted, and none is meant");
    session.exec("set command_ledger.tenant = 'zeta'");
    assert_eq!(session.text(current), "zeta");
    ledger.exec("select command_ledger.revoke_access('proposer', 'propose', 'zeta')");
    assert_eq!(session.text(current), "acme", "a tenant that is not granted is not used");
    session.exec("reset command_ledger.tenant");
    // A grant that is taken back again.
    ledger.exec("begin; select command_ledger.revoke_access('proposer', 'propose', 'acme'); rollback");
    assert_eq!(session.text(current), "acme");
    // Another role in the same session, and a membership.
    ledger.exec("create role twofold login noinherit; grant proposer to twofold; grant zeta_proposer to twofold");
    let mut twofold = ledger.as_role("twofold");
    twofold.exec("set role zeta_proposer");
    assert_eq!(twofold.text(current), "zeta");
    twofold.exec("set role proposer");
    assert_eq!(twofold.text(current), "acme");
}

#[test]
fn a_proposer_with_the_right_to_approve_does_not_approve_its_own() {
    let (_cluster, mut ledger) = ledger();
    grant(&mut ledger, "proposer", "approve", "acme");
    let mut proposer = ledger.as_role("proposer");
    let receipt = proposer.register("order", "A-1", json!({}));
    let named = json!({"idempotency_key": "A-1", "intent_hash": receipt.intent_hash});
    assert_eq!(proposer.try_call_named("approve", named.clone()).unwrap_err().sqlstate, "CL008");
    let mut as_another = named.clone();
    as_another["approver"] = json!("somebody else");
    assert_eq!(proposer.try_call_named("approve", as_another).unwrap_err().sqlstate, "CL008");
    assert_eq!(proposer.status("A-1").approvals_missing, Some(1));
    assert_eq!(ledger.as_role("approver").call("approve", named).status, "approved");
}

#[test]
fn who_may_read_the_views_can_read_all_of_them() {
    let (_cluster, ledger) = ledger();
    ledger.as_role("proposer").register_with("note", "A-1", json!({"n": 1}), json!({"run_id": "r-1"}));
    ledger.as_role("proposer").register_with("note", "A-2", json!({"n": 1}), json!({"run_id": "r-1"}));
    for role in ["auditor", "operator", "approver"] {
        let mut reader = ledger.as_role(role);
        for view in VIEWS {
            reader.rows(&format!("select * from command_ledger.{view}"), &[]);
        }
        assert_eq!(reader.one::<i64>("select steps from command_ledger.runs where run_id = 'r-1'", &[]), 2);
        assert_eq!(reader.text("select earlier_key from command_ledger.lookalikes"), "A-1");
        let due = "select value from command_ledger.metrics where name = 'command_ledger_queued' \
                    and labels ->> 'state' = 'due'";
        assert_eq!(reader.one::<f64>(due, &[]), 2.0);
    }
    for role in ["worker", "proposer"] {
        ledger.as_role(role).expect_sqlstate("42501", "select * from command_ledger.timeline");
    }
}

#[test]
fn a_worker_executes_what_others_registered_and_approved() {
    let (_cluster, ledger) = ledger();
    ledger.as_role("proposer").register("note", "A-1", json!({"n": 1}));
    ledger.as_role("zeta_proposer").register("note", "Z-1", json!({"n": 1}));
    let mut worker = ledger.as_role("worker");
    let claimed = "select idempotency_key || ' ' || lease_token from command_ledger.claim('desk', 10)";
    let claimed = worker.column::<String>(claimed, &[]);
    let [claimed] = claimed.as_slice() else { panic!("{claimed:?}") };
    let (key, token) = claimed.split_once(' ').unwrap();
    assert_eq!(key, "A-1");
    let named = json!({"idempotency_key": key, "lease_token": token, "destination_record_id": "R-1"});
    assert_eq!(worker.call("confirm", named).status, "confirmed");
    worker.expect_sqlstate("42501", "select command_ledger.register('note', 'A-9', '{}')");
    // No reader of the views or of the proof ever sees the token; the views do not even show its mark in the journal.
    let mut auditor = ledger.as_role("auditor");
    for sql in [
        "select string_agg(t::text, '') from command_ledger.timeline t",
        "select string_agg(t::text, '') from command_ledger.attempts t",
        "select command_ledger.evidence('A-1')::text",
        "select command_ledger.explain('A-1')",
    ] {
        let shown = auditor.text(sql);
        assert!(shown.contains("R-1") || shown.contains("confirm"), "{sql}: {shown}");
        assert!(!shown.contains(token), "{sql}: {shown}");
        assert!(sql.contains("evidence") || !shown.contains("\"lease\""), "{sql}: {shown}");
    }
}

#[test]
fn what_is_revoked_is_gone_unless_another_grant_needs_it() {
    let (_cluster, mut ledger) = ledger();
    grant(&mut ledger, "proposer", "propose", "zeta");
    grant(&mut ledger, "proposer", "audit", "acme");
    let mut proposer = ledger.as_role("proposer");
    proposer.register_with("note", "A-1", json!({}), json!({"tenant": "acme"}));
    ledger.exec("select command_ledger.revoke_access('proposer', 'propose', 'acme')");
    proposer.expect_sqlstate("42501", "select command_ledger.register('note', 'A-2', '{}', tenant => 'acme')");
    proposer.register_with("note", "Z-1", json!({}), json!({"tenant": "zeta"}));
    ledger.exec("select command_ledger.revoke_access('proposer', 'propose', 'zeta')");
    proposer.expect_sqlstate("42501", "select command_ledger.register('note', 'Z-2', '{}', tenant => 'zeta')");
    assert_eq!(proposer.column::<String>("select distinct tenant from command_ledger.timeline", &[]), ["acme"]);
    ledger.exec("select command_ledger.revoke_access('proposer', 'audit', 'acme')");
    proposer.expect_sqlstate("42501", "select * from command_ledger.timeline");
    proposer.expect_sqlstate("42501", "select command_ledger.status('A-1', 'acme')");
    let rights = "select has_schema_privilege('proposer', 'command_ledger', 'usage') or exists (select from pg_proc p \
                   where p.pronamespace = 'command_ledger'::regnamespace and has_function_privilege('proposer', p.oid, 'execute'))";
    assert!(!ledger.one::<bool>(rights, &[]));
    ledger.expect_sqlstate("CL012", "select command_ledger.revoke_access('proposer', 'audit', 'acme')");
}

#[test]
fn grants_are_given_by_administrators_of_all_tenants_only() {
    let (_cluster, mut ledger) = ledger();
    ledger.exec("create role admin login; create role acme_admin login; create role newcomer login");
    ledger.exec("select command_ledger.grant_access('admin', 'administer')");
    grant(&mut ledger, "acme_admin", "administer", "acme");
    let give = "select command_ledger.grant_access('newcomer', 'propose', 'acme')";
    ledger.as_role("acme_admin").expect_sqlstate("42501", give);
    ledger.as_role("operator").expect_sqlstate("42501", give);
    let mut admin = ledger.as_role("admin");
    admin.exec(give);
    assert_eq!(ledger.as_role("newcomer").register("note", "A-1", json!({})).tenant, "acme");
    assert_eq!(ledger.text("select granted_by from command_ledger.access where role = 'newcomer'::regrole"), "admin");
    let unknown = admin.expect_sqlstate("CL012", "select command_ledger.grant_access('newcomer', 'own')");
    for word in ["propose", "approve", "execute", "operate", "administer", "audit"] {
        assert!(unknown.hint.contains(word), "{}", unknown.hint);
    }
    for call in ["grant_access(null, 'audit')", "grant_access('newcomer', null)"] {
        admin.expect_sqlstate("22004", &format!("select command_ledger.{call}"));
    }
    admin.expect_sqlstate("CL012", "select command_ledger.grant_access('newcomer', 'audit', null, '{}')");
    // The row of a role that is gone can still be taken away.
    ledger.exec("create role passing; select command_ledger.grant_access('passing', 'audit', 'acme')");
    let oid = ledger.text("select oid::text from pg_roles where rolname = 'passing'");
    ledger.exec("drop owned by passing; drop role passing");
    admin.exec(&format!("select command_ledger.revoke_access({oid}::oid::regrole, 'audit', 'acme')"));
    assert_eq!(
        ledger.one::<i64>(&format!("select count(*) from command_ledger.access where role = {oid}::oid"), &[]),
        0
    );
}
