//! The states of a call, and the one function that moves it: [`next`].
//!
//! ```text
//!             claim            executed
//!  (absent) ─────────► running ─────────► succeeded
//!                        │  ▲
//!           not_executed │  │ retry, or the same key again
//!                        ▼  │
//!                      failed
//!
//!  running ── ambiguous outcome / lease over / owner lost ──► unknown ── late answer ──► succeeded | failed
//!  running, failed ── the store has lost data ──► unknown
//! ```
//!
//! Live traffic and recovery enter by this one door. What is not listed is refused by name.
//! A call of a read tool never becomes unknown: it has no effect to be in doubt about.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::key;
use super::outcome::{self, Evidence, Failure, FailureKind, Outcome};
use super::record::{Attempt, AttemptId, CallId, Entry, InstanceId, Intent, Record, State};
use super::retry;
use super::session::{self, Brought, Release, Terms};
use super::tool::{Effect, Tool};

/// What happens to a call.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request asks for it.
    Arrived { intent: Arc<Intent>, brought: Brought, attempt: AttemptId, owner: InstanceId },
    /// An attempt ended, as far as its owner can tell.
    Ended {
        attempt: AttemptId,
        fencing: Option<u64>,
        evidence: Evidence,
        /// What a further attempt would go by; `None` if its owner will make none.
        retry: Option<Retry>,
    },
    /// Nothing has been heard of the call until its lease was over. `by` found it.
    LeaseOver { by: InstanceId },
    /// The process that owned the running attempt is known to have ended. `by` found it.
    OwnerLost { by: InstanceId },
    /// The store has lost its newest writes, and a person accepts that: what is running may have
    /// ended, and what has failed may have run again. `by` is that person's token.
    StoreLost { by: String, reason: String },
    /// A person takes the session's lock away from it. `by` is that person's token.
    Unlocked { by: String, reason: String },
}

impl Event {
    /// The same, but no further attempt is to be made.
    #[must_use]
    pub fn without_retry(&self) -> Self {
        match self {
            Self::Ended { attempt, fencing, evidence, .. } => {
                Self::Ended { attempt: *attempt, fencing: *fencing, evidence: evidence.clone(), retry: None }
            }
            other => other.clone(),
        }
    }
}

/// The randomness that a further attempt needs.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    pub attempt: AttemptId,
    /// Of 0..1.
    pub jitter: f64,
}

/// What to write, and what to do when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    pub change: Option<Change>,
    pub action: Action,
}

/// A new version of a record with its entry in the ledger. Both are stored in one atomic step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub record: Record,
    pub entry: Entry,
    /// On which terms the call begins; the store writes into the record what follows from them.
    pub terms: Option<Terms>,
    /// What the call gives back.
    pub release: Release,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Claim the key with the changed record, in place of the finished call that still has it, if
    /// there is one; then dispatch.
    Claim { instead_of: Option<CallId> },
    /// Write the change, then dispatch.
    Run,
    /// Write the change, wait, then dispatch the record's new attempt.
    Retry { after: Duration },
    /// Write the change: this run is over.
    Finish,
    /// Somebody is at it.
    Wait,
    /// Answer with what the record says.
    Answer,
    /// Answer that the key stands for something else.
    RefuseReused,
    /// Answer that the key is too old.
    RefuseExpired,
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    #[error("there is no such call")]
    NoCall,
    /// A zombie: another owner has taken over, or the call is settled.
    #[error("the attempt does not own the call any more")]
    NotOwner,
    #[error("the call's lease is not over")]
    LeaseHeld,
    #[error("the call is not under way")]
    NotRunning,
    /// An ended attempt brought no news.
    #[error("the call's outcome is as unknown as it was")]
    StillUnknown,
}

