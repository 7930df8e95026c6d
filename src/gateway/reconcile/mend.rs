//! How what was found is mended. Nothing of it has a second effect: a call is undone and settled once, and what
//! undoes a surplus effect is a call with a key that follows from the effect.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::act::{Acted, Stored, Undoing};
use super::{Listed, Reconciler, Reconciliation};
use crate::core::call::Event;
use crate::core::caller::RESERVED_TENANT;
use crate::core::compensation::{Policy, Template};
use crate::core::key;
use crate::core::reconcile::Kind;
use crate::core::reconcile::still::{self, Still};
use crate::core::record::Content;
use crate::core::record::{CallId, Record, State};
use crate::core::work::Blocker;
use crate::gateway::calls::InternalCall;
use crate::gateway::error::ErrorKind;
use crate::gateway::undo::blocker_of;

impl Reconciler {
    /// How an effect at a source is undone.
    pub(super) fn template_for(&self, of: &Reconciliation, listed: &Listed) -> Option<Template> {
        let tool = of.source(&listed.source)?.tool.as_ref()?;
        match &self.base.tool_at(tool)?.tool.compensation {
            Policy::By(template) => Some(template.clone()),
            Policy::Undeclared | Policy::Needless => None,
        }
    }

    /// An unknown call was executed, as the source shows; its duplicates get what the source has.
    pub(super) async fn settle_unknown(&self, of: &Reconciliation, stored: &Stored) -> Acted {
        let Some(call_id) = call_id(stored) else {
            return Acted::Never("its call has no id".into());
        };
        let content = match stored.effect.as_ref().map(Value::to_string) {
            None => Content::Unavailable("the source does not have it".into()),
            Some(result) if result.len() > self.downstream.max_result() => {
                Content::Unavailable("what the source has is longer than server.max_result".into())
            }
            Some(result) => Content::Kept(Bytes::from(result)),
        };
        let event = Event::Reconciled {
            by: of.name.clone(),
            content,
        };
        match self.registry.apply(call_id, &event).await {
            Ok(Some(Ok(record))) => {
                tracing::warn!(%call_id, tool = record.intent.tool, trace_id = record.intent.trace_id, "an unknown call was settled by a source");
                Acted::Done
            }
            // It is not unknown any more, but it may be again.
            Ok(Some(Err(_))) => match self.base.store.load(call_id).await {
                Ok(record) => match still::unsettled(record.as_ref()) {
                    Still::Holds => Acted::Done,
                    Still::NotYet(why) => Acted::Hindered(why),
                    Still::Never(why) => Acted::Never(why),
                },
                Err(error) => Acted::Hindered(error.to_string()),
            },
            Ok(None) => Acted::Never("the call is gone".into()),
            Err(error) => Acted::Hindered(error.to_string()),
        }
    }

    pub(super) async fn mend(self: &Arc<Self>, of: &Reconciliation, stored: &Stored) -> Acted {
        let listed = &stored.listed;
        if is_surplus(listed) {
            return self.undo_surplus(of, stored).await;
        }
        let Some(call_id) = call_id(stored) else {
            return Acted::Never("its call has no id".into());
        };
        match self.base.store.load(call_id).await {
            Ok(Some(record)) if record.is_skipped() => {
                return Acted::Never("a person has decided that its effect stands".into());
            }
            Ok(Some(Record {
                state: State::Running | State::Unknown(_),
                ..
            })) => {
                return Acted::Hindered("it is not known how the call ends".into());
            }
            // Two looks at one list are one witness; the tool is another.
            Ok(Some(record)) if listed.kind == Kind::Missing.as_str() => {
                let Some(at) = self.base.tool_at(&record.intent.tool) else {
                    return Acted::Hindered("its tool is not configured here".into());
                };
                let (found, _) = self.sender.probe(&at, &record.intent).await;
                match still::missing(&found) {
                    Still::Holds => {}
                    Still::NotYet(why) => return Acted::Again(why),
                    Still::Never(why) => return Acted::Never(why),
                }
            }
            Ok(_) => {}
            Err(error) => return Acted::Hindered(error.to_string()),
        }
        let by = format!("reconciliation {}", of.name);
        match self
            .sagas
            .compensate_call(call_id, &by, &listed.detail)
            .await
        {
            // From here on the queue of compensations sees to it.
            Ok(_) => Acted::Done,
            Err(error) => match error.kind {
                ErrorKind::StoreUnavailable => Acted::Hindered(error.to_string()),
                kind => Acted::Never(kind.to_string()),
            },
        }
    }

