//! The service that compares the ledger with the systems behind the tools.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::anomaly_worker::AnomalyWorker;
use super::settings::Reconciliation;
use crate::base::Base;
use crate::error::{Error, ErrorKind};
use oncegate_rules::reconcile::Kind;

/// Runs of one gateway at once: each holds its items in memory.
const AT_ONCE: usize = 2;

/// Compares the ledger with the systems behind the tools.
pub struct Reconciler {
    pub(super) base: Arc<Base>,
    pub(super) anomalies: Arc<AnomalyWorker>,
    /// Places for runs.
    pub(super) places: Semaphore,
}

impl Reconciler {
    pub(crate) fn new(anomalies: Arc<AnomalyWorker>) -> Self {
        let base = anomalies.base.clone();
        for name in anomalies.all.load().keys() {
            let kinds = Kind::ALL.map(Kind::as_str);
            base.metrics.has_reconciliation(name, &kinds);
        }
        Self {
            base,
            anomalies,
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// Takes over new settings of known reconciliations: what is done about anomalies, and what they show.
    ///
    /// All other settings stay as they were at the start.
    pub fn take_over(&self, new: &[&Reconciliation]) {
        let mut all = (*self.anomalies.all.load_full()).clone();
        for new in new {
            if let Some(known) = all.get_mut(&new.name) {
                let known = Arc::make_mut(known);
                (known.on, known.show) = (new.on.clone(), new.show.clone());
            }
        }
        self.anomalies.all.store(Arc::new(all));
    }

    pub(super) fn reconciliation(&self, name: &str) -> Result<Arc<Reconciliation>, Error> {
        let found = self.anomalies.reconciliation(name);
        found.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }
}
