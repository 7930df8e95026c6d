//! The way of a call, on the side of the one who runs it: dispatch, and write down what came of it.
//! Each step loads, asks `core::call::next`, saves and acts.
//!
//! The claim is durable before the first byte leaves, and an outcome is told only when it is durable.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, sleep};

use super::call::Asked;
use super::flight::{Phase, Pilot};
use super::health::Permit;
use super::hold::Hold;
use super::places::Owner;
use super::room::move_in;
use super::session::Turn;
use super::trace::new_span_id;
use super::transition;
use super::{ErrorKind, Gateway, jitter, new_attempt};
use crate::budget::Charge;
use crate::core::breaker::Sign;
use crate::core::call::{Action, Event, Next, Retry};
use crate::core::outcome::{self, Evidence, Outcome, Sent};
use crate::core::record::{Content, FailureKind};
use crate::core::record::{Record, State};
use crate::core::redact;
use crate::core::tool::Effect;
use crate::core::trace::SpanId;
use crate::crash;
use crate::downstream::{self, Deadline, Exchange, Party};
use crate::metrics::Arrival;
use crate::store::Listener;

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

impl Gateway {
    /// Flies a flight to its end: the whole life of a call in this process.
    pub(super) async fn fly(self: Arc<Self>, mut asked: Asked, pilot: Pilot, began: Instant) {
        asked.trace.begin_call(&asked.intent);
        let claim = asked.trace.claim(&asked.intent);
        let standing = asked
            .at
            .tool
            .is_exclusive()
            .then(|| self.lines.stand(&asked.intent, &mut asked.longest_line));
        let Turn {
            held,
            place,
            mut room,
            deadline,
        } = self.hold_in_turn(&asked, &pilot).await;
        drop(standing);
        asked.trace.claimed(claim, &held);
        asked.raw = bytes::Bytes::new();
        match held {
            Ok(Hold::Ours(record, permit)) => {
                // Claimed first and asked after: whoever closes the saga in between finds the call.
                crash::point("saga_claimed");
                if let Err(kind) = self.join_saga(&record.intent).await {
                    return self.turn_away(&asked, record, kind, pilot, began).await;
                }
                crash::point("saga_joined");
                let begun = Begun {
                    record,
                    permit,
                    deadline,
                };
                // Boxed, so that a replay need not carry the room for a run.
                let silent = Box::pin(self.run(&asked, begun, &mut room, pilot, began)).await;
                drop(place);
                if let Some((record, exchange)) = silent
                    && let Some(_place) = self.listening.take(Owner::of(&asked.intent))
                {
                    self.listen_late(&asked, record, exchange, deadline).await;
                }
            }
            Ok(Hold::Theirs(record)) => {
                drop((place, room));
                self.watch(record, pilot, Owner::of(&asked.intent)).await;
            }
            Ok(Hold::Settled(mut record)) => {
                move_in(&mut record, &mut room);
                pilot.end(Ok(Arc::new(record)), false);
            }
            // It is no one's turn for ever: what waited has been refused by now.
            Ok(Hold::Denied(..)) => pilot.end(Err(ErrorKind::StoreUnavailable), false),
            Err(ErrorKind::StoreUnavailable)
                if asked.at.tool.effect == Effect::Read
                    && place.is_some()
                    && !self.is_paused(&asked.at.tool.name) =>
            {
                self.pass_through(&asked, &mut room, pilot, began, deadline)
                    .await;
            }
            Err(kind) => pilot.end(Err(kind), false),
        }
    }

    /// Ends a call that was claimed and is not sent, because of its saga.
    async fn turn_away(
        &self,
        asked: &Asked,
        record: Record,
        kind: ErrorKind,
        pilot: Pilot,
        began: Instant,
    ) {
        let attempt = record.attempt.id;
        let (failure, why) = match &kind {
            ErrorKind::WrongState(why) => (FailureKind::SagaClosed, why.clone()),
            kind => (FailureKind::Unavailable, kind.to_string()),
        };
        let event = Event::NotJoined {
            by: self.instance,
            attempt,
            kind: failure,
            why,
        };
        let (record, _) = self.settle(asked, record, &event, None, Keep::Stored).await;
        self.ended(asked, &record, began);
        let is_closed = matches!(&record.state, State::Failed(failure) if failure.kind == FailureKind::SagaClosed);
        pilot.end(
            if is_closed {
                Ok(Arc::new(record))
            } else {
                Err(kind)
            },
            true,
        );
    }

    /// Runs a read without a store: it has no effect that could be doubled.
    async fn pass_through(
        &self,
        asked: &Asked,
        room: &mut Option<Charge>,
        pilot: Pilot,
        began: Instant,
        deadline: Deadline,
    ) {
        let tool = &asked.at.tool;
        let next = transition::ask(tool, None, &self.arrival(asked), self.now());
        let Ok(Next {
            change: Some(change),
            ..
        }) = next
        else {
            return pilot.end(Err(ErrorKind::StoreUnavailable), false);
        };
        self.metrics
            .passed_through
            .with_label_values(&[&tool.name])
            .inc();
        asked.at.health.earn_retry();
        let begun = Begun {
            record: change.record,
            permit: Permit::default(),
            deadline,
        };
        let (mut record, _) = self
            .run_attempts(asked, begun, Some(&pilot), Keep::Nothing)
            .await;
        self.ended(asked, &record, began);
        move_in(&mut record, room);
        pilot.end(Ok(Arc::new(record)), true);
    }

