//! The way of a call, from the request to the answer.
//!
//! A caller waits; the call itself runs in a task of its own, so a caller that hangs up changes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::answer::{Answer, arrival_of, tell, unless_it_asks};
use super::claim::{ClaimOutcome, Claimer};
use super::duplicates::Duplicates;
use super::large::LargeRequests;
use super::prepare::Preparer;
use super::prepared::{Patience, PreparedCall, Request};
use super::queue::{SessionQueue, Turn};
use super::result_memory::{ResultMemory, move_in};
use super::run::{Begun, Keep, Runner};
use super::shared_run::{Progress, RunHandle, SharedRuns, heard};
use crate::budget::Charge;
use crate::core::call::{Event, Next};
use crate::core::caller::Caller;
use crate::core::ledger::Duplicate;
use crate::core::record::{Failure, FailureKind, Record, State};
use crate::core::time::elapsed_ms;
use crate::core::tool::Effect;
use crate::crash;
use crate::downstream::{Deadline, Exchange};
use crate::gateway::base::Base;
use crate::gateway::error::{Error, ErrorKind};
use crate::gateway::health::Permit;
use crate::gateway::measured::work_on;
use crate::gateway::pauses::Pauses;
use crate::gateway::places::{Lines, Owner, Places};
use crate::gateway::sagas::SagaRegistry;
use crate::gateway::tools::ToolAt;
use crate::gateway::transition;
use crate::metrics::ArrivalKind;

/// Runs calls, and answers from stored ones.
pub struct Engine {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) prepare: Preparer,
    pub(in crate::gateway) claims: Arc<Claimer>,
    pub(in crate::gateway) queue: SessionQueue,
    pub(in crate::gateway) runner: Arc<Runner>,
    pub(in crate::gateway) sagas: Arc<SagaRegistry>,
    pub(in crate::gateway) pauses: Arc<Pauses>,
    pub(in crate::gateway) duplicates: Arc<Duplicates>,
    pub(in crate::gateway) runs: Arc<SharedRuns>,
    pub(in crate::gateway) waiting: Places,
    pub(in crate::gateway) lines: Lines,
    pub memory: Arc<ResultMemory>,
    pub large: Arc<LargeRequests>,
}

impl Engine {
    /// Runs a call, or answers from the stored one.
    ///
    /// Dropping the future does not stop a call that was begun.
    ///
    /// # Errors
    /// Why there is no result, and by the kind of it whether there may have been an effect.
    pub async fn call(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: Request,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let span = std::mem::take(&mut request.span);
        let patience = request.patience;
        // A gateway that drains waits for the requests that were let in before.
        let let_in = self.base.tasks.token();
        let at = self.prepare.at_for(caller, &request)?;
        span.is_for(&at.tool.name);
        self.runner.count_request(&at.tool.name, request.door);
        let can_be_asked = request.client.can_answer.is_some();
        let prepared = async {
            let request = self.with_answers(&at, caller, request).await?;
            let prepared = self.prepare.prepare(at.clone(), caller, request, &span);
            prepared.await
        };
        let call = prepared.await.inspect_err(|_| {
            span.came_to(ArrivalKind::Refused.as_str(), None);
            self.runner
                .count_arrival(&at.tool.name, ArrivalKind::Refused, began);
        })?;
        let (key, names) = (call.told_key.clone(), call.names.clone());
        let came = Instant::now();
        let (progress, is_first) = match self.replayed_at_once(&call) {
            Some(progress) => (progress, false),
            None => {
                let (progress, is_first) = self.join_or_begin(call, began);
                drop(let_in);
                let waited = self.wait(caller, &at, progress, patience, is_first);
                (waited.await, is_first)
            }
        };
        let progress = self
            .wait_until_known(caller, progress, patience, came)
            .await;
        let is_ours = is_first && progress.is_ours();
        let arrival = if is_ours {
            ArrivalKind::First
        } else {
            arrival_of(&progress)
        };
        span.came_to(arrival.as_str(), progress.record().map(Arc::as_ref));
        // A run counts its first arrival by itself, for that caller may have gone.
        if !is_ours {
            self.count_duplicate(caller, &at, arrival, &progress, began);
        }
        crash::point("before_reply");
        let retry_after = self.retry_after(&at, &progress);
        let told = tell(&progress, patience, is_first, retry_after, self.base.now());
        let told = told.and_then(|answer| unless_it_asks(answer, &at, can_be_asked));
        told.map(|answer| answer.for_request(&names, key.as_deref()))
            .map_err(|(kind, call_id)| Error {
                replayed: kind.is_outcome().then_some(!is_ours),
                kind: kind.told_to(caller, &at.tool.name),
                call_id,
                key,
            })
    }

