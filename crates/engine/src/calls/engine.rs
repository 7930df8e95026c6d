//! The way of a call, from the request to the answer.
//!
//! [`Engine::call`] is what a request does, and [`Engine::drive`] what the call does. The request waits; the call
//! runs in a task of its own, so a caller that hangs up changes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::answer::{Answer, arrival_of, tell, unless_it_asks};
use super::attempt::Sender;
use super::claim::{ClaimOutcome, Claimer, Turn};
use super::duplicates::Duplicates;
use super::duplicates::shared_run::{Progress, RunHandle, RunKey, SharedRuns, notified};
use super::large::LargeRequests;
use super::prepared::{Answers, Patience, PreparedCall, Request};
use super::result_memory::{ResultMemory, move_in};
use super::run::{Begun, Keep};
use crate::base::Base;
use crate::base::ids::random;
use crate::base::measured::with_call_context;
use crate::callers::permits::{FairPermits, Lines, Owner};
use crate::error::{Error, ErrorKind};
use crate::key_schemes::KeySchemes;
use crate::metrics::ArrivalKind;
use crate::recovery::LostCalls;
use crate::sagas::SagaRegistry;
use crate::secret::KnownSecrets;
use crate::tools::ToolAt;
use crate::tools::pauses::Pauses;
use oncegate_budget::Charge;
use oncegate_hooks::crash;
use oncegate_rules::call::Event;
use oncegate_rules::caller::Caller;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::Duplicate;
use oncegate_rules::record::{Failure, FailureKind, Record, State};
use oncegate_rules::time::elapsed_ms;
use oncegate_rules::tool::Effect;
use oncegate_tools::{Deadline, Exchange};

/// Runs calls, and answers from stored ones.
pub struct Engine {
    pub(crate) base: Arc<Base>,
    pub(crate) key_schemes: Arc<KeySchemes>,
    pub(crate) secrets: Arc<KnownSecrets>,
    pub(crate) claims: Arc<Claimer>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) lost: Arc<LostCalls>,
    pub(crate) sagas: Arc<SagaRegistry>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) duplicates: Arc<Duplicates>,
    pub(crate) runs: Arc<SharedRuns>,
    /// Permits to run.
    pub(crate) running: FairPermits,
    /// Permits to wait for a call or for a session.
    pub(crate) waiting: FairPermits,
    pub(crate) lines: Lines,
    pub memory: Arc<ResultMemory>,
    pub large: LargeRequests,
}

