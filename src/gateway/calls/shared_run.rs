//! One run of a call in this process, shared by all its waiters.
//!
//! It must not know how a call runs. The store's claim is the authority; sharing only spares the
//! store the questions of requests that arrive together.
//!
//! A run is closed before the store is given a failure: from then on another gateway may run the key again, and a request that comes after
//! that must not be told that nothing was executed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::core::key::{Fingerprint, Lookup};
use crate::core::record::{CallId, Record};
use crate::core::session::Brought;
use crate::gateway::error::ErrorKind;
use crate::gateway::throttle::NewKeys;
use crate::store::Listener;

/// The values that requests must share to share a run.
///
/// The bound on new keys is part of it, so that no request is refused because another token was too fast.
pub(in crate::gateway) type RunKey = (Lookup, Fingerprint, Brought, String, Option<Arc<NewKeys>>);

/// The progress of a run.
#[derive(Debug, Clone)]
pub(in crate::gateway) enum Progress {
    Claiming,
    /// It waits for another call of the session; nothing is claimed.
    Queued,
    /// The claim is durable. `ours`: this run sends the call; otherwise another process does.
    Running {
        record: Arc<Record>,
        ours: bool,
    },
    /// The outcome is known here, but not written yet: it must not be told.
    Unwritten {
        record: Arc<Record>,
    },
    /// The run is over, and the store has its end; or why there is none.
    ///
    /// `ours`: this run sent the call; otherwise it found the end.
    Ended {
        record: Result<Arc<Record>, ErrorKind>,
        ours: bool,
    },
    /// The task ended without a result; the outcome is unknown.
    Lost {
        record: Option<Arc<Record>>,
    },
}

impl Progress {
    /// Whether this run sends the call, or sent it.
    pub(in crate::gateway) fn is_ours(&self) -> bool {
        match self {
            Self::Claiming | Self::Queued | Self::Lost { .. } => false,
            Self::Running { ours, .. } | Self::Ended { ours, .. } => *ours,
            Self::Unwritten { .. } => true,
        }
    }

    pub(in crate::gateway) fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Claiming | Self::Queued | Self::Ended { record: Err(_), .. } => None,
            Self::Lost { record } => record.as_ref(),
            Self::Running { record, .. }
            | Self::Unwritten { record }
            | Self::Ended {
                record: Ok(record), ..
            } => Some(record),
        }
    }
}

/// The runs of a gateway.
#[derive(Default)]
pub(in crate::gateway) struct SharedRuns(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    open: HashMap<RunKey, watch::Sender<Progress>>,
    /// Those that no request joins any more.
    closed: Vec<watch::Sender<Progress>>,
}

impl Runs {
    /// Takes a run out of those that can be joined. Whether it was one of them.
    fn close(&mut self, run: &RunHandle) -> bool {
        let is_open = self
            .open
            .get(&run.id)
            .is_some_and(|progress| progress.same_channel(&run.progress));
        if is_open {
            self.open.remove(&run.id);
        }
        is_open
    }
}

impl SharedRuns {
    /// Joins the run of this key, or begins one. A new run has a handle that drives it.
    pub(in crate::gateway) fn join_or_begin(
        self: &Arc<Self>,
        id: RunKey,
    ) -> (watch::Receiver<Progress>, Option<RunHandle>) {
        let mut runs = self.lock();
        if let Some(progress) = runs.open.get(&id) {
            return (progress.subscribe(), None);
        }
        let (progress, seen) = watch::channel(Progress::Claiming);
        runs.open.insert(id.clone(), progress.clone());
        (
            seen,
            Some(RunHandle {
                id,
                progress,
                runs: self.clone(),
            }),
        )
    }

    /// Whether a call runs here. Its run may have begun under another of its names.
    pub(in crate::gateway) fn runs(&self, call_id: CallId) -> bool {
        let runs = self.lock();
        let mut all = runs.open.values().chain(&runs.closed);
        all.any(|progress| match &*progress.borrow() {
            Progress::Running { record, ours: true } | Progress::Unwritten { record } => {
                record.intent.call_id == call_id
            }
            _ => false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drives one run. When dropped, also by a panic, the run is over for all who wait.
pub(in crate::gateway) struct RunHandle {
    id: RunKey,
    progress: watch::Sender<Progress>,
    runs: Arc<SharedRuns>,
}

impl RunHandle {
    pub(in crate::gateway) fn say(&self, progress: Progress) {
        self.progress.send_replace(progress);
    }

    /// Lets no further request join. Later ones ask the store.
    pub(in crate::gateway) fn close(&self) {
        let mut runs = self.runs.lock();
        if runs.close(self) {
            runs.closed.push(self.progress.clone());
        }
    }

    /// Ends the run. Later requests ask the store.
    pub(in crate::gateway) fn end(self, record: Result<Arc<Record>, ErrorKind>, ours: bool) {
        self.close();
        self.say(Progress::Ended { record, ours });
    }

    /// Ends the run if no request waits for it any more.
    ///
    /// In one step, so that none joins in between.
    pub(in crate::gateway) fn leave_if_alone(&self) -> bool {
        let mut runs = self.runs.lock();
        let alone = self.progress.receiver_count() == 0;
        if alone {
            runs.close(self);
        }
        alone
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        if !runs.close(self) {
            let is_other = |closed: &watch::Sender<Progress>| !closed.same_channel(&self.progress);
            runs.closed.retain(is_other);
        }
    }
}

/// Waits for the notification of a call's end; for ever if there is no listener.
pub(in crate::gateway) async fn heard(listener: Option<&Listener>) {
    match listener {
        Some(listener) => listener.heard().await,
        None => std::future::pending().await,
    }
}
