//! The worker for due anomalies.
//!
//! Gateways compete for each anomaly by compare-and-swap, so one gateway at a time works on it. The work is repeated if
//! it fails, and after a crash.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};

use super::settings::{Reconciliation, Reconciliations};
use crate::rules::anomaly::{self, Act, Case, End, Event, Listed, State};
use oncegate_engine::wings::{Documents, Engine, Notifier, SagaRegistry, Sagas, Sender};
use oncegate_engine::{Base, jitter};
use oncegate_hooks::crash;
use oncegate_rules::document::{Document, Kind as DocumentKind};
use oncegate_rules::time::after;
use oncegate_rules::work::Blocked;
use oncegate_store::{self as store, Put};
use oncegate_tools::Downstream;

/// Most anomalies of one round.
pub(super) const BATCH: u32 = 32;
/// How soon to look again at an anomaly that is unreadable, or whose reconciliation is not configured here.
///
/// Another gateway may be able to work on it.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

/// Documents that are read or written at once.
pub(super) const AT_ONCE: usize = 16;

/// The worker for anomalies.
pub struct AnomalyWorker {
    pub(crate) base: Arc<Base>,
    pub(crate) downstream: Arc<Downstream>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) registry: Arc<SagaRegistry>,
    pub(crate) sagas: Arc<Sagas>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) all: Reconciliations,
}

impl AnomalyWorker {
    /// Whether a webhook is configured.
    pub fn has_webhook(&self) -> bool {
        self.notifier.webhook.is_some()
    }

