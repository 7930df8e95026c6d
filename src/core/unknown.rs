//! How an unknown call comes to rest: by a probe, or by a retry if the tool deduplicates.
//!
//! Findings decide; that time has passed never does, unless an operator has said so.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::evidence::McpAnswer;
use super::key::Pointer;
use super::mcp::evidence;
use super::outcome::{self, Body, Outcome};
use super::record::{AttemptId, Record, State};
use super::record::{Check, Content};
use super::retry;
use super::time::{after, between, later};
use super::tool::{Dedup, Errors, OnUnknown, Recheck, Tool, ToolError};

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
    /// A sentence for an engineer, as long as it settles nothing.
    pub fn told(&self) -> String {
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
    /// A person has stopped its session.
    Frozen,
    /// The store lets nothing begin now.
    Store,
    /// Another call has its key by now: it can never be sent again.
    KeyGone,
    /// The stored request does not say which rule of the proxy holds.
    Unplaced,
    /// Its saga is being undone, or the effect is settled: it must never be sent again.
    NotWanted,
}

/// A person's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Succeeded(Content),
    Failed,
}

/// What a tool's answer to a probe proves.
///
/// That the effect *was* there (410) does not prove that the call was never executed, and a success
/// with an empty body does not say which call it is about.
pub fn read_probe(tool: &Tool, status: u16, body: &Body) -> Finding {
    let test = tool.success.as_ref();
    match (status, body) {
        (202 | 204, _) => Finding::Unclear(format!(
            "it answered {status}, which tells nothing of the call"
        )),
        (200..=299, Body::Whole(bytes)) if bytes.is_empty() => {
            Finding::Unclear(format!("it answered {status} with an empty body"))
        }
        (200..=299, _) if test.is_some_and(|test| outcome::passes(test, body) != Some(true)) => {
            Finding::Unclear(format!(
                "it answered {status}, which does not pass the tool's success test"
            ))
        }
        (200..=299, _) => match &tool.probe_found {
            Some(found) => found_in(body, found),
            None => Finding::Found(outcome::keep(body)),
        },
        (404, _) => Finding::NotFound,
        (status, _) => Finding::Unclear(format!("it answered {status}")),
    }
}

