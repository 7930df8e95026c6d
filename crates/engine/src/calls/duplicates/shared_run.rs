//! One run of a call in this process, shared by all requests that wait for it.
//!
//! This file does not know how a call runs. The claim in the store decides who runs a call; sharing only spares
//! the store the questions of requests that arrive together.
//!
//! A run is closed before the store is given a failure. From then on another gateway may run the key again, and a
//! request that arrives later must not be told that nothing was executed.
//!
//! The result of a long read is not stored. If every request has gone when it comes, it is kept here for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::base::lock::lock;
use crate::callers::throttle::NewKeys;
use crate::error::ErrorKind;
use oncegate_rules::key::{Fingerprint, Lookup};
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::session::Preconditions;
use oncegate_store::Listener;

/// The values that requests must have in common to share a run.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::calls) struct RunKey {
    pub(in crate::calls) lookup: Lookup,
    pub(in crate::calls) fingerprint: Fingerprint,
    /// The values of the session.
    pub(in crate::calls) preconditions: Preconditions,
    pub(in crate::calls) saga_id: String,
    /// The bound on new keys, so that no request is refused because another token was too fast.
    pub(in crate::calls) new_keys: Option<Arc<NewKeys>>,
    /// Of a read: token, user and session. Callers may share a key, but not what they read.
    pub(in crate::calls) reader: Option<[String; 3]>,
}

/// The progress of a run.
#[derive(Debug, Clone)]
pub(in crate::calls) enum Progress {
    Claiming,
    /// The run waits for another call of the session; nothing is claimed.
    Queued,
    /// The claim is durable. `ours`: this run sends the call; otherwise another process does.
    Running {
        record: Arc<Record>,
        ours: bool,
    },
    /// The outcome is known here but not written yet, so it must not be answered.
    Unwritten(Arc<Record>),
    /// The run is over: its outcome is in the store, or the error says why there is none.
    ///
    /// `ours`: this run sent the call; otherwise it found the outcome.
    Ended {
        record: Result<Arc<Record>, ErrorKind>,
        ours: bool,
    },
    /// The task ended without a result; the outcome is unknown.
    Lost(Option<Arc<Record>>),
}

impl Progress {
    /// Whether this run sends the call, or sent it.
    pub(in crate::calls) fn is_ours(&self) -> bool {
        match self {
            Self::Claiming | Self::Queued | Self::Lost(_) => false,
            Self::Running { ours, .. } | Self::Ended { ours, .. } => *ours,
            Self::Unwritten(_) => true,
        }
    }

    pub(in crate::calls) fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Claiming | Self::Queued => None,
            Self::Ended { record, .. } => record.as_ref().ok(),
            Self::Lost(record) => record.as_ref(),
            Self::Running { record, .. } | Self::Unwritten(record) => Some(record),
        }
    }
}

/// The runs of a gateway.
#[derive(Default)]
pub(crate) struct SharedRuns(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    open: HashMap<RunKey, watch::Sender<Progress>>,
    /// Runs that no further request joins.
    closed: Vec<watch::Sender<Progress>>,
}

impl Runs {
    fn is_open(&self, run: &RunHandle) -> bool {
        let open = self.open.get(&run.id);
        open.is_some_and(|progress| progress.same_channel(&run.progress))
    }

    /// Removes a run from the open ones. Returns whether it was open.
    fn close(&mut self, run: &RunHandle) -> bool {
        let is_open = self.is_open(run);
        if is_open {
            self.open.remove(&run.id);
        }
        is_open
    }
}