    /// Writes an anomaly, or reopens it if it was found before. Returns whether it is new.
    pub(super) async fn write_anomaly(
        &self,
        of: &Reconciliation,
        case: Case,
        by_operator: bool,
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
            by_operator,
            is_lost: self.is_lost(&before).await?,
        };
        if let Ok(again) = anomaly::next(&before, &event, of.anomaly_retention, self.base.now()) {
            // This fails if another gateway was faster, which then works on it.
            drop(self.base.store.put_document(&again.to_document()).await?);
        }
        Ok(false)
    }

    /// Whether the ledger has lost the call that an effect was adopted as.
    pub(super) async fn is_lost(&self, case: &Case) -> Result<bool, store::Error> {
        match case.adopted_as() {
            Some(call_id) => Ok(self.base.store.load(call_id).await?.is_none()),
            None => Ok(false),
        }
    }

    /// Works now on the anomalies of a run.
    pub(super) async fn work_on_anomalies_of(&self, anomalies: &[Listed]) {
        let open = anomalies.iter();
        let open = open.filter(|listed| listed.action != Act::Report);
        let work = open.map(|listed| async {
            // An anomaly that cannot be read now is left to the background loop, or to another gateway.
            if let Ok(Some(document)) = self.document(&listed.id).await {
                self.work_on_anomaly(document, self.base.now()).await;
            }
        });
        all_of(work.collect()).await;
    }

    pub(super) fn reconciliation(&self, name: &str) -> Option<Arc<Reconciliation>> {
        self.all.load().get(name).cloned()
    }

    /// Works on a bounded number of due anomalies. Returns how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies_once(&self, now: Timestamp) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let store = &self.base.store;
        let due = store.due_documents(DocumentKind::Anomaly, now, BATCH);
        let due = self.base.readable("due_documents", due.await)?;
        let count = due.len();
        let work = due.into_iter();
        let work = work.map(|document| self.work_on_anomaly(document, now));
        all_of(work.collect()).await;
        Ok(count)
    }

    /// The document of an anomaly.
    pub(super) async fn document(&self, id: &str) -> Result<Option<Document>, store::Error> {
        let store = &self.base.store;
        store.document(DocumentKind::Anomaly, "", id).await
    }

    /// Frees the anomalies on which this gateway was working when it ended.
    ///
    /// Only over a store that no other gateway shares. An anomaly that cannot be freed is due when its lease is over.
    pub async fn free_anomalies(&self) {
        if self.base.store.is_shared() {
            return;
        }
        let mut pages = Documents::new(DocumentKind::Anomaly, State::Open.as_str());
        while let Ok(Some(found)) = pages.next(&self.base).await {
            for case in found.iter().filter_map(Case::from_document) {
                // The retention plays no part in this event.
                let (event, retention) = (Event::Freed, SignedDuration::MAX);
                if let Ok(freed) = anomaly::next(&case, &event, retention, self.base.now()) {
                    drop(self.base.store.put_document(&freed.to_document()).await);
                }
            }
        }
    }

    /// Works on one anomaly, if it is due.
    pub(super) async fn work_on_anomaly(&self, document: Document, now: Timestamp) {
        let now = now.max(self.base.now());
        // Before the anomaly is read: an unreadable one that is not due may be taken by another gateway, or at rest.
        if document.due_at.is_none_or(|due_at| due_at > now) {
            return;
        }
        let Some(case) = Case::from_document(&document) else {
            tracing::error!(id = document.id, "an anomaly cannot be read");
            let later = after(self.base.now(), ELSEWHERE);
            return self.base.put_aside(document, later).await;
        };
        let Some(of) = self.reconciliation(&case.reconciliation) else {
            let later = after(self.base.now(), ELSEWHERE);
            return self.base.put_aside(document, later).await;
        };
        let of = &*of;
        // A blocker of this is reported below, by `act_on`.
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
        let Ok(case) = anomaly::next(&case, &taken, of.anomaly_retention, now) else {
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
        let ended = Event::Ended {
            end,
            jitter: jitter(),
        };
        let Ok(case) = anomaly::next(&case, &ended, of.anomaly_retention, self.base.now()) else {
            return;
        };
        if let Some(why) = why {
            tracing::error!(
                reconciliation = of.name,
                id = case.listed.id,
                tries = case.work.tries,
                state = case.state.as_str(),
                why,
                "the work on an anomaly failed"
            );
        }
        drop(self.base.store.put_document(&case.to_document()).await);
    }

    async fn act_on(&self, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        let (act, kind) = (case.listed.action, case.listed.kind);
        // If an operator has asked for the act, the configuration need not.
        if case.listed.acted.is_none() && !of.asks_for(act, kind) {
            return Ok(End::Unwanted);
        }
        match act {
            Act::Report => {}
            Act::Settle => self.settle_unknown(of, case).await?,
            Act::Webhook => self.tell_of(case).await?,
            Act::Compensate => {
                self.must_be_found_since_a_loss(case).await?;
                return self.remedy(of, case).await;
            }
            Act::Adopt => {
                self.must_be_found_since_a_loss(case).await?;
                return self.adopt(of, case).await;
            }
        }
        Ok(End::Done)
    }

    /// Refuses to act on an anomaly that was found before the store has lost data.
    ///
    /// It may be fixed already, and the store may have forgotten that.
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
            Act::Webhook => self.notifier.webhook.as_ref().map(|at| at.timeout),
            Act::Compensate if case.listed.kind.is_surplus() => {
                let template = self.template_for(of, &case.listed);
                let undoes = template.and_then(|by| self.base.tool_at(&by.tool));
                undoes.map(|at| at.tool.longest())
            }
            // The tool of the call is only asked. The saga worker undoes the call.
            Act::Compensate => {
                let tools = of.tools.iter().filter_map(|tool| self.base.tool_at(tool));
                tools.map(|at| at.tool.timeout).max()
            }
            Act::Report | Act::Settle | Act::Adopt => None,
        };
        work.unwrap_or_default()
    }
}

/// Does some work concurrently, and waits for all of it.
async fn all_of(work: Vec<impl Future<Output = ()>>) {
    let work = stream::iter(work).buffer_unordered(AT_ONCE);
    work.collect::<Vec<()>>().await;
}
