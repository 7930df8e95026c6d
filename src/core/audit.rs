//! The acts of persons: what was done to what, by which token, and why. Values only.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::Caller;
use super::document::{Document, Kind};
use super::reconcile::anomaly::Request;
use super::record::CallId;
use super::saga::SagaId;
use super::session::SessionId;

/// The kinds of acts, by their words on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Pause,
    Resume,
    Freeze,
    Thaw,
    Unlock,
    Resolve,
    Probe,
    Verify,
    Compensate,
    Complete,
    Abort,
    Retry,
    Skip,
    Reconcile,
    Ignore,
    Adopt,
    AcceptLoss,
}

impl Deed {
    pub const ALL: [Self; 17] = [
        Self::Pause,
        Self::Resume,
        Self::Freeze,
        Self::Thaw,
        Self::Unlock,
        Self::Resolve,
        Self::Probe,
        Self::Verify,
        Self::Compensate,
        Self::Complete,
        Self::Abort,
        Self::Retry,
        Self::Skip,
        Self::Reconcile,
        Self::Ignore,
        Self::Adopt,
        Self::AcceptLoss,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::Unlock => "unlock",
            Self::Resolve => "resolve",
            Self::Probe => "probe",
            Self::Verify => "verify",
            Self::Compensate => "compensate",
            Self::Complete => "complete",
            Self::Abort => "abort",
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Reconcile => "reconcile",
            Self::Ignore => "ignore",
            Self::Adopt => "adopt",
            Self::AcceptLoss => "accept-loss",
        }
    }
}

/// The target of an act, without its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Tool(String),
    Session(String),
    Saga(String),
    Call {
        call_id: Uuid,
        tool: String,
    },
    Reconciliation(String),
    Anomaly {
        reconciliation: String,
        id: String,
    },
    Store,
    /// The calls that a filter finds; the filter as JSON, and how many were confirmed.
    Calls {
        filter: String,
        count: usize,
    },
    Sagas {
        filter: String,
        count: usize,
    },
}

/// The outcome of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// It was answered with an error, and did nothing; or it is a reconciliation that failed.
    Refused,
    /// Its gateway ended, its store did not answer, or it ended half-way.
    Unknown,
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// One act of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The tenant of the target; empty for what belongs to no tenant.
    pub tenant: String,
    pub deed: Deed,
    pub target: Target,
    /// The name of the token.
    pub by: String,
    pub reason: String,
}

impl Act {
    fn new(caller: &Caller, deed: Deed, tenant: &str, target: Target, reason: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            deed,
            target,
            by: caller.name.clone(),
            reason: reason.to_owned(),
        }
    }

    pub fn on_tool(caller: &Caller, deed: Deed, tool: &str, reason: &str) -> Self {
        Self::new(caller, deed, "", Target::Tool(tool.to_owned()), reason)
    }

    pub fn on_session(caller: &Caller, deed: Deed, id: &SessionId, reason: &str) -> Self {
        let target = Target::Session(id.id.clone());
        Self::new(caller, deed, &id.tenant, target, reason)
    }

    pub fn on_saga(caller: &Caller, deed: Deed, id: &SagaId, reason: &str) -> Self {
        let target = Target::Saga(id.id.clone());
        Self::new(caller, deed, &id.tenant, target, reason)
    }

    /// An act on a call of this tenant and tool.
    pub fn on_call(
        caller: &Caller,
        deed: Deed,
        (call_id, tenant, tool): (CallId, &str, &str),
        reason: &str,
    ) -> Self {
        let (call_id, tool) = (call_id.0, tool.to_owned());
        Self::new(caller, deed, tenant, Target::Call { call_id, tool }, reason)
    }

    /// An act on many calls or sagas; `tenant`: that of the filter, if it names one.
    pub fn on_many(
        caller: &Caller,
        deed: Deed,
        tenant: Option<&str>,
        target: Target,
        reason: &str,
    ) -> Self {
        Self::new(caller, deed, tenant.unwrap_or_default(), target, reason)
    }

    pub fn reconciles(caller: &Caller, name: &str) -> Self {
        let target = Target::Reconciliation(name.to_owned());
        Self::new(caller, Deed::Reconcile, "", target, "")
    }

    /// A request about an anomaly of this reconciliation.
    pub fn on_anomaly(
        caller: &Caller,
        request: Request,
        reconciliation: &str,
        id: &str,
        reason: &str,
    ) -> Self {
        let deed = match request {
            Request::Compensate => Deed::Compensate,
            Request::Ignore => Deed::Ignore,
            Request::Adopt => Deed::Adopt,
        };
        let (reconciliation, id) = (reconciliation.to_owned(), id.to_owned());
        Self::new(
            caller,
            deed,
            "",
            Target::Anomaly { reconciliation, id },
            reason,
        )
    }

    pub fn accepts_loss(caller: &Caller, reason: &str) -> Self {
        Self::new(caller, Deed::AcceptLoss, "", Target::Store, reason)
    }

    /// The document of an act that begins now.
    pub fn begin(&self, id: String, now: Timestamp, retain_until: Timestamp) -> Document {
        let body = Body {
            target: self.target.clone(),
            by: self.by.clone(),
            reason: self.reason.clone(),
            outcome: Outcome::Unknown,
        };
        Document {
            kind: Kind::Act,
            tenant: self.tenant.clone(),
            id,
            version: 1,
            state: self.deed.as_str().to_owned(),
            created_at: now,
            due_at: None,
            retain_until: Some(retain_until),
            body: body.to_json(),
        }
    }

    /// The document when the outcome is known.
    pub fn end(&self, begun: Document, outcome: Outcome) -> Document {
        let version = begun.version + 1;
        Document {
            version,
            ..self.made(begun, outcome)
        }
    }

    /// The document of an act that was not written down before its outcome was known.
    pub fn made(&self, begun: Document, outcome: Outcome) -> Document {
        let body = Body {
            target: self.target.clone(),
            by: self.by.clone(),
            reason: self.reason.clone(),
            outcome,
        };
        Document {
            body: body.to_json(),
            ..begun
        }
    }
}

