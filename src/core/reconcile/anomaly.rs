//! An anomaly as a stored case, and its states.
//!
//! Each is a document, and gateways compete for it like for any other [`Work`].

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Anomaly, Kind};
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::key::Pointer;
use crate::core::record::CallId;
use crate::core::time::after;
use crate::core::work::{self, Blocked, Blocker, Due, Work};

/// How many tries to undo, and the waits between them.
const TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The configured action for anomalies of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Show, count and log it.
    Report,
    /// Undo the call, or the surplus effect.
    Compensate,
    /// Tell the webhook.
    Webhook,
}

/// The act for one anomaly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    Report,
    Compensate,
    Webhook,
    Settle,
}

impl Act {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Compensate => "compensate",
            Self::Webhook => "webhook",
            Self::Settle => "settle",
        }
    }
}

/// The state of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is to be done.
    Reported,
    /// Something is to be done.
    Open,
    Done,
    GivenUp,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Reported, Self::Open, Self::Done, Self::GivenUp];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Open => "open",
            Self::Done => "done",
            Self::GivenUp => "given_up",
        }
    }

    fn first(act: Act) -> Self {
        match act {
            Act::Report => Self::Reported,
            Act::Compensate | Act::Webhook | Act::Settle => Self::Open,
        }
    }

    /// The state with this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// One anomaly in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name, the same in every run.
    pub id: String,
    pub kind: Kind,
    pub source: String,
    pub key: String,
    pub call_id: Option<String>,
    /// The id of the effect at the source, or of the call.
    pub effect: String,
    pub detail: String,
    pub action: Act,
    pub state: State,
    /// Why the act is not done yet.
    pub error: Option<String>,
    /// Whether no run had found it before.
    pub new: bool,
}

impl Listed {
    pub fn of(reconciliation: &str, anomaly: &Anomaly, action: Act) -> Self {
        Self {
            id: anomaly.name(reconciliation),
            kind: anomaly.kind,
            source: anomaly.source.clone(),
            key: anomaly.key.clone(),
            call_id: anomaly.call_id.map(|call_id| call_id.to_string()),
            effect: anomaly.id.clone(),
            detail: anomaly.detail.clone(),
            action,
            state: State::first(action),
            error: None,
            new: false,
        }
    }

    /// The call of the anomaly.
    pub fn call(&self) -> Option<CallId> {
        self.call_id.as_ref()?.parse().ok().map(CallId)
    }
}

/// The key and the id of a compensation for an effect.
///
/// A compensation with another key would undo the effect again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Undoing {
    pub tool: String,
    pub key: String,
    pub args: Value,
}

/// An anomaly as it is kept and worked on.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub reconciliation: String,
    /// The run that found it.
    pub run: String,
    pub listed: Listed,
    /// The item of the source, as far as it is needed. Of a call to be settled: its result.
    pub effect: Option<Value>,
    /// The compensation of the effect: decided once, before anything is sent.
    pub undoing: Option<Undoing>,
    /// When the run that asks for the act found it.
    pub found_at: Timestamp,
    /// Whether the compensation is decided before it is sent. False in older documents.
    pub decides: bool,
    pub error: Option<String>,
    pub state: State,
    pub work: Work,
    /// Rises by one with every change, for compare-and-swap. The first is 1.
    pub version: u64,
    pub created_at: Timestamp,
    pub retain_until: Option<Timestamp>,
}

/// The members of a case that its document has no place for.
///
/// Times are microseconds since 1970 in UTC.
#[derive(Serialize, Deserialize)]
struct Body {
    reconciliation: String,
    run: String,
    listed: Listed,
    effect: Option<Value>,
    #[serde(default)]
    undoing: Option<Undoing>,
    #[serde(default)]
    found_at: Option<i64>,
    #[serde(default)]
    decides: bool,
    tries: u32,
    #[serde(default)]
    waits: u32,
    error: Option<String>,
    #[serde(default)]
    is_taken: bool,
}

