//! Remedies of anomalies: settle a call, or undo a call or an effect.
//!
//! No remedy has a second effect: a call is undone and settled once, and a surplus effect is undone by a call whose key
//! follows from the effect.

use bytes::Bytes;
use serde_json::Value;

use super::anomaly_worker::AnomalyWorker;
use super::settings::{Reconciliation, SourceAt};
use crate::rules::anomaly::{Case, End, Listed, Undoing};
use crate::rules::{Join, Kind, revalidate};
use oncegate_engine::ErrorKind;
use oncegate_engine::wings::InternalCall;
use oncegate_rules::actor::{Actor, By};
use oncegate_rules::call::{Event, UndoEnd};
use oncegate_rules::compensation::{Policy, Template};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Content, Record};
use oncegate_rules::tenant::RESERVED_TENANT;
use oncegate_rules::undo;
use oncegate_rules::work::Blocked;
use oncegate_store as store;

impl AnomalyWorker {
    /// The template by which an effect at a source is undone.
    pub(super) fn template_for(&self, of: &Reconciliation, listed: &Listed) -> Option<Template> {
        let tool = of.source(&listed.source)?.tool.as_ref()?;
        match &self.base.tool_at(tool)?.tool.compensation {
            Policy::By(template) => Some(template.clone()),
            Policy::Undeclared | Policy::Needless => None,
        }
    }

    /// Settles an unknown call that the source shows as executed.
    ///
    /// Its duplicates get the source's item.
    pub(super) async fn settle_unknown(
        &self,
        of: &Reconciliation,
        case: &Case,
    ) -> Result<(), Blocked> {
        let call_id = call_of(case)?;
        let content = match case.effect.as_ref() {
            None => Content::Unavailable("the source does not have it".into()),
            Some(result) => self.stored(result),
        };
        let event = Event::Reconciled {
            by: of.name.clone(),
            content,
        };
        match self.registry.apply(call_id, &event).await? {
            Some(Ok(record)) => {
                tracing::warn!(%call_id, tool = record.intent.tool, trace_id = record.intent.trace_id, "an unknown call was settled by a source");
                Ok(())
            }
            // The call was not unknown when the event came. It may be again by now.
            Some(Err(_)) => revalidate::unsettled(self.base.store.load(call_id).await?.as_ref()),
            None => Err(Blocked::for_good("the call is gone")),
        }
    }

    /// A result from a source, if it is not too long.
    pub(super) fn stored(&self, result: &Value) -> Content {
        let result = result.to_string();
        if result.len() > self.downstream.max_result() {
            return Content::Unavailable(
                "what the source has is longer than server.max_result".into(),
            );
        }
        Content::Stored(Bytes::from(result))
    }

    /// Undoes a call or a surplus effect.
    pub(super) async fn remedy(&self, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        let listed = &case.listed;
        if self.is_bound(of, listed) {
            return self.undo_bound(of, case).await;
        }
        if listed.kind.is_surplus() {
            return self.undo_surplus(of, case).await.map(|()| End::Done);
        }
        let call_id = call_of(case)?;
        if let Some(record) = self.base.store.load(call_id).await? {
            revalidate::call(&record)?;
            // The source may have left the effect out of its list, so the tool is asked, too.
            if listed.kind == Kind::Missing {
                let at = self.base.tool_of(&record);
                let at = at.ok_or_else(|| Blocked::busy("its tool is not configured here"))?;
                let asked_at = self.base.now();
                let (found, _) = self.sender.probe(&at, &record).await;
                revalidate::missing(&at.tool, &record, &found, asked_at)?;
            }
        }
        let by = By::new(Actor::Reconciliation(&of.name), &listed.detail);
        let begun = self.sagas.compensate_call(call_id, &by).await;
        // From here on the saga worker undoes it.
        begun.map(|_| End::Done).map_err(|error| match error.kind {
            ErrorKind::StoreUnavailable => Blocked::busy(error.to_string()),
            kind => Blocked::for_good(kind.to_string()),
        })
    }

    /// The compensation of a surplus effect, as it would be made now.
    ///
    /// # Errors
    /// The effect cannot be undone, or is not surplus any more.
    pub(super) async fn undoing(
        &self,
        of: &Reconciliation,
        case: &Case,
    ) -> Result<Undoing, Blocked> {
        let listed = &case.listed;
        let undeclared = || Blocked::for_good("its tool declares no compensation");
        let template = self.template_for(of, listed).ok_or_else(undeclared)?;
        let call = self.known_call_of(case).await?;
        revalidate::surplus(listed.kind, call.as_ref(), &listed.effect)?;
        if call.is_none() {
            let holder = self.holder_of(of, listed).await?;
            let is_bound = self.is_bound(of, listed);
            revalidate::without_call(holder.as_ref(), &listed.effect, is_bound)?;
        }
        let effect = case.effect.as_ref();
        let effect = effect.ok_or_else(|| Blocked::for_good("what to undo is not stored"))?;
        let args = match &call {
            Some(record) => template.args_of_surplus(record, effect, &listed.effect),
            None => template.args_of_effect(effect),
        };
        let tool = of.source(&listed.source).and_then(|at| at.tool.as_deref());
        Ok(Undoing {
            tool: template.tool,
            key: undo::key_of_effect(tool.unwrap_or_default(), &listed.effect),
            args: args.map_err(Blocked::for_good)?,
        })
    }

