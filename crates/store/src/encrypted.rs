//! A layer around a store that encrypts the texts of callers and tools.
//!
//! It encrypts arguments, results and the bodies of documents. All members by which the store finds calls and lists
//! documents stay readable. [`Seal`] and [`Open`] say for each type of an argument and of an answer what is encrypted in
//! it. A verb with a type that implements neither does not compile.

use std::sync::Arc;

use bytes::Bytes;

use super::Secrets;
use super::cipher::{Binding, Keys};
use super::verbs::layer::*;
use oncegate_rules::record::{Content, State, Unread};

/// A layer that encrypts on the way to the store and decrypts on the way back.
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

    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        let copy = self.store.remembered_secret()?;
        copy.map(|copy| self.keys.open(Binding::SECRET, &copy))
            .transpose()
    }

    fn remember_secret(&self, secret: &Bytes) {
        match self.keys.seal(Binding::SECRET, secret) {
            Ok(sealed) => self.store.remember_secret(&sealed),
            Err(error) => {
                tracing::error!(%error, "the copy of the store's secret cannot be stored");
            }
        }
    }
}

/// The type of a verb's argument.
trait Seal<'a>: Sized {
    /// The argument with its texts encrypted.
    type Sealed: Send + Sync;

    fn sealed(self, keys: &Keys) -> Result<Self::Sealed>;

    /// The argument as the verb takes it.
    fn lent(sealed: &'a Self::Sealed) -> Self;
}

impl<'a> Seal<'a> for &'a Change {
    type Sealed = Change;

    fn sealed(self, keys: &Keys) -> Result<Change> {
        let mut change = self.clone();
        let call_id = change.record.intent.call_id;
        let args = keys.seal(Binding::args(call_id), &change.record.intent.args)?;
        Arc::make_mut(&mut change.record.intent).args = args;
        keep_sealed(&mut change.record.state);
        if let Some(json) = change.record.state.stored_mut() {
            *json = keys.seal(Binding::result(call_id), json)?;
        }
        Ok(change)
    }

    fn lent(sealed: &'a Change) -> Self {
        sealed
    }
}

/// Puts an answer that no key has decrypted where the store keeps answers.
fn keep_sealed(state: &mut State) {
    if let State::Failed(failure) = state {
        failure.body = failure.body.take().or(failure.sealed.take());
    } else if let Some(content) = state.content_mut()
        && let Content::Unavailable(unread) = content
        && let Some(sealed) = unread.sealed.take()
    {
        *content = Content::Stored(sealed);
    }
}

impl<'a> Seal<'a> for &'a Document {
    type Sealed = Document;

    fn sealed(self, keys: &Keys) -> Result<Document> {
        let mut document = self.clone();
        // Every gateway must read key schemes, to recognise calls, and flags of frozen sessions, whatever keys it has.
        // Neither kind holds texts of a caller or a tool.
        if !matches!(self.kind, Kind::KeyScheme | Kind::Session) {
            document.body = keys.seal(Binding::document(self), &self.body)?;
        }
        Ok(document)
    }

    fn lent(sealed: &'a Document) -> Self {
        sealed
    }
}

