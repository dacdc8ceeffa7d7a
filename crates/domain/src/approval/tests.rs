use proptest::prelude::*;

use super::*;

const RULE: ApprovalRule = ApprovalRule { approvers: 1, ttl_ms: 86_400_000, separate_proposer: true };
const HASH: &[u8] = b"current";
const NOW: i64 = 1_000;

fn actor<'a>(role: &'a str, stated: Option<&'a str>) -> Actor<'a> {
    Actor { role, stated }
}

fn check(rule: &ApprovalRule, proposer: Actor<'_>, approver: Actor<'_>) -> Result<(), Code> {
    check_approver(rule, proposer, approver, HASH, HASH).map_err(|error| error.code)
}

#[test]
fn an_approval_for_another_version_is_refused_before_anything_else() {
    let agent = actor("agent", None);
    for (approver, separate_proposer) in [(actor("boss", None), true), (agent, true), (agent, false)] {
        let rule = ApprovalRule { separate_proposer, ..RULE };
        for given in [&b"older"[..], b"", b"curren", b"current "] {
            let result = check_approver(&rule, agent, approver, given, HASH);
            assert_eq!(result.map_err(|error| error.code), Err(Code::ApprovalMismatch));
        }
    }
}

#[test]
fn the_proposer_cannot_approve_not_even_by_stating_another_person() {
    let rows = [
        (actor("agent", None), actor("boss", None), Ok(())),
        (actor("agent", None), actor("boss", Some("ann")), Ok(())),
        (actor("agent", Some("bob")), actor("boss", Some("ann")), Ok(())),
        (actor("agent", Some("bob")), actor("boss", None), Ok(())),
        (actor("agent", None), actor("agent", None), Err(Code::ApproverNotAllowed)),
        (actor("agent", Some("bob")), actor("agent", Some("ann")), Err(Code::ApproverNotAllowed)),
        (actor("agent", None), actor("agent", Some("ann")), Err(Code::ApproverNotAllowed)),
        (actor("agent", Some("ann")), actor("boss", Some("ann")), Err(Code::ApproverNotAllowed)),
    ];
    let together = ApprovalRule { separate_proposer: false, ..RULE };
    for (proposer, approver, allowed) in rows {
        assert_eq!(check(&RULE, proposer, approver), allowed, "{proposer:?} {approver:?}");
        assert_eq!(check(&together, proposer, approver), Ok(()), "{proposer:?} {approver:?}");
    }
}

#[test]
fn an_approval_never_outlives_the_rules_ttl() {
    let expiry = |ms| approval_expiry_us(&RULE, ms, NOW).map_err(|error| error.code);
    assert_eq!(expiry(None), Ok(NOW + 86_400_000_000));
    assert_eq!(expiry(Some(1)), Ok(NOW + 1_000));
    assert_eq!(expiry(Some(86_400_001)), Ok(NOW + 86_400_000_000));
    assert_eq!(expiry(Some(i64::MAX)), Ok(NOW + 86_400_000_000));
    for ms in [0, -1, i64::MIN] {
        assert_eq!(expiry(Some(ms)), Err(Code::InvalidArgument));
    }
}

fn by<'a>(role: &'a str, stated: Option<&'a str>, expires_us: i64) -> Approval<'a> {
    Approval { approver: actor(role, stated), intent_hash: HASH, expires_us, revoked: false }
}

fn of(approvers: u32, approvals: &[Approval<'_>]) -> Quorum {
    quorum(&ApprovalRule { approvers, ..RULE }, approvals, HASH, NOW)
}

fn stands(until_us: i64) -> Quorum {
    Quorum { missing: 0, valid_until_us: Some(until_us) }
}

fn lacks(missing: u32) -> Quorum {
    Quorum { missing, valid_until_us: None }
}

#[test]
fn only_approvals_for_this_hash_that_hold_now_count() {
    let good = by("a", None, 5_000);
    assert_eq!(of(1, &[good]), stands(5_000));
    assert_eq!(of(1, &[]), lacks(1));
    assert_eq!(of(1, &[Approval { revoked: true, ..good }]), lacks(1));
    assert_eq!(of(1, &[Approval { intent_hash: b"older", ..good }]), lacks(1));
    assert_eq!(of(1, &[Approval { expires_us: NOW, ..good }]), lacks(1));
    assert_eq!(of(1, &[Approval { expires_us: NOW + 1, ..good }]), stands(NOW + 1));
}

#[test]
fn one_person_counts_once() {
    assert_eq!(of(2, &[by("a", None, 5_000), by("a", None, 6_000)]), lacks(1));
    assert_eq!(of(2, &[by("app", Some("ann"), 5_000), by("app", Some("ann"), 6_000)]), lacks(1));
    assert_eq!(of(2, &[by("app", Some("ann"), 5_000), by("app", Some("bob"), 6_000)]), stands(5_000));
    assert_eq!(of(2, &[by("a", None, 5_000), by("b", None, 6_000)]), stands(5_000));
    assert_eq!(of(3, &[by("a", None, 5_000), by("b", None, 6_000)]), lacks(1));
}

#[test]
fn an_approval_without_a_stated_person_may_be_any_of_its_role() {
    let rows = [by("app", None, 9_000), by("app", Some("ann"), 5_000)];
    assert_eq!(of(2, &rows), lacks(1));
    assert_eq!(of(1, &rows), stands(9_000));
}

#[test]
fn a_quorum_stands_until_it_first_breaks() {
    let three = [by("a", None, 5_000), by("b", None, 7_000), by("c", None, 9_000)];
    assert_eq!(of(1, &three), stands(9_000));
    assert_eq!(of(2, &three), stands(7_000));
    assert_eq!(of(3, &three), stands(5_000));
    // The same person approved again: the later one holds.
    assert_eq!(of(1, &[by("a", None, 5_000), by("a", None, 8_000)]), stands(8_000));
}

#[test]
fn a_rule_that_asks_for_nobody_asks_for_one() {
    assert_eq!(of(0, &[]), lacks(1));
    assert_eq!(of(0, &[by("a", None, 5_000)]), stands(5_000));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_quorum_stands_exactly_until_the_moment_it_names(
        needed in 1..4u32,
        rows in prop::collection::vec((0..3usize, 0..3usize, 0..20i64, any::<bool>()), 0..8),
    ) {
        let roles = ["a", "b", "app"];
        let persons = [None, Some("ann"), Some("bob")];
        let approvals: Vec<Approval<'_>> = rows
            .iter()
            .map(|(role, person, expires, revoked)| Approval {
                revoked: *revoked,
                ..by(roles[*role], persons[*person], NOW + expires)
            })
            .collect();
        let rule = ApprovalRule { approvers: needed, ..RULE };
        let now = quorum(&rule, &approvals, HASH, NOW);
        prop_assert_eq!(now.missing == 0, now.valid_until_us.is_some());
        if let Some(until) = now.valid_until_us {
            for at in NOW..until {
                prop_assert_eq!(quorum(&rule, &approvals, HASH, at).valid_until_us, Some(until));
            }
            prop_assert!(quorum(&rule, &approvals, HASH, until).missing > 0);
        }
    }
}
