//! Forgets everything that can have no consequence any more, and makes steps at once that no other step can change.
//!
//! A task that has read an older version of a call than the stored one cannot write: its compare-and-swap fails, and it
//! goes on with the newer version. Here it does so at once, unless a test breaks the comparison or the store may go back.

use std::sync::Arc;

use super::model::Model;
use super::scene::Break;
use super::world::{Job, Request, Seen, Task, Tasked, World, Write, name_of};
use oncegate_rules::record::{Record, State};

impl Model {
    /// Puts tasks into an order that is the same in equal states.
    pub(super) fn sort_tasks(world: &mut World) {
        world.tasks.sort_by_key(|task| {
            let kind = match &task.job {
                Job::Arrived { name, .. } => (1, *name),
                Job::ReleaseUnconfirmed { record } => (2, name_of(record)),
                Job::Join { record, .. } => (3, name_of(record)),
                Job::Send { record, .. } => (4, name_of(record)),
                Job::Wait { record, .. } => (5, name_of(record)),
                Job::Write(write) => (6, name_of(&write.record)),
                Job::Listen { record, .. } => (7, name_of(record)),
                Job::Lost { record } => (8, name_of(record)),
                Job::Check { record, .. } => (9, name_of(record)),
                Job::Ask { record, .. } => (10, name_of(record)),
                Job::Note { record, .. } => (11, name_of(record)),
                Job::Begin { record, .. } => (13, name_of(record)),
                Job::Given { record, .. } => (14, name_of(record)),
                Job::Follow { record, .. } => (15, name_of(record)),
                Job::See { record } => (16, name_of(record)),
                Job::Saw { record, .. } => (17, name_of(record)),
                Job::Saga(_) => (12, 0),
            };
            (
                task.gateway,
                kind,
                task.records().first().map(|record| record.attempt.id.0),
            )
        });
    }

    /// Whether a task that has read an older version can never write.
    pub(super) fn compares(&self, world: &World) -> bool {
        world.copy.is_none() && !self.is_broken(Break::ReplacesWithoutComparing)
    }

    pub(super) fn tidy(&self, world: &mut World) {
        let now = world.now;
        if self.compares(world) {
            self.move_stale_tasks(world);
        }
        world
            .tasks
            .retain(|task| !matches!(task.job, Job::Listen { until, .. } if until <= now));
        let tasks = &world.tasks;
        let is_heard = |request: &Request| {
            tasks.iter().any(|task| match &task.job {
                Job::Wait { record, .. } | Job::Listen { record, .. } => {
                    record.attempt.id.0.as_u128() == request.attempt
                }
                _ => false,
            })
        };
        let open: Vec<u128> = if self.has_tasks() {
            let is_open =
                |record: &&Arc<Record>| matches!(record.state, State::Running | State::Unknown(_));
            let open = world.records().filter(is_open);
            open.map(|record| record.attempt.id.0.as_u128()).collect()
        } else {
            Vec::new()
        };
        // A gateway may still ask the server for its task.
        let is_asked =
            |request: &Request| request.task != Tasked::No && open.contains(&request.attempt);
        let truth = &world.truth;
        let has_effect = |name| {
            truth
                .iter()
                .any(|(held, truth)| *held == name && truth.effects > 0)
        };
        world.requests.retain(|request| match request.executed {
            Some(_) => is_heard(request) || (is_asked(request) && request.task != Tasked::Gone),
            // A tool that deduplicates does not execute a known key again.
            None => {
                now < request.until
                    && (is_heard(request)
                        || is_asked(request)
                        || !self.dedups(request.name)
                        || !has_effect(request.name))
            }
        });
        for request in &mut world.requests {
            if !is_asked(request) {
                request.task = Tasked::No;
            }
        }
        for request in world
            .requests
            .iter_mut()
            .filter(|request| self.dedups(request.name) && request.task == Tasked::No)
        {
            if !is_heard(request) {
                request.attempt = 0;
            }
        }
        world.requests.sort_unstable();
        // Of several requests that no task waits for, the last to arrive may do everything that the others may do.
        let requests = std::mem::take(&mut world.requests);
        for request in requests {
            match world.requests.last_mut() {
                Some(last)
                    if request.attempt == 0
                        && last.attempt == 0
                        && last.name == request.name
                        && last.is_forgiven == request.is_forgiven =>
                {
                    last.until = last.until.max(request.until);
                }
                _ => world.requests.push(request),
            }
        }
    }

