//! The state of a call: how far it is, its result, and why it failed.

use std::time::Duration;

use bytes::Bytes;

use crate::words::words;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Running,
    Succeeded(Content),
    /// The call surely had no effect. The same key may run again.
    Failed(Failure),
    /// The call may have been executed; says why the outcome is unknown.
    Unknown(String),
    /// The call is being undone. Here and below: its result, if that is known.
    Compensating(Option<Content>),
    /// The call is undone, or it surely never ran and never will.
    Compensated(Option<Content>),
    /// The call could not be undone: it needs an operator.
    Stuck(Option<Content>),
    /// The call waits for approval. It was not sent.
    Proposed,
    /// The call is approved, and has not begun.
    Approved,
}

impl State {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded(_) => "succeeded",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
            Self::Compensating(_) => "compensating",
            Self::Compensated(_) => "compensated",
            Self::Stuck(_) => "stuck",
            Self::Proposed => "proposed",
            Self::Approved => "approved",
        }
    }

    /// Whether the call waits for approval, or is approved and has not begun. Nothing was sent.
    pub fn waits_for_approval(&self) -> bool {
        matches!(self, Self::Proposed | Self::Approved)
    }

    /// The result of the call, if it has one.
    pub fn content(&self) -> Option<&Content> {
        match self {
            Self::Succeeded(content) => Some(content),
            Self::Compensating(content) | Self::Compensated(content) | Self::Stuck(content) => {
                content.as_ref()
            }
            Self::Running
            | Self::Failed(_)
            | Self::Unknown(_)
            | Self::Proposed
            | Self::Approved => None,
        }
    }

    /// The kept answer of the tool: a result, or the body of a failure.
    pub fn stored(&self) -> Option<&Bytes> {
        match self {
            Self::Failed(failure) => failure.body.as_ref(),
            state => state.content()?.stored(),
        }
    }

    /// The bytes of the tool's answer, encrypted or not.
    pub fn answer_bytes(&self) -> usize {
        let sealed = match self {
            Self::Failed(failure) => failure.sealed.as_ref(),
            state => match state.content() {
                Some(Content::Unavailable(unread)) => unread.sealed.as_ref(),
                _ => None,
            },
        };
        self.stored().or(sealed).map_or(0, Bytes::len)
    }

    /// The kept answer of the tool, as a mutable reference.
    pub fn stored_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Failed(failure) => failure.body.as_mut(),
            state => match state.content_mut()? {
                Content::Stored(json) => Some(json),
                Content::Unavailable(_) => None,
            },
        }
    }

    /// The result of the call, as a mutable reference.
    pub fn content_mut(&mut self) -> Option<&mut Content> {
        match self {
            Self::Succeeded(content) => Some(content),
            Self::Compensating(content) | Self::Compensated(content) | Self::Stuck(content) => {
                content.as_mut()
            }
            Self::Running
            | Self::Failed(_)
            | Self::Unknown(_)
            | Self::Proposed
            | Self::Approved => None,
        }
    }
}

/// The kept answer of an executed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// One JSON text: the tool's own, byte for byte, or a wrapper around another body.
    Stored(Bytes),
    /// The tool executed, but its answer cannot be read.
    Unavailable(Unread),
}

/// A result that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unread {
    /// A sentence for an engineer; nothing secret.
    pub why: String,
    /// The encrypted result, if no key decrypts it. Writes keep it: the key may come back.
    pub sealed: Option<Bytes>,
}

impl<T: Into<String>> From<T> for Unread {
    fn from(why: T) -> Self {
        let why = why.into();
        Self { why, sealed: None }
    }
}

impl Content {
    pub fn stored(&self) -> Option<&Bytes> {
        match self {
            Self::Stored(json) => Some(json),
            Self::Unavailable(_) => None,
        }
    }
}

/// The reason why a call surely had no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// The tool's status, if it answered.
    pub status: Option<u16>,
    /// The tool's body as one JSON text, if it answered with a rejection.
    pub body: Option<Bytes>,
    /// The encrypted body, if no key decrypts it. Writes keep it: the key may come back.
    pub sealed: Option<Bytes>,
    /// How long the tool asked to wait.
    pub retry_after: Option<Duration>,
    /// A sentence for an engineer; nothing secret.
    pub why: String,
}

impl Failure {
    /// A failure about which the tool has said nothing.
    pub fn new(kind: FailureKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            body: None,
            sealed: None,
            retry_after: None,
            why: why.into(),
        }
    }
}

words! {
    /// The kinds of failures. The order of the values is stored: new ones go to the end.
    pub enum FailureKind {
        /// The tool refused this request. Never retried by the gateway.
        Rejected = "rejected",
        /// The tool has seen a newer fencing token of the session. Never retried by the gateway.
        Fenced = "fenced",
        /// The tool could not be reached.
        Unreachable = "unreachable",
        /// The tool was reached, but did not take the request now.
        Unavailable = "unavailable",
        /// The call was unknown, and turned out not to have been executed.
        NotExecuted = "not_executed",
        /// The saga is closed. The call was never sent, and never will be.
        SagaClosed = "saga_closed",
        /// An approver declined the call. It was never sent.
        Declined = "declined",
        /// The call was not approved, or did not begin, in time. It was never sent.
        Lapsed = "lapsed",
        /// The call was taken back before it was sent.
        Withdrawn = "withdrawn",
    }
}
