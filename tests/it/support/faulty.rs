//! A store that goes wrong: on request, or by a plan that a seed decides.

mod plan; // what goes wrong by itself

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncegate::core::record::{AttemptId, State};
use oncegate::store::verbs::LABELS;
use oncegate::store::verbs::layer::*;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

pub use self::plan::{Plan, Rates};
use super::arguments::Argument;

/// What goes wrong with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refused, and nothing is done.
    ErrBefore,
    /// What is stored cannot be read.
    Unreadable,
    /// Carried out, but the answer is lost.
    ExecuteThenTimeout,
    /// The answer is lost at once, and it is carried out this much later.
    ExecuteLate(Duration),
    /// Carried out twice in a row; the second answer is given.
    Duplicate,
    /// Never answered, and nothing is done.
    Hang,
    /// Carried out once the store is healed.
    Hold,
    /// Carried out at once, and answered once the store is healed.
    HoldAnswer,
}

impl Fault {
    fn kind(self) -> usize {
        match self {
            Self::ErrBefore => 0,
            Self::ExecuteThenTimeout => 1,
            Self::ExecuteLate(_) => 2,
            Self::Duplicate => 3,
            Self::Hang => 4,
            Self::Hold => 5,
            Self::HoldAnswer => 7,
            Self::Unreadable => 6,
        }
    }
}

/// The verbs that tests name. Faults come to all verbs but those of [`LossRecovery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Claim,
    Replace,
    List,
    PutDocument,
    PutBackDocument,
    Session,
    SetFrozen,
    CountDocuments,
    Prune,
    CallsAtRiskAfterLoss,
}

impl Verb {
    /// Its name in metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Replace => "replace",
            Self::List => "list",
            Self::PutDocument => "put_document",
            Self::PutBackDocument => "put_back_document",
            Self::Session => "session",
            Self::SetFrozen => "set_frozen",
            Self::CountDocuments => "count_documents",
            Self::Prune => "prune",
            Self::CallsAtRiskAfterLoss => "doubtful",
        }
    }
}

/// Verbs without faults.
const LOSS_RECOVERY: [&str; 3] = ["doubtful", "prepare_acceptance", "accept_loss"];
const KINDS: usize = 8;

/// Clones share one store.
#[derive(Clone)]
pub struct FaultStore {
    store: Arc<dyn Store>,
    inner: Arc<Inner>,
}

/// A value for each verb.
struct OfEach<T>(Vec<T>);

impl<T: Default> Default for OfEach<T> {
    fn default() -> Self {
        Self(LABELS.iter().map(|_| T::default()).collect())
    }
}