    /// Joins the run of the same call in this process, or begins one. Whether it was begun.
    pub(in crate::gateway) fn join_or_begin(
        self: &Arc<Self>,
        call: PreparedCall,
        began: Instant,
    ) -> (watch::Receiver<Progress>, bool) {
        let (progress, run) = self.runs.join_or_begin((
            call.intent.lookup,
            call.intent.fingerprint,
            call.brought,
            call.intent.saga_id.clone(),
            call.new_keys.clone(),
        ));
        let is_first = run.is_some();
        if let Some(run) = run {
            let intent = call.intent.clone();
            let work = work_on(intent, self.clone().drive(call, run, began));
            drop(self.base.tasks.spawn(work));
        }
        (progress, is_first)
    }

    /// Waits until a late answer, a probe or a person settles an unknown call.
    async fn wait_until_known(
        &self,
        caller: &Caller,
        progress: Progress,
        patience: Patience,
        came: Instant,
    ) -> Progress {
        let Progress::Ended {
            record: Ok(record), ..
        } = &progress
        else {
            return progress;
        };
        let (State::Unknown(_), Some(wait)) = (&record.state, patience.wait) else {
            return progress;
        };
        let Some(_place) = self.waiting.take(Owner::of_caller(caller)) else {
            return progress;
        };
        let (call_id, until) = (record.intent.call_id, came + wait);
        let listener = self.base.store.listen(call_id);
        let (mut pause, longest_pause) = self.base.limits.pace.poll;
        while Instant::now() < until {
            let load = self.base.store.load(call_id);
            match work_on(record.intent.clone(), load).await {
                Ok(Some(Record {
                    state: State::Unknown(_) | State::Running,
                    ..
                })) => {}
                Ok(Some(record)) => {
                    // Without room for its result it is asked for again; that it ran must not be hidden.
                    let Ok(record) = self.memory.with_room(record) else {
                        return progress;
                    };
                    return Progress::Ended {
                        record: Ok(Arc::new(record)),
                        ours: false,
                    };
                }
                Ok(None) | Err(_) => return progress,
            }
            tokio::select! {
                () = sleep_until(until.min(Instant::now() + pause)) => {}
                () = heard(listener.as_ref()) => {}
            }
            pause = (pause * 2).min(longest_pause);
        }
        progress
    }

    fn count_duplicate(
        &self,
        caller: &Caller,
        at: &ToolAt,
        arrival: ArrivalKind,
        progress: &Progress,
        began: Instant,
    ) {
        self.runner.count_arrival(&at.tool.name, arrival, began);
        let Some(record) = progress.record() else {
            return;
        };
        let now = self.base.now();
        let duplicate = Duplicate {
            at: now,
            by: caller.name.clone(),
            kind: arrival.as_str().to_owned(),
        };
        self.duplicates
            .note_duplicate(record.intent.call_id, duplicate);
        let gap_s = elapsed_ms(record.intent.created_at, now) as f64 / 1000.0;
        let gaps = &self.base.metrics.duplicate_gap;
        gaps.with_label_values(&[&at.tool.name]).observe(gap_s);
    }

    /// How soon to ask again for a call, by its progress.
    fn retry_after(&self, at: &ToolAt, progress: &Progress) -> Duration {
        match progress.record() {
            Some(record) => at.retry_after_of(record, self.base.now()),
            None => at.health.retry_after(Duration::ZERO),
        }
    }

