//! Reconciliation: the ledger is held against the systems behind the tools. What they disagree on is decided
//! by `core::reconcile`; here it is looked at, written down and acted on.
//!
//! The source is asked first and the ledger after it: whatever the source has by then was claimed before, so
//! no call that runs meanwhile is taken for none. Everything that is found has a name that follows from what
//! it is, so a second run, on this gateway or another, finds the same and does nothing again.

mod act; // what is done about an anomaly
mod look; // source and ledger
mod mend; // how a call is settled, and a call or an effect undone
mod report; // what is kept of it

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::report::micros;
pub use self::report::{Act, Listed, Overview, Report, RunState};
use super::base::Base;
use super::calls::{Engine, Sender};
use super::error::{Error, ErrorKind};
use super::ids::new_run_id;
use super::sagas::{SagaRegistry, Sagas};
use super::webhook::Notifier;
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::key::Pointer;
use crate::core::reconcile::{Kind, Rules, Window};
use crate::core::tool::{OnUnknown, Tool};
use crate::crash;
use crate::downstream::Downstream;
use crate::downstream::outside::Source;
use crate::store::{self, Put};

/// How long one run may take.
const RUN_TIME: Duration = Duration::from_secs(600);
/// How long others leave a scheduled run alone that somebody has begun.
const TAKEN: SignedDuration = SignedDuration::from_secs(660);
/// Runs that one gateway makes at once: each holds its items in memory.
const AT_ONCE: usize = 2;

/// What is done about an anomaly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is shown, counted and logged.
    Report,
    /// The call, or the surplus effect, is undone.
    Compensate,
    /// Somebody is told.
    Webhook,
}

/// One reconciliation, as it is configured.
#[derive(Debug, Clone)]
pub struct Reconciliation {
    pub name: String,
    /// How often it runs; `None`: by request only.
    pub every: Option<Duration>,
    /// How far behind the clock its window ends: sources may be late.
    pub lag: SignedDuration,
    /// How much time one run looks at, at the most.
    pub window: SignedDuration,
    /// How long reports are kept.
    pub retention: SignedDuration,
    /// Of one source, in one run.
    pub max_items: usize,
    /// More than this is a mistake of the configuration, or a catastrophe: nothing is acted on then.
    pub max_anomalies: usize,
    pub tools: Vec<String>,
    pub sources: Vec<SourceAt>,
    pub on: BTreeMap<Kind, Action>,
}

/// A source, and how it is read.
#[derive(Debug, Clone)]
pub struct SourceAt {
    pub rules: Rules,
    pub source: Source,
    /// The tool whose effects it has; `None`: those of all.
    pub tool: Option<String>,
    /// Where an item has what a duplicate of a settled call gets; `None`: the whole item.
    pub result: Option<Pointer>,
}

impl Reconciliation {
    /// By how much more than its window a source is asked for: an effect lies within a lease of the end of
    /// its call, and clocks differ.
    pub fn margin<'a>(&self, tools: impl Iterator<Item = &'a Tool>) -> SignedDuration {
        let time = |tool: &Tool| match tool.unknown {
            OnUnknown::Retry => tool.lease() + tool.recheck.give_up_after,
            _ => tool.lease(),
        };
        let longest = tools.map(time).max().unwrap_or_default();
        self.lag
            .saturating_add(SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX))
    }

    /// Whether what is of this kind is undone.
    fn compensates(&self, kind: &str) -> bool {
        self.on
            .iter()
            .any(|(of, action)| of.as_str() == kind && *action == Action::Compensate)
    }

    fn source(&self, name: &str) -> Option<&SourceAt> {
        self.sources
            .iter()
            .find(|source| source.rules.source == name)
    }
}

/// What is kept of a reconciliation between its runs, beside when it is due.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Up to when it has looked.
    until: Option<i64>,
    /// The run that was begun last.
    run: String,
}

/// Which part of the time a person wants to be looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

/// Holds the ledger against the systems behind the tools.
pub struct Reconciler {
    base: Arc<Base>,
    downstream: Arc<Downstream>,
    engine: Arc<Engine>,
    sender: Arc<Sender>,
    registry: Arc<SagaRegistry>,
    sagas: Arc<Sagas>,
    notifier: Arc<Notifier>,
    all: BTreeMap<String, Reconciliation>,
    /// Places for reconciliations that run.
    places: Semaphore,
}

impl Reconciler {
    pub(super) fn new(
        base: Arc<Base>,
        downstream: Arc<Downstream>,
        engine: Arc<Engine>,
        sender: Arc<Sender>,
        registry: Arc<SagaRegistry>,
        sagas: Arc<Sagas>,
        notifier: Arc<Notifier>,
        all: Vec<Reconciliation>,
    ) -> Self {
        for one in &all {
            base.metrics
                .has_reconciliation(&one.name, &Kind::ALL.map(Kind::as_str));
        }
        Self {
            base,
            downstream,
            engine,
            sender,
            registry,
            sagas,
            notifier,
            all: all.into_iter().map(|one| (one.name.clone(), one)).collect(),
            places: Semaphore::new(AT_ONCE),
        }
    }

