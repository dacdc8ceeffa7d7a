use super::*;

const HERE: Identity = Identity { system_identifier: 7, database_oid: 16_384, extension_oid: 16_400 };
const PLACE: Place = Place { timeline: 1, control_inode: 42 };

fn other_identities() -> [Identity; 3] {
    [
        Identity { system_identifier: 8, ..HERE },
        Identity { database_oid: 1, ..HERE },
        Identity { extension_oid: 1, ..HERE },
    ]
}

fn other_places() -> [Place; 2] {
    [Place { timeline: 2, ..PLACE }, Place { control_inode: 1, ..PLACE }]
}

#[test]
fn without_an_identity_or_with_another_nothing_is_adopted() {
    for setting in [OnFailover::Halt, OnFailover::Continue] {
        assert_eq!(judge(None, (HERE, PLACE), setting), Fence::Unadopted);
        for identity in other_identities() {
            assert_eq!(judge(Some((identity, PLACE)), (HERE, PLACE), setting), Fence::Unadopted, "{identity:?}");
            let moved_too = (identity, other_places()[0]);
            assert_eq!(judge(Some(moved_too), (HERE, PLACE), setting), Fence::Unadopted, "{identity:?}");
        }
    }
}

#[test]
fn the_adopted_place_is_open_whatever_the_setting() {
    for setting in [OnFailover::Halt, OnFailover::Continue] {
        assert_eq!(judge(Some((HERE, PLACE)), (HERE, PLACE), setting), Fence::Open);
    }
}

#[test]
fn another_place_is_moved_and_halts_unless_set_to_continue() {
    for place in other_places() {
        let with = |setting| judge(Some((HERE, place)), (HERE, PLACE), setting);
        assert_eq!(with(OnFailover::Halt), Fence::Moved { halted: true });
        assert_eq!(with(OnFailover::Continue), Fence::Moved { halted: false });
    }
}

fn row(deduplicates: bool, absence_established_here: bool, has_lookup: bool) -> RowFacts {
    RowFacts { written_by: HERE, deduplicates, absence_established_here, maybe_sent: false, has_lookup }
}

fn every_row() -> impl Iterator<Item = RowFacts> {
    (0..16).map(|bits| RowFacts { maybe_sent: bits & 8 != 0, ..row(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0) })
}

#[test]
fn an_unadopted_or_halted_ledger_claims_nothing() {
    for fence in [Fence::Unadopted, Fence::Moved { halted: true }] {
        for row in every_row() {
            assert!(matches!(claim_allowed(fence, HERE, &row), ClaimAllowed::No(_)), "{fence:?} {row:?}");
        }
    }
}

#[test]
fn rows_of_another_ledger_are_never_claimed() {
    for fence in [Fence::Open, Fence::Unadopted, Fence::Moved { halted: true }, Fence::Moved { halted: false }] {
        for written_by in other_identities() {
            for row in every_row() {
                let row = RowFacts { written_by, ..row };
                assert!(matches!(claim_allowed(fence, HERE, &row), ClaimAllowed::No(_)), "{fence:?} {row:?}");
            }
        }
    }
}

#[test]
fn an_open_ledger_claims_its_own_rows() {
    for row in every_row() {
        assert_eq!(claim_allowed(Fence::Open, HERE, &row), ClaimAllowed::Yes);
    }
}

#[test]
fn a_moved_ledger_goes_on_only_where_a_repeat_does_no_harm() {
    let moved = Fence::Moved { halted: false };
    for has_lookup in [false, true] {
        let marked = RowFacts { maybe_sent: true, ..row(true, false, has_lookup) };
        assert_eq!(claim_allowed(moved, HERE, &marked), ClaimAllowed::Yes);
        assert_eq!(claim_allowed(moved, HERE, &row(true, false, has_lookup)), ClaimAllowed::AsRepeat);
        assert_eq!(claim_allowed(moved, HERE, &row(false, true, has_lookup)), ClaimAllowed::Yes);
    }
    for maybe_sent in [false, true] {
        let row = |has_lookup| RowFacts { maybe_sent, ..row(false, false, has_lookup) };
        assert_eq!(claim_allowed(moved, HERE, &row(true)), ClaimAllowed::LookupFirst);
        assert_eq!(claim_allowed(moved, HERE, &row(false)), ClaimAllowed::Case);
    }
}

#[test]
fn what_another_place_may_have_sent_counts_as_maybe_sent_until_its_absence_is_established_here() {
    assert!(!sent_elsewhere(Fence::Open, false));
    assert!(!sent_elsewhere(Fence::Open, true));
    for fence in [Fence::Unadopted, Fence::Moved { halted: true }, Fence::Moved { halted: false }] {
        assert!(sent_elsewhere(fence, false), "{fence:?}");
        assert!(!sent_elsewhere(fence, true), "{fence:?}");
    }
}
