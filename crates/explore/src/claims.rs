//! How a gateway claims a key, or finds the call that has it.
//!
//! Imitates `crates/engine/src/calls/claim.rs`, and `begin` of `crates/engine/src/transition.rs`.

use std::sync::Arc;

use super::gateway::Answers;
use super::model::{Broken, Model, label, title};
use super::scene::Break;
use super::store::{Claimed, Replaced};
use super::world::{Job, Name, Seen, Task, World, Write, instance, undone_by};
use oncegate_rules::call::{self, Action, Event, Resolved, Seeking};
use oncegate_rules::key::{Lookup, Source};
use oncegate_rules::key_scheme::identity::{LookupKey as Alias, Part};
use oncegate_rules::record::{Holder, Intent, Record, State};

impl Model {
    /// One round of claiming, for a request that wants its call.
    pub(super) fn claim(
        &mut self,
        world: &mut World,
        gateway: u8,
        name: Name,
        seen: Option<Arc<Record>>,
        until: i64,
        answers: Answers,
    ) -> Result<Option<Job>, Broken> {
        let now = world.now;
        let (call_id, attempt) = (self.id_for(world, name), world.fresh_attempt());
        let event = self.arrival(world, name, call_id, attempt, instance(gateway));
        let (Event::Arrived(arrival) | Event::Asked { arrival, .. }) = &event else {
            return Ok(None);
        };
        let named = |(part, lookup): (Part, &Lookup)| Alias {
            lookup: *lookup,
            part,
            is_runtime: arrival.intent.key_source == Source::Runtime,
        };
        let parts = [Part::Today, Part::Arguments].into_iter();
        let lookups: Vec<Alias> = parts.zip(arrival.intent.all_lookups()).map(named).collect();
        let found = self.found(world, &arrival.intent, seen);
        let holder = |record: &Arc<Record>| Holder {
            record: (**record).clone(),
            lookups: self.lookups_held(world, record, &lookups),
        };
        let holders: Vec<Holder> = found.iter().map(holder).collect();
        let seeking = Seeking {
            lookups: &lookups,
            intent: &arrival.intent,
            fingerprints: &arrival.fingerprints,
            confirmed: None,
        };
        let met = call::resolve(&self.scene.tool, &holders, seeking, super::world::at(now));
        let (met, gives_up) = match met {
            Resolved::Expired(_) => {
                self.say(|| {
                    format!(
                        "{} refuses {}: the window of the key is over",
                        title(gateway),
                        label(name)
                    )
                });
                return Ok(None);
            }
            Resolved::Call(index) => (found.get(index).cloned(), Vec::new()),
            Resolved::Free { replaced, .. } => {
                let past = replaced.iter().filter_map(|index| found.get(*index));
                (None, past.cloned().collect())
            }
        };
        let old = met.as_ref().or(gives_up.first());
        let Ok(next) = self.decide(old.map(Arc::as_ref), name, &event, now) else {
            return Ok(None);
        };
        let change = match (&next.action, next.change) {
            (Action::Wait, _) => {
                self.say(|| {
                    format!(
                        "{} finds that {} runs already, and sends nothing",
                        title(gateway),
                        label(name)
                    )
                });
                return Ok(None);
            }
            (Action::Answer, _) => {
                if let Some(record) = &met {
                    self.tell(world, gateway, record)?;
                }
                return Ok(None);
            }
            (Action::Claim | Action::Run | Action::Propose | Action::Begin, Some(change))
                if !world.is_paused =>
            {
                change
            }
            _ => {
                self.say(|| format!("{} refuses {}", title(gateway), label(name)));
                return Ok(None);
            }
        };
        let claimed = match &met {
            None => world.claim(&change, &gives_up, self.broken),
            Some(held) => match world.replace(&change, held, self.broken) {
                Replaced::Done(record) => Claimed::Yours(record),
                Replaced::Lost(Some(newer)) => Claimed::Existing(newer),
                Replaced::Lost(None) | Replaced::Refused => Claimed::Refused,
            },
        };
        Ok(match claimed {
            Claimed::Yours(record) => {
                if met.is_none() {
                    world.begin_intent(name, record.intent.call_id, self.scene.window);
                }
                let number = super::world::number(record.intent.call_id);
                let what = if met.is_some() {
                    "runs again"
                } else {
                    "is claimed"
                };
                let unheard = if answers == Answers::Lost {
                    ", but does not hear that"
                } else {
                    ""
                };
                self.say(|| {
                    format!(
                        "{}: {} {what} as call {number}{unheard}",
                        title(gateway),
                        label(name)
                    )
                });
                match answers {
                    Answers::Lost => Some(Job::ReleaseUnconfirmed { record }),
                    Answers::Yes if self.has_saga(&record) => Some(Job::Join { record, until }),
                    // It waits for an approver, or for the worker that begins it.
                    Answers::Yes if record.state != State::Running => None,
                    Answers::Yes => Some(Job::Send {
                        record,
                        until,
                        tells: true,
                    }),
                }
            }
            Claimed::Existing(there) => {
                self.say(|| {
                    format!(
                        "{} finds {}, which is {}",
                        title(gateway),
                        Self::call_label(&there),
                        there.state.as_str()
                    )
                });
                // A task that begins no run does not touch the store.
                let is_over = there
                    .expires_at
                    .is_some_and(|until| until <= super::world::at(now));
                let begins = is_over || matches!(there.state, State::Failed(_));
                if !begins || !self.compares(world) {
                    return self.claim(world, gateway, name, Some(there), until, Answers::Yes);
                }
                Some(Job::Arrived {
                    name,
                    seen: Some(there),
                    until,
                })
            }
            Claimed::Refused => {
                self.say(|| {
                    format!(
                        "{} refuses {}: the store lets nothing begin",
                        title(gateway),
                        label(name)
                    )
                });
                None
            }
        })
    }

