//! Workers for calls without an owner and for unknown calls, and the acts of operators on these calls.
//!
//! Imitates `crates/engine/src/recovery/lost.rs`, `rechecks.rs` and `prune.rs` beside it, and
//! `crates/engine/src/operator/calls.rs`.

use std::sync::Arc;

use super::gateway::Answers;
use super::model::{Broken, Model, label, title};
use super::scene::Break;
use super::store::Replaced;
use super::world::{ENDED, Job, Task, World, at, instance, name_of, undone_by};
use oncegate_rules::actor::By;
use oncegate_rules::call::{Action, Event, Probed};
use oncegate_rules::record::{Content, FailureKind, Record, State};
use oncegate_rules::tool::OnUnknown;
use oncegate_rules::unknown::{CheckBlocker, Finding, Resolution};

/// A result with the number of its effect.
pub(super) fn result(effect: u8) -> Content {
    Content::Stored(effect.to_string().into())
}

impl Model {
    /// Whether a worker of this gateway would take up a call as one without an owner.
    pub(super) fn is_lost(&self, world: &World, gateway: u8, record: &Record) -> bool {
        let is_running = record.state == State::Running && !self.is_broken(Break::RecoversNothing);
        let runs_here = record.attempt.owner == instance(gateway)
            && world
                .tasks
                .iter()
                .any(|task| task.gateway == gateway && task.runs() == Some(name_of(record)));
        let has_ended =
            record.attempt.owner == ENDED || record.attempt.lease_until <= at(world.now);
        is_running && has_ended && !runs_here
    }

    /// Whether a worker would check an unknown call now.
    pub(super) fn is_due(&self, world: &World, record: &Record) -> bool {
        let has_policy = self.tool_of(name_of(record)).unknown != OnUnknown::Hold
            || record.attempt.remote_task.is_some()
            || self.sends_again(name_of(record));
        let due_at = match record.check {
            Some(check) => check.at.is_some_and(|due_at| due_at <= at(world.now)),
            None => false,
        };
        let is_forced = self.sends_again(name_of(record)) && record.check.is_none();
        matches!(record.state, State::Unknown(_))
            && has_policy
            && (due_at || is_forced)
            && !world.is_closed
    }

    pub(super) fn take_up(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
    ) -> Result<(), Broken> {
        if self.is_waiting(world, &record) {
            self.take_up_waiting(world, gateway, record);
            return Ok(());
        }
        let is_lost = record.state == State::Running;
        let what = if is_lost {
            "without an owner"
        } else {
            "unknown"
        };
        self.say(|| {
            format!(
                "a worker of {} finds {}, {what}",
                title(gateway),
                Self::call_label(&record)
            )
        });
        let job = if is_lost {
            Job::Lost { record }
        } else {
            Job::Check {
                record,
                until: Self::sends_until(world),
            }
        };
        world.tasks.push(Task { gateway, job });
        // A worker that can only write what it has read may write at once: no other order matters.
        if self.compares(world) {
            self.go(world, world.tasks.len() - 1, Answers::Yes)?;
        }
        Ok(())
    }

    /// Settles a call that has lost its owner.
    pub(super) fn settle_lost(&mut self, world: &mut World, gateway: u8, record: &Arc<Record>) {
        // A call is undone only if its saga exists.
        if !record.intent.saga_id.is_empty() && !self.find_saga_of(world, record) {
            return;
        }
        let by = instance(gateway);
        let is_over = record.attempt.lease_until <= at(world.now);
        let event = if is_over {
            Event::LeaseOver { by }
        } else {
            Event::OwnerLost { by }
        };
        self.change(world, gateway, record, &event);
    }

