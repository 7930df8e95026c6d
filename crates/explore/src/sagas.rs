//! The worker that undoes the calls of sagas, step by step.
//!
//! Imitates `crates/engine/src/sagas/worker.rs`, and `undo.rs`, `registry.rs` and `compensating.rs` beside it. `rules::saga` decides.

use std::sync::Arc;

use super::model::{Broken, Model, title};
use super::scene::Break;
use super::store::Replaced;
use super::world::{
    Job, SagaJob, SagaStep, Task, World, at, instance, name_of, name_of_undo, undone_by,
};
use oncegate_rules::actor::By;
use oncegate_rules::call::{self, Illegal, UndoEnd};
use oncegate_rules::compensation::Policy;
use oncegate_rules::record::{CallId, Compensation, Record, State};
use oncegate_rules::saga::plan::{Step, plan};
use oncegate_rules::saga::{self, Event, Phase, Saga, SagaId, Trouble};
use oncegate_rules::tool::Tool;
use oncegate_rules::undo;
use oncegate_rules::work::Blocked;

/// The next step of a worker on its saga; `None`: the worker leaves the saga.
type Further = Option<SagaJob>;

/// A call of a saga that is being undone.
struct Undoing {
    saga: Arc<Saga>,
    record: Arc<Record>,
    /// The calls of the saga as they were listed.
    calls: Vec<Arc<Record>>,
}

fn look(saga: Arc<Saga>) -> Further {
    Some(SagaJob {
        saga,
        step: SagaStep::Look,
    })
}

/// The saga that the calls name.
pub(super) fn trip() -> SagaId {
    SagaId::new("", "trip")
}

impl Model {
    /// The saga that the calls name, begun by the first call; `None`: the store lets nothing begin.
    pub(super) fn ensure_saga(&mut self, world: &mut World) -> Option<Arc<Saga>> {
        if let Some(saga) = world.store.saga(&trip()) {
            return Some(saga.clone());
        }
        let begun = Arc::new(Saga::begin(trip(), &self.scene.sagas, at(world.now)));
        (!world.is_closed && world.put_saga(&begun)).then_some(begun)
    }

    /// Makes sure that the saga of a lost call exists, and has it looked at again if it has ended.
    pub(super) fn find_saga_of(&mut self, world: &mut World, record: &Record) -> bool {
        if undone_by(name_of(record)).is_none() && self.ensure_saga(world).is_none() {
            return false;
        }
        if let Some(saga) = world
            .store
            .sagas
            .iter()
            .find(|saga| saga.id.id == record.intent.saga_id)
            .cloned()
        {
            self.move_on(world, &saga, &Event::CallFound);
        }
        true
    }

    /// Writes an event's change of a saga; `None`: it does not fit, or another writer was faster.
    pub(super) fn move_on(
        &mut self,
        world: &mut World,
        saga: &Saga,
        event: &Event,
    ) -> Option<Arc<Saga>> {
        let anyhow;
        let saga = match event {
            Event::Abort { .. } if self.is_broken(Break::AbortsFinishedSaga) => {
                anyhow = Saga {
                    phase: Phase::Open,
                    ..saga.clone()
                };
                &anyhow
            }
            _ => saga,
        };
        let changed = Arc::new(saga::next(saga, event, &self.scene.sagas, at(world.now)).ok()?);
        if *changed == *saga {
            return Some(changed);
        }
        let is_written = !world.is_closed && world.put_saga(&changed);
        if is_written && changed.state() != saga.state() {
            self.say(|| format!("the saga is {}", changed.state().as_str()));
        }
        is_written.then_some(changed)
    }

    /// A worker takes a due saga.
    pub(super) fn take_saga(&mut self, world: &mut World, gateway: u8, saga: &Arc<Saga>) {
        let until = at(world.now + 1);
        self.say(|| {
            format!(
                "a worker of {} takes the saga, which is {}",
                title(gateway),
                saga.state().as_str()
            )
        });
        if let Some(saga) = self.move_on(world, saga, &Event::Taken { until }) {
            let job = Job::Saga(Box::new(SagaJob {
                saga,
                step: SagaStep::Look,
            }));
            world.tasks.push(Task { gateway, job });
        }
    }

