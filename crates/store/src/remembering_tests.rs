//! When the layer around a shared store forgets a call, and how much it reads at once.

use std::future::pending;

use bytes::Bytes;
use tokio::sync::Notify;

use super::*;
use crate::Calls as _;
use crate::codec::tests::record;
use crate::{Error, Health, Listener, Readiness, Secrets};
use oncegate_rules::key::Source;
use oncegate_rules::record::{CallId, Content};
use oncegate_rules::testing as calls;
use oncegate_rules::tool::Tool;

/// A store in which claims never end, reads end when they are let go, and one call is held by each name.
///
/// Nothing else may be asked of it.
pub(crate) struct Held {
    is_asked: Arc<Notify>,
    may_end: Arc<Semaphore>,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self {
            is_asked: Arc::default(),
            may_end: Arc::new(Semaphore::new(0)),
        }
    }
}

macro_rules! held {
    ($self:ident, $label:expr, claim($change:ident, $replaced:ident)) => {{
        let _ = ($change, $replaced);
        $self.is_asked.notify_one();
        pending().await
    }};
    ($self:ident, $label:expr, watch($name:ident, $call_id:ident)) => {{
        let _ = ($name, $call_id);
        $self.may_end.acquire().await.expect("open").forget();
        Ok(None)
    }};
    ($self:ident, $label:expr, holders($lookups:ident)) => {
        Ok(vec![Holder {
            record: succeeded(),
            lookups: $lookups.to_vec(),
        }])
    };
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        $(let _ = $arg;)*
        unreachable!("{} was asked", $label)
    }};
}
each_verb!(implement, Held, held);

#[async_trait::async_trait]
impl Health for Held {
    async fn readiness(&self) -> Readiness {
        unreachable!("its readiness was asked")
    }

    fn clock_offset(&self) -> jiff::SignedDuration {
        jiff::SignedDuration::ZERO
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn listen(&self, _: CallId) -> Option<Listener> {
        None
    }

    fn cancel_acceptance(&self) {}

    async fn close(&self) {}
}

impl Secrets for Held {
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        Ok(None)
    }

    fn remember_secret(&self, _: &Bytes) {}
}

fn succeeded() -> Record {
    record(State::Succeeded(Content::Stored(Bytes::from("1"))))
}

/// A claim, and a memory that holds a succeeded call by the name that the claim takes.
fn claim() -> (Change, Arc<ReplayCache>) {
    let record = calls::record(&Tool::new("t"), Source::Runtime, &[]);
    let replay_cache = Arc::new(ReplayCache::new(1 << 20));
    let start = replay_cache.begin_read(&[record.intent.lookup]);
    let old = Record {
        intent: record.intent.clone(),
        ..succeeded()
    };
    replay_cache.remember(&old, [&record.intent.lookup].into_iter(), &start);
    (calls::claim_of(record), replay_cache)
}

/// Whether the call is remembered while the store has not answered the claim.
async fn is_remembered_meanwhile(replaced: &[Record]) -> bool {
    let (change, replay_cache) = claim();
    assert!(replay_cache.has(&change.record.intent.lookup));
    let held = Held::new();
    let is_asked = held.is_asked.clone();
    let tracked = Tracked::new(Arc::new(held), replay_cache.clone(), Arc::new(|_| true));
    tokio::select! {
        claimed = tracked.claim(&change, replaced) => panic!("it has ended: {claimed:?}"),
        () = is_asked.notified() => replay_cache.has(&change.record.intent.lookup),
    }
}

/// The store may take the name away at any moment, and another gateway may then run the new call.
#[tokio::test]
async fn a_call_whose_name_a_claim_takes_is_forgotten_before_the_claim() {
    assert!(!is_remembered_meanwhile(&[succeeded()]).await);
    assert!(is_remembered_meanwhile(&[]).await, "it takes no name");
}

#[tokio::test]
async fn calls_that_are_being_read_take_room_until_they_are_read() {
    let held = Held::new();
    let may_end = held.may_end.clone();
    let replay_cache = Arc::new(ReplayCache::new(1 << 20));
    let asked = Arc::new(AtomicUsize::new(0));
    let has_memory = {
        let asked = asked.clone();
        Arc::new(move |bytes| {
            asked.store(bytes, Ordering::Relaxed);
            true
        })
    };
    let tracked = Tracked::new(Arc::new(held), replay_cache, has_memory);
    let call = succeeded();
    let asked_for = || {
        tracked.remember_soon(call.intent.lookup, &call);
        asked.load(Ordering::Relaxed) / size(&call)
    };
    // The call as it is read, and its copy in memory.
    assert_eq!([asked_for(), asked_for()], [2, 4]);
    may_end.add_permits(2);
    // Both reads end in tasks of this thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(asked_for(), 2);
}

#[tokio::test]
async fn both_layers_find_the_holders_that_the_store_finds() {
    let name = succeeded().intent.lookup;
    let replay_cache = || Arc::new(ReplayCache::new(1 << 20));
    let tracked = Tracked::new(Arc::new(Held::new()), replay_cache(), Arc::new(|_| true));
    let remembering = Remembering::new(Arc::new(Held::new()), replay_cache(), Arc::new(|_| true));
    let found = [
        tracked.holders(&[name]).await.expect("an answer"),
        remembering.holders(&[name]).await.expect("an answer"),
    ];
    for holders in found {
        assert_eq!(holders.len(), 1);
        assert_eq!(holders[0].record, succeeded());
    }
}
