//! The steps that may happen next, and their results.

use std::sync::Arc;

use super::gateway::Answers;
use super::model::{Broken, Model, title};
use super::operators::Act;
use super::scene::Break;
use super::world::{
    Job, Name, SagaStep, Said, Seen, Store, Task, Tasked, World, at, instance, name_of, undone_by,
};
use oncegate_rules::record::{CallId, State};
use oncegate_rules::saga::Phase;

/// One step. Numbers are indexes into the lists of the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Arrive(u8, Name),
    ArriveUnanswered(u8, Name),
    Go(u8),
    GoUnanswered(u8),
    NotReached(u8),
    GiveUp(u8),
    Execute(u8),
    Answer(u8),
    Refuse(u8),
    GiveTask(u8),
    EndTask(u8),
    Cancel(u8),
    Repeat(u8),
    Crash(u8),
    TakeUp(u8, u8),
    TakeSaga(u8, u8),
    Resolve(u8),
    Pause,
    Resume,
    CleanUp,
    Act(Act),
    UndoOne(u8),
    Unlock,
    Erase(u8),
    Copy,
    Lose(Option<Name>),
    Accept,
    Look(u8),
    Approve(u8, u8),
    Decline(u8),
    Reload,
}

impl Step {
    /// Whether the step is neither a fault nor a new request, but time, a gateway or an operator at work.
    pub(super) fn is_help(self) -> bool {
        match self {
            Self::Tick
            | Self::Go(_)
            | Self::GiveUp(_)
            | Self::TakeUp(..)
            | Self::TakeSaga(..)
            | Self::Resolve(_)
            | Self::Resume
            | Self::CleanUp
            | Self::Act(Act::Retry | Act::Skip | Act::Complete)
            | Self::Accept => true,
            Self::Arrive(..)
            | Self::ArriveUnanswered(..)
            | Self::GoUnanswered(_)
            | Self::NotReached(_)
            | Self::Execute(_)
            | Self::Answer(_)
            | Self::Refuse(_)
            | Self::GiveTask(_)
            | Self::EndTask(_)
            | Self::Cancel(_)
            | Self::Repeat(_)
            | Self::Crash(_)
            | Self::Pause
            | Self::Act(Act::Abort)
            | Self::UndoOne(_)
            | Self::Unlock
            | Self::Erase(_)
            | Self::Copy
            | Self::Look(_)
            | Self::Approve(..)
            | Self::Decline(_)
            | Self::Reload
            | Self::Lose(_) => false,
        }
    }
}

/// The indexes of a list, as steps name them.
fn places<T>(list: &[T]) -> impl Iterator<Item = (u8, &T)> {
    (0_u8..).zip(list)
}

