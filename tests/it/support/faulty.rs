//! A store that goes wrong: on request, or by a plan that a seed decides.
//!
//! A verb that the trait gains gets a [`Verb`] and one line in the implementation below.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use oncegate::core::call::Change;
use oncegate::core::document::{Document, Kind, Place};
use oncegate::core::key::Lookup;
use oncegate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use oncegate::core::record::{AttemptId, CallId, Entry, Holder, Record, State};
use oncegate::core::session::{Lock, Session, SessionId};
use oncegate::store::{
    Census, Claimed, Due, Error, Found, Listener, Put, Readiness, Replaced, Store,
};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

/// What goes wrong with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refused, and nothing is done.
    ErrBefore,
    /// Carried out, but the answer is lost.
    ExecuteThenTimeout,
    /// The answer is lost at once, and it is carried out this much later.
    ExecuteLate(Duration),
    /// Carried out twice in a row; the second answer is given.
    Duplicate,
}

impl Fault {
    fn kind(self) -> usize {
        match self {
            Self::ErrBefore => 0,
            Self::ExecuteThenTimeout => 1,
            Self::ExecuteLate(_) => 2,
            Self::Duplicate => 3,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Claim,
    Replace,
    Holders,
    Load,
    History,
    Due,
    ToCheck,
    Census,
    Prune,
    Session,
    Unlock,
    SetFrozen,
    LeaveLine,
    Tenants,
    Document,
    PutDocument,
    DueDocuments,
    Documents,
    CountDocuments,
    List,
    CountDuplicates,
    Paused,
    SetPaused,
    ToolEvents,
}

const VERBS: usize = Verb::ToolEvents as usize + 1;
const KINDS: usize = 4;

/// How often each fault comes, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub err_before: u8,
    pub execute_then_timeout: u8,
    pub execute_late: u8,
    pub duplicate: u8,
}

/// What goes wrong by itself. The n-th operation of a verb has the same fate in every run.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub seed: u64,
    pub claim: Rates,
    pub replace: Rates,
    /// Of every other verb.
    pub others: Rates,
    /// The most that a late execution is late.
    pub late_ms: u64,
    /// The most that the way to the store takes, and the most that the way back takes.
    pub way_ms: u64,
}

impl Plan {
    fn fault(&self, verb: Verb, n: usize) -> Option<Fault> {
        let rates = match verb {
            Verb::Claim => self.claim,
            Verb::Replace => self.replace,
            _ => self.others,
        };
        let late = Duration::from_millis(self.draw(verb, n, 1) % (self.late_ms + 1));
        let mut left = self.draw(verb, n, 0) % 100;
        for (rate, fault) in [
            (rates.err_before, Fault::ErrBefore),
            (rates.execute_then_timeout, Fault::ExecuteThenTimeout),
            (rates.execute_late, Fault::ExecuteLate(late)),
            (rates.duplicate, Fault::Duplicate),
        ] {
            let Some(rest) = left.checked_sub(rate.into()) else {
                return Some(fault);
            };
            left = rest;
        }
        None
    }

    /// How long the way there takes, and the way back.
    fn ways(&self, verb: Verb, n: usize) -> [Duration; 2] {
        [2, 3].map(|what| Duration::from_millis(self.draw(verb, n, what) % (self.way_ms + 1)))
    }

    /// A number that depends on nothing but this (SplitMix64).
    fn draw(&self, verb: Verb, n: usize, what: u64) -> u64 {
        let mut mixed = self.seed;
        for part in [verb as u64, n as u64, what] {
            mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        mixed
    }
}

/// Clones share one store.
#[derive(Clone)]
pub struct FaultStore {
    store: Arc<dyn Store>,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// `None` once it is healed.
    plan: Mutex<Option<Plan>>,
    /// How many of the next operations of a verb go wrong so, before the plan is asked.
    ordered: Mutex<Vec<(Verb, Fault, usize)>>,
    /// From the how-manieth operation of all on how many go wrong, and how.
    nth: Mutex<Option<(usize, usize, Fault)>>,
    asked_in_all: AtomicUsize,
    is_down: AtomicBool,
    /// The next question for calls in doubt panics.
    panics: AtomicBool,
    /// The next operation of this verb panics.
    panics_at: Mutex<Option<Verb>>,
    asked: [AtomicUsize; VERBS],
    injected: [[AtomicUsize; KINDS]; VERBS],
    late: TaskTracker,
    /// When a gateway was first told that this attempt is durable and its own.
    acknowledged: Mutex<HashMap<AttemptId, Instant>>,
    /// Attempts of which a gateway was told that it is not known whether they are.
    doubted: Mutex<HashSet<(Verb, AttemptId)>>,
    barred_in_doubt: AtomicUsize,
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
        self.ordered().push((verb, fault, n));
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

