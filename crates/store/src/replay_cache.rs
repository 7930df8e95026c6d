//! Succeeded calls in memory, so that their duplicates do not read the store.
//!
//! Two layers fill it: [`Remembering`](super::Remembering) around a store to which no other process writes, and
//! [`Tracked`](super::Tracked) around a shared one. A call is remembered, as it was last read or written, under the lookup keys
//! that it surely holds. These rules keep memory from showing an older state than a store of its own has:
//! * A write forgets its lookup keys before it begins.
//! * A read or a write remembers its call only if no other write under the lookup key was under way when it began, and none has
//!   begun since.
//! * A write with an unknown outcome counts as under way until the process ends. So its lookup keys, and all others of their
//!   stripes, are not remembered again.
//!
//! For a shared store see [`tracking`](super::tracking). The caller of [`ReplayCache::get`] must ignore a call past its
//! retention, or [so close](Finished::slack) to it that another gateway may take it for past: the store may have deleted it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::codec::{call_id, pack, unpack};
use super::lock::lock;
use super::tracking::Tracking;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Record, State};

/// Names of one stripe share a count of writes. More stripes mean fewer lookup keys that writes under other lookup keys keep out.
const STRIPES: usize = 1024;
/// About how many bytes a lookup key of a call takes beside the packed call.
const FIXED: usize = 136;
/// About how many bytes a packed call takes beside its result and its texts.
const PACKED: usize = 280;
/// About how many bytes an alias takes in it.
const ALIAS: usize = 100;
/// Instead of a count of writes: nothing is remembered under this lookup key.
const NEVER: u64 = u64::MAX;

/// How far ahead the clock of another gateway of the same store may be.
const CLOCKS: Duration = Duration::from_secs(10);

/// Succeeded calls, by their lookup keys.
pub struct ReplayCache {
    calls: Cache<Lookup, Cached, Size>,
    /// The size after the last insertion. Removals since then are not deducted.
    bytes: AtomicUsize,
    /// Locked while the size is measured and stored, so that no older size overwrites a newer one.
    measuring: Mutex<()>,
    stripes: Box<[Mutex<Writes>]>,
    /// The connection that reports changes to calls that are read from now on.
    tracking: Mutex<Arc<Tracking>>,
    is_shared: bool,
}

/// A remembered call.
#[derive(Clone)]
struct Cached {
    /// As [`pack`] encodes it: a fourth of what a record takes.
    packed: Arc<[u8]>,
    tracking: Arc<Tracking>,
    /// [`Tracking::changes`] of its call when it was read.
    changes: u64,
}

impl Cached {
    fn is_unchanged(&self) -> bool {
        let is_as_read = |call_id: CallId| self.tracking.changes(call_id) == self.changes;
        !self.tracking.is_over() && call_id(&self.packed).is_some_and(is_as_read)
    }
}

/// The writes under the lookup keys of one stripe.
#[derive(Default)]
struct Writes {
    begun: u64,
    under_way: u64,
}

#[derive(Clone)]
struct Size;

impl Weighter<Lookup, Cached> for Size {
    fn weight(&self, _: &Lookup, stored: &Cached) -> u64 {
        (stored.packed.len() + FIXED) as u64
    }
}

/// About how many bytes a call takes under each of its lookup keys, rather more than less.
pub(super) fn size(record: &Record) -> usize {
    let intent = &record.intent;
    let texts = [
        &intent.tenant,
        &intent.tool,
        &intent.made_by,
        &intent.key,
        &intent.user_id,
        &intent.session_id,
        &intent.saga_id,
        &intent.trace_id,
        &intent.client_ids,
    ];
    let texts: usize = texts.iter().map(|text| text.len()).sum();
    let result = record.state.answer_bytes();
    let lookups = intent.lookups.len() * size_of::<Lookup>() + record.aliases.len() * ALIAS;
    result + texts + lookups + PACKED + FIXED
}

