//! A saga is completed or aborted, and what persons do about one that is stuck.

use std::sync::Arc;
use std::time::Duration;

use super::member::{Member, Unlisted};
use super::registry::{Marked, SagaAt, SagaQuery, SagaRegistry, readable};
use crate::core::call::{self, Illegal};
use crate::core::caller::Caller;
use crate::core::document::{Kind, Place};
use crate::core::record::{CallId, Record, State as CallState};
use crate::core::saga::{self, Event, Phase, Saga, SagaId};
use crate::core::{compensation, key, tool, undo};
use crate::crash;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::undo::SagaWorker;
use crate::store;

/// What persons and callers do about sagas.
pub struct Sagas {
    base: Arc<Base>,
    registry: Arc<SagaRegistry>,
    worker: Arc<SagaWorker>,
}

impl Sagas {
    pub(in crate::gateway) fn new(
        base: Arc<Base>,
        registry: Arc<SagaRegistry>,
        worker: Arc<SagaWorker>,
    ) -> Self {
        Self {
            base,
            registry,
            worker,
        }
    }

    /// A saga with its calls, as far as the caller may see them.
    ///
    /// # Errors
    /// The caller may not see it, there is no such saga, or the store does not answer.
    pub async fn find_saga(&self, caller: &Caller, id: &SagaId) -> Result<SagaAt, Error> {
        if !caller.may_read(&id.tenant) && caller.tenant != id.tenant {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self
            .registry
            .saga(id)
            .await
            .map_err(|error| ErrorKind::of_store(error).alone())?;
        let at = self
            .registry
            .with_calls(saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?)
            .await?;
        if caller.may_read(&id.tenant)
            || caller.may_end(&at.saga, self.registry.saga_tools(&at).as_ref())
        {
            Ok(at.for_caller(caller))
        } else {
            Err(ErrorKind::UnknownSaga.alone())
        }
    }

    /// Sagas without their calls, newest first, and where to go on.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_sagas(
        &self,
        caller: &Caller,
        query: &SagaQuery,
    ) -> Result<(Vec<Saga>, Option<Place>), Error> {
        let own = (!caller.is_admin()).then(|| caller.tenant.clone());
        let tenant = query.tenant.clone().or(own);
        let may_read = tenant
            .as_ref()
            .map_or_else(|| caller.is_admin(), |tenant| caller.may_read(tenant));
        if !may_read {
            return Err(ErrorKind::Forbidden.alone());
        }
        let state = query.state.map(saga::State::as_str);
        let found = self
            .base
            .store
            .documents(
                Kind::Saga,
                tenant.as_deref(),
                state,
                query.before.as_ref(),
                query.limit,
            )
            .await;
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let (found, next) = self.base.readable_page(found).map_err(unavailable)?;
        // One that cannot be read keeps no other back.
        Ok((
            found
                .iter()
                .filter_map(|document| readable(document).ok())
                .collect(),
            next,
        ))
    }

    /// The plan has come to its end: nothing of it is undone any more.
    ///
    /// # Errors
    /// The caller may not, there is no such saga, or it is not open.
    pub async fn complete_saga(
        &self,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let event = Event::Complete {
            by: by(caller),
            reason: reason.to_owned(),
        };
        self.end_saga(caller, id, &event).await
    }

    /// The plan is abandoned: what its calls have done is undone from now on.
    ///
    /// # Errors
    /// As [`complete_saga`](Self::complete_saga).
    pub async fn abort_saga(
        &self,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let after_loss = caller.is_admin();
        let event = Event::Abort {
            by: by(caller),
            reason: reason.to_owned(),
            after_loss,
        };
        let at = self.end_saga(caller, id, &event).await?;
        crash::point("saga_closed");
        self.worker.begin_undoing(id);
        Ok(at)
    }

    async fn end_saga(&self, caller: &Caller, id: &SagaId, event: &Event) -> Result<SagaAt, Error> {
        if !caller.is_admin() {
            let saga = self
                .registry
                .saga(id)
                .await
                .map_err(|error| ErrorKind::of_store(error).alone())?;
            let at = self
                .registry
                .with_calls(saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?)
                .await?;
            if !caller.may_end(&at.saga, self.registry.saga_tools(&at).as_ref()) {
                return Err(ErrorKind::Forbidden.alone());
            }
        }
        self.base.must_know_all_data().await?;
        let saga = self.act_on_saga(id, event).await?;
        tracing::info!(
            saga = saga.id.id,
            by = caller.name,
            state = saga.state().as_str(),
            "a saga was ended"
        );
        Ok(self.registry.with_calls(saga).await?.for_caller(caller))
    }

