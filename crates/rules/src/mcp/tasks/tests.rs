use serde_json::json;

use super::*;
use crate::key::Source::Derived;
use crate::outcome::Evidence;
use crate::testing::{at, ended_with, record};
use crate::tool::{OnUnknown, Tool};

fn lost() -> Evidence {
    Evidence::NoAnswer {
        why: "no answer".into(),
    }
}

#[test]
fn an_unknown_call_is_a_working_task_as_long_as_more_becomes_known_by_itself() {
    let tool = Tool::new("t");
    let running = record(&tool, Derived, &[]);
    assert_eq!(status(&running, at(1)), Status::Working);
    assert_eq!(ttl_ms(&running, at(1)), None);

    let held = record(&tool, Derived, &[(ended_with(1, lost(), None), 2)]);
    let lease = held.attempt.lease_until;
    assert_eq!(status(&held, at(3)), Status::Working, "its lease runs");
    assert_eq!(
        status(&held, lease),
        Status::Completed,
        "an operator decides"
    );

    let checked = Tool {
        unknown: OnUnknown::Retry,
        ..Tool::new("t")
    };
    let checked = record(&checked, Derived, &[(ended_with(1, lost(), None), 2)]);
    assert_eq!(
        status(&checked, lease),
        Status::Working,
        "a check is planned"
    );
    assert_eq!(ttl_ms(&checked, lease), None);
}

#[test]
fn the_older_a_call_the_later_its_client_asks_again() {
    let running = record(&Tool::new("t"), Derived, &[]);
    let seconds = [0, 9, 20, 90, 300, 3_600].map(|age| poll_interval(&running, at(age)).as_secs());
    assert_eq!(seconds, [1, 1, 2, 9, 30, 30]);
}

#[test]
fn only_a_client_that_names_the_extension_knows_tasks() {
    let meta = |said| match json!({ CAPABILITIES: said }) {
        Value::Object(meta) => meta,
        _ => unreachable!(),
    };
    assert!(is_known_by(&meta(
        json!({ "extensions": { EXTENSION: {} } })
    )));
    for other in [
        json!({}),
        json!({ "extensions": {} }),
        json!({ "extensions": { EXTENSION: null } }),
        json!({ "extensions": [EXTENSION] }),
        json!({ "tasks": {} }),
    ] {
        assert!(!is_known_by(&meta(other.clone())), "{other}");
    }
    assert!(!is_known_by(&Map::new()));
}