impl ReplayCache {
    /// A memory for at most so many bytes of calls of a store to which no other process writes.
    pub fn new(bytes: usize) -> Self {
        Self {
            calls: Cache::with_weighter(bytes / (PACKED + FIXED), bytes as u64, Size),
            bytes: AtomicUsize::new(0),
            measuring: Mutex::default(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            tracking: Mutex::new(Arc::new(Tracking::of_own_store())),
            is_shared: false,
        }
    }

    /// The same for a shared store. Nothing is remembered before `begin_tracking`.
    pub fn of_shared_store(bytes: usize) -> Self {
        let replay_cache = Self::new(bytes);
        replay_cache.doubt();
        Self {
            is_shared: true,
            ..replay_cache
        }
    }

    /// The succeeded call that holds this lookup key, if it is remembered and believed.
    ///
    /// It has no arguments, so it must not be written back.
    pub fn get(&self, name: &Lookup) -> Option<Record> {
        let stored = self.calls.get(name)?;
        let is_valid = stored.tracking.is_believed() && stored.is_unchanged();
        is_valid.then(|| unpack(&stored.packed).ok()).flatten()
    }

    /// Whether a call is remembered under this lookup key. It may not be believed at the moment.
    pub(super) fn has(&self, name: &Lookup) -> bool {
        self.calls
            .get(name)
            .is_some_and(|stored| stored.is_unchanged())
    }

    /// How long before its end a call is no longer answered from memory.
    pub fn slack(&self) -> Duration {
        if self.is_shared {
            CLOCKS
        } else {
            Duration::ZERO
        }
    }

    /// Begins with a new connection that reports changes. Forgets all calls.
    pub fn begin_tracking(&self) -> Arc<Tracking> {
        let tracking = Arc::new(Tracking::unanswered());
        let before = std::mem::replace(&mut *lock(&self.tracking), tracking.clone());
        self.end_tracking(&before);
        tracking
    }

    /// Forgets all calls, and never again believes what was read over this connection.
    pub fn end_tracking(&self, tracking: &Tracking) {
        tracking.end();
        self.clear();
    }

    /// Forgets all calls until another connection begins: the store may have other data than was read.
    pub fn doubt(&self) {
        let tracking = lock(&self.tracking).clone();
        if !tracking.is_over() {
            self.end_tracking(&tracking);
        }
    }

    /// Forgets these lookup keys. Reads of them that are under way remember nothing.
    pub fn touch<'a>(&self, lookups: impl Iterator<Item = &'a Lookup>) {
        for name in lookups {
            let mut writes = self.writes(name);
            writes.begun += 1;
            self.calls.remove(name);
        }
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn clear(&self) {
        self.calls.clear();
        self.note_size();
    }

    fn note_size(&self) {
        let _alone = lock(&self.measuring);
        let bytes = usize::try_from(self.calls.weight()).unwrap_or(usize::MAX);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn writes(&self, name: &Lookup) -> MutexGuard<'_, Writes> {
        let [.., high, low, _] = name.0;
        let at = usize::from(u16::from_be_bytes([high, low])) % STRIPES;
        lock(&self.stripes[at])
    }

    /// Begins a write: forgets these lookup keys.
    pub(super) fn begin_write<'a>(&self, lookups: impl Iterator<Item = &'a Lookup>) -> Start {
        self.start(lookups, |name, writes| {
            let is_alone = writes.under_way == 0;
            writes.begun += 1;
            writes.under_way += 1;
            self.calls.remove(name);
            is_alone
        })
    }

    /// Ends a write with a known outcome.
    pub(super) fn end_write(&self, start: &Start) {
        for Seen(name, _) in &start.seen {
            self.writes(name).under_way -= 1;
        }
    }

    /// Begins a read of these lookup keys.
    pub(super) fn begin_read(&self, lookups: &[Lookup]) -> Start {
        self.start(lookups.iter(), |_, writes| writes.under_way == 0)
    }

    /// Begins a read of a call in a shared store by a lookup key that it seems to hold.
    pub(super) fn begin_tracked_read(&self, name: Lookup, call_id: CallId) -> Start {
        let mut start = self.begin_read(&[name]);
        start.changes = start.tracking.changes(call_id);
        start
    }

    fn start<'a>(
        &self,
        lookups: impl Iterator<Item = &'a Lookup>,
        is_alone: impl Fn(&Lookup, &mut Writes) -> bool,
    ) -> Start {
        let see = |name: &Lookup| {
            let mut writes = self.writes(name);
            let is_alone = is_alone(name, &mut writes);
            Seen(*name, if is_alone { writes.begun } else { NEVER })
        };
        Start {
            seen: lookups.map(see).collect(),
            tracking: lock(&self.tracking).clone(),
            changes: 0,
        }
    }

    /// Remembers a call under those of its lookup keys that nothing has touched since `start`.
    pub(super) fn remember<'a>(
        &self,
        record: &Record,
        held: impl Iterator<Item = &'a Lookup>,
        start: &Start,
    ) {
        // A call whose lookup key is free from its end on, as that of a read, answers no request.
        let is_over = record
            .expires_at
            .is_some_and(|until| until <= record.updated_at);
        if !matches!(record.state, State::Succeeded(_)) || is_over || start.tracking.is_over() {
            return;
        }
        let is_untouched = |name: &Lookup, writes: &Writes| {
            let seen = start.seen.iter().find(|Seen(seen, _)| seen == name);
            seen.is_some_and(|Seen(_, begun)| writes.begun == *begun && writes.under_way == 0)
        };
        // Before the copy, and once more at the insertion: a write may begin meanwhile.
        let lookups: Vec<&Lookup> = held
            .filter(|name| is_untouched(name, &self.writes(name)))
            .collect();
        if lookups.is_empty() {
            return;
        }
        let stored = Cached {
            packed: pack(record),
            tracking: start.tracking.clone(),
            changes: start.changes,
        };
        for name in lookups {
            let writes = self.writes(name);
            if is_untouched(name, &writes) {
                self.calls.insert(*name, stored.clone());
            }
        }
        self.note_size();
    }
}

/// Whether so many bytes may be remembered, beside all other uses of memory.
pub(super) type HasMemory = Arc<dyn Fn(usize) -> bool + Send + Sync>;

/// What was known when a read or a write began.
pub(super) struct Start {
    pub(super) seen: Vec<Seen>,
    tracking: Arc<Tracking>,
    /// [`Tracking::changes`] of the call that is read from a shared store.
    changes: u64,
}

/// A lookup key, and how many writes under it had begun. `NEVER`: another write was under way.
pub(super) struct Seen(pub(super) Lookup, pub(super) u64);

#[cfg(test)]
#[path = "replay_cache_tests.rs"]
mod tests;