    /// Whether an effect must be adopted before it is undone: its tool would answer a repetition with it.
    fn is_bound(&self, of: &Reconciliation, listed: &Listed) -> bool {
        let at = of.source(&listed.source);
        let tool = at.and_then(|at| self.base.tool_at(at.tool.as_ref()?));
        let both = at.zip(tool);
        both.is_some_and(|(at, tool)| revalidate::is_bound(&tool.tool, &at.rules.join, listed))
    }

    /// Adopts an effect whose key its tool knows, and undoes both the effect and the adopted call.
    async fn undo_bound(&self, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        // First: an effect that cannot be undone is not adopted.
        case.undoing(&self.undoing(of, case).await?)?;
        let call_id = match self.adopt(of, case).await? {
            End::Adopted(call_id) => call_id,
            held => return Ok(held),
        };
        let by = By::new(Actor::Reconciliation(&of.name), &case.listed.detail);
        let to_undo = Event::EffectToUndo(by);
        // The event is refused if an earlier try has begun to undo the call.
        drop(self.registry.apply(call_id, &to_undo).await?);
        let call = self.base.store.load(call_id).await?;
        let call = call.ok_or_else(|| Blocked::busy("the call that it was adopted as is gone"))?;
        if revalidate::adopted(&call)? {
            self.undo_surplus(of, case).await?;
            let undone = Event::UndoEnded {
                by: self.base.instance,
                end: UndoEnd::Undone,
            };
            drop(self.registry.apply(call_id, &undone).await?);
        }
        Ok(End::Adopted(call_id))
    }

    /// The call that has the key of an effect now, if the source shows keys.
    async fn holder_of(
        &self,
        of: &Reconciliation,
        listed: &Listed,
    ) -> Result<Option<Record>, store::Error> {
        let joins_by_key = |at: &SourceAt| at.rules.join == Join::Key;
        let lookup = Lookup::of_tool_key(&listed.key);
        let lookup = lookup.filter(|_| of.source(&listed.source).is_some_and(joins_by_key));
        let Some(lookup) = lookup else {
            return Ok(None);
        };
        let found = self.base.store.holders(&[lookup]).await?;
        Ok(found.into_iter().next().map(|holder| holder.record))
    }

    /// The stored call of an anomaly.
    async fn known_call_of(&self, case: &Case) -> Result<Option<Record>, store::Error> {
        match case.listed.call() {
            Some(call_id) => self.base.store.load(call_id).await,
            None => Ok(None),
        }
    }

    /// Undoes one effect at a source, with the compensation of its tool.
    async fn undo_surplus(&self, of: &Reconciliation, case: &Case) -> Result<(), Blocked> {
        let now = self.undoing(of, case).await?;
        let undoing = case.undoing(&now)?;
        let call = self.known_call_of(case).await?.map(|record| record.intent);
        let (user_id, trace_id) = call.map_or_else(Default::default, |call| {
            (call.user_id.clone(), call.trace_id.clone())
        });
        let own = InternalCall {
            // The key follows from the effect alone, so it is undone once whatever its kind. No tenant reads this call:
            // the effect may be another tenant's.
            tenant: RESERVED_TENANT.to_owned(),
            tool: undoing.tool.clone(),
            key: undoing.key.clone(),
            args: undoing.args.clone(),
            call_id: None,
            user_id,
            // A session of its own: a tool with exclusive sessions needs one.
            session_id: undoing.key.clone(),
            saga_id: String::new(),
            trace_id,
        };
        // The next gateway sends it.
        if self.base.draining.is_cancelled() {
            return Err(Blocked::busy("this gateway stops"));
        }
        match self.engine.run_internal(own).await {
            Ok(record) => undo::outcome_of(&record, &self.base.policy_of(&record)),
            Err(ErrorKind::InvalidArguments(mistakes)) => {
                Err(Blocked::for_good(format!("its arguments: {mistakes:?}")))
            }
            Err(kind) => Err(Blocked::by(kind.blocker(), kind.to_string())),
        }
    }

    /// Sends an anomaly to the webhook.
    pub(super) async fn tell_of(&self, case: &Case) -> Result<(), Blocked> {
        let body = serde_json::json!({
            "reconciliation": case.reconciliation,
            "run": case.run,
            "anomaly": case.listed,
        });
        let telling = self.notifier.notify("anomaly", &case.listed.id, &body);
        telling.await.map_err(Blocked::failed)
    }
}

fn call_of(case: &Case) -> Result<CallId, Blocked> {
    let call_id = case.listed.call();
    call_id.ok_or_else(|| Blocked::for_good("its call has no id"))
}