/// Types of arguments without texts to encrypt.
///
/// Stores compare records with stored ones, but never their texts.
macro_rules! nothing_to_seal {
    ($($ty:ty),*) => { $(
        impl<'a> Seal<'a> for $ty {
            type Sealed = Self;

            fn sealed(self, _: &Keys) -> Result<Self> {
                Ok(self)
            }

            fn lent(sealed: &'a Self) -> Self {
                *sealed
            }
        }
    )* };
}
nothing_to_seal!(CallId, Timestamp, Kind, u32, bool, Option<Position>);
nothing_to_seal!(&'a DocumentQuery, &'a str, &'a [String]);
nothing_to_seal!(&'a Record, &'a [Record], &'a Lookup, &'a [Lookup]);
nothing_to_seal!(
    &'a Filter,
    &'a Duplicates,
    &'a SessionId,
    &'a Lock,
    &'a Entry
);

/// The type of a verb's answer.
trait Open: Sized {
    /// The answer with its texts decrypted. By default it has none.
    fn opened(self, _: &Keys) -> Result<Self> {
        Ok(self)
    }
}

/// Types of answers without encrypted texts.
macro_rules! nothing_to_open {
    ($($ty:ty),*) => { $(impl Open for $ty {})* };
}
nothing_to_open!((), bool, u64, String, Timestamp, CallId);
nothing_to_open!(
    Maker,
    Session,
    Census,
    Entry,
    (String, Entry),
    (String, u64)
);
nothing_to_open!((Vec<CallId>, Option<String>));

/// Types of answers that hold a record among other members.
macro_rules! open_the_record_of {
    ($($ty:ty),*) => { $(
        impl Open for $ty {
            fn opened(self, keys: &Keys) -> Result<Self> {
                let record = self.record.opened(keys)?;
                Ok(Self { record, ..self })
            }
        }
    )* };
}
open_the_record_of!(Holder, Due, Listed, History);

impl Open for Record {
    /// Decrypts a record. Never fails: a text that no key decrypts must not hide the call.
    ///
    /// Such arguments stay encrypted, so that they are not sent. Such an answer of the tool counts as unavailable, and the
    /// next write puts it back as it is.
    fn opened(mut self, keys: &Keys) -> Result<Self> {
        let call_id = self.intent.call_id;
        if let Ok(args) = keys.open(Binding::args(call_id), &self.intent.args) {
            Arc::make_mut(&mut self.intent).args = args;
        }
        let place = Binding::result(call_id);
        if let Some(content) = self.state.content_mut()
            && let Content::Stored(json) = &*content
        {
            *content = match keys.open(place, json) {
                Ok(json) => Content::Stored(json),
                Err(error) => Content::Unavailable(Unread {
                    why: error.to_string(),
                    sealed: Some(json.clone()),
                }),
            };
        }
        if let State::Failed(failure) = &mut self.state
            && let Some(json) = failure.body.take()
        {
            match keys.open(place, &json) {
                Ok(json) => failure.body = Some(json),
                Err(_) => failure.sealed = Some(json),
            }
        }
        Ok(self)
    }
}

impl Open for Claimed {
    fn opened(self, keys: &Keys) -> Result<Self> {
        Ok(match self {
            Self::Yours(record) => Self::Yours(record.opened(keys)?),
            Self::Existing(record) => Self::Existing(record.opened(keys)?),
            Self::Denied(denied) => Self::Denied(denied),
            Self::Late => Self::Late,
        })
    }
}

impl Open for Replaced {
    fn opened(self, keys: &Keys) -> Result<Self> {
        Ok(match self {
            Self::Done(record) => Self::Done(record.opened(keys)?),
            Self::Lost(record) => Self::Lost(record.opened(keys)?),
            Self::Denied(denied) => Self::Denied(denied),
        })
    }
}

impl Open for Document {
    fn opened(self, keys: &Keys) -> Result<Self> {
        let body = keys.open(Binding::document(&self), &self.body)?;
        Ok(Self { body, ..self })
    }
}

impl Open for Put {
    fn opened(self, keys: &Keys) -> Result<Self> {
        Ok(match self {
            Self::Done => Self::Done,
            Self::Lost(stored) => Self::Lost(stored.opened(keys)?),
        })
    }
}

impl<T: Open> Open for Option<T> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        self.map(|found| found.opened(keys)).transpose()
    }
}

impl<T: Open> Open for Vec<T> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        self.into_iter().map(|found| found.opened(keys)).collect()
    }
}

impl Open for Page<Listed> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        let found = self.found.opened(keys)?;
        Ok(Self { found, ..self })
    }
}

impl Open for Found<Record> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        let calls = self.calls.opened(keys)?;
        Ok(Self { calls, ..self })
    }
}

impl Open for Found<Due> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        let calls = self.calls.opened(keys)?;
        Ok(Self { calls, ..self })
    }
}

/// Due documents. One that no key decrypts stays encrypted.
///
/// Its worker postpones it. If it were left out, each search would find it first again.
impl Open for Found<Document> {
    fn opened(self, keys: &Keys) -> Result<Self> {
        Ok(self.map(|document| match document.clone().opened(keys) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::error!(%error, "a document that is due cannot be opened");
                document
            }
        }))
    }
}

/// Listed documents. Those that no key decrypts are named as unreadable.
impl Open for (Found<Document>, Option<Position>) {
    fn opened(self, keys: &Keys) -> Result<Self> {
        let (mut found, next) = self;
        for document in std::mem::take(&mut found.calls) {
            let id = document.id.clone();
            match document.opened(keys) {
                Ok(document) => found.calls.push(document),
                Err(error) => found.unreadable.push((id, error.to_string())),
            }
        }
        Ok((found, next))
    }
}