/// An act as the audit shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    pub id: String,
    pub at: Timestamp,
    pub act: Act,
    pub outcome: Outcome,
}

impl Audited {
    /// Reads an act from its document.
    ///
    /// # Errors
    /// This was never written.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body =
            serde_json::from_slice(&document.body).map_err(|error| error.to_string())?;
        let deed = Deed::ALL
            .into_iter()
            .find(|deed| deed.as_str() == document.state);
        Ok(Self {
            id: document.id.clone(),
            at: document.created_at,
            act: Act {
                tenant: document.tenant.clone(),
                deed: deed.ok_or_else(|| format!("{:?} is no act", document.state))?,
                target: body.target,
                by: body.by,
                reason: body.reason,
            },
            outcome: body.outcome,
        })
    }
}

/// The members of an act that its document has no place for.
#[derive(Serialize, Deserialize)]
struct Body {
    target: Target,
    by: String,
    reason: String,
    outcome: Outcome,
}

impl Body {
    fn to_json(&self) -> bytes::Bytes {
        #[expect(clippy::expect_used, reason = "texts and ids always make JSON")]
        let json = serde_json::to_vec(self).expect("plain values");
        json.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::call::tests::at;

    #[test]
    fn an_act_reads_back_as_it_was_written() {
        let call_id = Uuid::from_u128(7);
        let targets = [
            Target::Tool("pay".into()),
            Target::Session("S".into()),
            Target::Saga("G".into()),
            Target::Call {
                call_id,
                tool: "pay".into(),
            },
            Target::Reconciliation("books".into()),
            Target::Anomaly {
                reconciliation: "books".into(),
                id: "a".into(),
            },
            Target::Store,
            Target::Calls {
                filter: "{\"tool\":\"pay\"}".into(),
                count: 40,
            },
            Target::Sagas {
                filter: "{}".into(),
                count: 2,
            },
        ];
        for (deed, target) in Deed::ALL.into_iter().zip(targets.into_iter().cycle()) {
            let act = Act {
                tenant: "shop".into(),
                deed,
                target,
                by: "ops".into(),
                reason: "it hangs".into(),
            };
            let begun = act.begin("A".into(), at(1), at(9));
            let read = Audited::from_document(&begun).expect("an act");
            assert_eq!((&read.act, read.outcome), (&act, Outcome::Unknown));
            assert_eq!((read.at, begun.retain_until), (at(1), Some(at(9))));
            let done = act.end(begun.clone(), Outcome::Done);
            assert_eq!((done.version, done.digest()), (2, begun.digest()));
            let read = Audited::from_document(&done).expect("an act");
            assert_eq!((&read.act, read.outcome), (&act, Outcome::Done));
            let at_once = act.made(begun.clone(), Outcome::Done);
            assert_eq!((at_once.version, &at_once.body), (1, &done.body));
        }
        let other = Document {
            state: "dance".into(),
            ..Act {
                tenant: String::new(),
                deed: Deed::Pause,
                target: Target::Store,
                by: String::new(),
                reason: String::new(),
            }
            .begin("A".into(), at(1), at(9))
        };
        assert!(Audited::from_document(&other).is_err());
    }

    #[test]
    fn an_outcome_is_written_as_it_is_stored() {
        for outcome in [Outcome::Done, Outcome::Refused, Outcome::Unknown] {
            assert_eq!(serde_json::json!(outcome), outcome.as_str());
        }
    }
}
