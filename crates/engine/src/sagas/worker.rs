//! The worker for due sagas: deadlines, and compensations, on any gateway.
//!
//! Each step is written down before the next, so that another gateway can go on from there.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::registry::SagaRegistry;
use crate::base::Base;
use crate::calls::Engine;
use crate::transition;
use crate::webhook::Notifier;
use oncegate_hooks::crash;
use oncegate_rules::actor::Actor;
use oncegate_rules::call;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::key;
use oncegate_rules::record::Record;
use oncegate_rules::saga::{Event, Phase, Saga, SagaId};
use oncegate_rules::time::after;
use oncegate_store as store;

/// Sagas that one round takes.
const BATCH: u32 = 32;
/// Sagas that one gateway works on at once.
const AT_ONCE: usize = 16;

/// The extra time for which other gateways leave a saga alone whose calls are released.
const RELEASING: Duration = Duration::from_mins(1);

/// The worker for due sagas: deadlines, and compensations.
pub struct SagaWorker {
    pub(super) base: Arc<Base>,
    pub(super) registry: Arc<SagaRegistry>,
    pub(super) engine: Arc<Engine>,
    notifier: Arc<Notifier>,
    /// Permits for sagas that are being worked on.
    permits: Arc<Semaphore>,
}

impl SagaWorker {
    pub(crate) fn new(
        registry: Arc<SagaRegistry>,
        engine: Arc<Engine>,
        notifier: Arc<Notifier>,
    ) -> Self {
        Self {
            base: registry.base.clone(),
            registry,
            engine,
            notifier,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Begins to work on a bounded number of due sagas, and does not wait for them.
    ///
    /// Many gateways may do this at once: each saga is worked on by one of them.
    ///
    /// # Errors
    /// The store failed; nothing was begun.
    pub async fn begin_saga_work(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Vec<JoinHandle<bool>>, store::Error> {
        let due = self.base.store.due_documents(Kind::Saga, now, BATCH).await;
        let due = self.base.readable("due_documents", due)?;
        let mut begun = Vec::new();
        for document in due {
            if let Err(why) = Saga::from_document(&document) {
                self.put_aside(document, &why, now).await;
                continue;
            }
            let id = SagaId::new(document.tenant, document.id);
            let Some(work) = self.begin(id, now) else {
                break;
            };
            begun.push(work);
        }
        Ok(begun)
    }

    /// Works on one saga in a task, if there is a permit for it.
    fn begin(self: &Arc<Self>, id: SagaId, now: Timestamp) -> Option<JoinHandle<bool>> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let worker = self.clone();
        Some(self.base.tasks.spawn(async move {
            let worked = worker.work_on_saga(&id, now).await;
            drop(permit);
            worked
        }))
    }

    /// This gateway, as the author of an event.
    pub(super) fn by(&self) -> String {
        Actor::Gateway(self.base.instance).to_string()
    }

    /// Begins at once to undo a saga's calls. Without a free permit the next round does it.
    pub(super) fn begin_undoing(self: &Arc<Self>, id: &SagaId) {
        drop(self.begin(id.clone(), self.base.now()));
    }

    /// Frees the sagas on which the last run of this gateway was working.
    pub async fn free_sagas(&self) {
        if !self.base.store.is_shared() {
            drop(self.registry.free_sagas().await);
        }
    }

    /// Postpones a saga that cannot be read, so that it delays no other saga.
    async fn put_aside(&self, document: Document, why: &str, now: Timestamp) {
        tracing::error!(
            saga = document.id,
            why,
            "a saga cannot be read; it is looked at again in a minute"
        );
        let later = after(now, SignedDuration::from_mins(1));
        self.base.put_aside(document, later).await;
    }

    /// Works on one saga. Returns whether this gateway did.
    ///
    /// Errors are logged where they happen; the next round goes on.
    async fn work_on_saga(self: &Arc<Self>, id: &SagaId, now: Timestamp) -> bool {
        if self.base.is_out_of_time() || self.base.draining.is_cancelled() {
            return false;
        }
        let Ok(Some(saga)) = self.registry.saga(id).await else {
            return false;
        };
        // The gateway that writes this event does the work.
        let time = if saga.phase.is_over() {
            RELEASING
        } else {
            Duration::ZERO
        };
        let until = self.base.busy_until(now, time);
        let taken = Event::Taken { until };
        let Some(mut saga) = self.registry.move_on_at(&saga, &taken, now).await else {
            return false;
        };
        crash::point("saga_taken");
        while let Some(next) = self.work_a_step(&saga).await {
            saga = next;
            // The next gateway does the rest.
            if self.base.draining.is_cancelled() {
                break;
            }
        }
        true
    }

    /// Makes the next step for a saga. Returns the saga if there is a further step at once.
    async fn work_a_step(self: &Arc<Self>, saga: &Saga) -> Option<Saga> {
        if let Some(tellings) = saga.telling {
            let notified = self.tell(saga, tellings).await?;
            // A transient cause may have ended, even while no operator can be told of it.
            if !notified.phase.is_stuck_for_now() {
                return None;
            }
            // An operator is told once in a round.
            let next = self.undo_next(&notified).await;
            return next.filter(|next| next.telling.is_none());
        }
        match saga.phase {
            Phase::Open => {
                let overdue = Event::Overdue { by: self.by() };
                self.registry.move_on(saga, &overdue).await
            }
            Phase::Completed | Phase::Compensated => {
                let all = self.release(saga).await.ok()?;
                self.registry.move_on(saga, &Event::Released { all }).await;
                None
            }
            Phase::Compensating { .. }
            | Phase::Stuck {
                is_transient: true, ..
            } => self.undo_next(saga).await,
            Phase::Stuck { .. } | Phase::OpenAtLoss => None,
        }
    }

    /// Tells an operator of a saga in trouble. Returns the saga after that.
    async fn tell(&self, saga: &Saga, tellings: u32) -> Option<Saga> {
        let trouble = saga.trouble.as_ref();
        let why = trouble.map_or("it is overdue", |trouble| trouble.why.as_str());
        let call_id = trouble.and_then(|trouble| trouble.call_id);
        let call_id = call_id.map(|call_id| call_id.to_string());
        let state = saga.state().as_str();
        if tellings == 0 {
            tracing::error!(
                saga = saga.id.id,
                tenant = saga.id.tenant,
                state,
                call_id,
                why,
                "a saga needs an operator"
            );
        }
        let mut delivered = true;
        if self.notifier.webhook.is_some() {
            let body = serde_json::json!({
                "saga_id": saga.id.id,
                "tenant": saga.id.tenant,
                "state": state,
                "reason": saga.reason,
                "call_id": call_id,
                "why": why,
            });
            // A repeated message about the same event has the same key.
            let at = saga.events.last().map_or(saga.created_at, |entry| entry.at);
            let at = at.as_microsecond().to_string();
            let about = key::digest(["saga", &saga.id.tenant, &saga.id.id, &at]);
            let about = hex::encode(&about[..16]);
            if let Err(error) = self.notifier.notify("saga", &about, &body).await {
                tracing::warn!(
                    saga = saga.id.id,
                    error,
                    "the webhook could not be notified"
                );
                delivered = false;
            }
        }
        self.registry
            .move_on(saga, &Event::Notified { delivered })
            .await
    }

    /// Releases the calls of a finished saga, so that cleanup may delete them. Returns whether all are released.
    async fn release(&self, saga: &Saga) -> Result<bool, store::Error> {
        let mut all = true;
        let release = async |record: &Record| {
            if record.retain_until.is_some() {
                return true;
            }
            let by = self.base.instance;
            let (event, now) = (call::Event::SagaEnded { by }, self.base.now());
            let released = transition::change(&self.base, record, &event, now).await;
            released.is_some()
        };
        if let Some(only) = saga.only
            && let Some(record) = self.base.store.load(only).await?
        {
            all &= release(&record).await;
        }
        let mut before = None;
        loop {
            let page = self.registry.page_of(saga, before).await?;
            // Unreadable calls are released later, when they can be read.
            all &= page.unreadable == 0;
            let found = page.found.iter().map(|found| &found.record);
            for record in found.filter(|record| record.retain_until.is_none()) {
                let whole = self.base.store.load(record.intent.call_id).await?;
                all &= match whole {
                    Some(whole) => release(&whole).await,
                    None => false,
                };
            }
            before = page.next;
            if before.is_none() {
                return Ok(all);
            }
            // The next gateway does the rest.
            if self.base.draining.is_cancelled() {
                return Ok(false);
            }
        }
    }
}
