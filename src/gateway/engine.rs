//! The way of a call: claim the key, wait for the session, run, write down what came of it, tell everyone.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::arrivals::Duplicates;
use super::base::Base;
use super::call::Asked;
use super::error::ErrorKind;
use super::flight::{Flights, Phase, Pilot};
use super::health::Permit;
use super::hold::{Claimer, Hold};
use super::large::LargeRequests;
use super::pause::Pauses;
use super::places::{Lines, Owner, Places};
use super::recipes::Recipes;
use super::recover::LostCalls;
use super::room::{ResultMemory, move_in};
use super::run::{Begun, Keep, Runner};
use super::sagas::SagaRegistry;
use super::secret::KnownSecrets;
use super::session::{Turn, heard};
use super::transition;
use crate::budget::Charge;
use crate::core::call::{Event, Next};
use crate::core::record::{FailureKind, Record, State};
use crate::core::tool::Effect;
use crate::crash;
use crate::downstream::{Deadline, Exchange};

/// Runs calls: the only service that lets a caller reach a tool.
pub struct Engine {
    pub(super) base: Arc<Base>,
    pub(super) recipes: Arc<Recipes>,
    pub(super) secrets: Arc<KnownSecrets>,
    pub(super) pauses: Arc<Pauses>,
    pub(super) sagas: Arc<SagaRegistry>,
    pub(super) lost: Arc<LostCalls>,
    pub(super) claims: Arc<Claimer>,
    pub(super) runner: Arc<Runner>,
    pub(super) duplicates: Arc<Duplicates>,
    /// The runs that are under way here.
    pub(super) runs: Arc<Flights>,
    pub memory: ResultMemory,
    pub large: LargeRequests,
    pub(super) running: Places,
    pub(super) waiting: Places,
    pub(super) lines: Lines,
}

impl Engine {
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
        let (outcome, found) = match &held {
            Ok(Hold::Ours(record, _)) => ("claimed", Some(record)),
            Ok(Hold::Theirs(record)) => ("running", Some(record)),
            Ok(Hold::Settled(record)) => ("settled", Some(record)),
            Ok(Hold::Denied(..)) | Err(_) => ("refused", None),
        };
        asked.trace.claimed(claim, outcome, found);
        asked.raw = bytes::Bytes::new();
        match held {
            Ok(Hold::Ours(record, permit)) => {
                // Claimed first and asked after: whoever closes the saga in between finds the call.
                crash::point("saga_claimed");
                if let Err(kind) = self.sagas.join_saga(&record.intent).await {
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
                    && let Some(_place) = self.claims.listening.take(Owner::of(&asked.intent))
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
                    && !self.pauses.is_paused(&asked.at.tool.name) =>
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
            by: self.base.instance,
            attempt,
            kind: failure,
            why,
        };
        let (record, _) = self
            .runner
            .settle(asked, record, &event, None, Keep::Stored)
            .await;
        self.runner.ended(asked, &record, began);
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
        let next = transition::ask(tool, None, &self.claims.arrival(asked), self.base.now());
        let Ok(Next {
            change: Some(change),
            ..
        }) = next
        else {
            return pilot.end(Err(ErrorKind::StoreUnavailable), false);
        };
        self.base
            .metrics
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
            .runner
            .run_attempts(asked, begun, Some(&pilot), Keep::Nothing)
            .await;
        self.runner.ended(asked, &record, began);
        move_in(&mut record, room);
        pilot.end(Ok(Arc::new(record)), true);
    }

    /// Follows a call that somebody else runs, until it is settled or nobody here asks any more. What is
    /// heard of its end only says when to look.
    async fn watch(&self, mut record: Record, pilot: Pilot, asks: Owner) {
        let (call_id, version) = (record.intent.call_id, record.version);
        let Some(_place) = self.waiting.take(asks) else {
            return pilot.end(Ok(Arc::new(record)), false);
        };
        let listener = self.base.store.listen(call_id);
        pilot.say(Phase::Running {
            record: Arc::new(record.clone()),
            ours: false,
        });
        let (mut pause, longest_pause) = self.base.limits.pace.poll;
        let mut is_first = listener.is_some();
        while !pilot.leave_if_alone() {
            // It may have ended before anybody listened.
            if !std::mem::take(&mut is_first) {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = heard(listener.as_ref()) => {}
                    // Others can be asked how it ends.
                    () = self.base.draining.cancelled() => return pilot.end(Ok(Arc::new(record)), false),
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
                    return pilot.end(Err(ErrorKind::StoreUnavailable), false);
                }
                Ok(Some(record)) => {
                    return pilot.end(self.memory.with_room(record).map(Arc::new), false);
                }
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
            .runner
            .run_attempts(asked, begun, Some(&pilot), Keep::Stored)
            .await;
        self.runner.ended(asked, &record, began);
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
            () = self.base.abandoned.cancelled() => None,
        };
        let Some(evidence) = observed else { return };
        let event = Event::Ended {
            attempt: record.attempt.id,
            fencing: record.fencing,
            evidence,
            retry: None,
        };
        let (record, _) = self
            .runner
            .settle(asked, record, &event, None, Keep::Stored)
            .await;
        tracing::info!(
            call_id = %record.intent.call_id,
            tool = asked.at.tool.name,
            trace_id = record.intent.trace_id,
            state = record.state.as_str(),
            "a late answer",
        );
    }
}
