use super::*;

const EPOCH: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const ME: Uuid = Uuid::from_u128(11);
const THEM: Uuid = Uuid::from_u128(12);

fn ledger() -> Ledger {
    Ledger {
        epoch: EPOCH,
        follows: Vec::new(),
        lost: String::new(),
        token: 5,
        whole_since: 0,
    }
}

fn sight(beats: &[(Uuid, u64)]) -> Sight {
    Sight {
        ledger: Some(ledger()),
        beats: beats.iter().copied().collect(),
        ..Sight::default()
    }
}

fn known(beats: &[(Uuid, u64)]) -> BTreeMap<Uuid, u64> {
    beats.iter().copied().collect()
}

fn is_lost(finding: &Finding) -> bool {
    matches!(finding, Finding::Lost { .. })
}

#[test]
fn a_beat_of_any_known_gateway_that_is_behind_or_gone_is_a_loss() {
    let remembered = known(&[(ME, 4), (THEM, 7)]);
    let found = |beats: &[(Uuid, u64)]| compare(&sight(beats), Some(EPOCH), &remembered);
    assert_eq!(found(&[(ME, 4), (THEM, 7)]), Finding::Whole);
    assert_eq!(found(&[(ME, 5), (THEM, 9), (OTHER, 1)]), Finding::Whole);
    for beats in [
        &[(ME, 3), (THEM, 7)][..],
        &[(ME, 4), (THEM, 6)],
        &[(ME, 4)],
        &[],
    ] {
        assert!(is_lost(&found(beats)), "{beats:?}");
    }
}

#[test]
fn a_version_that_was_acknowledged_since_the_beat_and_is_missing_is_a_loss() {
    let mut seen = sight(&[(ME, 4)]);
    seen.missing = 3;
    let found = compare(&seen, Some(EPOCH), &known(&[(ME, 4)]));
    assert!(
        matches!(found, Finding::Lost { writes: 3, .. }),
        "{found:?}"
    );
}

#[test]
fn only_an_epoch_that_follows_the_known_one_is_taken_over() {
    let nothing = known(&[]);
    let mut seen = sight(&[]);
    assert_eq!(compare(&seen, None, &nothing), Finding::Adopt(EPOCH));
    assert!(is_lost(&compare(&seen, Some(OTHER), &nothing)));
    seen.ledger.as_mut().expect("a ledger").follows = vec![OTHER];
    assert_eq!(compare(&seen, Some(OTHER), &nothing), Finding::Adopt(EPOCH));
    seen.ledger.as_mut().expect("a ledger").lost = "a test".into();
    for epoch in [None, Some(EPOCH), Some(OTHER)] {
        assert!(is_lost(&compare(&seen, epoch, &nothing)), "closed for all");
    }
    let empty = Sight::default();
    assert_eq!(compare(&empty, None, &nothing), Finding::Fresh);
    assert!(
        is_lost(&compare(&empty, Some(EPOCH), &nothing)),
        "its data is gone"
    );
}

#[test]
fn a_store_is_closed_by_those_who_used_it_and_once() {
    let mut at = ledger();
    assert!(may_close(&at, Some(EPOCH), false));
    assert!(!may_close(&at, Some(OTHER), false), "another installation");
    assert!(may_close(&at, Some(OTHER), true), "its data was exchanged");
    assert!(!may_close(&at, None, false));
    at.lost = "a test".into();
    assert!(!may_close(&at, Some(EPOCH), true), "it is closed");
    assert!(
        may_close(&at, Some(OTHER), true),
        "the acceptance has to follow this epoch, too"
    );
}
