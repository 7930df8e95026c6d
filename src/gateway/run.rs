//! Attempts of a call: dispatch, and write down what came of it.
//!
//! The claim is durable before the first byte leaves, and an outcome is told only when it is durable.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, sleep};

use super::base::Base;
use super::call::Asked;
use super::flight::{Phase, Pilot};
use super::health::Permit;
use super::ids::{jitter, new_attempt};
use super::pause::Pauses;
use super::sagas::SagaRegistry;
use super::tools::ToolAt;
use super::trace::new_span_id;
use super::transition;
use crate::core::breaker::Sign;
use crate::core::call::{Action, Event, Retry};
use crate::core::outcome::{self, Evidence, Outcome, Sent};
use crate::core::record::{Content, Intent, Record, State};
use crate::core::redact;
use crate::core::session::SessionId;
use crate::core::trace::SpanId;
use crate::core::unknown::{Finding, Hindrance, read_probe};
use crate::crash;
use crate::downstream::{self, Deadline, Downstream, Exchange, Party};
use crate::metrics::Arrival;

/// Whether what comes of a run is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Stored,
    /// A read that goes on without a store.
    Nothing,
}

/// A run that has begun.
pub(super) struct Begun {
    pub(super) record: Record,
    /// What its tool's breaker has let it through with.
    pub(super) permit: Permit,
    /// Nothing is sent after this.
    pub(super) deadline: Deadline,
}

/// What came of one dispatch.
pub(super) struct Attempted {
    pub(super) evidence: Evidence,
    /// That is what the evidence proves.
    is_executed: bool,
    /// The exchange, if it is still under way.
    silent: Option<Exchange>,
}

/// Sends calls to their tools; nothing else does.
pub(super) struct Runner {
    pub(super) base: Arc<Base>,
    pub(super) downstream: Arc<Downstream>,
    pub(super) pauses: Arc<Pauses>,
    pub(super) sagas: Arc<SagaRegistry>,
}

