//! The state of the model: store, gateways, tool, and what an outside observer knows.

mod jobs; // the tasks of gateways, and what each does next

use std::sync::Arc;

use uuid::Uuid;

use super::names::{ARGUMENTS, CALLS_OF_KEY, UNDOES};
use super::scene::{Left, Scene};
use oncegate_rules::approval::Digest;
use oncegate_rules::record::{AttemptId, CallId, Record};
use oncegate_rules::saga::{Saga, SagaId};
use oncegate_rules::session::Lock;

pub(super) use self::jobs::{Job, SagaJob, SagaStep, Said, Seen, Task, Write};
pub(super) use super::names::{
    ENDED, Name, at, instance, lookup, name_of, name_of_undo, number, tick_of, undone_by,
};

/// The content of a store.
#[derive(Clone, Default)]
pub(super) struct Store {
    /// Sorted by id.
    pub(super) calls: Vec<Arc<Record>>,
    pub(super) names: Vec<(Name, CallId)>,
    pub(super) sagas: Vec<Arc<Saga>>,
    /// The newest fencing token.
    pub(super) token: u64,
    pub(super) lock: Option<Lock>,
    /// The tick up to which this was the newest state; `None`: it still is.
    pub(super) whole_until: Option<i64>,
}

impl Store {
    pub(super) fn load(&self, call_id: CallId) -> Option<&Arc<Record>> {
        self.calls
            .iter()
            .find(|record| record.intent.call_id == call_id)
    }

    /// The call that a name stands for.
    pub(super) fn holder(&self, name: Name) -> Option<&Arc<Record>> {
        let (_, call_id) = self.names.iter().find(|(held, _)| *held == name)?;
        self.load(*call_id)
    }

    pub(super) fn saga(&self, id: &SagaId) -> Option<&Arc<Saga>> {
        self.sagas.iter().find(|saga| saga.id == *id)
    }

    pub(super) fn put(&mut self, record: Arc<Record>) {
        let id = record.intent.call_id;
        match self
            .calls
            .binary_search_by_key(&id, |call| call.intent.call_id)
        {
            Ok(at) => self.calls[at] = record,
            Err(at) => self.calls.insert(at, record),
        }
    }

    pub(super) fn give_name(&mut self, name: Name, call_id: CallId) {
        self.names.retain(|(held, _)| *held != name);
        self.names.push((name, call_id));
        self.names.sort_unstable();
    }
}

/// Whether a server works on a request as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tasked {
    No,
    /// The server has answered with the task.
    Given,
    /// A gateway has written the task down, and follows it.
    Followed,
    /// The server has cancelled or forgotten the task.
    Gone,
}

/// A request on its way to the tool, or at the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) name: Name,
    pub(super) call_id: CallId,
    pub(super) attempt: u128,
    /// The request may be executed before this tick.
    pub(super) until: i64,
    /// The number of its effect.
    pub(super) executed: Option<u8>,
    /// Whether the store has lost its call, and an operator has accepted that.
    pub(super) is_forgiven: bool,
    pub(super) task: Tasked,
}

/// The knowledge of an observer that sees callers and tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Truth {
    /// The number of the call that the key stands for.
    pub(super) call: u8,
    /// Effects of the intent.
    pub(super) effects: u8,
    /// Effects of the earlier intent.
    pub(super) earlier: u8,
    /// The success that a caller was told.
    pub(super) answered: Option<u8>,
    /// Since when the call is at its end.
    pub(super) settled_at: Option<i64>,
    /// Whether the effect is undone, or a caller was told that the call is.
    pub(super) is_undone: bool,
}

/// A state of the model.
#[derive(Clone)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) store: Store,
    /// The store before its newest writes.
    pub(super) copy: Option<Arc<Store>>,
    /// Whether the store has lost writes and no operator has accepted the loss.
    pub(super) is_closed: bool,
    pub(super) is_paused: bool,
    /// The number of the configuration, by which requests for the tool differ.
    pub(super) request: u8,
    /// The call that an approver has before itself, and what the page says.
    pub(super) page: Option<(CallId, Digest)>,
    pub(super) tasks: Vec<Task>,
    pub(super) requests: Vec<Request>,
    pub(super) truth: Vec<(Name, Truth)>,
    pub(super) left: Left,
    /// See [`Scene::are_alike`].
    are_alike: bool,
}

impl World {
    pub(super) fn first(scene: &Scene) -> Self {
        Self {
            now: 0,
            store: Store::default(),
            copy: None,
            is_closed: false,
            is_paused: false,
            request: 0,
            page: None,
            tasks: Vec::new(),
            requests: Vec::new(),
            truth: Vec::new(),
            left: scene.left,
            are_alike: scene.are_alike,
        }
    }

