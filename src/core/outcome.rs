//! What an attempt proved: one table from evidence to outcome.
//!
//! The rule: unknown unless there is positive evidence. Must not know what is done with an outcome.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};

pub use super::evidence::{Body, Evidence, Outcome, Sent};
use super::mcp::{evidence, round};
use super::record::{Content, Failure, FailureKind};
use super::tool::{Declared, Effect, Errors, RequestErrors, SuccessTest, Tool, ToolError};

/// Whether the evidence shows a working tool, whatever it proves of the call.
///
/// Also a refusal is a sign of life, but not "too many" or "too late".
pub fn is_sign_of_life(evidence: &Evidence) -> bool {
    match evidence {
        Evidence::Mcp(answer) => {
            let errors = Errors {
                request_errors: RequestErrors::Rejected,
                ..Errors::default()
            };
            evidence::classify(answer, errors).0.is_healthy()
        }
        other => other
            .status()
            .is_some_and(|status| status < 500 && !matches!(status, 408 | 425 | 429)),
    }
}

/// What the evidence proves, by the tool's configuration, and why.
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
            format!("no gateway has seen how the attempt ended: {why}"),
        ),
        Evidence::Answer {
            status,
            body,
            retry_after,
            newest_token,
        } => {
            // An API that callers use as it is gets no token.
            let is_stale = tool.proxy.is_none() && is_stale(*status, sent.fencing, *newest_token);
            // Callers are not sent away for longer than a call may take, whatever the tool says.
            let told = retry_after.map(|wait| wait.min(tool.deadline));
            let (outcome, rule) = answered(tool, *status, body, told, is_stale);
            (
                outcome,
                format!("the tool answered {status} with {}{rule}", describe(body)),
            )
        }
        Evidence::Mcp(answer) => evidence::classify(answer, errors(tool, sent)),
    };
    match outcome {
        Outcome::NotExecuted(_) if sent.earlier_attempt_may_have_run => (
            Outcome::Unknown,
            format!("{why}; but an earlier attempt may have been executed"),
        ),
        Outcome::Executed(Content::Kept(json))
            if (sent.earlier_attempt_may_have_run || sent.undoes)
                && tool.may_ask
                && round::asked(&json).is_some() =>
        {
            let why = format!("{why}, which do not prove that nothing was executed before them");
            (Outcome::Unknown, why)
        }
        outcome => (outcome, why),
    }
}

/// What errors of an MCP server mean for this attempt.
///
/// A saga undoes executed calls, and a compensation must have been executed: there an error as the
/// result leaves the outcome in doubt.
fn errors(tool: &Tool, sent: Sent) -> Errors {
    let must_be_sure = sent.must_be_sure && tool.effect == Effect::Write;
    match tool.errors.tool_error {
        ToolError::Remember if must_be_sure => Errors {
            tool_error: ToolError::Unknown,
            ..tool.errors
        },
        _ => tool.errors,
    }
}

fn describe(body: &Body) -> String {
    match body {
        Body::Whole(bytes) => format!("{} bytes", bytes.len()),
        Body::Broken(why) => format!("a body that could not be read ({why})"),
    }
}

/// Whether the tool has refused our fencing token.
///
/// That is a 412, as the token is the only precondition that we send, or a 409 that names a newer one.
fn is_stale(status: u16, ours: Option<u64>, newest: Option<u64>) -> bool {
    let Some(ours) = ours else { return false };
    status == 412 || (status == 409 && newest.is_some_and(|newest| newest > ours))
}

/// The table for HTTP answers, and the name of the row where it is not plain.
fn answered(
    tool: &Tool,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
    is_stale: bool,
) -> (Outcome, &'static str) {
    if let Some(declared) = tool.outcomes.get(&status) {
        return (
            by_declaration(tool, *declared, status, body, retry_after),
            ", as declared for this tool",
        );
    }
    match status {
        200..=299 => match tool.success.as_ref().map(|test| (test, passes(test, body))) {
            None | Some((_, Some(true))) => (Outcome::Executed(keep(body)), ""),
            Some((test, Some(false))) => {
                let outcome = by_declaration(tool, test.otherwise, status, body, retry_after);
                (outcome, ", which fails the tool's success test")
            }
            Some((_, None)) => (
                Outcome::Unknown,
                ", in which the tool's success test finds nothing",
            ),
        },
        303 => (Outcome::Executed(keep(body)), ""),
        _ if is_stale => (
            by_declaration(tool, Declared::Fenced, status, body, retry_after),
            ": the session's fencing token is not the newest",
        ),
        400..=406 | 409..=417 | 421 | 422 | 424 | 426 | 428 | 431 | 451 | 501 | 505 => (
            by_declaration(tool, Declared::Rejected, status, body, retry_after),
            "",
        ),
        425 | 429 => (
            by_declaration(tool, Declared::NotExecuted, status, body, retry_after),
            "",
        ),
        300..=399 => (Outcome::Unknown, "; redirects are never followed"),
        _ => (
            Outcome::Unknown,
            "; that does not prove that it was not executed",
        ),
    }
}

/// The answers of an API that its callers get as they are.
fn kept_by_proxy(tool: &Tool, body: &Body) -> Option<Bytes> {
    match keep(body) {
        Content::Kept(json) if tool.proxy.is_some() => Some(json),
        Content::Kept(_) | Content::Unavailable(_) => None,
    }
}

fn by_declaration(
    tool: &Tool,
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
        Declared::NotExecuted => {
            Outcome::NotExecuted(failure(FailureKind::Unavailable, kept_by_proxy(tool, body)))
        }
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

/// Whether the body passes the tool's success test; `None`: there is nothing to test.
///
/// So it is if the body is cut off or no JSON, or has nothing at the pointer. That proves neither.
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
