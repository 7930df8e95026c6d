//! Runs of reconciliations: scheduled ones, and those that an operator asks for.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::report::{self, Progress, Report, RunState, json_of, micros};
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::core::actor::Actor;
use crate::core::audit::{Act, Outcome};
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::reconcile::{Window, oldest};
use crate::core::time::{after, before, signed};
use crate::crash;
use crate::gateway::audit;
use crate::gateway::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::gateway::ids::new_run_id;
use crate::gateway::tools::ToolAt;
use crate::store::{self, Put};

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
    /// Makes every scheduled run that is due, and works on due anomalies.
    ///
    /// Many gateways may do it at once: each run is made by one of them. Returns how many were made
    /// here.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn reconcile_due(self: &Arc<Self>, now: Timestamp) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let (mut made, mut failed) = (0, None);
        let all = self.all.all();
        for reconciliation in all.values().filter(|one| one.every.is_some()) {
            match self.run_if_due(reconciliation, now).await {
                Ok(was_made) => made += usize::from(was_made),
                // What cannot be read of one keeps no other back.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(made), Err)
    }

    async fn run_if_due(
        self: &Arc<Self>,
        of: &Reconciliation,
        now: Timestamp,
    ) -> Result<bool, store::Error> {
        let Some(every) = of.every else {
            return Ok(false);
        };
        let name = of.name.as_str();
        let store = &self.base.store;
        let found = store
            .document(DocumentKind::Reconciliation, "", name)
            .await?;
        if found
            .as_ref()
            .is_some_and(|found| found.due_at.is_some_and(|due| now < due))
        {
            return Ok(false);
        }
        let progress = match &found {
            None => Progress::default(),
            Some(found) => self.progress_of(found)?,
        };
        let run = new_run_id();
        let looked_until = progress
            .until
            .and_then(|until| Timestamp::from_microsecond(until).ok());
        let taken = Progress {
            run: run.clone(),
            until: progress.until,
        };
        let mut document = Document {
            kind: DocumentKind::Reconciliation,
            tenant: String::new(),
            id: name.to_owned(),
            version: found.as_ref().map_or(0, |found| found.version) + 1,
            state: "running".into(),
            created_at: found.as_ref().map_or(now, |found| found.created_at),
            due_at: now.checked_add(TAKEN).ok(),
            retain_until: None,
            body: json_of(&taken),
        };
        // The gateway that writes this makes the run.
        if let Put::Lost(_) = self.base.store.put_document(&document).await? {
            return Ok(false);
        }
        crash::point("reconciliation_taken");
        let (oldest, margin) = (self.oldest(of, now), self.margin(of));
        let window = Window::next(looked_until, oldest, before(now, of.lag), of.window, margin);
        let report = match window {
            Some(window) => Some(self.reconcile(of, &run, window, report::SCHEDULE).await?),
            None => None,
        };
        let looked = report
            .as_ref()
            .is_some_and(|report| report.state == RunState::Done);
        let until = window
            .filter(|_| looked)
            .map(|window| window.until)
            .or(looked_until);
        // One that has fallen behind goes on at once.
        let behind =
            until.is_some_and(|until| until < before(now, of.lag.saturating_add(signed(every))));
        let next = if looked && behind {
            now
        } else {
            after(now, signed(every))
        };
        document.version += 1;
        document.state = "waiting".into();
        document.due_at = Some(next);
        document.body = json_of(&Progress {
            until: until.map(Timestamp::as_microsecond),
            run,
        });
        // If this run took too long another gateway has taken it, and goes on from there.
        drop(self.base.store.put_document(&document).await?);
        Ok(true)
    }

    /// How far a reconciliation has looked.
    ///
    /// # Errors
    /// It cannot be read. To begin anew would leave out the time between.
    fn progress_of(&self, found: &Document) -> Result<Progress, store::Error> {
        serde_json::from_slice(&found.body).map_err(|error| {
            if self.base.is_first_said(&found.id) {
                let name = &found.id;
                tracing::error!(reconciliation = name, %error, "its progress cannot be read: it does not run");
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
        let kept = tools.iter().map(|at| at.tool.retention).min();
        oldest(
            now,
            kept.map_or(SignedDuration::ZERO, signed),
            self.margin(of),
        )
    }

    /// Makes a run that an operator asks for.
    ///
    /// # Errors
    /// The caller is no administrator, there is no such reconciliation, or no such time to look at.
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
        let (gateway, by) = (self.clone(), Actor::Token(&caller.name).to_string());
        let act = Act::reconciles(caller, name);
        let run = async move {
            let doing = async {
                let report = gateway.reconcile(&of, &new_run_id(), window, &by).await;
                report.map_err(unavailable)
            };
            let outcome = |done: &Result<Report, Error>| match done {
                Ok(report) if report.state == RunState::Failed => Outcome::Refused,
                _ => audit::outcome(done),
            };
            audit::kept_as(&gateway.base, act, doing, outcome).await
        };
        // A caller that hangs up does not end it.
        self.base.to_its_end(run).await
    }

    /// Compares, writes the report down, and works on its anomalies.
    async fn reconcile(
        self: &Arc<Self>,
        of: &Reconciliation,
        run: &str,
        window: Window,
        by: &str,
    ) -> Result<Report, store::Error> {
        let _place = self.places.acquire().await;
        let (begun, started_at) = (Instant::now(), self.base.now());
        let looked = tokio::select! {
            looked = tokio::time::timeout(RUN_TIME, self.collect(of, window)) => {
                looked.unwrap_or_else(|_| Err("it took too long".into()))
            }
            () = self.base.draining.cancelled() => Err("the gateway is shutting down".into()),
        };
        let mut report = Report::new(of, run, window, by, started_at);
        let fail = |report: &mut Report, why: String| {
            tracing::error!(
                reconciliation = of.name,
                run,
                why,
                "a reconciliation failed"
            );
            report.state = RunState::Failed;
            report.error = Some(why);
        };
        let found = match looked {
            Ok(looked) => {
                report.take_counts(&looked.found, looked.items, looked.calls);
                let found: Vec<_> = looked
                    .found
                    .into_iter()
                    .flat_map(|found| found.anomalies)
                    .collect();
                if found.len() > of.max_anomalies {
                    let why = format!(
                        "{} anomalies are more than max_anomalies = {}: nothing was acted on; is the source read as it is meant?",
                        found.len(),
                        of.max_anomalies
                    );
                    report.list_some(&found);
                    fail(&mut report, why);
                    None
                } else {
                    Some(found)
                }
            }
            Err(why) => {
                fail(&mut report, why);
                None
            }
        };
        if let Some(found) = found {
            self.write_down(of, &mut report, found).await?;
            crash::point("reconciliation_reported");
            self.anomalies.work_on_anomalies_of(&report.anomalies).await;
            report.state = RunState::Done;
        }
        report.finished_at = Some(micros(self.base.now()));
        self.keep_report(of, &report, 2).await?;
        let is_done = report.state == RunState::Done;
        self.base.metrics.reconciled(
            &of.name,
            is_done,
            begun.elapsed(),
            self.base.wall_time().as_second(),
        );
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
