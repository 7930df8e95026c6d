//! What was observed of a tool: answers, and how their effects are told apart.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::core::key::Pointer;
use crate::core::outcome::Outcome;
use crate::core::record::{Content, FailureKind};

/// What a trial says of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Proved,
    NotShown,
    Refuted,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Proved => "proved",
            Self::NotShown => "not shown",
            Self::Refuted => "refuted",
        })
    }
}

/// What a tool said to one request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Texts of the request that a tool may repeat: key, id of the call, and what was made for this key alone.
    pub sent: Vec<String>,
    pub status: Option<u16>,
    pub outcome: Outcome,
    /// What was observed, in a sentence.
    pub why: String,
}

impl Seen {
    /// Whether it is taken as executed.
    pub fn is_executed(&self) -> bool {
        matches!(self.outcome, Outcome::Executed(_))
    }

    pub(super) fn is_rejected(&self) -> bool {
        let Outcome::NotExecuted(failure) = &self.outcome else {
            return false;
        };
        matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
    }

    /// Whether it was surely not executed.
    pub fn is_refused(&self) -> bool {
        self.status.is_some() && matches!(self.outcome, Outcome::NotExecuted(_))
    }

    /// Whether the same request may get a result when an earlier one has ended.
    pub fn is_refused_for_now(&self) -> bool {
        self.is_refused() && matches!(self.status, Some(409 | 425 | 429))
    }

    /// What it answered, if that can be looked into.
    pub fn result(&self) -> Option<Value> {
        match &self.outcome {
            Outcome::Executed(Content::Kept(json)) => serde_json::from_slice(json).ok(),
            _ => None,
        }
    }
}

/// Requests under one key.
#[derive(Debug, Clone)]
pub struct Step {
    pub seen: Vec<Seen>,
    /// By how much the operator's count has changed meanwhile.
    pub change: Option<i64>,
}

/// How effects are told apart.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// Where a result has the id of its effect.
    pub id: Option<Pointer>,
    /// What of results differs by itself.
    pub ignore: Vec<Pointer>,
    /// What of results is not shown.
    pub hidden: Vec<Pointer>,
}
