//! Every state against every call: what is legal happens, all else is CL006 that says what is legal, and nothing breaks
//! a journal.

use pg_test::desk::{assert_journals, desk_with};
use pg_test::prelude::*;

/// Who could send it already, beside the state itself.
const STATES: &[&str] = &[
    "planned",
    "approved",
    "approved, maybe sent",
    "dispatched",
    "dispatched, maybe sent",
    "needs_reconciliation",
    "failed",
    "confirmed",
    "cancelled",
];

/// Calls, and the states in which they succeed.
const CALLS: &[(&str, &[&str])] = &[
    ("revise", &["planned", "approved"]),
    ("approve", &["planned", "approved", "approved, maybe sent"]),
    ("reject", &["planned"]),
    (
        "revoke_approval",
        &[
            "planned",
            "approved",
            "approved, maybe sent",
            "dispatched",
            "dispatched, maybe sent",
            "needs_reconciliation",
            "failed",
        ],
    ),
    ("cancel", &["planned", "approved", "approved, maybe sent"]),
    ("extend_lease", &["dispatched", "dispatched, maybe sent"]),
    ("reconcile found", STATES),
    ("reconcile not_found", &["needs_reconciliation"]),
    ("reconcile abandon", &["needs_reconciliation"]),
    ("retry", &["failed"]),
    ("assign_case", &["needs_reconciliation"]),
    ("redact", &["failed", "confirmed", "cancelled"]),
];

/// Reports of a worker that succeed in every state that had an attempt, as `late` where it is over.
const REPORTS: &[&str] = &["confirm", "fail", "uncertain", "release"];

fn ledger() -> (Cluster, Ledger) {
    desk_with(
        json!({"idempotency": {"mode": "reference", "window": "unlimited"}, "limits": {"in_flight": 1000}}),
        json!({"approval": {"separate_proposer": false}, "retry": {"base": "1ms", "cap": "1ms"}}),
    )
}

/// A command `k` in a tenant of its own.
struct Subject<'a> {
    ledger: &'a mut Ledger,
    tenant: String,
    token: Option<String>,
}

impl Subject<'_> {
    fn receipt(&mut self) -> Receipt {
        let sql = "SELECT to_jsonb(s)::text FROM command_ledger.status('k', $1) s";
        let text: String = self.ledger.one(sql, &[&self.tenant]);
        serde_json::from_str(&text).expect("a receipt")
    }

    fn call(&mut self, function: &str, mut named: Value) -> Result<Receipt, SqlError> {
        named["idempotency_key"] = json!("k");
        named["tenant"] = json!(self.tenant);
        self.ledger.try_call_named(function, named)
    }

    fn claim(&mut self) -> bool {
        let sql = "SELECT lease_token::text FROM command_ledger.claim('desk', 10, '10 min', NULL, $1)";
        let token: Option<String> = self.ledger.column(sql, &[&self.tenant]).pop();
        let got = token.is_some();
        self.token = token.or(self.token.take());
        got
    }

    /// The call with arguments that fit.
    fn say(&mut self, call: &str) -> Result<Receipt, SqlError> {
        let (function, finding) = call.split_once(' ').unwrap_or((call, ""));
        let token = self.token.clone().unwrap_or_else(|| "00000000-0000-0000-0000-000000000000".to_owned());
        let now = self.receipt();
        self.call(
            function,
            match function {
                "revise" => json!({"params": {"n": 2}, "expected_hash": now.intent_hash}),
                "approve" | "reject" => json!({"intent_hash": now.intent_hash}),
                "confirm" => json!({"lease_token": token, "destination_record_id": "R"}),
                "fail" => json!({"lease_token": token, "error": "permanent"}),
                "uncertain" | "release" | "extend_lease" => json!({"lease_token": token}),
                "reconcile" => json!({"finding": finding, "expected_attempt": now.attempt}),
                "assign_case" => json!({"owner": "ann"}),
                _ => json!({}),
            },
        )
    }

    fn must(&mut self, call: &str) {
        self.say(call).unwrap_or_else(|e| panic!("{call} in {}: {e}", self.tenant));
    }

    fn must_claim(&mut self) {
        let due =
            format!("SELECT due_at <= clock_timestamp() FROM command_ledger.outbox WHERE tenant = '{}'", self.tenant);
        self.ledger.wait_until(&due, 10);
        assert!(self.claim(), "{}", self.tenant);
    }
}

/// Brings a new command into a state.
fn bring<'a>(ledger: &'a mut Ledger, state: &str, number: usize) -> Subject<'a> {
    let tenant = format!("t{number}");
    ledger.register_with("task", "k", json!({"n": 1}), json!({"tenant": tenant}));
    let mut subject = Subject { ledger, tenant, token: None };
    let way: &[&str] = match state {
        "planned" => &[],
        "approved" => &["approve"],
        "approved, maybe sent" => &["approve", "claim", "uncertain"],
        "dispatched" => &["approve", "claim"],
        "dispatched, maybe sent" => &["approve", "claim", "uncertain", "claim"],
        "needs_reconciliation" => &["approve", "claim", "uncertain", "cancel"],
        "failed" => &["approve", "claim", "fail"],
        "confirmed" => &["approve", "claim", "confirm"],
        "cancelled" => &["approve", "claim", "release", "cancel"],
        other => panic!("no way to {other}"),
    };
    for step in way {
        if *step == "claim" { subject.must_claim() } else { subject.must(step) }
    }
    let now = subject.receipt();
    assert_eq!(now.status, state.trim_end_matches(", maybe sent"), "{now:?}");
    let maybe_sent = state.ends_with("maybe sent") || state == "needs_reconciliation";
    assert_eq!(now.maybe_sent, maybe_sent, "{now:?}");
    subject
}

