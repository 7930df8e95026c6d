//! Undoes the calls of a saga, one by one.
//!
//! What is done next is decided by `core::saga`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::marks::Marked;
use super::member::{Member, Unlisted};
use super::registry::SagaRegistry;
use crate::core::actor::{Actor, By};
use crate::core::call::{self, Illegal, UndoEnd};
use crate::core::compensation::Policy;
use crate::core::record::{Record, State};
use crate::core::saga::plan::{Step, plan};
use crate::core::saga::{self, Event, Saga, Trouble};
use crate::core::tool::Tool;
use crate::core::undo;
use crate::core::work::{Blocked, Blocker};
use crate::crash;
use crate::gateway::base::Base;
use crate::gateway::calls::{Engine, InternalCall};
use crate::gateway::ids::jitter;
use crate::gateway::transition;

/// The result of one call's turn to be undone.
enum Undone {
    /// It is undone: the saga and the call as they are now.
    Further(Box<Saga>, Box<Record>),
    /// It is blocked: the saga, if there is a further step at once.
    Blocked(Option<Box<Saga>>),
}

/// Undoes the calls of sagas.
pub(in crate::gateway) struct Undoer {
    pub(in crate::gateway) base: Arc<Base>,
    pub(in crate::gateway) registry: Arc<SagaRegistry>,
    pub(in crate::gateway) engine: Arc<Engine>,
}

impl Undoer {
    /// Carries out the next step for a saga that is being undone.
    ///
    /// Returns the saga if there is a further step at once.
    pub(super) async fn undo_next(&self, saga: &Saga) -> Option<Saga> {
        let mut calls = match self.registry.calls_of(saga).await {
            Ok(calls) => calls,
            Err(Unlisted::Store) => return self.not_listed(saga).await,
            Err(Unlisted::Broken(why)) => {
                return self.block(saga, None, Blocked::for_good(why)).await;
            }
        };
        if saga.only.is_some() && calls.is_empty() {
            let why = Blocked::for_good("the call is not kept any more");
            return self.block(saga, None, why).await;
        }
        let tools = self.policies_of(&calls);
        let (mut saga, mut is_fresh) = (saga.clone(), true);
        loop {
            let members: Vec<(&Record, &Tool)> = calls
                .iter()
                .map(Member::record)
                .filter_map(|record| Some((record, tools.get(&record.intent.tool)?)))
                .collect();
            let record = match plan(&saga, &members, self.base.now()) {
                // All are marked in one go, and undone in one go: what is at rest does not move by itself.
                Step::Mark(record) | Step::Undo(record) => record,
                // They are listed once more before anything else is taken from that.
                _ if !is_fresh => return Some(saga),
                step => return self.do_step(&saga, step).await,
            };
            // What is written is never what was only looked at.
            let record = match self.base.store.load(record.intent.call_id).await {
                Ok(Some(whole)) if whole.version == record.version => whole,
                // Another writer was faster: they are looked at again.
                Ok(_) => return Some(saga),
                Err(_) => return None,
            };
            let changed = if matches!(record.state, State::Compensating(_)) {
                is_fresh = false;
                match self.undo(&saga, &record).await {
                    Undone::Further(further, changed) => {
                        saga = *further;
                        *changed
                    }
                    Undone::Blocked(saga) => return saga.map(|saga| *saga),
                }
            } else {
                match self.mark(&saga, &record).await {
                    Ok(marked) => marked,
                    Err(saga) => return saga.map(|saga| *saga),
                }
            };
            let call_id = changed.intent.call_id;
            for member in calls
                .iter_mut()
                .filter(|member| member.record().intent.call_id == call_id)
            {
                *member = Member::of(changed.clone());
            }
            // What is left waits for the next gateway.
            if self.base.draining.is_cancelled() {
                return Some(saga);
            }
        }
    }

    fn by(&self) -> String {
        Actor::Gateway(self.base.instance).to_string()
    }

    /// Handles a saga whose calls could not be listed.
    ///
    /// It waits for a store that is not ready; if a ready one fails again and again, it needs a
    /// person.
    async fn not_listed(&self, saga: &Saga) -> Option<Saga> {
        if !self.base.store.readiness().await.reasons.is_empty() {
            return None;
        }
        let why = Blocked::failed("its calls could not be listed");
        self.block(saga, None, why).await
    }

    /// The rules of each call's tool.
    fn policies_of(&self, calls: &[Member]) -> HashMap<String, Tool> {
        let mut tools = HashMap::new();
        for record in calls.iter().map(Member::record) {
            let of = tools.entry(record.intent.tool.clone());
            of.or_insert_with(|| self.base.policy_of(record));
        }
        tools
    }

    /// Marks a call with its compensation. If it cannot: the saga, if there is a further step at
    /// once.
    async fn mark(&self, saga: &Saga, record: &Record) -> Result<Record, Option<Box<Saga>>> {
        match self
            .registry
            .to_compensate(record, By::new(self.by(), &saga.reason))
            .await
        {
            Marked::Done(marked) => {
                crash::point("saga_marked");
                Ok(*marked)
            }
            // Another writer was faster: they are looked at again.
            Marked::Changed => Err(Some(Box::new(saga.clone()))),
            Marked::Unwritten => Err(None),
            Marked::Illegal(illegal) => {
                let why = match illegal {
                    Illegal::MayStillRun => Blocked::busy("its request may still reach the tool"),
                    _ => Blocked::for_good(illegal.to_string()),
                };
                Err(self.block(saga, Some(record), why).await.map(Box::new))
            }
        }
    }

