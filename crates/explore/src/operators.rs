//! The acts of callers and operators on sagas and sessions.
//!
//! Imitates `crates/engine/src/sagas/ended.rs` and `crates/engine/src/operator/calls.rs` and `sessions.rs`.

use std::sync::Arc;

use super::model::Model;
use super::recover::result;
use super::sagas::{calls_of, trip};
use super::store::Replaced;
use super::world::{World, at, name_of, name_of_undo};
use oncegate_rules::actor::By;
use oncegate_rules::call;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::saga::{Event, Phase, Saga, SagaId};
use oncegate_rules::undo;
use oncegate_rules::unknown::Resolution;

/// The act of an operator on a stuck saga, or of a caller on an open one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Complete,
    Abort,
    Retry,
    Skip,
}

fn operator() -> By {
    By::token("", "")
}

fn abort(after_loss: bool) -> Event {
    Event::Abort {
        by: operator(),
        after_loss,
    }
}

/// The saga of all calls, or that of a call which is undone alone.
fn acted_on(world: &World) -> Option<&Arc<Saga>> {
    world.store.saga(&trip()).or(world.store.sagas.first())
}

fn erased() -> call::Event {
    call::Event::Erased { by: operator() }
}

impl Model {
    pub(super) fn act_on_saga(&mut self, world: &mut World, act: Act) {
        let Some(saga) = acted_on(world).cloned() else {
            return;
        };
        match act {
            Act::Complete => {
                self.say(|| "the caller completes the saga".into());
                self.move_on(world, &saga, &Event::Complete(operator()));
            }
            Act::Abort => {
                self.say(|| "the caller aborts the saga".into());
                self.move_on(world, &saga, &abort(true));
            }
            Act::Retry => {
                self.say(|| "an operator has the stuck saga tried again".into());
                for record in calls_of(world, &saga) {
                    if matches!(record.state, State::Stuck(_)) {
                        drop(self.begin_compensating(world, &record));
                    }
                }
                self.move_on(world, &saga, &Event::Retry(operator()));
            }
            Act::Skip => self.skip(world, &saga),
        }
    }

    fn skip(&mut self, world: &mut World, saga: &Arc<Saga>) {
        let Some(call_id) = saga.trouble.as_ref().and_then(|trouble| trouble.call_id) else {
            return;
        };
        let until = at(world.now + 1);
        let Some(saga) = self.move_on(world, saga, &Event::Held { until }) else {
            return;
        };
        let Some(record) = world.store.load(call_id).cloned() else {
            return;
        };
        let compensation = record
            .compensation()
            .and_then(|by| world.store.load(by.call_id));
        let event = call::Event::Skipped {
            by: operator(),
            compensation: compensation.map(|made| Box::new((**made).clone())),
        };
        self.say(|| format!("an operator skips {}", Self::call_label(&record)));
        match self.decide(Some(&record), name_of(&record), &event, world.now) {
            Ok(next) => {
                if let Some(change) = next.change {
                    drop(world.replace(&change, &record, self.broken));
                }
            }
            Err(call::Illegal::NothingToUndo) => {}
            Err(illegal) => {
                self.say(|| format!("which is refused: {illegal}"));
                return;
            }
        }
        self.move_on(world, &saga, &Event::Settled(operator()));
    }

    /// What an operator finds at the tool about a stuck call.
    pub(super) fn resolution_of_stuck(world: &World, record: &Record) -> Option<Resolution> {
        let undo = name_of_undo(record.intent.call_id);
        if !matches!(record.state, State::Stuck(_)) || world.may_come(undo) {
            return None;
        }
        let effect = world.truth(name_of(record)).effects;
        let stands = effect > 0 && world.truth(undo).effects == 0;
        Some(if stands {
            Resolution::Succeeded(result(effect))
        } else {
            Resolution::Failed
        })
    }

    pub(super) fn resolve_stuck(
        &mut self,
        world: &mut World,
        record: &Arc<Record>,
        resolution: Resolution,
    ) {
        if !self.resolve(world, record, resolution) {
            return;
        }
        let alone = SagaId::new("", undo::key_of(record.intent.call_id));
        for id in [trip(), alone] {
            if let Some(saga) = world.store.saga(&id).cloned() {
                self.move_on(world, &saga, &Event::Settled(operator()));
            }
        }
    }

    /// An operator has one call undone, whatever saga it belongs to.
    pub(super) fn undo_one(&mut self, world: &mut World, call_id: CallId) {
        let Some(record) = world.store.load(call_id).cloned() else {
            return;
        };
        self.say(|| format!("an operator has {} undone", Self::call_label(&record)));
        world.left.undos -= 1;
        let id = SagaId::new("", undo::key_of(call_id));
        if let Some(saga) = world.store.saga(&id).cloned() {
            if saga.may_undo_after_all(&record) {
                self.move_on(world, &saga, &abort(false));
            }
            return;
        }
        if undo::may_be_undone(&record, self.tool_of(name_of(&record))).is_ok() && !world.is_closed
        {
            let saga = Saga::undo("", call_id, &operator(), at(world.now));
            world.put_saga(&Arc::new(saga));
        }
    }

    /// Whether the data of a call may be erased now.
    pub(super) fn may_erase(&self, world: &World, record: &Record) -> bool {
        let event = erased();
        !world.is_closed
            && self
                .decide(Some(record), name_of(record), &event, world.now)
                .is_ok()
    }

    /// An operator has the data of a call's user erased.
    pub(super) fn erase(&mut self, world: &mut World, record: &Arc<Record>) {
        world.left.erasures -= 1;
        self.say(|| format!("an operator has {} erased", Self::call_label(record)));
        if let Ok(next) = self.decide(Some(record), name_of(record), &erased(), world.now)
            && let Some(change) = next.change
            && let Replaced::Done(_) = world.replace(&change, record, self.broken)
        {}
    }

    /// Whether an operator would act on the saga in this way now.
    pub(super) fn may_act(world: &World, act: Act) -> bool {
        let Some(saga) = acted_on(world) else {
            return false;
        };
        let is_open = matches!(saga.phase, Phase::Open | Phase::OpenAtLoss);
        match act {
            Act::Complete | Act::Abort => {
                is_open
                    && !world.is_closed
                    && (world.left.ends > 0 || saga.phase == Phase::OpenAtLoss)
            }
            Act::Retry => matches!(saga.phase, Phase::Stuck { .. }),
            Act::Skip => {
                matches!(saga.phase, Phase::Stuck { .. })
                    && saga
                        .trouble
                        .as_ref()
                        .is_some_and(|trouble| trouble.call_id.is_some())
            }
        }
    }

    /// An operator takes the session's lock from the run that has it.
    pub(super) fn unlock(&mut self, world: &mut World) {
        let Some(lock) = world.store.lock else { return };
        let Some(record) = world.store.load(lock.call_id).cloned() else {
            return;
        };
        world.left.unlocks -= 1;
        self.say(|| "an operator takes the session's lock away".into());
        let event = call::Event::Unlocked {
            by: operator(),
            fencing: Some(lock.token),
        };
        if let Ok(next) = self.decide(Some(&record), name_of(&record), &event, world.now)
            && let Some(change) = next.change
            && let Replaced::Done(_) = world.replace(&change, &record, self.broken)
        {}
    }
}
