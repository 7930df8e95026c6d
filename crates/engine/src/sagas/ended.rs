//! Completes and aborts sagas, and lets operators settle stuck ones.

use std::sync::Arc;
use std::time::Duration;

use super::members::{Member, SagaAt, Unlisted};
use super::registry::SagaRegistry;
use super::worker::SagaWorker;
use crate::audit::{self, Steps};
use crate::base::{Base, Query};
use crate::error::{Error, ErrorKind, of_store, unavailable};
use crate::transition::Moved;
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::audit::{Act, Action};
use oncegate_rules::call::{self, Illegal};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::Kind;
use oncegate_rules::many::SeenVersion;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record, State as CallState};
use oncegate_rules::saga::{self, Event, Phase, Saga, SagaId};
use oncegate_rules::undo;
use oncegate_store as store;

/// What an operator does to a stuck saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SagaAct {
    /// Try again.
    Retry,
    /// Skip the call in trouble, which the reason is about. The call is not undone, and the saga goes on.
    Skip,
}

impl SagaAct {
    pub(crate) fn action(self) -> Action {
        match self {
            Self::Retry => Action::Retry,
            Self::Skip => Action::Skip,
        }
    }
}

/// The acts of callers and operators on sagas.
pub struct Sagas {
    pub(crate) base: Arc<Base>,
    pub(crate) registry: Arc<SagaRegistry>,
    pub(crate) worker: Arc<SagaWorker>,
}