impl SharedRuns {
    /// Joins the run of this key, or begins one. A new run has a handle that drives it.
    ///
    /// `keeps`: how long its result is kept for one request if no request waits for it any more.
    pub(in crate::calls) fn join_or_begin(
        self: &Arc<Self>,
        id: RunKey,
        keeps: Option<Duration>,
    ) -> (watch::Receiver<Progress>, Option<RunHandle>) {
        let mut runs = lock(&self.0);
        if let Some(progress) = runs.open.get(&id) {
            let updates = progress.subscribe();
            let is_over = matches!(&*updates.borrow(), Progress::Ended { .. });
            if is_over {
                runs.open.remove(&id);
            }
            return (updates, None);
        }
        let (progress, updates) = watch::channel(Progress::Claiming);
        runs.open.insert(id.clone(), progress.clone());
        let runs = self.clone();
        let run = RunHandle {
            id,
            progress,
            runs,
            keeps,
            remains: false,
        };
        (updates, Some(run))
    }

    /// Whether a call runs here. Its run may have begun under another of its lookup keys.
    pub(crate) fn runs(&self, call_id: CallId) -> bool {
        let runs = lock(&self.0);
        let mut all = runs.open.values().chain(&runs.closed);
        all.any(|progress| match &*progress.borrow() {
            Progress::Running { record, ours: true } | Progress::Unwritten(record) => {
                record.intent.call_id == call_id
            }
            _ => false,
        })
    }
}

/// Drives one run. When dropped, also by a panic, the run is over for all requests that wait.
pub(in crate::calls) struct RunHandle {
    id: RunKey,
    progress: watch::Sender<Progress>,
    runs: Arc<SharedRuns>,
    keeps: Option<Duration>,
    remains: bool,
}

impl RunHandle {
    pub(in crate::calls) fn report(&self, progress: Progress) {
        self.progress.send_replace(progress);
    }

    /// Lets no further request join. Later requests ask the store.
    pub(in crate::calls) fn close(&self) {
        let mut runs = lock(&self.runs.0);
        if runs.close(self) {
            runs.closed.push(self.progress.clone());
        }
    }

    /// Ends the run. Later requests ask the store.
    pub(in crate::calls) fn end(mut self, record: Result<Arc<Record>, ErrorKind>, ours: bool) {
        let is_result = |record: &Arc<Record>| matches!(record.state, State::Succeeded(_));
        if let Some(time) = self.keeps
            && record.as_ref().is_ok_and(is_result)
        {
            return self.end_and_keep(Progress::Ended { record, ours }, time);
        }
        self.close();
        self.report(Progress::Ended { record, ours });
    }

    /// Ends the run. Its result stays for one request that comes within `time`, unless a request waits for it now.
    fn end_and_keep(&mut self, ended: Progress, time: Duration) {
        // Under the lock, so that no request joins in between.
        let mut runs = lock(&self.runs.0);
        let is_alone = self.progress.receiver_count() == 0;
        self.remains = is_alone && runs.is_open(self);
        if !self.remains {
            runs.close(self);
        }
        self.report(ended);
        drop(runs);
        if self.remains {
            let (id, progress, runs) = (self.id.clone(), self.progress.clone(), self.runs.clone());
            drop(tokio::spawn(async move {
                sleep(time).await;
                let mut runs = lock(&runs.0);
                if runs
                    .open
                    .get(&id)
                    .is_some_and(|open| open.same_channel(&progress))
                {
                    runs.open.remove(&id);
                }
            }));
        }
    }

    /// Closes the run if no request waits for it any more. Returns whether it did.
    ///
    /// Both under one lock, so that no request joins in between.
    pub(in crate::calls) fn leave_if_alone(&self) -> bool {
        let mut runs = lock(&self.runs.0);
        let alone = self.progress.receiver_count() == 0;
        if alone {
            runs.close(self);
        }
        alone
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if self.remains {
            return;
        }
        let mut runs = lock(&self.runs.0);
        if !runs.close(self) {
            let is_other = |closed: &watch::Sender<Progress>| !closed.same_channel(&self.progress);
            runs.closed.retain(is_other);
        }
    }
}

/// Waits until the store tells of a change of the call; for ever without a listener.
pub(in crate::calls) async fn notified(listener: Option<&Listener>) {
    match listener {
        Some(listener) => listener.heard().await,
        None => std::future::pending().await,
    }
}
