//! Planted anomalies are found among other calls and items.

use proptest::prelude::*;

use super::*;

/// A change to one call and its effect.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plant {
    Nothing,
    Missing,
    Orphan,
    Duplicate,
    Mismatch,
    Settled,
    FailedButThere,
    /// Changes that are not anomalies.
    Running,
    Unknown,
    Failed,
    TakenBack,
    Compensated,
}

fn plants() -> impl Strategy<Value = Plant> {
    prop_oneof![
        6 => Just(Plant::Nothing),
        1 => Just(Plant::Missing),
        1 => Just(Plant::Orphan),
        1 => Just(Plant::Duplicate),
        1 => Just(Plant::Mismatch),
        1 => Just(Plant::Settled),
        1 => Just(Plant::FailedButThere),
        1 => Just(Plant::Running),
        1 => Just(Plant::Unknown),
        1 => Just(Plant::Failed),
        1 => Just(Plant::TakenBack),
        1 => Just(Plant::Compensated),
    ]
}

proptest! {
    /// The order of calls and items does not matter.
    #[test]
    fn planted_anomalies_are_found_and_no_others(
        plants in prop::collection::vec((plants(), 1_000..1_990_i64), 0..40), turn in any::<prop::sample::Index>(),
    ) {
        let (mut calls, mut items, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (plant, second)) in plants.iter().enumerate() {
            let id = n as u128 + 1;
            let call_id = CallId(Uuid::from_u128(id)).to_string();
            let unknown = State::Unknown("?".into());
            let (state, has) = match plant {
                Plant::Nothing => (Some(succeeded(id)), vec![item(id)]),
                Plant::Missing => (Some(succeeded(id)), vec![]),
                Plant::Orphan => (None, vec![item(id)]),
                Plant::Duplicate => (Some(succeeded(id)), vec![with(item(id), "id", format!("x{id}")), item(id)]),
                Plant::Mismatch => (Some(succeeded(id)), vec![with(item(id), "amount", 0)]),
                Plant::Settled => (Some(unknown), vec![item(id)]),
                Plant::FailedButThere => (Some(failed()), vec![item(id)]),
                Plant::Running => (Some(State::Running), vec![item(id)]),
                Plant::Unknown => (Some(unknown), vec![]),
                Plant::Failed => (Some(failed()), vec![]),
                Plant::Compensated => {
                    let gone = with(item(id), "status", "cancelled");
                    (Some(State::Compensated(None)), if id.is_multiple_of(2) { vec![gone] } else { vec![] })
                }
                Plant::TakenBack => (Some(succeeded(id)), vec![with(item(id), "status", "cancelled")]),
            };
            expected.extend(match plant {
                Plant::Missing => Some((Kind::Missing, call_id)),
                Plant::Orphan | Plant::FailedButThere => Some((Kind::Orphan, format!("o{id}"))),
                Plant::Duplicate => Some((Kind::Duplicate, format!("x{id}"))),
                Plant::Mismatch => Some((Kind::Mismatch, call_id)),
                Plant::Settled => Some((Kind::Settled, call_id)),
                _ => None,
            });
            calls.extend(state.map(|state| call(id, *second, state)));
            items.extend(has);
        }
        if !calls.is_empty() {
            let by = turn.index(calls.len());
            calls.rotate_left(by);
        }
        if !items.is_empty() {
            let by = turn.index(items.len());
            items.rotate_left(by);
        }
        let found = reconciled(&rules(), &calls, &items);
        let mut names: Vec<(Kind, String)> =
            found.anomalies.iter().map(|one| (one.kind, one.id.clone())).collect();
        names.sort();
        expected.sort();
        prop_assert_eq!(names, expected);
        prop_assert_eq!(found.undecided, 0);
    }
}
