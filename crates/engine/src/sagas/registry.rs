//! Sagas as they are stored, and the one way to change them. The rules are in `rules::saga`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;

use crate::base::Base;
use crate::base::documents::Documents;
use crate::error::{Error, ErrorKind, of_store};
use crate::transition::ROUNDS;
use oncegate_rules::actor::By;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::saga::{self, Event, Saga, SagaId, State};
use oncegate_store::{self as store, Put};

/// The stored sagas: their documents, and the marks on their calls.
pub struct SagaRegistry {
    pub(super) base: Arc<Base>,
    /// Acceptances of a loss of data that are under way here.
    pub(crate) acceptances: AtomicUsize,
}

impl SagaRegistry {
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            acceptances: AtomicUsize::new(0),
        }
    }

    /// The saga of this name. If there is none, it is begun now, by a call of this token.
    pub(super) async fn ensure_saga(
        &self,
        id: &SagaId,
        made_by: &str,
    ) -> Result<Saga, store::Error> {
        if let Some(saga) = self.saga(id).await? {
            return Ok(saga);
        }
        let mut begun = Saga::begin(id.clone(), &self.base.limits.sagas, self.base.now());
        made_by.clone_into(&mut begun.begun_by);
        match self.put_saga(&begun).await? {
            Ok(()) => Ok(begun),
            Err(Some(saga)) => Ok(saga),
            Err(None) => Err(store::Error::Ambiguous(
                "a saga appeared and disappeared".into(),
            )),
        }
    }

    /// A stored saga. A saga that cannot be read is an error, and does not count as absent.
    pub(crate) async fn saga(&self, id: &SagaId) -> Result<Option<Saga>, store::Error> {
        let store = &self.base.store;
        let found = store.document(Kind::Saga, &id.tenant, &id.id).await?;
        found.as_ref().map(|found| self.readable(found)).transpose()
    }

    /// A saga that a caller names.
    pub(super) async fn known_saga(&self, id: &SagaId) -> Result<Saga, Error> {
        let saga = self.saga(id).await.map_err(of_store)?;
        saga.ok_or_else(|| ErrorKind::UnknownSaga.alone())
    }

    /// Writes a saga, unless another writer has changed it; then returns the newer one.
    pub(crate) async fn put_saga(
        &self,
        saga: &Saga,
    ) -> Result<Result<(), Option<Saga>>, store::Error> {
        // A worker must not set a saga going that the acceptance of a loss has just stopped.
        if self.acceptances.load(Ordering::SeqCst) > 0 {
            let why = "a loss of data is being accepted".into();
            return Err(store::Error::Refused(why));
        }
        self.write_saga(saga).await
    }

    async fn write_saga(&self, saga: &Saga) -> Result<Result<(), Option<Saga>>, store::Error> {
        match self.base.store.put_document(&saga.to_document()).await? {
            Put::Done => Ok(Ok(())),
            Put::Lost(newer) => Ok(Err(newer
                .as_ref()
                .map(|newer| self.readable(newer))
                .transpose()?)),
        }
    }

    /// Applies an event. Returns the saga after it, and whether the event has changed it; `None`: there is no such saga.
    ///
    /// An event that is repeated changes nothing.
    pub(super) async fn change_saga(
        &self,
        id: &SagaId,
        event: &Event,
    ) -> Result<Option<Result<(Saga, bool), saga::Illegal>>, store::Error> {
        let mut stored = self.saga(id).await?;
        for _ in 0..ROUNDS {
            let Some(saga) = stored else { return Ok(None) };
            let changed = match saga::next(&saga, event, &self.base.limits.sagas, self.base.now()) {
                Ok(changed) if changed == saga => return Ok(Some(Ok((saga, false)))),
                Ok(changed) => changed,
                Err(illegal) => return Ok(Some(Err(illegal))),
            };
            let put = match event {
                Event::StoreLost(_) => self.write_saga(&changed).await?,
                _ => self.put_saga(&changed).await?,
            };
            match put {
                Ok(()) => return Ok(Some(Ok((changed, true)))),
                Err(newer) => stored = newer,
            }
        }
        Err(store::Error::Refused("a saga changes too fast".into()))
    }

    /// Applies an event. Returns the saga after it.
    ///
    /// `None`: the event does not fit, another writer was faster, or the store failed.
    pub(super) async fn move_on(&self, saga: &Saga, event: &Event) -> Option<Saga> {
        self.move_on_at(saga, event, self.base.now()).await
    }

    /// The same, at this time or later.
    pub(super) async fn move_on_at(
        &self,
        saga: &Saga,
        event: &Event,
        now: Timestamp,
    ) -> Option<Saga> {
        let now = now.max(self.base.now());
        let changed = saga::next(saga, event, &self.base.limits.sagas, now).ok()?;
        self.put_saga(&changed).await.ok()?.ok()?;
        if changed.state() != saga.state() {
            tracing::info!(
                saga = saga.id.id,
                state = changed.state().as_str(),
                trouble = changed.trouble.as_ref().map(|trouble| trouble.why.as_str()),
                "a saga continues",
            );
        }
        Some(changed)
    }

    /// The sagas that accepting a loss stops.
    ///
    /// # Errors
    /// The store failed, or some of them cannot be read: those would go on as soon as they can be read again.
    pub(crate) async fn sagas_at_stake(&self) -> Result<Vec<SagaId>, store::Error> {
        let mut sagas = Vec::new();
        for state in State::UNFINISHED {
            let mut pages = Documents::new(Kind::Saga, state.as_str());
            while let Some(found) = pages.next(&self.base).await? {
                let found = found
                    .iter()
                    .filter_map(|document| self.readable(document).ok());
                sagas.extend(found.map(|saga| saga.id));
            }
        }
        let counts = self.base.store.count_documents(Kind::Saga).await?;
        let is_unfinished =
            |name: &str| State::UNFINISHED.iter().any(|state| state.as_str() == name);
        let unfinished = counts.iter().filter(|(name, _)| is_unfinished(name));
        let all: u64 = unfinished.map(|(_, count)| count).sum();
        let missing = all.saturating_sub(sagas.len() as u64);
        if missing > 0 {
            let why = format!(
                "{missing} of {all} sagas that are not at their end, so they cannot be stopped; the log names them. \
                 If no key opens them, add the missing one to store.encryption_keys; then accept the loss again"
            );
            return Err(store::Error::Unreadable(why));
        }
        Ok(sagas)
    }

    /// Stops sagas after a loss of data, until an operator has looked.
    ///
    /// A stopped saga does not go on, and is not undone when its deadline has passed: the store may have forgotten that it
    /// was completed or undone.
    pub(crate) async fn stop_sagas(&self, by: &str, reason: &str) -> Result<(), store::Error> {
        for id in self.sagas_at_stake().await? {
            let event = Event::StoreLost(By::token(by, reason));
            // A saga that has come to its end meanwhile need not be stopped.
            drop(self.change_saga(&id, &event).await?);
        }
        Ok(())
    }

    /// Frees the sagas on which the last run of this gateway was working.
    ///
    /// Only where no other gateway can work on them. A saga that cannot be freed now is due when its time is over.
    ///
    /// # Errors
    /// The store failed; what was freed stays so.
    pub(super) async fn free_sagas(&self) -> Result<(), store::Error> {
        for state in State::UNFINISHED {
            let mut pages = Documents::new(Kind::Saga, state.as_str());
            while let Some(found) = pages.next(&self.base).await? {
                let sagas = found.iter().map(Saga::from_document);
                for saga in sagas.flatten().filter(|saga| saga.work.due.is_taken()) {
                    drop(self.change_saga(&saga.id, &Event::Freed).await);
                }
            }
        }
        Ok(())
    }

    /// The saga of a document. That one cannot be read is logged once.
    pub(super) fn readable(&self, document: &Document) -> Result<Saga, store::Error> {
        Saga::from_document(document).map_err(|why| {
            let id = format!("saga {} {}", document.tenant, document.id);
            if self.base.is_not_logged_yet(&id) {
                tracing::error!(saga = document.id, why, "a saga cannot be read");
            }
            store::Error::Unreadable(format!("saga: {why}"))
        })
    }
}
