//! Sagas are worked on: what is to be undone is undone, step by step, on any gateway. What is done next is
//! decided by `core::saga`; each step is written down before the next, so that another gateway can go on there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::base::Base;
use super::calls::Engine;
use super::calls::InternalCall;
use super::error::ErrorKind;
use super::ids::jitter;
use super::sagas::{Marked, Member, SagaRegistry, Unlisted};
use super::transition;
use super::webhook::Notifier;
use crate::core::call::{self, Illegal, UndoEnd};
use crate::core::compensation::{self, Template};
use crate::core::document::{Document, Kind};
use crate::core::ledger::LIMITS;
use crate::core::record::{Compensation, Record, State};
use crate::core::saga::plan::{Step, plan};
use crate::core::saga::{self, Event, Phase, Saga, SagaId, Trouble};
use crate::core::session::Refusal;
use crate::core::tool::Tool;
use crate::core::work::{Blocked, Blocker};
use crate::core::{key, undo};
use crate::crash;
use crate::store;

/// Sagas that are taken up in one go.
const BATCH: u32 = 32;
/// Sagas that one gateway works on at once.
const AT_ONCE: usize = 16;

/// The same where all its calls are let go, however many they are.
const LETTING_GO: Duration = Duration::from_mins(1);

/// What one round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worked {
    /// Sagas whose time had come.
    pub due: usize,
    /// Sagas on which this gateway has worked.
    pub worked: usize,
}

/// What came of one call's turn to be undone.
enum Undone {
    /// It is undone: the saga, and the call as it is now.
    Further(Box<Saga>, Box<Record>),
    /// It is not: the saga, if there is more to do about it at once.
    Blocked(Option<Box<Saga>>),
}

/// Works on sagas that are due: deadlines, and what is to be undone.
pub struct SagaWorker {
    base: Arc<Base>,
    registry: Arc<SagaRegistry>,
    engine: Arc<Engine>,
    notifier: Arc<Notifier>,
    /// Places for sagas that are worked on.
    undoing: Arc<Semaphore>,
}