impl Runner {
    /// Attempt after attempt, until one settles the call. Answers with the stored record, and with
    /// the exchange if it was left without an answer.
    pub(super) async fn run_attempts(
        &self,
        asked: &Asked,
        begun: Begun,
        pilot: Option<&Pilot>,
        keep: Keep,
    ) -> (Record, Option<Exchange>) {
        let tool = &asked.at.tool;
        let health = &asked.at.health;
        let Begun {
            mut record,
            permit,
            deadline,
        } = begun;
        loop {
            let Attempted {
                evidence,
                is_executed,
                silent,
            } = self.attempt(asked, &record, &permit, deadline).await;
            let retry = Retry {
                attempt: new_attempt(),
                jitter: jitter(),
            };
            // Taken out of hand until it is known whether it is made; what is executed needs none.
            let may_retry = !is_executed
                && !self.base.abandoned.is_cancelled()
                && !self.pauses.is_paused(&tool.name)
                && record.attempt.number < tool.retry.attempts
                && health.try_spend_retry();
            let retry = may_retry.then_some(retry);
            let event = Event::Ended {
                attempt: record.attempt.id,
                fencing: record.fencing,
                evidence,
                retry,
            };
            let (stored, wait) = self
                .settle(asked, record.clone(), &event, pilot, keep)
                .await;
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
            // Writing it may have taken a while, in which nobody was to hear of it.
            if let Some(pilot) = pilot {
                pilot.say(Phase::Running {
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

    /// One dispatch.
    pub(super) async fn attempt(
        &self,
        asked: &Asked,
        record: &Record,
        permit: &Permit,
        deadline: Deadline,
    ) -> Attempted {
        let tool = &asked.at.tool;
        if self.base.abandoned.is_cancelled() {
            let evidence = Evidence::NotSent {
                why: "the gateway is shutting down".into(),
            };
            return Attempted {
                evidence,
                is_executed: false,
                silent: None,
            };
        }
        // What is under way goes on, but nothing is sent again.
        if record.attempt.number > 1 && self.pauses.is_paused(&tool.name) {
            let evidence = Evidence::NotSent {
                why: "a person has paused the tool".into(),
            };
            return Attempted {
                evidence,
                is_executed: false,
                silent: None,
            };
        }
        let began = Instant::now();
        let trace = asked.trace.for_call(record, self.base.limits.sample);
        // A replay that asks the tool is no attempt of the call, and its span is another one.
        let is_attempt = record.state == State::Running;
        let span_id = if is_attempt {
            SpanId::of(record.attempt.id)
        } else {
            new_span_id()
        };
        let span = trace.attempt(record, span_id);
        let request = downstream::Request {
            party: Party::tool(&record.intent.tenant, &record.intent.tool),
            call_id: record.intent.call_id,
            headers: headers(record, trace.told(span_id)),
            // What was not kept is there only with the request itself.
            body: if redact::is_whole(&record.intent.args) {
                record.intent.args.clone()
            } else {
                asked.args.clone()
            },
            send_before: deadline,
        };
        let mut exchange = self.downstream.dispatch(&asked.at.endpoint, request);
        let is_sent = exchange.watch_sending();
        let head_by = deadline.at.min(began + tool.timeout);
        let observed = tokio::select! {
            observed = exchange.until(head_by, deadline.at) => observed,
            () = crash::point_after(is_sent, "after_last_byte") => None,
            () = self.base.abandoned.cancelled() => Some(exchange.give_up("the gateway is shutting down")),
        };
        let (evidence, silent) = match observed {
            Some(evidence) => (evidence, None),
            None => {
                let waited = head_by.duration_since(began).as_millis();
                let evidence = exchange.give_up(&format!("no answer within {waited} ms"));
                let silent = matches!(evidence, Evidence::NoAnswer { .. }).then_some(exchange);
                (evidence, silent)
            }
        };
        crash::point("after_answer");
        let (proved, why) = outcome::classify(tool, &evidence, Sent::of(record));
        span.record("outcome", proved.as_str());
        if !matches!(proved, Outcome::Executed(_)) {
            span.record("error", why);
        }
        drop(span);
        self.base
            .metrics
            .attempts
            .with_label_values(&[&tool.name, proved.as_str()])
            .inc();
        self.base
            .metrics
            .attempt_duration
            .with_label_values(&[&tool.name])
            .observe(began.elapsed().as_secs_f64());
        let sign = match &evidence {
            Evidence::NotSent { .. } => Sign::Unreached,
            _ if proved.is_healthy() || evidence.is_sign_of_life() => Sign::Healthy,
            _ => Sign::Failed,
        };
        asked
            .at
            .health
            .ended(&record.intent.tenant, sign, permit, began.elapsed());
        Attempted {
            evidence,
            is_executed: matches!(proved, Outcome::Executed(_)),
            silent,
        }
    }

    /// Applies how an attempt ended to the record and writes it. Answers with the record as stored,
    /// and how long to wait if another attempt is to be made.
    pub(super) async fn settle(
        &self,
        asked: &Asked,
        record: Record,
        event: &Event,
        pilot: Option<&Pilot>,
        keep: Keep,
    ) -> (Record, Option<Duration>) {
        let span = asked
            .trace
            .for_call(&record, self.base.limits.sample)
            .completion(&record);
        let (record, wait) = match keep {
            Keep::Stored => self.write_outcome(asked, record, event, pilot).await,
            Keep::Nothing => {
                let next = transition::ask(&asked.at.tool, Some(&record), event, self.base.now());
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

    async fn write_outcome(
        &self,
        asked: &Asked,
        record: Record,
        event: &Event,
        pilot: Option<&Pilot>,
    ) -> (Record, Option<Duration>) {
        let unwritten = |record: &Record| {
            if let Some(pilot) = pilot {
                pilot.say(Phase::Unwritten {
                    record: Arc::new(record.clone()),
                });
            }
        };
        let completed =
            transition::complete(&self.base, &asked.at.tool, record, event, unwritten).await;
        let record = completed.record;
        if completed.is_stale {
            self.base.metrics.stale_owners.inc();
            tracing::warn!(
                call_id = %record.intent.call_id,
                trace_id = record.intent.trace_id,
                state = record.state.as_str(),
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

    /// Whether the call may be sent to its tool now. What a person has stopped, or what keeps failing, is
    /// left alone as if it were a new call.
    pub(super) async fn may_send(&self, at: &ToolAt, record: &Record) -> Result<Permit, Hindrance> {
        let permit = at
            .health
            .admit(&record.intent.tenant)
            .map_err(Hindrance::Resting)?;
        let session = self
            .base
            .store
            .session(&SessionId::of(&record.intent))
            .await;
        match session {
            Ok(session) if session.frozen => return Err(Hindrance::Frozen),
            Ok(_) => {}
            Err(_) => return Err(Hindrance::Store),
        }
        match self.sagas.is_wanted_again(&record.intent).await {
            Ok(true) => Ok(permit),
            Ok(false) => Err(Hindrance::NotWanted),
            Err(_) => Err(Hindrance::Store),
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
            () = self.base.abandoned.cancelled() => {
                (Finding::Unclear("the gateway is shutting down".into()), None)
            }
        }
    }

    /// Counts and logs how a run ended.
    pub(super) fn ended(&self, asked: &Asked, record: &Record, began: Instant) {
        let tool = &asked.at.tool;
        self.count_arrival(&tool.name, Arrival::First, began);
        asked.trace.ended(record, failure_of(record));
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

    pub(super) fn count_arrival(&self, tool: &str, arrival: Arrival, began: Instant) {
        let labels = [tool, arrival.as_str()];
        self.base.metrics.arrivals.with_label_values(&labels).inc();
        self.base
            .metrics
            .call_duration
            .with_label_values(&labels)
            .observe(began.elapsed().as_secs_f64());
    }
}

/// Why the first arrival gets no result, in one word.
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

/// What the gateway says to the tool about a call. Nothing of the caller's own headers.
fn headers(record: &Record, trace: Vec<(&'static str, String)>) -> HeaderMap {
    let intent = &record.intent;
    let mut headers = HeaderMap::new();
    let mut say = |name: &'static str, value: &str| {
        // Values were checked when they came in; one that fits no header is left out.
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    say("idempotency-key", &intent.lookup.for_tool());
    say("x-call-id", &intent.call_id.to_string());
    if let Some(token) = record.fencing {
        say("fencing-token", &token.to_string());
    }
    if !intent.session_id.is_empty() {
        say("x-session-id", &intent.session_id);
    }
    for (name, value) in trace {
        say(name, &value);
    }
    headers
}