/// The finding in the answer to a search.
///
/// An object, a list or a text is the effect. Only a list without it, or null in an answer that
/// names no error, shows that there is none.
fn found_in(body: &Body, found: &Pointer) -> Finding {
    let unclear = |why: &str| Finding::Unclear(format!("it answered with {why}"));
    let said = match body {
        Body::Whole(bytes) => serde_json::from_slice::<Value>(bytes).ok(),
        Body::Broken(_) => None,
    };
    let Some(said) = said else {
        return unclear("no whole JSON");
    };
    let names_error = ["error", "errors"]
        .iter()
        .any(|name| !matches!(said.get(name), None | Some(Value::Null)));
    let (around, _) = found.as_str().rsplit_once('/').unwrap_or_default();
    match (said.pointer(found.as_str()), said.pointer(around)) {
        (Some(Value::Array(items)), _) if items.is_empty() => Finding::NotFound,
        (Some(Value::Null), _) if !names_error => Finding::NotFound,
        (None, Some(Value::Array(_))) => Finding::NotFound,
        (Some(item), _) if is_something(item) => {
            Finding::Found(Content::Kept(item.to_string().into()))
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
/// Only a complete result proves anything. It is looked for in the structured content, or in a text
/// that is JSON.
pub fn read_mcp_probe(answer: &McpAnswer, found: &Pointer) -> Finding {
    let errors = Errors {
        tool_error: ToolError::Unknown,
        ..Errors::default()
    };
    let (outcome, why) = evidence::classify(answer, errors);
    match outcome {
        Outcome::Executed(Content::Kept(json)) => match evidence::has(&json, found.as_str()) {
            Some(true) => Finding::Found(Content::Kept(json)),
            Some(false) => Finding::NotFound,
            None => Finding::Unclear("it answered with no JSON to look into".into()),
        },
        _ => Finding::Unclear(why),
    }
}

/// The first check of a call that has just become unknown, or is taken up; `None`: there is none.
///
/// It is planned also when the time for checks is over: the tool is asked once.
pub fn first_check(tool: &Tool, record: &Record, now: Timestamp) -> Option<Check> {
    match tool.unknown {
        OnUnknown::Hold => None,
        // A gateway that has the tool knows better, and soon.
        OnUnknown::Probe { .. } | OnUnknown::Retry | OnUnknown::Elsewhere => {
            let check = Check {
                since: may_have_run_since(record),
                at: None,
                number: 0,
            };
            Some(next_check(tool, record.attempt.id, check, now))
        }
    }
}

/// Since when the tool may have executed a call whose checks have not begun.
///
/// Not since it is known to be unknown: its gateway may have been down for days, and the tool may have forgotten its key.
fn may_have_run_since(record: &Record) -> Timestamp {
    if record.earlier_attempt_may_have_run {
        record.intent.created_at
    } else {
        record.attempt.run_started_at
    }
}

/// The check after one at this time.
pub fn next_check(tool: &Tool, attempt: AttemptId, check: Check, now: Timestamp) -> Check {
    let Recheck { base, max, .. } = tool.recheck;
    let policy = retry::Policy {
        attempts: u32::MAX,
        base,
        max,
    };
    let most = retry::delay(&policy, check.number.saturating_add(1), 1.0, None);
    // Not less than half, or the tool would be asked for nothing.
    let wait = most.mul_f64(0.5 + 0.5 * spread(attempt, check.number));
    Check {
        at: Some(later(now, wait)),
        ..check
    }
}

/// The check, or none if it would be too late.
pub fn unless_too_late(tool: &Tool, check: Check) -> Check {
    Check {
        at: check.at.filter(|at| !is_late(tool, &check, *at)),
        ..check
    }
}

/// How long a caller waits before it asks again for an unknown call.
///
/// Until the next check. `None`: only a late answer or a person settles the call.
pub fn next_look(record: &Record, now: Timestamp) -> Option<Duration> {
    let at = match &record.state {
        State::Unknown(_) => record.check.and_then(|check| check.at),
        // Its owner ends it, or is taken for lost when the lease is over.
        State::Running => Some(record.attempt.lease_until),
        State::Compensating(_) => Some(after(now, WHILE_UNDONE)),
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) | State::Stuck(_) => None,
    };
    at.map(|at| between(now, at).max(LEAST_WAIT))
}

/// Whether the time for checks is over.
///
/// The tool may have forgotten its key by then: it can still be asked, but nothing is sent again,
/// and "not found" proves nothing.
pub fn is_late(tool: &Tool, check: &Check, now: Timestamp) -> bool {
    after(check.since, tool.recheck.give_up_after) <= now
}

/// Postpones a blocked check: the longer the call has been unknown, the later.
///
/// So its history does not fill with postponements, which never end its checks.
pub fn put_off(tool: &Tool, check: Check, wait: Duration, now: Timestamp) -> Check {
    let Recheck {
        base,
        max,
        give_up_after,
    } = tool.recheck;
    let age = between(check.since, now);
    let most = if age < give_up_after {
        max
    } else {
        give_up_after.max(max)
    };
    let wait = (age / 2).min(most).max(base).max(wait);
    Check {
        at: Some(later(now, wait)),
        ..check
    }
}

/// A number of 0..1 for this check of this call.
///
/// Attempts have random ids, so calls that became unknown together do not come back to their tool
/// together.
fn spread(attempt: AttemptId, number: u32) -> f64 {
    let (high, low) = attempt.0.as_u64_pair();
    // Numbers that mix well: those of SplitMix64 (G. Steele and others, OOPSLA 2014).
    let mixed = (high ^ low).wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as f64 / f64::from(u32::MAX)
}

/// Whether the tool can be asked if it knows a key.
pub fn may_be_asked(tool: &Tool) -> bool {
    tool.unknown != OnUnknown::Elsewhere && (tool.probe.is_some() || tool.asks.is_some())
}

/// Whether "not found" at this time proves that the call was not executed.
///
/// It does if the first request cannot arrive any more: then the tool would know its key, or the
/// operator says that it could not come any more.
pub fn is_negative_final(tool: &Tool, record: &Record, asked_at: Timestamp) -> bool {
    // A tool may have forgotten by then what it knew.
    let check = record.check.unwrap_or(Check {
        since: may_have_run_since(record),
        at: None,
        number: 0,
    });
    if is_late(tool, &check, asked_at) {
        return false;
    }
    let over = |wait| after(record.attempt.lease_until, wait) <= asked_at;
    match tool.unknown {
        _ if tool.dedup == Dedup::Key => over(Duration::ZERO),
        OnUnknown::Probe {
            negative_final_after,
        } => negative_final_after.is_some_and(over),
        OnUnknown::Hold | OnUnknown::Retry | OnUnknown::Elsewhere => false,
    }
}

#[cfg(test)]
#[path = "unknown_tests.rs"]
mod tests;
