//! A saga is completed or aborted, and what persons do about one that is stuck.

use std::sync::Arc;
use std::time::Duration;

use super::{Marked, Member, SagaAt, Unlisted};
use crate::core::call::{self, Illegal};
use crate::core::caller::Caller;
use crate::core::document::Kind;
use crate::core::ledger::LIMITS;
use crate::core::record::{CallId, Record, State as CallState};
use crate::core::saga::{self, Event, Saga, SagaId};
use crate::core::{compensation, key, tool, undo};
use crate::crash;
use crate::gateway::{Error, ErrorKind, Gateway};
use crate::store;

impl Gateway {
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
        self: &Arc<Self>,
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
        self.begin_undoing(id);
        Ok(at)
    }

    async fn end_saga(&self, caller: &Caller, id: &SagaId, event: &Event) -> Result<SagaAt, Error> {
        if !caller.is_admin() {
            let saga = self
                .saga(id)
                .await
                .map_err(|error| ErrorKind::of_store(error).alone())?;
            let at = self
                .with_calls(saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?)
                .await?;
            if !caller.may_end(&at.saga, self.saga_tools(&at).as_ref()) {
                return Err(ErrorKind::Forbidden.alone());
            }
        }
        self.must_know_all_data().await?;
        let saga = self.act_on_saga(id, event).await?;
        tracing::info!(
            saga = saga.id.id,
            by = caller.name,
            state = saga.state.as_str(),
            "a saga was ended"
        );
        Ok(self.with_calls(saga).await?.for_caller(caller))
    }

    async fn act_on_saga(&self, id: &SagaId, event: &Event) -> Result<Saga, Error> {
        let changed = self.change_saga(id, event).await;
        let changed = changed.map_err(|error| ErrorKind::of_store(error).alone())?;
        let changed = changed.ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        changed.map_err(|illegal| ErrorKind::WrongState(illegal.to_string()).alone())
    }

    /// A person wants a saga that is stuck to be tried again.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such saga, or it is not stuck.
    pub async fn retry_saga(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let saga = self.stuck_saga(caller, id).await?;
        // Its calls first: if this breaks off here, it is still stuck, and seen.
        match self.calls_of(&saga).await {
            Ok(calls) => {
                let is_stuck = |record: &&Record| matches!(record.state, CallState::Stuck(_));
                for stuck in calls.iter().map(Member::record).filter(is_stuck) {
                    let unavailable = || ErrorKind::StoreUnavailable.alone();
                    let record = self.counted("load", self.store.load(stuck.intent.call_id).await);
                    // One that has changed since is somebody else's.
                    let record = record
                        .map_err(|_| unavailable())?
                        .filter(|record| is_stuck(&record));
                    let Some(record) = record else { continue };
                    let record = self.decide_anew(&record).await;
                    if let Marked::Unwritten =
                        self.to_compensate(&record, &by(caller), reason).await
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
        self.begin_undoing(id);
        self.with_calls(saga).await
    }

    /// A person decides that the call with which a saga is stuck is not undone; the saga goes on with the others.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such saga, or it is not stuck.
    pub async fn skip_stuck(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        self.stuck_saga(caller, id).await?;
        // Before its calls: whoever was about to send what undoes one has to write down the saga first.
        let held = Event::Held {
            until: self.busy_until(self.now(), Duration::ZERO),
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
        let skipped = self.apply(call_id, &event).await;
        let skipped = skipped.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        let mut trace_id = None;
        match skipped {
            Some(Ok(record)) => {
                self.count_undo(&record, "skipped");
                trace_id = Some(record.intent.trace_id.clone());
            }
            // Somebody has settled it already; the saga still has to go on.
            Some(Err(Illegal::NothingToUndo)) | None => {}
            Some(Err(illegal)) => return Err(ErrorKind::WrongState(illegal.to_string()).alone()),
        }
        let event = Event::Settled {
            by: by(caller),
            reason: format!("skipped {call_id}: {reason}"),
        };
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(saga = id.id, by = caller.name, %call_id, trace_id, "a call is not undone");
        self.begin_undoing(id);
        self.with_calls(saga).await
    }

    /// What there is of the call that undoes another one.
    async fn compensation_of(&self, call_id: CallId) -> Result<Option<Record>, store::Error> {
        let undone = self.counted("load", self.store.load(call_id).await)?;
        match undone
            .and_then(|record| record.undo)
            .and_then(|undo| undo.compensation)
        {
            Some(decided) => self.counted("load", self.store.load(decided.call_id).await),
            None => Ok(None),
        }
    }

    /// A person has settled a call that was stuck: the sagas that waited for that go on.
    pub(in crate::gateway) async fn go_on_after(
        self: &Arc<Self>,
        record: &Record,
        by: &str,
        reason: &str,
    ) {
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
            if let Ok(Some(Ok(_))) = self.change_saga(&id, &event).await {
                self.begin_undoing(&id);
            }
        }
    }

    /// A saga that a person may have tried again, or go on without one of its calls.
    async fn stuck_saga(&self, caller: &Caller, id: &SagaId) -> Result<Saga, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.must_know_all_data().await?;
        let saga = self
            .saga(id)
            .await
            .map_err(|error| ErrorKind::of_store(error).alone())?;
        let saga = saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        if saga.state != saga::State::Stuck {
            let illegal = saga::Illegal::State(saga.state);
            return Err(ErrorKind::WrongState(illegal.to_string()).alone());
        }
        if saga.was_open {
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
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.must_know_all_data().await?;
        let saga = self.compensate_call(call_id, &by(caller), reason).await?;
        self.with_calls(saga).await
    }

    /// Undoes one call, whatever saga it belongs to. Asked again it is the same undoing.
    ///
    /// # Errors
    /// There is no such call, or it cannot be undone.
    pub(in crate::gateway) async fn compensate_call(
        self: &Arc<Self>,
        call_id: CallId,
        by: &str,
        reason: &str,
    ) -> Result<Saga, Error> {
        let unavailable = |error| ErrorKind::of_store(error).alone();
        let wrong = |why: &str| Error {
            call_id: Some(call_id),
            ..ErrorKind::WrongState(why.to_owned()).alone()
        };
        let record = self
            .counted("load", self.store.load(call_id).await)
            .map_err(unavailable)?;
        let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let tool = self.policy_of(&record);
        let id = SagaId {
            tenant: record.intent.tenant.clone(),
            id: undo::key_of(call_id),
        };
        if let Some(saga) = self.saga(&id).await.map_err(unavailable)? {
            // One that was skipped then may be undone after all.
            let is_done = matches!(record.state, CallState::Compensated(_));
            let saga = if saga.state == saga::State::Compensated && !is_done {
                let event = Event::Abort {
                    by: by.to_owned(),
                    reason: reason.to_owned(),
                    after_loss: false,
                };
                self.act_on_saga(&id, &event).await?
            } else {
                saga
            };
            self.begin_undoing(&id);
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
        let saga = Saga::undo(&id.tenant, call_id, by, reason, self.now());
        let saga = match self.put_saga(&saga).await.map_err(unavailable)? {
            Ok(()) => saga,
            Err(there) => there.ok_or_else(|| ErrorKind::StoreUnavailable.alone())?,
        };
        tracing::warn!(%call_id, trace_id = record.intent.trace_id, by, "a call is undone");
        self.begin_undoing(&id);
        Ok(saga)
    }

    /// The sagas that are stopped when a loss is accepted.
    ///
    /// # Errors
    /// The store failed, or some of them cannot be read: those would go on as soon as they can be read again.
    pub(in crate::gateway) async fn sagas_at_stake(&self) -> Result<Vec<SagaId>, store::Error> {
        let mut sagas = Vec::new();
        for state in AT_STAKE {
            let (mut before, mut is_first) = (None, true);
            while std::mem::take(&mut is_first) || before.is_some() {
                let state = Some(state.as_str());
                let found = self
                    .store
                    .documents(Kind::Saga, None, state, before.as_ref(), LIMITS.1)
                    .await;
                let (found, next) = self.readable_page(found)?;
                let found = found
                    .into_iter()
                    .filter(|document| super::readable(document).is_ok());
                sagas.extend(found.map(|document| SagaId {
                    tenant: document.tenant,
                    id: document.id,
                }));
                before = next;
            }
        }
        let counts = self.counted(
            "count_documents",
            self.store.count_documents(Kind::Saga).await,
        )?;
        let is_at_stake = |name: &str| AT_STAKE.iter().any(|state| state.as_str() == name);
        let there: u64 = counts
            .iter()
            .filter(|(name, _)| is_at_stake(name))
            .map(|(_, count)| count)
            .sum();
        let missing = there.saturating_sub(sagas.len() as u64);
        if missing > 0 {
            let why = format!(
                "{missing} of {there} sagas that are not at their end, so they cannot be stopped; the log names them. \
                 If no key opens them, add the missing one to store.encryption_keys; then accept the loss again"
            );
            return Err(store::Error::Unreadable(why));
        }
        Ok(sagas)
    }

    /// The store has lost data: no saga goes on, nor is one undone when its deadline is over, before a person has
    /// looked. What was completed or undone since may be forgotten.
    pub(in crate::gateway) async fn stop_sagas(
        &self,
        by: &str,
        reason: &str,
    ) -> Result<(), store::Error> {
        for id in self.sagas_at_stake().await? {
            let event = Event::StoreLost {
                by: format!("token {by}"),
                reason: reason.to_owned(),
            };
            // One that has come to its end meanwhile need not be stopped.
            let _: Option<Result<Saga, saga::Illegal>> = self.change_saga(&id, &event).await?;
        }
        Ok(())
    }
}

/// The states in which a saga may still go on.
const AT_STAKE: [saga::State; 3] = [
    saga::State::Open,
    saga::State::Compensating,
    saga::State::Stuck,
];

fn by(caller: &Caller) -> String {
    format!("token {}", caller.name)
}
