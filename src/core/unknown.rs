//! How a call of which nobody knows whether it was executed comes to rest: by asking the tool, or by
//! trying again where the tool itself executes a key at most once.
//!
//! What is found decides; that time has passed never does, unless an operator has said so.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::outcome::{self, Body, Content};
use super::record::Record;
use super::retry;
use super::tool::Tool;

/// Whether the tool itself executes the same `Idempotency-Key` at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedup {
    None,
    Key,
}

/// What is done about a call whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It is held until a late answer or a person settles it.
    Hold,
    /// The tool is asked whether it knows the key.
    Probe {
        /// From when on, counted from the end of the lease, "not found" proves that it was not executed;
        /// `None`: never.
        negative_final_after: Option<Duration>,
    },
    /// The same key and the same bytes are sent again. Only for [`Dedup::Key`].
    Retry,
}

/// How often an unknown call is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The wait before the first time; it doubles with each further one.
    pub base: Duration,
    /// The upper bound of every wait.
    pub max: Duration,
    /// After this long the call stays unknown until a person settles it.
    pub give_up_after: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            max: Duration::from_secs(300),
            give_up_after: Duration::from_secs(3_600),
        }
    }
}

/// When an unknown call is worked on next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Since when it is unknown.
    pub since: Timestamp,
    pub at: Timestamp,
    /// How often it has been worked on.
    pub number: u32,
}

/// What a probe has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The tool knows the key, and this is its result.
    Found(Content),
    /// The tool does not know the key.
    NotFound,
    /// It did not say.
    Unclear(String),
}

/// What a person says about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Succeeded(Content),
    Failed,
}

/// What a tool's answer to a probe says.
pub fn read_probe(status: u16, body: &Body) -> Finding {
    match (status, body) {
        (200..=299, Body::Whole(_)) => Finding::Found(outcome::keep(body)),
        (200..=299, Body::Broken(why)) => Finding::Unclear(format!("its answer was cut off: {why}")),
        (404 | 410, _) => Finding::NotFound,
        (status, _) => Finding::Unclear(format!("it answered {status}")),
    }
}

/// When a call that has just become unknown is worked on first; `None`: never by itself.
pub fn first_check(tool: &Tool, now: Timestamp) -> Option<Check> {
    match tool.unknown {
        Policy::Hold => None,
        Policy::Probe { .. } | Policy::Retry => {
            next_check(tool, Check { since: now, at: now, number: 0 }, now)
        }
    }
}

/// When it is worked on after this time; `None` if the time for that is over.
pub fn next_check(tool: &Tool, check: Check, now: Timestamp) -> Option<Check> {
    let Schedule { base, max, give_up_after } = tool.recheck;
    let policy = retry::Policy { attempts: u32::MAX, base, max };
    let wait = retry::delay(&policy, check.number.saturating_add(1), 1.0, None);
    let at = after(now, wait);
    (at < after(check.since, give_up_after)).then_some(Check { at, ..check })
}

/// Whether "not found" proves that the call was not executed: if the first request still came, the tool
/// would know its key; or the operator says that it cannot come any more.
pub fn is_negative_final(tool: &Tool, record: &Record, now: Timestamp) -> bool {
    let over = |wait| after(record.attempt.lease_until, wait) <= now;
    match tool.unknown {
        _ if tool.dedup == Dedup::Key => over(Duration::ZERO),
        Policy::Probe { negative_final_after } => negative_final_after.is_some_and(over),
        Policy::Hold | Policy::Retry => false,
    }
}

fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}
