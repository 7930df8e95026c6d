//! When an unknown call is checked, and what a probe of its tool proves.
//!
//! Findings settle a call. Time alone never does, unless an operator has said so.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::evidence::McpAnswer;
use crate::json;
use crate::key::Pointer;
use crate::mcp::evidence;
use crate::outcome::{self, Body, Outcome};
use crate::record::{AttemptId, Check, Content, Record, State};
use crate::retry;
use crate::time::{after, between, later};
use crate::tool::{Dedup, Errors, OnUnknown, Recheck, Tool, ToolError};

/// The shortest wait that callers are told.
const LEAST_WAIT: Duration = Duration::from_secs(1);
/// How long to wait for a call that is being undone.
const WHILE_UNDONE: Duration = Duration::from_secs(5);

/// The finding of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The tool knows the key, and this is its result.
    Found(Content),
    /// The tool does not know the key.
    NotFound,
    /// The answer is not clear.
    Unclear(String),
}

impl Finding {
    /// A sentence for an engineer about a finding that settles nothing.
    pub fn explanation(&self) -> String {
        match self {
            Self::Found(_) => "the tool knows the key".to_owned(),
            Self::NotFound => "the tool does not know the key, which proves nothing yet".to_owned(),
            Self::Unclear(why) => {
                format!("the tool did not say whether it knows the key: {why}")
            }
        }
    }
}

/// Why the due check of an unknown call is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckBlocker {
    /// The circuit breaker of its tool is open for so long.
    BreakerOpen(Duration),
    /// An operator has stopped its session.
    Frozen,
    /// The store lets nothing begin now.
    Store,
    /// Another call has its key by now: the call can never be sent again.
    KeyGone,
    /// The stored request does not say which rule of the proxy holds.
    NoRule,
    /// Its saga is being undone, or the effect is settled: the call must never be sent again.
    NotWanted,
    /// What would be sent now is not what was approved.
    NotAsApproved,
}

/// An operator's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Succeeded(Content),
    Failed,
}

/// What a tool's answer to a probe proves.
///
/// A 410 says that the effect existed once, so it does not prove that the call was never executed. A
/// success with an empty body does not say which call it is about.
pub fn read_probe(tool: &Tool, status: u16, body: &Body) -> Finding {
    let unclear = |rest: &str| Finding::Unclear(format!("it answered {status}{rest}"));
    let test = tool.success.as_ref();
    match (status, body) {
        (202 | 204, _) => unclear(", which tells nothing of the call"),
        (200..=299, Body::Whole(bytes)) if bytes.is_empty() => unclear(" with an empty body"),
        (200..=299, _) if test.is_some_and(|test| outcome::passes(test, body) != Some(true)) => {
            unclear(", which does not pass the tool's success test")
        }
        (200..=299, _) => {
            let probe = tool.probe();
            let whole = || Finding::Found(outcome::keep(body));
            match probe.and_then(|probe| Some((probe, probe.found.as_ref()?))) {
                Some((probe, found)) => match found_in(body, found) {
                    Finding::Found(_) if probe.answers => whole(),
                    finding => finding,
                },
                None => whole(),
            }
        }
        (404, _) => Finding::NotFound,
        _ => unclear(""),
    }
}

/// The finding in the answer to a search.
///
/// An object, a list or a text is the effect. Only a list without it, or null, shows that no effect exists; in an
/// answer that names an error it shows nothing.
fn found_in(body: &Body, found: &Pointer) -> Finding {
    let unclear = |why: &str| Finding::Unclear(format!("it answered with {why}"));
    let answer = match body {
        Body::Whole(bytes) => json::read(bytes).ok(),
        Body::Broken(_) => None,
    };
    let Some(answer) = answer else {
        return unclear("no whole JSON");
    };
    let (around, _) = found.as_str().rsplit_once('/').unwrap_or_default();
    match (answer.pointer(found.as_str()), answer.pointer(around)) {
        (Some(item), _) if is_something(item) => {
            Finding::Found(Content::Stored(item.to_string().into()))
        }
        _ if evidence::names_error(&answer) => unclear("an error beside no effect"),
        (Some(Value::Array(_) | Value::Null), _) | (None, Some(Value::Array(_))) => {
            Finding::NotFound
        }
        _ => unclear("neither an effect nor an empty list at the place to look at"),
    }
}

