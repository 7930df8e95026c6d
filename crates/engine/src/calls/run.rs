//! The attempts of a call: dispatch, and write down the outcome.
//!
//! The claim is durable before the first byte leaves. An outcome is answered only when it is durable.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt::Sender;
use super::duplicates::shared_run::{Progress, RunHandle};
use super::prepared::PreparedCall;
use crate::base::ids::{jitter, new_attempt};
use crate::metrics::ArrivalKind;
use crate::tools::health::Permit;
use crate::transition;
use oncegate_rules::call::{Action, Ended, Event, Retry, may_be_retried};
use oncegate_rules::outcome::Outcome;
use oncegate_rules::record::{Content, Record, State};
use oncegate_tools::{Deadline, Exchange};

/// Whether the outcome of a run is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Stored,
    /// A read that goes on without a store.
    Nothing,
}

/// A run that has begun.
pub(crate) struct Begun {
    pub record: Record,
    /// The permit of the tool's circuit breaker.
    pub permit: Permit,
    /// Nothing is sent after this.
    pub deadline: Deadline,
}

impl Sender {
    /// Makes the attempts of a call for which no request waits. Returns the stored record.
    pub(crate) async fn run_alone(&self, call: &PreparedCall, begun: Begun) -> Record {
        let attempts = self.run_attempts(call, begun, None, Keep::Stored);
        attempts.await.0
    }

    /// Makes attempts, until one settles the call.
    ///
    /// Returns the stored record, and the exchange if it was left without an answer.
    pub(super) async fn run_attempts(
        &self,
        call: &PreparedCall,
        begun: Begun,
        run: Option<&RunHandle>,
        keep: Keep,
    ) -> (Record, Option<Exchange>) {
        let (tool, health) = (&call.at.tool, &call.at.health);
        let mut record = begun.record;
        // A write is sent again for a lost session once: then another refusal proves nothing.
        let mut is_sent_again = false;
        loop {
            let deadline = begun.deadline;
            let attempt = self.attempt(call, &record, &begun.permit, deadline, is_sent_again);
            let attempted = attempt.await;
            is_sent_again |= attempted.evidence.is_of_lost_session();
            record = attempted.noted.unwrap_or(record);
            if let (Some(run), Outcome::NotExecuted(_)) = (run, &attempted.outcome) {
                run.close();
            }
            // The tool's allowance is spent before it is known whether the retry is made.
            let may_retry = may_be_retried(tool, &record, &attempted.outcome)
                && !self.base.abandoned.is_cancelled()
                && !self.pauses.is_paused(&tool.name)
                && health.try_spend_retry();
            let retry = may_retry.then(|| Retry {
                attempt: new_attempt(),
                jitter: jitter(),
            });
            let event = Event::Ended(Ended {
                attempt: record.attempt.id,
                fencing: record.fencing,
                evidence: attempted.evidence,
                retry,
            });
            let (stored, wait) = self
                .end_attempt(call, record.clone(), &event, run, keep)
                .await;
            let Some(wait) = wait else {
                if may_retry {
                    health.give_retry_back();
                }
                // In a store that has gone back, another attempt's record says nothing of this attempt.
                if stored.attempt.id != record.attempt.id {
                    return (record, None);
                }
                return (stored, attempted.silent);
            };
            record = stored;
            // While the record was being written, waiting requests may have been told that it is unwritten.
            if let Some(run) = run {
                run.report(Progress::Running {
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
    async fn end_attempt(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
        run: Option<&RunHandle>,
        keep: Keep,
    ) -> (Record, Option<Duration>) {
        let trace = call.trace.for_call(&record, self.base.limits.sample);
        let span = trace.completion(&record);
        let (record, wait) = match keep {
            Keep::Stored => self.write_attempt_end(call, record, event, run).await,
            Keep::Nothing => {
                let next = transition::ask(&call.at.tool, Some(&record), event, self.base.time());
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

    /// Applies the end of an attempt for which no request waits.
    pub(super) async fn end_attempt_alone(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
    ) -> Record {
        self.end_attempt(call, record, event, None, Keep::Stored)
            .await
            .0
    }

    async fn write_attempt_end(
        &self,
        call: &PreparedCall,
        record: Record,
        event: &Event,
        run: Option<&RunHandle>,
    ) -> (Record, Option<Duration>) {
        let unwritten = |record: &Record| {
            if let Some(run) = run {
                run.report(Progress::Unwritten(Arc::new(record.clone())));
            }
        };
        let tool = &call.at.tool;
        let completed = transition::end_attempt(&self.base, tool, record, event, unwritten).await;
        let (record, metrics) = (completed.record, &self.base.metrics);
        if let Some(state) = completed.stale {
            metrics.stale_owners.inc();
            tracing::warn!(
                call_id = %record.intent.call_id,
                trace_id = record.intent.trace_id,
                state,
                "a completion was refused: the call has changed under it",
            );
        }
        if completed.is_alarm {
            let labels = [&record.intent.tool];
            metrics.late_executions.with_label_values(&labels).inc();
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
    pub(super) fn count_end(&self, call: &PreparedCall, record: &Record) {
        let (tool, metrics) = (&call.at.tool, &self.base.metrics);
        let failure = failure_of(record);
        self.count_arrival(&tool.name, ArrivalKind::First, call.began);
        call.trace.ended(record, failure);
        // A call that its caller has confirmed is not an accidental double.
        let is_double =
            record.similar_to.is_some() && record.similar_to != call.preconditions.confirmed;
        if is_double && !matches!(record.state, State::Failed(_)) {
            metrics.similar.with_label_values(&[&tool.name]).inc();
        }
        if let Some(reason) = failure {
            let failures = &metrics.first_arrival_failures;
            failures.with_label_values(&[&tool.name, reason]).inc();
        }
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = tool.name,
            trace_id = record.intent.trace_id,
            key = record.intent.lookup.short(),
            key_source = record.intent.key_source.as_str(),
            state = record.state.as_str(),
            reason = failure,
            attempts = record.attempts,
            latency_ms = record.latency_ms,
            "call ended",
        );
    }

    pub(super) fn count_arrival(&self, tool: &str, arrival: ArrivalKind, began: Instant) {
        let (metrics, labels) = (&self.base.metrics, [tool, arrival.as_str()]);
        metrics.arrivals.with_label_values(&labels).inc();
        // A refused request ran nothing and got nothing of a call: its time would hide that of the others.
        if arrival != ArrivalKind::Refused {
            let durations = metrics.call_duration.with_label_values(&[tool]);
            durations.observe(began.elapsed().as_secs_f64());
        }
    }
}

/// Why the first arrival gets no result, as a label.
fn failure_of(record: &Record) -> Option<&'static str> {
    match &record.state {
        State::Failed(failure) => Some(failure.kind.as_str()),
        State::Unknown(_) | State::Running => Some("unknown"),
        state => match state.content() {
            Some(Content::Stored(_)) => None,
            Some(Content::Unavailable(_)) => Some("result_unavailable"),
            // The call was undone already.
            None => Some("unknown"),
        },
    }
}
