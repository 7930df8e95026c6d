//! Runs of reconciliations: scheduled ones, and those that an operator asks for.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::report::{self, Progress, Report, RunState};
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::rules::{Window, oldest};
use oncegate_engine::wings::{must_be_admin, new_run_id, outcome, recorded_as, unavailable};
use oncegate_engine::{Error, ErrorKind, ToolAt};
use oncegate_hooks::crash;
use oncegate_rules::actor::Actor;
use oncegate_rules::audit::{Act, Action, Outcome, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{self, Document, Kind as DocumentKind};
use oncegate_rules::time::{before, signed};
use oncegate_store::{self as store, Put};

/// How long one run may take.
const RUN_TIME: Duration = Duration::from_secs(600);
/// How long other gateways leave a scheduled run alone that one has begun.
const TAKEN: SignedDuration = SignedDuration::from_secs(660);

/// The time that an operator's run looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Period {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Reconciler {
    /// Makes every scheduled run that is due. Returns how many were made here.
    ///
    /// Gateways may do so concurrently: each run is made by one of them.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn reconcile_due(self: &Arc<Self>, now: Timestamp) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let (mut made, mut failed) = (0, None);
        for of in self.anomalies.all.load_full().values() {
            if of.every.is_none() && of.when_unknown.is_none() {
                continue;
            }
            match self.run_if_due(of, now).await {
                Ok(was_made) => made += usize::from(was_made),
                // A reconciliation whose progress cannot be read keeps no other from running.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(made), Err)
    }

    async fn run_if_due(&self, of: &Reconciliation, now: Timestamp) -> Result<bool, store::Error> {
        let store = &self.base.store;
        let found = store.document(DocumentKind::Reconciliation, "", &of.name);
        let found = found.await?;
        let due_at = found.as_ref().and_then(|found| found.due_at);
        if due_at.is_some_and(|due_at| now < due_at) {
            if let Some(found) = found {
                self.bring_forward(of, found, now).await?;
            }
            return Ok(false);
        }
        if found.is_none() && of.every.is_none() {
            self.begin_to_wait(of, now).await?;
            return Ok(false);
        }
        let mut progress = match &found {
            None => Progress::default(),
            Some(found) => self.progress_of(found)?,
        };
        progress.run = new_run_id();
        let created_at = found.as_ref().map_or(now, |found| found.created_at);
        let (kind, body) = (DocumentKind::Reconciliation, document::body(&progress));
        let mut document = Document {
            version: found.as_ref().map_or(0, |found| found.version) + 1,
            due_at: now.checked_add(TAKEN).ok(),
            ..Document::new(kind, &of.name, "running", created_at, body)
        };
        // The gateway that writes this makes the run.
        if let Put::Lost(_) = store.put_document(&document).await? {
            return Ok(false);
        }
        crash::point("reconciliation_taken");
        let (oldest, margin) = (self.oldest(of, now), self.margin(of));
        let (mut looked_until, end) = (progress.looked_until(), before(now, of.lag));
        let mut next = of.next_after(now);
        if let Some(window) = Window::next(looked_until, oldest, end, of.window, margin) {
            let report = self.reconcile(of, &progress.run, window, report::SCHEDULE);
            if report.await?.state == RunState::Done {
                looked_until = Some(window.until);
                // A reconciliation that has fallen behind runs again at once.
                let every = signed(of.every.unwrap_or_default());
                let is_behind = window.until < before(now, of.lag.saturating_add(every));
                if is_behind {
                    next = now;
                }
            }
        }
        progress.unknown = self.unknown_of(of).await;
        progress.until = looked_until.map(Timestamp::as_microsecond);
        document.version += 1;
        document.state = "waiting".into();
        document.due_at = Some(next);
        document.body = document::body(&progress);
        // This fails if the run took too long: then another gateway has taken it, and goes on from there.
        drop(store.put_document(&document).await?);
        Ok(true)
    }

    /// How far a reconciliation has looked.
    ///
    /// # Errors
    /// The document cannot be read. A new beginning would leave out the time between.
    pub(super) fn progress_of(&self, found: &Document) -> Result<Progress, store::Error> {
        serde_json::from_slice(&found.body).map_err(|error| {
            if self.base.is_not_logged_yet(&found.id) {
                let name = &found.id;
                tracing::error!(reconciliation = name, %error, "the progress of a reconciliation cannot be read, so it does not run");
            }
            store::Error::Unreadable(format!("the progress of reconciliation {}", found.id))
        })
    }

    pub(super) fn tools_of(&self, of: &Reconciliation) -> Vec<Arc<ToolAt>> {
        let tools = self.base.tools();
        let names = of.tools.iter();
        names.filter_map(|name| tools.get(name).cloned()).collect()
    }

    fn margin(&self, of: &Reconciliation) -> SignedDuration {
        of.margin(self.tools_of(of).iter().map(|at| &at.tool))
    }

    /// The time from which every call is kept.
    fn oldest(&self, of: &Reconciliation, now: Timestamp) -> Timestamp {
        let tools = self.tools_of(of);
        let retention = tools.iter().map(|at| at.tool.retention).min();
        oldest(now, signed(retention.unwrap_or_default()), self.margin(of))
    }

    /// Makes a run that an operator asks for.
    ///
    /// # Errors
    /// The caller is not an administrator, the reconciliation does not exist, or its tools keep no calls of that time.
    pub async fn reconcile_now(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        asked: Period,
    ) -> Result<Report, Error> {
        must_be_admin(caller)?;
        let of = self.reconciliation(name)?;
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        let now = self.base.now();
        let refuse = |why: &str| ErrorKind::InvalidRequest(why.to_owned()).alone();
        let until = asked.until.unwrap_or(now).min(before(now, of.lag));
        let since = asked.since.unwrap_or_else(|| before(until, of.window));
        if since >= until {
            return Err(refuse(
                "since must be before until, and until is never later than the lag allows",
            ));
        }
        if since < self.oldest(&of, now) {
            return Err(refuse(
                "since is too long ago: calls of that time may have been deleted",
            ));
        }
        let window = Window {
            since,
            until,
            margin: self.margin(&of),
        };
        let (reconciler, by) = (self.clone(), Actor::Token(&caller.name).to_string());
        let target = Target::Reconciliation(name.to_owned());
        let act = Act::new(caller, Action::Reconcile, "", target, "");
        let run = async move {
            let doing = async {
                let report = reconciler.reconcile(&of, &new_run_id(), window, &by).await;
                report.map_err(unavailable)
            };
            let became = |done: &Result<Report, Error>| match done {
                Ok(report) if report.state == RunState::Failed => Outcome::Refused,
                _ => outcome(done),
            };
            recorded_as(&reconciler.base, act, doing, became).await
        };
        // The run goes on if its caller hangs up.
        self.base.to_its_end(run).await
    }

    /// Compares, writes the report down, and works on its anomalies.
    async fn reconcile(
        &self,
        of: &Reconciliation,
        run: &str,
        window: Window,
        by: &str,
    ) -> Result<Report, store::Error> {
        let _permit = self.permits.acquire().await;
        let (begun, started_at) = (Instant::now(), self.base.now());
        let collected = tokio::select! {
            collected = tokio::time::timeout(RUN_TIME, self.collect(of, window)) => {
                collected.unwrap_or_else(|_| Err("it took too long".into()))
            }
            () = self.base.draining.cancelled() => Err("the gateway is shutting down".into()),
        };
        let mut report = Report::new(of, run, window, by, started_at);
        match collected.and_then(|collected| report.take(collected, of.max_anomalies)) {
            Ok(found) => {
                if !report.suspect.is_empty() {
                    let (name, sources) = (&of.name, report.suspect.join("; "));
                    tracing::error!(
                        reconciliation = name,
                        run,
                        sources,
                        "a source is suspect: nothing is undone"
                    );
                }
                self.write_down(of, &mut report, &found).await?;
                crash::point("reconciliation_reported");
                self.anomalies.work_on_anomalies_of(&report.anomalies).await;
                report.state = RunState::Done;
            }
            Err(why) => {
                tracing::error!(
                    reconciliation = of.name,
                    run,
                    why,
                    "a reconciliation failed"
                );
                report.state = RunState::Failed;
                report.error = Some(why);
            }
        }
        report.finished_at = Some(self.base.now().as_microsecond());
        self.keep_report(of, &report, 2).await?;
        let is_done = report.state == RunState::Done;
        let wall_time = self.base.wall_time().as_second();
        let metrics = &self.base.metrics;
        metrics.reconciled(&of.name, is_done, begun.elapsed(), wall_time);
        tracing::info!(
            reconciliation = of.name,
            run,
            matched = report.matched,
            anomalies = report.anomalies.len(),
            new = report.new.values().sum::<u64>(),
            done = is_done,
            "a reconciliation has run",
        );
        Ok(report)
    }
}