    /// The call that undoes an effect, as it is to be made now, if the effect is still too much.
    pub(super) async fn undoing(
        &self,
        of: &Reconciliation,
        stored: &Stored,
    ) -> Result<Undoing, Acted> {
        let listed = &stored.listed;
        let template = self.template_for(of, listed);
        let template =
            template.ok_or_else(|| Acted::Never("its tool declares no compensation".into()))?;
        let call = self.call_of(stored).await?;
        let kind = if listed.kind == Kind::Orphan.as_str() {
            Kind::Orphan
        } else {
            Kind::Duplicate
        };
        match still::surplus(kind, call.as_ref(), &listed.effect) {
            Still::Holds => {}
            Still::NotYet(why) => return Err(Acted::Hindered(why)),
            Still::Never(why) => return Err(Acted::Never(why)),
        }
        let effect = stored.effect.as_ref();
        let effect = effect.ok_or_else(|| Acted::Never("what to undo is not kept".into()))?;
        let args = match &call {
            Some(record) => template.args_from(record, Some(effect)),
            None => template.args_of_effect(effect),
        };
        let tool = of
            .source(&listed.source)
            .and_then(|source| source.tool.clone())
            .unwrap_or_default();
        let args = args.map_err(Acted::Never)?;
        Ok(Undoing {
            tool: template.tool,
            key: key_of(&tool, listed),
            args,
        })
    }

    /// The call that an anomaly is about, if there is one and it is kept.
    async fn call_of(&self, stored: &Stored) -> Result<Option<Record>, Acted> {
        let Some(call_id) = call_id(stored) else {
            return Ok(None);
        };
        let found = self.base.store.load(call_id).await;
        found.map_err(|error| Acted::Hindered(error.to_string()))
    }

    /// Undoes one effect at a source, by the compensation of the tool that has made it.
    async fn undo_surplus(self: &Arc<Self>, of: &Reconciliation, stored: &Stored) -> Acted {
        let now = match self.undoing(of, stored).await {
            Ok(now) => now,
            Err(acted) => return acted,
        };
        let Some(undoing) = &stored.undoing else {
            return Acted::Hindered("how it is undone could not be written down".into());
        };
        if !stored.decides && stored.tries > 1 {
            return Acted::Never(
                "a gateway of before may have begun to undo it in another way".into(),
            );
        }
        if now != *undoing {
            return Acted::Never("it would be undone in another way than was decided on".into());
        }
        let call = match self.call_of(stored).await {
            Ok(call) => call.map(|record| record.intent),
            Err(acted) => return acted,
        };
        let own = InternalCall {
            // One effect has one key, whatever it is taken for, and by whom; and no tenant reads of another's.
            tenant: RESERVED_TENANT.to_owned(),
            tool: undoing.tool.clone(),
            key: undoing.key.clone(),
            args: undoing.args.clone(),
            call_id: None,
            user_id: call
                .as_ref()
                .map_or_else(String::new, |call| call.user_id.clone()),
            // One of its own: a tool that takes one call of a session at a time needs one.
            session_id: undoing.key.clone(),
            saga_id: String::new(),
            trace_id: call.map_or_else(String::new, |call| call.trace_id.clone()),
        };
        match self.engine.run_internal(own).await {
            Ok(record) => ended(&record),
            Err(ErrorKind::InvalidArguments(mistakes)) => {
                Acted::Never(format!("its arguments: {mistakes:?}"))
            }
            Err(kind) => match blocker_of(&kind) {
                Blocker::Busy | Blocker::Unknown => Acted::Hindered(kind.to_string()),
                Blocker::Failed => Acted::Again(kind.to_string()),
                Blocker::Final => Acted::Never(kind.to_string()),
            },
        }
    }

    pub(super) async fn tell_of(&self, stored: &Stored) -> Acted {
        let told = serde_json::json!({
            "reconciliation": stored.reconciliation,
            "run": stored.run,
            "anomaly": stored.listed,
        });
        match self
            .notifier
            .notify("anomaly", &stored.listed.id, &told)
            .await
        {
            Ok(()) => Acted::Done,
            Err(why) => Acted::Again(why),
        }
    }
}

/// What came of the call that undoes an effect.
fn ended(compensation: &Record) -> Acted {
    let call_id = compensation.intent.call_id;
    match &compensation.state {
        State::Succeeded(_) => Acted::Done,
        State::Failed(failure) => Acted::Again(format!(
            "its compensation {call_id} failed: {}",
            failure.why
        )),
        State::Running | State::Unknown(_) => Acted::Hindered(format!(
            "it is not known how its compensation {call_id} ended"
        )),
        State::Compensating(_) | State::Compensated(_) | State::Stuck(_) => {
            Acted::Never(format!("its compensation {call_id} was undone itself"))
        }
    }
}

fn call_id(stored: &Stored) -> Option<CallId> {
    stored.listed.call_id.as_ref()?.parse().ok().map(CallId)
}

pub(super) fn is_surplus(listed: &Listed) -> bool {
    [Kind::Orphan, Kind::Duplicate]
        .iter()
        .any(|kind| kind.as_str() == listed.kind)
}

/// The key of the call that undoes an effect, whatever the effect was taken for.
fn key_of(tool: &str, listed: &Listed) -> String {
    let digest = key::digest(["effect", tool, &listed.effect]);
    format!("{}effect-{}", key::COMPENSATION, hex::encode(&digest[..16]))
}
