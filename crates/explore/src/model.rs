//! The rules for the model: the real ones, except for the one that a test breaks.

use std::sync::Arc;

use super::gateway::evidence::is_gone;
use super::names::ARGUMENTS;
use super::scene::{Break, GIVE_UP, Group, LEASE, Scene};
use super::world::{Name, World, at, lookup, name_of, tick_of, undone_by};
use oncegate_rules::call::{self, Arrival, Change, Event, Illegal, Next, Probed};
use oncegate_rules::key::{Lookup, Source};
use oncegate_rules::key_scheme::fingerprints::Fingerprints;
use oncegate_rules::record::{
    AttemptId, CallId, ERASED, Failure, FailureKind, InstanceId, Intent, Record, State,
};
use oncegate_rules::session::Preconditions;
use oncegate_rules::time::after;
use oncegate_rules::tool::{OnUnknown, Tool};
use oncegate_rules::unknown::{Finding, Resolution};

/// How a step breaks the promise.
pub(super) type Broken = String;

pub(super) struct Model {
    pub(super) scene: Scene,
    pub(super) broken: Break,
    /// The lines of the story so far; `None`: no story is told.
    pub(super) tale: Option<Vec<String>>,
}

/// The name of a gateway in stories.
pub(super) fn title(gateway: u8) -> &'static str {
    if gateway == 0 {
        "gateway A"
    } else {
        "gateway B"
    }
}

/// The name of a call in stories.
pub(super) fn label(name: Name) -> String {
    match undone_by(name) {
        Some(undone) => format!("the undoing of call {}", super::world::number(undone)),
        None if name == ARGUMENTS => "the intent of all keys".into(),
        None => format!("key {}", name + 1),
    }
}

impl Model {
    pub(super) fn new(scene: Scene, broken: Break) -> Self {
        Self {
            scene,
            broken,
            tale: None,
        }
    }

