//! The tasks of gateways, and what each of them does next.

use std::sync::Arc;

use crate::names::{Name, name_of};
use oncegate_rules::call::Change;
use oncegate_rules::record::{AttemptId, Record};
use oncegate_rules::saga::Saga;

/// A gateway's observation of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    NotSent,
    NoAnswer,
    /// The tool's answer, with the number of its effect.
    Executed(u8),
    /// The tool says that it did nothing.
    Refused,
    /// A server works on it as a task, which has not ended.
    Task,
    /// The end of a server's task, with the number of its effect.
    Ended(u8),
    /// A server's task is gone.
    Gone,
}

/// What a server says of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Runs,
    /// With the number of its effect.
    Ended(u8),
    Gone,
}

/// The next job of a gateway's task. A record in it is the version that the task has read.
#[derive(Clone)]
pub(crate) enum Job {
    /// A request wants its call: it claims the key, or finds out which call has it.
    Arrived {
        name: Name,
        seen: Option<Arc<Record>>,
        until: i64,
    },
    /// The store did not answer the claim: nothing is sent, and the gateway looks for the claim.
    ReleaseUnconfirmed { record: Arc<Record> },
    /// The call is claimed; asks whether its saga lets it be sent.
    Join { record: Arc<Record>, until: i64 },
    /// Is about to send.
    Send {
        record: Arc<Record>,
        until: i64,
        tells: bool,
    },
    /// Has sent, and waits for an answer.
    Wait {
        record: Arc<Record>,
        until: i64,
        tells: bool,
    },
    /// A server has answered with a task, which is to be written down.
    Given {
        record: Arc<Record>,
        until: i64,
        tells: bool,
    },
    /// Follows the task of its attempt.
    Follow {
        record: Arc<Record>,
        until: i64,
        tells: bool,
    },
    /// Knows how the attempt ended, and writes that down.
    Write(Box<Write>),
    /// Has written that the outcome is unknown, and may still hear of it.
    Listen { record: Arc<Record>, until: i64 },
    /// A worker has found a call without an owner.
    Lost { record: Arc<Record> },
    /// A worker has found a due check of an unknown call.
    Check { record: Arc<Record>, until: i64 },
    /// A worker asks the tool.
    Ask { record: Arc<Record>, asked_at: i64 },
    /// A worker has the tool's answer, and writes it down.
    Note {
        record: Arc<Record>,
        asked_at: i64,
        found: Option<u8>,
    },
    /// A worker asks a server for its task.
    See { record: Arc<Record> },
    /// A worker has heard of the task, and writes it down.
    Saw { record: Arc<Record>, said: Said },
    /// A gateway has built the request of an approved call, and is about to begin it.
    Begin {
        record: Arc<Record>,
        request: u8,
        until: i64,
    },
    /// A worker has taken a saga.
    Saga(Box<SagaJob>),
}

/// Matches the jobs that have read one call and nothing else. Its argument must be `record`.
macro_rules! about_one_call {
    ($record:ident) => {
        Job::ReleaseUnconfirmed { $record }
            | Job::Join { $record, .. }
            | Job::Send { $record, .. }
            | Job::Wait { $record, .. }
            | Job::Given { $record, .. }
            | Job::Follow { $record, .. }
            | Job::Listen { $record, .. }
            | Job::Lost { $record }
            | Job::Check { $record, .. }
            | Job::Ask { $record, .. }
            | Job::Note { $record, .. }
            | Job::See { $record }
            | Job::Saw { $record, .. }
            | Job::Begin { $record, .. }
    };
}

/// The end of an attempt that is to be written.
#[derive(Clone)]
pub(crate) struct Write {
    pub(crate) record: Arc<Record>,
    pub(crate) attempt: AttemptId,
    pub(crate) fencing: Option<u64>,
    pub(crate) seen: Seen,
    /// The id of a further attempt.
    pub(crate) retry: Option<AttemptId>,
    pub(crate) until: i64,
    /// Whether a caller waits for the end.
    pub(crate) tells: bool,
    /// Whether an answer may still come.
    pub(crate) listens: bool,
    /// Whether the call was claimed and is not sent, because its saga is closed.
    pub(crate) is_turned_away: bool,
    /// The change that was offered to the store, which did not answer.
    pub(crate) pending: Option<Arc<Change>>,
}

