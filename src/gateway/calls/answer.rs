//! The answers for callers: how long a caller waits, and what a stored record says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::prepared::Patience;
use super::shared_run::Progress;
use crate::core::mcp::round;
use crate::core::recipe::identity::Name;
use crate::core::record::{CallId, Content, FailureKind, Record, State};
use crate::core::time::elapsed_ms;
use crate::core::unknown;
use crate::gateway::error::ErrorKind;
use crate::gateway::tools::ToolAt;
use crate::metrics::ArrivalKind;

/// The shortest wait of a caller for the claim.
const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// How long a caller waits for an outcome that cannot be written.
const UNWRITTEN_WAIT: Duration = Duration::from_secs(1);

/// The answer to a caller.
#[derive(Debug, Clone)]
pub enum Answer {
    Result(Stored),
    /// The call runs; ask for it later.
    Accepted(Arc<Record>),
}

impl Answer {
    /// The answer for a request with these names and this key.
    pub(in crate::gateway) fn for_request(self, names: &[Name], key: Option<&str>) -> Self {
        match self {
            Self::Result(mut stored) => {
                let names = names.iter().map(|name| name.lookup);
                stored.is_similar = stored.record.answers_as_similar(names);
                // With the key that is stored a caller would ask for another call.
                if let Some(key) = key.filter(|_| stored.record.is_adopted()) {
                    let record = Arc::make_mut(&mut stored.record);
                    key.clone_into(&mut Arc::make_mut(&mut record.intent).key);
                }
                Self::Result(stored)
            }
            accepted @ Self::Accepted(_) => accepted,
        }
    }
}

/// A stored result.
#[derive(Debug, Clone)]
pub struct Stored {
    pub record: Arc<Record>,
    /// One JSON text, as the tool sent it.
    pub json: Bytes,
    /// In a replay: how long ago the call was first asked for.
    pub replayed_age_ms: Option<u64>,
    /// Whether the request has another key than the call, and looks like it.
    pub is_similar: bool,
}

/// Waits until a run is over, or for the caller's patience. Returns the progress then.
pub(in crate::gateway) async fn follow(
    mut updates: watch::Receiver<Progress>,
    patience: Patience,
    default: Duration,
    session_wait: Duration,
) -> Progress {
    let came = Instant::now();
    let default = if patience.respond_async {
        Duration::ZERO
    } else {
        patience
            .longest
            .map_or(default, |longest| default.min(longest))
    };
    let until = came + patience.wait.unwrap_or(default);
    loop {
        let progress = updates.borrow_and_update().clone();
        let until = match &progress {
            Progress::Ended { .. } | Progress::Lost { .. } => return progress,
            // It may be written in a moment; after that the caller is told the truth.
            Progress::Unwritten { .. } => until.min(Instant::now() + UNWRITTEN_WAIT),
            // Without a claim there is no call that one could ask for later.
            Progress::Claiming => until.max(came + CLAIM_WAIT),
            Progress::Queued if patience.wait.or(patience.longest).is_some() => until,
            Progress::Queued => until.max(came + session_wait + CLAIM_WAIT),
            Progress::Running { .. } => until,
        };
        match timeout_at(until, updates.changed()).await {
            Ok(Ok(())) => {}
            // The run's task has ended, perhaps without a result.
            Ok(Err(_)) => {
                return match updates.borrow().clone() {
                    ended @ Progress::Ended { .. } => ended,
                    broken => Progress::Lost {
                        record: broken.record().cloned(),
                    },
                };
            }
            Err(_) => return progress,
        }
    }
}

