//! How long a key scheme is remembered, and how its documents follow each other.

use super::*;
use crate::testing::tool;

const DAY: Duration = Duration::from_hours(24);

fn at(minutes: i64) -> Timestamp {
    let time = Timestamp::from_second(1_700_000_000).expect("a time");
    time + SignedDuration::from_mins(minutes)
}

fn remembered() -> Remembered {
    let recipe = Recipe::of(&tool("act"));
    Remembered::new(recipe.id(), Arc::new(recipe), DAY, at(0))
}

#[test]
fn a_recipe_is_renewed_in_intervals_and_when_its_retention_grows() {
    let one = remembered();
    let renewed = |keep, minutes| {
        let next = one.renewed(keep, at(minutes))?;
        assert_eq!(next.version, one.version + 1);
        assert_eq!((next.created_at, next.known_since), (at(0), at(0)));
        Some((next.used_at, next.keep))
    };
    let keep = |days: u32| signed(DAY * days);
    assert_eq!(renewed(DAY, 9), None);
    assert_eq!(renewed(DAY, 10), Some((at(10), keep(1))));
    assert_eq!(renewed(DAY * 2, 9), Some((at(9), keep(2))));
    assert_eq!(renewed(DAY / 2, 9), None);
    assert_eq!(renewed(DAY / 2, 10), Some((at(10), keep(1))));
    // The clock of this gateway is slow.
    assert_eq!(renewed(DAY * 2, -5), Some((at(0), keep(2))));
}

#[test]
fn a_recipe_is_forgotten_by_its_next_version() {
    let one = remembered();
    let (kept, forgotten) = (one.to_document(), one.forgotten(at(7)));
    assert!(Remembered::is_kept(&kept) && !Remembered::is_kept(&forgotten));
    assert_eq!((kept.version, forgotten.version), (1, 2));
    assert_eq!(
        (kept.retain_until, forgotten.retain_until),
        (None, Some(at(7)))
    );
    assert_eq!(
        forgotten.id, kept.id,
        "it stays the document of that key scheme"
    );
    assert_eq!(tool_of(&kept.id), Some("act"));
    assert_eq!(tool_of("act"), None);
}

#[test]
fn calls_of_a_recipe_may_be_made_for_two_hours_after_it_was_last_used() {
    let one = remembered();
    assert_eq!(one.made_until(), at(120));
    let day = 24 * 60;
    assert!(!one.is_overdue(at(day + 119)) && one.is_overdue(at(day + 120)));
    let forever = Remembered {
        keep: SignedDuration::MAX,
        ..one
    };
    assert!(!forever.is_overdue(Timestamp::MAX));
}
