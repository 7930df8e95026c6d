//! The acts of operators: what was done to which target, by which token, and why.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::caller::Caller;
use crate::document::{self, Document, Kind};
use crate::record::CallId;
use crate::saga::SagaId;
use crate::session::SessionId;
use crate::words::words;

words! {
    /// The kinds of acts, by their words on the wire.
    pub enum Action {
        Pause = "pause", Resume = "resume", Freeze = "freeze", Thaw = "thaw", Unlock = "unlock",
        Resolve = "resolve", Probe = "probe", Verify = "verify", Compensate = "compensate",
        Complete = "complete", Abort = "abort", Retry = "retry", Skip = "skip",
        Reconcile = "reconcile", Ignore = "ignore", Adopt = "adopt", AcceptLoss = "accept-loss",
        Reload = "reload", Export = "export", Erase = "erase",
        Approve = "approve", Decline = "decline",
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
    /// The settings of the gateway that wrote the entry.
    Configuration,
    /// The calls that a filter found: the filter as JSON, and how many were confirmed.
    Calls {
        filter: String,
        count: usize,
    },
    Sagas {
        filter: String,
        count: usize,
    },
    /// A user of a tenant, by a digest: the audit outlives the user's data.
    User(String),
}

words! {
    /// The outcome of an act.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        Done = "done",
        /// The act was answered with an error and did nothing, or it is a reconciliation that failed.
        Refused = "refused",
        /// The act ended half-way, its gateway ended, or its store did not answer.
        Unknown = "unknown",
    }
}

/// One act of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The tenant of the target; empty for a target of no tenant.
    pub tenant: String,
    pub action: Action,
    pub target: Target,
    /// The name of the token.
    pub by: String,
    pub reason: String,
}

impl Act {
    /// `tenant` is that of the target; empty for a target of no tenant.
    pub fn new(
        caller: &Caller,
        action: Action,
        tenant: &str,
        target: Target,
        reason: &str,
    ) -> Self {
        Self {
            tenant: tenant.to_owned(),
            action,
            target,
            by: caller.name.clone(),
            reason: reason.to_owned(),
        }
    }

    pub fn on_session(caller: &Caller, action: Action, id: &SessionId, reason: &str) -> Self {
        let target = Target::Session(id.id.clone());
        Self::new(caller, action, &id.tenant, target, reason)
    }

    pub fn on_saga(caller: &Caller, action: Action, id: &SagaId, reason: &str) -> Self {
        let target = Target::Saga(id.id.clone());
        Self::new(caller, action, &id.tenant, target, reason)
    }

    /// An act on a call of this tenant and tool.
    pub fn on_call(
        caller: &Caller,
        action: Action,
        (call_id, tenant, tool): (CallId, &str, &str),
        reason: &str,
    ) -> Self {
        let (call_id, tool) = (call_id.0, tool.to_owned());
        Self::new(
            caller,
            action,
            tenant,
            Target::Call { call_id, tool },
            reason,
        )
    }

    /// The document of an act that begins now.
    pub fn begin(&self, id: &str, now: Timestamp, retain_until: Timestamp) -> Document {
        let body = self.body(Outcome::Unknown);
        Document {
            tenant: self.tenant.clone(),
            retain_until: Some(retain_until),
            ..Document::new(Kind::Act, id, self.action.as_str(), now, body)
        }
    }

    /// The document when the outcome is known.
    pub fn end(&self, begun: Document, outcome: Outcome) -> Document {
        Document {
            version: begun.version + 1,
            ..self.made(begun, outcome)
        }
    }

    /// The document of an act that is first written when its outcome is known.
    pub fn made(&self, begun: Document, outcome: Outcome) -> Document {
        Document {
            body: self.body(outcome),
            ..begun
        }
    }

    fn body(&self, outcome: Outcome) -> Bytes {
        document::body(&Body {
            target: self.target.clone(),
            by: self.by.clone(),
            reason: self.reason.clone(),
            outcome,
        })
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
    /// The document was never written so.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body = document.read()?;
        let action = Action::of(&document.state);
        Ok(Self {
            id: document.id.clone(),
            at: document.created_at,
            act: Act {
                tenant: document.tenant.clone(),
                action: action.ok_or_else(|| format!("{:?} is not an act", document.state))?,
                target: body.target,
                by: body.by,
                reason: body.reason,
            },
            outcome: body.outcome,
        })
    }
}

/// The fields of an act that a [`Document`] has no field for.
#[derive(Serialize, Deserialize)]
struct Body {
    target: Target,
    by: String,
    reason: String,
    outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

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
            Target::Configuration,
            Target::Calls {
                filter: "{\"tool\":\"pay\"}".into(),
                count: 40,
            },
            Target::Sagas {
                filter: "{}".into(),
                count: 2,
            },
            Target::User("0a1b".into()),
        ];
        for (action, target) in Action::ALL.into_iter().zip(targets.into_iter().cycle()) {
            let act = Act {
                tenant: "shop".into(),
                action,
                target,
                by: "ops".into(),
                reason: "it hangs".into(),
            };
            let begun = act.begin("A", at(1), at(9));
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
                action: Action::Pause,
                target: Target::Store,
                by: String::new(),
                reason: String::new(),
            }
            .begin("A", at(1), at(9))
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
