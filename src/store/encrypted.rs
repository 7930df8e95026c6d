//! A layer around a store that encrypts the texts of callers and tools.
//!
//! Arguments, results and the bodies of documents are encrypted. What a call is found by stays readable, and
//! so does what a document is listed by. [`Seal`] and [`Open`] say for each argument and each answer of a verb
//! what is encrypted in it: a verb with a type of which they say nothing does not compile.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use super::cipher::{Binding, Keys};
use super::verbs::{each_verb, forward_health, implement};
use super::{Census, Claimed, Due, Error, Found, Put, Replaced, Secrets, Store};
use crate::core::call::Change;
use crate::core::document::{Document, Kind, digest};
use crate::core::key::Lookup;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Maker, Page};
use crate::core::position::Position;
use crate::core::record::Content;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// A store whose texts only the holder of the keys can read.
pub struct Encrypted {
    store: Arc<dyn Store>,
    keys: Keys,
}

impl Encrypted {
    pub fn new(store: Arc<dyn Store>, keys: Keys) -> Self {
        Self { store, keys }
    }
}

macro_rules! encrypted {
    ($self:ident, $label:expr, $verb:ident($($arg:ident),*)) => {{
        $(let $arg = Seal::sealed($arg, &$self.keys)?;)*
        let answer = $self.store.$verb($(Seal::lent(&$arg)),*).await?;
        answer.opened(&$self.keys)
    }};
}
each_verb!(implement, Encrypted, encrypted);

forward_health!(Encrypted);

impl Secrets for Encrypted {
    fn sealing_key(&self) -> String {
        self.keys.name()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        let copy = self.store.remembered_secret()?;
        copy.map(|copy| self.keys.open(Binding::SECRET, &copy))
            .transpose()
    }

    fn remember_secret(&self, secret: &Bytes) {
        match self.keys.seal(Binding::SECRET, secret) {
            Ok(sealed) => self.store.remember_secret(&sealed),
            Err(error) => tracing::error!(%error, "no copy of the store's secret is kept"),
        }
    }
}

/// An argument of a verb.
trait Seal<'a>: Sized {
    /// The argument with its texts encrypted.
    type Sealed: Send + Sync;

    fn sealed(self, keys: &Keys) -> Result<Self::Sealed, Error>;

    /// The argument as the verb takes it.
    fn lent(sealed: &'a Self::Sealed) -> Self;
}

impl<'a> Seal<'a> for &'a Change {
    type Sealed = Change;

    fn sealed(self, keys: &Keys) -> Result<Change, Error> {
        let mut change = self.clone();
        let call_id = change.record.intent.call_id;
        let args = keys.seal(Binding::args(call_id), &change.record.intent.args)?;
        Arc::make_mut(&mut change.record.intent).args = args;
        if let Some(json) = change.record.state.kept_mut() {
            *json = keys.seal(Binding::result(call_id), json)?;
        }
        Ok(change)
    }

    fn lent(sealed: &'a Change) -> Self {
        sealed
    }
}

impl<'a> Seal<'a> for &'a Document {
    type Sealed = Cow<'a, Document>;

    fn sealed(self, keys: &Keys) -> Result<Self::Sealed, Error> {
        // A gateway that cannot read a recipe does not recognise its calls, and one that cannot read a mark does not
        // find its frozen session, whatever keys it has. Neither holds anything that a caller or a tool has said.
        if matches!(self.kind, Kind::Recipe | Kind::Session) {
            return Ok(Cow::Borrowed(self));
        }
        let body = keys.seal(binding_of(self), &self.body)?;
        Ok(Cow::Owned(Document {
            body,
            ..self.clone()
        }))
    }

    fn lent(sealed: &'a Self::Sealed) -> Self {
        sealed
    }
}

/// Arguments without texts.
///
/// A change compares itself with records, but with none of their texts.
macro_rules! nothing_to_seal {
    ($($ty:ty),*) => { $(
        impl<'a> Seal<'a> for $ty {
            type Sealed = Self;

            fn sealed(self, _: &Keys) -> Result<Self, Error> {
                Ok(self)
            }

            fn lent(sealed: &'a Self) -> Self {
                *sealed
            }
        }
    )* };
}
nothing_to_seal!(
    &'a Record,
    &'a [Record],
    &'a Lookup,
    &'a [Lookup],
    &'a [String],
    &'a str,
    &'a Filter
);
nothing_to_seal!(
    &'a Duplicates,
    &'a SessionId,
    &'a Lock,
    &'a Entry,
    Option<&'a str>
);
nothing_to_seal!(
    Option<&'a Position>,
    Option<Position>,
    CallId,
    Timestamp,
    Kind,
    u32,
    bool
);

/// An answer of a verb.
trait Open: Sized {
    /// The answer with its texts decrypted.
    fn opened(self, keys: &Keys) -> Result<Self, Error>;
}