/// An event of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A run has found the anomaly again.
    ///
    /// `again` is the case as it would be made now. `by_person`: an operator asked for that run.
    Found { again: Box<Case>, by_person: bool },
    /// A gateway begins to work on it. `undoing`: the compensation, if it can be decided now.
    Taken {
        until: Timestamp,
        undoing: Option<Undoing>,
    },
    /// The gateway that worked on it has ended, and no other works on it.
    Freed,
    /// The work on it ended. `jitter` is random, of 0..1.
    Ended {
        end: Result<End, Blocked>,
        jitter: f64,
    },
}

/// How the work on a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Done,
    /// The configuration does not ask for the act any more.
    Unwanted,
}

/// An event that does not fit the state. Changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Illegal {
    /// The case stays as it is.
    Kept,
    NotDue,
}

impl From<work::NotDue> for Illegal {
    fn from(_: work::NotDue) -> Self {
        Self::NotDue
    }
}

/// Decides what an event does to a case.
///
/// `retention`: how long it is worked on, and then kept.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(
    case: &Case,
    event: &Event,
    retention: SignedDuration,
    now: Timestamp,
) -> Result<Case, Illegal> {
    let changed = Case {
        version: case.version + 1,
        ..case.clone()
    };
    let policy = work::Policy {
        // A webhook may be down for long.
        tries: (case.listed.action != Act::Webhook).then_some(TRIES),
        waits: None,
        base: FIRST_PAUSE,
        max: LONGEST_PAUSE,
        postponed_by: None,
    };
    Ok(match event {
        Event::Found { again, by_person } if is_reopened(case.state, &again.listed, *by_person) => {
            Case {
                // What was decided on stays: it may have been begun.
                undoing: case.undoing.clone(),
                decides: case.decides,
                found_at: now,
                work: Work::due_at(now),
                version: changed.version,
                created_at: case.created_at,
                ..(**again).clone()
            }
        }
        Event::Found { .. } => return Err(Illegal::Kept),
        Event::Taken { until, undoing } => {
            let taken = work::Event::Taken { until: *until };
            let work = case.work.next(&taken, &policy, now)?.work;
            Case {
                // It counts from now on: a gateway that ends in the middle has tried it.
                work: Work {
                    tries: work.tries + 1,
                    ..work
                },
                undoing: case.undoing.clone().or_else(|| undoing.clone()),
                ..changed
            }
        }
        Event::Freed => Case {
            work: case.work.next(&work::Event::Freed, &policy, now)?.work,
            ..changed
        },
        // Only what was taken can end.
        Event::Ended { .. } if !case.work.due.is_taken() => return Err(Illegal::NotDue),
        Event::Ended { end, jitter } => {
            let rests = |state, error| Case {
                state,
                error,
                work: Work {
                    due: Due::Never,
                    ..case.work
                },
                retain_until: Some(after(now, retention)),
                ..changed.clone()
            };
            let blocked = match end {
                Ok(End::Done) => return Ok(rests(State::Done, None)),
                Ok(End::Unwanted) => return Ok(rests(State::Reported, None)),
                Err(blocked) => blocked,
            };
            let blocker = match blocked.blocker {
                // How it ended is looked for again; that is no try.
                Blocker::Unknown => Blocker::Busy,
                blocker => blocker,
            };
            let before = Work {
                tries: case.work.tries.saturating_sub(1),
                ..case.work
            };
            let jitter = *jitter;
            let event = work::Event::Blocked { blocker, jitter };
            let next = before.next(&event, &policy, now)?;
            let error = Some(blocked.why.clone());
            if next.gives_up || after(case.found_at, retention) <= now {
                return Ok(rests(State::GivenUp, error));
            }
            Case {
                work: next.work,
                error,
                ..changed
            }
        }
    })
}

/// Whether a rediscovered anomaly is worked on again.
///
/// Always if it was only reported, or was to settle a call that is still unknown; if given up, only on request.
fn is_reopened(state: State, again: &Listed, by_person: bool) -> bool {
    again.action != Act::Report
        && match state {
            State::Reported => true,
            State::Done => again.action == Act::Settle,
            State::GivenUp => by_person,
            State::Open => false,
        }
}

