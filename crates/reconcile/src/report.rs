//! The report of a run.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::anomaly_worker::AT_ONCE;
use super::collect::Collected;
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::rules::anomaly::{Act, Case, Listed, Terms};
use crate::rules::{Anomaly, Window, brake};
use oncegate_engine::wings::{must_be_admin, unavailable};
use oncegate_engine::{Error, ErrorKind};
use oncegate_rules::caller::Caller;
use oncegate_rules::document::{self, Document, Kind as DocumentKind};
use oncegate_rules::time::after;
use oncegate_rules::words::words;
use oncegate_store::{self as store, DocumentQuery, Put};

/// Most anomalies of one report, and the highest `max_anomalies`.
pub(super) const MOST: usize = 10_000;
/// How many anomalies are listed if a run has found too many.
const SOME: usize = 20;
/// The actor of a scheduled run.
pub(super) const SCHEDULE: &str = "schedule";

/// The findings of one run. Times are microseconds since 1970 in UTC.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    pub name: String,
    pub run: String,
    pub state: RunState,
    pub error: Option<String>,
    pub by: String,
    pub since: i64,
    pub until: i64,
    pub started_at: i64,
    pub finished_at: Option<i64>,
    /// Calls on which source and ledger agree.
    pub matched: u64,
    /// Calls that the source may or may not have.
    pub undecided: u64,
    /// Items of the sources in the run.
    pub items: u64,
    pub calls: u64,
    /// The sources that differ from too many calls to be believed, each with the reason: nothing is undone.
    #[serde(default)]
    pub suspect: Vec<String>,
    /// How many anomalies of each kind the run has found.
    pub counts: BTreeMap<String, u64>,
    /// How many of them no run had found before.
    pub new: BTreeMap<String, u64>,
    #[serde(deserialize_with = "readable")]
    pub anomalies: Vec<Listed>,
}

words! {
    /// The state of a run.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RunState {
        /// The run is under way, or its gateway has ended in the middle.
        #[default]
        Running = "running",
        Done = "done",
        /// Sources and ledger could not be compared as a whole, so nothing was done about anomalies.
        Failed = "failed",
    }
}

/// The anomalies of a report that this version can read.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Listed>, D::Error> {
    let all = Vec::<Value>::deserialize(from)?.into_iter();
    Ok(all
        .filter_map(|listed| serde_json::from_value(listed).ok())
        .collect())
}

/// A reconciliation, and its last run.
#[derive(Debug, Clone)]
pub struct Overview {
    pub name: String,
    pub every: Option<std::time::Duration>,
    pub next_run_at: Option<Timestamp>,
    /// The end of the last window of its scheduled runs.
    pub looked_until: Option<Timestamp>,
    pub last: Option<Report>,
}

/// The progress of a reconciliation between its runs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The end of the last window.
    pub(super) until: Option<i64>,
    /// The newest run.
    pub(super) run: String,
    /// How many calls of its tools were unknown after the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<u64>,
}

impl Progress {
    pub(super) fn looked_until(&self) -> Option<Timestamp> {
        Timestamp::from_microsecond(self.until?).ok()
    }
}

impl Report {
    pub(super) fn new(
        of: &Reconciliation,
        run: &str,
        window: Window,
        by: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            name: of.name.clone(),
            run: run.to_owned(),
            by: by.to_owned(),
            since: window.since.as_microsecond(),
            until: window.until.as_microsecond(),
            started_at: now.as_microsecond(),
            ..Self::default()
        }
    }

    /// Counts what a run has collected. Returns its anomalies.
    ///
    /// Of more anomalies than `most` none is undone by itself.
    ///
    /// # Errors
    /// More anomalies than a report lists; says so. The first few are listed without their items: nothing is done about
    /// them.
    pub(super) fn take(&mut self, of: Collected, most: usize) -> Result<Vec<Anomaly>, String> {
        (self.items, self.calls) = (of.items, of.calls);
        self.suspect = of.suspect;
        let mut found = Vec::new();
        for compared in of.found {
            self.matched += compared.matched;
            self.undecided += compared.undecided;
            found.extend(compared.anomalies);
        }
        for anomaly in &found {
            *self.counts.entry(anomaly.kind.to_string()).or_default() += 1;
        }
        let count = found.len();
        if count > MOST {
            let listed = |anomaly| Listed::of(&self.name, anomaly, Act::Report);
            self.anomalies = found.iter().take(SOME).map(listed).collect();
            return Err(format!(
                "{count} anomalies are more than a report lists ({MOST}): nothing was acted on; look at a shorter time"
            ));
        }
        if count > most {
            brake::apply_to_many(&mut found);
            self.suspect.push(format!(
                "{count} anomalies are more than max_anomalies = {most}: is the source configured as intended?"
            ));
        }
        Ok(found)
    }
}