/// Decides what an event does to a call.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(tool: &Tool, record: Option<&Record>, event: &Event, now: Timestamp) -> Result<Next, Illegal> {
    match (record, event) {
        (None, Event::Arrived { intent, brought, attempt, owner }) => {
            let arrival = Arrival { intent, brought: *brought, attempt: *attempt, owner: *owner };
            Ok(claim(tool, &arrival, None, now))
        }
        (
            None,
            Event::Ended { .. }
            | Event::LeaseOver { .. }
            | Event::OwnerLost { .. }
            | Event::StoreLost { .. }
            | Event::Unlocked { .. },
        ) => Err(Illegal::NoCall),
        (Some(record), Event::Arrived { intent, brought, attempt, owner }) => {
            let arrival = Arrival { intent, brought: *brought, attempt: *attempt, owner: *owner };
            Ok(arrive_again(tool, record, &arrival, now))
        }
        (Some(record), Event::Ended { attempt, fencing, evidence, retry }) => {
            if record.attempt.id != *attempt || record.fencing != *fencing {
                return Err(Illegal::NotOwner);
            }
            match record.state {
                State::Running => Ok(end(tool, record, evidence, *retry, now)),
                State::Unknown(_) => end_late(tool, record, evidence, now),
                State::Succeeded(_) | State::Failed(_) => Err(Illegal::NotOwner),
            }
        }
        (Some(record), Event::LeaseOver { by }) => match record.state {
            State::Running if now < record.attempt.lease_until => Err(Illegal::LeaseHeld),
            State::Running => Ok(lose(
                tool,
                record,
                Occasion { event: "lease_over", by: gateway(*by) },
                "its lease was over",
                now,
            )),
            State::Succeeded(_) | State::Failed(_) | State::Unknown(_) => Err(Illegal::NotRunning),
        },
        (Some(record), Event::OwnerLost { by }) => match record.state {
            State::Running => Ok(lose(
                tool,
                record,
                Occasion { event: "owner_lost", by: gateway(*by) },
                "its gateway had ended",
                now,
            )),
            State::Succeeded(_) | State::Failed(_) | State::Unknown(_) => Err(Illegal::NotRunning),
        },
        (Some(record), Event::StoreLost { by, reason }) => match (&record.state, tool.effect) {
            // Had it run again while its key was remembered, that run would be forgotten by now, too.
            (State::Failed(_), _)
                if record.expires_at.is_some_and(|expires_at| {
                    after(expires_at, tool.lease() + tool.window(record.intent.key_source)) <= now
                }) =>
            {
                Err(Illegal::NotRunning)
            }
            (State::Running, _) | (State::Failed(_), Effect::Write) => {
                let occasion = Occasion { event: "store_lost", by: format!("token {by}") };
                Ok(lose(tool, record, occasion, &format!("the store has lost data ({reason})"), now))
            }
            (State::Succeeded(_) | State::Failed(_) | State::Unknown(_), _) => Err(Illegal::NotRunning),
        },
        (Some(record), Event::Unlocked { by, reason }) => match record.state {
            State::Running | State::Unknown(_) => Ok(unlock(record, by, reason, now)),
            State::Succeeded(_) | State::Failed(_) => Err(Illegal::NotRunning),
        },
    }
}

/// A request, as the event brings it.
struct Arrival<'a> {
    intent: &'a Arc<Intent>,
    brought: Brought,
    attempt: AttemptId,
    owner: InstanceId,
}

fn arrive_again(tool: &Tool, record: &Record, arrival: &Arrival<'_>, now: Timestamp) -> Next {
    let passed = |time: Option<Timestamp>| time.is_some_and(|time| time <= now);
    if passed(record.expires_at) {
        if record.intent.key_source == key::Source::Runtime && !passed(record.retain_until) {
            return Next { change: None, action: Action::RefuseExpired };
        }
        return claim(tool, arrival, Some(record.intent.call_id), now);
    }
    if record.intent.fingerprint != arrival.intent.fingerprint {
        return Next { change: None, action: Action::RefuseReused };
    }
    match &record.state {
        State::Running => Next { change: None, action: Action::Wait },
        State::Succeeded(_) | State::Unknown(_) => Next { change: None, action: Action::Answer },
        State::Failed(failure) if failure.kind == FailureKind::Rejected && tool.remember_rejections => {
            Next { change: None, action: Action::Answer }
        }
        State::Failed(_) => run_again(tool, record, arrival, now),
    }
}

