//! The task of an attempt, as it is written down.

use super::change::{Call, Change};
use crate::actor::Actor;
use crate::record::{Record, State};
use crate::unknown;

/// Writes down the task of the newest attempt. An unknown call is checked from now on.
pub(super) fn note(call: Call<'_>, id: &str) -> Change {
    let mut noted = with_task(&call.changed(), id);
    let is_checked = noted.check.is_some_and(|check| check.at.is_some());
    if matches!(noted.state, State::Unknown(_)) && !is_checked {
        noted.check = unknown::first_check(call.tool, &noted, call.now);
    }
    let by = Actor::Gateway(call.record.attempt.owner);
    let detail = "the server works on the call as a task: its end will say what happened";
    Change::new(noted, "task_given", by, detail).about(call.record.attempt.id)
}

/// The record with the task of its newest attempt.
pub(super) fn with_task(record: &Record, id: &str) -> Record {
    let mut record = record.clone();
    record.attempt.remote_task = Some(id.to_owned());
    record
}