impl Case {
    /// A new case with the act for an anomaly.
    ///
    /// `wanted`: what the operator wants done about its kind. `result`: where an item has the result of its call.
    pub fn new(
        reconciliation: &str,
        run: &str,
        anomaly: &Anomaly,
        wanted: Option<Action>,
        result: Option<&Pointer>,
        retention: SignedDuration,
        now: Timestamp,
    ) -> Self {
        let action = match (anomaly.kind, wanted) {
            (Kind::Settled, _) => Act::Settle,
            // Nothing is undone on a guess.
            (_, Some(Action::Compensate)) if anomaly.doubt.is_some() => Act::Report,
            (_, Some(Action::Compensate)) => Act::Compensate,
            (_, Some(Action::Webhook)) => Act::Webhook,
            (_, Some(Action::Report) | None) => Act::Report,
        };
        let mut listed = Listed::of(reconciliation, anomaly, action);
        if let Some(doubt) = anomaly.doubt {
            listed.detail += &format!("; {doubt}, so nothing is undone");
        }
        let item = || {
            let item = anomaly.item.as_ref()?;
            serde_json::from_slice::<Value>(&item.raw).ok()
        };
        let effect = match (action, result) {
            (Act::Report | Act::Webhook, _) => None,
            (Act::Settle, Some(pointer)) => {
                item().and_then(|item| item.pointer(pointer.as_str()).cloned())
            }
            (Act::Compensate | Act::Settle, _) => item(),
        };
        let state = listed.state;
        let is_open = state == State::Open;
        let due = if is_open { Due::At(now) } else { Due::Never };
        Self {
            reconciliation: reconciliation.to_owned(),
            run: run.to_owned(),
            listed,
            effect,
            undoing: None,
            found_at: now,
            decides: true,
            error: None,
            state,
            work: Work {
                due,
                ..Work::due_at(now)
            },
            version: 1,
            created_at: now,
            retain_until: (!is_open).then(|| after(now, retention)),
        }
    }

    /// The stored compensation, if it is the one that would be made now.
    ///
    /// # Errors
    /// What blocks that.
    pub fn undoing(&self, now: &Undoing) -> Result<&Undoing, Blocked> {
        let Some(decided) = &self.undoing else {
            return Err(Blocked::busy("how it is undone could not be written down"));
        };
        if !self.decides && self.work.tries > 1 {
            return Err(Blocked::for_good(
                "a gateway of before may have begun to undo it in another way",
            ));
        }
        if now != decided {
            return Err(Blocked::for_good(
                "it would be undone in another way than was decided on",
            ));
        }
        Ok(decided)
    }

    /// The case as a document.
    pub fn to_document(&self) -> Document {
        let (due_at, is_taken) = self.work.due.to_parts();
        let body = Body {
            reconciliation: self.reconciliation.clone(),
            run: self.run.clone(),
            listed: self.listed.clone(),
            effect: self.effect.clone(),
            undoing: self.undoing.clone(),
            found_at: Some(self.found_at.as_microsecond()),
            decides: self.decides,
            tries: self.work.tries,
            waits: self.work.waits,
            error: self.error.clone(),
            is_taken,
        };
        Document {
            kind: DocumentKind::Anomaly,
            tenant: String::new(),
            id: self.listed.id.clone(),
            version: self.version,
            state: self.state.as_str().to_owned(),
            created_at: self.created_at,
            due_at,
            retain_until: self.retain_until,
            body: serde_json::to_vec(&body).unwrap_or_default().into(),
        }
    }

    /// `None`: this version cannot read the document.
    pub fn from_document(document: &Document) -> Option<Self> {
        let body: Body = serde_json::from_slice(&document.body).ok()?;
        let found_at = body.found_at.map(Timestamp::from_microsecond);
        Some(Self {
            reconciliation: body.reconciliation,
            run: body.run,
            listed: body.listed,
            effect: body.effect,
            undoing: body.undoing,
            found_at: found_at.transpose().ok()?.unwrap_or(document.created_at),
            decides: body.decides,
            error: body.error,
            state: State::of(&document.state)?,
            work: Work {
                due: Due::from_parts(document.due_at, body.is_taken),
                tries: body.tries,
                waits: body.waits,
            },
            version: document.version,
            created_at: document.created_at,
            retain_until: document.retain_until,
        })
    }
}

#[cfg(test)]
#[path = "anomaly_tests.rs"]
mod tests;
