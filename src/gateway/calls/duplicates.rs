//! Counts duplicates in memory, and writes them down a moment later, many at once.
//!
//! A replay costs the store no write of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::core::ledger::{self, Duplicate};
use crate::core::record::CallId;
use crate::gateway::base::Base;
use crate::store;

/// Most calls whose duplicates wait to be written; those of further calls are not counted.
const MAX_PENDING: usize = 10_000;
/// Once so many wait they are written: replays from memory may be faster than the next time comes.
const MANY_PENDING: usize = MAX_PENDING / 2;
/// Calls that are written at the same time.
const AT_ONCE: usize = 64;

/// Duplicates that are not written down yet.
pub struct Duplicates {
    base: Arc<Base>,
    pending: Mutex<HashMap<CallId, ledger::Duplicates>>,
    /// Held while many are written ahead of time.
    ahead: Arc<Semaphore>,
    /// Held by the one that writes: a reader of the ledger waits for it, and what came first is written first.
    writing: tokio::sync::Mutex<()>,
}

/// What has become of a duplicate.
enum Noted {
    Here,
    /// With it, so many wait that they are written at once.
    AndMany,
    NoRoom,
}

impl Duplicates {
    pub(in crate::gateway) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            pending: Mutex::default(),
            ahead: Arc::new(Semaphore::new(1)),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Notes a request for a call that did not run it.
    pub(in crate::gateway) fn note_duplicate(
        self: &Arc<Self>,
        call_id: CallId,
        duplicate: Duplicate,
    ) {
        let one = ledger::Duplicates {
            count: 1,
            last: vec![duplicate],
        };
        match self.note(call_id, &one) {
            Noted::Here => {}
            Noted::AndMany => self.write_ahead(),
            Noted::NoRoom => self.base.metrics.uncounted_duplicates.inc(),
        }
    }

    /// Writes down the duplicates since the last time.
    ///
    /// Those that the store refuses wait for the next time; those that it may have written are not
    /// written again.
    pub async fn write_duplicates(&self) {
        self.write().await;
    }

    /// Begins to write them before the next time comes, unless that is under way.
    fn write_ahead(self: &Arc<Self>) {
        if let Ok(alone) = self.ahead.clone().try_acquire_owned() {
            let duplicates = self.clone();
            self.base.tasks.spawn(async move {
                while duplicates.write().await && duplicates.pending().len() >= MANY_PENDING {}
                drop(alone);
            });
        }
    }

    /// Writes them; false if the store refuses some.
    async fn write(&self) -> bool {
        let _one = self.writing.lock().await;
        let mut pending = self.take().into_iter();
        loop {
            let some: Vec<(CallId, ledger::Duplicates)> = pending.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return true;
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
                if let Noted::NoRoom = self.note(call_id, &later) {
                    self.base.metrics.uncounted_duplicates.inc_by(later.count);
                }
            }
            return false;
        }
    }

    fn note(&self, call_id: CallId, later: &ledger::Duplicates) -> Noted {
        let mut pending = self.pending();
        let before = pending.len();
        if before >= MAX_PENDING && !pending.contains_key(&call_id) {
            return Noted::NoRoom;
        }
        pending.entry(call_id).or_default().add(later);
        if (before..pending.len()).contains(&(MANY_PENDING - 1)) {
            Noted::AndMany
        } else {
            Noted::Here
        }
    }

    fn take(&self) -> Vec<(CallId, ledger::Duplicates)> {
        self.pending().drain().collect()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<CallId, ledger::Duplicates>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;
    use crate::budget::Budget;
    use crate::core::pace::Pace;
    use crate::core::record::InstanceId;
    use crate::core::saga::Policy;
    use crate::gateway::base::Limits;
    use crate::metrics::Metrics;
    use crate::store::sqlite::Sqlite;

    #[tokio::test]
    async fn duplicates_of_many_calls_are_written_before_there_is_no_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, fatal) = (folder.path().join("oncegate.db"), CancellationToken::new());
        let instance = InstanceId(Uuid::from_u128(1));
        let store = Arc::new(Sqlite::open(&path, instance, &fatal).expect("a store"));
        let limits = Limits {
            join_wait: Duration::ZERO,
            max_running: 1,
            max_waiting: 1,
            shutdown_grace: Duration::ZERO,
            sample: 0.0,
            sagas: Policy::default(),
            audit_retention: Duration::ZERO,
            pace: Pace::default(),
            memory: Budget::new(1 << 20),
            max_remembered: 0,
        };
        let metrics = Arc::new(Metrics::new());
        let base = Base::new(store, Vec::new(), metrics, instance, limits);
        let duplicates = Arc::new(Duplicates::new(Arc::new(base)));
        for n in 0..MAX_PENDING as u128 {
            let one = Duplicate {
                at: duplicates.base.now(),
                by: "agent".into(),
                kind: "replayed".into(),
            };
            duplicates.note_duplicate(CallId(Uuid::from_u128(n)), one);
        }
        let written = async {
            while duplicates.pending().len() > MANY_PENDING {
                tokio::task::yield_now().await;
            }
        };
        let written = tokio::time::timeout(Duration::from_secs(30), written).await;
        written.expect("they wait for the next time");
    }
}
