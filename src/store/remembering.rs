//! A layer around a store of one process that remembers its succeeded calls.

use std::sync::Arc;

use jiff::Timestamp;

use super::finished::{Finished, HasRoom, Seen, size};
use super::verbs::{each_verb, forward_health, forward_secrets, implement};
use super::{Census, Claimed, Due, Error, Found, Put, Replaced, Store};
use crate::core::call::Change;
use crate::core::document::{Document, Kind};
use crate::core::key::Lookup;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
use crate::core::position::Position;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// A layer around a store that remembers its succeeded calls.
pub struct Remembering {
    store: Arc<dyn Store>,
    finished: Arc<Finished>,
    has_room: HasRoom,
}

impl Remembering {
    pub fn new(store: Arc<dyn Store>, finished: Arc<Finished>, has_room: HasRoom) -> Self {
        Self {
            store,
            finished,
            has_room,
        }
    }

    /// Remembers a call, if there is room.
    pub(super) fn remember<'a>(
        &self,
        record: &Record,
        held: impl Iterator<Item = &'a Lookup>,
        seen: &[Seen],
    ) {
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