    /// Writes an event's change, unless another writer was faster. Returns the call as it is then.
    pub(super) fn change(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
        event: &Event,
    ) -> Option<Arc<Record>> {
        let change = self
            .decide(Some(record), name_of(record), event, world.now)
            .ok()?
            .change?;
        match world.replace(&change, record, self.broken) {
            Replaced::Done(stored) => {
                self.say(|| {
                    format!(
                        "{} writes that {} is {} ({})",
                        title(gateway),
                        Self::call_label(&stored),
                        stored.state.as_str(),
                        change.entry.event
                    )
                });
                Some(stored)
            }
            Replaced::Lost(_) | Replaced::Refused => {
                self.say(|| {
                    format!(
                        "{} finds that {} has changed meanwhile, and writes nothing",
                        title(gateway),
                        Self::call_label(record)
                    )
                });
                None
            }
        }
    }

    /// Begins the due check of an unknown call.
    pub(super) fn check(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        until: i64,
    ) -> Option<Job> {
        let name = name_of(&record);
        let attempt = (!world.is_paused).then(|| world.fresh_attempt());
        let sends = self.tool_of(name).unknown == OnUnknown::Retry
            && attempt.is_some()
            && record.attempt.remote_task.is_none();
        let by = instance(gateway);
        let postpone = |blocker| Event::CheckPostponed { by, blocker };
        if sends && !self.is_wanted_again(world, &record) {
            self.change(world, gateway, &record, &postpone(CheckBlocker::NotWanted));
            return None;
        }
        let event = Event::CheckDue { by, attempt };
        let mut forced = (*record).clone();
        if self.sends_again(name) {
            forced.check = Some(oncegate_rules::record::Check {
                since: at(world.now),
                at: Some(at(world.now)),
                number: 0,
            });
        }
        let next = self.decide(Some(&forced), name, &event, world.now).ok()?;
        let change = next.change?;
        let stored = match world.replace(&change, &record, self.broken) {
            Replaced::Done(stored) => stored,
            Replaced::Lost(Some(newer)) if newer.intent.call_id == record.intent.call_id => {
                return None;
            }
            Replaced::Lost(_) if sends => {
                self.change(world, gateway, &record, &postpone(CheckBlocker::KeyGone));
                return None;
            }
            Replaced::Refused if sends => {
                self.change(world, gateway, &record, &postpone(CheckBlocker::Store));
                return None;
            }
            Replaced::Lost(_) | Replaced::Refused => return None,
        };
        self.say(|| {
            format!(
                "{} works on {}: {}",
                title(gateway),
                Self::call_label(&stored),
                change.entry.detail
            )
        });
        match next.action {
            Action::Probe => Some(Job::Ask {
                record: stored,
                asked_at: world.now,
            }),
            Action::AskTask => Some(Job::See { record: stored }),
            Action::Run => Some(Job::Send {
                record: stored,
                until,
                tells: false,
            }),
            _ => None,
        }
    }

    /// Whether the saga of an unknown call lets it be sent again: `crates/engine/src/sagas/joining.rs`.
    fn is_wanted_again(&self, world: &World, record: &Record) -> bool {
        if let Some(undone) = undone_by(name_of(record)) {
            let undone = world.store.load(undone).map(Arc::as_ref);
            return oncegate_rules::undo::is_wanted(record.intent.call_id, undone);
        }
        let saga = world
            .store
            .sagas
            .iter()
            .find(|saga| saga.id.id == record.intent.saga_id);
        saga.is_none_or(|saga| saga.may_send_again())
    }

    /// The tool says whether it knows the key, truthfully.
    pub(super) fn ask(
        &mut self,
        world: &World,
        gateway: u8,
        record: Arc<Record>,
        asked_at: i64,
    ) -> Job {
        let effects = world.effects_of(&record);
        let found = (effects > 0).then_some(effects);
        let says = if found.is_some() {
            "knows"
        } else {
            "does not know"
        };
        self.say(|| {
            format!(
                "the tool tells {} that it {says} {}",
                title(gateway),
                label(name_of(&record))
            )
        });
        Job::Note {
            record,
            asked_at,
            found,
        }
    }

