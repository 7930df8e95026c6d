//! What an attempt proved: one table from evidence to outcome.
//!
//! The rule: unknown unless positive evidence proves more. Must not know what is done with an outcome.

pub mod evidence; // what was observed of an attempt
pub mod replay; // whether a tool gives the same answer as before
pub mod unknown; // when an unknown call is checked, and what a probe proves

use std::time::Duration;

use serde_json::Value;

pub use crate::evidence::{Body, Evidence, Outcome, Sent, keep};
use crate::json;
use crate::mcp::{self, elicitation};
use crate::proxy::payment::is_receipt;
use crate::proxy::reply::Reply;
use crate::record::{Content, Failure, FailureKind};
use crate::tool::{Declared, Dedup, Effect, Errors, RequestErrors, SuccessTest, Tool, ToolError};

/// Whether the evidence shows a working tool, whatever it proves of the call.
///
/// A refusal shows one, too, but "too many requests" and "too late" do not.
pub fn is_sign_of_life(evidence: &Evidence) -> bool {
    if let Evidence::Mcp(answer) = evidence {
        let errors = Errors {
            request_errors: RequestErrors::Rejected,
            ..Errors::default()
        };
        let refuses =
            (400..500).contains(&answer.status) && !matches!(answer.status, 408 | 425 | 429);
        return refuses || mcp::evidence::classify(answer, errors, None).0.is_healthy();
    }
    if let Evidence::Task { .. } = evidence {
        return true;
    }
    let is_sign = |status| status < 500 && !matches!(status, 408 | 425 | 429);
    evidence.status().is_some_and(is_sign)
}

/// What the evidence proves, by the tool's configuration, and why.
///
/// If an earlier attempt of the same call may have been executed, no answer to a later attempt proves that
/// the call was not executed: "already exists" may be the effect of the earlier one.
pub fn classify(tool: &Tool, evidence: &Evidence, sent: Sent) -> (Outcome, String) {
    let (outcome, why) = match evidence {
        Evidence::NotSent { why } => {
            let failure = Failure::new(FailureKind::Unreachable, why);
            let why = format!("nothing was sent: {why}");
            (Outcome::NotExecuted(failure), why)
        }
        Evidence::NoAnswer { why } => {
            let why = format!("the request was sent and not answered: {why}");
            (Outcome::Unknown, why)
        }
        Evidence::Lost { why } => {
            let why = format!("no gateway has seen how the attempt ended: {why}");
            (Outcome::Unknown, why)
        }
        Evidence::Task { why, .. } => {
            let why = format!("the server has given a task for the call: {why}");
            (Outcome::Unknown, why)
        }
        Evidence::Answer {
            status,
            body,
            retry_after,
            newest_token,
        } => {
            // A proxied API gets no fencing token.
            let is_stale = !tool.is_proxy() && is_stale(*status, sent.fencing, *newest_token);
            let (meaning, rule) = meaning(tool, *status, body, is_stale);
            // Callers are not sent away for longer than a call may take, whatever the tool says.
            let retry_after = retry_after.map(|wait| wait.min(tool.deadline));
            let outcome = outcome_of(meaning, tool, *status, body, retry_after);
            let body = match body {
                Body::Whole(bytes) => format!("{} bytes", bytes.len()),
                Body::Broken(why) => format!("a body that could not be read ({why})"),
            };
            let why = format!("the tool answered {status} with {body}{rule}");
            (outcome, why)
        }
        Evidence::Mcp(answer) => {
            let declared = tool.outcomes.get(&answer.status).copied();
            mcp::evidence::classify(answer, errors(tool, sent), declared)
        }
    };
    match outcome {
        Outcome::NotExecuted(_) if sent.earlier_attempt_may_have_run => (
            Outcome::Unknown,
            format!("{why}; but an earlier attempt may have been executed"),
        ),
        Outcome::Executed(Content::Stored(json))
            if (sent.earlier_attempt_may_have_run || sent.undoes)
                && tool.may_ask()
                && elicitation::asked(&json).is_some() =>
        {
            let why = format!("{why}, which do not prove that nothing was executed before them");
            (Outcome::Unknown, why)
        }
        outcome => (outcome, why),
    }
}

/// Whether the tool itself says that it did not execute a call, and nothing else shows it.
///
/// A tool may say "too early" or "too many requests" after its effect. So the gateway does not repeat such a call by itself,
/// unless a repetition does no harm, or the operator has declared what the status means.
pub fn is_mere_word(tool: &Tool, failure: &Failure) -> bool {
    let says_later = failure.status.filter(|status| matches!(status, 425 | 429));
    let is_harmless = tool.effect == Effect::Read || tool.dedup == Dedup::Key;
    says_later.is_some_and(|status| !is_harmless && !tool.outcomes.contains_key(&status))
}