impl Model {
    /// All steps that may happen now.
    pub(super) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let waits = |task: &Task| match &task.job {
            Job::Wait { .. } | Job::Follow { .. } | Job::Listen { .. } => true,
            Job::Saga(job) => matches!(job.step, SagaStep::Undoing { .. }),
            _ => false,
        };
        if self.scene.stalls || world.tasks.iter().all(waits) {
            steps.push(Step::Tick);
        }
        self.add_arrivals(world, &mut steps);
        for (at, task) in places(&world.tasks) {
            match &task.job {
                Job::Wait { .. } => steps.push(Step::GiveUp(at)),
                Job::Listen { .. } => {}
                Job::Follow { record, .. } => {
                    steps.push(Step::GiveUp(at));
                    if Self::said(world, record) != Said::Runs {
                        steps.push(Step::Go(at));
                    }
                }
                job => {
                    steps.push(Step::Go(at));
                    let writes = matches!(job, Job::Arrived { .. } | Job::Given { .. })
                        || matches!(job, Job::Write(write) if write.pending.is_none());
                    if writes && world.left.unanswered > 0 {
                        steps.push(Step::GoUnanswered(at));
                    }
                    if matches!(job, Job::Send { .. }) && world.left.refusals > 0 {
                        steps.push(Step::NotReached(at));
                    }
                }
            }
        }
        self.add_outside(world, &mut steps);
        for gateway in 0..2 {
            if world.left.crashes > 0 && self.has_life(world, gateway) {
                steps.push(Step::Crash(gateway));
            }
            self.add_work(world, gateway, &mut steps);
        }
        self.add_operators(world, &mut steps);
        if world.left.losses > 0 {
            match &world.copy {
                None => steps.push(Step::Copy),
                Some(_) => {
                    steps.push(Step::Lose(None));
                    if self.scene.keys > 1 {
                        steps.push(Step::Lose(Some(0)));
                    }
                }
            }
        }
        if world.is_closed {
            steps.push(Step::Accept);
        }
        steps
    }

    fn has_life(&self, world: &World, gateway: u8) -> bool {
        let owns = world.store.calls.iter().any(|record| {
            record.attempt.owner == instance(gateway) && record.state == State::Running
        });
        owns || world.tasks.iter().any(|task| task.gateway == gateway)
    }

    fn add_arrivals(&self, world: &World, steps: &mut Vec<Step>) {
        // Gateways are alike, and so are keys: without loss of generality the first request is for key 1 at gateway A.
        let is_first = world.left.arrivals == self.scene.left.arrivals;
        let (gateways, keys) = if is_first {
            (1, 1)
        } else {
            (2, self.scene.keys)
        };
        for gateway in 0..gateways {
            for name in 0..keys {
                // A request whose call runs in this process joins that run, and is told the same.
                let runs = world
                    .tasks
                    .iter()
                    .any(|task| task.gateway == gateway && task.runs() == Some(name));
                if world.left.arrivals[usize::from(gateway)] > 0 && !runs {
                    steps.push(Step::Arrive(gateway, name));
                    if world.left.unanswered > 0 {
                        steps.push(Step::ArriveUnanswered(gateway, name));
                    }
                }
            }
        }
    }

    fn add_outside(&self, world: &World, steps: &mut Vec<Step>) {
        for (at, request) in places(&world.requests) {
            if matches!(request.task, Tasked::Given | Tasked::Followed) && world.left.gone > 0 {
                steps.push(Step::EndTask(at));
            }
            match request.executed {
                Some(_) if request.task == Tasked::No => steps.push(Step::Answer(at)),
                Some(_) => {}
                None if request.task != Tasked::No => steps.push(Step::Execute(at)),
                None => {
                    steps.push(Step::Execute(at));
                    let knows = self.dedups(request.name) && world.truth(request.name).effects > 0;
                    let is_heard = world.tasks.iter().any(|task| match &task.job {
                        Job::Wait { record, .. } | Job::Listen { record, .. } => {
                            record.attempt.id.0.as_u128() == request.attempt
                        }
                        _ => false,
                    });
                    if !knows && is_heard && world.left.refusals > 0 {
                        steps.push(Step::Refuse(at));
                    }
                    if world.left.tasks > 0 && Self::is_waited_for(world, request) {
                        steps.push(Step::GiveTask(at));
                    }
                    if world.left.repeats > 0 && self.dedups(request.name) {
                        steps.push(Step::Repeat(at));
                    }
                }
            }
        }
    }

    fn add_work(&self, world: &World, gateway: u8, steps: &mut Vec<Step>) {
        if world
            .tasks
            .iter()
            .any(|task| task.gateway == gateway && task.is_worker())
        {
            return;
        }
        for (place, record) in places(&world.store.calls) {
            let is_due = self.is_due(world, record) || self.is_waiting(world, record);
            if is_due || self.is_lost(world, gateway, record) {
                steps.push(Step::TakeUp(gateway, place));
            }
        }
        for (place, saga) in places(&world.store.sagas) {
            let is_due = saga
                .work
                .due
                .at()
                .is_some_and(|due_at| due_at <= at(world.now));
            let is_free = world.left.takeovers > 0 || !Self::is_worked_on(world);
            if is_due && is_free && !world.is_closed {
                steps.push(Step::TakeSaga(gateway, place));
            }
        }
    }

    /// Whether a gateway works on a saga.
    fn is_worked_on(world: &World) -> bool {
        world
            .tasks
            .iter()
            .any(|task| matches!(task.job, Job::Saga(_)))
    }

    fn add_operators(&self, world: &World, steps: &mut Vec<Step>) {
        for (place, record) in places(&world.store.calls) {
            let resolves = self.resolution(world, record).is_some()
                || Self::resolution_of_stuck(world, record).is_some();
            if resolves && !world.is_closed {
                steps.push(Step::Resolve(place));
            }
            if world.left.erasures > 0 && self.may_erase(world, record) {
                steps.push(Step::Erase(place));
            }
            if record.state == State::Proposed && !world.is_closed {
                if world.left.looks > 0 {
                    steps.push(Step::Look(place));
                }
                if world.page.is_some() {
                    steps.extend((0..self.scene.approvals).map(|by| Step::Approve(place, by)));
                }
            }
            let waits = matches!(record.state, State::Proposed | State::Approved);
            if waits && world.left.declines > 0 && !world.is_closed {
                steps.push(Step::Decline(place));
            }
            if Self::may_cancel(world, record) {
                steps.push(Step::Cancel(place));
            }
            if world.left.undos > 0 && undone_by(name_of(record)).is_none() {
                steps.push(Step::UndoOne(place));
            }
        }
        if world.left.reloads > 0 {
            steps.push(Step::Reload);
        }
        if world.left.pauses > 0 && !world.is_paused {
            steps.push(Step::Pause);
        }
        if world.is_paused {
            steps.push(Step::Resume);
        }
        // Nothing is deleted while the store may have lost data.
        if self.has_old(world) && !world.is_closed {
            steps.push(Step::CleanUp);
        }
        if world.left.unlocks > 0 && world.store.lock.is_some() {
            steps.push(Step::Unlock);
        }
        if !world.store.sagas.is_empty() {
            let acts = [Act::Complete, Act::Abort, Act::Retry, Act::Skip];
            steps.extend(
                acts.into_iter()
                    .filter(|act| self.would_act(world, *act))
                    .map(Step::Act),
            );
        }
    }

    /// The state after a step; `None`: the step changes nothing.
    ///
    /// # Errors
    /// The promise is broken.
    pub(super) fn after(&mut self, before: &World, step: Step) -> Result<Option<World>, Broken> {
        let mut world = before.clone();
        self.take(&mut world, step)?;
        let loses = matches!(step, Step::Lose(_) | Step::Accept);
        self.judge_step(before, &mut world, loses)?;
        self.tidy(&mut world);
        Self::sort_tasks(&mut world);
        Ok(Some(world))
    }

    fn take(&mut self, world: &mut World, step: Step) -> Result<(), Broken> {
        let place = |at: u8| usize::from(at);
        match step {
            Step::Tick => {
                world.now += 1;
                self.say(|| "time passes".into());
                if self.is_broken(Break::UnknownExpires) {
                    self.expire_unknown(world);
                }
            }
            Step::Arrive(gateway, name) => {
                world.left.arrivals[place(gateway)] -= 1;
                self.arrive(world, gateway, name, Answers::Yes)?;
            }
            Step::ArriveUnanswered(gateway, name) => {
                world.left.arrivals[place(gateway)] -= 1;
                world.left.unanswered -= 1;
                self.arrive(world, gateway, name, Answers::Lost)?;
            }
            Step::Go(at) => self.go(world, place(at), Answers::Yes)?,
            Step::GoUnanswered(at) => {
                world.left.unanswered -= 1;
                self.go(world, place(at), Answers::Lost)?;
            }
            Step::NotReached(at) => {
                world.left.refusals -= 1;
                self.end_unanswered(world, place(at))?;
            }
            Step::GiveUp(at) => self.end_unanswered(world, place(at))?,
            Step::Execute(at) => self.execute(world, place(at))?,
            Step::Answer(at) => {
                let effect = world.requests[place(at)].executed.unwrap_or(0);
                self.answer(world, place(at), Seen::Executed(effect))?;
            }
            Step::Refuse(at) => {
                world.left.refusals -= 1;
                self.answer(world, place(at), Seen::Refused)?;
            }
            Step::GiveTask(at) => self.give_task(world, place(at)),
            Step::EndTask(at) => self.end_task(world, place(at)),
            Step::Cancel(at) => {
                let record = world.store.calls[place(at)].clone();
                self.cancel(world, &record);
            }
            Step::Repeat(at) => self.repeat(world, place(at)),
            Step::Crash(gateway) => {
                self.say(|| format!("{} ends without a word, and starts again", title(gateway)));
                world.left.crashes -= 1;
                world.crash(gateway);
            }
            Step::TakeUp(gateway, at) => {
                let record = world.store.calls[place(at)].clone();
                self.take_up(world, gateway, record)?;
            }
            Step::TakeSaga(gateway, at) => {
                let saga = world.store.sagas[place(at)].clone();
                world.left.takeovers -= u8::from(Self::is_worked_on(world));
                self.take_saga(world, gateway, &saga);
            }
            Step::Resolve(at) => {
                let record = world.store.calls[place(at)].clone();
                if let Some(resolution) = self.resolution(world, &record) {
                    self.resolve(world, &record, resolution);
                } else if let Some(resolution) = Self::resolution_of_stuck(world, &record) {
                    self.resolve_stuck(world, &record, resolution);
                }
            }
            Step::Pause => {
                self.say(|| "an operator pauses the tool".into());
                world.left.pauses -= 1;
                world.is_paused = true;
            }
            Step::Resume => {
                self.say(|| "an operator resumes the tool".into());
                world.is_paused = false;
            }
            Step::CleanUp => self.clean_up(world),
            Step::Act(act) => {
                if matches!(act, Act::Complete | Act::Abort) {
                    world.left.ends = world.left.ends.saturating_sub(1);
                }
                self.act_on_saga(world, act);
            }
            Step::UndoOne(at) => {
                let id: CallId = world.store.calls[place(at)].intent.call_id;
                self.undo_one(world, id);
            }
            Step::Unlock => self.unlock(world),
            Step::Erase(at) => {
                let record = world.store.calls[place(at)].clone();
                self.erase(world, &record);
            }
            Step::Copy => {
                self.say(|| "what the store writes from now on may be lost".into());
                let copy = Store {
                    whole_until: Some(world.now),
                    ..world.store.clone()
                };
                world.copy = Some(Arc::new(copy));
            }
            Step::Lose(keeps) => self.lose(world, keeps),
            Step::Accept => self.accept_loss(world),
            Step::Look(at) => {
                let record = world.store.calls[place(at)].clone();
                self.look_at(world, &record);
            }
            Step::Approve(at, approver) => {
                let record = world.store.calls[place(at)].clone();
                self.approve(world, &record, approver)?;
            }
            Step::Decline(at) => {
                let record = world.store.calls[place(at)].clone();
                self.decline(world, &record);
            }
            Step::Reload => {
                self.say(|| "a reload makes the request for the tool another one".into());
                world.left.reloads -= 1;
                world.request += 1;
            }
        }
        Ok(())
    }

    /// Whether all calls and the saga are at their end.
    pub(super) fn is_rest(world: &World) -> bool {
        let calls = world
            .store
            .calls
            .iter()
            .all(|record| Self::is_settled(&record.state));
        let is_over = |phase: Phase| matches!(phase, Phase::Completed | Phase::Compensated);
        calls
            && world.tasks.is_empty()
            && world.store.sagas.iter().all(|saga| is_over(saga.phase))
            && !world.is_closed
    }

    fn would_act(&self, world: &World, act: Act) -> bool {
        let finished = world
            .store
            .sagas
            .iter()
            .any(|saga| saga.phase.is_over() && saga.only.is_none());
        let breaks = self.is_broken(Break::AbortsFinishedSaga)
            && act == Act::Abort
            && finished
            && world.left.ends > 0;
        breaks || Self::may_act(world, act)
    }
}