    /// Writes down what a probe has found, unless another attempt has begun.
    pub(super) fn note(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
        asked_at: i64,
        found: Option<u8>,
    ) {
        let finding = found.map_or(Finding::NotFound, |effect| Finding::Found(result(effect)));
        let event = Event::Probed(Probed {
            by: instance(gateway),
            asked_at: at(asked_at),
            finding,
            retry_after: None,
        });
        self.change_of_attempt(world, gateway, record, &event);
    }

    /// Writes an event's change, also if the call has changed meanwhile, unless another attempt has begun.
    pub(super) fn change_of_attempt(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
        event: &Event,
    ) {
        let newest = world.store.load(record.intent.call_id).cloned();
        let newest = newest.filter(|newest| newest.attempt.id == record.attempt.id);
        // First on the record that the worker has read; if that has changed, on the newest of the same attempt.
        if self.change(world, gateway, record, event).is_none()
            && let Some(newest) = newest.filter(|newest| newest.version != record.version)
        {
            self.change(world, gateway, &newest, event);
        }
    }

    /// The decision of an operator who looks at the tool for the effect of a call.
    pub(super) fn resolution(&self, world: &World, record: &Record) -> Option<Resolution> {
        if !matches!(record.state, State::Unknown(_)) {
            return None;
        }
        match world.effects_of(record) {
            // The gateway refuses that as long as it asks the server itself.
            0 if Self::is_asked_for(record) => Some(Resolution::Failed),
            // If the operator has declared how late a request may arrive, operators wait for so long, too.
            0 if self.scene.late > 0 && world.may_still_come(record) => None,
            0 => Some(Resolution::Failed),
            effect => Some(Resolution::Succeeded(result(effect))),
        }
    }

    pub(super) fn resolve(
        &mut self,
        world: &mut World,
        record: &Arc<Record>,
        resolution: Resolution,
    ) -> bool {
        let event = Event::Resolved {
            by: By::token("", ""),
            resolution,
        };
        let Ok(next) = self.decide(Some(record), name_of(record), &event, world.now) else {
            return false;
        };
        let Some(change) = next.change else {
            return false;
        };
        let done = matches!(
            world.replace(&change, record, self.broken),
            Replaced::Done(_)
        );
        self.say(|| {
            format!(
                "an operator looks, and says that {} is {}",
                Self::call_label(record),
                change.record.state.as_str()
            )
        });
        done
    }

    /// Cleanup: deletes calls whose retention is over.
    pub(super) fn clean_up(&mut self, world: &mut World) {
        let now = at(world.now);
        let lease_over = world.now;
        let deletes_unknown = self.is_broken(Break::CleansUpUnknown);
        self.say(|| "cleanup deletes calls whose retention is over".into());
        world.prune(|record| {
            let is_old = deletes_unknown
                && matches!(record.state, State::Unknown(_))
                && Self::lease_of(record) < lease_over;
            is_old || record.may_be_forgotten(now)
        });
    }

    /// Whether cleanup would delete anything.
    pub(super) fn has_old(&self, world: &World) -> bool {
        let deletes_unknown = self.is_broken(Break::CleansUpUnknown);
        world.store.calls.iter().any(|record| {
            let is_old = deletes_unknown
                && matches!(record.state, State::Unknown(_))
                && Self::lease_of(record) < world.now;
            is_old || record.may_be_forgotten(at(world.now))
        })
    }

    /// Breaks a rule: time alone settles an unknown call.
    pub(super) fn expire_unknown(&mut self, world: &mut World) {
        let now = world.now;
        for record in &mut world.store.calls {
            if matches!(record.state, State::Unknown(_)) && Self::lease_of(record) < now {
                let record = Arc::make_mut(record);
                record.version += 1;
                record.state = State::Failed(oncegate_rules::record::Failure::new(
                    FailureKind::NotExecuted,
                    "its time is over",
                ));
                record.check = None;
                record.expires_at = Some(at(now));
            }
        }
    }
}
