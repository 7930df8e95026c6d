//! What an attempt proved: one table from evidence to outcome.
//!
//! The rule: unknown unless there is positive evidence. Must not know what is done with an outcome.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};

use super::record::{Content, Failure, FailureKind, Record, State};
use super::tool::{Declared, SuccessTest, Tool};

/// What was observed of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// No byte of the request was handed to a connection, and none will be.
    NotSent { why: String },
    /// The request was handed to a connection, and there is no complete status line.
    NoAnswer { why: String },
    /// The gateway that made the attempt is gone and wrote no outcome.
    Lost { why: String },
    /// The tool answered.
    Answer {
        status: u16,
        body: Body,
        retry_after: Option<Duration>,
        /// The newest fencing token that the tool says it has seen.
        newest_token: Option<u64>,
    },
}

impl Evidence {
    /// Whether the tool is there and does its work, whatever that proves of the call: also a refusal is a
    /// sign of life, but not "too many" or "too late".
    pub fn is_sign_of_life(&self) -> bool {
        self.status()
            .is_some_and(|status| status < 500 && !matches!(status, 408 | 425 | 429))
    }

    /// The tool's status, if it answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. } => Some(*status),
            Self::NotSent { .. } | Self::NoAnswer { .. } | Self::Lost { .. } => None,
        }
    }

    /// How long the tool asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answer { retry_after, .. } => *retry_after,
            Self::NotSent { .. } | Self::NoAnswer { .. } | Self::Lost { .. } => None,
        }
    }
}

/// The body of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    Whole(Bytes),
    /// It could not be read whole, and why.
    Broken(String),
}

/// What is known of the attempt that evidence is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// An earlier attempt of the same call may have been executed.
    pub earlier_attempt_may_have_run: bool,
    /// The fencing token that it was sent with.
    pub fencing: Option<u64>,
}

impl Sent {
    /// What a call's newest attempt was sent with.
    ///
    /// What is sent once more of a call that has succeeded settles nothing.
    pub fn of(record: &Record) -> Self {
        Self {
            earlier_attempt_may_have_run: record.earlier_attempt_may_have_run
                && !matches!(record.state, State::Succeeded(_)),
            fencing: record.fencing,
        }
    }
}

/// What an attempt proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Executed(Content),
    NotExecuted(Failure),
    /// It may have been executed.
    Unknown,
}

impl Outcome {
    /// Whether the tool has said something definite, as it is declared for it.
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Executed(_) => true,
            Self::NotExecuted(failure) => {
                matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
            }
            Self::Unknown => false,
        }
    }

    /// All words for it.
    pub const WORDS: [&str; 3] = ["executed", "not_executed", "unknown"];

    /// The word for it in the ledger and in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Executed(_) => "executed",
            Self::NotExecuted(_) => "not_executed",
            Self::Unknown => "unknown",
        }
    }
}

/// What the evidence means for this tool, and a sentence that says why.
///
/// If an earlier attempt of the same call may have been executed, nothing that the tool says of a later
/// one proves that the call was not ("already exists" may be us).
pub fn classify(tool: &Tool, evidence: &Evidence, sent: Sent) -> (Outcome, String) {
    let (outcome, why) = match evidence {
        Evidence::NotSent { why } => {
            let failure = Failure::new(FailureKind::Unreachable, why);
            let why = format!("nothing was sent: {why}");
            (Outcome::NotExecuted(failure), why)
        }
        Evidence::NoAnswer { why } => (
            Outcome::Unknown,
            format!("the request was sent and not answered: {why}"),
        ),
        Evidence::Lost { why } => (
            Outcome::Unknown,
            format!("nobody has seen how the attempt ended: {why}"),
        ),
        Evidence::Answer {
            status,
            body,
            retry_after,
            newest_token,
        } => {
            let is_stale = is_stale(*status, sent.fencing, *newest_token);
            // Callers are not sent away for longer than a call may take, whatever the tool says.
            let told = retry_after.map(|wait| wait.min(tool.deadline));
            let (outcome, rule) = answered(tool, *status, body, told, is_stale);
            (
                outcome,
                format!("the tool answered {status} with {}{rule}", describe(body)),
            )
        }
    };
    match outcome {
        Outcome::NotExecuted(_) if sent.earlier_attempt_may_have_run => (
            Outcome::Unknown,
            format!("{why}; but an earlier attempt may have been executed"),
        ),
        outcome => (outcome, why),
    }
}