    /// The life of a call in this process: claim the key, join the saga, run, tell all waiters.
    async fn drive(self: Arc<Self>, mut call: PreparedCall, run: RunHandle, began: Instant) {
        call.trace.begin_call(&call.intent);
        let Turn {
            claimed,
            place,
            mut room,
            deadline,
        } = self.claim(&mut call, &run).await;
        match claimed {
            Ok(ClaimOutcome::Ours(record, permit)) => {
                crash::point("saga_claimed");
                // Asked after the claim: a saga that is closed in between finds the call.
                if let Err(kind) = self.sagas.join_saga(&record.intent).await {
                    return self.turn_away(&call, record, kind, run, began).await;
                }
                crash::point("saga_joined");
                let begun = Begun {
                    record,
                    permit,
                    deadline,
                };
                // Boxed, so that a replay need not carry the room for a run.
                let silent = Box::pin(self.run(&call, begun, &mut room, run, began)).await;
                drop(place);
                if let Some((record, exchange)) = silent
                    && let Some(_place) = self.claims.listening.take(Owner::of(&call.intent))
                {
                    self.listen_late(&call, record, exchange, deadline).await;
                }
            }
            Ok(ClaimOutcome::Theirs(record)) => {
                drop((place, room));
                self.watch(record, run, Owner::of(&call.intent)).await;
            }
            Ok(ClaimOutcome::Settled(mut record)) => {
                move_in(&mut record, &mut room);
                run.end(Ok(Arc::new(record)), false);
            }
            // The queue has refused what waited for too long.
            Ok(ClaimOutcome::Denied(..)) => run.end(Err(ErrorKind::StoreUnavailable), false),
            Err(ErrorKind::StoreUnavailable)
                if call.at.tool.effect == Effect::Read
                    && place.is_some()
                    && !self.pauses.is_paused(&call.at.tool.name) =>
            {
                self.pass_through(&call, &mut room, run, began, deadline)
                    .await;
            }
            Err(kind) => run.end(Err(kind), false),
        }
    }

    /// Claims the key when the session lets it, and drops the arguments as they came.
    async fn claim(&self, call: &mut PreparedCall, run: &RunHandle) -> Turn {
        let span = call.trace.claim(&call.intent);
        let is_exclusive = call.at.tool.is_exclusive();
        let standing = is_exclusive.then(|| self.lines.stand(&call.intent, &mut call.longest_line));
        let turn = self.queue.claim_in_session_order(call, run).await;
        drop(standing);
        let (outcome, found) = match &turn.claimed {
            Ok(ClaimOutcome::Ours(record, _)) => ("claimed", Some(record)),
            Ok(ClaimOutcome::Theirs(record)) => ("running", Some(record)),
            Ok(ClaimOutcome::Settled(record)) => ("settled", Some(record)),
            Ok(ClaimOutcome::Denied(..)) | Err(_) => ("refused", None),
        };
        call.trace.claimed(span, outcome, found);
        call.raw = Bytes::new();
        turn
    }

    /// Runs a claimed call and tells all waiters. Returns its exchange if an answer may still come.
    async fn run(
        &self,
        call: &PreparedCall,
        begun: Begun,
        room: &mut Option<Charge>,
        run: RunHandle,
        began: Instant,
    ) -> Option<(Record, Exchange)> {
        crash::point("after_claim");
        run.say(Progress::Running {
            record: Arc::new(begun.record.clone()),
            ours: true,
        });
        // Not by a recheck, which is itself a repetition.
        call.at.health.earn_retry();
        let (mut record, silent) = self
            .runner
            .run_attempts(call, begun, Some(&run), Keep::Stored)
            .await;
        self.runner.ended(call, &record, began);
        move_in(&mut record, room);
        if record.state == State::Running {
            // How it ended could not be written: the run ends without a result.
            return None;
        }
        let in_doubt = matches!(record.state, State::Unknown(_));
        run.end(Ok(Arc::new(record.clone())), true);
        silent
            .filter(|_| in_doubt)
            .map(|exchange| (record, exchange))
    }