impl Reconciler {
    /// Writes the report, then each anomaly with the act that is due.
    ///
    /// From then on the act is done even if this gateway ends.
    pub(super) async fn write_down(
        &self,
        of: &Reconciliation,
        report: &mut Report,
        found: &[Anomaly],
    ) -> Result<(), store::Error> {
        let (now, tools) = (self.base.now(), self.tools_of(of));
        let case = |anomaly: &Anomaly| {
            let at = of.source(&anomaly.source);
            let terms = Terms {
                wanted: of.on.get(&anomaly.kind).copied(),
                result: at.and_then(|at| at.result.clone()),
                showing: of.showing(at, tools.iter().map(|at| &at.tool)),
                retention: of.anomaly_retention,
            };
            Case::new(&of.name, &report.run, anomaly, &terms, now)
        };
        let found: Vec<Case> = found.iter().map(case).collect();
        report.anomalies = found.iter().map(|case| case.listed.clone()).collect();
        self.keep_report(of, report, 1).await?;
        let by_operator = report.by != SCHEDULE;
        let write = found.into_iter();
        let write = write.map(|case| self.anomalies.write_anomaly(of, case, by_operator));
        let write: Vec<_> = write.collect();
        let written: Vec<_> = stream::iter(write).buffered(AT_ONCE).collect().await;
        for (listed, is_new) in report.anomalies.iter_mut().zip(written) {
            listed.new = is_new?;
            if listed.new {
                let kind = listed.kind.as_str();
                *report.new.entry(kind.to_owned()).or_default() += 1;
                let counter = &self.base.metrics.anomalies;
                counter.with_label_values(&[of.name.as_str(), kind]).inc();
                tracing::warn!(
                    reconciliation = of.name,
                    kind,
                    source = listed.source,
                    id = listed.id,
                    call_id = listed.call_id,
                    action = listed.action.as_str(),
                    "an anomaly was found",
                );
            }
        }
        Ok(())
    }

    pub(super) async fn keep_report(
        &self,
        of: &Reconciliation,
        report: &Report,
        version: u64,
    ) -> Result<(), store::Error> {
        let started_at =
            Timestamp::from_microsecond(report.started_at).unwrap_or_else(|_| self.base.now());
        // Reports are listed by their state, which is the name of the reconciliation.
        let (id, state, body) = (&report.run, &of.name, document::body(report));
        let mut document = Document {
            version,
            retain_until: Some(after(self.base.now(), of.retention)),
            ..Document::new(DocumentKind::Report, id, state, started_at, body)
        };
        let put = self.base.store.put_document(&document).await?;
        // A run that failed has not written the first version.
        if put == Put::Lost(None) {
            document.version = 1;
            drop(self.base.store.put_document(&document).await?);
        }
        Ok(())
    }

    /// The report of a run, or of the last one.
    ///
    /// # Errors
    /// The caller is not an administrator, or no such report is kept.
    pub async fn find_report(
        &self,
        caller: &Caller,
        name: &str,
        run: Option<&str>,
    ) -> Result<Report, Error> {
        must_be_admin(caller)?;
        self.reconciliation(name)?;
        let report = self.report(name, run).await.map_err(unavailable)?;
        report.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }

    async fn report(&self, name: &str, run: Option<&str>) -> Result<Option<Report>, store::Error> {
        let store = &self.base.store;
        let found = match run {
            Some(run) => store.document(DocumentKind::Report, "", run).await?,
            None => {
                let last = DocumentQuery::in_state(DocumentKind::Report, name, 1);
                let (found, _) = self.base.readable_page(&last).await?;
                found.into_iter().next()
            }
        };
        let report = found.and_then(|found| serde_json::from_slice(&found.body).ok());
        Ok(report.filter(|report: &Report| report.name == name))
    }

    /// Some anomalies of a report in their present states, and where further ones begin.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn anomalies_of(
        &self,
        report: &Report,
        from: usize,
        limit: usize,
    ) -> Result<(Vec<Listed>, Option<usize>), Error> {
        let end = report.anomalies.len().min(from.saturating_add(limit));
        let mut anomalies = report.anomalies.get(from..end).unwrap_or_default().to_vec();
        let looks = anomalies.iter();
        let looks = looks.map(|listed| self.anomalies.document(&listed.id));
        let looks: Vec<_> = looks.collect();
        let found: Vec<_> = stream::iter(looks).buffered(AT_ONCE).collect().await;
        for (listed, document) in anomalies.iter_mut().zip(found) {
            let Some(document) = document.map_err(unavailable)? else {
                continue;
            };
            match Case::from_document(&document) {
                Some(case) => *listed = case.listed_now(listed.new),
                None => listed.error = Some("it cannot be read".to_owned()),
            }
        }
        let next = (end < report.anomalies.len()).then_some(end);
        Ok((anomalies, next))
    }

    /// All reconciliations by their names.
    ///
    /// # Errors
    /// The caller is not an administrator, or the store does not answer.
    pub async fn list_reconciliations(&self, caller: &Caller) -> Result<Vec<Overview>, Error> {
        must_be_admin(caller)?;
        let (store, mut all) = (&self.base.store, Vec::new());
        for of in self.anomalies.all.load_full().values() {
            let stored = store.document(DocumentKind::Reconciliation, "", &of.name);
            let stored = stored.await.map_err(unavailable)?;
            let progress = stored
                .as_ref()
                .map(|stored| serde_json::from_slice(&stored.body));
            let progress: Progress = progress.and_then(Result::ok).unwrap_or_default();
            all.push(Overview {
                name: of.name.clone(),
                every: of.every,
                next_run_at: stored
                    .and_then(|stored| stored.due_at)
                    .filter(|_| of.every.is_some()),
                looked_until: progress.looked_until(),
                last: self.report(&of.name, None).await.map_err(unavailable)?,
            });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::orphan;

    #[test]
    fn a_report_with_an_anomaly_of_an_unknown_kind_has_the_others() {
        let listed = Listed::of("orders", &orphan(), Act::Report);
        let mut stored = serde_json::json!({
            "name": "orders", "run": "1", "state": "done", "error": null, "by": "schedule",
            "since": 0, "until": 1, "started_at": 1, "finished_at": 2, "matched": 3, "undecided": 0,
            "items": 4, "calls": 4, "counts": {}, "new": {}, "anomalies": [listed, listed],
        });
        stored["anomalies"][0]["kind"] = "of tomorrow".into();
        let report: Report = serde_json::from_value(stored).expect("a report");
        assert_eq!(report.anomalies, [listed]);
    }
}