fn describe(body: &Body) -> String {
    match body {
        Body::Whole(bytes) => format!("{} bytes", bytes.len()),
        Body::Broken(why) => format!("a body that could not be read ({why})"),
    }
}

/// Whether the tool has refused our fencing token: it names a newer one, or says that a precondition
/// does not hold, of which we send no other.
fn is_stale(status: u16, ours: Option<u64>, newest: Option<u64>) -> bool {
    let Some(ours) = ours else { return false };
    status == 412 || (status == 409 && newest.is_some_and(|newest| newest > ours))
}

/// The table, and which row it was where that is not plain.
fn answered(
    tool: &Tool,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
    is_stale: bool,
) -> (Outcome, &'static str) {
    if let Some(declared) = tool.outcomes.get(&status) {
        return (
            by_declaration(*declared, status, body, retry_after),
            ", as declared for this tool",
        );
    }
    match status {
        200..=299 => match tool.success.as_ref().map(|test| (test, passes(test, body))) {
            None | Some((_, Some(true))) => (Outcome::Executed(keep(body)), ""),
            Some((test, Some(false))) => {
                let outcome = by_declaration(test.otherwise, status, body, retry_after);
                (outcome, ", which fails the tool's success test")
            }
            Some((_, None)) => (
                Outcome::Unknown,
                ", in which the tool's success test finds nothing",
            ),
        },
        303 => (Outcome::Executed(keep(body)), ""),
        _ if is_stale => (
            by_declaration(Declared::Fenced, status, body, retry_after),
            ": the session's fencing token is not the newest",
        ),
        400..=406 | 409..=417 | 421 | 422 | 424 | 426 | 428 | 431 | 451 | 501 | 505 => (
            by_declaration(Declared::Rejected, status, body, retry_after),
            "",
        ),
        425 | 429 => (
            by_declaration(Declared::NotExecuted, status, body, retry_after),
            "",
        ),
        300..=399 => (Outcome::Unknown, "; redirects are never followed"),
        _ => (
            Outcome::Unknown,
            "; that does not prove that it was not executed",
        ),
    }
}

fn by_declaration(
    declared: Declared,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
) -> Outcome {
    let failure = |kind, body| Failure {
        kind,
        status: Some(status),
        body,
        retry_after,
        why: format!("the tool answered {status}"),
    };
    match declared {
        Declared::Executed => Outcome::Executed(keep(body)),
        Declared::NotExecuted => Outcome::NotExecuted(failure(FailureKind::Unavailable, None)),
        Declared::Rejected | Declared::Fenced => {
            let body = match keep(body) {
                Content::Kept(json) => Some(json),
                Content::Unavailable(_) => None,
            };
            let is_fenced = declared == Declared::Fenced;
            let kind = if is_fenced {
                FailureKind::Fenced
            } else {
                FailureKind::Rejected
            };
            Outcome::NotExecuted(failure(kind, body))
        }
        Declared::Unknown => Outcome::Unknown,
    }
}

/// Whether the body holds what the test asks for; `None` if there is nothing to be tested: the body
/// is cut off or no JSON, or nothing stands at the pointer. That proves neither.
pub(super) fn passes(test: &SuccessTest, body: &Body) -> Option<bool> {
    let Body::Whole(bytes) = body else {
        return None;
    };
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let found = value.pointer(test.pointer.as_str())?;
    Some(match (found, &test.equals) {
        (Value::Number(found), Value::Number(asked)) => found.as_f64() == asked.as_f64(),
        (found, asked) => found == asked,
    })
}

/// A body as one JSON text: JSON byte for byte, text as `{"text": …}`, anything else as `{"base64": …}`.
pub(super) fn keep(body: &Body) -> Content {
    match body {
        Body::Broken(why) => Content::Unavailable(why.clone()),
        Body::Whole(bytes) => {
            let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(bytes).is_ok();
            if is_json {
                return Content::Kept(bytes.clone());
            }
            let wrapped = match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "text": text }),
                Err(_) => json!({ "base64": BASE64.encode(bytes) }),
            };
            Content::Kept(wrapped.to_string().into())
        }
    }
}

#[cfg(test)]
#[path = "outcome_life_tests.rs"]
mod life;
#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
