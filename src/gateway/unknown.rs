//! Unknown calls come to rest: the tool is asked, or gets the same key again, or a person says what
//! became of them. The rules are in `core::unknown`.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::call::Asked;
use super::run::{Keep, ROUNDS};
use super::{Error, ErrorKind, Gateway, new_attempt};
use crate::core::call::{self, Action, Event, Illegal};
use crate::core::caller::Caller;
use crate::core::record::{CallId, Record, State};
use crate::core::unknown::{Finding, Resolution, read_probe};
use crate::crash;
use crate::store::{self, Replaced};

/// Calls that are worked on in one go.
const BATCH: u32 = 32;
/// Calls that are worked on at the same time: a tool that is just up again is not overrun.
const AT_ONCE: usize = 8;

/// What one round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rested {
    /// Calls whose time had come.
    pub due: usize,
    /// Calls that are not unknown any more.
    pub settled: usize,
}

impl Gateway {
    /// Works on a bounded number of unknown calls whose time has come, as their tools' policies say. Many
    /// gateways may do it at once: each call is worked on by one of them.
    ///
    /// # Errors
    /// The store failed; what was settled so far stays so.
    pub async fn recheck_once(self: &Arc<Self>, now: Timestamp) -> Result<Rested, store::Error> {
        self.know_pauses().await?;
        let due = self.counted("to_check", self.store.to_check(now, BATCH).await)?;
        let mut rested = Rested { due: due.len(), settled: 0 };
        let mut under_way = JoinSet::new();
        for record in due {
            if under_way.len() >= AT_ONCE {
                rested.settled += usize::from(matches!(under_way.join_next().await, Some(Ok(true))));
            }
            // In a task that outlives whoever waits for it: what was sent again is followed to its end.
            let work = self.tasks.spawn(self.clone().work_on(record, now));
            under_way.spawn(async { work.await.unwrap_or(false) });
        }
        while let Some(settled) = under_way.join_next().await {
            rested.settled += usize::from(matches!(settled, Ok(true)));
        }
        Ok(rested)
    }

    /// Whether the call is not unknown any more.
    async fn work_on(self: Arc<Self>, record: Record, now: Timestamp) -> bool {
        if self.is_out_of_time() || self.draining.is_cancelled() {
            return false;
        }
        // It may have waited for its turn: a lease that began then would end before the deadline.
        let now = now.max(self.now());
        let tool = self.policy_of(&record);
        let attempt = (!self.is_paused(&tool.name)).then(new_attempt);
        let event = Event::CheckDue { by: self.instance, attempt };
        let deadline = Instant::now() + tool.deadline;
        let Ok(next) = call::next(&tool, Some(&record), &event, now) else { return false };
        let Some(change) = next.change else { return false };
        let replaced = self.counted("replace", self.store.replace(&change, &record).await);
        let Ok(Replaced::Done(record)) = replaced else { return false };
        crash::point("in_recheck");
        let at = self.tools.get(&record.intent.tool).cloned();
        let record = match (next.action, at) {
            (Action::Probe, Some(at)) => {
                let asked = Asked::again(at, &record);
                let finding = self.probe(&asked).await;
                self.note_finding(record, finding, now).await
            }
            (Action::Run, Some(at)) => {
                let asked = Asked::again(at, &record);
                let (record, _) = self.run_attempts(&asked, record, None, deadline, Keep::Stored).await;
                record
            }
            _ => record,
        };
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = tool.name,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            checks = record.check.map(|check| check.number),
            next_check = record.check.map(|check| check.at.to_string()),
            "an unknown call was worked on",
        );
        !matches!(record.state, State::Unknown(_) | State::Running)
    }

    /// Writes down what a probe has found. If that fails, or somebody was faster, the next one finds it.
    async fn note_finding(&self, record: Record, finding: Finding, now: Timestamp) -> Record {
        let event = Event::Probed { by: self.instance, finding };
        let next = call::next(&self.policy_of(&record), Some(&record), &event, now.max(self.now()));
        let Some(change) = next.ok().and_then(|next| next.change) else { return record };
        match self.counted("replace", self.store.replace(&change, &record).await) {
            Ok(Replaced::Done(noted) | Replaced::Lost(Some(noted))) => noted,
            Ok(Replaced::Lost(None) | Replaced::Barred(_)) | Err(_) => record,
        }
    }

    async fn probe(&self, asked: &Asked) -> Finding {
        let by = Instant::now() + asked.at.tool.timeout;
        let key = asked.intent.lookup.for_tool();
        tokio::select! {
            answer = self.downstream.probe(&asked.at.endpoint, &key, by) => match answer {
                Ok((status, body)) => read_probe(status, &body),
                Err(why) => Finding::Unclear(why),
            },
            () = self.abandoned.cancelled() => Finding::Unclear("the gateway is shutting down".into()),
        }
    }

    /// A person says what became of an unknown call. Its duplicates get that from now on.
    ///
    /// # Errors
    /// Who asks is no administrator, the call is not unknown, or it is to count as failed while its request
    /// may still be under way.
    pub async fn resolve(
        &self,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
        resolution: &Resolution,
    ) -> Result<Record, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let wrong =
            |why: String| Error { kind: ErrorKind::WrongState(why), call_id: Some(call_id), key: None };
        let (by, reason) = (caller.name.clone(), reason.to_owned());
        let event = Event::Resolved { by, reason, resolution: resolution.clone() };
        for _ in 0..ROUNDS {
            let record = self.counted("load", self.store.load(call_id).await).map_err(unavailable)?;
            let record = record.ok_or_else(|| ErrorKind::UnknownCall.alone())?;
            let next = match call::next(&self.policy_of(&record), Some(&record), &event, self.now()) {
                Ok(next) => next,
                Err(Illegal::MayStillRun) => {
                    let until = record.attempt.lease_until;
                    return Err(wrong(format!("its request may still be executed until {until:.0}")));
                }
                Err(_) => return Err(wrong(format!("the call is {}, not unknown", record.state.as_str()))),
            };
            let Some(change) = next.change else { break };
            let replaced = self.counted("replace", self.store.replace(&change, &record).await);
            if let Replaced::Done(mut record) = replaced.map_err(unavailable)? {
                tracing::warn!(%call_id, by = caller.name, state = record.state.as_str(), "a call was resolved");
                self.mask(&mut record);
                return Ok(record);
            }
        }
        Err(ErrorKind::StoreUnavailable.alone())
    }
}
