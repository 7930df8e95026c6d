//! Sagas as they are stored: joining, and the marks on their calls. The rules are in `core::saga`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::member::Member;
use crate::core::call::{self, Illegal};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind, Place};
use crate::core::key::{self, Lookup};
use crate::core::ledger::LIMITS;
use crate::core::record::{CallId, Compensation, Intent, Record, State as CallState, Undo};
use crate::core::saga::{self, Event, Saga, SagaId};
use crate::core::{compensation, undo};
use crate::gateway::base::Base;
use crate::gateway::error::ErrorKind;
use crate::gateway::ids::new_call_id;
use crate::gateway::transition::{self, Moved, OnConflict, ROUNDS};
use crate::store::{self, Put};

/// A saga with its calls, those that undo others apart.
#[derive(Debug, Clone)]
pub struct SagaAt {
    pub saga: Saga,
    /// In the order in which they were made, without what was said in them; so are the others.
    pub(super) calls: Vec<Member>,
    pub(super) compensations: HashMap<CallId, Member>,
    /// There are more than are shown, or some of them cannot be read.
    pub is_cut: bool,
}

impl SagaAt {
    pub fn calls(&self) -> impl Iterator<Item = &Record> {
        self.calls.iter().map(Member::record)
    }

    /// The same for one caller. Without the scope `read` a caller sees only the state and its own calls.
    pub(in crate::gateway) fn for_caller(self, caller: &Caller) -> Self {
        if caller.may_read(&self.saga.id.tenant) {
            return self;
        }
        let Self {
            saga,
            mut calls,
            compensations,
            is_cut,
        } = self;
        let all = calls.len();
        calls.retain(|member| {
            let intent = &member.record().intent;
            caller.may_read_call(&intent.tenant, &intent.tool, &intent.made_by)
        });
        let is_cut = is_cut || calls.len() < all;
        let saga = Saga {
            reason: String::new(),
            trouble: None,
            events: Vec::new(),
            ..saga
        };
        Self {
            saga,
            calls,
            compensations,
            is_cut,
        }
    }

