//! The promise, checked by an observer that sees callers, tool and store.

use std::sync::Arc;

use super::gateway::evidence::effect_in;
use super::model::{Broken, Model, label};
use super::scene::Group;
use super::world::{Name, Request, Truth, World, name_of, number, undone_by};
use oncegate_rules::call::undoes_unknown;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::saga::Phase;

impl World {
    /// A claimed key stands for a new intent only if its earlier call was at its end for a whole window.
    pub(super) fn begin_intent(&mut self, name: Name, call_id: CallId, window: i64) {
        let now = self.now;
        let truth = self.truth_mut(name);
        if truth.settled_at.is_some_and(|since| since + window <= now) {
            *truth = Truth {
                earlier: truth.effects,
                ..Truth::default()
            };
        }
        truth.call = number(call_id);
    }
}

impl Model {
    /// A call that may have been executed is not sent again, unless the tool deduplicates.
    pub(super) fn judge_send(&self, world: &World, record: &Record) -> Result<(), Broken> {
        let name = name_of(record);
        if record.is_erased() {
            return Err(format!("{} is sent of what was erased", label(name)));
        }
        if let Some(saga) = world
            .store
            .sagas
            .iter()
            .find(|saga| saga.id.id == record.intent.saga_id)
            && undone_by(name).is_none()
            && matches!(
                saga.phase,
                Phase::Compensated
                    | Phase::Compensating { at_rest: true }
                    | Phase::Stuck { at_rest: true, .. }
            )
        {
            return Err(format!(
                "{} is sent, although its saga is being undone",
                label(name)
            ));
        }
        Self::judge_cancelled(world, record)?;
        if self.dedups(name) || self.is_forgotten(world, record) {
            return Ok(());
        }
        if world.truth(name).effects > 0 {
            return Err(format!(
                "{} is sent, although it was executed before",
                label(name)
            ));
        }
        if world.may_come(name) {
            return Err(format!(
                "{} is sent, although an earlier request for it may still be executed",
                label(name)
            ));
        }
        Ok(())
    }

    /// Whether the store has lost a call altogether. The promise does not hold for such a call.
    pub(super) fn is_forgotten(&self, world: &World, record: &Record) -> bool {
        let has_lost = world.left.losses < self.scene.left.losses;
        has_lost && world.store.load(record.intent.call_id).is_none()
    }

    pub(super) fn dedups(&self, name: Name) -> bool {
        self.scene.deduplicates() && undone_by(name).is_none()
    }

    /// The tool executes a request.
    pub(super) fn judge_effect(&self, world: &mut World, request: &Request) -> Result<(), Broken> {
        let name = request.name;
        let stored = world.store.load(request.call_id).cloned();
        if let Some(stored) = &stored
            && stored.attempt.id.0.as_u128() == request.attempt
            && matches!(stored.state, State::Failed(_))
            && !self.dedups(name)
            && !request.is_forgiven
        {
            return Err(format!(
                "{} is executed, although it counts as not executed",
                label(name)
            ));
        }
        if let Some(undone) = undone_by(name) {
            self.judge_undoing(world, undone)?;
        } else if world.truth(name).is_undone {
            return Err(format!("{} is executed after it was undone", label(name)));
        }
        if self.scene.group == Group::Session {
            let other = |other: &&Request| {
                other.name != name && other.executed.is_none() && world.now < other.until
            };
            let is_beside = world.requests.iter().filter(other).count() > 0;
            if is_beside && world.left.unlocks == self.scene.left.unlocks {
                return Err(format!(
                    "{} is executed while another call of its session may be",
                    label(name)
                ));
            }
        }
        let truth = world.truth_mut(name);
        truth.effects += 1;
        if truth.effects > 1 {
            return Err(format!("{} has two effects", label(name)));
        }
        Ok(())
    }

    /// A compensation is executed.
    fn judge_undoing(&self, world: &mut World, undone: CallId) -> Result<(), Broken> {
        let number = number(undone);
        let name = world.store.load(undone).map(|record| name_of(record));
        let Some(name) = name else {
            return Err(format!(
                "call {number} is undone, and is not there any more"
            ));
        };
        let truth = world.truth(name);
        if truth.effects == 0 && (!undoes_unknown(&self.scene.tool) || world.may_come(name)) {
            return Err(format!(
                "{} is undone, although it was not executed",
                label(name)
            ));
        }
        world.truth_mut(name).is_undone = true;
        Ok(())
    }

    /// A caller gets the answer of a success.
    pub(super) fn judge_answer(
        world: &mut World,
        call_id: CallId,
        name: Name,
        effect: u8,
    ) -> Result<(), Broken> {
        let truth = world.truth_mut(name);
        // A caller may hear of an earlier intent while the key stands for another one.
        if truth.call != number(call_id) {
            return Ok(());
        }
        if truth.effects == 0 {
            return Err(format!(
                "{} is answered as succeeded, and has no effect",
                label(name)
            ));
        }
        match truth.answered {
            Some(before) if before != effect => {
                Err(format!("{} is answered with two results", label(name)))
            }
            _ => {
                truth.answered = Some(effect);
                Ok(())
            }
        }
    }

