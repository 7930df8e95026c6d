//! A server works on a call as a task, which is written down, followed and asked for; or a client asks to cancel the call.
//!
//! Imitates `crates/engine/src/calls/attempt/remote.rs`, and what `crates/engine/src/recovery/rechecks.rs` does about tasks.

use std::sync::Arc;

use super::Answers;
use super::evidence::{TASK, seen_of_task};
use crate::model::{Broken, Model, label, title};
use crate::names::{instance, name_of};
use crate::scene::Break;
use crate::store::Replaced;
use crate::world::{Job, Request, Said, Seen, Task, Tasked, World};
use oncegate_rules::actor::By;
use oncegate_rules::call::Event;
use oncegate_rules::record::{Record, State};

/// Whether a request is the one of this record's newest attempt, and its server works on it as a task.
fn is_task_of(request: &Request, record: &Record) -> bool {
    request.attempt == record.attempt.id.0.as_u128() && request.task != Tasked::No
}

/// Whether a gateway's task waits for the answer to this attempt.
fn waits_for(task: &Task, attempt: u128) -> bool {
    matches!(&task.job, Job::Wait { record, .. } if record.attempt.id.0.as_u128() == attempt)
}

impl Model {
    /// Whether servers may give tasks.
    pub(crate) fn has_tasks(&self) -> bool {
        self.scene.task_life > 0
    }

    /// Whether a gateway waits for the answer to a request.
    pub(crate) fn is_waited_for(world: &World, request: &Request) -> bool {
        world
            .tasks
            .iter()
            .any(|task| waits_for(task, request.attempt))
    }

    /// A server answers a request with a task. It executes the request later, or never.
    pub(crate) fn give_task(&mut self, world: &mut World, at: usize) {
        let attempt = world.requests[at].attempt;
        let mut tasks = world.tasks.iter();
        let Some(place) = tasks.position(|task| waits_for(task, attempt)) else {
            return;
        };
        let Task { gateway, job } = world.tasks.remove(place);
        let Job::Wait {
            record,
            until,
            tells,
        } = job
        else {
            return;
        };
        self.say(|| format!("the server gives a task for {}", Self::call_label(&record)));
        world.left.tasks -= 1;
        let request = &mut world.requests[at];
        request.task = Tasked::Given;
        if self.scene.works_on_unwritten {
            request.until = request.until.max(world.now + self.scene.task_life);
        }
        world.tasks.push(Task {
            gateway,
            job: Job::Given {
                record,
                until,
                tells,
            },
        });
    }

    /// The server's task is cancelled, or the server forgets it, whether or not it was executed. It still may be for a moment.
    pub(crate) fn end_task(&mut self, world: &mut World, at: usize) {
        world.left.gone -= 1;
        let (now, late) = (world.now, self.scene.late);
        let request = &mut world.requests[at];
        request.task = Tasked::Gone;
        request.until = request.until.min(now + late);
        let name = request.name;
        self.say(|| {
            format!(
                "the server does not know the task for {} any more",
                label(name)
            )
        });
    }

    /// Writes a task down, and follows it then: `Sender::note_task`.
    pub(crate) fn note_task(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        (until, tells): (i64, bool),
        answers: Answers,
    ) -> Job {
        let follow = |record| Job::Follow {
            record,
            until,
            tells,
        };
        if self.is_broken(Break::FollowsWithoutWriting) {
            self.say(|| format!("{} follows the task, and writes nothing", title(gateway)));
            self.follow(world, &record);
            return follow(record);
        }
        let event = Event::TaskGiven {
            attempt: record.attempt.id,
            id: TASK.into(),
        };
        // It runs no more, or another attempt does: there is nothing to write.
        let Ok(next) = self.decide(Some(&record), name_of(&record), &event, world.now) else {
            return follow(record);
        };
        let Some(change) = next.change else {
            self.follow(world, &record);
            return follow(record);
        };
        let again = |record| Job::Given {
            record,
            until,
            tells,
        };
        let call = Self::call_label(&record);
        match world.replace(&change, &record, self.broken) {
            Replaced::Done(_) if answers == Answers::Lost => {
                self.say(|| {
                    let who = title(gateway);
                    format!("{who}: the store takes the task of {call}, and its answer is lost")
                });
                again(record)
            }
            Replaced::Done(stored) => {
                self.say(|| format!("{} writes down the task of {call}", title(gateway)));
                self.follow(world, &stored);
                follow(stored)
            }
            Replaced::Lost(Some(newer)) if newer.attempt.id == record.attempt.id => again(newer),
            Replaced::Lost(_) | Replaced::Refused => follow(record),
        }
    }