    async fn act_on_saga(&self, id: &SagaId, event: &Event) -> Result<Saga, Error> {
        let changed = self.registry.change_saga(id, event).await;
        let changed = changed.map_err(|error| ErrorKind::of_store(error).alone())?;
        let changed = changed.ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        changed.map_err(|illegal| ErrorKind::WrongState(illegal.to_string()).alone())
    }

    /// A person wants a saga that is stuck to be tried again.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such saga, or it is not stuck.
    pub async fn retry_saga(
        &self,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let saga = self.stuck_saga(caller, id).await?;
        // Its calls first: if this breaks off here, it is still stuck, and seen.
        match self.registry.calls_of(&saga).await {
            Ok(calls) => {
                let is_stuck = |record: &&Record| matches!(record.state, CallState::Stuck(_));
                for stuck in calls.iter().map(Member::record).filter(is_stuck) {
                    let unavailable = || ErrorKind::StoreUnavailable.alone();
                    let record = self.base.store.load(stuck.intent.call_id).await;
                    // One that has changed since is left to the writer that changed it.
                    let record = record
                        .map_err(|_| unavailable())?
                        .filter(|record| is_stuck(&record));
                    let Some(record) = record else { continue };
                    let record = self.registry.decide_anew(&record).await;
                    if let Marked::Unwritten = self
                        .registry
                        .to_compensate(&record, &by(caller), reason)
                        .await
                    {
                        return Err(unavailable());
                    }
                }
            }
            Err(Unlisted::Store) => return Err(ErrorKind::StoreUnavailable.alone()),
            Err(Unlisted::Broken(_)) => {}
        }
        crash::point("saga_retried");
        let event = Event::Retry {
            by: by(caller),
            reason: reason.to_owned(),
        };
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(
            saga = id.id,
            by = caller.name,
            "a stuck saga is tried again"
        );
        self.worker.begin_undoing(id);
        self.registry.with_calls(saga).await
    }

    /// A person decides that the call with which a saga is stuck is not undone; the saga goes on with the others.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such saga, or it is not stuck.
    pub async fn skip_stuck(
        &self,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        self.stuck_saga(caller, id).await?;
        // Before its calls: a worker writes down the saga before it sends a compensation.
        let held = Event::Held {
            until: self.worker.busy_until(self.base.now(), Duration::ZERO),
        };
        let saga = self.act_on_saga(id, &held).await?;
        let Some(call_id) = saga.trouble.as_ref().and_then(|trouble| trouble.call_id) else {
            return Err(ErrorKind::WrongState(
                "the saga is stuck with no call: see its trouble".into(),
            )
            .alone());
        };
        let compensation = self.compensation_of(call_id).await;
        let compensation = compensation
            .map_err(|_| ErrorKind::StoreUnavailable.alone())?
            .map(Box::new);
        let (name, reason_said) = (caller.name.clone(), reason.to_owned());
        let event = call::Event::Skipped {
            by: name,
            reason: reason_said,
            compensation,
        };
        let skipped = self.registry.apply(call_id, &event).await;
        let skipped = skipped.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        let mut trace_id = None;
        match skipped {
            Some(Ok(record)) => {
                self.registry.count_undo(&record, "skipped");
                trace_id = Some(record.intent.trace_id.clone());
            }
            // It is settled already; the saga still has to go on.
            Some(Err(Illegal::NothingToUndo)) | None => {}
            Some(Err(illegal)) => return Err(ErrorKind::WrongState(illegal.to_string()).alone()),
        }
        let event = Event::Settled {
            by: by(caller),
            reason: format!("skipped {call_id}: {reason}"),
        };
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(saga = id.id, by = caller.name, %call_id, trace_id, "a call is not undone");
        self.worker.begin_undoing(id);
        self.registry.with_calls(saga).await
    }

    /// What there is of the call that undoes another one.
    async fn compensation_of(&self, call_id: CallId) -> Result<Option<Record>, store::Error> {
        let undone = self.base.store.load(call_id).await?;
        match undone
            .and_then(|record| record.undo)
            .and_then(|undo| undo.compensation)
        {
            Some(decided) => self.base.store.load(decided.call_id).await,
            None => Ok(None),
        }
    }

