//! What all parts of a simulation share: the plan, the store's memory, the tools' books and the history.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::books::Books;
use super::dice::Dice;
use super::events::Events;
use super::memory::Memory;
use super::plan::Plan;
use super::turns::Turns;

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) turns: Turns,
    pub(super) memory: Memory,
    books: Mutex<Books>,
    written: Mutex<Written>,
    events: Mutex<Events>,
    /// How often each purpose had dice.
    thrown: Mutex<HashMap<String, u64>>,
    is_healed: AtomicBool,
}

/// What an observer has written down.
#[derive(Default)]
pub(super) struct Written {
    /// What has happened, each with its millisecond.
    pub(super) history: Vec<(u64, String)>,
    /// What was promised, and is not so.
    pub(super) broken: Vec<String>,
    /// How often what has happened.
    pub(super) tally: BTreeMap<&'static str, u64>,
    /// The effect that callers were told of, by the key of the call.
    pub(super) answers: BTreeMap<String, (String, u64)>,
    /// The task that callers were told of, by the key of the call.
    pub(super) tasks: BTreeMap<String, String>,
    /// The tasks that agents have asked to cancel.
    pub(super) cancelled: BTreeSet<String>,
    /// Calls that were at their end when the store last wrote them.
    pub(super) settled: BTreeSet<String>,
    /// Every key that was asked for.
    pub(super) asked: BTreeMap<String, Asked>,
}

/// A call that was asked for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) tool: &'static str,
    pub(super) key: String,
    pub(super) session: String,
    pub(super) saga: String,
}

impl World {
    pub(super) fn of(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            events: Mutex::new(Events::of(plan.seed)),
            plan,
            turns: Turns::new(),
            memory: Memory::that_loses_nothing(),
            books: Mutex::default(),
            written: Mutex::default(),
            thrown: Mutex::default(),
            is_healed: AtomicBool::new(false),
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.turns.now()
    }

    /// Dice for the next use of a purpose.
    pub(super) fn dice(&self, purpose: &str) -> Dice {
        let mut thrown = locked(&self.thrown);
        let n = thrown.entry(purpose.to_owned()).or_default();
        *n += 1;
        Dice::of(self.plan.seed, purpose, *n)
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        locked(&self.books)
    }

    pub(super) fn written(&self) -> MutexGuard<'_, Written> {
        locked(&self.written)
    }

    pub(super) fn events(&self) -> MutexGuard<'_, Events> {
        locked(&self.events)
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&self) {
        self.is_healed.store(true, Ordering::SeqCst);
        self.say("everything is well from now on".to_owned());
    }

    /// Whether nothing goes wrong now.
    pub(super) fn is_calm(&self) -> bool {
        self.is_healed.load(Ordering::SeqCst) || !self.plan.is_trouble(self.now())
    }

    /// Something has happened.
    pub(super) fn say(&self, what: String) {
        let now = self.now();
        self.written().history.push((now, what));
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.written().tally.entry(what).or_default() += 1;
    }

    /// What was promised is not so.
    pub(super) fn breaks(&self, why: String) {
        let now = self.now();
        let mut written = self.written();
        written.history.push((now, format!("NOT SO: {why}")));
        written.broken.push(why);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