    /// The next question for calls in doubt ends its task.
    pub fn panic_at_doubtful(&self) {
        self.inner.panics.store(true, Ordering::SeqCst);
    }

    /// The next operation of this verb ends its task.
    pub fn panic_at(&self, verb: Verb) {
        *self.inner.panics_at.lock().expect("not poisoned") = Some(verb);
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
        self.inner.injected[verb as usize][fault.kind()].load(Ordering::SeqCst)
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
            .filter(|attempt| doubted.contains(&(verb, **attempt)))
            .count()
    }

    /// How often it was said of an attempt that its session does not let it begin, although an earlier
    /// answer about it was lost.
    pub fn barred_in_doubt(&self) -> usize {
        self.inner.barred_in_doubt.load(Ordering::SeqCst)
    }

    fn plan(&self) -> MutexGuard<'_, Option<Plan>> {
        self.inner.plan.lock().expect("not poisoned")
    }

    fn ordered(&self) -> MutexGuard<'_, Vec<(Verb, Fault, usize)>> {
        self.inner.ordered.lock().expect("not poisoned")
    }

    /// What goes wrong with the n-th operation of a verb.
    fn fault(&self, verb: Verb, n: usize) -> Option<Fault> {
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
        verb: Verb,
        operation: impl Fn(Arc<dyn Store>) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let n = self.inner.asked[verb as usize].fetch_add(1, Ordering::SeqCst);
        let panics = self
            .inner
            .panics_at
            .lock()
            .expect("not poisoned")
            .take_if(|at| *at == verb);
        assert!(panics.is_none(), "a panic was asked for");
        let [there, back] = self
            .plan()
            .as_ref()
            .map(|plan| plan.ways(verb, n))
            .unwrap_or_default();
        pass(there).await;
        let fault = self.fault(verb, n);
        if let Some(fault) = fault {
            self.inner.injected[verb as usize][fault.kind()].fetch_add(1, Ordering::SeqCst);
        }
        let run = || operation(self.store.clone());
        let unanswered = || Err(Error::Ambiguous("the answer was lost on request".into()));
        let answer = match fault {
            None => run().await,
            Some(Fault::ErrBefore) => Err(Error::Refused("on request".into())),
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
        };
        pass(back).await;
        answer
    }

    /// Keeps in mind what a gateway was told about an attempt that it wants to make.
    fn note(&self, verb: Verb, change: &Change, told: Result<Option<&Record>, &Error>) {
        if change.record.state != State::Running {
            return;
        }
        match told {
            Ok(Some(record)) if record.state == State::Running => {
                let mut acknowledged = self.inner.acknowledged.lock().expect("not poisoned");
                acknowledged
                    .entry(record.attempt.id)
                    .or_insert_with(Instant::now);
            }
            Err(Error::Ambiguous(_)) => {
                self.inner
                    .doubted
                    .lock()
                    .expect("not poisoned")
                    .insert((verb, change.record.attempt.id));
            }
            Ok(_) | Err(Error::Refused(_) | Error::Unreadable(_)) => {}
        }
    }

    fn note_bar(&self, verb: Verb, change: &Change, is_barred: bool) {
        let doubted = self.inner.doubted.lock().expect("not poisoned");
        if is_barred && doubted.contains(&(verb, change.record.attempt.id)) {
            self.inner.barred_in_doubt.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn pass(way: Duration) {
    if !way.is_zero() {
        sleep(way).await;
    }
}

#[async_trait]
impl Store for FaultStore {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let asked = Arc::new((change.clone(), instead_of.to_vec()));
        let claim = move |store: Arc<dyn Store>| {
            let asked = asked.clone();
            async move { store.claim(&asked.0, &asked.1).await }
        };
        let claimed = self.ask(Verb::Claim, claim).await;
        self.note_bar(
            Verb::Claim,
            change,
            matches!(claimed, Ok(Claimed::Denied(_))),
        );
        let ours = claimed.as_ref().map(|claimed| match claimed {
            Claimed::Yours(record) => Some(record),
            Claimed::Existing(_) | Claimed::Denied(_) => None,
        });
        self.note(Verb::Claim, change, ours);
        claimed
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let asked = Arc::new((change.clone(), expected.clone()));
        let replace = move |store: Arc<dyn Store>| {
            let asked = asked.clone();
            async move { store.replace(&asked.0, &asked.1).await }
        };
        let replaced = self.ask(Verb::Replace, replace).await;
        self.note_bar(
            Verb::Replace,
            change,
            matches!(replaced, Ok(Replaced::Denied(_))),
        );
        let done = replaced.as_ref().map(|replaced| match replaced {
            Replaced::Done(record) => Some(record),
            Replaced::Lost(_) | Replaced::Denied(_) => None,
        });
        self.note(Verb::Replace, change, done);
        replaced
    }

    async fn holders(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let look = |store: Arc<dyn Store>| {
            let names = names.to_vec();
            async move { store.holders(&names).await }
        };
        self.ask(Verb::Holders, look).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        self.ask(
            Verb::Load,
            move |store| async move { store.load(call_id).await },
        )
        .await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        self.ask(Verb::History, move |store| async move {
            store.history(call_id, limit).await
        })
        .await
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.ask(Verb::Tenants, |store| async move { store.tenants().await })
            .await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let list = |store: Arc<dyn Store>| {
            let (tenant, filter) = (tenant.to_owned(), filter.clone());
            async move { store.list(&tenant, &filter, before, limit).await }
        };
        self.ask(Verb::List, list).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        let count = |store: Arc<dyn Store>| {
            let later = later.clone();
            async move { store.count_duplicates(call_id, &later).await }
        };
        self.ask(Verb::CountDuplicates, count).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        self.ask(Verb::Due, move |store| async move {
            store.due(now, limit).await
        })
        .await
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        let tools = tools.to_vec();
        self.ask(Verb::ToCheck, move |store| {
            let tools = tools.clone();
            async move { store.to_check(now, &tools, each).await }
        })
        .await
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        let tools = tools.to_vec();
        self.ask(Verb::ToCheck, move |store| {
            let tools = tools.clone();
            async move { store.unchecked(&tools, limit).await }
        })
        .await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        self.ask(Verb::Census, |store| async move { store.census().await })
            .await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.ask(Verb::Prune, move |store| async move {
            store.prune(now, limit).await
        })
        .await
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let look = |store: Arc<dyn Store>| {
            let id = id.clone();
            async move { store.session(&id).await }
        };
        self.ask(Verb::Session, look).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let unlock = |store: Arc<dyn Store>| {
            let (id, lock, entry) = (id.clone(), *lock, entry.clone());
            async move { store.unlock(&id, &lock, &entry).await }
        };
        self.ask(Verb::Unlock, unlock).await
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        let freeze = |store: Arc<dyn Store>| {
            let (id, entry) = (id.clone(), entry.clone());
            async move { store.set_frozen(&id, frozen, &entry).await }
        };
        self.ask(Verb::SetFrozen, freeze).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        let leave = |store: Arc<dyn Store>| {
            let id = id.clone();
            async move { store.leave_line(&id, call_id).await }
        };
        self.ask(Verb::LeaveLine, leave).await
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.ask(Verb::Paused, |store| async move { store.paused().await })
            .await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        let set = |store: Arc<dyn Store>| {
            let (tool, entry) = (tool.to_owned(), entry.clone());
            async move { store.set_paused(&tool, paused, &entry).await }
        };
        self.ask(Verb::SetPaused, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let look = |store: Arc<dyn Store>| {
            let tool = tool.to_owned();
            async move { store.tool_events(&tool).await }
        };
        self.ask(Verb::ToolEvents, look).await
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        let look = |store: Arc<dyn Store>| {
            let (tenant, id) = (tenant.to_owned(), id.to_owned());
            async move { store.document(kind, &tenant, &id).await }
        };
        self.ask(Verb::Document, look).await
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        let put = |store: Arc<dyn Store>| {
            let document = document.clone();
            async move { store.put_document(&document).await }
        };
        self.ask(Verb::PutDocument, put).await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        let put = |store: Arc<dyn Store>| {
            let document = document.clone();
            async move { store.put_back_document(&document).await }
        };
        self.ask(Verb::PutDocument, put).await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        let look =
            move |store: Arc<dyn Store>| async move { store.due_documents(kind, now, limit).await };
        self.ask(Verb::DueDocuments, look).await
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error> {
        let list = |store: Arc<dyn Store>| {
            let (tenant, state) = (tenant.map(str::to_owned), state.map(str::to_owned));
            let before = before.copied();
            async move {
                store
                    .documents(
                        kind,
                        tenant.as_deref(),
                        state.as_deref(),
                        before.as_ref(),
                        limit,
                    )
                    .await
            }
        };
        self.ask(Verb::Documents, list).await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        self.ask(Verb::CountDocuments, move |store| async move {
            store.count_documents(kind).await
        })
        .await
    }

    async fn readiness(&self) -> Readiness {
        self.store.readiness().await
    }

    fn clock_offset(&self) -> SignedDuration {
        self.store.clock_offset()
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        assert!(
            !self.inner.panics.swap(false, Ordering::SeqCst),
            "a panic was asked for"
        );
        self.store.doubtful(from, limit).await
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.store.prepare_acceptance(reason).await
    }

    fn sealing_key(&self) -> String {
        self.store.sealing_key()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        self.store.remembered_secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.store.remember_secret(secret);
    }

    fn break_off_acceptance(&self) {
        self.store.break_off_acceptance();
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.store.accept_loss(reason).await
    }

    async fn close(&self) {
        self.store.close().await;
    }

    /// What is heard is only a hint, so that none of it goes wrong.
    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.store.listen(call_id)
    }
}