fn claim(tool: &Tool, arrival: &Arrival<'_>, instead_of: Option<CallId>, now: Timestamp) -> Next {
    let record = Record {
        intent: arrival.intent.clone(),
        version: 1,
        state: State::Running,
        attempt: first_attempt(tool, arrival, now),
        attempts: 1,
        doubted: false,
        fencing: None,
        similar_to: None,
        latency_ms: None,
        updated_at: now,
        expires_at: None,
        retain_until: None,
    };
    let detail = match instead_of {
        None => "the key was free".to_owned(),
        Some(old) => format!("the key's earlier call {old} is past its window"),
    };
    let entry = begun("claimed", arrival, detail, now);
    let terms = session::terms(tool, arrival.intent, arrival.brought);
    let change = Change { record, entry, terms, release: Release::default() };
    Next { change: Some(change), action: Action::Claim { instead_of } }
}

/// A failed call runs again under the same key.
fn run_again(tool: &Tool, record: &Record, arrival: &Arrival<'_>, now: Timestamp) -> Next {
    let again = Record {
        version: record.version + 1,
        state: State::Running,
        attempt: first_attempt(tool, arrival, now),
        attempts: record.attempts.saturating_add(1),
        doubted: in_doubt(record),
        similar_to: None,
        latency_ms: None,
        updated_at: now,
        expires_at: None,
        retain_until: None,
        ..record.clone()
    };
    let detail = "the same key came again after a failure".to_owned();
    let entry = begun("run_again", arrival, detail, now);
    let terms = session::terms(tool, &record.intent, arrival.brought);
    let change = Change { record: again, entry, terms, release: Release::default() };
    Next { change: Some(change), action: Action::Run }
}

/// What a further attempt has to know of the ones before it.
fn in_doubt(record: &Record) -> bool {
    record.doubted || matches!(record.state, State::Unknown(_))
}

fn first_attempt(tool: &Tool, arrival: &Arrival<'_>, now: Timestamp) -> Attempt {
    let lease_until = after(now, tool.lease());
    Attempt { id: arrival.attempt, owner: arrival.owner, number: 1, run_started_at: now, lease_until }
}

/// The running attempt ended.
fn end(tool: &Tool, record: &Record, evidence: &Evidence, retry: Option<Retry>, now: Timestamp) -> Next {
    let (outcome, why) = judge(tool, record, evidence);
    if let (Outcome::NotExecuted(failure), Some(retry)) = (&outcome, retry)
        && let Some(wait) = wait_before_retry(tool, record, failure, retry.jitter, now)
    {
        let again = Record {
            version: record.version + 1,
            attempt: Attempt {
                id: retry.attempt,
                number: record.attempt.number + 1,
                ..record.attempt.clone()
            },
            attempts: record.attempts.saturating_add(1),
            doubted: in_doubt(record),
            updated_at: now,
            ..record.clone()
        };
        let detail = format!("{why}; attempt {} follows in {} ms", retry.attempt, wait.as_millis());
        let entry = ended(
            Occasion { event: "retried", by: gateway(record.attempt.owner) },
            record,
            &outcome,
            detail,
            now,
        );
        let change = Change { record: again, entry, terms: None, release: Release::default() };
        return Next { change: Some(change), action: Action::Retry { after: wait } };
    }
    finish(tool, record, Occasion { event: "ended", by: gateway(record.attempt.owner) }, outcome, why, now)
}

/// An answer came after the call had been given up as unknown. It is the same attempt's, so it counts.
fn end_late(tool: &Tool, record: &Record, evidence: &Evidence, now: Timestamp) -> Result<Next, Illegal> {
    let (outcome, why) = outcome::classify(tool, evidence, record.sent());
    match outcome {
        Outcome::Unknown => Err(Illegal::StillUnknown),
        outcome => {
            let occasion = Occasion { event: "ended_late", by: gateway(record.attempt.owner) };
            Ok(finish(tool, record, occasion, outcome, why, now))
        }
    }
}

/// The owner of a running attempt is gone: nobody will say how it ended.
fn lose(tool: &Tool, record: &Record, occasion: Occasion, why: &str, now: Timestamp) -> Next {
    let (outcome, why) = judge(tool, record, &Evidence::Lost { why: why.to_owned() });
    finish(tool, record, occasion, outcome, why, now)
}

