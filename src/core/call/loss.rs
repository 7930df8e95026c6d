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
    // Had it run again while its key was remembered, that run would be forgotten by now, too.
    let until_forgotten = tool.lease() + tool.window(record.intent.key_source);
    let is_settled = match record.state {
        State::Running | State::Unknown(_) => false,
        State::Failed(_) => {
            let is_forgotten = |expires_at| after(expires_at, until_forgotten) <= now;
            tool.effect == Effect::Read || record.expires_at.is_some_and(is_forgotten)
        }
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
    change.release.retakes_lock = record.state == State::Running;
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
