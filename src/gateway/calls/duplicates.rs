//! Counts duplicates in memory, and writes them down a moment later, many at once.
//!
//! A replay costs the store no write of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;

use crate::core::ledger::{self, Duplicate};
use crate::core::record::CallId;
use crate::gateway::base::Base;
use crate::store;

/// Most calls whose duplicates wait to be written; those of further calls are not counted.
const MAX_PENDING: usize = 10_000;
/// Calls that are written at the same time.
const AT_ONCE: usize = 64;

/// Duplicates that are not written down yet.
pub struct Duplicates {
    base: Arc<Base>,
    pending: Mutex<HashMap<CallId, ledger::Duplicates>>,
}

impl Duplicates {
    pub(in crate::gateway) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            pending: Mutex::default(),
        }
    }

    /// Notes a request for a call that did not run it.
    pub(in crate::gateway) fn note_duplicate(&self, call_id: CallId, duplicate: Duplicate) {
        let one = ledger::Duplicates {
            count: 1,
            last: vec![duplicate],
        };
        if !self.note(call_id, &one) {
            self.base.metrics.uncounted_duplicates.inc();
        }
    }

    /// Writes down the duplicates since the last time.
    ///
    /// Those that the store refuses wait for the next time; those that it may have written are not
    /// written again.
    pub async fn write_duplicates(&self) {
        let mut pending = self.take().into_iter();
        loop {
            let some: Vec<(CallId, ledger::Duplicates)> = pending.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return;
            }
            let write = async |(call_id, later): (CallId, ledger::Duplicates)| {
                let written = self.base.store.count_duplicates(call_id, &later).await;
                matches!(written, Err(store::Error::Refused(_))).then_some((call_id, later))
            };
            let refused: Vec<_> = join_all(some.into_iter().map(write))
                .await
                .into_iter()
                .flatten()
                .collect();
            if refused.is_empty() {
                continue;
            }
            for (call_id, later) in refused.into_iter().chain(pending) {
                if !self.note(call_id, &later) {
                    self.base.metrics.uncounted_duplicates.inc_by(later.count);
                }
            }
            return;
        }
    }

    /// Notes duplicates. False if there is no room.
    fn note(&self, call_id: CallId, later: &ledger::Duplicates) -> bool {
        let mut pending = self.pending();
        if pending.len() >= MAX_PENDING && !pending.contains_key(&call_id) {
            return false;
        }
        pending.entry(call_id).or_default().add(later);
        true
    }

    fn take(&self) -> Vec<(CallId, ledger::Duplicates)> {
        self.pending().drain().collect()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<CallId, ledger::Duplicates>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
