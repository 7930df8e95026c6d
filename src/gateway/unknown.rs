//! Unknown calls come to rest: the tool is asked, or gets the same key again, or a person says what
//! became of them. The rules are in `core::unknown`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::call::Asked;
use super::health::Permit;
use super::run::{Begun, Keep};
use super::trace::Trace;
use super::transition::{self, Moved, OnConflict};
use super::{Error, ErrorKind, Gateway, ToolAt, new_attempt};
use crate::core::call::{Action, Event, Illegal};
use crate::core::caller::Caller;
use crate::core::record::{CallId, Intent, Record, State};
use crate::core::session::SessionId;
use crate::core::tool::OnUnknown;
use crate::core::unknown::{Finding, Hindrance, Resolution, read_probe};
use crate::crash;
use crate::downstream::{Deadline, Party};
use crate::store;

/// Calls of one tool that are taken up in one go.
const BATCH: u32 = 32;
/// Calls that are taken up at a start although they had no time.
const TAKEN_UP: u32 = 1_000;

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
        let begun = self.begin_rechecks(now).await?;
        let mut rested = Rested {
            due: begun.len(),
            settled: 0,
        };
        for work in begun {
            rested.settled += usize::from(work.await.unwrap_or(false));
        }
        Ok(rested)
    }

    /// The same, but does not wait for what it has begun: a tool that is slow keeps no other waiting. Each
    /// answers whether its call is not unknown any more, and goes on if nobody waits for that.
    ///
    /// # Errors
    /// The store failed; nothing was begun.
    pub async fn begin_rechecks(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Vec<JoinHandle<bool>>, store::Error> {
        self.know_pauses().await?;
        // Where all places are taken calls may wait already. What is not configured here is not our business.
        let tools = self.tools();
        let has_place = tools
            .iter()
            .filter(|(_, at)| at.health.checks.available_permits() > 0);
        let tools: Vec<String> = has_place.map(|(tool, _)| tool.clone()).collect();
        let due = self.readable(
            "to_check",
            self.store.due_rechecks(now, &tools, BATCH).await,
        )?;
        let begin = |record| self.tasks.spawn(self.clone().work_on(record, now));
        Ok(due.into_iter().map(begin).collect())
    }

    /// Takes up unknown calls that nobody works on although their tool has a policy: what was held has one
    /// since the configuration changed. Once after a start; a bounded number of calls.
    ///
    /// # Errors
    /// The store failed; what was taken up stays so.
    pub async fn take_up_once(&self) -> Result<usize, store::Error> {
        let tools = self.tools();
        let has_policy = tools
            .iter()
            .filter(|(_, at)| at.tool.unknown != OnUnknown::Hold);
        let tools: Vec<String> = has_policy.map(|(tool, _)| tool.clone()).collect();
        let held = self.readable(
            "unchecked",
            self.store.unscheduled_unknown(&tools, TAKEN_UP).await,
        )?;
        let mut taken_up = 0;
        for record in held {
            let event = Event::CheckMissing { by: self.instance };
            taken_up += usize::from(self.change(&record, &event, self.now()).await.is_some());
        }
        if taken_up > 0 {
            tracing::info!(
                calls = taken_up,
                "unknown calls are worked on that were held"
            );
        }
        Ok(taken_up)
    }

    /// Whether the call is not unknown any more.
    async fn work_on(self: Arc<Self>, record: Record, now: Timestamp) -> bool {
        let Some(at) = self.tool_at(&record.intent.tool) else {
            return false;
        };
        let _place = tokio::select! {
            place = at.health.checks.acquire() => place,
            () = self.draining.cancelled() => return false,
        };
        if self.is_out_of_time() || self.draining.is_cancelled() {
            return false;
        }
        // It may have waited while other rules were put in force; the next round goes by them.
        if !self
            .tool_at(&at.tool.name)
            .is_some_and(|now| Arc::ptr_eq(&now, &at))
        {
            return false;
        }
        // It may have waited for its turn: a lease that began then would end before the deadline.
        let now = now.max(self.now());
        let attempt = (!self.is_paused(&at.tool.name)).then(new_attempt);
        let sends = at.tool.unknown == OnUnknown::Retry && attempt.is_some();
        let permit = if sends {
            self.may_send(&at, &record).await
        } else {
            Ok(Permit::default())
        };
        let permit = match permit {
            Ok(permit) => permit,
            Err(hindrance) => return self.put_off(&record, hindrance, now).await,
        };
        let event = Event::CheckDue {
            by: self.instance,
            attempt,
        };
        let deadline = Deadline::after(at.tool.deadline);
        let due = record.clone();
        let moved = transition::apply(&self, &at.tool, due, &event, now, OnConflict::GiveUp).await;
        let (record, action) = match moved {
            Ok(Moved::Written { record, action, .. }) => (record, action),
            // Another gateway works on it.
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == record.intent.call_id => {
                return false;
            }
            Ok(Moved::Lost(_)) if sends => {
                return self.put_off(&record, Hindrance::KeyGone, now).await;
            }
            Err(store::Error::Refused(_)) if sends => {
                return self.put_off(&record, Hindrance::Store, now).await;
            }
            Ok(_) | Err(_) => return false,
        };
        crash::point("in_recheck");
        let trace = Trace::of(&record.intent.trace_id, self.limits.sample);
        let mut asked = Asked::again(at.clone(), &record, trace);
        asked.trace.begin_recheck(&record);
        let record = match action {
            Action::Probe => {
                // Before the request leaves: what the tool says it knows is what it knew no earlier.
                let asked_at = now.max(self.now());
                let found = self.probe(&asked.at, &asked.intent).await;
                self.note_finding(record, found, asked_at).await
            }
            Action::Run => {
                let begun = Begun {
                    record,
                    permit,
                    deadline,
                };
                let (record, _) = self.run_attempts(&asked, begun, None, Keep::Stored).await;
                record
            }
            _ => record,
        };
        asked.trace.ended(&record, None);
        self.say_rested(&record);
        !matches!(record.state, State::Unknown(_) | State::Running)
    }

    /// Whether the call may be sent to its tool now. What a person has stopped, or what keeps failing, is
    /// left alone as if it were a new call.
    pub(super) async fn may_send(&self, at: &ToolAt, record: &Record) -> Result<Permit, Hindrance> {
        let permit = at
            .health
            .admit(&record.intent.tenant)
            .map_err(Hindrance::Resting)?;
        let session = self.store.session(&SessionId::of(&record.intent)).await;
        match self.counted_for(&record.intent, "session", session) {
            Ok(session) if session.frozen => return Err(Hindrance::Frozen),
            Ok(_) => {}
            Err(_) => return Err(Hindrance::Store),
        }
        match self.is_wanted_again(&record.intent).await {
            Ok(true) => Ok(permit),
            Ok(false) => Err(Hindrance::NotWanted),
            Err(_) => Err(Hindrance::Store),
        }
    }

    /// Nothing is sent; the call is looked at again later. Never settles it.
    async fn put_off(&self, record: &Record, hindrance: Hindrance, now: Timestamp) -> bool {
        let event = Event::CheckHindered {
            by: self.instance,
            hindrance,
        };
        if let Some(record) = self.change(record, &event, now).await {
            self.say_rested(&record);
        }
        false
    }

    /// The record after an event that leads to nothing else; `None` if it could not be written.
    pub(super) async fn change(
        &self,
        record: &Record,
        event: &Event,
        now: Timestamp,
    ) -> Option<Record> {
        let (tool, record) = (self.policy_of(record), record.clone());
        let moved = transition::apply(self, &tool, record, event, now, OnConflict::GiveUp).await;
        moved.ok()?.written()
    }

    fn say_rested(&self, record: &Record) {
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = record.intent.tool,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            checks = record.check.map(|check| check.number),
            next_check = record.check.and_then(|check| check.at).map(|at| at.to_string()),
            "an unknown call was worked on",
        );
    }

    /// Writes down what a probe has found, also if another gateway has begun to ask meanwhile. If it cannot
    /// be written, the next one finds it.
    async fn note_finding(
        &self,
        record: Record,
        (finding, retry_after): (Finding, Option<Duration>),
        asked_at: Timestamp,
    ) -> Record {
        let event = Event::Probed {
            by: self.instance,
            asked_at,
            finding,
            retry_after,
        };
        // A further attempt may have been executed after the tool was asked.
        let retry = OnConflict::RetryOnSameAttempt;
        let (tool, now) = (self.policy_of(&record), asked_at.max(self.now()));
        match transition::apply(self, &tool, record.clone(), &event, now, retry).await {
            Ok(Moved::Written { record, .. }) => record,
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == record.intent.call_id => newer,
            Ok(_) | Err(_) => record,
        }
    }

    /// What the tool says, and how long it asks to wait.
    pub(super) async fn probe(&self, at: &ToolAt, intent: &Intent) -> (Finding, Option<Duration>) {
        let by = Instant::now() + at.tool.timeout;
        let (party, key) = (
            Party::tool(&intent.tenant, &intent.tool),
            intent.lookup.for_tool(),
        );
        tokio::select! {
            answer = self.downstream.probe(&at.endpoint, party, &key, by) => match answer {
                Ok((status, body, retry_after)) => (read_probe(&at.tool, status, &body), retry_after),
                Err(why) => (Finding::Unclear(why), None),
            },
            () = self.abandoned.cancelled() => {
                (Finding::Unclear("the gateway is shutting down".into()), None)
            }
        }
    }

    /// A person says what became of an unknown call. Its duplicates get that from now on.
    ///
    /// # Errors
    /// Who asks is no administrator, the call is not unknown, or it is to count as failed while its request
    /// may still be under way.
    pub async fn resolve(
        self: &Arc<Self>,
        caller: &Caller,
        call_id: CallId,
        reason: &str,
        resolution: &Resolution,
    ) -> Result<Record, Error> {
        if !caller.is_admin() {
            return Err(ErrorKind::Forbidden.alone());
        }
        self.must_know_all_data().await?;
        let unavailable = |_| ErrorKind::StoreUnavailable.alone();
        let wrong = |why: String| Error {
            call_id: Some(call_id),
            ..ErrorKind::WrongState(why).alone()
        };
        let event = Event::Resolved {
            by: caller.name.clone(),
            reason: reason.to_owned(),
            resolution: resolution.clone(),
        };
        let moved =
            transition::load_and_apply(self, call_id, &event, OnConflict::RetryOnLatest).await;
        match moved.map_err(unavailable)? {
            None => Err(ErrorKind::UnknownCall.alone()),
            Some(Moved::Refused(record, Illegal::MayStillRun)) => {
                let until = record.attempt.lease_until;
                Err(wrong(format!(
                    "its request may still be executed until {until:.0}"
                )))
            }
            Some(Moved::Refused(record, _)) => Err(wrong(format!(
                "the call is {}, not unknown or stuck",
                record.state.as_str()
            ))),
            Some(Moved::Unchanged(..) | Moved::Lost(_)) => Err(ErrorKind::StoreUnavailable.alone()),
            Some(Moved::Written {
                mut record, was, ..
            }) => {
                tracing::warn!(
                    %call_id,
                    trace_id = record.intent.trace_id,
                    by = caller.name,
                    state = record.state.as_str(),
                    "a call was resolved"
                );
                if matches!(was, State::Stuck(_)) {
                    self.go_on_after(&record, &format!("token {}", caller.name), reason)
                        .await;
                }
                self.mask(&mut record);
                Ok(record)
            }
        }
    }
}
