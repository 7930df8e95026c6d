//! A layer around a shared store that remembers its succeeded calls, as long as the store tells of their changes.
//!
//! A call is remembered after its first replay by this gateway, and only as [`watch`](super::Calls::watch) has read it:
//! never as this gateway has written it. Why that is never older than the store: see [`tracking`](super::tracking).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use tokio::sync::Semaphore;

use super::finished::{Finished, HasRoom, size};
use super::verbs::{each_verb, forward_health, forward_secrets, implement};
use super::{Census, Claimed, Due, Error, Found, Put, Replaced, Store};
use crate::core::call::Change;
use crate::core::document::{Document, Kind};
use crate::core::key::Lookup;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
use crate::core::position::Position;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// Most calls that are read at once to be remembered; further ones wait for their next replay.
const READS: usize = 64;

/// A layer around a shared store that remembers its succeeded calls.
pub struct Tracked {
    store: Arc<dyn Store>,
    finished: Arc<Finished>,
    has_room: HasRoom,
    reads: Arc<Semaphore>,
    /// Bytes of the calls that are read.
    reading: Arc<AtomicUsize>,
}

impl Tracked {
    pub fn new(store: Arc<dyn Store>, finished: Arc<Finished>, has_room: HasRoom) -> Self {
        Self {
            store,
            finished,
            has_room,
            reads: Arc::new(Semaphore::new(READS)),
            reading: Arc::default(),
        }
    }

    async fn claimed(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let intent = &change.record.intent;
        // Without givers it takes no name that a remembered call holds.
        if !instead_of.is_empty() {
            self.finished.touch(intent.all_names());
        }
        let claimed = self.store.claim(change, instead_of).await;
        match &claimed {
            Ok(Claimed::Existing(record)) => self.remember_soon(intent.lookup, record),
            _ => self.finished.touch(intent.all_names()),
        }
        claimed
    }

    /// Forgets the names before the change, because it may be made at any moment, and after it, because a read may
    /// have begun before it was made.
    async fn replaced(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        self.finished.touch(change.record.all_names());
        let replaced = self.store.replace(change, expected).await;
        self.finished.touch(change.record.all_names());
        replaced
    }

    async fn found(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let found = self.store.holders(names).await?;
        let first = names.first().into_iter();
        for (name, holder) in first.flat_map(|name| found.iter().map(move |holder| (name, holder)))
        {
            if holder.names.contains(name) {
                self.remember_soon(*name, &holder.record);
            }
        }
        Ok(found)
    }

    /// Reads a succeeded call once more, so that the store tells of its changes, and remembers it.
    fn remember_soon(&self, name: Lookup, record: &Record) {
        let is_wanted = matches!(record.state, State::Succeeded(_))
            && record.all_names().any(|held| *held == name)
            && !self.finished.has(&name);
        if !is_wanted {
            return;
        }
        // As it is read, and as a copy.
        let bytes = 2 * size(record);
        let under_way = self.reading.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let reading = Reading(self.reading.clone(), bytes);
        if !(self.has_room)(self.finished.bytes() + under_way) {
            return;
        }
        let Ok(place) = self.reads.clone().try_acquire_owned() else {
            return;
        };
        let (store, finished) = (self.store.clone(), self.finished.clone());
        let has_room = self.has_room.clone();
        let call_id = record.intent.call_id;
        tokio::spawn(async move {
            let read = finished.begin_read(name, call_id);
            // What else needs memory may have taken it meanwhile.
            if let Ok(Some(record)) = store.watch(&name, call_id).await
                && has_room(finished.bytes() + size(&record))
            {
                finished.remember_read(&record, &read);
            }
            drop((place, reading));
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

macro_rules! tracked {
    ($self:ident, $label:expr, claim($change:ident, $instead_of:ident)) => {
        $self.claimed($change, $instead_of).await
    };
    ($self:ident, $label:expr, replace($change:ident, $expected:ident)) => {
        $self.replaced($change, $expected).await
    };
    ($self:ident, $label:expr, holders($names:ident)) => {
        $self.found($names).await
    };
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {
        $self.store.$verb($($arg),*).await
    };
}
each_verb!(implement, Tracked, tracked);

forward_health!(Tracked);
forward_secrets!(Tracked);
