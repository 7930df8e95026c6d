//! Succeeded calls in memory, so that their duplicates do not read the store.
//!
//! Only for a store to which no other process writes. A call is remembered under the names that it surely holds, as it
//! was last read or written. These rules keep memory from showing an older state than the store:
//! * A write removes its names from memory before it begins.
//! * After a read or a write its call is remembered only if no other write under the name was under way at its
//!   beginning, and none has begun since.
//! * A write with an unknown outcome counts as under way until the process ends. So its names, and all others of its
//!   stripe, are not remembered again.
//!
//! The caller of [`Finished::get`] must ignore a call past its retention: the store may have deleted it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use jiff::Timestamp;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::codec::result;
use super::lock::lock;
use super::verbs::{each_verb, forward_health, forward_secrets, implement};
use super::{Census, Claimed, Due, Error, Found, Put, Replaced, Store};
use crate::core::call::Change;
use crate::core::document::{Document, Kind};
use crate::core::key::Lookup;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
use crate::core::position::Position;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// Names of one stripe share a count of writes. With more stripes fewer names are held up by writes under other names.
const STRIPES: usize = 1024;
/// About how many bytes a call takes beside its texts.
const FIXED: usize = 1_200;
/// About how many bytes an alias takes.
const ALIAS: usize = 200;
/// Instead of a count: nothing is remembered under this name.
const NEVER: u64 = u64::MAX;

/// Succeeded calls, by their names.
pub struct Finished {
    calls: Cache<Lookup, Arc<Record>, Size>,
    /// The size after the last insertion. Removals since then are not deducted.
    bytes: AtomicUsize,
    /// Held while the size is measured and noted, so that no older size overwrites a newer one.
    measuring: Mutex<()>,
    stripes: Box<[Mutex<Writes>]>,
}

/// The writes under the names of one stripe.
#[derive(Default)]
struct Writes {
    begun: u64,
    under_way: u64,
}

#[derive(Clone)]
struct Size;

impl Weighter<Lookup, Arc<Record>> for Size {
    fn weight(&self, _: &Lookup, record: &Arc<Record>) -> u64 {
        size(record) as u64
    }
}

/// About how many bytes a call takes under each of its names.
fn size(record: &Record) -> usize {
    let intent = &record.intent;
    let texts = [
        &intent.key,
        &intent.user_id,
        &intent.session_id,
        &intent.saga_id,
        &intent.trace_id,
        &intent.client_ids,
    ];
    let texts: usize = texts.iter().map(|text| text.len()).sum();
    let bytes = intent.args.len() + result(record).map_or(0, Bytes::len);
    bytes + texts + record.aliases.len() * ALIAS + FIXED
}