    /// The task of a record is followed from now on. Such a task may take its time.
    fn follow(&self, world: &mut World, record: &Record) {
        let until = world.now + self.scene.task_life;
        let mut requests = world.requests.iter_mut();
        if let Some(request) = requests.find(|request| is_task_of(request, record))
            && request.task == Tasked::Given
        {
            request.task = Tasked::Followed;
            request.until = request.until.max(until);
        }
    }

    /// What the server says of the task of a record's newest attempt, truthfully.
    pub(crate) fn said(world: &World, record: &Record) -> Said {
        let mut requests = world.requests.iter();
        match requests.find(|request| is_task_of(request, record)) {
            Some(request) if request.task != Tasked::Gone => {
                request.executed.map_or(Said::Runs, Said::Ended)
            }
            _ => Said::Gone,
        }
    }

    /// A gateway that follows a task asks for it: `Sender::follow`.
    pub(crate) fn look_at_task(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: Arc<Record>,
        (until, tells): (i64, bool),
    ) -> Result<Job, Broken> {
        let said = Self::said(world, &record);
        self.say(|| Self::what_was_said(gateway, &record, said));
        let seen = match said {
            Said::Runs => {
                return Ok(Job::Follow {
                    record,
                    until,
                    tells,
                });
            }
            Said::Ended(effect) => Seen::Ended(effect),
            Said::Gone => Seen::Gone,
        };
        self.ended(world, gateway, record, seen, until, tells)
    }

    fn what_was_said(gateway: u8, record: &Record, said: Said) -> String {
        let says = match said {
            Said::Runs => "still works on",
            Said::Ended(_) => "has ended",
            Said::Gone => "does not know",
        };
        let call = Self::call_label(record);
        format!(
            "the server tells {} that it {says} its task for {call}",
            title(gateway)
        )
    }

    /// A worker asks for the task of an unknown call: `Sender::see_task`.
    pub(crate) fn see(&mut self, world: &World, gateway: u8, record: Arc<Record>) -> Job {
        let said = Self::said(world, &record);
        self.say(|| Self::what_was_said(gateway, &record, said));
        Job::Saw { record, said }
    }

    /// Writes down what a server has said of its task: `Rechecks::note_seen`.
    pub(crate) fn note_seen(
        &mut self,
        world: &mut World,
        gateway: u8,
        record: &Arc<Record>,
        said: Said,
    ) {
        let event = Event::TaskSeen {
            by: instance(gateway),
            attempt: record.attempt.id,
            seen: seen_of_task(said),
        };
        self.change_of_attempt(world, gateway, record, &event);
    }

    /// A client asks to cancel a call that may run.
    pub(crate) fn cancel(&mut self, world: &mut World, record: &Arc<Record>) {
        world.left.cancels -= 1;
        self.say(|| format!("a client asks to cancel {}", Self::call_label(record)));
        let event = Event::CancelAsked(By::token("", ""));
        self.change(world, 0, record, &event);
    }

    /// Whether a client may ask to cancel a call now.
    pub(crate) fn may_cancel(world: &World, record: &Record) -> bool {
        let is_open = matches!(record.state, State::Running | State::Unknown(_));
        is_open && !record.cancel_asked && world.left.cancels > 0
    }

