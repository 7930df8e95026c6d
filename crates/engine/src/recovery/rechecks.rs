//! The worker that checks unknown calls.
//!
//! It asks the tool, or sends the same key again. The rules are in `rules::unknown`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::base::Base;
use crate::base::ids::new_attempt;
use crate::base::measured::with_call_context;
use crate::calls::{Begun, PreparedCall, Sender, is_as_approved};
use crate::secret::KnownSecrets;
use crate::tools::ToolAt;
use crate::tools::health::Permit;
use crate::tools::pauses::Pauses;
use crate::transition::{self, Moved, OnConflict};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::call::{self, Action, Event, Illegal};
use oncegate_rules::mcp::remote::Seen;
use oncegate_rules::record::{Record, State};
use oncegate_rules::tool::OnUnknown;
use oncegate_rules::unknown::{CheckBlocker, Finding};
use oncegate_store as store;
use oncegate_tools::Deadline;

/// Calls of one tool that one round takes.
const BATCH: u32 = 32;
/// Calls without a check that a start takes up.
const TAKEN_UP: u32 = 1_000;

/// The result of a probe that an operator wanted.
pub(crate) enum Probed {
    /// The record as it is now, and the tool's answer in words.
    Asked { record: Record, answer: String },
    /// The tool was not asked.
    Not(Moved),
}

/// The worker that checks unknown calls.
pub struct Rechecks {
    pub(crate) base: Arc<Base>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) secrets: Arc<KnownSecrets>,
}