impl SagaWorker {
    pub(super) fn new(
        base: Arc<Base>,
        registry: Arc<SagaRegistry>,
        engine: Arc<Engine>,
        notifier: Arc<Notifier>,
    ) -> Self {
        Self {
            base,
            registry,
            engine,
            notifier,
            undoing: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Works on a bounded number of sagas whose time has come: deadlines, and what is to be undone. Many
    /// gateways may do it at once: each saga is worked on by one of them.
    ///
    /// # Errors
    /// The store failed; what was done so far stays so.
    pub async fn work_on_sagas_once(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Worked, store::Error> {
        let begun = self.begin_saga_work(now).await?;
        let mut worked = Worked {
            due: begun.len(),
            worked: 0,
        };
        for work in begun {
            worked.worked += usize::from(work.await.unwrap_or(false));
        }
        Ok(worked)
    }

    /// The same, but does not wait for what it has begun.
    ///
    /// # Errors
    /// The store failed; nothing was begun.
    pub async fn begin_saga_work(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Vec<JoinHandle<bool>>, store::Error> {
        let due = self.base.store.due_documents(Kind::Saga, now, BATCH).await;
        let due = self.base.readable("due_documents", due)?;
        let mut begun = Vec::new();
        for document in due {
            if let Err(why) = Saga::from_document(&document) {
                self.put_aside(document, &why, now).await;
                continue;
            }
            let Ok(place) = self.undoing.clone().try_acquire_owned() else {
                break;
            };
            let id = SagaId {
                tenant: document.tenant,
                id: document.id,
            };
            let gateway = self.clone();
            begun.push(self.base.tasks.spawn(async move {
                let worked = gateway.work_on_saga(&id, now).await;
                drop(place);
                worked
            }));
        }
        Ok(begun)
    }

    /// Takes up the sagas that the last run of this gateway has left in the middle. Only where no other gateway can
    /// be at them. What cannot be freed now is due when its time is over.
    pub async fn free_sagas(&self) {
        if self.base.store.is_shared() {
            return;
        }
        for state in saga::State::UNFINISHED {
            let (mut before, mut is_first) = (None, true);
            while std::mem::take(&mut is_first) || before.is_some() {
                let state = Some(state.as_str());
                let found = self
                    .base
                    .store
                    .documents(Kind::Saga, None, state, before.as_ref(), LIMITS.1)
                    .await;
                let Ok((found, next)) = self.base.readable_page(found) else {
                    return;
                };
                for document in found {
                    let Ok(saga) = Saga::from_document(&document) else {
                        continue;
                    };
                    if saga.work.due.is_taken() {
                        drop(self.registry.change_saga(&saga.id, &Event::Freed).await);
                    }
                }
                before = next;
            }
        }
    }

    /// A saga that cannot be read is not in the way of the others.
    async fn put_aside(&self, document: Document, why: &str, now: Timestamp) {
        tracing::error!(
            saga = document.id,
            why,
            "a saga cannot be read; it is looked at again in a minute"
        );
        let due_at = now.checked_add(SignedDuration::from_mins(1)).ok();
        let later = Document {
            version: document.version + 1,
            due_at,
            ..document
        };
        drop(self.base.store.put_document(&later).await);
    }

    /// Begins to undo what can be undone of a saga at once. If there is no room for it, the next round does it.
    pub(super) fn begin_undoing(self: &Arc<Self>, id: &SagaId) {
        if let Ok(place) = self.undoing.clone().try_acquire_owned() {
            let (gateway, id) = (self.clone(), id.clone());
            drop(self.base.tasks.spawn(async move {
                gateway.work_on_saga(&id, gateway.base.now()).await;
                drop(place);
            }));
        }
    }

    /// Whether this gateway has worked on it. Errors are said where they happen; the next round goes on.
    async fn work_on_saga(self: &Arc<Self>, id: &SagaId, now: Timestamp) -> bool {
        if self.base.is_out_of_time() || self.base.draining.is_cancelled() {
            return false;
        }
        let Ok(Some(saga)) = self.registry.saga(id).await else {
            return false;
        };
        // The one who writes this does the work.
        let time = if saga.phase.is_over() {
            LETTING_GO
        } else {
            Duration::ZERO
        };
        let until = self.busy_until(now.max(self.base.now()), time);
        let Some(mut saga) = self.move_on(&saga, &Event::Taken { until }, now).await else {
            return false;
        };
        crash::point("saga_taken");
        while let Some(next) = self.work_a_step(&saga).await {
            saga = next;
            // What is left waits for the next gateway.
            if self.base.draining.is_cancelled() {
                break;
            }
        }
        true
    }

    /// The saga after an event; `None`: it does not fit, or another writer has changed the saga.
    async fn move_on(&self, saga: &Saga, event: &Event, now: Timestamp) -> Option<Saga> {
        let changed = saga::next(
            saga,
            event,
            &self.base.limits.sagas,
            now.max(self.base.now()),
        )
        .ok()?;
        self.registry.put_saga(&changed).await.ok()?.ok()?;
        if changed.state() != saga.state() {
            tracing::info!(
                saga = saga.id.id,
                state = changed.state().as_str(),
                trouble = changed.trouble.as_ref().map(|trouble| trouble.why.as_str()),
                "a saga goes on",
            );
        }
        Some(changed)
    }

    /// Does the next thing about a saga. Answers with the saga if there is more to do at once.
    async fn work_a_step(self: &Arc<Self>, saga: &Saga) -> Option<Saga> {
        if let Some(tellings) = saga.telling {
            let told = self.tell(saga, tellings).await?;
            // A transient cause is looked at even while no operator can be told.
            return if told.phase.is_stuck_for_now() {
                // It is told once in a round.
                let next = self.undo_next(&told).await;
                next.filter(|next| next.telling.is_none())
            } else {
                None
            };
        }
        match saga.phase {
            Phase::Open => {
                let overdue = Event::Overdue { by: self.name() };
                self.move_on(saga, &overdue, self.base.now()).await
            }
            Phase::Completed | Phase::Compensated => {
                let all = self.release(saga).await.ok()?;
                self.move_on(saga, &Event::Released { all }, self.base.now())
                    .await;
                None
            }
            Phase::Compensating { .. }
            | Phase::Stuck {
                is_transient: true, ..
            } => self.undo_next(saga).await,
            Phase::Stuck { .. } | Phase::OpenAtLoss => None,
        }
    }

    fn name(&self) -> String {
        format!("gateway {}", self.base.instance)
    }

    /// Tells an operator that a saga needs one. Answers with the saga after that.
    async fn tell(&self, saga: &Saga, tellings: u32) -> Option<Saga> {
        let why = saga
            .trouble
            .as_ref()
            .map_or("it is overdue", |trouble| trouble.why.as_str());
        let call_id = saga
            .trouble
            .as_ref()
            .and_then(|trouble| trouble.call_id)
            .map(|call_id| call_id.to_string());
        if tellings == 0 {
            let state = saga.state().as_str();
            tracing::error!(
                saga = saga.id.id,
                tenant = saga.id.tenant,
                state,
                call_id,
                why,
                "a saga needs a person"
            );
        }
        let delivered = match self.notifier.webhook {
            None => true,
            Some(_) => {
                let body = serde_json::json!({
                    "saga_id": saga.id.id,
                    "tenant": saga.id.tenant,
                    "state": saga.state().as_str(),
                    "reason": saga.reason,
                    "call_id": call_id,
                    "why": why,
                });
                // The same for each time that the same is told.
                let at = saga
                    .events
                    .last()
                    .map_or(saga.created_at, |entry| entry.at)
                    .as_microsecond();
                let about = key::digest(["saga", &saga.id.tenant, &saga.id.id, &at.to_string()]);
                let told = self
                    .notifier
                    .notify("saga", &hex::encode(&about[..16]), &body)
                    .await;
                if let Err(error) = &told {
                    tracing::warn!(saga = saga.id.id, error, "the webhook was not told");
                }
                told.is_ok()
            }
        };
        self.move_on(saga, &Event::Told { delivered }, self.base.now())
            .await
    }

    /// Lets go of what was kept for a saga that has come to its end. Answers whether that was all.
    async fn release(&self, saga: &Saga) -> Result<bool, store::Error> {
        let mut all = true;
        let let_go = async |record: &Record| {
            let event = call::Event::SagaEnded {
                by: self.base.instance,
            };
            record.retain_until.is_some()
                || transition::change(&self.base, record, &event, self.base.now())
                    .await
                    .is_some()
        };
        if let Some(only) = saga.only
            && let Some(record) = self.base.store.load(only).await?
        {
            all &= let_go(&record).await;
        }
        let mut before = None;
        loop {
            let page = self.registry.page_of(saga, before).await?;
            // What cannot be read is looked at again later.
            all &= page.unreadable == 0;
            for record in page
                .found
                .iter()
                .filter(|record| record.retain_until.is_none())
            {
                let whole = self.base.store.load(record.intent.call_id).await?;
                match whole {
                    Some(whole) => all &= let_go(&whole).await,
                    None => all = false,
                }
            }
            before = page.next;
            if before.is_none() {
                return Ok(all);
            }
            // What is left waits for the next gateway.
            if self.base.draining.is_cancelled() {
                return Ok(false);
            }
        }
    }

    /// Does what is next about a saga that is being undone. Answers with the saga if there is more to do at once.
    async fn undo_next(self: &Arc<Self>, saga: &Saga) -> Option<Saga> {
        let mut calls = match self.registry.calls_of(saga).await {
            Ok(calls) => calls,
            Err(Unlisted::Store) => return self.not_listed(saga).await,
            Err(Unlisted::Broken(why)) => {
                return self.block(saga, None, Blocked::for_good(why)).await;
            }
        };
        if saga.only.is_some() && calls.is_empty() {
            let why = Blocked::for_good("the call is not kept any more");
            return self.block(saga, None, why).await;
        }
        let tools = self.policies_of(&calls);
        let (mut saga, mut is_fresh) = (saga.clone(), true);
        loop {
            let members: Vec<(&Record, &Tool)> = calls
                .iter()
                .map(Member::record)
                .filter_map(|record| Some((record, tools.get(&record.intent.tool)?)))
                .collect();
            let record = match plan(&saga, &members, self.base.now()) {
                // All are marked in one go, and undone in one go: what is at rest does not move by itself.
                Step::Mark(record) | Step::Undo(record) => record,
                // They are listed once more before anything else is taken from that.
                _ if !is_fresh => return Some(saga),
                step => return self.do_step(&saga, step).await,
            };
            // What is written is never what was only looked at.
            let record = match self.base.store.load(record.intent.call_id).await {
                Ok(Some(whole)) if whole.version == record.version => whole,
                // Another writer was faster: they are looked at again.
                Ok(_) => return Some(saga),
                Err(_) => return None,
            };
            let changed = if matches!(record.state, State::Compensating(_)) {
                is_fresh = false;
                match self.undo(&saga, &record).await {
                    Undone::Further(further, changed) => {
                        saga = *further;
                        *changed
                    }
                    Undone::Blocked(saga) => return saga.map(|saga| *saga),
                }
            } else {
                match self.mark(&saga, &record).await {
                    Ok(marked) => marked,
                    Err(saga) => return saga.map(|saga| *saga),
                }
            };
            let call_id = changed.intent.call_id;
            for member in calls
                .iter_mut()
                .filter(|member| member.record().intent.call_id == call_id)
            {
                *member = Member::of(changed.clone());
            }
            // What is left waits for the next gateway.
            if self.base.draining.is_cancelled() {
                return Some(saga);
            }
        }
    }

    /// The calls of a saga could not be listed. A store that is not ready is waited for; one that is ready and fails
    /// again and again needs a person.
    async fn not_listed(&self, saga: &Saga) -> Option<Saga> {
        if !self.base.store.readiness().await.reasons.is_empty() {
            return None;
        }
        let why = Blocked::failed("its calls could not be listed");
        self.block(saga, None, why).await
    }

    /// The rules of each of their tools.
    fn policies_of(&self, calls: &[Member]) -> HashMap<String, Tool> {
        let mut tools = HashMap::new();
        for record in calls.iter().map(Member::record) {
            if !tools.contains_key(&record.intent.tool) {
                tools.insert(record.intent.tool.clone(), self.base.policy_of(record));
            }
        }
        tools
    }

    /// Writes down that a call is to be undone, and by which. If it could not: the saga, if there is more to do
    /// about it at once.
    async fn mark(&self, saga: &Saga, record: &Record) -> Result<Record, Option<Box<Saga>>> {
        match self
            .registry
            .to_compensate(record, &self.name(), &saga.reason)
            .await
        {
            Marked::Done(marked) => {
                crash::point("saga_marked");
                Ok(*marked)
            }
            // Another writer was faster: they are looked at again.
            Marked::Changed => Err(Some(Box::new(saga.clone()))),
            Marked::Unwritten => Err(None),
            Marked::Illegal(illegal) => {
                let why = match illegal {
                    Illegal::MayStillRun => Blocked::busy("its request may still reach the tool"),
                    _ => Blocked::for_good(illegal.to_string()),
                };
                Err(self.block(saga, Some(record), why).await.map(Box::new))
            }
        }
    }

    /// Undoes one call, or writes down what blocks that.
    async fn undo(self: &Arc<Self>, saga: &Saga, record: &Record) -> Undone {
        let (saga, tried) = match self.look_at_compensation(record).await {
            Some(tried) => (saga.clone(), tried),
            None => {
                let until = self.busy_until(self.base.now(), self.time_of_compensation(record));
                let prolonged = self
                    .move_on(saga, &Event::Prolonged { until }, self.base.now())
                    .await;
                let Some(saga) = prolonged else {
                    return Undone::Blocked(None);
                };
                let tried = self.try_to_undo(&saga, record).await;
                (saga, tried)
            }
        };
        if let Err(why) = tried {
            return Undone::Blocked(self.block(&saga, Some(record), why).await.map(Box::new));
        }
        crash::point("saga_undone");
        let event = call::Event::UndoEnded {
            by: self.base.instance,
            end: UndoEnd::Undone,
        };
        let changed = transition::change(&self.base, record, &event, self.base.now()).await;
        if changed.is_some() {
            self.registry.count_undo(record, "compensated");
        }
        crash::point("saga_noted");
        let Some(saga) = self.move_on(&saga, &Event::Advanced, self.base.now()).await else {
            return Undone::Blocked(None);
        };
        let saga = Box::new(saga);
        match changed {
            Some(changed) => Undone::Further(saga, Box::new(changed)),
            None => Undone::Blocked(Some(saga)),
        }
    }

    async fn do_step(self: &Arc<Self>, saga: &Saga, step: Step<'_>) -> Option<Saga> {
        match step {
            Step::Wait(record, blocker, why) => {
                let why = Blocked::by(blocker, why);
                self.block(saga, Some(record), why).await
            }
            Step::Rest => self.move_on(saga, &Event::Rested, self.base.now()).await,
            // The caller has done them.
            Step::Mark(_) | Step::Undo(_) => Some(saga.clone()),
            Step::Stuck(record) => {
                let why = Blocked::for_good("it could not be undone");
                self.block(saga, Some(record), why).await
            }
            Step::Done => {
                let undone = self
                    .move_on(saga, &Event::Undone { by: self.name() }, self.base.now())
                    .await?;
                crash::point("saga_compensated");
                Some(undone)
            }
        }
    }

    /// Until when others leave a saga alone, if a compensation may take so long.
    pub(super) fn busy_until(&self, now: Timestamp, time: Duration) -> Timestamp {
        let span = self.base.limits.pace.work_margin + time;
        let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
        now.checked_add(span).unwrap_or(Timestamp::MAX)
    }

    /// How long the call that undoes another one may take.
    fn time_of_compensation(&self, record: &Record) -> Duration {
        let compensation = record
            .undo
            .as_ref()
            .and_then(|undo| undo.compensation.as_ref());
        let at = compensation.and_then(|compensation| self.base.tool_at(&compensation.tool));
        at.map_or(Duration::ZERO, |at| at.tool.longest())
    }

    /// Writes down what blocks a saga. Answers with the saga if an operator is to be told of it.
    ///
    /// A call that is given up is marked before its saga is, so that no saga goes past it.
    async fn block(&self, saga: &Saga, record: Option<&Record>, blocked: Blocked) -> Option<Saga> {
        let Blocked { blocker, why } = blocked;
        let trouble = Trouble {
            call_id: record.map(|record| record.intent.call_id),
            why: why.clone(),
        };
        let event = Event::Blocked {
            by: self.name(),
            trouble,
            blocker,
            jitter: jitter(),
        };
        let ahead = saga::next(saga, &event, &self.base.limits.sagas, self.base.now()).ok()?;
        let gives_up = ahead.state() == saga::State::Stuck && !ahead.phase.is_stuck_for_now();
        match record {
            Some(record) if gives_up && matches!(record.state, State::Compensating(_)) => {
                let stuck = call::Event::UndoEnded {
                    by: self.base.instance,
                    end: UndoEnd::Stuck(why),
                };
                self.registry
                    .apply(record.intent.call_id, &stuck)
                    .await
                    .ok()??
                    .ok()?;
                self.registry.count_undo(record, "stuck");
                crash::point("saga_stuck");
            }
            Some(record) if blocker == Blocker::Failed => {
                self.registry.count_undo(record, "failed")
            }
            _ => {}
        }
        self.registry.put_saga(&ahead).await.ok()?.ok()?;
        ahead.telling.is_some().then_some(ahead)
    }

    /// What has come of the call that undoes another one; `None`: it is to be sent.
    async fn look_at_compensation(&self, record: &Record) -> Option<Result<(), Blocked>> {
        let Some(compensation) = record
            .undo
            .as_ref()
            .and_then(|undo| undo.compensation.as_ref())
        else {
            return Some(Err(Blocked::for_good("its tool declares no compensation")));
        };
        match self.base.store.load(compensation.call_id).await {
            Ok(
                Some(Record {
                    state: State::Failed(_),
                    ..
                })
                | None,
            ) => None,
            Ok(Some(there)) => Some(undo::outcome_of(&there)),
            Err(error) => Some(Err(Blocked::busy(error.to_string()))),
        }
    }

    /// Sends what undoes a call.
    async fn try_to_undo(self: &Arc<Self>, saga: &Saga, record: &Record) -> Result<(), Blocked> {
        let undo = record.undo.as_ref();
        let tool = self.base.policy_of(record);
        let (compensation, template) = match (
            undo.and_then(|undo| undo.compensation.as_ref()),
            &tool.compensation,
        ) {
            (Some(compensation), compensation::Policy::By(template))
                if template.tool == compensation.tool =>
            {
                (compensation, template)
            }
            // Another gateway may have the configuration with which that was decided.
            _ => {
                let why = "another compensation was decided on than its tool has here";
                return Err(Blocked::by(Blocker::Unknown, why));
            }
        };
        let own = own(saga, record, compensation, template).map_err(Blocked::for_good)?;
        match self.engine.run_internal(own).await {
            Ok(record) => undo::outcome_of(&record),
            Err(kind) => Err(Blocked::by(blocker_of(&kind), kind.to_string())),
        }
    }
}

/// What it means that a compensation was not sent.
pub(super) fn blocker_of(kind: &ErrorKind) -> Blocker {
    match kind {
        ErrorKind::CallInProgress { .. }
        | ErrorKind::ToolPaused
        | ErrorKind::ToolResting { .. }
        | ErrorKind::RateLimited
        | ErrorKind::NoRoom
        | ErrorKind::TooManyNewKeys { .. }
        | ErrorKind::KeysSettle { .. }
        | ErrorKind::StoreUnavailable
        | ErrorKind::ShuttingDown
        | ErrorKind::Refused(Refusal::Frozen | Refusal::Busy { .. }) => Blocker::Busy,
        ErrorKind::OutcomeUnknown { .. } | ErrorKind::UnknownTool => Blocker::Unknown,
        ErrorKind::InvalidArguments(_)
        | ErrorKind::InvalidRequest(_)
        | ErrorKind::KeyReused { .. }
        | ErrorKind::KeyExpired { .. } => Blocker::Final,
        _ => Blocker::Failed,
    }
}

fn own(
    saga: &Saga,
    record: &Record,
    by: &Compensation,
    template: &Template,
) -> Result<InternalCall, String> {
    let intent = &record.intent;
    Ok(InternalCall {
        tenant: intent.tenant.clone(),
        tool: by.tool.clone(),
        key: undo::key_of(intent.call_id),
        args: template.args(record)?,
        call_id: Some(by.call_id),
        user_id: intent.user_id.clone(),
        session_id: intent.session_id.clone(),
        saga_id: saga.id.id.clone(),
        trace_id: intent.trace_id.clone(),
    })
}
