//! Whether an anomaly still holds when it is acted on.

use super::*;
use crate::core::work::{Blocked, Blocker};

#[test]
fn what_is_missing_is_asked_for_by_its_key_before_it_is_undone() {
    use crate::core::unknown::Finding;
    use revalidate::missing;
    assert_eq!(missing(&Finding::NotFound), Ok(()));
    let its = Finding::Found(Content::Kept("{}".into()));
    assert_eq!(
        missing(&its),
        Err(Blocked::for_good(
            "the tool has it: the source is not whole"
        ))
    );
    let unclear = missing(&Finding::Unclear("it answered 500".into()));
    assert_eq!(unclear.map_err(|why| why.blocker), Err(Blocker::Failed));
}

#[test]
fn what_was_resolved_as_failed_and_is_there_is_not_shown_as_settled() {
    use revalidate::unsettled;
    let of = |state| unsettled(Some(&call(1, 1_500, state)));
    assert_eq!(of(succeeded(1)), Ok(()));
    assert_eq!(
        of(State::Running).map_err(|why| why.blocker),
        Err(Blocker::Busy)
    );
    assert_eq!(
        of(failed()),
        Err(Blocked::for_good(
            "resolved as failed, but the source has it"
        ))
    );
}

#[test]
fn a_surplus_effect_is_looked_at_again_before_it_is_undone() {
    use revalidate::surplus;
    let of = |kind, state| surplus(kind, Some(&call(1, 1_500, state)), "o1");
    let blocker = |result: Result<(), Blocked>| result.map_err(|why| why.blocker);
    let never = |result| blocker(result) == Err(Blocker::Final);
    assert_eq!(of(Kind::Duplicate, succeeded(2)), Ok(()));
    assert!(
        never(of(Kind::Duplicate, succeeded(1))),
        "its call was told of it"
    );
    for state in [State::Running, State::Unknown(String::new())] {
        assert_eq!(blocker(of(Kind::Duplicate, state)), Err(Blocker::Busy));
    }
    assert!(never(of(Kind::Duplicate, failed())));
    assert!(never(surplus(Kind::Duplicate, None, "o1")));
    assert_eq!(of(Kind::Orphan, failed()), Ok(()));
    assert_eq!(surplus(Kind::Orphan, None, "o1"), Ok(()));
    assert!(never(of(Kind::Orphan, succeeded(2))));
}
