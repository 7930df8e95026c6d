//! The tool, and the network before it: what may happen to a request.

use super::gateway::Answers;
use super::model::{Broken, Model, label, title};
use super::world::{Job, Request, Seen, Task, World, Write};

impl Model {
    /// The tool executes a request. A tool that deduplicates does so once for each key.
    pub(super) fn execute(&mut self, world: &mut World, at: usize) -> Result<(), Broken> {
        let request = world.requests[at];
        let effects = world.truth(request.name).effects;
        if self.dedups(request.name) && effects > 0 {
            self.say(|| format!("the tool knows {} already", label(request.name)));
            world.requests[at].executed = Some(effects);
            return Ok(());
        }
        self.say(|| format!("the tool executes {}", label(request.name)));
        if request.is_forgiven {
            world.requests[at].executed = Some(0);
            return Ok(());
        }
        self.judge_effect(world, &request)?;
        world.requests[at].executed = Some(world.truth(request.name).effects);
        Ok(())
    }

    /// The tool's answer to a request arrives, if its gateway still listens.
    pub(super) fn answer(
        &mut self,
        world: &mut World,
        at: usize,
        seen: Seen,
    ) -> Result<(), Broken> {
        let request = world.requests.remove(at);
        let is_of = |job: &Job| match job {
            Job::Wait { record, .. } | Job::Listen { record, .. } => {
                record.attempt.id.0.as_u128() == request.attempt
            }
            _ => false,
        };
        let Some(place) = world.tasks.iter().position(|task| is_of(&task.job)) else {
            return Ok(());
        };
        let what = if seen == Seen::Refused {
            "refuses"
        } else {
            "answers with success for"
        };
        self.say(|| format!("the tool {what} {}", label(request.name)));
        let task = world.tasks.remove(place);
        let job = match task.job {
            Job::Wait {
                record,
                until,
                tells,
            } => self.ended(world, task.gateway, record, seen, until, tells)?,
            Job::Listen { record, until } => {
                let write = Self::ending(record, seen, None, until);
                Job::Write(Box::new(Write {
                    tells: false,
                    ..write
                }))
            }
            job => job,
        };
        world.tasks.push(Task {
            gateway: task.gateway,
            job,
        });
        Ok(())
    }

    /// The network sends a request twice.
    pub(super) fn repeat(&mut self, world: &mut World, at: usize) {
        let request = world.requests[at];
        self.say(|| {
            format!(
                "something on the way sends the request for {} twice",
                label(request.name)
            )
        });
        world.left.repeats -= 1;
        world.requests.push(Request {
            executed: None,
            ..request
        });
    }

    /// An attempt ends without an answer: its gateway cannot reach the tool, or has waited long enough.
    pub(super) fn end_unanswered(&mut self, world: &mut World, at: usize) -> Result<(), Broken> {
        let Task { gateway, job } = world.tasks.remove(at);
        let (record, until, tells, seen) = match job {
            Job::Send {
                record,
                until,
                tells,
            } => (record, until, tells, Seen::NotSent),
            Job::Wait {
                record,
                until,
                tells,
            } => (record, until, tells, Seen::NoAnswer),
            Job::Follow {
                record,
                until,
                tells,
            } => (record, until, tells, Seen::Task),
            _ => return Ok(()),
        };
        self.say(|| match seen {
            Seen::NotSent => format!("{} cannot reach the tool", title(gateway)),
            Seen::Task => format!("{} follows the task no longer", title(gateway)),
            _ => {
                let call = Self::call_label(&record);
                format!("{} has waited long enough for {call}", title(gateway))
            }
        });
        let job = self.ended(world, gateway, record, seen, until, tells)?;
        world.tasks.push(Task { gateway, job });
        Ok(())
    }

    /// The next step of a task.
    pub(super) fn go(
        &mut self,
        world: &mut World,
        at: usize,
        answers: Answers,
    ) -> Result<(), Broken> {
        let task = world.tasks.remove(at);
        let gateway = task.gateway;
        let next = match task.job {
            Job::Arrived { name, seen, until } => {
                self.claim(world, gateway, name, seen, until, answers)?
            }
            Job::ReleaseUnconfirmed { record } => self.release_unconfirmed(world, gateway, record),
            Job::Join { record, until } => self.join(world, gateway, record, until)?,
            Job::Send {
                record,
                until,
                tells,
            } => Some(self.send(world, gateway, record, until, tells)?),
            Job::Given {
                record,
                until,
                tells,
            } => Some(self.note_task(world, gateway, record, (until, tells), answers)),
            Job::Follow {
                record,
                until,
                tells,
            } => Some(self.look_at_task(world, gateway, record, (until, tells))?),
            Job::See { record } => Some(self.see(world, gateway, record)),
            Job::Saw { record, said } => {
                self.note_seen(world, gateway, &record, said);
                None
            }
            Job::Write(write) => self.write(world, gateway, *write, answers)?,
            Job::Lost { record } => {
                self.settle_lost(world, gateway, &record);
                None
            }
            Job::Check { record, until } => self.check(world, gateway, record, until),
            Job::Ask { record, asked_at } => Some(self.ask(world, gateway, record, asked_at)),
            Job::Note {
                record,
                asked_at,
                found,
            } => {
                self.note(world, gateway, &record, asked_at, found);
                None
            }
            Job::Begin {
                record,
                request,
                until,
            } => self.begin(world, gateway, &record, request, until)?,
            Job::Saga(job) => self.work_on_saga(world, gateway, *job)?,
            job @ (Job::Wait { .. } | Job::Listen { .. }) => Some(job),
        };
        if let Some(job) = next {
            world.tasks.push(Task { gateway, job });
        }
        Ok(())
    }
}
