//! How long an ended call is stored, and its arguments and result.
//!
//! A tool says so with `retention`, `args_for` and `results_for`. Nothing here shortens the time for which a key is
//! remembered: that was fixed when the call ended.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::change::{Call, Change, Illegal};
use super::erase::{delete_result, has_ended};
use crate::actor::{Actor, By};
use crate::record::{DELETED, InstanceId, Intent, RESULT_DELETED, Record};
use crate::time::after;

/// Deletes the arguments and the result of an ended call whose time is over.
///
/// A repetition meets the call as before: only the result cannot be told any more.
///
/// # Errors
/// The call has not ended, nothing of it is over yet, or nothing is left that will be.
pub(super) fn delete_bodies(call: Call<'_>, by: InstanceId) -> Result<Change, Illegal> {
    let (tool, record) = (call.tool, call.record);
    if !has_ended(record) {
        return Err(Illegal::NotEnded);
    }
    let is_over = |span: Duration| after(ended_at(call), span) <= call.dedup_now;
    let args_for = tool.args_for.filter(|_| !record.lacks_args());
    let results_for = tool.results_for.filter(|_| has_result(record));
    let (args, result) = (
        args_for.is_some_and(is_over),
        results_for.is_some_and(is_over),
    );
    if !args && !result {
        let is_nothing_left = args_for.is_none() && results_for.is_none();
        return Err(match is_nothing_left {
            true => Illegal::NothingLeft,
            false => Illegal::NotDue,
        });
    }
    let mut left = call.changed();
    let mut names = Vec::new();
    if args {
        let args = DELETED.into();
        left.intent = Arc::new(Intent {
            args,
            ..(*record.intent).clone()
        });
        names.push("its arguments (args_for)");
    }
    if result {
        delete_result(&mut left, RESULT_DELETED);
        names.push("its result (results_for)");
    }
    let detail = format!("the time is over for {}", names.join(" and "));
    let mut change = Change::new(left, "bodies_deleted", Actor::Gateway(by), detail);
    change.erases = args.then(|| record.intent.clone());
    Ok(change)
}

/// When a call ended: with its newest run, or later, when its outcome became known or it was undone.
///
/// That later time is not stored. If the tool's window was longer then, the call counts as ended later than it did, so that
/// with today's window it is remembered no shorter than it was then.
fn ended_at(call: Call<'_>) -> Timestamp {
    let record = call.record;
    let window = call.tool.window(record.intent.key_source);
    let window = SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX);
    let known = record
        .expires_at
        .and_then(|until| until.checked_sub(window).ok());
    known.map_or(record.run_ended_at(), |known| {
        known.max(record.run_ended_at())
    })
}

/// Whether there is an answer of the tool to delete, readable or not.
fn has_result(record: &Record) -> bool {
    record.state.answer_bytes() > 0
}

/// Counts today's `retention` of the tool for an ended call.
///
/// The call stays at least as long as its key is remembered.
///
/// # Errors
/// The call has not ended, or is stored until then already.
pub(super) fn store_until(call: Call<'_>, by: &By) -> Result<Change, Illegal> {
    let (tool, record) = (call.tool, call.record);
    if !has_ended(record) {
        return Err(Illegal::NotEnded);
    }
    let window = tool.window(record.intent.key_source);
    let until = after(ended_at(call), tool.retention.max(window));
    // Stores round the time up to seconds.
    let is_same = |before| until.duration_since(before).abs().as_secs() < 2;
    if record.retain_until.is_some_and(is_same) {
        return Err(Illegal::NothingLeft);
    }
    let mut moved = call.changed();
    moved.retain_until = Some(until);
    let detail = format!("its tool's retention of today counts: it is stored until {until}");
    Ok(Change::new(moved, "retention_changed", &by.actor, detail))
}