    /// The name of the intent that a request of this name has.
    pub(super) fn intent_of(&self, name: Name) -> Name {
        let is_alike = self.are_alike && undone_by(name).is_none();
        if is_alike { ARGUMENTS } else { name }
    }

    pub(super) fn truth(&self, name: Name) -> Truth {
        let name = self.intent_of(name);
        let found = self.truth.iter().find(|(held, _)| *held == name);
        found.map(|(_, truth)| *truth).unwrap_or_default()
    }

    pub(super) fn truth_mut(&mut self, name: Name) -> &mut Truth {
        let name = self.intent_of(name);
        let at = match self.truth.binary_search_by_key(&name, |(held, _)| *held) {
            Ok(at) => at,
            Err(at) => {
                self.truth.insert(at, (name, Truth::default()));
                at
            }
        };
        &mut self.truth[at].1
    }

    /// Whether a request of this name may still be executed.
    pub(super) fn may_come(&self, name: Name) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|request| {
            self.intent_of(request.name) == self.intent_of(name)
                && !request.is_forgiven
                && request.executed.is_none()
                && self.now < request.until
        })
    }

    /// All records of the store, its copy and the tasks.
    pub(super) fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        let stored = self.store.calls.iter();
        let copied = self.copy.iter().flat_map(|copy| &copy.calls);
        stored
            .chain(copied)
            .chain(self.tasks.iter().flat_map(Task::records))
    }

    /// Effects of a call's intent, even if its key stands for another intent by now.
    pub(super) fn effects_of(&self, record: &Record) -> u8 {
        let truth = self.truth(name_of(record));
        if truth.call == number(record.intent.call_id) {
            truth.effects
        } else {
            truth.earlier
        }
    }

    /// Whether a request of this call may still be executed.
    pub(super) fn may_still_come(&self, record: &Record) -> bool {
        let is_its = |request: &&Request| request.call_id == record.intent.call_id;
        self.requests.iter().filter(is_its).any(|request| {
            !request.is_forgiven && request.executed.is_none() && self.now < request.until
        })
    }

    /// An attempt id that is not in use any more.
    pub(super) fn fresh_attempt(&self) -> AttemptId {
        let is_used = |attempt: AttemptId| {
            let writes = |task: &Task| match &task.job {
                Job::Write(write) => write.attempt == attempt || write.retry == Some(attempt),
                _ => false,
            };
            self.records().any(|record| record.attempt.id == attempt)
                || self.tasks.iter().any(writes)
                || self
                    .requests
                    .iter()
                    .any(|request| request.attempt == attempt.0.as_u128())
        };
        let mut ids = (1..).map(|number| AttemptId(Uuid::from_u128(number)));
        ids.find(|id| !is_used(*id))
            .unwrap_or(AttemptId(Uuid::nil()))
    }

    /// An id for a call of this name that is not in use any more.
    pub(super) fn fresh_call(&self, name: Name) -> CallId {
        let first = u128::from(name & !UNDOES) * CALLS_OF_KEY + if name >= UNDOES { 64 } else { 1 };
        let is_used = |id: CallId| {
            let decided =
                |record: &Arc<Record>| record.compensation().is_some_and(|by| by.call_id == id);
            self.records()
                .any(|record| record.intent.call_id == id || decided(record))
                || self.requests.iter().any(|request| request.call_id == id)
        };
        let mut ids = (first..).map(|number| CallId(Uuid::from_u128(number)));
        ids.find(|id| !is_used(*id)).unwrap_or(CallId(Uuid::nil()))
    }

    /// A gateway ends. Its requests stay under way.
    pub(super) fn crash(&mut self, gateway: u8) {
        self.tasks.retain(|task| task.gateway != gateway);
        let ended = instance(gateway);
        let mut change = |record: &mut Arc<Record>| {
            if record.attempt.owner == ended {
                Arc::make_mut(record).attempt.owner = ENDED;
            }
        };
        self.store.calls.iter_mut().for_each(&mut change);
        if let Some(copy) = &mut self.copy {
            Arc::make_mut(copy).calls.iter_mut().for_each(&mut change);
        }
        for task in &mut self.tasks {
            task.each_record(&mut change);
        }
    }
}

/// The tick before which a request of this record may reach the tool.
pub(super) fn comes_before(record: &Record, scene: &Scene) -> i64 {
    tick_of(record.attempt.lease_until) + scene.late
}