    fn reconciliation(&self, name: &str) -> Result<&Reconciliation, Error> {
        self.all
            .get(name)
            .ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }

    /// Makes every scheduled run whose time has come, and works on what is to be done about anomalies. Many
    /// gateways may do it at once: each run is made by one of them. Answers how many were made here.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn reconcile_due(self: &Arc<Self>, now: Timestamp) -> Result<usize, store::Error> {
        if self.base.draining.is_cancelled() || self.base.is_out_of_time() {
            return Ok(0);
        }
        let (mut made, mut failed) = (0, None);
        for reconciliation in self.all.values().filter(|one| one.every.is_some()) {
            match self.run_if_due(reconciliation, now).await {
                Ok(was_made) => made += usize::from(was_made),
                // What cannot be read of one is not in the way of the others.
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
        let found = self
            .base
            .store
            .document(DocumentKind::Reconciliation, "", name)
            .await;
        let found = found?;
        let progress: Progress = found
            .as_ref()
            .and_then(|found| serde_json::from_slice(&found.body).ok())
            .unwrap_or_default();
        if found
            .as_ref()
            .is_some_and(|found| found.due_at.is_some_and(|due| now < due))
        {
            return Ok(false);
        }
        let run = new_run_id();
        let before = progress
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
        // The one who writes this makes the run.
        match self.base.store.put_document(&document).await? {
            Put::Done => {}
            Put::Lost(_) => return Ok(false),
        }
        crash::point("reconciliation_taken");
        let window = self.next_window(of, before, now);
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
            .or(before);
        // One that has fallen behind goes on at once.
        let behind =
            until.is_some_and(|until| until < earlier(now, of.lag.saturating_add(signed(every))));
        let next = if looked && behind {
            now
        } else {
            later(now, signed(every))
        };
        document.version += 1;
        document.state = "waiting".into();
        document.due_at = Some(next);
        document.body = json_of(&Progress {
            until: until.map(Timestamp::as_microsecond),
            run,
        });
        // Whoever has taken it since, because this run took too long, goes on from there.
        drop(self.base.store.put_document(&document).await?);
        Ok(true)
    }

    /// From where the last run ended, but never so far back that calls have been deleted.
    fn next_window(
        &self,
        of: &Reconciliation,
        before: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Window> {
        let end = earlier(now, of.lag);
        let since = before
            .unwrap_or_else(|| earlier(end, of.window))
            .max(self.oldest(of, now));
        let until = end.min(later(since, of.window));
        (since < until).then(|| Window {
            since,
            until,
            margin: self.margin(of),
        })
    }

    fn margin(&self, of: &Reconciliation) -> SignedDuration {
        let tools = self.base.tools();
        of.margin(
            of.tools
                .iter()
                .filter_map(|name| tools.get(name))
                .map(|at| &at.tool),
        )
    }

    /// Of what came before, calls may have been deleted.
    fn oldest(&self, of: &Reconciliation, now: Timestamp) -> Timestamp {
        let tools = self.base.tools();
        let kept = of
            .tools
            .iter()
            .filter_map(|name| tools.get(name))
            .map(|at| at.tool.retention)
            .min();
        let margin = self.margin(of);
        let kept = kept.map_or(SignedDuration::ZERO, signed);
        earlier(
            now,
            kept.saturating_sub(margin.saturating_mul(2))
                .max(SignedDuration::ZERO),
        )
    }

    /// A person wants a run now.
    ///
    /// # Errors
    /// Who asks is no administrator, there is no such reconciliation, or no such time to look at.
    pub async fn reconcile_now(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        asked: Asked,
    ) -> Result<Report, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        let of = self.reconciliation(name)?.clone();
        if self.base.draining.is_cancelled() {
            return Err(ErrorKind::ShuttingDown.alone());
        }
        let now = self.base.now();
        let refuse = |why: &str| ErrorKind::InvalidRequest(why.to_owned()).alone();
        let until = asked.until.unwrap_or(now).min(earlier(now, of.lag));
        let since = asked.since.unwrap_or_else(|| earlier(until, of.window));
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
        let (gateway, by) = (self.clone(), format!("token {}", caller.name));
        // A caller that hangs up does not break it off.
        let run = self
            .base
            .tasks
            .spawn(async move { gateway.reconcile(&of, &new_run_id(), window, &by).await });
        let report = run.await.ok().and_then(Result::ok);
        report.ok_or_else(|| ErrorKind::StoreUnavailable.alone())
    }

    /// Looks, writes down what was found, and acts on it.
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
            looked = tokio::time::timeout(RUN_TIME, self.look_at_sources(of, window)) => {
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
                report.take_counts(&looked);
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
            self.act_on(&report).await;
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

fn signed(time: Duration) -> SignedDuration {
    SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX)
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// Plain values always make JSON.
fn json_of<T: Serialize>(value: &T) -> bytes::Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}
