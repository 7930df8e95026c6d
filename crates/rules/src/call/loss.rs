//! A call whose owner, store or lock is lost: its outcome is unknown, unless the call only reads.

use std::fmt;

use jiff::Timestamp;

use super::change::{Call, Change, Illegal};
use super::end::{finish, judge};
use crate::actor::By;
use crate::outcome::{Evidence, Outcome};
use crate::record::State;
use crate::time::after;
use crate::tool::Effect;

/// The owner of a running attempt is gone: the outcome is unknown.
pub(super) fn lose(
    call: Call<'_>,
    event: &'static str,
    by: impl fmt::Display,
    why: &str,
) -> Change {
    let why = why.to_owned();
    let (outcome, why) = judge(call.tool, call.record, &Evidence::Lost { why });
    finish(call, event, by, &outcome, &why)
}

/// The store has lost newer states of a call, and who held the session's lock.
pub(super) fn store_lost(
    call: Call<'_>,
    by: &By,
    whole_until: Option<Timestamp>,
) -> Result<Change, Illegal> {
    let Call {
        tool, record, now, ..
    } = call;
    // A later run of the call may have begun just now, with all of its writes lost. The stored attempt proves nothing for it.
    let lease_until = record.attempt.lease_until.max(after(now, tool.lease()));
    let mut prolonged = record.clone();
    prolonged.attempt.lease_until = lease_until;
    prolonged.earlier_attempt_may_have_run = true;
    // A failed call may have run again until its key was forgotten. If the store has every write up to then, and for a
    // lease longer, as the clocks of gateways differ by less, it would show that run.
    let is_whole =
        |expires_at| whole_until.is_some_and(|until| after(expires_at, tool.lease()) <= until);
    let is_settled = match record.state {
        // A call that waits may have been approved, begun and executed since.
        State::Running | State::Unknown(_) | State::Proposed | State::Approved => false,
        State::Failed(_) => tool.effect == Effect::Read || record.expires_at.is_some_and(is_whole),
        _ => true,
    };
    if is_settled {
        return Err(Illegal::NotRunning);
    }
    let why = format!("the store has lost data ({})", by.reason);
    if let State::Unknown(_) = record.state {
        let why = format!("{why}: it may have been sent again since");
        let mut change = Change::new(prolonged.changed(now), "store_lost", &by.actor, why)
            .about(record.attempt.id)
            .proving(&Outcome::Unknown);
        change.release.lock_from = tool.is_exclusive().then_some(lease_until);
        return Ok(change);
    }
    let prolonged = Call {
        record: &prolonged,
        ..call
    };
    let mut change = lose(prolonged, "store_lost", &by.actor, &why);
    match record.state {
        State::Running => change.release.retakes_lock = true,
        // Only a later run is in doubt.
        _ => {
            if let Some(check) = &mut change.record.check {
                check.since = whole_until.map_or(record.updated_at, |at| at.max(record.updated_at));
            }
            // What is stored does not prove that a begun run was approved.
            if let Some(proposal) = &mut change.record.proposal {
                proposal.void();
            }
        }
    }
    Ok(change)
}

/// An operator frees the session's lock.
///
/// The call's attempt goes on, and is its last.
pub(super) fn unlock(call: Call<'_>, by: &By) -> Change {
    // A further attempt would run beside the session's next call.
    let mut unlocked = call.changed();
    unlocked.attempt.number = call.tool.retry.attempts;
    let reason = &by.reason;
    let detail = format!("the session's lock was taken away from it ({reason})");
    let mut change = Change::new(unlocked, "unlocked", &by.actor, detail);
    change.release.lock_from = Some(call.now);
    change.about(call.record.attempt.id)
}