    fn move_stale_tasks(&self, world: &mut World) {
        let tasks = std::mem::take(&mut world.tasks);
        for task in tasks {
            let gateway = task.gateway;
            if let Some(job) = self.moved(world, task.job) {
                world.tasks.push(Task { gateway, job });
            }
        }
    }

    /// The next job of a task, as the store is now; `None`: it can make no difference.
    fn moved(&self, world: &World, job: Job) -> Option<Job> {
        let newest = |record: &Record| world.store.load(record.intent.call_id);
        let is_unknown = |record: &Record| {
            newest(record).is_some_and(|newest| {
                newest.attempt.id == record.attempt.id && matches!(newest.state, State::Unknown(_))
            })
        };
        let now = world.now;
        let is_under_way = |record: &Record| {
            world
                .requests
                .iter()
                .any(|request| request.attempt == record.attempt.id.0.as_u128())
        };
        match job {
            Job::Arrived {
                name,
                seen: Some(seen),
                until,
            } => {
                let seen = world.store.holder(name).or(newest(&seen)).cloned();
                Some(Job::Arrived { name, seen, until })
            }
            Job::ReleaseUnconfirmed { record } => newest(&record)
                .is_some_and(|newest| newest.version == record.version)
                .then_some(Job::ReleaseUnconfirmed { record }),
            Job::Write(write) if write.pending.is_none() => self.moved_write(world, *write),
            Job::Join { record, until }
                if until <= now
                    && newest(&record).is_none_or(|newest| newest.version != record.version) =>
            {
                None
            }
            // It is too late to send, or no request that could be answered is under way.
            Job::Send {
                record,
                until,
                tells,
            } if until <= now && !self.is_broken(Break::SendsAfterDeadline) => self.moved_write(
                world,
                Self::without_answer(record, Seen::NotSent, until, tells),
            ),
            Job::Wait {
                record,
                until,
                tells,
            } if !is_under_way(&record) && until <= now => self.moved_write(
                world,
                Self::without_answer(record, Seen::NoAnswer, until, tells),
            ),
            Job::Ask { record, asked_at } => {
                is_unknown(&record).then_some(Job::Ask { record, asked_at })
            }
            Job::Note {
                record,
                asked_at,
                found,
            } => is_unknown(&record).then_some(Job::Note {
                record,
                asked_at,
                found,
            }),
            Job::See { record } => is_unknown(&record).then_some(Job::See { record }),
            Job::Saw { record, said } => is_unknown(&record).then_some(Job::Saw { record, said }),
            Job::Given {
                record,
                until,
                tells,
            } => Some(
                match newest(&record).filter(|newest| newest.attempt.id == record.attempt.id) {
                    Some(newest) => Job::Given {
                        record: newest.clone(),
                        until,
                        tells,
                    },
                    None => Job::Follow {
                        record,
                        until,
                        tells,
                    },
                },
            ),
            Job::Follow {
                record,
                until,
                tells,
            } => {
                let same = newest(&record).filter(|newest| newest.attempt.id == record.attempt.id);
                Some(Job::Follow {
                    record: same.cloned().unwrap_or(record),
                    until,
                    tells,
                })
            }
            Job::Begin { record, .. }
                if newest(&record).is_none_or(|newest| newest.version != record.version) =>
            {
                None
            }
            job => Some(job),
        }
    }

    /// An attempt that has ended after its run's time: no further attempt follows.
    fn without_answer(record: Arc<Record>, seen: Seen, until: i64, tells: bool) -> Write {
        Write {
            tells,
            listens: seen == Seen::NoAnswer,
            ..Self::ending(record, seen, None, until)
        }
    }

    fn moved_write(&self, world: &World, mut write: Write) -> Option<Job> {
        let newest = world.store.load(write.record.intent.call_id)?.clone();
        write.renew(newest);
        let event = Self::event_of(&write, 0);
        // A known result stays known.
        let proves = matches!(write.seen, Seen::Executed(_) | Seen::Ended(_))
            && write.record.state.content().is_none();
        let is_news = proves
            || self
                .decide(
                    Some(&write.record),
                    name_of(&write.record),
                    &event,
                    world.now,
                )
                .is_ok();
        if is_news {
            return Some(Job::Write(Box::new(write)));
        }
        let record: Arc<Record> = write.record;
        let listens = write.listens
            && record.attempt.id == write.attempt
            && matches!(record.state, State::Unknown(_));
        listens.then_some(Job::Listen {
            record,
            until: write.until + 1,
        })
    }
}
