//! The attempts of a call: dispatch, and write down the outcome.
//!
//! The claim is durable before the first byte leaves, and an outcome is told only when it is
//! durable.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt::{Attempted, Sender};
use super::prepared::PreparedCall;
use super::shared_run::{Progress, RunHandle};
use crate::core::call::{Action, Ended, Event, Retry, may_be_retried};
use crate::core::outcome::Outcome;
use crate::core::record::{Content, Record, State};
use crate::downstream::{Deadline, Exchange};
use crate::gateway::base::Base;
use crate::gateway::health::Permit;
use crate::gateway::ids::{jitter, new_attempt};
use crate::gateway::pauses::Pauses;
use crate::gateway::transition;
use crate::metrics::{ArrivalKind, Door};

/// Whether the outcome of a run is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::gateway) enum Keep {
    Stored,
    /// A read that goes on without a store.
    Nothing,
}

/// A run that has begun.
pub(in crate::gateway) struct Begun {
    pub(in crate::gateway) record: Record,
    /// The permit of the tool's circuit breaker.
    pub(in crate::gateway) permit: Permit,
    /// Nothing is sent after this.
    pub(in crate::gateway) deadline: Deadline,
}

/// Runs the attempts of calls.
pub(in crate::gateway) struct Runner {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) pauses: Arc<Pauses>,
    pub(in crate::gateway) sender: Arc<Sender>,
}

impl Runner {
    /// Makes attempts, until one settles the call.
    ///
    /// Returns the stored record, and the exchange if it was left without an answer.
    pub(in crate::gateway) async fn run_attempts(
        &self,
        call: &PreparedCall,
        begun: Begun,
        run: Option<&RunHandle>,
        keep: Keep,
    ) -> (Record, Option<Exchange>) {
        let tool = &call.at.tool;
        let health = &call.at.health;
        let Begun {
            mut record,
            permit,
            deadline,
        } = begun;
        loop {
            let Attempted {
                evidence,
                outcome,
                silent,
            } = self.sender.attempt(call, &record, &permit, deadline).await;
            if let (Some(run), Outcome::NotExecuted(_)) = (run, &outcome) {
                run.close();
            }
            let retry = Retry {
                attempt: new_attempt(),
                jitter: jitter(),
            };
            // Taken until it is known whether it is made.
            let may_retry = may_be_retried(tool, &record, &outcome)
                && !self.base.abandoned.is_cancelled()
                && !self.pauses.is_paused(&tool.name)
                && health.try_spend_retry();
            let retry = may_retry.then_some(retry);
            let event = Event::Ended(Ended {
                attempt: record.attempt.id,
                fencing: record.fencing,
                evidence,
                retry,
            });
            let (stored, wait) = self.settle(call, record.clone(), &event, run, keep).await;
            let Some(wait) = wait else {
                if may_retry {
                    health.give_retry_back();
                }
                // Another attempt's record, in a store that has gone back, says nothing of ours.
                let is_ours = stored.attempt.id == record.attempt.id;
                return if is_ours {
                    (stored, silent)
                } else {
                    (record, None)
                };
            };
            record = stored;
            // Writing it may have taken a while, in which it was not to be told.
            if let Some(run) = run {
                run.say(Progress::Running {
                    record: Arc::new(record.clone()),
                    ours: true,
                });
            }
            tracing::debug!(
                call_id = %record.intent.call_id,
                tool = tool.name,
                trace_id = record.intent.trace_id,
                wait_ms = wait.as_millis(),
                "retry"
            );
            tokio::select! {
                () = sleep(wait) => {}
                () = self.base.abandoned.cancelled() => {}
            }
        }
    }

