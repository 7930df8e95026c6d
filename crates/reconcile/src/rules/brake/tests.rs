//! When nothing is undone because of the run as a whole.

use super::*;
use uuid::Uuid;

use crate::rules::{Item, Join, Path, Rules};
use oncegate_rules::key::Pointer;
use oncegate_rules::record::CallId;

fn anomaly(kind: Kind, n: u128) -> Anomaly {
    Anomaly {
        kind,
        source: "shop".into(),
        key: n.to_string(),
        call_id: (kind != Kind::Orphan).then(|| CallId(Uuid::from_u128(n))),
        id: n.to_string(),
        detail: String::new(),
        doubt: None,
        rival: None,
        item: None::<Item>,
    }
}

fn compared(matched: u64, of: &[(Kind, u128)]) -> Comparison {
    Comparison {
        matched,
        lacking: of.iter().filter(|(kind, _)| *kind == Kind::Missing).count() as u64,
        anomalies: of.iter().map(|(kind, n)| anomaly(*kind, *n)).collect(),
        ..Comparison::default()
    }
}

/// The doubts that a source's anomalies get.
fn doubts(matched: u64, of: &[(Kind, u128)]) -> Vec<Option<Doubt>> {
    let mut found = [(Some("t"), compared(matched, of))];
    apply(&mut found);
    let suspect = found[0].1.suspect.is_some();
    let doubts: Vec<_> = found[0].1.anomalies.iter().map(|one| one.doubt).collect();
    assert_eq!(suspect, doubts.contains(&Some(Doubt::Suspect)), "{found:?}");
    doubts
}

#[test]
fn more_than_a_tenth_of_at_least_five_calls_make_a_source_suspect() {
    use Kind::{Duplicate, Mismatch, Missing, Orphan};
    let suspect = Some(Doubt::Suspect);
    for kind in [Mismatch, Duplicate] {
        assert_eq!(doubts(4, &[(kind, 1)]), [None], "{kind}: too few");
        assert_eq!(doubts(5, &[(kind, 1)]), [suspect], "{kind}");
        assert_eq!(doubts(9, &[(kind, 1)]), [suspect], "{kind}");
        assert_eq!(doubts(10, &[(kind, 1)]), [None], "{kind}: just a tenth");
        assert_eq!(doubts(10, &[(kind, 1), (kind, 2)]), [suspect; 2], "{kind}");
    }
    assert_eq!(doubts(3, &[(Missing, 1)]), [None], "too few");
    assert_eq!(doubts(4, &[(Missing, 1)]), [suspect]);
    assert_eq!(doubts(9, &[(Missing, 1)]), [None], "just a tenth");
    // Two surplus effects of one call are one call that differs.
    assert_eq!(doubts(10, &[(Duplicate, 1), (Duplicate, 1)]), [None; 2]);
    // Every act of the run is held, whatever its kind.
    let all = [(Mismatch, 1), (Mismatch, 2), (Orphan, 3)];
    assert_eq!(doubts(10, &all), [suspect; 3]);
    let orphans: Vec<_> = (1..6).map(|n| (Orphan, n)).collect();
    assert_eq!(doubts(6, &orphans), [suspect; 5]);
    assert_eq!(doubts(0, &orphans), [suspect; 5]);
    assert_eq!(doubts(45, &orphans), [None; 5], "just a tenth");
    assert_eq!(doubts(6, &orphans[..4]), [None; 4]);
}

#[test]
fn one_suspect_source_holds_the_whole_run() {
    let bad = compared(5, &[(Kind::Mismatch, 1)]);
    let good = compared(100, &[(Kind::Mismatch, 2), (Kind::Settled, 3)]);
    let mut found = [(Some("t"), good), (Some("other"), bad)];
    apply(&mut found);
    let doubts: Vec<_> = found[0].1.anomalies.iter().map(|one| one.doubt).collect();
    assert_eq!(
        doubts,
        [Some(Doubt::Suspect), None],
        "what settles undoes nothing"
    );
    assert_eq!(found[0].1.suspect, None);
}

#[test]
fn no_surplus_effect_is_undone_while_a_source_of_its_tool_lacks_a_call() {
    let explained = Some(Doubt::Explained);
    for (one, other, is_held) in [
        (Some("t"), Some("t"), true),
        (None, Some("t"), true),
        (Some("t"), None, true),
        (Some("t"), Some("other"), false),
    ] {
        let surplus = compared(
            2,
            &[(Kind::Orphan, 1), (Kind::Duplicate, 2), (Kind::Mismatch, 3)],
        );
        let mut found = [(one, surplus), (other, compared(0, &[(Kind::Missing, 4)]))];
        apply(&mut found);
        let doubts: Vec<_> = found[0].1.anomalies.iter().map(|one| one.doubt).collect();
        let held = explained.filter(|_| is_held);
        assert_eq!(doubts, [held, held, None], "{one:?} {other:?}");
        assert_eq!(
            found[1].1.anomalies[0].doubt, None,
            "the tool itself is asked"
        );
    }
}

fn pointer(text: &str) -> Pointer {
    text.parse().expect("a pointer")
}

#[test]
fn values_by_which_items_and_calls_are_joined_are_compared_in_one_spelling() {
    let rules = |join| Rules {
        source: "shop".into(),
        key: pointer("/key"),
        join,
        id: None,
        call_id: None,
        compare: Vec::new(),
        time: None,
        status: None,
        ignore: Vec::new(),
        ignores_keyless: false,
    };
    let by_key = rules(Join::Key);
    let by_value = rules(Join::At(Path::read("/args/order").expect("a path")));
    let (plain, spelled) = (
        "0123456789abcdef0123456789abcdef",
        "01234567-89AB-CDEF-0123-456789ABCDEF",
    );
    for rules in [&by_key, &by_value] {
        assert_eq!(rules.joined(spelled.into()), plain);
        for other in ["B-1", "b-1", "", "Order 7 "] {
            assert_eq!(rules.joined(other.into()), other, "as it is");
        }
    }
}
