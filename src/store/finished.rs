//! Succeeded calls in memory: what is replayed again and again is not asked of the store.
//!
//! Only over a store to which no other process writes. A call is remembered under names that it surely holds, as it was
//! when it was read or written last. A write takes what it may change out of memory before it begins. What was read or
//! written is remembered only if no other write under that name was under way then, and none has begun since. A write of
//! which it is not known whether it was made keeps its names, and those that share their count, out of memory for ever.
//!
//! Who asks must see to it that a call whose retention is over counts as absent: the store may have deleted it.

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

/// Names share a count of writes with others. More of them only make it rarer that one is asked for in vain.
const STRIPES: usize = 1024;
/// What a call takes beside its arguments and its result, about.
const FIXED: usize = 1_200;
/// What an alias takes, about.
const ALIAS: usize = 200;
/// Of a name under which nothing is to be remembered.
const NEVER: u64 = u64::MAX;

/// Succeeded calls, by their names.
pub struct Finished {
    calls: Cache<Lookup, Arc<Record>, Size>,
    /// What it held when it last grew: no less than it holds.
    bytes: AtomicUsize,
    stripes: Box<[Mutex<Writes>]>,
}

/// The writes under some names.
#[derive(Default)]
struct Writes {
    begun: u64,
    under_way: u64,
}

#[derive(Clone)]
struct Size;

impl Weighter<Lookup, Arc<Record>> for Size {
    fn weight(&self, _: &Lookup, record: &Arc<Record>) -> u64 {
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
        (bytes + texts + record.aliases.len() * ALIAS + FIXED) as u64
    }
}

impl Finished {
    /// Room for so many bytes of calls.
    pub fn new(bytes: usize) -> Self {
        Self {
            calls: Cache::with_weighter(bytes / FIXED, bytes as u64, Size),
            bytes: AtomicUsize::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
        }
    }

    /// The succeeded call that has this name, if it is remembered.
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
        let bytes = usize::try_from(self.calls.weight()).unwrap_or(usize::MAX);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn writes(&self, name: &Lookup) -> MutexGuard<'_, Writes> {
        let [.., high, low, _] = name.0;
        let at = usize::from(u16::from_be_bytes([high, low])) % STRIPES;
        lock(&self.stripes[at])
    }

    /// Before something is written under these names.
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

    /// After it is known what came of it.
    fn end(&self, seen: &[Seen]) {
        for Seen(name, _) in seen {
            self.writes(name).under_way -= 1;
        }
    }

    /// Before something is read under these names.
    fn look(&self, names: &[Lookup]) -> Vec<Seen> {
        let look = |name: &Lookup| {
            let writes = self.writes(name);
            let is_quiet = writes.under_way == 0;
            Seen(*name, if is_quiet { writes.begun } else { NEVER })
        };
        names.iter().map(look).collect()
    }

    /// Remembers a call as it was found, under those of these names to which nothing was written since.
    fn remember<'a>(&self, record: &Record, held: impl Iterator<Item = &'a Lookup>, seen: &[Seen]) {
        if !matches!(record.state, State::Succeeded(_)) {
            return;
        }
        let shared = Arc::new(with_own_bytes(record.clone()));
        for name in held {
            let Some(Seen(_, begun)) = seen.iter().find(|Seen(seen, _)| seen == name) else {
                continue;
            };
            let writes = self.writes(name);
            if writes.begun == *begun && writes.under_way == 0 {
                self.calls.insert(*name, shared.clone());
            }
        }
        self.note_size();
    }
}

/// The same with a copy of its result: it may be a small part of a large buffer.
fn with_own_bytes(mut record: Record) -> Record {
    if let Some(json) = record.state.kept_mut() {
        *json = Bytes::copy_from_slice(json);
    }
    record
}

/// A name, and how many writes under it had begun, if none was under way.
struct Seen(Lookup, u64);

/// A store whose succeeded calls are remembered.
pub struct Remembering {
    store: Arc<dyn Store>,
    finished: Arc<Finished>,
}

impl Remembering {
    pub fn new(store: Arc<dyn Store>, finished: Arc<Finished>) -> Self {
        Self { store, finished }
    }

    async fn claimed(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let seen = self.finished.begin(change.record.intent.all_names());
        let claimed = self.store.claim(change, instead_of).await;
        match &claimed {
            Err(Error::Ambiguous(_)) => {}
            _ => self.finished.end(&seen),
        }
        // Which of several names it holds is not known: one that is past its window may have lost some.
        if let (Ok(Claimed::Existing(record)), [Seen(name, _)]) = (&claimed, &seen[..]) {
            self.finished.remember(record, [name].into_iter(), &seen);
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
        // Only of a running call it is known that it holds its names.
        if let (Ok(Replaced::Done(record)), State::Running) = (&replaced, &expected.state) {
            let held = record.intent.all_names();
            self.finished.remember(record, held, &seen);
        }
        replaced
    }

    async fn found(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let seen = self.finished.look(names);
        let found = self.store.holders(names).await?;
        for holder in &found {
            let held = holder.names.iter();
            self.finished.remember(&holder.record, held, &seen);
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