    /// Applies the end of an attempt to the record and writes it.
    ///
    /// Returns the stored record, and how long to wait if another attempt is to be made.
    async fn settle(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
        run: Option<&RunHandle>,
        keep: Keep,
    ) -> (Record, Option<Duration>) {
        let span = call
            .trace
            .for_call(&record, self.base.limits.sample)
            .completion(&record);
        let (record, wait) = match keep {
            Keep::Stored => self.write_outcome(call, record, event, run).await,
            Keep::Nothing => {
                let next = transition::ask(&call.at.tool, Some(&record), event, self.base.now());
                match next.map(|next| (next.change, next.action)) {
                    Ok((Some(change), Action::Retry { after })) => (change.record, Some(after)),
                    Ok((Some(change), _)) => (change.record, None),
                    Ok((None, _)) | Err(_) => (record, None),
                }
            }
        };
        span.record("outcome", record.state.as_str());
        (record, wait)
    }

    /// Applies the end of an attempt where no request waits for it.
    pub(in crate::gateway) async fn settle_alone(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
    ) -> Record {
        let (record, _) = self.settle(call, record, event, None, Keep::Stored).await;
        record
    }

    async fn write_outcome(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
        run: Option<&RunHandle>,
    ) -> (Record, Option<Duration>) {
        let unwritten = |record: &Record| {
            if let Some(run) = run {
                run.say(Progress::Unwritten {
                    record: Arc::new(record.clone()),
                });
            }
        };
        let completed =
            transition::complete(&self.base, &call.at.tool, record, event, unwritten).await;
        let record = completed.record;
        if let Some(state) = completed.stale {
            self.base.metrics.stale_owners.inc();
            tracing::warn!(
                call_id = %record.intent.call_id,
                trace_id = record.intent.trace_id,
                state,
                "a completion was refused: the call has changed under it",
            );
        }
        if completed.is_alarm {
            self.base
                .metrics
                .late_executions
                .with_label_values(&[&record.intent.tool])
                .inc();
            tracing::error!(
                call_id = %record.intent.call_id,
                tool = record.intent.tool,
                trace_id = record.intent.trace_id,
                state = record.state.as_str(),
                "the tool executed an attempt that counts as not executed",
            );
        }
        (record, completed.retry_after)
    }

    /// Counts and logs how a run ended.
    pub(in crate::gateway) fn ended(&self, call: &PreparedCall, record: &Record, began: Instant) {
        let tool = &call.at.tool;
        self.count_arrival(&tool.name, ArrivalKind::First, began);
        call.trace.ended(record, failure_of(record));
        // A call that its caller has confirmed is meant.
        let is_double = record.similar_to.is_some() && record.similar_to != call.brought.confirmed;
        if is_double && !matches!(record.state, State::Failed(_)) {
            let similar = &self.base.metrics.similar;
            similar.with_label_values(&[&tool.name]).inc();
        }
        if let Some(reason) = failure_of(record) {
            self.base
                .metrics
                .first_arrival_failures
                .with_label_values(&[&tool.name, reason])
                .inc();
        }
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = tool.name,
            trace_id = record.intent.trace_id,
            key = record.intent.lookup.short(),
            key_source = record.intent.key_source.as_str(),
            state = record.state.as_str(),
            reason = failure_of(record),
            attempts = record.attempts,
            latency_ms = record.latency_ms,
            "call ended",
        );
    }

    pub(in crate::gateway) fn count_request(&self, tool: &str, door: Door) {
        let labels = [tool, door.as_str()];
        self.base.metrics.requests.with_label_values(&labels).inc();
    }

    pub(in crate::gateway) fn count_arrival(
        &self,
        tool: &str,
        arrival: ArrivalKind,
        began: Instant,
    ) {
        let labels = [tool, arrival.as_str()];
        self.base.metrics.arrivals.with_label_values(&labels).inc();
        self.base
            .metrics
            .call_duration
            .with_label_values(&labels)
            .observe(began.elapsed().as_secs_f64());
    }
}

/// Why the first arrival gets no result, as a label.
fn failure_of(record: &Record) -> Option<&'static str> {
    match &record.state {
        State::Failed(failure) => Some(failure.kind.as_str()),
        State::Unknown(_) | State::Running => Some("unknown"),
        state => match state.content() {
            Some(Content::Kept(_)) => None,
            Some(Content::Unavailable(_)) => Some("result_unavailable"),
            // It was undone already.
            None => Some("unknown"),
        },
    }
}