#[test]
fn each_call_succeeds_in_its_states_and_is_refused_with_what_is_legal_in_all_others() {
    let (_cluster, mut ledger) = ledger();
    let mut number = 0;
    for state in STATES {
        for (call, legal_in) in CALLS {
            number += 1;
            let mut subject = bring(&mut ledger, state, number);
            let before = subject.receipt();
            match (subject.say(call), legal_in.contains(state)) {
                (Ok(_), true) => {}
                (Err(error), true) => panic!("{call} in {state}: {error}"),
                (Ok(receipt), false) => panic!("{call} in {state} gave {receipt:?}"),
                // Without an attempt there is no token that could be known.
                (Err(error), false) if *call == "extend_lease" && before.attempt == 0 => {
                    assert_eq!(error.sqlstate, "CL009", "{state}: {error}");
                }
                (Err(error), false) => {
                    assert_eq!(error.sqlstate, "CL006", "{call} in {state}: {error}");
                    assert!(error.message.len() > 10 && !error.hint.is_empty(), "{error:?}");
                    assert!(error.detail.contains(&before.status), "{call} in {state}: {error:?}");
                    if !["redact", "extend_lease", "assign_case"].contains(call) {
                        assert!(error.detail.contains("these calls are legal: "), "{call} in {state}: {error:?}");
                    }
                    assert_eq!(subject.receipt(), before, "a refused {call} in {state} changes nothing");
                }
            }
        }
    }
    assert_journals(&mut ledger);
}

#[test]
fn a_workers_report_is_taken_in_every_state_that_had_an_attempt() {
    let (_cluster, mut ledger) = ledger();
    let mut number = 0;
    for state in STATES {
        for report in REPORTS {
            number += 1;
            let mut subject = bring(&mut ledger, state, number);
            let before = subject.receipt();
            let in_flight = before.status == "dispatched";
            match subject.say(report) {
                Ok(after) => {
                    assert!(before.attempt > 0, "{report} in {state}: {after:?}");
                    let outcome = if in_flight { "changed" } else { "late" };
                    assert_eq!(after.outcome.as_deref(), Some(outcome), "{report} in {state}");
                    if ["confirmed", "cancelled"].contains(state) {
                        assert_eq!(&after.status, state, "{report}");
                    }
                    if !in_flight && *report != "confirm" {
                        assert_eq!(after.status, before.status, "{report} in {state}: a late failure is noted only");
                    }
                    assert!(
                        !(after.maybe_sent && ["failed", "cancelled", "confirmed"].contains(&after.status.as_str()))
                    );
                }
                Err(error) => {
                    assert_eq!((error.sqlstate.as_str(), before.attempt), ("CL009", 0), "{report} in {state}: {error}");
                    assert_eq!(subject.receipt(), before);
                }
            }
        }
    }
    assert_journals(&mut ledger);
}

#[test]
fn only_what_is_approved_is_ever_claimed() {
    let (_cluster, mut ledger) = ledger();
    for (number, state) in STATES.iter().enumerate() {
        let mut subject = bring(&mut ledger, state, number);
        if state.starts_with("approved") {
            subject.must_claim();
        } else {
            assert!(!subject.claim(), "{state}");
        }
    }
    assert_journals(&mut ledger);
}

#[test]
fn while_maybe_sent_no_exit_claims_success_or_failure() {
    let (_cluster, mut ledger) = ledger();
    for (number, (state, call, reason)) in [
        ("approved, maybe sent", "cancel", "cancel_requested"),
        ("approved, maybe sent", "revoke_approval", "approval_revoked"),
        ("dispatched, maybe sent", "fail", "refused_repeat"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut subject = bring(&mut ledger, state, number);
        subject.must(call);
        let now = subject.receipt();
        assert_eq!((now.status.as_str(), now.maybe_sent), ("needs_reconciliation", true), "{call} in {state}");
        let sql = "SELECT reason FROM command_ledger.reconciliation_case WHERE tenant = $1 AND closed_at IS NULL";
        assert_eq!(subject.ledger.one::<String>(sql, &[&subject.tenant]), reason);
        subject.must("reconcile found");
        assert_eq!(subject.receipt().status, "confirmed");
    }
    // What was provably not sent again keeps the doubt about the attempt before it.
    for (number, call) in ["release", "fail not_sent"].into_iter().enumerate() {
        let mut subject = bring(&mut ledger, "dispatched, maybe sent", 100 + number);
        let token = subject.token.clone();
        let (function, error) = call.split_once(' ').unwrap_or((call, ""));
        let mut named = json!({"lease_token": token});
        if !error.is_empty() {
            named["error"] = json!(error);
        }
        let after = subject.call(function, named).expect(call);
        assert_eq!((after.status.as_str(), after.maybe_sent), ("approved", true), "{call}");
    }
    assert_journals(&mut ledger);
}

#[test]
fn a_final_command_with_an_open_case_stays_final_when_the_case_is_closed() {
    let (_cluster, mut ledger) = ledger();
    for (number, finding) in ["found", "not_found", "abandon"].into_iter().enumerate() {
        let mut subject = bring(&mut ledger, "cancelled", number);
        subject.must("confirm");
        assert!(subject.receipt().reconciliation_required);
        subject.must(&format!("reconcile {finding}"));
        let closed = subject.receipt();
        assert_eq!((closed.status.as_str(), closed.reconciliation_required), ("cancelled", false), "{finding}");
    }
    assert_journals(&mut ledger);
}