impl Sagas {
    /// A saga with its calls, as far as the caller may see them.
    ///
    /// # Errors
    /// The caller may not see it, there is no such saga, or the store does not answer.
    pub async fn find_saga(&self, caller: &Caller, id: &SagaId) -> Result<SagaAt, Error> {
        if !caller.may_read(&id.tenant) && caller.tenant != id.tenant {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self.registry.known_saga(id).await?;
        let at = self.registry.with_calls(saga).await?;
        if caller.may_read(&id.tenant) || self.may_end(caller, &at) {
            Ok(at.for_caller(caller))
        } else {
            Err(ErrorKind::UnknownSaga.alone())
        }
    }

    fn may_end(&self, caller: &Caller, at: &SagaAt) -> bool {
        at.saga
            .may_be_ended_by(caller, self.registry.saga_tools(at).as_ref())
    }

    /// Sagas without their calls, newest first, and the position of the next page.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, or the store does not answer.
    pub async fn list_sagas(
        &self,
        caller: &Caller,
        query: &Query<Option<saga::State>>,
    ) -> Result<(Vec<Saga>, Option<Position>), Error> {
        let (base, word) = (&self.base, saga::State::as_str);
        let (found, next) = base.list_documents(Kind::Saga, caller, query, word).await?;
        // An unreadable saga is left out, and logged.
        let sagas = found
            .iter()
            .filter_map(|document| self.registry.readable(document).ok());
        Ok((sagas.collect(), next))
    }

    /// Completes a saga: none of its calls is undone any more.
    ///
    /// # Errors
    /// The caller may not, there is no such saga, or it is not open.
    pub async fn complete_saga(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let event = Event::Complete(By::token(&caller.name, reason));
        let act = Act::on_saga(caller, Action::Complete, id, reason);
        self.end(caller, id, event, act).await
    }

    /// Aborts a saga: its calls are undone from now on.
    ///
    /// # Errors
    /// As [`complete_saga`](Self::complete_saga).
    pub async fn abort_saga(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        let event = Event::Abort {
            by: By::token(&caller.name, reason),
            after_loss: caller.is_admin(),
        };
        let act = Act::on_saga(caller, Action::Abort, id, reason);
        self.end(caller, id, event, act).await
    }

    /// Completes or aborts a saga. Refuses a caller who may not, and every caller while data is lost.
    async fn end(
        self: &Arc<Self>,
        caller: &Caller,
        id: &SagaId,
        event: Event,
        act: Act,
    ) -> Result<SagaAt, Error> {
        if !caller.is_admin() {
            // Whether another tenant has such a saga is not revealed.
            if caller.tenant != id.tenant {
                return Err(ErrorKind::Forbidden.alone());
            }
            let saga = self.registry.known_saga(id).await?;
            if !self.may_end(caller, &self.registry.with_calls(saga).await?) {
                return Err(ErrorKind::Forbidden.alone());
            }
        }
        self.base.must_know_all_data().await?;
        let (sagas, caller, id) = (self.clone(), caller.clone(), id.clone());
        let ending = async move {
            let ending = async {
                let (saga, has_changed) = sagas.act_or_find(&id, &event).await?;
                let (by, state) = (&caller.name, saga.state().as_str());
                tracing::info!(saga = saga.id.id, by, state, "a saga was ended");
                Ok((saga, has_changed))
            };
            let is_abort = matches!(event, Event::Abort { .. });
            let saga = if caller.is_admin() {
                audit::recorded(&sagas.base, act, ending).await?.0
            } else if is_abort {
                audit::recorded_if_changed(&sagas.base, act, ending).await?
            } else {
                // For an agent this is the normal end of each saga, and no act of an operator.
                ending.await?.0
            };
            if is_abort {
                crash::point("saga_closed");
                sagas.worker.begin_undoing(&id);
            }
            let at = sagas.registry.with_calls(saga).await?;
            Ok(at.for_caller(&caller))
        };
        self.base.to_its_end(ending).await
    }

    async fn act_on_saga(&self, id: &SagaId, event: &Event) -> Result<Saga, Error> {
        Ok(self.act_or_find(id, event).await?.0)
    }

    /// Applies an event. Returns the saga after it, and whether the event has changed it.
    async fn act_or_find(&self, id: &SagaId, event: &Event) -> Result<(Saga, bool), Error> {
        let changed = self.registry.change_saga(id, event).await;
        let changed = changed
            .map_err(of_store)?
            .ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        changed.map_err(|illegal| ErrorKind::WrongState(illegal.to_string()).alone())
    }

    /// An operator acts on a stuck saga.
    ///
    /// `seen`: the saga as the operator saw it, if it must not have changed since.
    ///
    /// # Errors
    /// The caller is not an administrator, there is no such saga, it is not stuck, or not as it was seen.
    pub async fn act_on_stuck(
        self: &Arc<Self>,
        caller: &Caller,
        act: SagaAct,
        id: &SagaId,
        reason: &str,
        seen: Option<SeenVersion>,
    ) -> Result<SagaAt, Error> {
        let (sagas, caller) = (self.clone(), caller.clone());
        let (id, reason) = (id.clone(), reason.to_owned());
        self.base.admit_operator(&caller).await?;
        let acting = async move {
            let audited = Act::on_saga(&caller, act.action(), &id, &reason);
            let steps = Steps::default();
            let doing = sagas.settle(&caller, act, &id, &reason, seen, &steps);
            let outcome = |done: &_| steps.outcome(done);
            let saga = audit::recorded_as(&sagas.base, audited, doing, outcome).await?;
            sagas.registry.with_calls(saga).await
        };
        self.base.to_its_end(acting).await
    }

    /// Acts on a stuck saga, unless it has changed since it was `seen`.
    pub(crate) async fn settle(
        &self,
        caller: &Caller,
        act: SagaAct,
        id: &SagaId,
        reason: &str,
        seen: Option<SeenVersion>,
        steps: &Steps,
    ) -> Result<Saga, Error> {
        let stuck = self.stuck_saga(id).await?;
        is_as_seen(&stuck, seen)?;
        match act {
            SagaAct::Retry => self.retry(caller, &stuck, reason, steps).await,
            SagaAct::Skip => self.skip(caller, id, reason, seen, steps).await,
        }
    }

    async fn retry(
        &self,
        caller: &Caller,
        stuck: &Saga,
        reason: &str,
        steps: &Steps,
    ) -> Result<Saga, Error> {
        // Its calls first: if this breaks off here, the saga is still stuck and visible.
        let calls = match self.registry.calls_of(stuck).await {
            Ok(calls) => calls,
            Err(Unlisted::Store) => return Err(unavailable(())),
            Err(Unlisted::Broken(_)) => Vec::new(),
        };
        let is_stuck = |record: &&Record| matches!(record.state, CallState::Stuck(_));
        for stuck in calls.iter().map(Member::record).filter(is_stuck) {
            let record = self.base.store.load(stuck.intent.call_id).await;
            // A call that has changed since is left to the writer that changed it.
            let record = record.map_err(unavailable)?;
            let Some(record) = record.filter(|record| is_stuck(&record)) else {
                continue;
            };
            let record = self.registry.decide_anew(record).await;
            let by = By::token(&caller.name, reason);
            let marked = self.registry.to_compensate(&record, by).await;
            if let Moved::Written { .. } = marked.map_err(unavailable)? {
                steps.made();
            }
        }
        crash::point("saga_retried");
        let event = Event::Retry(By::token(&caller.name, reason));
        let saga = self.act_on_saga(&stuck.id, &event).await?;
        tracing::warn!(
            saga = saga.id.id,
            by = caller.name,
            "a stuck saga is tried again"
        );
        self.worker.begin_undoing(&saga.id);
        Ok(saga)
    }

    /// Skips the call in trouble: it is not undone, and the saga goes on.
    async fn skip(
        &self,
        caller: &Caller,
        id: &SagaId,
        reason: &str,
        seen: Option<SeenVersion>,
        steps: &Steps,
    ) -> Result<Saga, Error> {
        // The saga is written before its calls: a worker writes the saga before it sends a compensation.
        let held = Event::Held {
            until: self.base.busy_until(self.base.now(), Duration::ZERO),
        };
        let saga = self.act_on_saga(id, &held).await?;
        is_as_seen(&saga, seen)?;
        let Some(call_id) = saga.call_to_skip() else {
            let why = "the saga is stuck with no call: see its trouble";
            return Err(ErrorKind::WrongState(why.into()).alone());
        };
        let compensation = self.compensation_of(call_id).await.map_err(unavailable)?;
        let attempt = |made: &Option<Record>| made.as_ref().map(|made| made.attempt.id);
        let last = attempt(&compensation);
        let event = call::Event::Skipped {
            by: By::token(&caller.name, reason),
            compensation: compensation.map(Box::new),
        };
        let skipped = self.registry.apply(call_id, &event).await;
        let skipped = skipped.map_err(unavailable)?;
        let mut trace_id = None;
        match skipped {
            Some(Ok(record)) => {
                steps.made();
                self.registry.count_undo(&record, "skipped");
                trace_id = Some(record.intent.trace_id.clone());
                // A compensation that was claimed before the skip was written may have been sent.
                let made = self.compensation_of(call_id).await.map_err(unavailable)?;
                if attempt(&made) != last {
                    let made = made.map(|made| made.intent.call_id.to_string());
                    let made = made.unwrap_or_default();
                    tracing::error!(saga = id.id, by = caller.name, %call_id, trace_id, made, "a call was skipped while it was being undone");
                    let why = format!(
                        "{call_id} is skipped, but call {made}, which undoes it, has begun meanwhile: see what became of that one"
                    );
                    return Err(ErrorKind::WrongState(why).alone());
                }
            }
            // The call is settled already; the saga still has to go on.
            Some(Err(Illegal::NothingToUndo)) | None => {}
            Some(Err(illegal)) => return Err(ErrorKind::WrongState(illegal.to_string()).alone()),
        }
        let skipped = format!("skipped {call_id}: {reason}");
        let event = Event::Settled(By::token(&caller.name, &skipped));
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(saga = id.id, by = caller.name, %call_id, trace_id, "a call is not undone");
        self.worker.begin_undoing(id);
        Ok(saga)
    }

    /// The stored compensation of a call.
    async fn compensation_of(&self, call_id: CallId) -> Result<Option<Record>, store::Error> {
        let undone = self.base.store.load(call_id).await?;
        match undone.as_ref().and_then(Record::compensation) {
            Some(decided) => self.base.store.load(decided.call_id).await,
            None => Ok(None),
        }
    }

    /// Frees the sagas that waited for a stuck call, which an operator has settled.
    pub(crate) async fn go_on_after(&self, record: &Record, by: &By) {
        let intent = &record.intent;
        for id in [intent.saga_id.clone(), undo::key_of(intent.call_id)] {
            let id = SagaId::new(&intent.tenant, id);
            let reason = format!("call {} was resolved: {}", intent.call_id, by.reason);
            let event = Event::Settled(By::new(&by.actor, reason));
            match self.registry.change_saga(&id, &event).await {
                Ok(Some(Ok(_))) => self.worker.begin_undoing(&id),
                // There is no such saga, or it does not wait for an operator.
                Ok(Some(Err(_)) | None) => {}
                Err(error) => tracing::error!(
                    saga = id.id,
                    tenant = id.tenant,
                    call_id = %intent.call_id,
                    trace_id = intent.trace_id,
                    %error,
                    "a call was resolved, but its saga may still be stuck: have it tried again"
                ),
            }
        }
    }

    /// A stuck saga, for an act of an operator.
    async fn stuck_saga(&self, id: &SagaId) -> Result<Saga, Error> {
        let saga = self.registry.known_saga(id).await?;
        if saga.state() != saga::State::Stuck {
            let illegal = saga::Illegal::State(saga.state());
            return Err(ErrorKind::WrongState(illegal.to_string()).alone());
        }
        if saga.phase == Phase::OpenAtLoss {
            // Refused before any of its calls is changed: the saga may still be completed.
            return Err(ErrorKind::WrongState(saga::Illegal::AfterLoss.to_string()).alone());
        }
        Ok(saga)
    }

    /// An operator undoes one call, whatever saga it belongs to.
    ///
    /// # Errors
    /// The caller is not an administrator, there is no such call, or it cannot be undone.
    pub async fn compensate(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
    ) -> Result<SagaAt, Error> {
        self.base.admit_operator(caller).await?;
        let maker = self.base.store.maker(call_id).await.map_err(of_store)?;
        let maker = maker.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let on = (call_id, &maker.tenant[..], &maker.tool[..]);
        let act = Act::on_call(caller, Action::Compensate, on, reason);
        let (sagas, by) = (self.clone(), By::token(&caller.name, reason));
        let act = async move {
            let doing = sagas.compensate_call(call_id, &by);
            let saga = audit::recorded(&sagas.base, act, doing).await?;
            sagas.registry.with_calls(saga).await
        };
        self.base.to_its_end(act).await
    }

    /// Undoes one call, whatever saga it belongs to. A repetition is the same undoing.
    ///
    /// # Errors
    /// There is no such call, or it cannot be undone.
    pub async fn compensate_call(&self, call_id: CallId, by: &By) -> Result<Saga, Error> {
        let record = self.base.store.load(call_id).await.map_err(of_store)?;
        let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let id = SagaId::new(&record.intent.tenant, undo::key_of(call_id));
        if let Some(mut saga) = self.registry.saga(&id).await.map_err(of_store)? {
            if saga.may_undo_after_all(&record) {
                let event = Event::Abort {
                    by: by.clone(),
                    after_loss: false,
                };
                saga = self.act_on_saga(&id, &event).await?;
            }
            self.worker.begin_undoing(&id);
            return Ok(saga);
        }
        undo::may_be_undone(&record, &self.base.policy_of(&record))
            .map_err(|why| ErrorKind::WrongState(why.into()).of_call(call_id))?;
        let saga = Saga::undo(&id.tenant, call_id, by, self.base.now());
        let saga = match self.registry.put_saga(&saga).await.map_err(of_store)? {
            Ok(()) => saga,
            Err(newer) => newer.ok_or_else(|| unavailable(()))?,
        };
        tracing::warn!(%call_id, trace_id = record.intent.trace_id, by = by.actor, "a call is undone");
        self.worker.begin_undoing(&id);
        Ok(saga)
    }
}

/// Refuses an act on a saga that has changed since an operator saw it.
fn is_as_seen(saga: &Saga, seen: Option<SeenVersion>) -> Result<(), Error> {
    match seen {
        Some(seen) if seen != SeenVersion::of_saga(saga) => Err(ErrorKind::JustChanged.alone()),
        _ => Ok(()),
    }
}