    /// Waits for a late answer, which still settles an unknown call.
    async fn listen_late(
        &self,
        call: &PreparedCall,
        record: Record,
        mut exchange: Exchange,
        deadline: Deadline,
    ) {
        let until = deadline.late_by(call.at.tool.lease_margin);
        // A gateway that stops waits for no answer, and settles the call by one that has come.
        let observed = tokio::select! {
            biased;
            observed = exchange.until(until, until) => observed,
            () = self.base.abandoned.cancelled() => None,
        };
        let Some(evidence) = observed else { return };
        let event = Event::ended(&record, evidence);
        let record = self.runner.settle_alone(call, record, &event).await;
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = call.at.tool.name,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            "a late answer",
        );
    }

    /// Follows a call of another process, until it is settled or no caller here waits.
    async fn watch(&self, mut record: Record, run: RunHandle, asks: Owner) {
        let (call_id, version) = (record.intent.call_id, record.version);
        let Some(_place) = self.waiting.take(asks) else {
            return run.end(Ok(Arc::new(record)), false);
        };
        // A notification only says when to look.
        let listener = self.base.store.listen(call_id);
        run.say(Progress::Running {
            record: Arc::new(record.clone()),
            ours: false,
        });
        let (mut pause, longest_pause) = self.base.limits.pace.poll;
        let mut is_first = listener.is_some();
        let mut has_failed = false;
        while !run.leave_if_alone() {
            // It may have ended before this listened.
            if !std::mem::take(&mut is_first) {
                tokio::select! {
                    biased;
                    () = sleep(pause) => {}
                    () = heard(listener.as_ref()) => {}
                    // Others can be asked how it ends.
                    () = self.base.draining.cancelled() => return run.end(Ok(Arc::new(record)), false),
                }
                pause = (pause * 2).min(longest_pause);
            }
            match self.base.store.load(call_id).await {
                Ok(Some(
                    running @ Record {
                        state: State::Running,
                        ..
                    },
                )) => record = running,
                // A store that has gone back knows less of it than we have seen.
                Ok(Some(record)) if record.version < version => {
                    return run.end(Err(ErrorKind::StoreUnavailable), false);
                }
                // It may run again since this was read. Only requests that came before that may be told so.
                Ok(Some(Record {
                    state: State::Failed(_),
                    ..
                })) if !has_failed => {
                    run.close();
                    (has_failed, is_first) = (true, true);
                }
                Ok(Some(record)) => {
                    return run.end(self.memory.with_room(record).map(Arc::new), false);
                }
                Ok(None) | Err(_) => return run.end(Err(ErrorKind::StoreUnavailable), false),
            }
        }
    }

    /// Ends a claimed call that its saga does not let be sent.
    async fn turn_away(
        &self,
        call: &PreparedCall,
        record: Record,
        kind: ErrorKind,
        run: RunHandle,
        began: Instant,
    ) {
        run.close();
        let (failure, why) = match &kind {
            ErrorKind::WrongState(why) => (FailureKind::SagaClosed, why.clone()),
            kind => (FailureKind::Unavailable, kind.to_string()),
        };
        let event = Event::NotJoined {
            by: self.base.instance,
            attempt: record.attempt.id,
            why: Failure::new(failure, why),
        };
        let record = self.runner.settle_alone(call, record, &event).await;
        self.runner.ended(call, &record, began);
        let is_closed = matches!(&record.state, State::Failed(failure) if failure.kind == FailureKind::SagaClosed);
        run.end(
            if is_closed {
                Ok(Arc::new(record))
            } else {
                Err(kind)
            },
            true,
        );
    }

    /// Runs a read without a store: a repetition has no effect.
    async fn pass_through(
        &self,
        call: &PreparedCall,
        room: &mut Option<Charge>,
        run: RunHandle,
        began: Instant,
        deadline: Deadline,
    ) {
        let tool = &call.at.tool;
        let next = transition::ask(tool, None, &self.claims.arrival(call), self.base.now());
        let Ok(Next {
            change: Some(change),
            ..
        }) = next
        else {
            return run.end(Err(ErrorKind::StoreUnavailable), false);
        };
        self.base
            .metrics
            .passed_through
            .with_label_values(&[&tool.name])
            .inc();
        call.at.health.earn_retry();
        let begun = Begun {
            record: change.record,
            permit: Permit::default(),
            deadline,
        };
        let (mut record, _) = self
            .runner
            .run_attempts(call, begun, Some(&run), Keep::Nothing)
            .await;
        self.runner.ended(call, &record, began);
        move_in(&mut record, room);
        run.end(Ok(Arc::new(record)), true);
    }
}
