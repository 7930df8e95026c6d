//! The worker for due anomalies.
//!
//! Gateways compete for each by compare-and-swap: one works on it at a time, again if that fails, and again after
//! a crash.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};

use super::settings::{Reconciliation, Reconciliations};
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::reconcile::anomaly::{self, Act, Case, End, Event, Listed, State};
use crate::core::time::after;
use crate::core::work::Blocked;
use crate::crash;
use crate::downstream::Downstream;
use crate::gateway::base::{Base, Documents};
use crate::gateway::calls::{Engine, Sender};
use crate::gateway::ids::jitter;
use crate::gateway::sagas::{SagaRegistry, Sagas};
use crate::gateway::webhook::Notifier;
use crate::store::{self, Put};

/// Anomalies that one round takes.
const BATCH: u32 = 32;
/// How soon to look again at an anomaly that is not configured here.
///
/// Another gateway may have it.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

/// Documents that are read or written at once.
pub(super) const AT_ONCE: usize = 16;

/// The worker for anomalies.
pub struct AnomalyWorker {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) downstream: Arc<Downstream>,
    pub(in crate::gateway) engine: Arc<Engine>,
    pub(in crate::gateway) sender: Arc<Sender>,
    pub(in crate::gateway) registry: Arc<SagaRegistry>,
    pub(in crate::gateway) sagas: Arc<Sagas>,
    pub(in crate::gateway) notifier: Arc<Notifier>,
    pub(in crate::gateway) all: Reconciliations,
}

impl AnomalyWorker {
    /// Whether a webhook can be told of anomalies.
    pub fn has_webhook(&self) -> bool {
        self.notifier.webhook.is_some()
    }

    /// Writes an anomaly down; one that was found before may be reopened. Returns whether it is
    /// new.
    pub(super) async fn write_anomaly(
        &self,
        of: &Reconciliation,
        case: Case,
        by_person: bool,
    ) -> Result<bool, store::Error> {
        let found = match self.base.store.put_document(&case.to_document()).await? {
            Put::Done => return Ok(true),
            Put::Lost(None) => return Ok(false),
            Put::Lost(Some(found)) => found,
        };
        let Some(before) = Case::from_document(&found) else {
            tracing::error!(id = found.id, "an anomaly cannot be read");
            return Ok(false);
        };
        let event = Event::Found {
            again: Box::new(case),
            by_person,
            is_lost: self.is_lost(&before).await?,
        };
        if let Ok(again) = anomaly::next(&before, &event, of.retention, self.base.now()) {
            // If another gateway was faster, it takes it up.
            drop(self.base.store.put_document(&again.to_document()).await?);
        }
        Ok(false)
    }

    /// Whether an effect was adopted, and the call that it became is not in the ledger any more.
    pub(super) async fn is_lost(&self, case: &Case) -> Result<bool, store::Error> {
        match case.adopted_as() {
            Some(call_id) => Ok(self.base.store.load(call_id).await?.is_none()),
            None => Ok(false),
        }
    }

    /// Works at once on the anomalies of a run.
    pub(super) async fn work_on_anomalies_of(&self, anomalies: &[Listed]) {
        let open = anomalies
            .iter()
            .filter(|listed| listed.action != Act::Report);
        let work = open.map(|listed| async {
            // Otherwise another gateway does it, or the loop.
            if let Ok(Some(document)) = self.document_of(listed).await {
                self.work_on_anomaly(document, self.base.now()).await;
            }
        });
        all_of(work.collect::<Vec<_>>()).await;
    }

