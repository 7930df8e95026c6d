//! Sagas, on the side of those who make calls and of persons: joining, completing, aborting, looking. What
//! is undone is undone by `undo`; the rules are in `core::saga`.

use std::sync::Arc;

use super::call::new_call_id;
use super::run::ROUNDS;
use super::{Error, ErrorKind, Gateway};
use crate::core::call::{self, Illegal};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind, Place};
use crate::core::key::{self, Lookup};
use crate::core::ledger::{Filter, LIMITS};
use crate::core::record::{CallId, Compensation, Record, State as CallState};
use crate::core::saga::{self, Event, Saga, SagaId};
use crate::core::{compensation, tool};
use crate::crash;
use crate::store::{self, Put, Replaced};

/// A saga with its calls, those that undo others apart.
#[derive(Debug, Clone)]
pub struct SagaAt {
    pub saga: Saga,
    /// In the order in which they were made.
    pub calls: Vec<Record>,
    pub compensations: Vec<Record>,
}

/// Sagas that are asked for.
#[derive(Debug, Clone)]
pub struct SagaQuery {
    /// `None`: the caller's own, or everyone's for an administrator.
    pub tenant: Option<String>,
    pub state: Option<saga::State>,
    pub before: Option<Place>,
    pub limit: u32,
}

/// Calls of one saga that are looked at.
const MAX_CALLS: usize = 10_000;

