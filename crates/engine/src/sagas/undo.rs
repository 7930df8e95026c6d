//! Undoes the calls of a saga, one by one.
//!
//! `rules::saga` decides the next step.

use std::collections::HashMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::members::{Member, Unlisted};
use super::worker::SagaWorker;
use crate::base::ids::jitter;
use crate::calls::InternalCall;
use crate::transition::{self, Moved};
use oncegate_hooks::crash;
use oncegate_rules::actor::By;
use oncegate_rules::call::{self, Illegal, UndoEnd};
use oncegate_rules::compensation::Policy;
use oncegate_rules::record::{Record, State};
use oncegate_rules::saga::plan::{Step, plan};
use oncegate_rules::saga::{self, Event, Saga, Trouble};
use oncegate_rules::tool::Tool;
use oncegate_rules::undo;
use oncegate_rules::work::{Blocked, Blocker};

impl SagaWorker {
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
            let why = Blocked::for_good("the call is not stored any more");
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
                // Calls at rest do not change by themselves, so one list serves to mark all and to undo all.
                Step::ToCompensate(record) | Step::Undo(record) => record,
                // Any other step needs a fresh list.
                _ if !is_fresh => return Some(saga),
                Step::Wait(record, blocker, why) => {
                    let why = Blocked::by(blocker, why);
                    return self.block(&saga, Some(record), why).await;
                }
                Step::Stuck(record) => {
                    let why = Blocked::for_good("it could not be undone");
                    return self.block(&saga, Some(record), why).await;
                }
                Step::Rest => return self.registry.move_on(&saga, &Event::Rested).await,
                Step::Done => {
                    let undone = Event::Undone { by: self.by() };
                    let undone = self.registry.move_on(&saga, &undone).await?;
                    crash::point("saga_compensated");
                    return Some(undone);
                }
            };
            // A listed call has no texts and must never be written.
            let record = match self.base.store.load(record.intent.call_id).await {
                Ok(Some(whole)) if whole.version == record.version => whole,
                // Another writer was faster: list the calls again.
                Ok(Some(_)) => return Some(saga),
                // Cleanup may have deleted it since.
                Ok(None) if !is_fresh => return Some(saga),
                Ok(None) => {
                    let call_id = record.intent.call_id;
                    let why =
                        format!("its call {call_id} is listed, and cannot be found by its id");
                    return self.block(&saga, None, Blocked::for_good(why)).await;
                }
                Err(_) => return None,
            };
            let done = if matches!(record.state, State::Compensating(_)) {
                is_fresh = false;
                self.undo(saga, &record).await
            } else {
                self.begin_compensating(saga, &record).await
            };
            let (further, changed) = match done {
                Continue(done) => done,
                Break(next) => return next,
            };
            saga = further;
            let is_changed =
                |member: &&mut Member| member.record().intent.call_id == changed.intent.call_id;
            if let Some(member) = calls.iter_mut().find(is_changed) {
                *member = Member::of(changed);
            }
            // The next gateway does the rest.
            if self.base.draining.is_cancelled() {
                return Some(saga);
            }
        }
    }

    /// Handles a saga whose calls could not be listed.
    ///
    /// The saga waits for a store that is not ready. If a ready store fails again and again, the saga needs an
    /// operator.
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

    /// Marks a call with its compensation. Returns the saga and the marked call.
    ///
    /// `Break`: the call cannot be marked now. Holds the saga if there is a further step at once.
    async fn begin_compensating(
        &self,
        saga: Saga,
        record: &Record,
    ) -> ControlFlow<Option<Saga>, (Saga, Record)> {
        let by = By::new(self.by(), &saga.reason);
        let marked = self.registry.to_compensate(record, by);
        match marked.await {
            Ok(Moved::Written { record, .. }) => {
                crash::point("saga_marked");
                Continue((saga, record))
            }
            // Another writer was faster: list the calls again.
            Ok(Moved::Unchanged(..) | Moved::Lost(_)) => Break(Some(saga)),
            Ok(Moved::Refused(_, illegal)) => {
                let why = match illegal {
                    Illegal::MayStillRun => Blocked::busy("its request may still reach the tool"),
                    _ => Blocked::for_good(illegal.to_string()),
                };
                Break(self.block(&saga, Some(record), why).await)
            }
            Err(_) => Break(None),
        }
    }

    /// Undoes one call, or writes down the blocker. Returns the saga and the undone call.
    ///
    /// `Break`: the call is not undone. Holds the saga if there is a further step at once.
    async fn undo(
        &self,
        mut saga: Saga,
        record: &Record,
    ) -> ControlFlow<Option<Saga>, (Saga, Record)> {
        let tried = match self.end_of_compensation(record).await {
            Some(tried) => tried,
            None => {
                let by = record.compensation();
                let at = by.and_then(|by| self.base.tool_at(&by.tool));
                let time = at.map_or(Duration::ZERO, |at| at.tool.longest());
                let until = self.base.busy_until(self.base.now(), time);
                let prolonged = Event::Prolonged { until };
                let Some(prolonged) = self.registry.move_on(&saga, &prolonged).await else {
                    return Break(None);
                };
                saga = prolonged;
                self.try_to_undo(&saga, record).await
            }
        };
        if let Err(why) = tried {
            return Break(self.block(&saga, Some(record), why).await);
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
        let advanced = self.registry.move_on(&saga, &Event::Advanced).await;
        match (advanced, changed) {
            (Some(saga), Some(changed)) => Continue((saga, changed)),
            (saga, _) => Break(saga),
        }
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
                let applied = self.registry.apply(record.intent.call_id, &stuck).await;
                applied.ok()??.ok()?;
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

    /// The end of a call's compensation. `None`: the compensation is still to be sent.
    async fn end_of_compensation(&self, record: &Record) -> Option<Result<(), Blocked>> {
        let Some(compensation) = record.compensation() else {
            return Some(Err(Blocked::for_good("its tool declares no compensation")));
        };
        match self.base.store.load(compensation.call_id).await {
            Ok(None) => None,
            Ok(Some(made)) if matches!(made.state, State::Failed(_)) => None,
            Ok(Some(made)) => Some(undo::outcome_of(&made, &self.base.policy_of(&made))),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Sends a call's compensation.
    async fn try_to_undo(&self, saga: &Saga, record: &Record) -> Result<(), Blocked> {
        let policy = self.base.policy_of(record).compensation;
        let (by, template) = match (record.compensation(), &policy) {
            (Some(by), Policy::By(template)) if template.tool == by.tool => (by, template),
            // The gateway that decided on the compensation may have another configuration.
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
            Ok(record) => undo::outcome_of(&record, &self.base.policy_of(&record)),
            Err(kind) => Err(Blocked::by(kind.blocker(), kind.to_string())),
        }
    }
}