/// Answers without texts.
macro_rules! nothing_to_open {
    ($($ty:ty),*) => { $(
        impl Open for $ty {
            fn opened(self, _: &Keys) -> Result<Self, Error> {
                Ok(self)
            }
        }
    )* };
}
nothing_to_open!(
    (),
    Option<Timestamp>,
    bool,
    u64,
    Maker,
    Session,
    Vec<Census>,
    Vec<Entry>,
    Vec<String>
);
nothing_to_open!(
    Vec<(String, Entry)>,
    Vec<(String, u64)>,
    (Vec<CallId>, Option<String>)
);

/// Answers that hold a record among other members.
macro_rules! open_the_record_of {
    ($($ty:ty),*) => { $(
        impl Open for $ty {
            fn opened(self, keys: &Keys) -> Result<Self, Error> {
                let record = self.record.opened(keys)?;
                Ok(Self { record, ..self })
            }
        }
    )* };
}
open_the_record_of!(Holder, Due, Listed, History);

impl Open for Record {
    /// Decrypts a record. A text that no key decrypts fails nothing.
    ///
    /// Arguments stay encrypted, so that they are not sent, and a result becomes one that cannot be
    /// read.
    fn opened(mut self, keys: &Keys) -> Result<Self, Error> {
        let call_id = self.intent.call_id;
        if let Ok(args) = keys.open(Binding::args(call_id), &self.intent.args) {
            Arc::make_mut(&mut self.intent).args = args;
        }
        let place = Binding::result(call_id);
        if let Some(content) = self.state.content_mut()
            && let Content::Kept(json) = &*content
        {
            *content = match keys.open(place, json) {
                Ok(json) => Content::Kept(json),
                Err(error) => Content::Unavailable(error.to_string()),
            };
        }
        if let State::Failed(failure) = &mut self.state {
            let body = failure.body.take();
            failure.body = body.and_then(|json| keys.open(place, &json).ok());
        }
        Ok(self)
    }
}

impl Open for Claimed {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        Ok(match self {
            Self::Yours(record) => Self::Yours(record.opened(keys)?),
            Self::Existing(record) => Self::Existing(record.opened(keys)?),
            Self::Denied(denied) => Self::Denied(denied),
        })
    }
}

impl Open for Replaced {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        Ok(match self {
            Self::Done(record) => Self::Done(record.opened(keys)?),
            Self::Lost(record) => Self::Lost(record.opened(keys)?),
            Self::Denied(denied) => Self::Denied(denied),
        })
    }
}

impl Open for Document {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        let body = keys.open(binding_of(&self), &self.body)?;
        Ok(Self { body, ..self })
    }
}

impl Open for Put {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        Ok(match self {
            Self::Done => Self::Done,
            Self::Lost(stored) => Self::Lost(stored.opened(keys)?),
        })
    }
}

impl<T: Open> Open for Option<T> {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        self.map(|found| found.opened(keys)).transpose()
    }
}

impl Open for Vec<Holder> {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        self.into_iter().map(|found| found.opened(keys)).collect()
    }
}

impl Open for Page<Listed> {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        let found = self.found.into_iter().map(|found| found.opened(keys));
        let found = found.collect::<Result<_, _>>()?;
        Ok(Self { found, ..self })
    }
}

/// Calls, each of which is decrypted.
macro_rules! open_each_found {
    ($($ty:ty),*) => { $(
        impl Open for Found<$ty> {
            fn opened(self, keys: &Keys) -> Result<Self, Error> {
                let calls = self.calls.into_iter().map(|found| found.opened(keys));
                let calls = calls.collect::<Result<_, _>>()?;
                Ok(Self { calls, ..self })
            }
        }
    )* };
}
open_each_found!(Record, Due);

/// Due documents: one that no key decrypts stays encrypted.
///
/// Its worker postpones it; if it were left out here, each search would find it first.
impl Open for Found<Document> {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        Ok(self.map(|document| match document.clone().opened(keys) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, "a document that is due cannot be opened");
                document
            }
        }))
    }
}

/// Listed documents: those that no key decrypts are named as unreadable.
impl Open for (Found<Document>, Option<Position>) {
    fn opened(self, keys: &Keys) -> Result<Self, Error> {
        let (found, next) = self;
        let mut opened = Found {
            calls: Vec::new(),
            unreadable: found.unreadable,
        };
        for document in found.calls {
            let id = document.id.clone();
            match document.opened(keys) {
                Ok(document) => opened.calls.push(document),
                Err(error) => opened.unreadable.push((id, error.to_string())),
            }
        }
        Ok((opened, next))
    }
}

/// The binding of a document's body.
fn binding_of(document: &Document) -> Binding {
    Binding::document(digest(document.kind, &document.tenant, &document.id))
}