    /// Adds a line to the story.
    pub(super) fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(tale) = &mut self.tale {
            tale.push(line());
        }
    }

    pub(super) fn tool_of(&self, name: Name) -> &Tool {
        if undone_by(name).is_some() {
            &self.scene.cancel
        } else {
            &self.scene.tool
        }
    }

    pub(super) fn is_broken(&self, broken: Break) -> bool {
        self.broken == broken
    }

    /// Decides what an event does to a call, by the real rules unless one is broken.
    pub(super) fn decide(
        &self,
        record: Option<&Record>,
        name: Name,
        event: &Event,
        now: i64,
    ) -> Result<Next, Illegal> {
        let tool = self.tool_of(name);
        let now = at(now);
        let misread = record.and_then(|record| self.misread(record, event));
        let record = misread.as_ref().or(record);
        let lax;
        let tool = match event {
            Event::CheckDue { .. } if self.sends_again(name) => {
                lax = Tool {
                    unknown: OnUnknown::Retry,
                    ..tool.clone()
                };
                &lax
            }
            _ => tool,
        };
        let mut next = call::next(tool, record, event, now)
            .or_else(|illegal| self.decide_anyhow(tool, record, event, illegal, now))?;
        if let Some(change) = &mut next.change {
            self.alter(event, record, change, now);
        }
        Ok(next)
    }

    /// Whether a broken rule sends this call again while its outcome is unknown.
    pub(super) fn sends_again(&self, name: Name) -> bool {
        match self.broken {
            Break::SendsAgainWithoutDedup => true,
            Break::SendsUndoingAgain => undone_by(name).is_some(),
            _ => false,
        }
    }

    /// Decides by a broken rule an event that the real rule refuses.
    fn decide_anyhow(
        &self,
        tool: &Tool,
        record: Option<&Record>,
        event: &Event,
        illegal: Illegal,
        now: jiff::Timestamp,
    ) -> Result<Next, Illegal> {
        if let (Break::ErasesUnknown, Event::Erased { .. }, Some(record)) =
            (self.broken, event, record)
            && matches!(record.state, State::Unknown(_))
        {
            let mut ended = record.clone();
            ended.state = State::Failed(Failure::new(FailureKind::NotExecuted, "broken"));
            ended.check = None;
            ended.expires_at = Some(after(now, tool.retention));
            ended.retain_until = ended.expires_at;
            return call::next(tool, Some(&ended), event, now);
        }
        let waits = matches!(
            (self.broken, event),
            (
                Break::OperatorsNeedNotWait,
                Event::Resolved {
                    resolution: Resolution::Failed,
                    ..
                },
            ) | (Break::UndoesWithoutWaiting, Event::ToCompensate { .. })
        );
        let Some(record) = record else {
            return Err(illegal);
        };
        if !waits || illegal != Illegal::MayStillRun {
            return self.decide_approval_anyhow(record, event, illegal, now);
        }
        let mut over = record.clone();
        over.attempt.lease_until = now;
        if over.state == State::Running {
            over.state = State::Unknown("it runs".into());
        }
        call::next(tool, Some(&over), event, now)
    }

    /// Changes a decision of the real rules as the broken rule would.
    fn alter(
        &self,
        event: &Event,
        before: Option<&Record>,
        change: &mut Change,
        now: jiff::Timestamp,
    ) {
        let record = &mut change.record;
        let never_ran = |record: &mut Record| {
            record.state = State::Failed(Failure::new(FailureKind::NotExecuted, "broken"));
            record.check = None;
            record.expires_at = Some(now);
        };
        match (self.broken, event) {
            (Break::LeaseFreesKey, Event::LeaseOver { .. } | Event::OwnerLost { .. })
            | (
                Break::BelievesEarlyNotFound,
                Event::Probed(Probed {
                    finding: Finding::NotFound,
                    ..
                }),
            ) => never_ran(record),
            (Break::TakesGoneForNotExecuted, _) if is_gone(event) => never_ran(record),
            (Break::CountsGoneFromLease, _) if is_gone(event) => {
                let lease = before.map(|before| before.attempt.lease_until);
                record.attempt.lease_until = lease.unwrap_or(record.attempt.lease_until);
            }
            (Break::ErasureFreesKey, Event::Erased { .. }) => record.expires_at = Some(now),
            (Break::ErasureLeavesResult, Event::Erased { .. }) => {
                record.state = before.map_or(State::Running, |before| before.state.clone());
            }
            (Break::SendsWhatWasErased, Event::Arrived(_))
                if before.is_some_and(Record::is_erased) =>
            {
                Arc::make_mut(&mut record.intent).args = ERASED.into();
            }
            (Break::FreesLockAtOnce, _) if change.release.lock_from.is_some() => {
                change.release.lock_from = Some(now)
            }
            _ => {}
        }
    }

    /// A request for a call of this name.
    pub(super) fn arrival(
        &self,
        world: &World,
        name: Name,
        call_id: CallId,
        attempt: AttemptId,
        owner: InstanceId,
    ) -> Event {
        let arrival = Arrival {
            intent: Arc::new(self.intent(world, name, call_id)),
            fingerprints: Arc::new(self.fingerprints(name)),
            preconditions: Preconditions::default(),
            attempt,
            owner,
        };
        match self.scene.ask().filter(|_| undone_by(name).is_none()) {
            Some(ask) => Event::Asked { arrival, ask },
            None => Event::Arrived(arrival),
        }
    }

    /// The names of a call beside its key.
    fn further_lookups(&self, name: Name) -> Vec<Lookup> {
        let is_alike = self.scene.are_alike && undone_by(name).is_none();
        is_alike.then(|| lookup(ARGUMENTS)).into_iter().collect()
    }

    /// What a request is compared by: the names that are made of its arguments.
    pub(super) fn fingerprints(&self, name: Name) -> Fingerprints {
        Fingerprints::default().with_lookups_of_arguments(self.further_lookups(name))
    }

    fn intent(&self, world: &World, name: Name, call_id: CallId) -> Intent {
        let undoes = undone_by(name).is_some();
        let (saga, session) = match self.scene.group {
            // What undoes a call alone is of the saga of that.
            Group::None if undoes => ("alone", ""),
            Group::None => ("", ""),
            Group::Saga => ("trip", ""),
            Group::Session => ("", "talk"),
        };
        // Only the order of a saga's calls depends on it.
        let created_at = if self.scene.group == Group::Saga {
            at(world.now)
        } else {
            at(0)
        };
        Intent {
            call_id,
            tenant: String::new(),
            tool: if undoes { "cancel" } else { "act" }.into(),
            lookup: lookup(name),
            lookups: self.further_lookups(name),
            key_scheme: oncegate_rules::key_scheme::KeySchemeId::default(),
            key: String::new(),
            key_source: if undoes {
                Source::Compensation
            } else {
                self.scene.source
            },
            fingerprint: [1; 32],
            user_id: String::new(),
            session_id: session.into(),
            saga_id: saga.into(),
            trace_id: String::new(),
            made_by: String::new(),
            client_ids: String::new(),
            similar: None,
            args: "{}".into(),
            created_at,
        }
    }

    /// For each time of a record: how many ticks later it can still make a difference.
    pub(super) fn longest_past(&self) -> Past {
        Past {
            run: 1,
            lease: self.scene.late.max(1),
            since: GIVE_UP,
            expiry: if self.scene.left.losses > 0 {
                LEASE + self.scene.window
            } else {
                0
            },
        }
    }

    /// Whether a call is at its end for now.
    pub(super) fn is_settled(state: &State) -> bool {
        matches!(
            state,
            State::Succeeded(_) | State::Failed(_) | State::Compensated(_)
        )
    }

    /// The tick from which on a run that begins now may send no more.
    pub(super) fn sends_until(world: &World) -> i64 {
        world.now + super::scene::DEADLINE
    }

    /// The first tick after a call's lease.
    pub(super) fn lease_of(record: &Record) -> i64 {
        tick_of(record.attempt.lease_until)
    }

    /// A call in stories.
    pub(super) fn call_label(record: &Record) -> String {
        let number = super::world::number(record.intent.call_id);
        format!("call {number} ({})", label(name_of(record)))
    }
}

/// A number of ticks for each time of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    pub(super) run: i64,
    pub(super) lease: i64,
    pub(super) since: i64,
    pub(super) expiry: i64,
}