/// The meaning of an MCP server's errors for this attempt.
///
/// A saga undoes executed calls, and a compensation must have been executed: for both an error as the
/// result leaves the outcome unknown.
fn errors(tool: &Tool, sent: Sent) -> Errors {
    let must_be_sure = sent.must_be_sure && tool.effect == Effect::Write;
    let mut errors = Errors {
        strict: tool.is_strict(),
        ..tool.errors()
    };
    if must_be_sure && errors.tool_error == ToolError::Remember {
        errors.tool_error = ToolError::Unknown;
    }
    errors
}

/// Whether the tool has refused our fencing token.
///
/// That is a 412, because the token is the only precondition that we send, or a 409 that names a newer one.
fn is_stale(status: u16, ours: Option<u64>, newest: Option<u64>) -> bool {
    let Some(ours) = ours else { return false };
    status == 412 || (status == 409 && newest.is_some_and(|newest| newest > ours))
}

/// The table for HTTP answers: what an answer means, and the reason where the status alone does not give it.
fn meaning(tool: &Tool, status: u16, body: &Body, is_stale: bool) -> (Declared, &'static str) {
    if let Some(declared) = tool.outcomes.get(&status) {
        return (*declared, ", as declared for this tool");
    }
    match status {
        200..=299 => match tool.success.as_ref().map(|test| (test, passes(test, body))) {
            None | Some((_, Some(true))) => (Declared::Executed, ""),
            Some((test, Some(false))) => (test.otherwise, ", which fails the tool's success test"),
            Some((_, None)) => (
                Declared::Unknown,
                ", in which the tool's success test finds nothing",
            ),
        },
        _ if tool.is_strict() => (
            Declared::Unknown,
            "; by outcomes = \"strict\" that proves nothing",
        ),
        303 => (Declared::Executed, ""),
        _ if is_stale => (
            Declared::Fenced,
            ": the session's fencing token is not the newest",
        ),
        402 if tool.is_proxy() && !is_untried(body) => (
            Declared::Unknown,
            "; a payment was tried, so the API may have executed the call before it",
        ),
        400..=406 | 409..=417 | 421 | 422 | 424 | 426 | 428 | 431 | 451 | 501 | 505 => {
            (Declared::Rejected, "")
        }
        425 | 429 => (Declared::NotExecuted, ""),
        300..=399 => (Declared::Unknown, "; redirects are never followed"),
        _ => (
            Declared::Unknown,
            "; that does not prove that it was not executed",
        ),
    }
}

/// Whether an API's demand for a payment says nothing of one that it has tried.
///
/// A server may execute first, settle then, and answer 402 because it could not settle: with a receipt that says so.
fn is_untried(body: &Body) -> bool {
    let Body::Whole(json) = body else {
        return false;
    };
    let reply = Reply::read(json);
    let is_receipt = |(name, _): &(String, String)| is_receipt(name);
    reply.is_some_and(|reply| !reply.headers.iter().any(is_receipt))
}

/// The outcome of an HTTP answer with this meaning.
fn outcome_of(
    meaning: Declared,
    tool: &Tool,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
) -> Outcome {
    let stored = || keep(body).stored().cloned();
    let failure = |kind, body| {
        Outcome::NotExecuted(Failure {
            kind,
            status: Some(status),
            body,
            sealed: None,
            retry_after,
            why: format!("the tool answered {status}"),
        })
    };
    match meaning {
        Declared::Executed => Outcome::Executed(keep(body)),
        Declared::NotExecuted => {
            // The callers of a proxied API get every answer as it is.
            let body = stored().filter(|_| tool.is_proxy());
            failure(FailureKind::Unavailable, body)
        }
        Declared::Rejected => failure(FailureKind::Rejected, stored()),
        Declared::Fenced => failure(FailureKind::Fenced, stored()),
        Declared::Unknown => Outcome::Unknown,
    }
}

/// Whether the body passes the tool's success test; `None`: the test proves nothing.
///
/// It proves nothing if the body is cut off, is not JSON, or has no value at the pointer.
pub(super) fn passes(test: &SuccessTest, body: &Body) -> Option<bool> {
    let Body::Whole(bytes) = body else {
        return None;
    };
    let found = json::at(str::from_utf8(bytes).ok()?, test.pointer.steps()).ok()??;
    let found = &json::read(found.as_bytes()).ok()?;
    Some(match (found, &test.equals) {
        (Value::Number(found), Value::Number(asked)) => found.as_f64() == asked.as_f64(),
        (found, asked) => found == asked,
    })
}

#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod tests;
