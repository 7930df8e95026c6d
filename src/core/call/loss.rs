//! A call whose owner, store or lock is lost: its outcome is unknown, unless it only reads.

use jiff::Timestamp;

use super::change::{Change, Illegal};
use super::end::{finish, judge};
use crate::core::actor::Actor;
use crate::core::outcome::{Evidence, Outcome};
use crate::core::record::{Attempt, Record, State};
use crate::core::session::Release;
use crate::core::time::after;
use crate::core::tool::{Effect, Tool};

/// The owner of a running attempt is gone: the outcome is unknown.
pub(super) fn lose(
    tool: &Tool,
    record: &Record,
    event: &'static str,
    by: Actor<'_>,
    why: &str,
    now: Timestamp,
) -> Change {
    let why = why.to_owned();
    let (outcome, why) = judge(tool, record, &Evidence::Lost { why });
    finish(tool, record, event, by, &outcome, &why, now)
}

/// The store has lost newer states of a call, and who held the session's lock.
pub(super) fn store_lost(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    whole_until: Option<Timestamp>,
    now: Timestamp,
) -> Result<Change, Illegal> {
    // A later run, of which the store has lost everything, may have begun just now.
    let lease_until = record.attempt.lease_until.max(after(now, tool.lease()));
    let attempt = Attempt {
        lease_until,
        ..record.attempt.clone()
    };
    let prolonged = Record {
        attempt,
        // That run would be newer than the attempt which the store still has: that one proves nothing for it.
        earlier_attempt_may_have_run: true,
        ..record.clone()
    };
    // It may have run again until its key was forgotten. Had it done so before the loss, the store would say so. Clocks
    // of gateways differ by less than a lease.
    let is_kept =
        |expires_at| whole_until.is_some_and(|until| after(expires_at, tool.lease()) <= until);
    let is_settled = match record.state {
        State::Running | State::Unknown(_) => false,
        State::Failed(_) => tool.effect == Effect::Read || record.expires_at.is_some_and(is_kept),
        _ => true,
    };
    if is_settled {
        return Err(Illegal::NotRunning);
    }
    let by = Actor::Token(by);
    let why = format!("the store has lost data ({reason})");
    if let State::Unknown(_) = record.state {
        let why = format!("{why}: it may have been sent again since");
        let change = Change::new(prolonged.changed(now), "store_lost", by, why)
            .about(record.attempt.id)
            .proving(&Outcome::Unknown);
        let lock_from = tool.is_exclusive().then_some(lease_until);
        let release = Release {
            lock_from,
            ..Release::default()
        };
        return Ok(Change { release, ..change });
    }
    let mut change = lose(tool, &prolonged, "store_lost", by, &why, now);
    match record.state {
        State::Running => change.release.retakes_lock = true,
        // Only a later run is in doubt.
        _ => {
            if let Some(check) = &mut change.record.check {
                check.since = whole_until.map_or(record.updated_at, |at| at.max(record.updated_at));
            }
        }
    }
    Ok(change)
}

/// A person frees the session's lock.
///
/// The call's attempt goes on, and is its last.
pub(super) fn unlock(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    now: Timestamp,
) -> Change {
    // A further attempt would run beside the session's next call.
    let attempt = Attempt {
        number: tool.retry.attempts,
        ..record.attempt.clone()
    };
    let unlocked = Record {
        attempt,
        ..record.changed(now)
    };
    let detail = format!("the session's lock was taken away from it ({reason})");
    let change = Change::new(unlocked, "unlocked", Actor::Token(by), detail);
    let release = Release {
        lock_from: Some(now),
        ..Release::default()
    };
    Change {
        release,
        ..change.about(record.attempt.id)
    }
}