    /// Works on a bounded number of due anomalies. Returns how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies_once(&self, now: Timestamp) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let due = self
            .base
            .store
            .due_documents(DocumentKind::Anomaly, now, BATCH);
        let due = self.base.readable("due_documents", due.await)?;
        let count = due.len();
        let work = due
            .into_iter()
            .map(|document| self.work_on_anomaly(document, now));
        all_of(work.collect::<Vec<_>>()).await;
        Ok(count)
    }

    pub(super) async fn document_of(
        &self,
        listed: &Listed,
    ) -> Result<Option<Document>, store::Error> {
        let store = &self.base.store;
        store.document(DocumentKind::Anomaly, "", &listed.id).await
    }

    /// Frees the anomalies on which the last run of this gateway was working.
    ///
    /// Only where no other gateway can be at it. What cannot be freed now is due when its lease is over.
    pub async fn free_anomalies(&self) {
        if self.base.store.is_shared() {
            return;
        }
        let mut pages = Documents::new(DocumentKind::Anomaly, State::Open.as_str());
        while let Ok(Some(found)) = pages.next(&self.base).await {
            for case in found.iter().filter_map(Case::from_document) {
                // What is freed keeps no longer than anything else.
                let freed =
                    anomaly::next(&case, &Event::Freed, SignedDuration::MAX, self.base.now());
                if let Ok(freed) = freed {
                    drop(self.base.store.put_document(&freed.to_document()).await);
                }
            }
        }
    }

    /// Works on one anomaly, if it is due.
    pub(super) async fn work_on_anomaly(&self, document: Document, now: Timestamp) {
        let now = now.max(self.base.now());
        // Also of one that cannot be read: another gateway may be at it, and what is at rest stays so.
        if document.due_at.is_none_or(|due_at| due_at > now) {
            return;
        }
        let Some(case) = Case::from_document(&document) else {
            tracing::error!(id = document.id, "an anomaly cannot be read");
            return self.put_aside(document).await;
        };
        let Some(of) = self.all.get(&case.reconciliation) else {
            return self.put_aside(document).await;
        };
        // What blocks that is said when it is acted on.
        let of = &*of;
        let undoing = match case.listed.action {
            Act::Compensate if case.listed.kind.is_surplus() && case.undoing.is_none() => {
                self.undoing(of, &case).await.ok()
            }
            _ => None,
        };
        let taken = Event::Taken {
            until: self.base.busy_until(now, self.time_for(of, &case)),
            undoing,
        };
        let Ok(case) = anomaly::next(&case, &taken, of.retention, now) else {
            return;
        };
        // The gateway that writes this does the work.
        let put = self.base.store.put_document(&case.to_document()).await;
        if !matches!(put, Ok(Put::Done)) {
            return;
        }
        crash::point("anomaly_taken");
        let end = self.act_on(of, &case).await;
        crash::point("anomaly_acted");
        let why = end.as_ref().err().map(|blocked| blocked.why.clone());
        let jitter = jitter();
        let ended = Event::Ended { end, jitter };
        let Ok(case) = anomaly::next(&case, &ended, of.retention, self.base.now()) else {
            return;
        };
        if let Some(why) = why {
            tracing::error!(
                reconciliation = of.name,
                id = case.listed.id,
                tries = case.work.tries,
                state = case.state.as_str(),
                why,
                "an anomaly was not mended"
            );
        }
        drop(self.base.store.put_document(&case.to_document()).await);
    }

    /// Postpones an anomaly that cannot be worked on here.
    async fn put_aside(&self, document: Document) {
        let later = Document {
            version: document.version + 1,
            due_at: Some(after(self.base.now(), ELSEWHERE)),
            ..document
        };
        drop(self.base.store.put_document(&later).await);
    }

    async fn act_on(&self, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        match case.listed.action {
            Act::Report => {}
            Act::Settle => self.settle_unknown(of, case).await?,
            // A person may ask for what the configuration does not.
            Act::Compensate if case.listed.acted.is_none() && !of.compensates(case.listed.kind) => {
                return Ok(End::Unwanted);
            }
            Act::Adopt if case.listed.acted.is_none() && !of.adopts() => return Ok(End::Unwanted),
            Act::Compensate => {
                self.must_be_found_since_a_loss(case).await?;
                return self.remedy(of, case).await;
            }
            Act::Adopt => {
                self.must_be_found_since_a_loss(case).await?;
                return self.adopt(of, case).await;
            }
            Act::Webhook => self.tell_of(case).await?,
        }
        Ok(End::Done)
    }

    /// Refuses to act on what was found before the store has lost data: it may be mended, and that forgotten.
    async fn must_be_found_since_a_loss(&self, case: &Case) -> Result<(), Blocked> {
        match self.base.store.readiness().await.whole_since {
            None => Err(Blocked::busy(
                "it is not known whether the store has lost data since",
            )),
            Some(whole_since) if case.found_at < whole_since => Err(Blocked::for_good(
                "the store has lost data since it was found: run the reconciliation again",
            )),
            Some(_) => Ok(()),
        }
    }

    /// How long work on an anomaly may take.
    fn time_for(&self, of: &Reconciliation, case: &Case) -> Duration {
        let work = match case.listed.action {
            Act::Webhook => {
                let webhook = self.notifier.webhook.as_ref();
                webhook.map(|webhook| webhook.timeout)
            }
            // That a call is undone is only begun here, after its tool was asked.
            Act::Compensate if case.listed.kind.is_surplus() => {
                let undoes = self
                    .template_for(of, &case.listed)
                    .and_then(|by| self.base.tool_at(&by.tool));
                undoes.map(|at| at.tool.longest())
            }
            Act::Compensate => of
                .tools
                .iter()
                .filter_map(|tool| self.base.tool_at(tool))
                .map(|at| at.tool.timeout)
                .max(),
            Act::Report | Act::Settle | Act::Adopt => None,
        };
        work.unwrap_or_default()
    }
}

/// Runs some work at once, and waits for all of it.
async fn all_of(work: Vec<impl Future<Output = ()>>) {
    let work = stream::iter(work).buffer_unordered(AT_ONCE);
    work.collect::<Vec<()>>().await;
}