    /// The calls that a request finds under its names: the one that was in its way, and those beside it.
    ///
    /// A request that has not asked the store yet has found none.
    fn found(&self, world: &World, intent: &Intent, seen: Option<Arc<Record>>) -> Vec<Arc<Record>> {
        let Some(seen) = seen else { return Vec::new() };
        if !self.scene.are_alike || self.is_broken(Break::TakesArgumentsFromLivingCall) {
            return vec![seen];
        }
        let held = intent
            .all_lookups()
            .filter_map(|name| world.store.holder(name.0[0]));
        let mut found: Vec<Arc<Record>> = Vec::new();
        for holder in held {
            let is_new = |other: &Arc<Record>| other.intent.call_id != holder.intent.call_id;
            if found.iter().all(is_new) {
                found.push(holder.clone());
            }
        }
        found
    }

    /// Those of an arrival's names that a found call holds.
    fn lookups_held(&self, world: &World, record: &Record, lookups: &[Alias]) -> Vec<Lookup> {
        let holds = |name: &&Alias| {
            let holder = world.store.holder(name.lookup.0[0]);
            holder.is_some_and(|holder| holder.intent.call_id == record.intent.call_id)
        };
        let lookups = lookups
            .iter()
            .filter(|name| !self.scene.are_alike || holds(name));
        lookups.map(|name| name.lookup).collect()
    }

    /// The id of a call that would be claimed now. The id of a compensation was decided before.
    fn id_for(&self, world: &World, name: Name) -> oncegate_rules::record::CallId {
        let decided = undone_by(name).and_then(|undone| world.store.load(undone)?.compensation());
        match decided {
            Some(decided) => decided.call_id,
            _ => world.fresh_call(name),
        }
    }

    fn has_saga(&self, record: &Record) -> bool {
        !record.intent.saga_id.is_empty()
    }

    /// Looks for a claim that was never confirmed, and for which nothing was sent.
    pub(super) fn release_unconfirmed(
        &mut self,
        world: &World,
        gateway: u8,
        record: Arc<Record>,
    ) -> Option<Job> {
        let is_there = |there: &&Arc<Record>| {
            there.attempt.id == record.attempt.id && there.version == record.version
        };
        let there = world
            .store
            .load(record.intent.call_id)
            .filter(is_there)?
            .clone();
        self.say(|| {
            format!(
                "{} finds its claim of {}, and gives it back",
                title(gateway),
                Self::call_label(&there)
            )
        });
        let write = Self::ending(there, Seen::NotSent, None, world.now);
        let is_turned_away = self.has_saga(&write.record);
        Some(Job::Write(Box::new(Write {
            tells: false,
            is_turned_away,
            ..write
        })))
    }

    /// A request arrives at a gateway that runs no request of the same call, and claims its key at once.
    pub(super) fn arrive(
        &mut self,
        world: &mut World,
        gateway: u8,
        name: Name,
        answers: Answers,
    ) -> Result<(), Broken> {
        self.say(|| {
            format!(
                "a request for {} arrives at {}",
                label(name),
                title(gateway)
            )
        });
        let until = Self::sends_until(world);
        if let Some(job) = self.claim(world, gateway, name, None, until, answers)? {
            world.tasks.push(Task { gateway, job });
        }
        Ok(())
    }
}