    /// What there is of the call that undoes this one.
    pub fn compensation_of(&self, record: &Record) -> Option<&Record> {
        let decided = record.undo.as_ref()?.compensation.as_ref()?;
        self.compensations.get(&decided.call_id).map(Member::record)
    }
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

/// What came of deciding that a call is undone.
pub(in crate::gateway) enum Marked {
    Done(Box<Record>),
    /// Another writer has changed it meanwhile.
    Changed,
    /// The store did not take it. It was said.
    Unwritten,
    Illegal(Illegal),
}

/// What is stored of sagas: their documents, and the marks on their calls.
pub(in crate::gateway) struct SagaRegistry {
    pub(super) base: Arc<Base>,
    /// How many persons accept a loss of data here just now.
    pub(in crate::gateway) acceptances: AtomicUsize,
}

impl SagaRegistry {
    pub(in crate::gateway) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            acceptances: AtomicUsize::new(0),
        }
    }

    /// Whether a call that was just claimed may be sent, as far as its saga goes; the first that names a saga
    /// begins it. Nothing is sent before this has answered: what closes the saga after that finds the call.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(in crate::gateway) async fn join_saga(&self, intent: &Intent) -> Result<(), ErrorKind> {
        if intent.key_source == key::Source::Compensation {
            let is_wanted = self
                .is_wanted(intent)
                .await
                .map_err(|_| ErrorKind::StoreUnavailable)?;
            let settled = || ErrorKind::WrongState("what it was to undo is settled".into());
            return if is_wanted { Ok(()) } else { Err(settled()) };
        }
        if intent.saga_id.is_empty() {
            return Ok(());
        }
        let id = SagaId {
            tenant: intent.tenant.clone(),
            id: intent.saga_id.clone(),
        };
        let saga = self
            .ensure_saga(&id, &intent.made_by)
            .await
            .map_err(ErrorKind::of_store)?;
        if saga.is_open() {
            return Ok(());
        }
        let state = saga.state().as_str();
        Err(ErrorKind::WrongState(format!(
            "its saga is {state} and takes no calls any more"
        )))
    }

    /// Whether a call that the gateway makes itself is still to be sent: a person may have settled what it undoes.
    async fn is_wanted(&self, intent: &Intent) -> Result<bool, store::Error> {
        let Some(undone) = undo::undone_by(&intent.key) else {
            return Ok(true);
        };
        let record = self.base.store.load(undone).await?;
        Ok(record.is_some_and(|record| {
            let decided = record
                .undo
                .as_ref()
                .and_then(|undo| undo.compensation.as_ref());
            let is_this = decided.is_some_and(|decided| decided.call_id == intent.call_id);
            is_this && matches!(record.state, CallState::Compensating(_))
        }))
    }

    /// Whether an unknown call may be sent again, as far as its saga goes.
    pub(in crate::gateway) async fn is_wanted_again(
        &self,
        intent: &Intent,
    ) -> Result<bool, store::Error> {
        if intent.key_source == key::Source::Compensation {
            return self.is_wanted(intent).await;
        }
        if intent.saga_id.is_empty() {
            return Ok(true);
        }
        let id = SagaId {
            tenant: intent.tenant.clone(),
            id: intent.saga_id.clone(),
        };
        Ok(self
            .saga(&id)
            .await?
            .is_none_or(|saga| saga.may_send_again()))
    }

    /// A call has lost its owner. Its saga may not have begun, or may have come to its end without it.
    ///
    /// # Errors
    /// The saga cannot be read or written; it was said.
    pub(in crate::gateway) async fn find_saga_of(
        &self,
        intent: &Intent,
    ) -> Result<(), store::Error> {
        if intent.saga_id.is_empty() {
            return Ok(());
        }
        let id = SagaId {
            tenant: intent.tenant.clone(),
            id: intent.saga_id.clone(),
        };
        if intent.key_source != key::Source::Compensation {
            self.ensure_saga(&id, &intent.made_by).await?;
        }
        self.change_saga(&id, &Event::CallFound).await.map(|_| ())
    }

    /// The saga of this name; it begins now, with a call of this token, if there is none.
    pub(in crate::gateway) async fn ensure_saga(
        &self,
        id: &SagaId,
        made_by: &str,
    ) -> Result<Saga, store::Error> {
        if let Some(saga) = self.saga(id).await? {
            return Ok(saga);
        }
        let begun = Saga::begin(id.clone(), &self.base.limits.sagas, self.base.now());
        let begun = Saga {
            begun_by: made_by.to_owned(),
            ..begun
        };
        match self.put_saga(&begun).await? {
            Ok(()) => Ok(begun),
            Err(Some(there)) => Ok(there),
            Err(None) => Err(store::Error::Ambiguous("a saga came and went".into())),
        }
    }

    /// What is known of a saga. One that cannot be read is an error, and not an absent one.
    pub(in crate::gateway) async fn saga(&self, id: &SagaId) -> Result<Option<Saga>, store::Error> {
        let found = self
            .base
            .store
            .document(Kind::Saga, &id.tenant, &id.id)
            .await?;
        found.as_ref().map(readable).transpose()
    }

    /// Writes a saga, unless another writer has changed it since: then answers with that one.
    pub(in crate::gateway) async fn put_saga(
        &self,
        saga: &Saga,
    ) -> Result<Result<(), Option<Saga>>, store::Error> {
        // None may be set going behind the one who stops them all.
        if self.acceptances.load(Ordering::SeqCst) > 0 {
            return Err(store::Error::Refused(
                "a loss of data is being accepted".into(),
            ));
        }
        self.write_saga(saga).await
    }

    async fn write_saga(&self, saga: &Saga) -> Result<Result<(), Option<Saga>>, store::Error> {
        match self.base.store.put_document(&saga.to_document()).await? {
            Put::Done => Ok(Ok(())),
            Put::Lost(there) => Ok(Err(there.as_ref().map(readable).transpose()?)),
        }
    }

    /// The saga after an event, as it is stored; `None`: there is no such saga.
    pub(in crate::gateway) async fn change_saga(
        &self,
        id: &SagaId,
        event: &Event,
    ) -> Result<Option<Result<Saga, saga::Illegal>>, store::Error> {
        let mut there = self.saga(id).await?;
        for _ in 0..ROUNDS {
            let Some(saga) = there else { return Ok(None) };
            let changed = match saga::next(&saga, event, &self.base.limits.sagas, self.base.now()) {
                Ok(changed) if changed == saga => return Ok(Some(Ok(saga))),
                Ok(changed) => changed,
                Err(illegal) => return Ok(Some(Err(illegal))),
            };
            let put = match event {
                Event::StoreLost { .. } => self.write_saga(&changed).await?,
                _ => self.put_saga(&changed).await?,
            };
            match put {
                Ok(()) => return Ok(Some(Ok(changed))),
                Err(newer) => there = newer,
            }
        }
        Err(store::Error::Refused("a saga changes too fast".into()))
    }

    /// The tools of a saga's calls and of what undoes them, as it was decided or is configured now. `None` if not all of
    /// its calls are known.
    pub(in crate::gateway) fn saga_tools(&self, at: &SagaAt) -> Option<BTreeSet<String>> {
        let mut tools = BTreeSet::new();
        for record in at.calls() {
            tools.insert(record.intent.tool.clone());
            let decided = record
                .undo
                .as_ref()
                .and_then(|undo| undo.compensation.as_ref());
            tools.extend(decided.map(|decided| decided.tool.clone()));
            if let compensation::Policy::By(template) = &self.base.policy_of(record).compensation {
                tools.insert(template.tool.clone());
            }
        }
        (!at.is_cut).then_some(tools)
    }

    /// The same call with the compensation that its tool has by now, if that is another one than was decided on
    /// and the old one surely was not executed. Only of a call that is stuck: as long as it is, nothing is sent
    /// for it, so the old one does not run either.
    pub(super) async fn decide_anew(&self, record: &Record) -> Record {
        let decided = record
            .undo
            .as_ref()
            .and_then(|undo| undo.compensation.as_ref());
        let policy = self.base.policy_of(record).compensation;
        let (decided, template) = match (decided, &policy) {
            (Some(decided), compensation::Policy::By(template))
                if template.tool != decided.tool =>
            {
                (decided, template)
            }
            _ => return record.clone(),
        };
        match self.base.store.load(decided.call_id).await {
            Ok(
                None
                | Some(Record {
                    state: CallState::Failed(_),
                    ..
                }),
            ) => {}
            Ok(Some(_)) | Err(_) => return record.clone(),
        }
        // One that was decided on before that, and failed, too, holds its key.
        let lookup = lookup_of(record, &template.tool);
        let call_id = match self.base.store.holders(&[lookup]).await {
            Ok(there) => there
                .first()
                .map_or_else(|| new_call_id(&lookup), |there| there.record.intent.call_id),
            Err(_) => return record.clone(),
        };
        let compensation = Some(Compensation {
            tool: template.tool.clone(),
            call_id,
        });
        Record {
            undo: Some(Undo {
                compensation,
                skipped: false,
            }),
            ..record.clone()
        }
    }

    /// Decides by which call another one is undone, and writes that down.
    pub(in crate::gateway) async fn to_compensate(
        &self,
        record: &Record,
        by: &str,
        reason: &str,
    ) -> Marked {
        let tool = self.base.policy_of(record);
        let decided = record
            .undo
            .as_ref()
            .and_then(|undo| undo.compensation.clone());
        let compensation = decided.or_else(|| match &tool.compensation {
            compensation::Policy::By(template) => {
                let lookup = lookup_of(record, &template.tool);
                Some(Compensation {
                    tool: template.tool.clone(),
                    call_id: new_call_id(&lookup),
                })
            }
            compensation::Policy::Undeclared | compensation::Policy::Needless => None,
        });
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let event = call::Event::ToCompensate {
            by,
            reason,
            compensation,
        };
        let (record, now) = (record.clone(), self.base.now());
        match transition::apply(&self.base, &tool, record, &event, now, OnConflict::GiveUp).await {
            Ok(Moved::Written { record, .. }) => {
                if matches!(record.state, CallState::Compensated(_)) {
                    self.count_undo(&record, "empty");
                }
                Marked::Done(Box::new(record))
            }
            Ok(Moved::Refused(_, illegal)) => Marked::Illegal(illegal),
            Ok(Moved::Unchanged(..) | Moved::Lost(_)) => Marked::Changed,
            Err(_) => Marked::Unwritten,
        }
    }

    /// A call after an event that leads to nothing else; `None`: there is no such call.
    pub(in crate::gateway) async fn apply(
        &self,
        call_id: CallId,
        event: &call::Event,
    ) -> Result<Option<Result<Record, Illegal>>, store::Error> {
        let retry = OnConflict::RetryOnLatest;
        let moved = transition::load_and_apply(&self.base, call_id, event, retry).await?;
        match moved {
            None | Some(Moved::Lost(None)) => Ok(None),
            Some(Moved::Written { record, .. } | Moved::Unchanged(record, _)) => {
                Ok(Some(Ok(record)))
            }
            Some(Moved::Refused(_, illegal)) => Ok(Some(Err(illegal))),
            Some(Moved::Lost(Some(_))) => {
                Err(store::Error::Refused("a call changes too fast".into()))
            }
        }
    }

    /// The sagas that are stopped when a loss is accepted.
    ///
    /// # Errors
    /// The store failed, or some of them cannot be read: those would go on as soon as they can be read again.
    pub(in crate::gateway) async fn sagas_at_stake(&self) -> Result<Vec<SagaId>, store::Error> {
        let mut sagas = Vec::new();
        for state in saga::State::UNFINISHED {
            let (mut before, mut is_first) = (None, true);
            while std::mem::take(&mut is_first) || before.is_some() {
                let state = Some(state.as_str());
                let found = self
                    .base
                    .store
                    .documents(Kind::Saga, None, state, before.as_ref(), LIMITS.1)
                    .await;
                let (found, next) = self.base.readable_page(found)?;
                let found = found
                    .into_iter()
                    .filter(|document| readable(document).is_ok());
                sagas.extend(found.map(|document| SagaId {
                    tenant: document.tenant,
                    id: document.id,
                }));
                before = next;
            }
        }
        let counts = self.base.store.count_documents(Kind::Saga).await?;
        let is_at_stake = |name: &str| {
            saga::State::UNFINISHED
                .iter()
                .any(|state| state.as_str() == name)
        };
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

    pub(in crate::gateway) fn count_undo(&self, record: &Record, result: &str) {
        self.base
            .metrics
            .compensations
            .with_label_values(&[&record.intent.tool, result])
            .inc();
    }
}

/// The lookup key of the call of a tool that undoes this one.
fn lookup_of(record: &Record, tool: &str) -> Lookup {
    Lookup::new(
        &record.intent.tenant,
        tool,
        &undo::key_of(record.intent.call_id),
    )
}

pub(super) fn readable(document: &Document) -> Result<Saga, store::Error> {
    Saga::from_document(document).map_err(|why| {
        tracing::error!(saga = document.id, why, "a saga cannot be read");
        store::Error::Unreadable(format!("saga: {why}"))
    })
}
