//! Observations of a tool: answers, and how to tell their effects apart.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::key::Pointer;
use crate::outcome::Outcome;
use crate::record::{Content, FailureKind};
use crate::replay;

/// The verdict of a trial on a claim.
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

/// A verdict with its reason in one sentence.
pub(super) type Judgement = (Verdict, String);

pub(super) fn proved(why: impl Into<String>) -> Judgement {
    (Verdict::Proved, why.into())
}

pub(super) fn not_shown(why: impl Into<String>) -> Judgement {
    (Verdict::NotShown, why.into())
}

pub(super) fn refuted(why: impl Into<String>) -> Judgement {
    (Verdict::Refuted, why.into())
}

/// The tool's answer to one request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Texts of the request that a tool may repeat: key, call id, and texts made for the key.
    pub sent: Vec<String>,
    pub status: Option<u16>,
    pub outcome: Outcome,
    /// The observation, in a sentence.
    pub why: String,
}

impl Seen {
    /// Whether the request counts as executed.
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

    /// Whether the same request may get a result once an earlier one has ended.
    pub fn is_refused_for_now(&self) -> bool {
        self.is_refused() && matches!(self.status, Some(409 | 425 | 429))
    }

    /// The result, if it can be read.
    pub fn result(&self) -> Option<Value> {
        match &self.outcome {
            Outcome::Executed(Content::Stored(json)) => serde_json::from_slice(json).ok(),
            _ => None,
        }
    }
}

/// Requests under one key.
#[derive(Debug, Clone)]
pub struct Step {
    pub seen: Vec<Seen>,
    /// How much the operator's count changed meanwhile.
    pub change: Option<i64>,
}

impl Step {
    /// Whether one of the requests was executed.
    pub(super) fn is_executed(&self) -> bool {
        self.seen.iter().any(Seen::is_executed)
    }

    /// The results that can be read.
    pub(super) fn results(&self) -> impl Iterator<Item = Value> {
        self.seen.iter().filter_map(Seen::result)
    }

    pub(super) fn has_changed_the_count(&self) -> bool {
        self.change.is_some_and(|change| change != 0)
    }
}

/// How effects are told apart.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// The pointer to the id of the effect in a result.
    pub id: Option<Pointer>,
    /// Parts of results that differ by themselves.
    pub ignore: Vec<Pointer>,
    /// Parts of results that are not shown.
    pub hidden: Vec<Pointer>,
}

impl Naming {
    /// The places at which two results differ, without those that differ by themselves.
    pub(super) fn differences(&self, one: &Value, other: &Value) -> Vec<String> {
        let (one, other) = (one.to_string(), other.to_string());
        replay::differences(one.as_bytes(), other.as_bytes(), &self.ignore)
    }
}
