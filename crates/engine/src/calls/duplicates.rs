//! Counts duplicates in memory, and writes them down a moment later, many at once.
//!
//! A replay costs the store no write of its own.

pub(super) mod replay; // answer from memory, or wait for the run
pub(super) mod shared_run; // one run, many waiters
pub(super) mod similar; // a request that looks like an earlier call

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::base::Base;
use crate::base::lock::lock;
use oncegate_rules::ledger::{self, Duplicate};
use oncegate_rules::record::CallId;
use oncegate_store as store;

/// Most calls whose duplicates wait to be written; those of further calls are not counted.
const MAX_PENDING: usize = 10_000;
/// From this many on they are written ahead of time: replays from memory may outrun the periodic write.
const MANY_PENDING: usize = MAX_PENDING / 2;
/// Calls that are written at the same time.
const AT_ONCE: usize = 64;

/// Duplicates that are not written down yet.
pub struct Duplicates {
    base: Arc<Base>,
    pending: Mutex<HashMap<CallId, ledger::Duplicates>>,
    /// Held while many are written ahead of time.
    ahead: Arc<Semaphore>,
    /// Held by the writer: a reader of the ledger waits for it, and duplicates are written in their order.
    writing: tokio::sync::Mutex<()>,
}

impl Duplicates {
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            pending: Mutex::default(),
            ahead: Arc::new(Semaphore::new(1)),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Notes a request for a call that did not run it.
    pub(super) fn note(self: &Arc<Self>, call_id: CallId, duplicate: Duplicate) {
        let one = ledger::Duplicates {
            count: 1,
            last: vec![duplicate],
        };
        if self.add(call_id, &one)
            && let Ok(alone) = self.ahead.clone().try_acquire_owned()
        {
            let duplicates = self.clone();
            self.base.tasks.spawn(async move {
                while duplicates.write_duplicates().await
                    && lock(&duplicates.pending).len() >= MANY_PENDING
                {}
                drop(alone);
            });
        }
    }

    /// Writes down the duplicates since the last time. Returns false if the store refuses some.
    ///
    /// Duplicates that the store refuses wait for the next time. Those that it may have written are not written again.
    pub async fn write_duplicates(&self) -> bool {
        let _one = self.writing.lock().await;
        let all: Vec<_> = lock(&self.pending).drain().collect();
        let mut pending = all.into_iter();
        loop {
            let some: Vec<(CallId, ledger::Duplicates)> = pending.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return true;
            }
            let write = async |(call_id, later): (CallId, ledger::Duplicates)| {
                let written = self.base.store.count_duplicates(call_id, &later).await;
                matches!(written, Err(store::Error::Refused(_))).then_some((call_id, later))
            };
            let refused = join_all(some.into_iter().map(write)).await;
            let refused: Vec<_> = refused.into_iter().flatten().collect();
            if !refused.is_empty() {
                for (call_id, later) in refused.into_iter().chain(pending) {
                    self.add(call_id, &later);
                }
                return false;
            }
        }
    }

    /// Adds duplicates of a call. Returns whether so many calls wait now that they are written ahead of time.
    ///
    /// True only when the number is reached, so that a store that refuses is not asked with each duplicate.
    fn add(&self, call_id: CallId, later: &ledger::Duplicates) -> bool {
        let mut pending = lock(&self.pending);
        let before = pending.len();
        if before >= MAX_PENDING && !pending.contains_key(&call_id) {
            self.base.metrics.uncounted_duplicates.inc_by(later.count);
            return false;
        }
        pending.entry(call_id).or_default().add(later);
        before < MANY_PENDING && pending.len() >= MANY_PENDING
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;
    use crate::base::Limits;
    use crate::metrics::Metrics;
    use oncegate_rules::record::InstanceId;
    use oncegate_store_sqlite::Sqlite;

    #[tokio::test]
    async fn duplicates_of_many_calls_are_written_before_the_memory_for_them_is_full() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, fatal) = (folder.path().join("oncegate.db"), CancellationToken::new());
        let instance = InstanceId(Uuid::from_u128(1));
        let store = Arc::new(Sqlite::open(&path, instance, &fatal).expect("a store"));
        let metrics = Arc::new(Metrics::new());
        let base = Base::new(store, Vec::new(), metrics, instance, Limits::least());
        let duplicates = Arc::new(Duplicates::new(Arc::new(base)));
        for n in 0..MAX_PENDING as u128 {
            let one = Duplicate {
                at: duplicates.base.now(),
                by: "agent".into(),
                kind: "replayed".into(),
            };
            duplicates.note(CallId(Uuid::from_u128(n)), one);
        }
        let written = async {
            while lock(&duplicates.pending).len() > MANY_PENDING {
                tokio::task::yield_now().await;
            }
        };
        let written = tokio::time::timeout(Duration::from_secs(30), written).await;
        written.expect("they are written ahead of time");
    }
}