impl Engine {
    /// Runs a call, or answers from the stored one.
    ///
    /// Dropping the future does not stop a call that was begun.
    ///
    /// # Errors
    /// Why there is no result. Its kind says whether there may have been an effect.
    pub async fn call(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: Request,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let span = std::mem::take(&mut request.span);
        let patience = request.patience;
        let can_be_asked = request.client.can_answer.is_some();
        // A gateway that drains waits for the requests that were let in before.
        let let_in = self.base.tasks.token();
        let at = self.at_for(caller, &request)?;
        let patience = patience.for_effect(at.tool.effect);
        span.is_for(&at.tool.name);
        let labels = [&at.tool.name, request.interface.as_str()];
        self.base.metrics.requests.with_label_values(&labels).inc();

        // The request becomes a call with a key, or is refused.
        let prepared = async {
            // If it answers an elicitation, the answers become arguments. Boxed, because few requests do.
            let request = match std::mem::take(&mut request.answers) {
                Answers::Elicitation(answer) => {
                    Box::pin(self.with_answers(&at, caller, request, answer)).await?
                }
                Answers::Nothing | Answers::InArgs => request,
            };
            let prepared = self.prepare(at.clone(), caller, request, &span);
            prepared.await
        };
        let prepared = prepared.await.inspect_err(|_| {
            let refused = ArrivalKind::Refused;
            span.arrived_as(refused, None);
            self.sender.count_arrival(&at.tool.name, refused, began);
        })?;
        let call = PreparedCall {
            began,
            keep_read: patience.keep_read,
            ..prepared
        };
        let (key, lookups) = (call.shown_key.clone(), call.lookups.clone());

        // A remembered call answers at once. Otherwise the request waits for the run of its key, or begins one.
        let (progress, is_first) = match self.replayed_at_once(&call) {
            Some(progress) => (progress, false),
            None => {
                let (progress, is_first) = self.join_or_begin(call);
                drop(let_in);
                // Boxed, so that the task of a replay need not have the size of a wait.
                let waited = Box::pin(self.wait(caller, &at, progress, patience, is_first));
                (waited.await, is_first)
            }
        };

        // The request is counted and answered.
        let arrival = arrival_of(&progress, is_first);
        let is_ours = arrival == ArrivalKind::First;
        let record = progress.record().map(Arc::as_ref);
        span.arrived_as(arrival, record);
        // A run counts its first arrival by itself, because that caller may have gone.
        let now = self.base.now();
        if !is_ours {
            self.count_duplicate(caller, &at, arrival, record, now, began);
        }
        crash::point("before_reply");
        let retry_after = match record {
            Some(record) => at.retry_after_of(record, now),
            None => at.health.retry_after(Duration::ZERO),
        };
        let becomes_task = patience.accept_after.is_some();
        let may_ask = record.filter(|_| becomes_task).is_some_and(|record| {
            let intent = &record.intent;
            caller.may_ask_for(&intent.tenant, &intent.tool, &intent.made_by, at.hides())
        });
        let patience = Patience {
            accept_after: patience.accept_after.filter(|_| may_ask),
            ..patience
        };
        let answer = tell(&progress, patience, !is_ours, retry_after, now);
        let answer = answer.and_then(|answer| unless_it_asks(answer, &at, can_be_asked));
        answer
            .map(|answer| answer.for_request(&lookups, key.as_deref()))
            .map_err(|kind| Error {
                replayed: kind.is_outcome().then_some(!is_ours),
                kind: kind.for_caller(caller, &at.tool.name),
                call_id: record.map(|record| record.intent.call_id),
                key,
            })
    }

    /// Joins the run of the same call in this process, or begins one. Returns whether it was begun.
    pub(super) fn join_or_begin(
        self: &Arc<Self>,
        call: PreparedCall,
    ) -> (watch::Receiver<Progress>, bool) {
        let intent = &call.intent;
        let lookup = match call.at.tool.effect {
            Effect::Write => intent.lookup,
            Effect::Read if call.keep_read.is_some() => intent.lookup,
            // The answer to an earlier read may be older than this request.
            Effect::Read => Lookup::of_read(&intent.tenant, &intent.tool, random()),
        };
        let run_key = RunKey {
            lookup,
            fingerprint: intent.fingerprint,
            preconditions: call.preconditions,
            saga_id: intent.saga_id.clone(),
            new_keys: call.new_keys.clone(),
            reader: call.keep_read.map(|_| {
                let (user, session) = (&intent.user_id, &intent.session_id);
                [&*intent.made_by, user, session].map(str::to_owned)
            }),
        };
        let (progress, run) = self.runs.join_or_begin(run_key, call.keep_read);
        let is_first = run.is_some();
        if let Some(run) = run {
            let intent = call.intent.clone();
            // Boxed, because a task is moved when it begins and when it ends, and this one is large.
            let work = Box::pin(with_call_context(intent, self.clone().drive(call, run)));
            drop(self.base.tasks.spawn(work));
        }
        (progress, is_first)
    }

    fn count_duplicate(
        &self,
        caller: &Caller,
        at: &ToolAt,
        arrival: ArrivalKind,
        record: Option<&Record>,
        now: Timestamp,
        began: Instant,
    ) {
        self.sender.count_arrival(&at.tool.name, arrival, began);
        let Some(record) = record else { return };
        let duplicate = Duplicate {
            at: now,
            by: caller.name.clone(),
            kind: arrival.as_str().to_owned(),
        };
        self.duplicates.note(record.intent.call_id, duplicate);
        let gap_s = elapsed_ms(record.intent.created_at, now) as f64 / 1000.0;
        self.base.metrics.duplicate_gap.observe(gap_s);
    }

