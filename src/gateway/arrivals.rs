//! Duplicates are counted in memory and written down a moment later, many at once: a replay costs the store no
//! write of its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Gateway;
use crate::core::ledger::{Duplicate, Duplicates};
use crate::core::record::CallId;
use crate::store;

/// Calls whose duplicates wait to be written down at once; those of further calls are not counted.
const MAX_PENDING: usize = 10_000;
/// Calls that are written in one go.
const BATCH: usize = 100;

/// What has not been written down yet.
#[derive(Default)]
pub(super) struct Arrivals {
    pending: Mutex<HashMap<CallId, Duplicates>>,
}

impl Arrivals {
    /// Takes note of duplicates. False if there is no room.
    fn note(&self, call_id: CallId, later: &Duplicates) -> bool {
        let mut pending = self.pending();
        if pending.len() >= MAX_PENDING && !pending.contains_key(&call_id) {
            return false;
        }
        pending.entry(call_id).or_default().add(later);
        true
    }

    fn take(&self) -> Vec<(CallId, Duplicates)> {
        self.pending().drain().collect()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<CallId, Duplicates>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Takes note of a request for a call that did not run it.
    pub(super) fn note_duplicate(&self, call_id: CallId, duplicate: Duplicate) {
        let one = Duplicates { count: 1, last: vec![duplicate] };
        if !self.arrivals.note(call_id, &one) {
            self.metrics.uncounted_duplicates.inc();
        }
    }

    /// Writes down the duplicates that have come since the last time. What the store refuses waits for the
    /// next time; what it may have written is not written again.
    pub async fn write_duplicates(&self) {
        let mut pending = self.arrivals.take();
        while !pending.is_empty() {
            let rest = pending.split_off(pending.len().min(BATCH));
            let written = self.store.count_duplicates(&pending).await;
            if let Err(store::Error::Refused(_)) = self.counted("count_duplicates", written) {
                for (call_id, later) in pending.iter().chain(&rest) {
                    if !self.arrivals.note(*call_id, later) {
                        self.metrics.uncounted_duplicates.inc_by(later.count);
                    }
                }
                return;
            }
            pending = rest;
        }
    }
}
