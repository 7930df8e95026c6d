//! The report of a run.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::anomaly_worker::AT_ONCE;
use super::service::Reconciler;
use super::settings::Reconciliation;
use crate::core::caller::Caller;
use crate::core::document::{Document, Kind as DocumentKind};
use crate::core::reconcile::anomaly::{Act, Case, Listed, Terms};
use crate::core::reconcile::{Anomaly, Comparison, Window};
use crate::core::time::after;
use crate::gateway::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::store::{self, Put};

/// Anomalies that are listed if a run has found too many.
const SOME: usize = 20;
/// The actor of a scheduled run.
pub(super) const SCHEDULE: &str = "schedule";

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// It is under way, or its gateway has ended in the middle.
    Running,
    Done,
    /// Not all could be compared; nothing was done about the rest.
    Failed,
}

impl RunState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// The findings of one run. Times are microseconds since 1970 in UTC.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// The number of each kind, and of those that no run had found before.
    pub counts: BTreeMap<String, u64>,
    pub new: BTreeMap<String, u64>,
    #[serde(deserialize_with = "readable")]
    pub anomalies: Vec<Listed>,
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
}

/// Plain values always make JSON.
pub(super) fn json_of<T: Serialize>(value: &T) -> bytes::Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

pub(super) fn micros(time: Timestamp) -> i64 {
    time.as_microsecond()
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
            state: RunState::Running,
            error: None,
            by: by.to_owned(),
            since: micros(window.since),
            until: micros(window.until),
            started_at: micros(now),
            finished_at: None,
            matched: 0,
            undecided: 0,
            items: 0,
            calls: 0,
            counts: BTreeMap::new(),
            new: BTreeMap::new(),
            anomalies: Vec::new(),
        }
    }

    pub(super) fn take_counts(&mut self, found: &[Comparison], items: u64, calls: u64) {
        (self.items, self.calls) = (items, calls);
        for found in found {
            self.matched += found.matched;
            self.undecided += found.undecided;
            for anomaly in &found.anomalies {
                *self.counts.entry(anomaly.kind.to_string()).or_default() += 1;
            }
        }
    }

    /// Lists the first few of too many anomalies, without their items: nothing is done about them.
    pub(super) fn list_some(&mut self, found: &[Anomaly]) {
        let some = found.iter().take(SOME);
        self.anomalies = some
            .map(|anomaly| Listed::of(&self.name, anomaly, Act::Report))
            .collect();
    }
}

impl Reconciler {
    /// The configuration's part in the case of an anomaly.
    fn terms_of(&self, of: &Reconciliation, anomaly: &Anomaly) -> Terms {
        let (at, tools) = (of.source(&anomaly.source), self.tools_of(of));
        Terms {
            wanted: of.on.get(&anomaly.kind).copied(),
            result: at.and_then(|at| at.result.clone()),
            showing: of.showing(at, tools.iter().map(|at| &at.tool)),
            retention: of.retention,
        }
    }

    /// Writes down first the report, then each anomaly with its act.
    ///
    /// From then on the act is done, also if this gateway ends.
    pub(super) async fn write_down(
        &self,
        of: &Reconciliation,
        report: &mut Report,
        found: Vec<Anomaly>,
    ) -> Result<(), store::Error> {
        let now = self.base.now();
        let case = |anomaly: &Anomaly| {
            let terms = self.terms_of(of, anomaly);
            Case::new(&of.name, &report.run, anomaly, &terms, now)
        };
        let found: Vec<Case> = found.iter().map(case).collect();
        report.anomalies = found.iter().map(|case| case.listed.clone()).collect();
        self.keep_report(of, report, 1).await?;
        let by_person = report.by != SCHEDULE;
        let write = found.into_iter();
        let write = write.map(|case| self.anomalies.write_anomaly(of, case, by_person));
        let write: Vec<_> = write.collect();
        let written: Vec<Result<bool, store::Error>> =
            stream::iter(write).buffered(AT_ONCE).collect().await;
        for (listed, is_new) in report.anomalies.iter_mut().zip(written) {
            listed.new = is_new?;
            if listed.new {
                *report.new.entry(listed.kind.to_string()).or_default() += 1;
                self.base
                    .metrics
                    .anomalies
                    .with_label_values(&[of.name.as_str(), listed.kind.as_str()])
                    .inc();
                tracing::warn!(
                    reconciliation = of.name,
                    kind = listed.kind.as_str(),
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
        let mut document = Document {
            kind: DocumentKind::Report,
            tenant: String::new(),
            id: report.run.clone(),
            version,
            // By this reports are found.
            state: of.name.clone(),
            created_at: started_at,
            due_at: None,
            retain_until: Some(after(self.base.now(), of.retention)),
            body: json_of(report),
        };
        let put = self.base.store.put_document(&document).await?;
        // A run that failed has written nothing before.
        if put == Put::Lost(None) {
            document.version = 1;
            drop(self.base.store.put_document(&document).await?);
        }
        Ok(())
    }

    /// A report: that of this run, or the last one.
    ///
    /// # Errors
    /// The caller is no administrator, or there is none.
    pub async fn find_report(
        &self,
        caller: &Caller,
        name: &str,
        run: Option<&str>,
    ) -> Result<Report, Error> {
        must_be_admin(caller)?;
        self.reconciliation(name)?;
        let store = &self.base.store;
        let found = match run {
            Some(run) => store.document(DocumentKind::Report, "", run).await,
            None => {
                let last = store.documents(DocumentKind::Report, None, Some(name), None, 1);
                let last = self.base.readable_page(last.await);
                last.map(|(found, _)| found.into_iter().next())
            }
        };
        let found = found.map_err(unavailable)?;
        let report: Option<Report> =
            found.and_then(|found| serde_json::from_slice(&found.body).ok());
        let report = report.filter(|report| report.name == name);
        report.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }

    /// Updates the listed anomalies of a report to their present states.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn refresh(&self, anomalies: &mut [Listed]) -> Result<(), Error> {
        let looks = anomalies
            .iter()
            .map(|listed| self.anomalies.document_of(listed));
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
        Ok(())
    }

    /// All reconciliations by their names.
    ///
    /// # Errors
    /// The caller is no administrator, or the store does not answer.
    pub async fn list_reconciliations(&self, caller: &Caller) -> Result<Vec<Overview>, Error> {
        must_be_admin(caller)?;
        let mut all = Vec::new();
        for of in self.all.all().values() {
            let kept = self
                .base
                .store
                .document(DocumentKind::Reconciliation, "", &of.name);
            let kept = kept.await.map_err(unavailable)?;
            let progress: Option<Progress> = kept
                .as_ref()
                .and_then(|kept| serde_json::from_slice(&kept.body).ok());
            let until = progress.and_then(|progress| progress.until);
            let last = match self.find_report(caller, &of.name, None).await {
                Ok(report) => Some(report),
                Err(Error {
                    kind: ErrorKind::UnknownReconciliation,
                    ..
                }) => None,
                Err(error) => return Err(error),
            };
            all.push(Overview {
                name: of.name.clone(),
                every: of.every,
                next_run_at: kept
                    .and_then(|kept| kept.due_at)
                    .filter(|_| of.every.is_some()),
                looked_until: until.and_then(|until| Timestamp::from_microsecond(until).ok()),
                last,
            });
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::reconcile::anomaly::tests::orphan;

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