    /// Checks what must hold between a state and the next one.
    pub(super) fn judge_step(
        &self,
        before: &World,
        after: &mut World,
        loses: bool,
    ) -> Result<(), Broken> {
        if !loses {
            for record in &before.store.calls {
                let later = after.store.load(record.intent.call_id);
                if !later.is_some_and(|later| Arc::ptr_eq(later, record)) {
                    self.judge_change(after, record, later)?;
                }
            }
            for saga in &before.store.sagas {
                let later = after.store.saga(&saga.id);
                let may_move = saga.only.is_some() || !saga.phase.is_over();
                if !may_move && later.is_none_or(|later| later.phase != saga.phase) {
                    return Err("a finished saga has moved".into());
                }
            }
        }
        let (store, now) = (&after.store, after.now);
        for (name, truth) in &mut after.truth {
            // Only calls that were at their end are deleted.
            if let Some(record) = store.holder(*name) {
                // A stored success may be answered at any time.
                if let State::Succeeded(content) = &record.state {
                    let effect = effect_in(content).unwrap_or(truth.effects);
                    truth.answered = truth.answered.or(Some(effect));
                }
                truth.settled_at =
                    Self::is_settled(&record.state).then(|| truth.settled_at.unwrap_or(now));
            }
        }
        if self.has_tasks() {
            Self::judge_tasks(after)?;
        }
        self.judge_state(after)
    }

    /// Checks what must hold if a call has changed.
    fn judge_change(
        &self,
        world: &World,
        before: &Record,
        after: Option<&Arc<Record>>,
    ) -> Result<(), Broken> {
        let name = name_of(before);
        let Some(after) = after else {
            return if Self::is_settled(&before.state) {
                Ok(())
            } else {
                Err(format!(
                    "{} is deleted while it is {}",
                    label(name),
                    before.state.as_str()
                ))
            };
        };
        if after.is_erased() && after.state.content().and_then(effect_in).is_some() {
            return Err(format!("{} was erased, and has a result", label(name)));
        }
        self.judge_waiting(world, before, after)?;
        if self.has_tasks() {
            Self::judge_task(world, before, after)?;
        }
        let effects = world.effects_of(before);
        let may_come = world.may_still_come(before);
        // A change that is written now is marked as unknown when the loss is accepted.
        if world.is_closed && matches!(after.state, State::Failed(_)) {
            return Ok(());
        }
        match (&before.state, &after.state) {
            (State::Unknown(_), State::Succeeded(_)) if effects == 0 => Err(format!(
                "{} was unknown and counts as executed, without evidence",
                label(name)
            )),
            (State::Unknown(_), State::Failed(_)) if effects > 0 => Err(format!(
                "{} was unknown and counts as not executed, although it was",
                label(name)
            )),
            (State::Unknown(_), State::Failed(_)) if !self.dedups(name) && may_come => {
                Err(format!(
                    "{} was unknown and counts as not executed, although it still may be",
                    label(name)
                ))
            }
            (State::Unknown(_), State::Running) if !self.dedups(name) => {
                Err(format!("{} is unknown and runs again", label(name)))
            }
            (State::Running, State::Failed(_)) if effects > 0 && !self.dedups(name) => Err(
                format!("{} counts as not executed, although it was", label(name)),
            ),
            (State::Succeeded(_), State::Running | State::Failed(_) | State::Unknown(_)) => {
                Err(format!(
                    "{} has succeeded, and is {} now",
                    label(name),
                    after.state.as_str()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks what must hold in every state.
    fn judge_state(&self, world: &World) -> Result<(), Broken> {
        for (name, truth) in &world.truth {
            let Some(answered) = truth.answered else {
                continue;
            };
            let is_lost = world.left.losses < self.scene.left.losses;
            match world.store.holder(*name) {
                Some(record) => {
                    let is_same = record.state.content().is_some_and(|content| {
                        effect_in(content).is_none_or(|effect| effect == answered)
                    });
                    let is_in_doubt = is_lost && matches!(record.state, State::Unknown(_));
                    let is_being_lost = is_lost && world.is_closed;
                    if !is_same && !is_in_doubt && !is_being_lost {
                        return Err(format!(
                            "{} was answered as succeeded, and is {} now",
                            label(*name),
                            record.state.as_str()
                        ));
                    }
                }
                None if is_lost => {}
                None => {
                    if truth
                        .settled_at
                        .is_none_or(|since| world.now < since + self.scene.window)
                    {
                        return Err(format!(
                            "{} was answered as succeeded, and is forgotten",
                            label(*name)
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
