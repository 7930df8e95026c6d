//! A case: an anomaly with the work on it, and how it is stored.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::listed::{Act, Listed, Showing, State, adoptable};
use crate::rules::{Anomaly, Doubt, Kind};
use oncegate_rules::document::{self, Document, Kind as DocumentKind};
use oncegate_rules::key::Pointer;
use oncegate_rules::record::CallId;
use oncegate_rules::time::{after, micros};
use oncegate_rules::work::{Blocked, Due, NotDue, Work};

/// Most bytes of an item that is kept in case an operator wants its effect undone.
const MAX_STORED: usize = 16 << 10;

/// The compensation for an effect: tool, key and arguments.
///
/// A compensation with another key would undo the effect a second time.
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
    /// The item of the source, if an act needs it or may need it. Of a call to be settled: its result.
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

/// An event that does not fit the state of a case. Changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Illegal {
    /// The case stays as it is.
    Unchanged,
    NotDue,
    /// Another act was done or begun, or the request cannot be met; says why.
    Contrary(String),
}

impl From<NotDue> for Illegal {
    fn from(_: NotDue) -> Self {
        Self::NotDue
    }
}

/// The members of a case that are not columns of its document.
#[derive(Serialize, Deserialize)]
struct Body {
    reconciliation: String,
    run: String,
    listed: Listed,
    effect: Option<Value>,
    #[serde(default)]
    undoing: Option<Undoing>,
    #[serde(default, with = "micros::optional")]
    found_at: Option<Timestamp>,
    #[serde(default)]
    decides: bool,
    tries: u32,
    #[serde(default)]
    waits: u32,
    error: Option<String>,
    #[serde(default)]
    is_taken: bool,
}

/// The configuration's part in a new case.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The operator's act for anomalies of its kind.
    pub wanted: Option<Act>,
    /// The pointer to the result of an item's call.
    pub result: Option<Pointer>,
    pub showing: Showing,
    pub retention: SignedDuration,
}

impl Case {
    /// A new case with the act for an anomaly.
    pub fn new(
        reconciliation: &str,
        run: &str,
        anomaly: &Anomaly,
        terms: &Terms,
        now: Timestamp,
    ) -> Self {
        let action = match terms.wanted.unwrap_or(Act::Report) {
            _ if anomaly.kind == Kind::Settled => Act::Settle,
            // Nothing is undone on a guess.
            Act::Compensate if anomaly.doubt.is_some() => Act::Report,
            Act::Adopt => {
                let (call_id, rival) = (anomaly.call_id, anomaly.rival.as_ref());
                match adoptable(anomaly.kind, call_id, &anomaly.key, rival) {
                    // Any other doubt is harmless: the claim of the key finds each call that has it.
                    Ok(()) if anomaly.doubt != Some(Doubt::Silent) => Act::Adopt,
                    _ => Act::Report,
                }
            }
            wanted => wanted,
        };
        let mut listed = Listed::of(reconciliation, anomaly, action);
        if let Some(doubt) = anomaly.doubt
            && action != Act::Adopt
        {
            listed.detail += &format!("; {doubt}, so nothing is undone");
        }
        let item = anomaly.item.as_ref();
        let is_short = item.is_some_and(|item| item.raw.len() <= MAX_STORED);
        let item = item.and_then(|item| serde_json::from_slice::<Value>(&item.raw).ok());
        if let Some(item) = &item {
            listed = listed.showing(item, &terms.showing);
        }
        let effect = match (action, &terms.result) {
            // An operator may ask for its compensation.
            (Act::Report | Act::Webhook, _) => {
                item.filter(|_| is_short && anomaly.kind.is_surplus())
            }
            (Act::Settle, Some(pointer)) => {
                item.and_then(|item| item.pointer(pointer.as_str()).cloned())
            }
            (Act::Compensate | Act::Settle | Act::Adopt, _) => item,
        };
        let state = listed.state;
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
            work: state.work(now),
            version: 1,
            created_at: now,
            retain_until: (state != State::Open).then(|| after(now, terms.retention)),
        }
    }

    /// The anomaly as a report lists it now. `new`: whether the report's run has found it first.
    pub fn listed_now(self, new: bool) -> Listed {
        Listed {
            state: self.state,
            error: self.error,
            new,
            ..self.listed
        }
    }

    /// The call that its effect was adopted as.
    pub fn adopted_as(&self) -> Option<CallId> {
        let is_adopted = self.state == State::Done && self.listed.action == Act::Adopt;
        self.listed.call().filter(|_| is_adopted)
    }

    /// Since when the act is wanted.
    pub(super) fn wanted_since(&self) -> Timestamp {
        let acted = self.listed.acted.as_ref();
        let acted = acted.and_then(|acted| Timestamp::from_microsecond(acted.at).ok());
        acted.map_or(self.found_at, |at| at.max(self.found_at))
    }

    /// The stored compensation, if it is the one that would be made now.
    ///
    /// # Errors
    /// Why it must not be sent.
    pub fn undoing(&self, now: &Undoing) -> Result<&Undoing, Blocked> {
        let Some(decided) = &self.undoing else {
            return Err(Blocked::busy("how it is undone could not be written down"));
        };
        if !self.decides && self.work.tries > 1 {
            return Err(Blocked::for_good(
                "an older version of the gateway may have begun to undo it in another way",
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
        let body = Body {
            reconciliation: self.reconciliation.clone(),
            run: self.run.clone(),
            listed: self.listed.clone(),
            effect: self.effect.clone(),
            undoing: self.undoing.clone(),
            found_at: Some(self.found_at),
            decides: self.decides,
            tries: self.work.tries,
            waits: self.work.waits,
            error: self.error.clone(),
            is_taken: self.work.due.is_taken(),
        };
        let (id, state) = (&self.listed.id, self.state.as_str());
        let body = document::body(&body);
        Document {
            version: self.version,
            due_at: self.work.due.at(),
            retain_until: self.retain_until,
            ..Document::new(DocumentKind::Anomaly, id, state, self.created_at, body)
        }
    }

    /// `None`: this version cannot read the document.
    pub fn from_document(document: &Document) -> Option<Self> {
        let body: Body = serde_json::from_slice(&document.body).ok()?;
        Some(Self {
            reconciliation: body.reconciliation,
            run: body.run,
            listed: body.listed,
            effect: body.effect,
            undoing: body.undoing,
            found_at: body.found_at.unwrap_or(document.created_at),
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