    /// One step of the work on a saga.
    pub(super) fn work_on_saga(
        &mut self,
        world: &mut World,
        gateway: u8,
        job: SagaJob,
    ) -> Result<Option<Job>, Broken> {
        let saga = job.saga;
        self.say(|| format!("the worker of {} goes on with the saga", title(gateway)));
        let further = match job.step {
            SagaStep::Look => self.look_at_saga(world, saga),
            SagaStep::Calls { calls, is_fresh } => {
                self.go_through(world, gateway, saga, calls, is_fresh)
            }
            SagaStep::Undoing { record, calls } => {
                let undoing = Undoing {
                    saga,
                    record,
                    calls,
                };
                self.hear_of_undoing(world, gateway, undoing)
            }
            SagaStep::Undone { record, calls } => {
                let event = call::Event::UndoEnded {
                    by: instance(gateway),
                    end: UndoEnd::Undone,
                };
                let changed = self.change(world, gateway, &record, &event);
                Some(SagaJob {
                    saga,
                    step: SagaStep::Advance { changed, calls },
                })
            }
            SagaStep::Advance { changed, mut calls } => self
                .move_on(world, &saga, &Event::Advanced)
                .and_then(|saga| {
                    let Some(changed) = changed else {
                        return look(saga);
                    };
                    renew(&mut calls, &changed);
                    Some(SagaJob {
                        saga,
                        step: SagaStep::Calls {
                            calls,
                            is_fresh: false,
                        },
                    })
                }),
            SagaStep::Put { ahead } => self.put_ahead(world, ahead),
        };
        Ok(further.map(|job| Job::Saga(Box::new(job))))
    }

    fn put_ahead(&mut self, world: &mut World, ahead: Arc<Saga>) -> Further {
        let is_written = !world.is_closed && world.put_saga(&ahead);
        if is_written {
            self.say(|| format!("the saga is {}", ahead.state().as_str()));
        }
        look(ahead).filter(|job| is_written && job.saga.telling.is_some())
    }

    fn look_at_saga(&mut self, world: &mut World, saga: Arc<Saga>) -> Further {
        if saga.telling.is_some() {
            let answered = self.move_on(world, &saga, &Event::Notified { delivered: true })?;
            return look(answered).filter(|job| job.saga.phase.is_stuck_for_now());
        }
        match saga.phase {
            Phase::Open => {
                look(self.move_on(world, &saga, &Event::Overdue { by: String::new() })?)
            }
            Phase::Completed | Phase::Compensated => {
                let all = self.release(world, &saga);
                self.move_on(world, &saga, &Event::Released { all });
                None
            }
            Phase::Compensating { .. }
            | Phase::Stuck {
                is_transient: true, ..
            } => {
                let calls = calls_of(world, &saga);
                Some(SagaJob {
                    saga,
                    step: SagaStep::Calls {
                        calls,
                        is_fresh: true,
                    },
                })
            }
            Phase::Stuck { .. } | Phase::OpenAtLoss => None,
        }
    }

    /// Lets the calls of a finished saga go. Returns whether that was all.
    fn release(&mut self, world: &mut World, saga: &Saga) -> bool {
        let is_of = |record: &&Arc<Record>| {
            record.intent.saga_id == saga.id.id || saga.only == Some(record.intent.call_id)
        };
        let stored: Vec<_> = world
            .store
            .calls
            .iter()
            .filter(is_of)
            .filter(|record| record.retain_until.is_none())
            .cloned()
            .collect();
        let event = call::Event::SagaEnded { by: instance(0) };
        let mut all = true;
        for record in stored {
            all &= self.change(world, 0, &record, &event).is_some();
        }
        all
    }

