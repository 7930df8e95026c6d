//! Works on anomalies that are due.
//!
//! Gateways compete for each by compare-and-swap: one works on it at a time, again if that fails, and again after
//! a crash.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};

use super::report::{AT_ONCE, Report};
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::reconcile::anomaly::{self, Act, Case, End, Event, State};
use crate::core::work::Blocked;
use crate::crash;
use crate::gateway::clock::{later, signed};
use crate::gateway::ids::jitter;
use crate::store::{self, Put};

/// Anomalies of one page.
const LISTED: u32 = 500;
/// Anomalies that are taken up in one go.
const BATCH: u32 = 32;
/// Before what is not configured here is looked at again; another gateway may have it.
const ELSEWHERE: SignedDuration = SignedDuration::from_mins(10);

impl Reconciler {
    /// Writes down an anomaly; one that was found before may be worked on again. Answers whether it is new.
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
        };
        if let Ok(again) = anomaly::next(&before, &event, of.retention, self.base.now()) {
            // If another gateway was faster, it takes it up.
            drop(self.base.store.put_document(&again.to_document()).await?);
        }
        Ok(false)
    }

    /// Works at once on what a run has found.
    pub(super) async fn work_on_anomalies_of(self: &Arc<Self>, report: &Report) {
        let is_open = |listed: &&anomaly::Listed| listed.action != Act::Report;
        let work = report.anomalies.iter().filter(is_open).map(|listed| async {
            let found = self
                .base
                .store
                .document(DocumentKind::Anomaly, "", &listed.id)
                .await;
            // Otherwise another gateway does it, or the loop.
            if let Ok(Some(document)) = found {
                self.work_on_anomaly(document, self.base.now()).await;
            }
        });
        let work: Vec<_> = work.collect();
        stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
    }

    /// Works on a bounded number of anomalies that are due. Answers how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies_once(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let due = self
            .base
            .store
            .due_documents(DocumentKind::Anomaly, now, BATCH)
            .await;
        let due = self.base.readable("due_documents", due)?;
        let count = due.len();
        let mut work = Vec::new();
        for document in due {
            let gateway = self.clone();
            work.push(async move { gateway.work_on_anomaly(document, now).await });
        }
        stream::iter(work)
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<()>>()
            .await;
        Ok(count)
    }

    /// Makes due what the last run of this gateway has left in the middle.
    ///
    /// Only where no other gateway can be at it. What cannot be freed now is due when its lease is over.
    pub async fn free_anomalies(&self) {
        if self.base.store.is_shared() {
            return;
        }
        let (mut before, mut is_first) = (None, true);
        while std::mem::take(&mut is_first) || before.is_some() {
            let open = Some(State::Open.as_str());
            let found = self
                .base
                .store
                .documents(DocumentKind::Anomaly, None, open, before.as_ref(), LISTED)
                .await;
            let Ok((found, next_page)) = self.base.readable_page(found) else {
                return;
            };
            for case in found.iter().filter_map(Case::from_document) {
                // What is freed keeps no longer than anything else.
                let freed =
                    anomaly::next(&case, &Event::Freed, SignedDuration::MAX, self.base.now());
                if let Ok(freed) = freed {
                    drop(self.base.store.put_document(&freed.to_document()).await);
                }
            }
            before = next_page;
        }
    }

    /// Works on one anomaly, if it is due.
    async fn work_on_anomaly(self: &Arc<Self>, document: Document, now: Timestamp) {
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
        let undoing = match case.listed.action {
            Act::Compensate if case.listed.kind.is_surplus() && case.undoing.is_none() => {
                self.undoing(of, &case).await.ok()
            }
            _ => None,
        };
        let taken = Event::Taken {
            until: later(self.base.now(), self.time_for(of, &case)),
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

    /// What cannot be worked on here keeps no other back.
    async fn put_aside(&self, document: Document) {
        let later = Document {
            version: document.version + 1,
            due_at: Some(later(self.base.now(), ELSEWHERE)),
            ..document
        };
        drop(self.base.store.put_document(&later).await);
    }

    async fn act_on(self: &Arc<Self>, of: &Reconciliation, case: &Case) -> Result<End, Blocked> {
        match case.listed.action {
            Act::Report => {}
            Act::Settle => self.settle_unknown(of, case).await?,
            Act::Compensate if !of.compensates(case.listed.kind) => return Ok(End::Unwanted),
            Act::Compensate => match self.has_lost_since(case.found_at).await {
                None => {
                    let why = "it is not known whether the store has lost data since";
                    return Err(Blocked::busy(why));
                }
                Some(true) => return Err(Blocked::for_good("the store has lost data since")),
                Some(false) => self.remedy(of, case).await?,
            },
            Act::Webhook => self.tell_of(case).await?,
        }
        Ok(End::Done)
    }

    /// Whether calls may be missing by now that were known then; `None`: that cannot be seen.
    async fn has_lost_since(&self, then: Timestamp) -> Option<bool> {
        let whole_since = self.base.store.readiness().await.whole_since?;
        Some(then < whole_since)
    }

    /// How long other gateways leave it alone.
    fn time_for(&self, of: &Reconciliation, case: &Case) -> SignedDuration {
        let work = match case.listed.action {
            Act::Webhook => self
                .notifier
                .webhook
                .as_ref()
                .map(|webhook| webhook.timeout),
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
            Act::Report | Act::Settle => None,
        };
        signed(self.base.limits.pace.work_margin + work.unwrap_or_default())
    }
}
