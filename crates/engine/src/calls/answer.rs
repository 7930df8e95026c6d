//! The answers for callers: how long a caller waits, and what a stored record says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::duplicates::shared_run::Progress;
use super::prepared::Patience;
use crate::error::ErrorKind;
use crate::metrics::ArrivalKind;
use crate::tools::ToolAt;
use oncegate_rules::approval::Proposal;
use oncegate_rules::key_scheme::identity::{LookupKey, is_by_arguments};
use oncegate_rules::mcp::elicitation;
use oncegate_rules::record::{Content, FailureKind, Record, State, Unread};
use oncegate_rules::time::elapsed_ms;
use oncegate_rules::unknown;

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
    /// The answer for a request with these lookup keys and this key.
    pub(super) fn for_request(self, lookups: &[LookupKey], key: Option<&str>) -> Self {
        match self {
            Self::Result(mut stored) => {
                let asked = lookups.iter().map(|name| name.lookup);
                stored.is_similar = stored.record.answers_as_similar(asked);
                stored.is_by_arguments = stored.replayed_age_ms.is_some()
                    && !stored.is_similar
                    && is_by_arguments(lookups, &stored.record);
                // The stored key of an adopted call is not the caller's: with it the caller would ask for another call.
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
    /// Whether only the arguments show that the request is the call: a model made up its key, or gave none.
    pub is_by_arguments: bool,
}

/// Waits until a run is over, or for the caller's patience. Returns the progress at that time.
pub(super) async fn follow(
    mut updates: watch::Receiver<Progress>,
    patience: Patience,
    default: Duration,
    session_wait: Duration,
) -> Progress {
    let came = Instant::now();
    let longest = patience.longest.unwrap_or(Duration::MAX);
    let default = if patience.respond_async {
        Duration::ZERO
    } else {
        default.min(longest)
    };
    let until = came + patience.wait.unwrap_or(default);
    loop {
        let progress = updates.borrow_and_update().clone();
        let until = match &progress {
            Progress::Ended { .. } | Progress::Lost(_) => return progress,
            // The outcome may be written in a moment. After that the caller is told that it is unknown.
            Progress::Unwritten(_) => until.min(Instant::now() + UNWRITTEN_WAIT),
            // Before the claim there is no call that the caller could ask for later.
            Progress::Claiming => until.max(came + CLAIM_WAIT),
            Progress::Queued if patience.wait.or(patience.longest).is_some() => until,
            Progress::Queued => until.max(came + session_wait + CLAIM_WAIT),
            // It may wait for hours: a caller waits for it only if it says so.
            Progress::Running { record, .. } if record.state.waits_for_approval() => {
                match patience.accept_after {
                    Some(_) => came,
                    None => came + patience.wait.or(patience.longest).unwrap_or_default(),
                }
            }
            Progress::Running { .. } => match patience.accept_after {
                Some(after) => until.min(came + after),
                None => until,
            },
        };
        match timeout_at(until, updates.changed()).await {
            Ok(Ok(())) => {}
            // The run's task has ended, perhaps without a result.
            Ok(Err(_)) => {
                return match updates.borrow().clone() {
                    ended @ Progress::Ended { .. } => ended,
                    broken => Progress::Lost(broken.record().cloned()),
                };
            }
            Err(_) => return progress,
        }
    }
}

/// What a caller is told at this progress of a run. `replayed`: another request ran the call.
pub(super) fn tell(
    progress: &Progress,
    patience: Patience,
    replayed: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, ErrorKind> {
    match progress {
        Progress::Ended {
            record: Ok(record), ..
        } if patience.accept_after.is_some() && unknown::is_open(record, now) => {
            Ok(Answer::Accepted(record.clone()))
        }
        Progress::Ended { record, .. } => answer_from(&record.clone()?, replayed, retry_after, now),
        Progress::Running { record, .. }
            if patience.respond_async || patience.accept_after.is_some() =>
        {
            Ok(Answer::Accepted(record.clone()))
        }
        Progress::Running { record, .. } if record.state.waits_for_approval() => {
            Err(approval_required(record, now))
        }
        Progress::Running { .. } | Progress::Claiming | Progress::Queued => {
            Err(ErrorKind::CallInProgress { retry_after })
        }
        // The gateway offers the outcome to the store again and again.
        Progress::Unwritten(_) => Err(ErrorKind::OutcomeUnwritten { retry_after }),
        Progress::Lost(record) => {
            let record = record.as_ref();
            let next_look = record.and_then(|record| unknown::next_look(record, now));
            Err(ErrorKind::OutcomeUnknown {
                retry_after: next_look.or(Some(retry_after)),
            })
        }
    }
}

/// Keeps a server's questions from callers that cannot answer: they would take them for the tool's result.
pub(super) fn unless_it_asks(
    answer: Answer,
    at: &ToolAt,
    can_be_asked: bool,
) -> Result<Answer, ErrorKind> {
    match &answer {
        Answer::Result(stored)
            if !can_be_asked
                && at.is_of_upstream()
                && elicitation::asked(&stored.json).is_some() =>
        {
            Err(ErrorKind::InputRequired)
        }
        _ => Ok(answer),
    }
}

/// What a caller is told from a stored record.
pub(super) fn answer_from(
    record: &Arc<Record>,
    replayed: bool,
    retry_after: Duration,
    now: Timestamp,
) -> Result<Answer, ErrorKind> {
    match (&record.state, record.state.content()) {
        (_, Some(Content::Stored(json))) => Ok(Answer::Result(Stored {
            record: record.clone(),
            json: json.clone(),
            replayed_age_ms: replayed.then(|| elapsed_ms(record.intent.created_at, now)),
            is_similar: false,
            is_by_arguments: false,
        })),
        (State::Compensated(_), Some(Content::Unavailable(Unread { why, .. }))) => {
            Err(ErrorKind::WrongState(format!(
                "what the call did has been undone, and its result is not stored: {why}"
            )))
        }
        (_, Some(Content::Unavailable(unread))) => {
            Err(ErrorKind::ResultUnavailable(unread.why.clone()))
        }
        (State::Failed(failure), _) => Err(match failure.kind {
            FailureKind::Rejected => ErrorKind::ToolRejected(failure.clone()),
            FailureKind::Fenced => ErrorKind::Fenced(failure.clone()),
            FailureKind::SagaClosed => ErrorKind::WrongState(failure.why.clone()),
            FailureKind::Declined => {
                let proposal = record.proposal.as_deref();
                let tell = proposal.map_or_else(String::new, |asked| asked.tell.clone());
                ErrorKind::ApprovalDeclined { tell }
            }
            FailureKind::Lapsed | FailureKind::Withdrawn => ErrorKind::ApprovalLapsed {
                may_ask_again: record
                    .proposal
                    .as_deref()
                    .is_none_or(Proposal::may_ask_again),
            },
            FailureKind::Unreachable => ErrorKind::ToolUnreachable(failure.clone()),
            FailureKind::Unavailable | FailureKind::NotExecuted => {
                ErrorKind::ToolUnavailable(failure.clone())
            }
        }),
        (State::Running, _) => Err(ErrorKind::CallInProgress { retry_after }),
        (State::Proposed | State::Approved, _) => Err(approval_required(record, now)),
        (State::Compensated(_), None) => {
            let why = "the call was taken back before it was known that it had run, and will not run any more";
            Err(ErrorKind::WrongState(why.into()))
        }
        // A call that is being undone without a known result may have been executed, and may not be undone yet.
        (
            State::Unknown(_) | State::Succeeded(_) | State::Compensating(_) | State::Stuck(_),
            None,
        ) => Err(ErrorKind::OutcomeUnknown {
            retry_after: unknown::next_look(record, now),
        }),
    }
}

/// Nothing was sent: an operator has to approve the call.
fn approval_required(record: &Record, now: Timestamp) -> ErrorKind {
    match record.proposal.as_deref() {
        Some(proposal) => ErrorKind::ApprovalRequired {
            asked_at: proposal.asked_at,
            expires_at: proposal.until,
            retry_after: proposal.ask_again_after(now),
        },
        // A call that waits was asked about. Without that it is said to run: it is never sent by this gateway.
        None => ErrorKind::CallInProgress {
            retry_after: CLAIM_WAIT,
        },
    }
}

/// How a request was answered. `is_first`: the request began the run.
pub(super) fn arrival_of(progress: &Progress, is_first: bool) -> ArrivalKind {
    match progress {
        _ if is_first && progress.is_ours() => ArrivalKind::First,
        Progress::Ended { record: Err(_), .. } => ArrivalKind::Refused,
        Progress::Ended {
            record: Ok(record),
            ours,
        } => match record.state {
            State::Unknown(_) | State::Running => ArrivalKind::Suppressed,
            State::Proposed | State::Approved => ArrivalKind::Asked,
            _ if *ours => ArrivalKind::Joined,
            _ => ArrivalKind::Replayed,
        },
        Progress::Running { record, .. } if record.state.waits_for_approval() => ArrivalKind::Asked,
        Progress::Claiming
        | Progress::Queued
        | Progress::Running { .. }
        | Progress::Unwritten(_)
        | Progress::Lost(_) => ArrivalKind::Suppressed,
    }
}
