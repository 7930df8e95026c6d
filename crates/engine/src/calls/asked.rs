//! Answers for callers that name a call by its id: what a repetition would get, without one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, answer_from, unless_it_asks};
use super::duplicates::shared_run::{Progress, notified};
use super::engine::Engine;
use crate::base::measured::with_call_context;
use crate::callers::permits::Owner;
use crate::error::{Error, ErrorKind, unavailable};
use oncegate_rules::caller::Caller;
use oncegate_rules::record::{CallId, Record, State};

/// A call that was asked for by its id.
pub struct Asked {
    pub record: Arc<Record>,
    /// What a repetition of the call would get now.
    pub answer: Result<Answer, Error>,
    /// How soon to ask again.
    pub retry_after: Duration,
}

/// How a caller asks for a call.
#[derive(Debug, Clone, Copy, Default)]
pub struct AskFor {
    /// How long to wait for its outcome.
    pub wait: Duration,
    /// Whether the answer counts as a replay.
    pub as_replay: bool,
    /// Whether the caller can answer questions of the tool.
    pub can_be_asked: bool,
}

impl Engine {
    /// Waits for a call that the caller names by its id, and answers as a repetition would be answered.
    ///
    /// Executes nothing, and counts no request for a call.
    ///
    /// # Errors
    /// There is no such call, or the caller may not ask for it, which looks the same; or the store does not answer.
    pub async fn ask_for(
        &self,
        caller: &Caller,
        call_id: CallId,
        how: AskFor,
    ) -> Result<Asked, Error> {
        // A gateway that drains waits for the requests that were let in before.
        let _let_in = self.base.tasks.token();
        let came = Instant::now();
        let unknown = || ErrorKind::UnknownCall.alone();
        // Checked before the call is read: a refusal must take as long as the answer about a call that does not exist.
        let maker = self.base.store.maker(call_id).await.map_err(unavailable)?;
        maker
            .filter(|by| {
                // Without the tool's settings all of its calls may be secret.
                let at = self.base.tool_at(&by.tool);
                let hides = at.is_none_or(|at| at.hides());
                caller.may_ask_for(&by.tenant, &by.tool, &by.token, hides)
            })
            .ok_or_else(unknown)?;
        let loaded = self.base.store.load(call_id).await.map_err(unavailable)?;
        let loaded = loaded.filter(|record| caller.may_see(record));
        let mut record = Arc::new(loaded.ok_or_else(unknown)?);
        if matches!(record.state, State::Failed(_)) {
            // It may have run again since, and the store may have lost that.
            self.base.must_know_all_data().await?;
        }
        record = match is_settled(&record) {
            true => with_memory(self, Arc::unwrap_or_clone(record))?,
            false => followed(self, caller, record, came + how.wait).await?,
        };
        let retry_after = self.retry_after(&record);
        let answer = answer_now(self, &record, how, retry_after);
        Ok(Asked {
            record,
            answer,
            retry_after,
        })
    }

    /// How soon a caller should ask again for this call.
    pub fn retry_after(&self, record: &Record) -> Duration {
        let at = self.base.tool_at(&record.intent.tool);
        let now = self.base.now();
        at.map_or(Duration::from_secs(1), |at| at.retry_after_of(record, now))
    }

    /// Looks whether an outcome is stored after all whose writing was not confirmed.
    ///
    /// Other gateways may have answered with it already.
    pub(super) async fn as_stored(&self, progress: Progress) -> Progress {
        let Progress::Unwritten(record) = &progress else {
            return progress;
        };
        match self.outcome_of(record, Instant::now()).await {
            Some(Ok(found)) => Progress::Ended {
                record: Ok(Arc::new(found)),
                ours: true,
            },
            Some(Err(_)) | None => progress,
        }
    }

    /// Follows a call in the store until it has an outcome, with memory for its result. Looks at least once.
    ///
    /// `None`: it has none at this time, or the store does not say for certain.
    pub(super) async fn outcome_of(
        &self,
        record: &Record,
        until: Instant,
    ) -> Option<Result<Record, ErrorKind>> {
        let call_id = record.intent.call_id;
        // The newest version that was seen here.
        let mut version = record.version;
        let listener = self.base.store.listen(call_id);
        let (mut pause, longest_pause) = self.base.limits.timings.poll;
        loop {
            let load = with_call_context(record.intent.clone(), self.base.store.load(call_id));
            let found = load.await.ok()??;
            // The store has gone back: it knows less of the call than was seen here.
            if found.version < version || self.is_doubtful(&found).await {
                return None;
            }
            version = found.version;
            if is_settled(&found) {
                return Some(self.memory.with_reservation(found));
            }
            if Instant::now() >= until {
                return None;
            }
            tokio::select! {
                () = sleep_until(until.min(Instant::now() + pause)) => {}
                () = notified(listener.as_ref()) => {}
            }
            pause = (pause * 2).min(longest_pause);
        }
    }
}

fn is_settled(record: &Record) -> bool {
    !matches!(
        record.state,
        State::Unknown(_) | State::Running | State::Proposed | State::Approved
    )
}

fn with_memory(engine: &Engine, record: Record) -> Result<Arc<Record>, Error> {
    let reserved = engine.memory.with_reservation(record);
    reserved.map(Arc::new).map_err(ErrorKind::alone)
}

/// The call when it has an outcome, or at this time as it was.
async fn followed(
    engine: &Engine,
    caller: &Caller,
    record: Arc<Record>,
    until: Instant,
) -> Result<Arc<Record>, Error> {
    if Instant::now() >= until {
        return Ok(record);
    }
    // Without a permit to wait the caller is answered at once.
    let Some(_permit) = engine.waiting.take(Owner::of_caller(caller)) else {
        return Ok(record);
    };
    match engine.outcome_of(&record, until).await {
        Some(found) => found.map(Arc::new).map_err(ErrorKind::alone),
        None => Ok(record),
    }
}

/// What a repetition of this call would get.
fn answer_now(
    engine: &Engine,
    record: &Arc<Record>,
    how: AskFor,
    retry_after: Duration,
) -> Result<Answer, Error> {
    let at = engine.base.tool_at(&record.intent.tool);
    let answer = answer_from(record, how.as_replay, retry_after, engine.base.now());
    let answer = answer.and_then(|answer| match &at {
        Some(at) => unless_it_asks(answer, at, how.can_be_asked),
        None => Ok(answer),
    });
    answer.map_err(|kind| Error {
        replayed: kind.is_outcome().then_some(how.as_replay),
        key: Some(record.intent.key.clone()),
        ..kind.of_call(record.intent.call_id)
    })
}