#[derive(Default)]
struct Inner {
    /// `None` once it is healed.
    plan: Mutex<Option<Plan>>,
    /// How many of the next operations of a verb go wrong so, before the plan is asked.
    ordered: Mutex<Vec<(&'static str, Fault, usize)>>,
    /// From the how-manieth operation of all on how many go wrong, and how.
    nth: Mutex<Option<(usize, usize, Fault)>>,
    asked_in_all: AtomicUsize,
    is_down: AtomicBool,
    /// The next operation of this verb panics.
    panics_at: Mutex<Option<&'static str>>,
    asked: OfEach<AtomicUsize>,
    injected: OfEach<[AtomicUsize; KINDS]>,
    late: TaskTracker,
    /// When a gateway was first told that this attempt is durable and its own.
    acknowledged: Mutex<HashMap<AttemptId, Instant>>,
    /// Attempts of which a gateway was told that it is not known whether they are.
    doubted: Mutex<HashSet<(&'static str, AttemptId)>>,
    denied_in_doubt: AtomicUsize,
}

impl FaultStore {
    /// Nothing goes wrong until it is asked for.
    pub fn over(store: impl Store) -> Self {
        Self::over_shared(Arc::new(store))
    }

    /// The same over one that the test goes on with.
    pub fn over_shared(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            inner: Arc::default(),
        }
    }

    pub fn with_plan(store: impl Store, plan: Plan) -> Self {
        let faulty = Self::over(store);
        *faulty.plan() = Some(plan);
        faulty
    }

    /// The next `n` operations of this verb go wrong in this way.
    pub fn next(&self, verb: Verb, fault: Fault, n: usize) {
        self.ordered().push((verb.label(), fault, n));
    }

    /// The n-th operation of all from now on, whatever its verb, and those right after it go wrong in this way.
    pub fn fail_from(&self, n: usize, many: usize, fault: Fault) {
        let first = self.asked() + n;
        *self.inner.nth.lock().expect("not poisoned") = Some((first, first + many, fault));
    }

    /// Operations so far.
    pub fn asked(&self) -> usize {
        self.inner.asked_in_all.load(Ordering::SeqCst)
    }

    /// Everything is refused until it is up again.
    pub fn set_down(&self, is_down: bool) {
        self.inner.is_down.store(is_down, Ordering::SeqCst);
    }

    /// The next operation of this verb ends its task.
    pub fn panic_at(&self, verb: Verb) {
        *self.inner.panics_at.lock().expect("not poisoned") = Some(verb.label());
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&self) {
        self.set_down(false);
        self.ordered().clear();
        *self.plan() = None;
    }

    /// Waits until everything is carried out that is late.
    pub async fn is_quiet(&self) {
        self.inner.late.close();
        self.inner.late.wait().await;
        self.inner.late.reopen();
    }

    /// How many operations of a verb went wrong in this way; however late, if late.
    pub fn injected(&self, verb: Verb, fault: Fault) -> usize {
        self.inner.injected.0[index(verb.label())][fault.kind()].load(Ordering::SeqCst)
    }

    /// When gateways were told that an attempt is durable and theirs to make.
    pub fn acknowledged(&self) -> HashMap<AttemptId, Instant> {
        self.inner
            .acknowledged
            .lock()
            .expect("not poisoned")
            .clone()
    }

    /// How many attempts were acknowledged although an answer of this verb about them was lost.
    pub fn confirmed(&self, verb: Verb) -> usize {
        let doubted = self.inner.doubted.lock().expect("not poisoned").clone();
        self.acknowledged()
            .keys()
            .filter(|attempt| doubted.contains(&(verb.label(), **attempt)))
            .count()
    }

    /// How often it was said of an attempt that its session does not let it begin, although an earlier
    /// answer about it was lost.
    pub fn denied_in_doubt(&self) -> usize {
        self.inner.denied_in_doubt.load(Ordering::SeqCst)
    }

    fn plan(&self) -> MutexGuard<'_, Option<Plan>> {
        self.inner.plan.lock().expect("not poisoned")
    }