    /// The next step for a saga that is being undone, by its calls as they were listed.
    fn go_through(
        &mut self,
        world: &mut World,
        gateway: u8,
        saga: Arc<Saga>,
        mut calls: Vec<Arc<Record>>,
        is_fresh: bool,
    ) -> Further {
        let tool = self.scene.tool.clone();
        let members: Vec<(&Record, &Tool)> = calls
            .iter()
            .map(|record| (record.as_ref(), &tool))
            .collect();
        let mut step = plan(&saga, &members, at(world.now));
        if self.is_broken(Break::UndoesWithoutWaiting)
            && let Step::Wait(record, ..) = step
        {
            step = Step::ToCompensate(record);
        }
        let record = match step {
            Step::ToCompensate(record) | Step::Undo(record) => record,
            // The calls are listed once more before the next decision.
            _ if !is_fresh => return look(saga),
            Step::Wait(record, blocker, why) => {
                let id = record.intent.call_id;
                return self.block(world, gateway, &saga, Some(id), &Blocked::by(blocker, why));
            }
            Step::Rest => return look(self.move_on(world, &saga, &Event::Rested)?),
            Step::Stuck(record) => {
                let id = record.intent.call_id;
                return self.block(
                    world,
                    gateway,
                    &saga,
                    Some(id),
                    &Blocked::for_good("it could not be undone"),
                );
            }
            Step::Done => {
                return look(self.move_on(world, &saga, &Event::Undone { by: String::new() })?);
            }
        };
        let whole = world.store.load(record.intent.call_id).cloned();
        let Some(record) = whole.filter(|whole| whole.version == record.version) else {
            return look(saga);
        };
        if matches!(record.state, State::Compensating(_)) {
            let undoing = Undoing {
                saga,
                record,
                calls,
            };
            return self.undo(world, gateway, undoing);
        }
        match self.begin_compensating(world, &record) {
            Ok(Some(marked)) => {
                renew(&mut calls, &marked);
                Some(SagaJob {
                    saga,
                    step: SagaStep::Calls { calls, is_fresh },
                })
            }
            Ok(None) => look(saga),
            Err(illegal) => {
                let why = match illegal {
                    Illegal::MayStillRun => Blocked::busy("its request may still reach the tool"),
                    _ => Blocked::for_good(illegal.to_string()),
                };
                self.block(world, gateway, &saga, Some(record.intent.call_id), &why)
            }
        }
    }

    /// Marks a call with its compensation; `None`: another writer was faster.
    pub(super) fn begin_compensating(
        &mut self,
        world: &mut World,
        record: &Arc<Record>,
    ) -> Result<Option<Arc<Record>>, Illegal> {
        let name = name_of_undo(record.intent.call_id);
        let decided = record.compensation().cloned();
        let made = || match &self.scene.tool.compensation {
            Policy::By(template) => Some(Compensation {
                tool: template.tool.clone(),
                call_id: world.fresh_call(name),
            }),
            Policy::Undeclared | Policy::Needless => None,
        };
        let event = call::Event::ToCompensate {
            by: By::token("", ""),
            compensation: decided.or_else(made),
        };
        let next = self.decide(Some(record), name_of(record), &event, world.now)?;
        let Some(change) = next.change else {
            return Ok(None);
        };
        let marked = match world.replace(&change, record, self.broken) {
            Replaced::Done(marked) => marked,
            Replaced::Lost(_) | Replaced::Refused => return Ok(None),
        };
        self.say(|| {
            format!(
                "{} is marked: {}",
                Self::call_label(&marked),
                marked.state.as_str()
            )
        });
        Ok(Some(marked))
    }

