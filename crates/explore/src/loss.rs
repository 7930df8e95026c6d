//! The store loses its newest writes, and an operator accepts that.
//!
//! Imitates `crates/engine/src/recovery/loss.rs` and what both stores do about calls at risk.
//! `crates/store-redis/src/loss/model.rs` explores whether a store notices a loss.

use std::sync::Arc;

use super::model::Model;
use super::scene::Break;
use super::store::Replaced;
use super::world::{Truth, World, at, name_of, number, tick_of};
use oncegate_rules::actor::By;
use oncegate_rules::call::Event;
use oncegate_rules::record::{Record, State};
use oncegate_rules::saga;

impl Model {
    /// The store loses its newest writes, or those of one key. Gateways put back what they remember.
    pub(super) fn lose(&mut self, world: &mut World, keeps: Option<u8>) {
        let Some(copy) = world.copy.take() else {
            return;
        };
        world.left.losses -= 1;
        self.say(|| "the store loses its newest writes".into());
        let newest = std::mem::replace(&mut world.store, Arc::unwrap_or_clone(copy));
        if let Some(keeps) = keeps {
            for record in newest
                .calls
                .iter()
                .filter(|record| name_of(record) == keeps)
            {
                world.store.put(record.clone());
            }
            if let Some(record) = newest.holder(keeps) {
                world.store.give_name(keeps, record.intent.call_id);
            }
        }
        if !self.scene.is_shared {
            world.crash(0);
            world.crash(1);
        }
        // New tokens are above the highest that was given out.
        world.store.token = newest.token;
        world.is_closed = !self.is_broken(Break::NoticesNoLoss);
        Self::forgive(world, self.scene.window);
    }

    /// An operator accepts the loss: calls at risk become unknown, open sagas wait for an operator, and the store
    /// opens.
    pub(super) fn accept_loss(&mut self, world: &mut World) {
        self.say(|| "an operator accepts the loss".into());
        let at_risk: Vec<_> = world.store.calls.clone();
        let at_risk = at_risk.iter().filter(|record| {
            matches!(
                record.state,
                State::Running
                    | State::Failed(_)
                    | State::Unknown(_)
                    | State::Proposed
                    | State::Approved
            )
        });
        let stays_approvable = |record: &Record| {
            let waits = matches!(record.state, State::Proposed | State::Approved);
            waits && self.is_broken(Break::LossKeepsProposals)
        };
        let at_risk: Vec<_> = at_risk.filter(|record| !stays_approvable(record)).collect();
        let at_risk = at_risk.into_iter();
        for record in at_risk.filter(|_| !self.is_broken(Break::AcceptsWithoutMarks)) {
            let whole_until = match self.is_broken(Break::TakesTheStoreForWhole) {
                true => Some(world.now),
                false => world.store.whole_until,
            };
            let event = Event::StoreLost {
                by: By::token("", ""),
                whole_until: whole_until.map(at),
            };
            let Ok(next) = self.decide(Some(record), name_of(record), &event, world.now) else {
                continue;
            };
            if let Some(change) = next.change
                && let Replaced::Done(_) = world.replace(&change, record, self.broken)
            {
                let held = world.store.lock.is_none() && change.release.retakes_lock;
                if let (true, Some(from), Some(token)) =
                    (held, change.release.lock_from, record.fencing)
                {
                    world.store.lock = Some(oncegate_rules::session::Lock {
                        call_id: record.intent.call_id,
                        token,
                        lease_until: change.record.attempt.lease_until,
                        free_from: Some(from),
                    });
                }
            }
        }
        for saga in &mut world.store.sagas {
            let event = saga::Event::StoreLost(By::token("", ""));
            if let Ok(lost) = saga::next(saga, &event, &self.scene.sagas, at(world.now)) {
                *saga = Arc::new(lost);
            }
        }
        world.store.whole_until = None;
        world.is_closed = false;
    }

    /// The promise does not hold for a lost call. Its key stands for the earlier call again.
    fn forgive(world: &mut World, window: i64) {
        for at in 0..world.truth.len() {
            let (name, truth) = world.truth[at];
            if world
                .store
                .calls
                .iter()
                .any(|record| number(record.intent.call_id) == truth.call)
            {
                continue;
            }
            for request in world
                .requests
                .iter_mut()
                .filter(|request| number(request.call_id) == truth.call)
            {
                request.is_forgiven = true;
            }
            let earlier = world.store.holder(name).map(|record| Truth {
                call: number(record.intent.call_id),
                effects: truth.earlier,
                settled_at: record.expires_at.map(|until| tick_of(until) - window),
                ..Truth::default()
            });
            world.truth[at].1 = earlier.unwrap_or_default();
        }
    }
}