/// What the evidence means for this call. A read has no effect to be in doubt about: an attempt of
/// it that was not answered, or answered with nothing definite, has simply failed.
fn judge(tool: &Tool, record: &Record, evidence: &Evidence) -> (Outcome, String) {
    let (outcome, why) = outcome::classify(tool, evidence, record.sent());
    match (outcome, tool.effect) {
        (Outcome::Unknown, Effect::Read) => {
            let (status, retry_after) = match evidence {
                Evidence::Answer { status, retry_after, .. } => (Some(*status), *retry_after),
                Evidence::NotSent { .. } | Evidence::NoAnswer { .. } | Evidence::Lost { .. } => (None, None),
            };
            let kind = FailureKind::Unavailable;
            let failure = Failure { kind, status, body: None, retry_after, why: why.clone() };
            (Outcome::NotExecuted(failure), format!("{why}; a read has no effect"))
        }
        (outcome, _) => (outcome, why),
    }
}

/// How long to wait before another attempt of the same run, if there is to be one.
fn wait_before_retry(
    tool: &Tool,
    record: &Record,
    failure: &Failure,
    jitter: f64,
    now: Timestamp,
) -> Option<Duration> {
    let is_final = matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced);
    if is_final || record.attempt.number >= tool.retry.attempts {
        return None;
    }
    let wait = retry::delay(&tool.retry, record.attempt.number, jitter, failure.retry_after);
    let in_time = after(now, wait) < after(record.attempt.run_started_at, tool.deadline);
    in_time.then_some(wait)
}

fn finish(
    tool: &Tool,
    record: &Record,
    occasion: Occasion,
    outcome: Outcome,
    why: String,
    now: Timestamp,
) -> Next {
    let entry = ended(occasion, record, &outcome, why.clone(), now);
    let (state, known) = match outcome {
        Outcome::Executed(content) => (State::Succeeded(content), true),
        Outcome::NotExecuted(failure) => (State::Failed(failure), true),
        Outcome::Unknown => (State::Unknown(why), false),
    };
    let window = tool.window(record.intent.key_source);
    let finished = Record {
        version: record.version + 1,
        state,
        latency_ms: Some(elapsed_ms(record.attempt.run_started_at, now)),
        updated_at: now,
        expires_at: known.then(|| after(now, window)),
        retain_until: known.then(|| after(now, tool.retention.max(window))),
        ..record.clone()
    };
    // The effect of an unknown call may still be under way: its session waits until the lease is over.
    let free_from = if known { now } else { record.attempt.lease_until };
    let release = Release {
        lock_from: session::is_exclusive(tool).then_some(free_from),
        // What surely had no effect is no earlier call.
        similar: record.intent.similar.filter(|_| matches!(finished.state, State::Failed(_))),
    };
    let change = Change { record: finished, entry, terms: None, release };
    Next { change: Some(change), action: Action::Finish }
}

/// The session goes on without it; what the call does stays as it is.
fn unlock(record: &Record, by: &str, reason: &str, now: Timestamp) -> Next {
    let unlocked = Record { version: record.version + 1, updated_at: now, ..record.clone() };
    let detail = format!("the session's lock was taken away from it ({reason})");
    let entry = Entry {
        at: now,
        event: "unlocked".into(),
        attempt: Some(record.attempt.id),
        outcome: None,
        by: format!("token {by}"),
        detail,
    };
    let release = Release { lock_from: Some(now), similar: None };
    let change = Change { record: unlocked, entry, terms: None, release };
    Next { change: Some(change), action: Action::Finish }
}

/// What an entry is about, and whose doing it was.
struct Occasion {
    event: &'static str,
    by: String,
}

fn begun(event: &'static str, arrival: &Arrival<'_>, detail: String, now: Timestamp) -> Entry {
    let (attempt, by) = (Some(arrival.attempt), gateway(arrival.owner));
    Entry { at: now, event: event.into(), attempt, outcome: None, by, detail }
}

fn ended(occasion: Occasion, record: &Record, outcome: &Outcome, detail: String, now: Timestamp) -> Entry {
    Entry {
        at: now,
        event: occasion.event.into(),
        attempt: Some(record.attempt.id),
        outcome: Some(outcome.as_str().into()),
        by: occasion.by,
        detail,
    }
}

/// A gateway as an entry names it: its log says the same at its start.
fn gateway(instance: InstanceId) -> String {
    format!("gateway {instance}")
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Whole milliseconds from one time to another; 0 if the clock was set back in between.
pub fn elapsed_ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_millis()).unwrap_or(0)
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
