//! A gateway's clock that is behind the clock of the store that it shares.

use super::*;
use oncegate::core::call::Retry;

contract!(redis: a_run_that_could_outlive_its_lease_does_not_begin);
contract!(redis_sentinel: a_run_that_could_outlive_its_lease_does_not_begin);
contract!(redis_cluster: a_run_that_could_outlive_its_lease_does_not_begin);
#[cfg(feature = "postgres")]
contract!(postgres: a_run_that_could_outlive_its_lease_does_not_begin);

/// The change as a gateway makes it whose clock is decades behind.
fn behind(change: Change) -> Change {
    let mut change = change;
    let behind = jiff::SignedDuration::try_from(2 * DECADES).expect("a time");
    change.record.updated_at -= behind;
    change
}

async fn a_run_that_could_outlive_its_lease_does_not_begin(home: Home) {
    let store = &*home.store;
    let first = arrival("k", "S", 0, ME);
    assert_eq!(claim(store, &behind(first.clone())).await, Claimed::Late);
    let names = [first.record.intent.lookup];
    let holders = store.holders(&names).await.expect("an answer");
    assert_eq!(holders, [], "nothing was written");
    let first = claimed(store, &first).await;

    let refused = |replaced: Result<Replaced, _>, was: &Record| {
        let replaced = replaced.expect("an answer");
        assert_eq!(replaced, Replaced::Lost(Some(was.clone())), "as it was");
    };
    // A further attempt of the same arrival.
    let mut event = Event::ended(
        &first,
        Evidence::NotSent {
            why: "a test".into(),
        },
    );
    if let Event::Ended(ended) = &mut event {
        ended.retry = Some(Retry {
            attempt: AttemptId(Uuid::new_v4()),
            jitter: 0.0,
        });
    }
    let again = next(&policy(), Some(&first), &event, at(1)).expect("an end");
    let again = again.change.expect("a change");
    assert_eq!(again.record.attempt.number, 2, "it is tried again");
    refused(store.replace(&behind(again), &first).await, &first);
    // A new run of a call that has failed.
    let failed = replaced(store, &ended(&first, 429, 2), &first).await;
    let again = rerun(&failed, 3);
    refused(
        store.replace(&behind(again.clone()), &failed).await,
        &failed,
    );
    let second = replaced(store, &again, &failed).await;

    // An end is never too late.
    let ended = behind(ended(&second, 200, 4));
    replaced(store, &ended, &second).await;
}