    /// Sends the compensation of a call, unless that has ended already.
    fn undo(&mut self, world: &mut World, gateway: u8, undoing: Undoing) -> Further {
        let name = name_of_undo(undoing.record.intent.call_id);
        let there = undoing.record.compensation();
        let there = there.and_then(|undone| world.store.load(undone.call_id).cloned());
        match there {
            Some(there) if !matches!(there.state, State::Failed(_)) => {
                self.read_end(world, gateway, undoing, &there)
            }
            _ => {
                let Undoing {
                    saga,
                    record,
                    calls,
                } = undoing;
                if record.is_erased()
                    && let Policy::By(template) = &self.scene.tool.compensation
                    && let Err(why) = template.args(&record)
                {
                    let id = record.intent.call_id;
                    return self.block(world, gateway, &saga, Some(id), &Blocked::for_good(why));
                }
                let until = at(world.now + 2);
                let saga = self.move_on(world, &saga, &Event::Prolonged { until })?;
                let runs_here = |task: &Task| task.gateway == gateway && task.runs() == Some(name);
                if !world.tasks.iter().any(runs_here) {
                    let until = Self::sends_until(world);
                    let job = Job::Arrived {
                        name,
                        seen: None,
                        until,
                    };
                    world.tasks.push(Task { gateway, job });
                }
                Some(SagaJob {
                    saga,
                    step: SagaStep::Undoing { record, calls },
                })
            }
        }
    }

    fn read_end(
        &mut self,
        world: &mut World,
        gateway: u8,
        undoing: Undoing,
        there: &Record,
    ) -> Further {
        let Undoing {
            saga,
            record,
            calls,
        } = undoing;
        match undo::outcome_of(there, &self.scene.cancel) {
            Ok(()) => Some(SagaJob {
                saga,
                step: SagaStep::Undone { record, calls },
            }),
            Err(why) => self.block(world, gateway, &saga, Some(record.intent.call_id), &why),
        }
    }

    /// The run of a compensation is over, or takes too long.
    fn hear_of_undoing(&mut self, world: &mut World, gateway: u8, undoing: Undoing) -> Further {
        let call_id = undoing.record.intent.call_id;
        match world.store.holder(name_of_undo(call_id)).cloned() {
            Some(there) => self.read_end(world, gateway, undoing, &there),
            None => self.block(
                world,
                gateway,
                &undoing.saga,
                Some(call_id),
                &Blocked::busy("nothing was begun"),
            ),
        }
    }

    /// Writes down what blocks a saga. A call that is given up is marked before its saga is.
    fn block(
        &mut self,
        world: &mut World,
        gateway: u8,
        saga: &Arc<Saga>,
        call_id: Option<CallId>,
        blocked: &Blocked,
    ) -> Further {
        self.say(|| format!("the saga waits: {}", blocked.why));
        let event = Event::Blocked {
            by: String::new(),
            trouble: Trouble {
                call_id,
                why: String::new(),
            },
            blocker: blocked.blocker,
            jitter: 1.0,
        };
        let ahead = Arc::new(saga::next(saga, &event, &self.scene.sagas, at(world.now)).ok()?);
        let gives_up = ahead.state() == saga::State::Stuck && !ahead.phase.is_stuck_for_now();
        let record = call_id.and_then(|id| world.store.load(id).cloned());
        if let Some(record) =
            record.filter(|record| gives_up && matches!(record.state, State::Compensating(_)))
        {
            let stuck = call::Event::UndoEnded {
                by: instance(gateway),
                end: UndoEnd::Stuck(String::new()),
            };
            self.change(world, gateway, &record, &stuck)?;
            return Some(SagaJob {
                saga: saga.clone(),
                step: SagaStep::Put { ahead },
            });
        }
        self.put_ahead(world, ahead)
    }
}

/// The calls of a saga, without their compensations.
pub(super) fn calls_of(world: &World, saga: &Saga) -> Vec<Arc<Record>> {
    let is_of = |record: &&Arc<Record>| match saga.only {
        Some(only) => record.intent.call_id == only,
        None => record.intent.saga_id == saga.id.id && undone_by(name_of(record)).is_none(),
    };
    world.store.calls.iter().filter(is_of).cloned().collect()
}

fn renew(calls: &mut [Arc<Record>], changed: &Arc<Record>) {
    let id = changed.intent.call_id;
    for record in calls
        .iter_mut()
        .filter(|record| record.intent.call_id == id)
    {
        *record = changed.clone();
    }
}
