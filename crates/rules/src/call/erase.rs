//! The arguments, the result and the names of an ended call are erased.
//!
//! What the promise needs stays: key, lookup keys, fingerprint, state, times and saga. A repetition meets the call as before, and
//! is told that its result is not available any more.

use std::sync::Arc;

use super::change::{Call, Change, Illegal};
use crate::actor::By;
use crate::record::{Content, ERASED, Intent, Record, State};

/// What a caller is told in the place of the result.
const GONE: &str = "it was erased";

/// Erases a call that has ended, for itself and for its saga.
///
/// # Errors
/// The call has not ended: its arguments may be sent again, or its saga may need them to undo it. Or it was erased before.
pub(super) fn erase(call: Call<'_>, by: &By) -> Result<Change, Illegal> {
    let record = call.record;
    if !has_ended(record) {
        return Err(Illegal::NotEnded);
    }
    if record.is_erased() {
        return Err(Illegal::ErasedBefore);
    }
    let mut erased = call.changed();
    erased.intent = Arc::new(without_data(&record.intent));
    let detail = "its arguments, its result and its names were erased";
    let mut change = Change::new(erased, "erased", &by.actor, detail);
    change.erases = Some(record.intent.clone());
    Ok(change)
}

/// Whether a call has ended, and its saga with it: nothing happens to it by itself any more.
pub(super) fn has_ended(record: &Record) -> bool {
    let has_ended = match record.state {
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) => true,
        State::Proposed
        | State::Approved
        | State::Running
        | State::Unknown(_)
        | State::Compensating(_)
        | State::Stuck(_) => false,
    };
    // As long as its saga may undo the call, it is not clear until when the call is kept.
    has_ended && record.retain_until.is_some()
}

/// Leaves out the result of an erased call, also one that becomes known later: of a call that could not be undone, or whose
/// end the store has lost.
pub(super) fn leave_out_result(record: &mut Record) {
    if record.is_erased() {
        delete_result(record, GONE);
    }
}

/// Deletes the result of a call, or the body of its rejection.
pub(super) fn delete_result(record: &mut Record, why: &str) {
    if let Some(content) = record.state.content_mut() {
        *content = Content::Unavailable(why.into());
    }
    if let State::Failed(failure) = &mut record.state {
        failure.body = None;
        failure.sealed = None;
    }
}

/// The intent without what a caller has said of a user.
fn without_data(intent: &Intent) -> Intent {
    Intent {
        user_id: String::new(),
        session_id: String::new(),
        trace_id: String::new(),
        client_ids: String::new(),
        args: ERASED.into(),
        ..intent.clone()
    }
}