    /// Undoes one call, or writes down the blocker.
    async fn undo(&self, saga: &Saga, record: &Record) -> Undone {
        let (saga, tried) = match self.look_at_compensation(record).await {
            Some(tried) => (saga.clone(), tried),
            None => {
                let until = self
                    .base
                    .busy_until(self.base.now(), self.time_of_compensation(record));
                let prolonged = self
                    .registry
                    .move_on(saga, &Event::Prolonged { until }, self.base.now())
                    .await;
                let Some(saga) = prolonged else {
                    return Undone::Blocked(None);
                };
                let tried = self.try_to_undo(&saga, record).await;
                (saga, tried)
            }
        };
        if let Err(why) = tried {
            return Undone::Blocked(self.block(&saga, Some(record), why).await.map(Box::new));
        }
        crash::point("saga_undone");
        let event = call::Event::UndoEnded {
            by: self.base.instance,
            end: UndoEnd::Undone,
        };
        let changed = transition::change(&self.base, record, &event, self.base.now()).await;
        if changed.is_some() {
            self.registry.count_undo(record, "compensated");
        }
        crash::point("saga_noted");
        let Some(saga) = self
            .registry
            .move_on(&saga, &Event::Advanced, self.base.now())
            .await
        else {
            return Undone::Blocked(None);
        };
        let saga = Box::new(saga);
        match changed {
            Some(changed) => Undone::Further(saga, Box::new(changed)),
            None => Undone::Blocked(Some(saga)),
        }
    }

    async fn do_step(&self, saga: &Saga, step: Step<'_>) -> Option<Saga> {
        match step {
            Step::Wait(record, blocker, why) => {
                let why = Blocked::by(blocker, why);
                self.block(saga, Some(record), why).await
            }
            Step::Rest => {
                self.registry
                    .move_on(saga, &Event::Rested, self.base.now())
                    .await
            }
            // The caller has done them.
            Step::Mark(_) | Step::Undo(_) => Some(saga.clone()),
            Step::Stuck(record) => {
                let why = Blocked::for_good("it could not be undone");
                self.block(saga, Some(record), why).await
            }
            Step::Done => {
                let undone = self
                    .registry
                    .move_on(saga, &Event::Undone { by: self.by() }, self.base.now())
                    .await?;
                crash::point("saga_compensated");
                Some(undone)
            }
        }
    }

    /// How long a compensation may take.
    fn time_of_compensation(&self, record: &Record) -> Duration {
        let compensation = record.compensation();
        let at = compensation.and_then(|compensation| self.base.tool_at(&compensation.tool));
        at.map_or(Duration::ZERO, |at| at.tool.longest())
    }

    /// Writes down a saga's blocker. Returns the saga if an operator is to be told of it.
    ///
    /// A call that is given up is marked before its saga is, so that no saga goes past it.
    async fn block(&self, saga: &Saga, record: Option<&Record>, blocked: Blocked) -> Option<Saga> {
        let Blocked { blocker, why } = blocked;
        let trouble = Trouble {
            call_id: record.map(|record| record.intent.call_id),
            why: why.clone(),
        };
        let event = Event::Blocked {
            by: self.by(),
            trouble,
            blocker,
            jitter: jitter(),
        };
        let ahead = saga::next(saga, &event, &self.base.limits.sagas, self.base.now()).ok()?;
        let gives_up = ahead.state() == saga::State::Stuck && !ahead.phase.is_stuck_for_now();
        match record {
            Some(record) if gives_up && matches!(record.state, State::Compensating(_)) => {
                let stuck = call::Event::UndoEnded {
                    by: self.base.instance,
                    end: UndoEnd::Stuck(why),
                };
                self.registry
                    .apply(record.intent.call_id, &stuck)
                    .await
                    .ok()??
                    .ok()?;
                self.registry.count_undo(record, "stuck");
                crash::point("saga_stuck");
            }
            Some(record) if blocker == Blocker::Failed => {
                self.registry.count_undo(record, "failed")
            }
            _ => {}
        }
        self.registry.put_saga(&ahead).await.ok()?.ok()?;
        ahead.telling.is_some().then_some(ahead)
    }

    /// The end of a call's compensation; `None`: it is still to be sent.
    async fn look_at_compensation(&self, record: &Record) -> Option<Result<(), Blocked>> {
        let Some(compensation) = record.compensation() else {
            return Some(Err(Blocked::for_good("its tool declares no compensation")));
        };
        match self.base.store.load(compensation.call_id).await {
            Ok(None) => None,
            Ok(Some(there)) if matches!(there.state, State::Failed(_)) => None,
            Ok(Some(there)) => Some(undo::outcome_of(&there)),
            Err(error) => Some(Err(Blocked::busy(error.to_string()))),
        }
    }

    /// Sends a call's compensation.
    async fn try_to_undo(&self, saga: &Saga, record: &Record) -> Result<(), Blocked> {
        let policy = self.base.policy_of(record).compensation;
        let (by, template) = match (record.compensation(), &policy) {
            (Some(by), Policy::By(template)) if template.tool == by.tool => (by, template),
            // Another gateway may have the configuration with which that was decided.
            _ => {
                let why = "another compensation was decided on than its tool has here";
                return Err(Blocked::by(Blocker::Unknown, why));
            }
        };
        let intent = &record.intent;
        let own = InternalCall {
            tenant: intent.tenant.clone(),
            tool: by.tool.clone(),
            key: undo::key_of(intent.call_id),
            args: template.args(record).map_err(Blocked::for_good)?,
            call_id: Some(by.call_id),
            user_id: intent.user_id.clone(),
            session_id: intent.session_id.clone(),
            saga_id: saga.id.id.clone(),
            trace_id: intent.trace_id.clone(),
        };
        match self.engine.run_internal(own).await {
            Ok(record) => undo::outcome_of(&record),
            Err(kind) => Err(Blocked::by(kind.blocker(), kind.to_string())),
        }
    }
}