impl Rechecks {
    /// Begins to check a bounded number of due unknown calls, as their tools' policies say.
    ///
    /// Does not wait for them, so that a slow tool delays no other tool. Many gateways may do this at once: each call
    /// is checked by one of them.
    ///
    /// Each handle returns whether its call was settled. A check goes on if its handle is dropped.
    ///
    /// # Errors
    /// The store failed; nothing was begun.
    pub async fn begin_rechecks(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Vec<JoinHandle<bool>>, store::Error> {
        self.pauses.know_pauses().await?;
        // Only tools that are configured here, and that have a free permit: behind a taken one calls may wait already.
        let tools = self.tools_with(|at| at.health.checks.available_permits() > 0);
        let due = self.base.store.due_rechecks(now, &tools, BATCH).await;
        let due = self.base.readable("to_check", due)?;
        let begin = |record: Record| {
            let intent = record.intent.clone();
            let work = with_call_context(intent, self.clone().recheck(record, now));
            self.base.tasks.spawn(work)
        };
        Ok(due.into_iter().map(begin).collect())
    }

    /// Plans checks for unknown calls that have none, although their tool has a policy.
    ///
    /// They were held before the configuration changed. Called once after a start; takes a bounded number of calls.
    ///
    /// # Errors
    /// The store failed; what was taken up stays so.
    pub async fn take_up_once(&self) -> Result<usize, store::Error> {
        let tools = self.tools_with(|at| at.tool.unknown != OnUnknown::Hold);
        let held = self.base.store.unscheduled_unknown(&tools, TAKEN_UP).await;
        let mut taken_up = 0;
        for record in self.base.readable("unchecked", held)? {
            let by = self.base.instance;
            let (event, now) = (Event::CheckMissing { by }, self.base.now());
            let changed = transition::change(&self.base, &record, &event, now).await;
            taken_up += usize::from(changed.is_some());
        }
        if taken_up > 0 {
            tracing::info!(
                calls = taken_up,
                "unknown calls are worked on that were held"
            );
        }
        Ok(taken_up)
    }

    /// The names of the configured tools for which this holds.
    fn tools_with(&self, holds: impl Fn(&ToolAt) -> bool) -> Vec<String> {
        let tools = self.base.tools();
        let tools = tools.iter().filter(|(_, at)| holds(at));
        tools.map(|(tool, _)| tool.clone()).collect()
    }

    /// Checks one call. Returns whether it was settled.
    async fn recheck(self: Arc<Self>, record: Record, now: Timestamp) -> bool {
        let Some(at) = self.base.tool_of(&record) else {
            if self.base.tool_at(&record.intent.tool).is_some() {
                return self.postpone(&record, CheckBlocker::NoRule, now).await;
            }
            return false;
        };
        let _permit = tokio::select! {
            biased;
            permit = at.health.checks.acquire() => permit,
            () = self.base.draining.cancelled() => return false,
        };
        if self.base.is_out_of_time() || self.base.draining.is_cancelled() {
            return false;
        }
        // The tool's rules may have changed while the call waited for its permit. The next round goes by the new ones.
        let current = self.base.tool_of(&record);
        if !current.is_some_and(|current| Arc::ptr_eq(&current, &at)) {
            return false;
        }
        // The call may have waited for its permit. A lease that began at the old `now` would end before the deadline.
        let now = now.max(self.base.now());
        let attempt = (!self.pauses.is_paused(&at.tool.name)).then(new_attempt);
        let sends = at.tool.unknown == OnUnknown::Retry
            && attempt.is_some()
            && record.attempt.remote_task.is_none();
        let mut permit = Permit::default();
        if sends {
            if !is_as_approved(&at, &record, &self.secrets.current().today) {
                return self
                    .postpone(&record, CheckBlocker::NotAsApproved, now)
                    .await;
            }
            permit = match self.sender.may_send(&at, &record).await {
                Ok(permit) => permit,
                Err(blocker) => return self.postpone(&record, blocker, now).await,
            };
        }
        let event = Event::CheckDue {
            by: self.base.instance,
            attempt,
        };
        let deadline = Deadline::after(at.tool.deadline);
        let due = record.clone();
        let give_up = OnConflict::GiveUp;
        let moved = transition::apply(&self.base, &at.tool, due, &event, now, give_up).await;
        let (record, action) = match moved {
            Ok(Moved::Written { record, action, .. }) => (record, action),
            // Another gateway works on it.
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == record.intent.call_id => {
                return false;
            }
            Ok(Moved::Lost(_)) if sends => {
                return self.postpone(&record, CheckBlocker::KeyGone, now).await;
            }
            Err(store::Error::Refused(_)) if sends => {
                return self.postpone(&record, CheckBlocker::Store, now).await;
            }
            Ok(_) | Err(_) => return false,
        };
        crash::point("in_recheck");
        let mut call = PreparedCall::again(at.clone(), &record, self.base.limits.sample);
        call.trace.begin_recheck(&record);
        let record = match action {
            Action::Probe => {
                // Taken before the request leaves: the tool's answer is not older than this.
                let asked_at = now.max(self.base.now());
                let found = self.sender.probe(&call.at, &record).await;
                self.note_finding(record, found, asked_at).await
            }
            Action::AskTask => {
                let seen = self.sender.see_task(&call.at, &record).await;
                self.note_seen(record, seen, now).await
            }
            Action::Run => {
                let begun = Begun {
                    record,
                    permit,
                    deadline,
                };
                self.sender.run_alone(&call, begun).await
            }
            _ => record,
        };
        call.trace.ended(&record, None);
        self.log_rested(&record);
        !matches!(record.state, State::Unknown(_) | State::Running)
    }

    /// Asks the tool of an unknown call now, because an operator wants it, and writes down what the answer proves.
    ///
    /// The call is not sent again. A tool is asked about few calls at once, so this may wait.
    ///
    /// # Errors
    /// The store failed, or the gateway is shutting down.
    pub(crate) async fn probe_now(
        &self,
        record: Record,
        by: &str,
        reason: &str,
    ) -> Result<Probed, store::Error> {
        let event = Event::ProbeAsked(By::token(by, reason));
        let Some(at) = self.base.tool_of(&record) else {
            return Ok(Probed::Not(Moved::Refused(record, Illegal::NoProbe)));
        };
        let permit = tokio::select! {
            biased;
            permit = at.health.checks.acquire() => permit,
            () = self.base.draining.cancelled() => return Err(store::Error::Refused("the gateway is shutting down".into())),
        };
        let (now, give_up) = (self.base.now(), OnConflict::GiveUp);
        let moved = transition::apply(&self.base, &at.tool, record, &event, now, give_up).await;
        let (record, action) = match moved? {
            Moved::Written { record, action, .. } => (record, action),
            other => return Ok(Probed::Not(other)),
        };
        crash::point("in_probe");
        let (answer, record) = if action == Action::AskTask {
            let seen = self.sender.see_task(&at, &record).await;
            drop(permit);
            (seen.explanation(), self.note_seen(record, seen, now).await)
        } else {
            let found = self.sender.probe(&at, &record).await;
            drop(permit);
            let answer = found.0.explanation();
            (answer, self.note_finding(record, found, now).await)
        };
        self.log_rested(&record);
        Ok(Probed::Asked { record, answer })
    }

    /// Postpones a check. Sends nothing, and never settles the call.
    async fn postpone(&self, record: &Record, blocker: CheckBlocker, now: Timestamp) -> bool {
        let event = Event::CheckPostponed {
            by: self.base.instance,
            blocker,
        };
        if let Some(record) = transition::change(&self.base, record, &event, now).await {
            self.log_rested(&record);
        }
        false
    }

    fn log_rested(&self, record: &Record) {
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

    /// Writes down a probe's finding, also if another gateway has begun a check meanwhile.
    ///
    /// If the finding cannot be written, the next check finds it again.
    async fn note_finding(
        &self,
        record: Record,
        (finding, retry_after): (Finding, Option<Duration>),
        asked_at: Timestamp,
    ) -> Record {
        let event = Event::Probed(call::Probed {
            by: self.base.instance,
            asked_at,
            finding,
            retry_after,
        });
        self.note(record, &event, asked_at).await
    }

    /// Writes down what a server says of its task.
    async fn note_seen(&self, record: Record, seen: Seen, asked_at: Timestamp) -> Record {
        let event = Event::TaskSeen {
            by: self.base.instance,
            attempt: record.attempt.id,
            seen,
        };
        self.note(record, &event, asked_at).await
    }

    async fn note(&self, record: Record, event: &Event, asked_at: Timestamp) -> Record {
        // A further attempt may have been executed after the tool was asked.
        let retry = OnConflict::RetryOnSameAttempt;
        let (tool, now) = (self.base.policy_of(&record), asked_at.max(self.base.now()));
        match transition::apply(&self.base, &tool, record.clone(), event, now, retry).await {
            Ok(
                Moved::Written { record, .. }
                | Moved::Refused(record, _)
                | Moved::Unchanged(record, _),
            ) => record,
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == record.intent.call_id => newer,
            Ok(Moved::Lost(_)) | Err(_) => record,
        }
    }
}
