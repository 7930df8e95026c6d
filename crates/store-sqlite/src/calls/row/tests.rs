//! What the rows of a call hold.

use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::tests::{Damaged, at};
use oncegate_rules::call::{Arrival, Change, Event, next};
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::Intent;
use oncegate_rules::session::Preconditions;
use oncegate_rules::tool::Tool;
use oncegate_store::{Calls as _, Replaced};

#[test]
fn the_end_of_a_retention_is_rounded_up_to_a_second() {
    for (microseconds, rounded) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
        let time = Timestamp::from_microsecond(microseconds).expect("a time");
        assert_eq!(seconds(time), rounded, "{microseconds} microseconds");
    }
}

#[tokio::test]
async fn a_compensation_that_runs_again_is_stored_with_its_new_arguments() {
    let stored = Damaged::new();
    let tool = Tool::new("t");
    let why = "it is not there".into();
    let running = stored.claimed("k").await;
    let ended = Event::ended(&running, Evidence::NotSent { why });
    let again = Event::Arrived(Arrival {
        intent: running.intent.clone(),
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: AttemptId(Uuid::from_u128(2)),
        owner: running.attempt.owner,
    });
    let changed = |record: &Record, event: &Event| {
        let next = next(&tool, Some(record), event, at(1)).expect("a change");
        next.change.expect("a change")
    };
    let replaced =
        async |change: &Change, record: &Record| match stored.store.replace(change, record).await {
            Ok(Replaced::Done(record)) => record,
            other => panic!("not replaced: {other:?}"),
        };
    let failed = replaced(&changed(&running, &ended), &running).await;
    // The rules let a compensation take new arguments, and no other call.
    let mut change = changed(&failed, &again);
    change.record.intent = Arc::new(Intent {
        args: (*b"{\"new\":1}").to_vec().into(),
        ..(*failed.intent).clone()
    });
    replaced(&change, &failed).await;
    let loaded = stored.store.load(failed.intent.call_id).await;
    let loaded = loaded.expect("an answer").expect("a call");
    assert_eq!(&loaded.intent.args[..], b"{\"new\":1}");
}
