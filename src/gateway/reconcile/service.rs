//! What a reconciliation works with.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::settings::Reconciliation;
use crate::core::reconcile::Kind;
use crate::downstream::Downstream;
use crate::gateway::base::Base;
use crate::gateway::calls::{Engine, Sender};
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::sagas::{SagaRegistry, Sagas};
use crate::gateway::webhook::Notifier;

/// Runs that one gateway makes at once: each holds its items in memory.
const AT_ONCE: usize = 2;

/// Holds the ledger against the systems behind the tools.
pub struct Reconciler {
    pub(super) base: Arc<Base>,
    pub(super) downstream: Arc<Downstream>,
    pub(super) engine: Arc<Engine>,
    pub(super) sender: Arc<Sender>,
    pub(super) registry: Arc<SagaRegistry>,
    pub(super) sagas: Arc<Sagas>,
    pub(super) notifier: Arc<Notifier>,
    pub(super) all: BTreeMap<String, Reconciliation>,
    /// Places for reconciliations that run.
    pub(super) places: Semaphore,
}

impl Reconciler {
    #[expect(
        clippy::too_many_arguments,
        reason = "one for each service that it uses"
    )]
    pub(in crate::gateway) fn new(
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

    pub(super) fn reconciliation(&self, name: &str) -> Result<&Reconciliation, Error> {
        self.all
            .get(name)
            .ok_or_else(|| ErrorKind::UnknownReconciliation.alone())
    }
}