impl Gateway {
    /// Whether a call that was just claimed may be sent, as far as its saga goes; the first that names a saga
    /// begins it. Nothing is sent before this has answered: whoever closes the saga after it finds the call.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(super) async fn join_saga(&self, record: &Record) -> Result<(), ErrorKind> {
        let intent = &record.intent;
        if intent.saga_id.is_empty() || intent.key_source == key::Source::Compensation {
            return Ok(());
        }
        let id = SagaId { tenant: intent.tenant.clone(), id: intent.saga_id.clone() };
        let saga = self.ensure_saga(&id).await.map_err(|_| ErrorKind::StoreUnavailable)?;
        if saga.is_open() {
            return Ok(());
        }
        let state = saga.state.as_str();
        Err(ErrorKind::WrongState(format!("its saga is {state} and takes no calls any more")))
    }

    /// The saga of this name; it begins now if there is none.
    pub(super) async fn ensure_saga(&self, id: &SagaId) -> Result<Saga, store::Error> {
        if let Some(saga) = self.saga(id).await? {
            return Ok(saga);
        }
        let begun = Saga::begin(id.clone(), &self.limits.sagas, self.now());
        match self.put_saga(&begun).await? {
            Ok(()) => Ok(begun),
            Err(Some(there)) => Ok(there),
            Err(None) => Err(store::Error::Ambiguous("a saga came and went".into())),
        }
    }

    /// What is known of a saga. One that cannot be read is an error, and not an absent one.
    pub(super) async fn saga(&self, id: &SagaId) -> Result<Option<Saga>, store::Error> {
        let found = self.counted("document", self.store.document(Kind::Saga, &id.tenant, &id.id).await)?;
        found.as_ref().map(readable).transpose()
    }

    /// Writes a saga, unless somebody has changed it since: then that is answered.
    pub(super) async fn put_saga(&self, saga: &Saga) -> Result<Result<(), Option<Saga>>, store::Error> {
        match self.counted("put_document", self.store.put_document(&saga.to_document()).await)? {
            Put::Done => Ok(Ok(())),
            Put::Lost(there) => Ok(Err(there.as_ref().map(readable).transpose()?)),
        }
    }

    /// The saga after an event, as it is stored; `None`: there is no such saga.
    pub(super) async fn change_saga(
        &self,
        id: &SagaId,
        event: &Event,
    ) -> Result<Option<Result<Saga, saga::Illegal>>, store::Error> {
        let mut there = self.saga(id).await?;
        for _ in 0..ROUNDS {
            let Some(saga) = there else { return Ok(None) };
            let changed = match saga::next(&saga, event, &self.limits.sagas, self.now()) {
                Ok(changed) if changed == saga => return Ok(Some(Ok(saga))),
                Ok(changed) => changed,
                Err(illegal) => return Ok(Some(Err(illegal))),
            };
            match self.put_saga(&changed).await? {
                Ok(()) => return Ok(Some(Ok(changed))),
                Err(newer) => there = newer,
            }
        }
        Err(store::Error::Refused("a saga changes too fast".into()))
    }

    /// Every call that names a saga, and the one that a saga of its own is about; in no order.
    pub(super) async fn calls_of(&self, saga: &Saga) -> Result<Vec<Record>, store::Error> {
        let filter = Filter { saga_id: Some(saga.id.id.clone()), ..Filter::default() };
        let (mut calls, mut before) = (Vec::new(), None);
        if let Some(only) = saga.only {
            calls.extend(self.counted("load", self.store.load(only).await)?);
        }
        loop {
            let page = self.store.list(&saga.id.tenant, &filter, before, LIMITS.1).await;
            let page = self.counted("list", page)?;
            calls.extend(page.found.into_iter().map(|listed| listed.record));
            if calls.len() > MAX_CALLS {
                return Err(store::Error::Refused(format!("a saga of more than {MAX_CALLS} calls")));
            }
            before = page.next;
            if before.is_none() {
                return Ok(calls);
            }
        }
    }

    async fn with_calls(&self, saga: Saga) -> Result<SagaAt, Error> {
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let all = self.calls_of(&saga).await.map_err(unavailable)?;
        let is_own = |record: &Record| record.intent.key_source == key::Source::Compensation;
        let (compensations, mut calls): (Vec<Record>, Vec<Record>) = all.into_iter().partition(is_own);
        calls.sort_by_key(|record| (record.intent.created_at, record.intent.call_id));
        Ok(SagaAt { saga, calls, compensations })
    }

    /// A saga with its calls.
    ///
    /// # Errors
    /// The caller may not read this tenant's calls, there is no such saga, or the store does not answer.
    pub async fn find_saga(&self, caller: &Caller, id: &SagaId) -> Result<SagaAt, Error> {
        if !caller.may_read(&id.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self.saga(id).await.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        self.with_calls(saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?).await
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
        let may_read = tenant.as_ref().map_or_else(|| caller.is_admin(), |tenant| caller.may_read(tenant));
        if !may_read {
            return Err(ErrorKind::Forbidden.alone());
        }
        let state = query.state.map(saga::State::as_str);
        let found = self
            .store
            .documents(Kind::Saga, tenant.as_deref(), state, query.before.as_ref(), query.limit)
            .await;
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let (found, next) = self.counted("documents", found).map_err(unavailable)?;
        // One that cannot be read keeps no other back.
        Ok((found.iter().filter_map(|document| readable(document).ok()).collect(), next))
    }

    /// The plan has come to its end: nothing of it is undone any more.
    ///
    /// # Errors
    /// The caller may not, there is no such saga, or it is not open.
    pub async fn complete_saga(&self, caller: &Caller, id: &SagaId, reason: &str) -> Result<SagaAt, Error> {
        let event = Event::Complete { by: by(caller), reason: reason.to_owned() };
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
        let event = Event::Abort { by: by(caller), reason: reason.to_owned() };
        let at = self.end_saga(caller, id, &event).await?;
        crash::point("saga_closed");
        self.begin_undoing(id);
        Ok(at)
    }

    async fn end_saga(&self, caller: &Caller, id: &SagaId, event: &Event) -> Result<SagaAt, Error> {
        if !caller.may_end_sagas(&id.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self.act_on_saga(id, event).await?;
        tracing::info!(saga = saga.id.id, by = caller.name, state = saga.state.as_str(), "a saga was ended");
        self.with_calls(saga).await
    }

    async fn act_on_saga(&self, id: &SagaId, event: &Event) -> Result<Saga, Error> {
        let changed = self.change_saga(id, event).await;
        let changed = changed.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
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
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        // Its calls first: if this breaks off here, it is still stuck, and seen.
        for record in self.calls_of(&saga).await.map_err(unavailable)? {
            if matches!(record.state, CallState::Stuck(_)) {
                self.to_compensate(&record, &by(caller), reason)
                    .await
                    .map_err(|_| ErrorKind::StoreUnavailable.alone())?;
            }
        }
        crash::point("saga_retried");
        let event = Event::Retry { by: by(caller), reason: reason.to_owned() };
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(saga = id.id, by = caller.name, "a stuck saga is tried again");
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
        let saga = self.stuck_saga(caller, id).await?;
        let Some(trouble) = &saga.trouble else {
            return Err(ErrorKind::WrongState("the saga is stuck with no call".into()).alone());
        };
        let event = call::Event::Skipped { by: caller.name.clone(), reason: reason.to_owned() };
        let skipped = self.apply(trouble.call_id, &event).await;
        let skipped = skipped.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        match skipped {
            Some(Ok(record)) => self.count_undo(&record, "skipped"),
            // Somebody has settled it already; the saga still has to go on.
            Some(Err(Illegal::NothingToUndo)) | None => {}
            Some(Err(illegal)) => return Err(ErrorKind::WrongState(illegal.to_string()).alone()),
        }
        let event =
            Event::Settled { by: by(caller), reason: format!("skipped {}: {reason}", trouble.call_id) };
        let saga = self.act_on_saga(id, &event).await?;
        tracing::warn!(saga = id.id, by = caller.name, call_id = %trouble.call_id, "a call is not undone");
        self.begin_undoing(id);
        self.with_calls(saga).await
    }

    /// A person has settled a call that was stuck: the sagas that waited for that go on.
    pub(super) async fn go_on_after(self: &Arc<Self>, record: &Record, by: &str, reason: &str) {
        let intent = &record.intent;
        for id in [intent.saga_id.clone(), compensation::key_of(intent.call_id)] {
            let id = SagaId { tenant: intent.tenant.clone(), id };
            let reason = format!("call {} was resolved: {reason}", intent.call_id);
            let event = Event::Settled { by: by.to_owned(), reason };
            if let Ok(Some(Ok(_))) = self.change_saga(&id, &event).await {
                self.begin_undoing(&id);
            }
        }
    }

    async fn stuck_saga(&self, caller: &Caller, id: &SagaId) -> Result<Saga, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self.saga(id).await.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        let saga = saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?;
        if saga.state != saga::State::Stuck {
            let illegal = saga::Illegal::State(saga.state);
            return Err(ErrorKind::WrongState(illegal.to_string()).alone());
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
        let saga = self.compensate_call(call_id, &by(caller), reason).await?;
        self.with_calls(saga).await
    }

    /// Undoes one call, whatever saga it belongs to. Asked again it is the same undoing.
    ///
    /// # Errors
    /// There is no such call, or it cannot be undone.
    pub(super) async fn compensate_call(
        self: &Arc<Self>,
        call_id: CallId,
        by: &str,
        reason: &str,
    ) -> Result<Saga, Error> {
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let wrong = |why: &str| Error {
            kind: ErrorKind::WrongState(why.to_owned()),
            call_id: Some(call_id),
            key: None,
        };
        let record = self.counted("load", self.store.load(call_id).await).map_err(unavailable)?;
        let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
        let tool = self.policy_of(&record);
        let id = SagaId { tenant: record.intent.tenant.clone(), id: compensation::key_of(call_id) };
        if let Some(saga) = self.saga(&id).await.map_err(unavailable)? {
            self.begin_undoing(&id);
            return Ok(saga);
        }
        match &record.state {
            _ if tool.effect == tool::Effect::Read => return Err(wrong("the tool only reads")),
            _ if tool.compensation == compensation::Policy::Needless => {
                return Err(wrong("its tool has nothing to undo: compensation = \"none\""));
            }
            _ if record.intent.key_source == key::Source::Compensation => {
                return Err(wrong("the call undoes another one itself"));
            }
            CallState::Compensated(_) => return Err(wrong("what the call did has been undone")),
            CallState::Unknown(_) if !call::undoes_unknown(&tool) => {
                return Err(wrong("nobody knows whether the call was executed: resolve it first"));
            }
            _ => {}
        }
        let saga = Saga::undo(&id.tenant, call_id, by, reason, self.now());
        let saga = match self.put_saga(&saga).await.map_err(unavailable)? {
            Ok(()) => saga,
            Err(there) => there.ok_or_else(|| ErrorKind::StoreUnavailable.alone())?,
        };
        tracing::warn!(%call_id, by, "a call is undone");
        self.begin_undoing(&id);
        Ok(saga)
    }

    /// Decides by which call another one is undone, and writes that down. `None`: somebody has changed it.
    pub(super) async fn to_compensate(
        &self,
        record: &Record,
        by: &str,
        reason: &str,
    ) -> Result<Option<Record>, Illegal> {
        let tool = self.policy_of(record);
        let decided = record.undo.as_ref().and_then(|undo| undo.compensation.clone());
        let compensation = decided.or_else(|| match &tool.compensation {
            compensation::Policy::By(template) => {
                let key = compensation::key_of(record.intent.call_id);
                let lookup = Lookup::new(&record.intent.tenant, &template.tool, &key);
                Some(Compensation { tool: template.tool.clone(), call_id: new_call_id(&lookup) })
            }
            compensation::Policy::Undeclared | compensation::Policy::Needless => None,
        });
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let event = call::Event::ToCompensate { by, reason, compensation };
        let next = call::next(&tool, Some(record), &event, self.now())?;
        let Some(change) = next.change else { return Ok(None) };
        match self.counted("replace", self.store.replace(&change, record).await) {
            Ok(Replaced::Done(record)) => {
                if matches!(record.state, CallState::Compensated(_)) {
                    self.count_undo(&record, "empty");
                }
                Ok(Some(record))
            }
            Ok(Replaced::Lost(_) | Replaced::Barred(_)) | Err(_) => Ok(None),
        }
    }

    /// A call after an event that leads to nothing else; `None`: there is no such call.
    pub(super) async fn apply(
        &self,
        call_id: CallId,
        event: &call::Event,
    ) -> Result<Option<Result<Record, Illegal>>, store::Error> {
        for _ in 0..ROUNDS {
            let Some(record) = self.counted("load", self.store.load(call_id).await)? else { return Ok(None) };
            let change = match call::next(&self.policy_of(&record), Some(&record), event, self.now()) {
                Ok(next) => next.change,
                Err(illegal) => return Ok(Some(Err(illegal))),
            };
            let Some(change) = change else { return Ok(Some(Ok(record))) };
            if let Replaced::Done(record) =
                self.counted("replace", self.store.replace(&change, &record).await)?
            {
                return Ok(Some(Ok(record)));
            }
        }
        Err(store::Error::Refused("a call changes too fast".into()))
    }

    pub(super) fn count_undo(&self, record: &Record, result: &str) {
        self.metrics.compensations.with_label_values(&[&record.intent.tool, result]).inc();
    }
}

fn by(caller: &Caller) -> String {
    format!("token {}", caller.name)
}

fn readable(document: &Document) -> Result<Saga, store::Error> {
    Saga::from_document(document).map_err(|why| {
        tracing::error!(saga = document.id, why, "a saga cannot be read");
        store::Error::Refused(format!("a saga cannot be read: {why}"))
    })
}
