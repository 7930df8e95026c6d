//! Sagas, on the side of those who make calls: joining and looking. What is undone is undone by `undo`; the
//! rules are in `core::saga`.

mod ended; // completed and aborted, and what persons do about one that is stuck
mod members; // which calls a saga has

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

pub(super) use self::members::{Member, Unlisted};
use super::call::new_call_id;
use super::transition::{self, Moved, OnConflict, ROUNDS};
use super::{Error, ErrorKind, Gateway};
use crate::core::call::{self, Illegal};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind, Place};
use crate::core::key::{self, Lookup};
use crate::core::record::{CallId, Compensation, Intent, Record, State as CallState, Undo};
use crate::core::saga::{self, Event, Saga, SagaId};
use crate::core::{compensation, undo};
use crate::store::{self, Put};

/// A saga with its calls, those that undo others apart.
#[derive(Debug, Clone)]
pub struct SagaAt {
    pub saga: Saga,
    /// In the order in which they were made, without what was said in them; so are the others.
    calls: Vec<Member>,
    compensations: HashMap<CallId, Member>,
    /// There are more than are shown, or some of them cannot be read.
    pub is_cut: bool,
}

impl SagaAt {
    pub fn calls(&self) -> impl Iterator<Item = &Record> {
        self.calls.iter().map(Member::record)
    }

    /// The same for one caller. Without the scope `read` a caller sees only the state and its own calls.
    pub(super) fn for_caller(self, caller: &Caller) -> Self {
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
pub(super) enum Marked {
    Done(Box<Record>),
    /// Somebody has changed it meanwhile.
    Changed,
    /// The store did not take it. It was said.
    Unwritten,
    Illegal(Illegal),
}

impl Gateway {
    /// What is done about sagas, as it was at the start.
    pub fn saga_policy(&self) -> &saga::Policy {
        &self.limits.sagas
    }

    /// Whether a call that was just claimed may be sent, as far as its saga goes; the first that names a saga
    /// begins it. Nothing is sent before this has answered: whoever closes the saga after it finds the call.
    ///
    /// # Errors
    /// Why it is not sent.
    pub(super) async fn join_saga(&self, intent: &Intent) -> Result<(), ErrorKind> {
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
        let state = saga.state.as_str();
        Err(ErrorKind::WrongState(format!(
            "its saga is {state} and takes no calls any more"
        )))
    }

    /// Whether a call that the gateway makes itself is still to be sent: a person may have settled what it undoes.
    async fn is_wanted(&self, intent: &Intent) -> Result<bool, store::Error> {
        let Some(undone) = undo::undone_by(&intent.key) else {
            return Ok(true);
        };
        let record = self.counted("load", self.store.load(undone).await)?;
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
    pub(super) async fn is_wanted_again(&self, intent: &Intent) -> Result<bool, store::Error> {
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
    pub(super) async fn find_saga_of(&self, intent: &Intent) -> Result<(), store::Error> {
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
    pub(super) async fn ensure_saga(
        &self,
        id: &SagaId,
        made_by: &str,
    ) -> Result<Saga, store::Error> {
        if let Some(saga) = self.saga(id).await? {
            return Ok(saga);
        }
        let begun = Saga::begin(id.clone(), &self.limits.sagas, self.now());
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
    pub(super) async fn saga(&self, id: &SagaId) -> Result<Option<Saga>, store::Error> {
        let found = self.counted(
            "document",
            self.store.document(Kind::Saga, &id.tenant, &id.id).await,
        )?;
        found.as_ref().map(readable).transpose()
    }

    /// Writes a saga, unless somebody has changed it since: then that is answered.
    pub(super) async fn put_saga(
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
        match self.counted(
            "put_document",
            self.store.put_document(&saga.to_document()).await,
        )? {
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

    /// A saga with its calls, as far as the caller may see them.
    ///
    /// # Errors
    /// The caller may not see it, there is no such saga, or the store does not answer.
    pub async fn find_saga(&self, caller: &Caller, id: &SagaId) -> Result<SagaAt, Error> {
        if !caller.may_read(&id.tenant) && caller.tenant != id.tenant {
            return Err(ErrorKind::Forbidden.alone());
        }
        let saga = self
            .saga(id)
            .await
            .map_err(|error| ErrorKind::of_store(error).alone())?;
        let at = self
            .with_calls(saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())?)
            .await?;
        if caller.may_read(&id.tenant) || caller.may_end(&at.saga, self.saga_tools(&at).as_ref()) {
            Ok(at.for_caller(caller))
        } else {
            Err(ErrorKind::UnknownSaga.alone())
        }
    }

    /// The tools of a saga's calls and of what undoes them, as it was decided or is configured now. `None` if not all of
    /// its calls are known.
    pub(super) fn saga_tools(&self, at: &SagaAt) -> Option<BTreeSet<String>> {
        let mut tools = BTreeSet::new();
        for record in at.calls() {
            tools.insert(record.intent.tool.clone());
            let decided = record
                .undo
                .as_ref()
                .and_then(|undo| undo.compensation.as_ref());
            tools.extend(decided.map(|decided| decided.tool.clone()));
            if let compensation::Policy::By(template) = &self.policy_of(record).compensation {
                tools.insert(template.tool.clone());
            }
        }
        (!at.is_cut).then_some(tools)
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
        let (found, next) = self.readable_page(found).map_err(unavailable)?;
        // One that cannot be read keeps no other back.
        Ok((
            found
                .iter()
                .filter_map(|document| readable(document).ok())
                .collect(),
            next,
        ))
    }

    /// The same call with the compensation that its tool has by now, if that is another one than was decided on
    /// and the old one surely was not executed. Only of a call that is stuck: as long as it is, nothing is sent
    /// for it, so the old one does not run either.
    async fn decide_anew(&self, record: &Record) -> Record {
        let decided = record
            .undo
            .as_ref()
            .and_then(|undo| undo.compensation.as_ref());
        let policy = self.policy_of(record).compensation;
        let (decided, template) = match (decided, &policy) {
            (Some(decided), compensation::Policy::By(template))
                if template.tool != decided.tool =>
            {
                (decided, template)
            }
            _ => return record.clone(),
        };
        match self.counted("load", self.store.load(decided.call_id).await) {
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
        let call_id = match self.counted("holders", self.store.holders(&[lookup]).await) {
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
    pub(super) async fn to_compensate(&self, record: &Record, by: &str, reason: &str) -> Marked {
        let tool = self.policy_of(record);
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
        let (record, now) = (record.clone(), self.now());
        match transition::apply(self, &tool, record, &event, now, OnConflict::GiveUp).await {
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
    pub(super) async fn apply(
        &self,
        call_id: CallId,
        event: &call::Event,
    ) -> Result<Option<Result<Record, Illegal>>, store::Error> {
        let retry = OnConflict::RetryOnLatest;
        let moved = transition::load_and_apply(self, call_id, event, retry).await?;
        match moved {
            None => Ok(None),
            Some(Moved::Written { record, .. } | Moved::Unchanged(record, _)) => {
                Ok(Some(Ok(record)))
            }
            Some(Moved::Refused(_, illegal)) => Ok(Some(Err(illegal))),
            Some(Moved::Lost(_)) => Err(store::Error::Refused("a call changes too fast".into())),
        }
    }

    pub(super) fn count_undo(&self, record: &Record, result: &str) {
        self.metrics
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

fn readable(document: &Document) -> Result<Saga, store::Error> {
    Saga::from_document(document).map_err(|why| {
        tracing::error!(saga = document.id, why, "a saga cannot be read");
        store::Error::Unreadable(format!("saga: {why}"))
    })
}