fn is_something(item: &Value) -> bool {
    match item {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What an MCP tool's answer to a probe proves.
///
/// Only a complete result proves anything. The effect is searched in the structured content, or in a
/// text that is JSON.
pub fn read_mcp_probe(answer: &McpAnswer, found: &Pointer) -> Finding {
    let errors = Errors {
        tool_error: ToolError::Unknown,
        ..Errors::default()
    };
    let (outcome, why) = evidence::classify(answer, errors, None);
    match outcome {
        Outcome::Executed(Content::Stored(json)) => match evidence::has(&json, found.as_str()) {
            Some(true) => Finding::Found(Content::Stored(json)),
            Some(false) => Finding::NotFound,
            None => Finding::Unclear("it answered with an error, or no JSON to look into".into()),
        },
        _ => Finding::Unclear(why),
    }
}

/// The first check of a call that has just become unknown or gets a policy; `None`: no check.
///
/// It is planned even when the time for checks is over: the tool is asked once.
pub fn first_check(tool: &Tool, record: &Record, now: Timestamp) -> Option<Check> {
    match tool.unknown {
        // The server works on the call as a task, which is asked for whatever the policy is.
        OnUnknown::Hold if record.attempt.remote_task.is_none() => None,
        // A gateway that has the tool replaces the plan soon.
        OnUnknown::Hold | OnUnknown::Probe | OnUnknown::Retry | OnUnknown::Elsewhere => {
            Some(next_check(tool, record.attempt.id, unchecked(record), now))
        }
    }
}

/// The next check of a call whose server still works on its task, not before the server wants to be asked.
///
/// It is planned however late it is: the server knows the task.
pub fn check_of_task(tool: &Tool, record: &Record, poll: Duration, now: Timestamp) -> Check {
    let check = record.check.unwrap_or_else(|| unchecked(record));
    let planned = check.at.filter(|at| *at > now);
    let next = next_check(tool, record.attempt.id, check, now);
    let at = planned.or(next.at).map(|at| at.max(after(now, poll)));
    Check { at, ..check }
}

/// The state of the checks before the first one.
///
/// They count from the time since when the tool may have executed the call, and not from the time at which the outcome
/// became unknown: the gateway may have been down for days, and the tool may have forgotten the key.
fn unchecked(record: &Record) -> Check {
    let since = if record.earlier_attempt_may_have_run {
        record.intent.created_at
    } else {
        record.attempt.run_started_at
    };
    Check {
        since,
        at: None,
        number: 0,
    }
}

/// The next check, after one at this time.
pub fn next_check(tool: &Tool, attempt: AttemptId, check: Check, now: Timestamp) -> Check {
    let Recheck { base, max, .. } = tool.recheck;
    let longest = retry::back_off(base, max, check.number.saturating_add(1));
    // A shorter wait would ask the tool in vain.
    let wait = retry::at_least_half(longest, spread(attempt, check.number));
    let at = Some(later(now, wait));
    Check { at, ..check }
}

/// The check, without its time if that is too late.
pub fn unless_too_late(tool: &Tool, check: Check, slept: SignedDuration) -> Check {
    let is_late = |at: &Timestamp| is_late(tool, &check, at.checked_add(slept).unwrap_or(*at));
    let at = check.at.filter(|at| !is_late(at));
    Check { at, ..check }
}

/// How long a caller waits before it asks again for a call; `None`: asking again is useless.
///
/// Only a late answer or an operator settles such a call.
pub fn next_look(record: &Record, now: Timestamp) -> Option<Duration> {
    let at = match &record.state {
        State::Unknown(_) => record.check.and_then(|check| check.at),
        // The owner ends the call, or is taken for lost when the lease is over.
        State::Running => Some(record.attempt.lease_until),
        State::Compensating(_) => Some(after(now, WHILE_UNDONE)),
        State::Proposed | State::Approved => {
            let proposal = record.proposal.as_deref();
            proposal.map(|asked| after(now, asked.ask_again_after(now)))
        }
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) | State::Stuck(_) => None,
    };
    at.map(|at| between(now, at).max(LEAST_WAIT))
}

/// Whether more becomes known of a call by itself: it waits for approval, it runs, its lease does, or a check is planned.
pub fn is_open(record: &Record, now: Timestamp) -> bool {
    match record.state {
        State::Proposed | State::Approved | State::Running => true,
        State::Unknown(_) => next_look(record, now).is_some() || record.attempt.lease_until > now,
        State::Succeeded(_)
        | State::Failed(_)
        | State::Compensating(_)
        | State::Compensated(_)
        | State::Stuck(_) => false,
    }
}

/// Whether the time for checks is over.
///
/// The tool may have forgotten the key by then. It can still be asked, but nothing is sent again, and
/// "not found" proves nothing.
pub fn is_late(tool: &Tool, check: &Check, now: Timestamp) -> bool {
    after(check.since, tool.recheck.give_up_after) <= now
}

/// Postpones a blocked check: the longer the call has been unknown, the later.
///
/// Postponements never end the checks, so the growing pauses keep the history short.
pub fn put_off(tool: &Tool, check: Check, wait: Duration, now: Timestamp) -> Check {
    let Recheck { base, mut max, .. } = tool.recheck;
    let age = between(check.since, now);
    if age >= tool.recheck.give_up_after {
        max = max.max(tool.recheck.give_up_after);
    }
    let wait = (age / 2).min(max).max(base).max(wait);
    let at = Some(later(now, wait));
    Check { at, ..check }
}

/// A number of 0..1 that follows from attempt and check.
///
/// Attempts have random ids, so calls that became unknown together are not checked together.
fn spread(attempt: AttemptId, number: u32) -> f64 {
    let (high, low) = attempt.0.as_u64_pair();
    // Numbers that mix well: those of SplitMix64 (G. Steele and others, OOPSLA 2014).
    let mixed = (high ^ low).wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as f64 / f64::from(u32::MAX)
}

/// Whether the tool can be asked if it knows a key.
pub fn may_be_asked(tool: &Tool) -> bool {
    tool.unknown != OnUnknown::Elsewhere && (tool.probe().is_some() || tool.asks().is_some())
}

/// Whether the answer to a probe is a list or a result in which the effect is looked for.
pub fn is_searched(tool: &Tool) -> bool {
    tool.asks().is_some() || tool.probe().is_some_and(|probe| probe.found.is_some())
}

/// Whether "not found" at this time proves that the call was not executed.
///
/// It does once the request cannot arrive any more: when its lease is over at a tool that deduplicates,
/// or after the time that the operator has declared. A search may show an effect only after a while, so it
/// needs that time. `dedup_now`: see [`Now::dedup_now`](crate::call::Now::dedup_now).
pub fn is_negative_final(
    tool: &Tool,
    record: &Record,
    asked_at: Timestamp,
    dedup_now: Timestamp,
) -> bool {
    // A tool that is asked too late may have forgotten the key, also while the gateway's machine slept.
    let check = record.check.unwrap_or_else(|| unchecked(record));
    if is_late(tool, &check, dedup_now) {
        return false;
    }
    let at_once = (tool.dedup == Dedup::Key && !is_searched(tool)).then_some(Duration::ZERO);
    let wait = at_once.or(tool.negative_final_after);
    wait.is_some_and(|wait| after(record.attempt.lease_until, wait) <= asked_at)
}

/// Whether "not found" can ever prove that a call of the tool was not executed.
///
/// It counts from the end of a lease, and a server's task may last longer.
pub fn proves_absence(tool: &Tool) -> bool {
    let at_once = tool.dedup == Dedup::Key && !is_searched(tool);
    may_be_asked(tool) && (at_once || tool.negative_final_after.is_some())
}

/// Whether "not found" at this time shows that the effect of an executed call is gone.
///
/// A search may show an effect only after a while.
pub fn shows_absence(tool: &Tool, record: &Record, asked_at: Timestamp) -> bool {
    let is_over = |wait| after(record.attempt.lease_until, wait) <= asked_at;
    !is_searched(tool) || tool.negative_final_after.is_some_and(is_over)
}

#[cfg(test)]
mod tests;
