//! The service that compares the ledger with the systems behind the tools.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::Semaphore;

use super::anomaly_worker::{AnomalyWorker, BATCH};
use super::settings::{Reconciliation, by_name};
use super::unknown::Unknown;
use crate::rules::Kind;
use oncegate_engine::{Base, Error, ErrorKind, Gateway};
use oncegate_store as store;

/// Most rounds in a row of the worker for anomalies.
const ROUNDS: usize = 32;
/// Runs of one gateway at once: each holds its items in memory.
const AT_ONCE: usize = 2;

/// Compares the ledger with the systems behind the tools.
pub struct Reconciler {
    pub(super) base: Arc<Base>,
    pub anomalies: Arc<AnomalyWorker>,
    pub(super) unknown: Unknown,
    /// Permits for runs.
    pub(super) permits: Semaphore,
}

impl Reconciler {
    /// The service of a gateway with these reconciliations.
    pub fn new(gateway: &Gateway, all: Vec<Reconciliation>) -> Self {
        let base = gateway.base.clone();
        let anomalies = Arc::new(AnomalyWorker {
            base: base.clone(),
            downstream: gateway.downstream.clone(),
            engine: gateway.engine.clone(),
            sender: gateway.sender.clone(),
            registry: gateway.registry.clone(),
            sagas: gateway.sagas.clone(),
            notifier: gateway.notifier.clone(),
            all: by_name(all),
        });
        for name in anomalies.all.load().keys() {
            let kinds = Kind::ALL.map(Kind::as_str);
            base.metrics.has_reconciliation(name, &kinds);
        }
        Self {
            base,
            anomalies,
            unknown: Unknown::default(),
            permits: Semaphore::new(AT_ONCE),
        }
    }

    /// The time of the rules.
    pub fn now(&self) -> Timestamp {
        self.base.now()
    }

    /// Works on a bounded number of due anomalies. Returns how many.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_anomalies(&self) -> Result<usize, store::Error> {
        let mut all = 0;
        // An operator may have asked for thousands at once.
        for _ in 0..ROUNDS {
            let some = self.anomalies.work_on_anomalies_once(self.now()).await?;
            all += some;
            if some < BATCH as usize {
                break;
            }
        }
        Ok(all)
    }

    pub(super) fn reconciliation(&self, name: &str) -> Result<Arc<Reconciliation>, Error> {
        let found = self.anomalies.reconciliation(name);
        found.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }
}