impl Finished {
    /// A memory for at most so many bytes of calls.
    pub fn new(bytes: usize) -> Self {
        Self {
            calls: Cache::with_weighter(bytes / FIXED, bytes as u64, Size),
            bytes: AtomicUsize::new(0),
            measuring: Mutex::default(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    /// The succeeded call that holds this name, if it is remembered.
    pub fn get(&self, name: &Lookup) -> Option<Arc<Record>> {
        self.calls.get(name)
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

    /// Begins a write: removes these names from memory.
    fn begin<'a>(&self, names: impl Iterator<Item = &'a Lookup>) -> Vec<Seen> {
        let begin = |name: &Lookup| {
            let mut writes = self.writes(name);
            let is_alone = writes.under_way == 0;
            writes.begun += 1;
            writes.under_way += 1;
            self.calls.remove(name);
            Seen(*name, if is_alone { writes.begun } else { NEVER })
        };
        names.map(begin).collect()
    }

    /// Ends a write whose outcome is known.
    fn end(&self, seen: &[Seen]) {
        for Seen(name, _) in seen {
            self.writes(name).under_way -= 1;
        }
    }

    /// Begins a read of these names.
    fn look(&self, names: &[Lookup]) -> Vec<Seen> {
        let look = |name: &Lookup| {
            let writes = self.writes(name);
            let is_quiet = writes.under_way == 0;
            Seen(*name, if is_quiet { writes.begun } else { NEVER })
        };
        names.iter().map(look).collect()
    }

    /// Remembers a call under those of its names that no other write has touched since `seen`.
    fn remember<'a>(&self, record: &Record, held: impl Iterator<Item = &'a Lookup>, seen: &[Seen]) {
        if !matches!(record.state, State::Succeeded(_)) {
            return;
        }
        let is_untouched = |name: &Lookup, writes: &Writes| {
            let begun = seen.iter().find(|Seen(seen, _)| seen == name);
            begun.is_some_and(|Seen(_, begun)| writes.begun == *begun && writes.under_way == 0)
        };
        // Before the copy, and once more at the insertion: a write may begin meanwhile.
        let names: Vec<&Lookup> = held
            .filter(|name| is_untouched(name, &self.writes(name)))
            .collect();
        if names.is_empty() {
            return;
        }
        let shared = Arc::new(with_own_bytes(record.clone()));
        for name in names {
            let writes = self.writes(name);
            if is_untouched(name, &writes) {
                self.calls.insert(*name, shared.clone());
            }
        }
        self.note_size();
    }
}

/// The record with a copy of its result, which may be a small part of a large buffer.
fn with_own_bytes(mut record: Record) -> Record {
    if let Some(json) = record.state.kept_mut() {
        *json = Bytes::copy_from_slice(json);
    }
    record
}

/// A name, and the count of writes at the beginning of a read or a write; `NEVER` if another write was under way.
struct Seen(Lookup, u64);

/// A layer around a store that remembers its succeeded calls.
pub struct Remembering {
    store: Arc<dyn Store>,
    finished: Arc<Finished>,
    has_room: HasRoom,
}

/// Whether so many bytes may be remembered, beside what else needs memory now.
type HasRoom = Box<dyn Fn(usize) -> bool + Send + Sync>;

impl Remembering {
    pub fn new(store: Arc<dyn Store>, finished: Arc<Finished>, has_room: HasRoom) -> Self {
        Self {
            store,
            finished,
            has_room,
        }
    }

    /// Remembers a call, if there is room.
    fn remember<'a>(&self, record: &Record, held: impl Iterator<Item = &'a Lookup>, seen: &[Seen]) {
        let bytes = self.finished.bytes() + size(record) * seen.len();
        if (self.has_room)(bytes) {
            self.finished.remember(record, held, seen);
        }
    }

    async fn claimed(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let seen = self.finished.begin(change.record.intent.all_names());
        let claimed = self.store.claim(change, instead_of).await;
        match &claimed {
            Err(Error::Ambiguous(_)) => {}
            _ => self.finished.end(&seen),
        }
        // With several names it is not known which of them the call holds: past its window it may have lost some.
        if let (Ok(Claimed::Existing(record)), [Seen(name, _)]) = (&claimed, &seen[..]) {
            self.remember(record, [name].into_iter(), &seen);
        }
        claimed
    }

    async fn replaced(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let seen = self.finished.begin(change.record.all_names());
        let replaced = self.store.replace(change, expected).await;
        match &replaced {
            Err(Error::Ambiguous(_)) => {}
            _ => self.finished.end(&seen),
        }
        // Only a call that was running surely holds all its names.
        if let (Ok(Replaced::Done(record)), State::Running) = (&replaced, &expected.state) {
            let held = record.intent.all_names();
            self.remember(record, held, &seen);
        }
        replaced
    }

    async fn found(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let seen = self.finished.look(names);
        let found = self.store.holders(names).await?;
        for holder in &found {
            let held = holder.names.iter();
            self.remember(&holder.record, held, &seen);
        }
        Ok(found)
    }
}

macro_rules! remembering {
    ($self:ident, $label:expr, claim($change:ident, $instead_of:ident)) => {
        $self.claimed($change, $instead_of).await
    };
    ($self:ident, $label:expr, replace($change:ident, $expected:ident)) => {
        $self.replaced($change, $expected).await
    };
    ($self:ident, $label:expr, holders($names:ident)) => {
        $self.found($names).await
    };
    ($self:ident, $label:expr, accept_loss($reason:ident)) => {{
        let accepted = $self.store.accept_loss($reason).await;
        $self.finished.clear();
        accepted
    }};
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {
        $self.store.$verb($($arg),*).await
    };
}
each_verb!(implement, Remembering, remembering);

forward_health!(Remembering);
forward_secrets!(Remembering);

#[cfg(test)]
#[path = "finished_tests.rs"]
mod tests;