    /// The life of a call in this process: claim the key, join the saga, run, tell all waiting requests.
    async fn drive(self: Arc<Self>, mut call: PreparedCall, run: RunHandle) {
        call.trace.begin_call(&call.intent);
        let mut turn = self.claim(&mut call, &run).await;
        let (deadline, reservation) = (turn.deadline, &mut turn.reservation);
        match turn.claimed {
            Ok(ClaimOutcome::Ours(record, permit)) => {
                crash::point("saga_claimed");
                // The saga is asked after the claim: an abort in between finds the call.
                if let Err(kind) = self.sagas.join_saga(&record.intent).await {
                    return self.turn_away(&call, record, kind, run).await;
                }
                crash::point("saga_joined");
                let begun = Begun {
                    record,
                    permit,
                    deadline,
                };
                // Boxed, so that the task of a replay need not have the size of a run.
                let silent = Box::pin(self.run(&call, begun, reservation, run)).await;
                drop(turn.permit);
                if let Some((record, exchange)) = silent {
                    self.listen_late(&call, record, exchange, deadline).await;
                }
            }
            Ok(ClaimOutcome::Asked(record)) => {
                drop((turn.permit, turn.reservation));
                self.wait_for_approval(&call, record, run).await;
            }
            Ok(ClaimOutcome::Theirs(record)) => {
                drop((turn.permit, turn.reservation));
                self.watch(record, run, Owner::of(&call.intent)).await;
            }
            Ok(ClaimOutcome::Settled(mut record)) => {
                move_in(&mut record, reservation);
                run.end(Ok(Arc::new(record)), false);
            }
            // The queue turns each denial into a wait or a refusal.
            Ok(ClaimOutcome::Denied(..)) => run.end(Err(ErrorKind::StoreUnavailable), false),
            Err(ErrorKind::StoreUnavailable)
                if call.at.tool.effect == Effect::Read
                    && turn.permit.is_some()
                    && !self.pauses.is_paused(&call.at.tool.name) =>
            {
                self.pass_through(&call, reservation, run, deadline).await;
            }
            Err(kind) => run.end(Err(kind), false),
        }
    }

    /// Claims the key when the session lets it, and drops the arguments as they came.
    async fn claim(&self, call: &mut PreparedCall, run: &RunHandle) -> Turn {
        let span = call.trace.claim(&call.intent);
        let is_exclusive = call.at.tool.is_exclusive();
        let standing = is_exclusive.then(|| self.lines.stand(&call.intent, &mut call.longest_line));
        let turn = self.claim_in_session_order(call, run).await;
        drop(standing);
        let (outcome, found) = match &turn.claimed {
            Ok(ClaimOutcome::Ours(record, _)) => ("claimed", Some(record)),
            Ok(ClaimOutcome::Asked(record)) => ("asked", Some(record)),
            Ok(ClaimOutcome::Theirs(record)) => ("running", Some(record)),
            Ok(ClaimOutcome::Settled(record)) => ("settled", Some(record)),
            Ok(ClaimOutcome::Denied(..)) | Err(_) => ("refused", None),
        };
        call.trace.claimed(span, outcome, found);
        call.raw = Bytes::new();
        turn
    }

    /// Runs a claimed call and tells all waiting requests. Returns its exchange if an answer may still come.
    async fn run(
        &self,
        call: &PreparedCall,
        begun: Begun,
        reservation: &mut Option<Charge>,
        run: RunHandle,
    ) -> Option<(Record, Exchange)> {
        crash::point("after_claim");
        run.report(Progress::Running {
            record: Arc::new(begun.record.clone()),
            ours: true,
        });
        // Only a first attempt earns a retry: a recheck is itself a repetition.
        call.at.health.earn_retry();
        let attempts = self
            .sender
            .run_attempts(call, begun, Some(&run), Keep::Stored);
        let (mut record, silent) = attempts.await;
        self.sender.count_end(call, &record);
        move_in(&mut record, reservation);
        if record.state == State::Running {
            // Its outcome could not be written: the run ends without a result.
            return None;
        }
        run.end(Ok(Arc::new(record.clone())), true);
        let is_unknown = matches!(record.state, State::Unknown(_));
        silent
            .filter(|_| is_unknown)
            .map(|exchange| (record, exchange))
    }

