//! Evidence of an attempt, and the outcomes that evidence can prove.
//!
//! `rules::outcome` and `rules::mcp::evidence` have the tables from evidence to outcome.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;

use crate::key::Source;
use crate::record::{Content, Failure, FailureKind, Record, State};

/// The observations of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// No byte of the request was handed to a connection, and none will be.
    NotSent { why: String },
    /// The request was handed to a connection, and no complete status line came.
    NoAnswer { why: String },
    /// The gateway that made the attempt is gone and wrote no outcome.
    Lost { why: String },
    /// An MCP server has given a task with this id, which has not ended; says why it is not followed any more.
    Task { id: String, why: String },
    /// The tool answered.
    Answer {
        status: u16,
        body: Body,
        retry_after: Option<Duration>,
        /// The newest fencing token that the tool says it has seen.
        newest_token: Option<u64>,
    },
    /// An MCP server answered.
    Mcp(McpAnswer),
}

impl Evidence {
    /// The tool's status, if it answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. } | Self::Mcp(McpAnswer { status, .. }) => Some(*status),
            Self::NotSent { .. }
            | Self::NoAnswer { .. }
            | Self::Lost { .. }
            | Self::Task { .. } => None,
        }
    }

    /// Whether an MCP server has surely forgotten the session of the attempt.
    pub fn is_of_lost_session(&self) -> bool {
        matches!(self, Self::Mcp(answer) if answer.is_forgotten)
    }

    /// How long the tool asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Answer { retry_after, .. } = self else {
            return None;
        };
        *retry_after
    }
}

/// The body of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    Whole(Bytes),
    /// The body could not be read whole; says why.
    Broken(String),
}

/// How an attempt was sent: the facts beside its evidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Whether an earlier attempt of the same call may have been executed.
    pub earlier_attempt_may_have_run: bool,
    /// The fencing token that the attempt was sent with.
    pub fencing: Option<u64>,
    /// Whether a saga relies on the outcome: the call is one of its calls, or a compensation.
    pub must_be_sure: bool,
    /// Whether the call is a compensation: no client answers a question of the server.
    pub undoes: bool,
}

impl Sent {
    /// How a call's newest attempt was sent.
    ///
    /// A verified replay of a call that has succeeded is judged like a first attempt: it settles nothing.
    pub fn of(record: &Record) -> Self {
        let undoes = record.intent.key_source == Source::Compensation;
        Self {
            earlier_attempt_may_have_run: record.earlier_attempt_may_have_run
                && !matches!(record.state, State::Succeeded(_)),
            fencing: record.fencing,
            must_be_sure: !record.intent.saga_id.is_empty() || undoes,
            undoes,
        }
    }
}

/// What an attempt proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Executed(Content),
    NotExecuted(Failure),
    /// The call may have been executed.
    Unknown,
}

impl Outcome {
    /// Whether the tool gave a definite answer.
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Executed(_) => true,
            Self::NotExecuted(failure) => {
                matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
            }
            Self::Unknown => false,
        }
    }

    /// All values of [`as_str`](Self::as_str).
    pub const WORDS: [&str; 3] = ["executed", "not_executed", "unknown"];

    /// The outcome as one word, for ledger and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Executed(_) => "executed",
            Self::NotExecuted(_) => "not_executed",
            Self::Unknown => "unknown",
        }
    }
}

/// An answer of an MCP server, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The JSON-RPC response to our request, or another body.
    pub body: Body,
    /// Whether the request named a session of the server.
    pub has_session: bool,
    /// Whether the body is the response to the request, by its id.
    pub names_request: bool,
    /// Whether the server has surely forgotten the session or the revision: it had served a request before, and refused a
    /// question that executes nothing in the same way.
    pub is_forgotten: bool,
}

/// A body as one JSON text: JSON byte for byte, text as `{"text": …}`, anything else as `{"base64": …}`.
pub fn keep(body: &Body) -> Content {
    match body {
        Body::Broken(why) => Content::Unavailable(why.clone().into()),
        Body::Whole(bytes) => {
            let is_json = serde_json::from_slice::<&RawValue>(bytes).is_ok();
            if is_json {
                return Content::Stored(bytes.clone());
            }
            let wrapped = match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "text": text }),
                Err(_) => json!({ "base64": BASE64.encode(bytes) }),
            };
            Content::Stored(wrapped.to_string().into())
        }
    }
}
