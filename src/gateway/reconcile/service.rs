//! The reconciler and its parts.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::anomaly_worker::AnomalyWorker;
use super::settings::{Reconciliation, Reconciliations};
use crate::core::reconcile::Kind;
use crate::downstream::Downstream;
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind};

/// Runs of one gateway at once: each holds its items in memory.
const AT_ONCE: usize = 2;

/// Compares the ledger with the systems behind the tools.
pub struct Reconciler {
    pub(super) base: Arc<Base>,
    pub(super) downstream: Arc<Downstream>,
    pub(super) anomalies: Arc<AnomalyWorker>,
    pub(super) all: Reconciliations,
    /// Places for reconciliations that run.
    pub(super) places: Semaphore,
}

impl Reconciler {
    pub(in crate::gateway) fn new(anomalies: Arc<AnomalyWorker>) -> Self {
        let (base, all) = (anomalies.base.clone(), anomalies.all.clone());
        for name in all.all().keys() {
            let kinds = Kind::ALL.map(Kind::as_str);
            base.metrics.has_reconciliation(name, &kinds);
        }
        Self {
            base,
            downstream: anomalies.downstream.clone(),
            anomalies,
            all,
            places: Semaphore::new(AT_ONCE),
        }
    }

    /// Takes over what is done about anomalies of these and what they show, and nothing else.
    pub fn take_over(&self, new: &[&Reconciliation]) {
        self.all.take_over(new);
    }

    pub(super) fn reconciliation(&self, name: &str) -> Result<Arc<Reconciliation>, Error> {
        let of = self.all.get(name);
        of.ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }
}
