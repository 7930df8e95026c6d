//! Duplicates are counted in memory and written down a moment later, many at once: a replay costs the store no
//! write of its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;

use super::Gateway;
use crate::core::ledger::{Duplicate, Duplicates};
use crate::core::record::CallId;
use crate::store;

/// Calls whose duplicates wait to be written down at once; those of further calls are not counted.
const MAX_PENDING: usize = 10_000;
/// Calls that are written at the same time.
const AT_ONCE: usize = 64;

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
        let one = Duplicates {
            count: 1,
            last: vec![duplicate],
        };
        if !self.arrivals.note(call_id, &one) {
            self.metrics.uncounted_duplicates.inc();
        }
    }

    /// Writes down the duplicates that have come since the last time. What the store refuses waits for the
    /// next time; what it may have written is not written again.
    pub async fn write_duplicates(&self) {
        let mut pending = self.arrivals.take().into_iter();
        loop {
            let some: Vec<(CallId, Duplicates)> = pending.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return;
            }
            let write = async |(call_id, later): (CallId, Duplicates)| {
                let written = self.store.count_duplicates(call_id, &later).await;
                let written = self.counted("count_duplicates", written);
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
                if !self.arrivals.note(call_id, &later) {
                    self.metrics.uncounted_duplicates.inc_by(later.count);
                }
            }
            return;
        }
    }
}
