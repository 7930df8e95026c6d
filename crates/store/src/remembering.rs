//! Layers around a store that remember its succeeded calls: for a store of one process, and for a shared one.
//!
//! Why a remembered call is never older than the stored one: see [`replay_cache`](super::replay_cache) and, for a shared store,
//! [`tracking`](super::tracking).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::replay_cache::{HasMemory, ReplayCache, Seen, Start, size};
use super::verbs::layer::*;
use oncegate_rules::record::State;

/// Most calls that are read at once to be remembered. Further calls wait for their next replay.
const READS: usize = 64;

/// A layer around the store of one process. It remembers calls as they were read or written.
pub struct Remembering {
    store: Arc<dyn Store>,
    replay_cache: Arc<ReplayCache>,
    has_memory: HasMemory,
}

/// A layer around a shared store that tells of changed calls.
///
/// It remembers a call after the call's first replay by this gateway, and only as [`watch`](super::Calls::watch) read it:
/// never as this gateway wrote it.
pub struct Tracked {
    store: Arc<dyn Store>,
    replay_cache: Arc<ReplayCache>,
    has_memory: HasMemory,
    reads: Arc<Semaphore>,
    /// Bytes of the calls that are being read.
    reading: Arc<AtomicUsize>,
}

impl Remembering {
    pub fn new(
        store: Arc<dyn Store>,
        replay_cache: Arc<ReplayCache>,
        has_memory: HasMemory,
    ) -> Self {
        Self {
            store,
            replay_cache,
            has_memory,
        }
    }

    /// Remembers a call, if there is room.
    pub(super) fn remember<'a>(
        &self,
        record: &Record,
        held: impl Iterator<Item = &'a Lookup>,
        start: &Start,
    ) {
        let bytes = self.replay_cache.bytes() + size(record) * start.seen.len();
        if (self.has_memory)(bytes) {
            self.replay_cache.remember(record, held, start);
        }
    }

    async fn claim_noted(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let start = self
            .replay_cache
            .begin_write(change.record.intent.all_lookups());
        let claimed = self.store.claim(change, replaced).await;
        if !matches!(claimed, Err(Error::Ambiguous(_))) {
            self.replay_cache.end_write(&start);
        }
        // The answer does not say which of several names the call holds: a call past its window may have lost some.
        if let (Ok(Claimed::Existing(record)), [Seen(name, _)]) = (&claimed, &start.seen[..]) {
            self.remember(record, [name].into_iter(), &start);
        }
        claimed
    }

    async fn replace_noted(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        let start = self.replay_cache.begin_write(change.record.all_lookups());
        let replaced = self.store.replace(change, expected).await;
        if !matches!(replaced, Err(Error::Ambiguous(_))) {
            self.replay_cache.end_write(&start);
        }
        // Only a call that was running surely holds all its lookup keys.
        if let (Ok(Replaced::Done(record)), State::Running) = (&replaced, &expected.state) {
            self.remember(record, record.intent.all_lookups(), &start);
        }
        replaced
    }

    async fn holders_noted(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let start = self.replay_cache.begin_read(lookups);
        let found = self.store.holders(lookups).await?;
        for holder in &found {
            self.remember(&holder.record, holder.lookups.iter(), &start);
        }
        Ok(found)
    }
}

impl Tracked {
    pub fn new(
        store: Arc<dyn Store>,
        replay_cache: Arc<ReplayCache>,
        has_memory: HasMemory,
    ) -> Self {
        Self {
            store,
            replay_cache,
            has_memory,
            reads: Arc::new(Semaphore::new(READS)),
            reading: Arc::default(),
        }
    }

    async fn claim_noted(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let intent = &change.record.intent;
        // If no call gives up its lookup keys, the claim takes no lookup key that a remembered call holds.
        if !replaced.is_empty() {
            self.replay_cache.touch(intent.all_lookups());
        }
        let claimed = self.store.claim(change, replaced).await;
        match &claimed {
            Ok(Claimed::Existing(record)) => self.remember_soon(intent.lookup, record),
            _ => self.replay_cache.touch(intent.all_lookups()),
        }
        claimed
    }

    /// Forgets the lookup keys before the change, because the store may make it at any moment, and after it, because a read may
    /// have begun before.
    async fn replace_noted(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        self.replay_cache.touch(change.record.all_lookups());
        let replaced = self.store.replace(change, expected).await;
        self.replay_cache.touch(change.record.all_lookups());
        replaced
    }

    async fn holders_noted(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let found = self.store.holders(lookups).await?;
        if let Some(first) = lookups.first() {
            for holder in found.iter().filter(|holder| holder.lookups.contains(first)) {
                self.remember_soon(*first, &holder.record);
            }
        }
        Ok(found)
    }

    /// Reads a succeeded call once more, so that the store tells of its changes, and remembers it.
    fn remember_soon(&self, name: Lookup, record: &Record) {
        let is_wanted = matches!(record.state, State::Succeeded(_))
            && record.all_lookups().any(|held| *held == name)
            && !self.replay_cache.has(&name);
        if !is_wanted {
            return;
        }
        // The call as it is read, and its copy in memory.
        let bytes = 2 * size(record);
        let under_way = self.reading.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let reading = Reading(self.reading.clone(), bytes);
        if !(self.has_memory)(self.replay_cache.bytes() + under_way) {
            return;
        }
        let Ok(permit) = self.reads.clone().try_acquire_owned() else {
            return;
        };
        let (store, replay_cache) = (self.store.clone(), self.replay_cache.clone());
        let has_memory = self.has_memory.clone();
        let call_id = record.intent.call_id;
        tokio::spawn(async move {
            let start = replay_cache.begin_tracked_read(name, call_id);
            // Other users of the memory budget may have taken the room meanwhile.
            if let Ok(Some(record)) = store.watch(&name, call_id).await
                && has_memory(replay_cache.bytes() + size(&record))
            {
                replay_cache.remember(&record, [&name].into_iter(), &start);
            }
            drop((permit, reading));
        });
    }
}

/// The bytes of one read that is under way.
struct Reading(Arc<AtomicUsize>, usize);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

macro_rules! remembering {
    ($self:ident, $label:expr, claim($change:ident, $replaced:ident)) => {
        $self.claim_noted($change, $replaced).await
    };
    ($self:ident, $label:expr, replace($change:ident, $expected:ident)) => {
        $self.replace_noted($change, $expected).await
    };
    ($self:ident, $label:expr, holders($lookups:ident)) => {
        $self.holders_noted($lookups).await
    };
    ($self:ident, $label:expr, accept_loss($reason:ident)) => {{
        let accepted = $self.store.accept_loss($reason).await;
        $self.replay_cache.clear();
        accepted
    }};
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {
        $self.store.$verb($($arg),*).await
    };
}
each_verb!(implement, Remembering, remembering);
each_verb!(implement, Tracked, remembering);

forward_health!(Remembering);
forward_health!(Tracked);
forward_secrets!(Remembering);
forward_secrets!(Tracked);

#[cfg(test)]
#[path = "remembering_tests.rs"]
pub(crate) mod tests;