    /// Follows a call that somebody else runs, until it is settled or nobody here asks any more. What is
    /// heard of its end only says when to look.
    async fn watch(&self, mut record: Record, pilot: Pilot, asks: Owner) {
        let (intent, call_id, version) =
            (record.intent.clone(), record.intent.call_id, record.version);
        let Some(_place) = self.waiting.take(asks) else {
            return pilot.end(Ok(Arc::new(record)), false);
        };
        let listener = self.store.listen(call_id);
        pilot.say(Phase::Running {
            record: Arc::new(record.clone()),
            ours: false,
        });
        let (mut pause, longest_pause) = self.limits.pace.poll;
        let mut is_first = listener.is_some();
        while !pilot.leave_if_alone() {
            // It may have ended before anybody listened.
            if !std::mem::take(&mut is_first) {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = heard(listener.as_ref()) => {}
                    // Others can be asked how it ends.
                    () = self.draining.cancelled() => return pilot.end(Ok(Arc::new(record)), false),
                }
                pause = (pause * 2).min(longest_pause);
            }
            match self.counted_for(&intent, "load", self.store.load(call_id).await) {
                Ok(Some(
                    running @ Record {
                        state: State::Running,
                        ..
                    },
                )) => record = running,
                // A store that has gone back knows less of it than we have seen.
                Ok(Some(record)) if record.version < version => {
                    return pilot.end(Err(ErrorKind::StoreUnavailable), false);
                }
                Ok(Some(record)) => return pilot.end(self.with_room(record).map(Arc::new), false),
                Ok(None) | Err(_) => return pilot.end(Err(ErrorKind::StoreUnavailable), false),
            }
        }
    }

    /// Runs a call that is ours and tells everyone. Answers with the call and its exchange if it is in
    /// doubt and may still be answered.
    async fn run(
        &self,
        asked: &Asked,
        begun: Begun,
        room: &mut Option<Charge>,
        pilot: Pilot,
        began: Instant,
    ) -> Option<(Record, Exchange)> {
        crash::point("after_claim");
        pilot.say(Phase::Running {
            record: Arc::new(begun.record.clone()),
            ours: true,
        });
        // Not by a recheck, which is itself a repetition.
        asked.at.health.earn_retry();
        let (mut record, silent) = self
            .run_attempts(asked, begun, Some(&pilot), Keep::Stored)
            .await;
        self.ended(asked, &record, began);
        move_in(&mut record, room);
        if record.state == State::Running {
            // Nobody runs it any more, and how it ended could not be written: the flight breaks off.
            return None;
        }
        let in_doubt = matches!(record.state, State::Unknown(_));
        pilot.end(Ok(Arc::new(record.clone())), true);
        silent
            .filter(|_| in_doubt)
            .map(|exchange| (record, exchange))
    }

    /// Counts and logs how a run ended.
    fn ended(&self, asked: &Asked, record: &Record, began: Instant) {
        let tool = &asked.at.tool;
        self.count_arrival(&tool.name, Arrival::First, began);
        asked.trace.ended(record, failure_of(record));
        if let Some(reason) = failure_of(record) {
            self.metrics
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
                && !self.abandoned.is_cancelled()
                && !self.is_paused(&tool.name)
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
                () = self.abandoned.cancelled() => {}
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
        if self.abandoned.is_cancelled() {
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
        if record.attempt.number > 1 && self.is_paused(&tool.name) {
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
        let trace = asked.trace.for_call(record, self.limits.sample);
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
            () = self.abandoned.cancelled() => Some(exchange.give_up("the gateway is shutting down")),
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
        self.metrics
            .attempts
            .with_label_values(&[&tool.name, proved.as_str()])
            .inc();
        self.metrics
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

    /// An answer to an attempt that was given up as unknown still settles the call.
    async fn listen_late(
        &self,
        asked: &Asked,
        record: Record,
        mut exchange: Exchange,
        deadline: Deadline,
    ) {
        let until = deadline.at + asked.at.tool.lease_margin;
        let observed = tokio::select! {
            observed = exchange.until(until, until) => observed,
            () = self.abandoned.cancelled() => None,
        };
        let Some(evidence) = observed else { return };
        let event = Event::Ended {
            attempt: record.attempt.id,
            fencing: record.fencing,
            evidence,
            retry: None,
        };
        let (record, _) = self.settle(asked, record, &event, None, Keep::Stored).await;
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = asked.at.tool.name,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            "a late answer",
        );
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
            .for_call(&record, self.limits.sample)
            .completion(&record);
        let (record, wait) = match keep {
            Keep::Stored => self.write_outcome(asked, record, event, pilot).await,
            Keep::Nothing => {
                let next = transition::ask(&asked.at.tool, Some(&record), event, self.now());
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
        let completed = transition::complete(self, &asked.at.tool, record, event, unwritten).await;
        let record = completed.record;
        if completed.is_stale {
            self.metrics.stale_owners.inc();
            tracing::warn!(
                call_id = %record.intent.call_id,
                trace_id = record.intent.trace_id,
                state = record.state.as_str(),
                "a completion was refused: the call has changed under it",
            );
        }
        if completed.is_alarm {
            self.metrics
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
}

/// Waits for word of a call's end; for ever if there is nobody to say it.
pub(super) async fn heard(listener: Option<&Listener>) {
    match listener {
        Some(listener) => listener.heard().await,
        None => std::future::pending().await,
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