/// What a caller is told at this progress of a run. `first`: its request began the run.
pub(in crate::gateway) fn tell(
    progress: &Progress,
    patience: Patience,
    first: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, (ErrorKind, Option<CallId>)> {
    let id = |record: &Arc<Record>| Some(record.intent.call_id);
    match progress {
        Progress::Ended {
            record: Err(kind), ..
        } => Err((kind.clone(), None)),
        Progress::Ended {
            record: Ok(record),
            ours,
        } => read(record, !(first && *ours), retry_after, now).map_err(|kind| (kind, id(record))),
        Progress::Running { record, .. } if patience.respond_async => {
            Ok(Answer::Accepted(record.clone()))
        }
        Progress::Running { record, .. } => {
            Err((ErrorKind::CallInProgress { retry_after }, id(record)))
        }
        Progress::Claiming | Progress::Queued => {
            Err((ErrorKind::CallInProgress { retry_after }, None))
        }
        // It is offered to the store again and again.
        Progress::Unwritten { record } => Err((
            ErrorKind::OutcomeUnknown {
                retry_after: Some(retry_after),
            },
            id(record),
        )),
        Progress::Lost { record } => {
            let next = record
                .as_ref()
                .and_then(|record| unknown::next_look(record, now));
            let retry_after = next.or(Some(retry_after));
            Err((
                ErrorKind::OutcomeUnknown { retry_after },
                record.as_ref().and_then(id),
            ))
        }
    }
}

/// Keeps a server's questions from callers that cannot answer.
///
/// They would take the questions for the tool's result.
pub(in crate::gateway) fn unless_it_asks(
    answer: Answer,
    at: &ToolAt,
    can_be_asked: bool,
) -> Result<Answer, (ErrorKind, Option<CallId>)> {
    match &answer {
        Answer::Result(stored)
            if !can_be_asked && at.is_of_upstream() && round::asked(&stored.json).is_some() =>
        {
            let call_id = stored.record.intent.call_id;
            Err((ErrorKind::InputRequired, Some(call_id)))
        }
        _ => Ok(answer),
    }
}

/// What a caller is told from a stored record.
pub(in crate::gateway) fn read(
    record: &Arc<Record>,
    replayed: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, ErrorKind> {
    match &record.state {
        State::Succeeded(Content::Kept(json))
        | State::Compensating(Some(Content::Kept(json)))
        | State::Compensated(Some(Content::Kept(json)))
        | State::Stuck(Some(Content::Kept(json))) => {
            let age_ms = replayed.then(|| elapsed_ms(record.intent.created_at, now));
            let (record, json) = (record.clone(), json.clone());
            Ok(Answer::Result(Stored {
                record,
                json,
                replayed_age_ms: age_ms,
                is_similar: false,
            }))
        }
        State::Succeeded(Content::Unavailable(why))
        | State::Compensating(Some(Content::Unavailable(why)))
        | State::Stuck(Some(Content::Unavailable(why))) => {
            Err(ErrorKind::ResultUnavailable(why.clone()))
        }
        State::Compensated(Some(Content::Unavailable(why))) => Err(ErrorKind::WrongState(format!(
            "what the call did has been undone, and its result is not kept: {why}"
        ))),
        State::Failed(failure) => Err(match failure.kind {
            FailureKind::Rejected => ErrorKind::ToolRejected(failure.clone()),
            FailureKind::Fenced => ErrorKind::Fenced(failure.clone()),
            FailureKind::SagaClosed => ErrorKind::WrongState(failure.why.clone()),
            FailureKind::Unreachable => ErrorKind::ToolUnreachable(failure.clone()),
            FailureKind::Unavailable | FailureKind::NotExecuted => {
                ErrorKind::ToolUnavailable(failure.clone())
            }
        }),
        State::Unknown(_) => Err(ErrorKind::OutcomeUnknown {
            retry_after: unknown::next_look(record, now),
        }),
        State::Running => Err(ErrorKind::CallInProgress { retry_after }),
        State::Compensated(None) => {
            let why = "the call was taken back before anybody knew that it had run, and will not run any more";
            Err(ErrorKind::WrongState(why.into()))
        }
        // It may have been executed, and may not be undone yet.
        State::Compensating(None) | State::Stuck(None) => Err(ErrorKind::OutcomeUnknown {
            retry_after: unknown::next_look(record, now),
        }),
    }
}

/// How a request that did not run the call itself was answered.
pub(in crate::gateway) fn arrival_of(progress: &Progress) -> ArrivalKind {
    match progress {
        Progress::Ended { record: Err(_), .. } => ArrivalKind::Refused,
        Progress::Ended {
            record: Ok(record),
            ours,
        } => match record.state {
            State::Unknown(_) | State::Running => ArrivalKind::Suppressed,
            _ if *ours => ArrivalKind::Joined,
            _ => ArrivalKind::Replayed,
        },
        Progress::Claiming
        | Progress::Queued
        | Progress::Running { .. }
        | Progress::Unwritten { .. }
        | Progress::Lost { .. } => ArrivalKind::Suppressed,
    }
}