    fn ordered(&self) -> MutexGuard<'_, Vec<(&'static str, Fault, usize)>> {
        self.inner.ordered.lock().expect("not poisoned")
    }

    async fn is_healed(&self) {
        while !self.ordered().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// What goes wrong with the n-th operation of a verb.
    fn fault(&self, verb: &str, n: usize) -> Option<Fault> {
        if self.inner.is_down.load(Ordering::SeqCst) {
            return Some(Fault::ErrBefore);
        }
        let in_all = self.inner.asked_in_all.fetch_add(1, Ordering::SeqCst);
        if let Some((first, end, fault)) = *self.inner.nth.lock().expect("not poisoned")
            && (first..end).contains(&in_all)
        {
            return Some(fault);
        }
        let mut ordered = self.ordered();
        if let Some((_, fault, left)) = ordered
            .iter_mut()
            .find(|(of, _, left)| *of == verb && *left > 0)
        {
            *left -= 1;
            return Some(*fault);
        }
        self.plan().as_ref().and_then(|plan| plan.fault(verb, n))
    }

    /// Carries out one operation, or whatever the fault makes of it.
    async fn ask<T, F>(
        &self,
        verb: &str,
        operation: impl Fn(Arc<dyn Store>) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let n = self.inner.asked.0[index(verb)].fetch_add(1, Ordering::SeqCst);
        let panics = self
            .inner
            .panics_at
            .lock()
            .expect("not poisoned")
            .take_if(|at| *at == verb);
        assert!(panics.is_none(), "a panic was asked for");
        if LOSS_RECOVERY.contains(&verb) {
            return operation(self.store.clone()).await;
        }
        let [there, back] = self
            .plan()
            .as_ref()
            .map(|plan| plan.ways(verb, n))
            .unwrap_or_default();
        pass(there).await;
        let fault = self.fault(verb, n);
        if let Some(fault) = fault {
            self.inner.injected.0[index(verb)][fault.kind()].fetch_add(1, Ordering::SeqCst);
        }
        let run = || operation(self.store.clone());
        let unanswered = || Err(Error::Ambiguous("the answer was lost on request".into()));
        let answer = match fault {
            None => run().await,
            Some(Fault::ErrBefore) => Err(Error::Refused("on request".into())),
            Some(Fault::Unreadable) => Err(Error::Unreadable("on request".into())),
            Some(Fault::ExecuteThenTimeout) => {
                drop(run().await);
                unanswered()
            }
            Some(Fault::ExecuteLate(late)) => {
                let run = run();
                self.inner.late.spawn(async move {
                    sleep(late).await;
                    drop(run.await);
                });
                unanswered()
            }
            Some(Fault::Duplicate) => {
                drop(run().await);
                run().await
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Hold) => {
                self.is_healed().await;
                run().await
            }
            Some(Fault::HoldAnswer) => {
                let answer = run().await;
                self.is_healed().await;
                answer
            }
        };
        pass(back).await;
        answer
    }

    /// Keeps in mind what a gateway was told about an attempt that it wants to make.
    fn note<T: Any>(
        &self,
        verb: &'static str,
        asked: &[&(dyn Any + Sync)],
        answer: &Result<T, Error>,
    ) {
        let Some(change) = asked
            .iter()
            .find_map(|asked| (*asked as &dyn Any).downcast_ref::<Change>())
        else {
            return;
        };
        let attempt = change.record.attempt.id;
        let told = answer.as_ref().map(|told| told as &dyn Any);
        let claimed = told.map(|told| told.downcast_ref::<Claimed>());
        let replaced = told.map(|told| told.downcast_ref::<Replaced>());
        let doubted = || self.inner.doubted.lock().expect("not poisoned");
        match (claimed, replaced) {
            (Ok(Some(Claimed::Denied(_))), _) | (_, Ok(Some(Replaced::Denied(_))))
                if doubted().contains(&(verb, attempt)) =>
            {
                self.inner.denied_in_doubt.fetch_add(1, Ordering::SeqCst);
            }
            (Ok(Some(Claimed::Yours(record))), _) | (_, Ok(Some(Replaced::Done(record))))
                if change.record.state == State::Running && record.state == State::Running =>
            {
                let mut acknowledged = self.inner.acknowledged.lock().expect("not poisoned");
                acknowledged.entry(attempt).or_insert_with(Instant::now);
            }
            (Err(Error::Ambiguous(_)), _) if change.record.state == State::Running => {
                doubted().insert((verb, attempt));
            }
            _ => {}
        }
    }
}

/// Where a verb is in the list of all.
fn index(verb: &str) -> usize {
    let mut labels = LABELS.iter();
    labels.position(|label| *label == verb).expect("a verb")
}

async fn pass(way: Duration) {
    if !way.is_zero() {
        sleep(way).await;
    }
}

macro_rules! faulty {
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        let kept = ($(Argument::keep($arg),)*);
        let run = {
            let kept = kept.clone();
            move |store: Arc<dyn Store>| {
                let ($($arg,)*) = kept.clone();
                async move { store.$verb($(Argument::lend(&$arg)),*).await }
            }
        };
        let answer = $self.ask($label, run).await;
        let ($($arg,)*) = &kept;
        $self.note($label, &[$($arg as &(dyn Any + Sync)),*], &answer);
        answer
    }};
}
each_verb!(implement, FaultStore, faulty);

forward_health!(FaultStore);
forward_secrets!(FaultStore);