    /// Waits for a late answer, which still settles an unknown call.
    pub(super) async fn listen_late(
        &self,
        call: &PreparedCall,
        record: Record,
        mut exchange: Exchange,
        deadline: Deadline,
    ) {
        let Some(_permit) = self.claims.listening.take(Owner::of(&call.intent)) else {
            return;
        };
        let until = deadline.late_by(call.at.tool.lease_margin);
        // A gateway that stops waits for no answer, and settles the call by one that has come.
        let observed = tokio::select! {
            biased;
            observed = exchange.until(until, until) => observed,
            () = self.base.abandoned.cancelled() => None,
        };
        let Some(evidence) = observed else { return };
        let event = Event::ended(&record, self.sender.or_task(call, &record, evidence));
        let record = self.sender.end_attempt_alone(call, record, &event).await;
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = call.at.tool.name,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            "a late answer",
        );
    }

    /// Follows a call of another process, until it is settled or no request here waits.
    pub(super) async fn watch(&self, mut record: Record, run: RunHandle, owner: Owner) {
        // The newest version that was seen here.
        let (call_id, mut version) = (record.intent.call_id, record.version);
        let Some(_permit) = self.waiting.take(owner) else {
            return run.end(Ok(Arc::new(record)), false);
        };
        // A notification only says when to look.
        let listener = self.base.store.listen(call_id);
        // A request that joins comes after this record was read, and must be told of a decision in between.
        if record.state.waits_for_approval() {
            run.close();
            match self.base.store.load(call_id).await {
                Ok(Some(found)) if found.version >= version => record = found,
                _ => return run.end(Err(ErrorKind::StoreUnavailable), false),
            }
        }
        let is_open = record.state == State::Running || record.state.waits_for_approval();
        if is_open {
            run.report(Progress::Running {
                record: Arc::new(record.clone()),
                ours: false,
            });
        }
        let (mut pause, longest_pause) = self.base.limits.timings.poll;
        // The call may have ended before this listened to it.
        let mut looks_at_once = listener.is_some() || !is_open;
        let mut has_failed = false;
        while !run.leave_if_alone() {
            if !std::mem::take(&mut looks_at_once) {
                tokio::select! {
                    biased;
                    () = sleep(pause) => {}
                    () = notified(listener.as_ref()) => {}
                    // The requests can ask other gateways for the outcome.
                    () = self.base.draining.cancelled() => return run.end(Ok(Arc::new(record)), false),
                }
                pause = (pause * 2).min(longest_pause);
            }
            let Ok(Some(found)) = self.base.store.load(call_id).await else {
                return run.end(Err(ErrorKind::StoreUnavailable), false);
            };
            match found.state {
                State::Running | State::Proposed | State::Approved => {
                    version = version.max(found.version);
                    if found.state.waits_for_approval() {
                        run.close();
                    }
                    if found.state != record.state {
                        let record = Arc::new(found.clone());
                        run.report(Progress::Running {
                            record,
                            ours: false,
                        });
                    }
                    record = found;
                }
                // The store has gone back: it knows less of the call than was seen here.
                _ if found.version < version => {
                    return run.end(Err(ErrorKind::StoreUnavailable), false);
                }
                State::Failed(_) if self.is_doubtful(&found).await => {
                    return run.end(Err(ErrorKind::StoreUnavailable), false);
                }
                // The call may run again since this was read. Only requests that came before may be told that it failed.
                State::Failed(_) if !has_failed => {
                    run.close();
                    (has_failed, looks_at_once) = (true, true);
                }
                _ => return run.end(self.memory.with_reservation(found).map(Arc::new), false),
            }
        }
    }

    /// Whether a call may have run again since it failed, because the store has lost data: that run may have had the effect.
    pub(super) async fn is_doubtful(&self, found: &Record) -> bool {
        matches!(found.state, State::Failed(_)) && self.base.must_know_all_data().await.is_err()
    }

    /// Ends a claimed call that its saga does not let be sent.
    pub(super) async fn turn_away(
        &self,
        call: &PreparedCall,
        record: Record,
        kind: ErrorKind,
        run: RunHandle,
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
        let record = self.sender.end_attempt_alone(call, record, &event).await;
        self.sender.count_end(call, &record);
        let is_closed = matches!(&record.state, State::Failed(failure) if failure.kind == FailureKind::SagaClosed);
        let answer = if is_closed {
            Ok(Arc::new(record))
        } else {
            Err(kind)
        };
        run.end(answer, true);
    }
}