    /// Whether nothing is sent because a client has asked to cancel the call: `Sender::is_cancel_asked`.
    ///
    /// Only what was sent before is looked up.
    pub(crate) fn is_cancelled(&self, world: &World, record: &Record) -> bool {
        let was_sent = match self.broken {
            Break::SendsAfterCancel => false,
            Break::ChecksPassOverCancels => record.attempt.number > 1,
            _ => record.attempts > 1,
        };
        was_sent && Self::is_cancel_stored(world, record)
    }

    /// Whether a client has asked to cancel the call while this attempt is its newest.
    fn is_cancel_stored(world: &World, record: &Record) -> bool {
        let stored = world.store.load(record.intent.call_id);
        let is_ours = |stored: &&Arc<Record>| stored.attempt.id == record.attempt.id;
        stored
            .filter(is_ours)
            .is_some_and(|stored| stored.cancel_asked)
    }

    /// The record as a broken rule reads it.
    pub(crate) fn misread(&self, record: &Record, event: &Event) -> Option<Record> {
        let mut record = record.clone();
        match (self.broken, event) {
            (Break::SendsBesideTask, Event::CheckDue { .. })
            | (Break::OperatorsForgetTasks, Event::Resolved { .. }) => {
                record.attempt.remote_task = None;
            }
            (Break::SendsAfterCancel, Event::CheckDue { .. } | Event::Ended(_)) => {
                record.cancel_asked = false;
            }
            _ => return None,
        }
        Some(record)
    }

    /// Whether the server is still asked for the task of an unknown call, as the ledger shows.
    pub(crate) fn is_asked_for(record: &Record) -> bool {
        let is_planned = record.check.is_some_and(|check| check.at.is_some());
        record.attempt.remote_task.is_some() && is_planned
    }

    /// After a wish to cancel nothing is sent again.
    pub(crate) fn judge_cancelled(world: &World, record: &Record) -> Result<(), Broken> {
        if Self::is_cancel_stored(world, record) && record.attempts > 1 {
            let call = label(name_of(record));
            return Err(format!(
                "{call} is sent again, although it was to be cancelled"
            ));
        }
        Ok(())
    }

    /// What a server's task has shown, or can still show, is not passed over.
    pub(crate) fn judge_task(world: &World, before: &Record, after: &Record) -> Result<(), Broken> {
        let call = label(name_of(before));
        let is_next = before.attempt.id != after.attempt.id;
        let has_failed = matches!(after.state, State::Failed(_));
        if is_next && before.cancel_asked && !matches!(before.state, State::Failed(_)) {
            return Err(format!(
                "{call} has a further attempt, although it was to be cancelled"
            ));
        }
        let was_open = matches!(before.state, State::Running | State::Unknown(_));
        if was_open && matches!(after.state, State::Succeeded(_)) && world.effects_of(before) == 0 {
            return Err(format!("{call} counts as executed, and has no effect"));
        }
        if before.attempt.remote_task.is_none() || !(has_failed || is_next) {
            return Ok(());
        }
        match Self::said(world, before) {
            Said::Ended(_) if has_failed => Err(format!(
                "{call} counts as not executed, although its task has ended"
            )),
            Said::Ended(_) => Err(format!("{call} runs again, although its task has ended")),
            Said::Runs => Err(format!("{call} is settled or runs again beside its task")),
            Said::Gone => Ok(()),
        }
    }

    /// No unknown call is without a check while its server has a task that a gateway has followed.
    pub(crate) fn judge_tasks(world: &World) -> Result<(), Broken> {
        for record in &world.store.calls {
            let is_unknown = matches!(record.state, State::Unknown(_));
            let is_followed =
                |request: &Request| is_task_of(request, record) && request.task == Tasked::Followed;
            if is_unknown
                && record.attempt.remote_task.is_none()
                && world.requests.iter().any(is_followed)
            {
                let call = label(name_of(record));
                return Err(format!("{call} is unknown, and nothing asks for its task"));
            }
        }
        Ok(())
    }
}