impl Write {
    /// Goes on with a newer version of the call.
    pub(crate) fn renew(&mut self, newer: Arc<Record>) {
        if Some(newer.attempt.id) == self.retry {
            // This task's own further attempt. Its beginning was not confirmed, so it was not sent.
            self.attempt = newer.attempt.id;
            self.fencing = newer.fencing;
            self.seen = Seen::NotSent;
            self.retry = None;
        }
        self.record = newer;
    }
}

/// The work on a saga.
#[derive(Clone)]
pub(crate) struct SagaJob {
    pub(crate) saga: Arc<Saga>,
    pub(crate) step: SagaStep,
}

#[derive(Clone)]
pub(crate) enum SagaStep {
    /// Decides what is next.
    Look,
    /// Goes through the listed calls. `is_fresh`: nothing was done since they were listed.
    Calls {
        calls: Vec<Arc<Record>>,
        is_fresh: bool,
    },
    /// Waits for the compensation of a call.
    Undoing {
        record: Arc<Record>,
        calls: Vec<Arc<Record>>,
    },
    /// The compensation has succeeded; writes that the call is undone.
    Undone {
        record: Arc<Record>,
        calls: Vec<Arc<Record>>,
    },
    /// The call is written as undone, and the saga goes on. `changed` is `None` if another writer was faster.
    Advance {
        changed: Option<Arc<Record>>,
        calls: Vec<Arc<Record>>,
    },
    /// A call is given up, and the saga with it.
    Put { ahead: Arc<Saga> },
}

/// A task of a gateway.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) gateway: u8,
    pub(crate) job: Job,
}

impl Task {
    /// The name of the call that the task runs in this process.
    pub(crate) fn runs(&self) -> Option<Name> {
        match &self.job {
            Job::Arrived { name, .. } => Some(*name),
            Job::Join { record, .. }
            | Job::Send {
                record,
                tells: true,
                ..
            }
            | Job::Wait {
                record,
                tells: true,
                ..
            }
            | Job::Given {
                record,
                tells: true,
                ..
            }
            | Job::Follow {
                record,
                tells: true,
                ..
            } => Some(name_of(record)),
            Job::Write(write) if write.tells => Some(name_of(&write.record)),
            _ => None,
        }
    }

    pub(crate) fn is_worker(&self) -> bool {
        matches!(
            self.job,
            Job::Lost { .. }
                | Job::Check { .. }
                | Job::Ask { .. }
                | Job::Note { .. }
                | Job::See { .. }
                | Job::Saw { .. }
                | Job::Begin { .. }
                | Job::Saga(_)
        )
    }

    /// All records that the task has read.
    pub(crate) fn records(&self) -> Vec<&Arc<Record>> {
        match &self.job {
            Job::Arrived { seen, .. } => seen.iter().collect(),
            about_one_call!(record) => vec![record],
            Job::Write(write) => vec![&write.record],
            Job::Saga(job) => match &job.step {
                SagaStep::Look | SagaStep::Put { .. } => Vec::new(),
                SagaStep::Calls { calls, .. } => calls.iter().collect(),
                SagaStep::Undoing { record, calls } | SagaStep::Undone { record, calls } => {
                    calls.iter().chain([record]).collect()
                }
                SagaStep::Advance { changed, calls } => calls.iter().chain(changed).collect(),
            },
        }
    }

    /// Changes all records that the task has read.
    pub(crate) fn each_record(&mut self, change: &mut impl FnMut(&mut Arc<Record>)) {
        match &mut self.job {
            Job::Arrived { seen, .. } => seen.iter_mut().for_each(change),
            about_one_call!(record) => change(record),
            Job::Write(write) => {
                change(&mut write.record);
                if let Some(pending) = &mut write.pending {
                    let mut record = Arc::new(pending.record.clone());
                    change(&mut record);
                    Arc::make_mut(pending).record = Arc::unwrap_or_clone(record);
                }
            }
            Job::Saga(job) => match &mut job.step {
                SagaStep::Look | SagaStep::Put { .. } => {}
                SagaStep::Calls { calls, .. } => calls.iter_mut().for_each(change),
                SagaStep::Undoing { record, calls } | SagaStep::Undone { record, calls } => {
                    change(record);
                    calls.iter_mut().for_each(change);
                }
                SagaStep::Advance { changed, calls } => {
                    changed.iter_mut().for_each(&mut *change);
                    calls.iter_mut().for_each(change);
                }
            },
        }
    }
}