    /// A person has settled a call that was stuck: the sagas that waited for that go on.
    pub(in crate::gateway) async fn go_on_after(&self, record: &Record, by: &str, reason: &str) {
        let intent = &record.intent;
        for id in [intent.saga_id.clone(), undo::key_of(intent.call_id)] {
            let id = SagaId {
                tenant: intent.tenant.clone(),
                id,
            };
            let reason = format!("call {} was resolved: {reason}", intent.call_id);
            let event = Event::Settled {
                by: by.to_owned(),
                reason,
            };
            if let Ok(Some(Ok(_))) = self.registry.change_saga(&id, &event).await {
                self.worker.begin_undoing(&id);
            }
        }
    }

    /// A saga that a person may have tried again, or go on without one of its calls.
    async fn stuck_saga(&self, caller: &Caller, id: &SagaId) -> Result<Saga, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.base.must_know_all_data().await?;
        let saga = self
            .registry
            .saga(id)
            .await
            .map_err(|error| ErrorKind::of_store(error).alone())?;
        let saga = saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        if saga.state() != saga::State::Stuck {
            let illegal = saga::Illegal::State(saga.state());
            return Err(ErrorKind::WrongState(illegal.to_string()).alone());
        }
        if saga.phase == Phase::OpenAtLoss {
            // Before any of its calls is changed: it may still be completed.
            return Err(ErrorKind::WrongState(saga::Illegal::AfterLoss.to_string()).alone());
        }
        Ok(saga)
    }

    /// A person undoes one call, whatever saga it belongs to.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such call, or it cannot be undone.
    pub async fn compensate(
        &self,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.base.must_know_all_data().await?;
        let saga = self.compensate_call(call_id, &by(caller), reason).await?;
        self.registry.with_calls(saga).await
    }

    /// Undoes one call, whatever saga it belongs to. Asked again it is the same undoing.
    ///
    /// # Errors
    /// There is no such call, or it cannot be undone.
    pub(in crate::gateway) async fn compensate_call(
        &self,
        call_id: CallId,
        by: &str,
        reason: &str,
    ) -> Result<Saga, Error> {
        let unavailable = |error| ErrorKind::of_store(error).alone();
        let wrong = |why: &str| Error {
            call_id: Some(call_id),
            ..ErrorKind::WrongState(why.to_owned()).alone()
        };
        let record = self.base.store.load(call_id).await.map_err(unavailable)?;
        let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let tool = self.base.policy_of(&record);
        let id = SagaId {
            tenant: record.intent.tenant.clone(),
            id: undo::key_of(call_id),
        };
        if let Some(saga) = self.registry.saga(&id).await.map_err(unavailable)? {
            // One that was skipped then may be undone after all.
            let is_done = matches!(record.state, CallState::Compensated(_));
            let saga = if saga.phase == Phase::Compensated && !is_done {
                let event = Event::Abort {
                    by: by.to_owned(),
                    reason: reason.to_owned(),
                    after_loss: false,
                };
                self.act_on_saga(&id, &event).await?
            } else {
                saga
            };
            self.worker.begin_undoing(&id);
            return Ok(saga);
        }
        match &record.state {
            _ if tool.effect == tool::Effect::Read => return Err(wrong("the tool only reads")),
            _ if tool.compensation == compensation::Policy::Needless => {
                return Err(wrong(
                    "its tool has nothing to undo: compensation = \"none\"",
                ));
            }
            _ if record.intent.key_source == key::Source::Compensation => {
                return Err(wrong("the call undoes another one itself"));
            }
            CallState::Compensated(_) => return Err(wrong("what the call did has been undone")),
            CallState::Unknown(_) if !call::undoes_unknown(&tool) => {
                return Err(wrong(
                    "nobody knows whether the call was executed: resolve it first",
                ));
            }
            _ => {}
        }
        let saga = Saga::undo(&id.tenant, call_id, by, reason, self.base.now());
        let saga = match self.registry.put_saga(&saga).await.map_err(unavailable)? {
            Ok(()) => saga,
            Err(there) => there.ok_or_else(|| ErrorKind::StoreUnavailable.alone())?,
        };
        tracing::warn!(%call_id, trace_id = record.intent.trace_id, by, "a call is undone");
        self.worker.begin_undoing(&id);
        Ok(saga)
    }
}

fn by(caller: &Caller) -> String {
    format!("token {}", caller.name)
}
