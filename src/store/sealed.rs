//! A store that keeps arguments and results encrypted. What a call is found by stays readable, and so
//! does what a document is listed by; its body is sealed.
//!
//! Each text is sealed with XChaCha20-Poly1305 (RFC 8439 with a nonce of 192 bits). Its nonce is derived from
//! all that goes into it, so that the same change, written again after a lost answer, is the same to the last byte;
//! two texts never share one. It is bound to its call and its place: moved elsewhere it does not open.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Census, Claimed, Due, Error, Found, Listener, Put, Readiness, Replaced, Store};
use crate::core::call::Change;
use crate::core::document::{Document, Kind, Place as DocumentPlace, digest};
use crate::core::key;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use crate::core::record::Content;
use crate::core::record::{CallId, Entry, Holder, Record, State};
use crate::core::session::{Lock, Session, SessionId};

/// What a sealed text begins with: no JSON does.
const MARK: u8 = 1;
/// How much of a key's digest names it.
const NAME: usize = 4;
const NONCE: usize = 24;

/// The keys of a store: the first one seals, all of them open.
#[derive(Clone)]
pub struct Keys(Vec<OneKey>);

#[derive(Clone)]
struct OneKey {
    name: [u8; NAME],
    /// For nonces.
    secret: [u8; 32],
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Keys {
    /// `keys`: of 32 bytes each, the newest first. `None` if there is none.
    pub fn new(keys: &[[u8; 32]]) -> Option<Self> {
        let keys: Vec<OneKey> = keys.iter().map(OneKey::new).collect();
        (!keys.is_empty()).then_some(Self(keys))
    }

    fn seal(&self, place: Place, text: &Bytes) -> Result<Bytes, Error> {
        // What could not be opened goes back as it came.
        if text.first() == Some(&MARK) {
            return Ok(text.clone());
        }
        let key = self
            .0
            .first()
            .ok_or_else(|| Error::Refused("there is no key to seal with".into()))?;
        let about = place.about();
        let mut digest = Sha256::new();
        for part in [&key.secret[..], &about, text] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest: [u8; 32] = digest.finalize().into();
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&digest[..NONCE]);
        let nonce = XNonce::from(nonce);
        let sealed = key.cipher.encrypt(
            &nonce,
            Payload {
                msg: text,
                aad: &about,
            },
        );
        let sealed = sealed.map_err(|_| Error::Refused("a text could not be sealed".into()))?;
        Ok([&[MARK], &key.name[..], &nonce, &sealed].concat().into())
    }

    /// What was written before there were keys is as it was.
    fn open(&self, place: Place, sealed: &Bytes) -> Result<Bytes, Error> {
        if sealed.first() != Some(&MARK) {
            return Ok(sealed.clone());
        }
        let unreadable = |why: &str| Error::Unreadable(format!("{place}: {why}"));
        let (name, rest) = sealed[1..]
            .split_first_chunk::<NAME>()
            .ok_or_else(|| unreadable("a sealed text is cut off"))?;
        let (nonce, text) = rest
            .split_first_chunk::<NONCE>()
            .ok_or_else(|| unreadable("a sealed text is cut off"))?;
        let key = self.0.iter().find(|key| key.name == *name);
        let key =
            key.ok_or_else(|| unreadable("it is sealed with a key that is not configured"))?;
        let opened = key.cipher.decrypt(
            &XNonce::from(*nonce),
            Payload {
                msg: text,
                aad: &place.about(),
            },
        );
        opened
            .map(Bytes::from)
            .map_err(|_| unreadable("a sealed text was altered, or belongs elsewhere"))
    }
}

impl OneKey {
    fn new(key: &[u8; 32]) -> Self {
        let digest = |what: &str| -> [u8; 32] {
            Sha256::new()
                .chain_update(what)
                .chain_update(key)
                .finalize()
                .into()
        };
        let mut name = [0; NAME];
        name.copy_from_slice(&digest("oncegate key name")[..NAME]);
        let cipher = XChaCha20Poly1305::new(&Key::from(*key));
        Self {
            name,
            secret: digest("oncegate nonces"),
            cipher,
        }
    }
}

/// Where a text belongs.
#[derive(Clone, Copy)]
struct Place {
    call_id: CallId,
    what: &'static str,
}

impl Place {
    fn about(self) -> Vec<u8> {
        [self.call_id.0.as_bytes(), self.what.as_bytes()].concat()
    }
}

/// Where the copy of the store's secret belongs: it is of no call.
const SECRET: Place = Place {
    call_id: CallId(Uuid::nil()),
    what: "secret",
};

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.what {
            "document" => write!(f, "document {}", self.call_id.0.simple()),
            "secret" => f.write_str("copy of the secret"),
            what => write!(f, "{what} of call {}", self.call_id),
        }
    }
}

/// A store behind which nobody can read what callers and tools have said.
pub struct Sealed {
    store: Arc<dyn Store>,
    keys: Keys,
}

impl Sealed {
    pub fn new(store: Arc<dyn Store>, keys: Keys) -> Self {
        Self { store, keys }
    }

    /// A record with each of its texts turned into another.
    fn turn(
        mut record: Record,
        turn: impl Fn(Place, &Bytes) -> Result<Bytes, Error>,
    ) -> Result<Record, Error> {
        let call_id = record.intent.call_id;
        let args = turn(
            Place {
                call_id,
                what: "args",
            },
            &record.intent.args,
        )?;
        Arc::make_mut(&mut record.intent).args = args;
        if let Some(json) = record.state.kept_mut() {
            *json = turn(
                Place {
                    call_id,
                    what: "result",
                },
                json,
            )?;
        }
        Ok(record)
    }

    fn seal(&self, change: &Change) -> Result<Change, Error> {
        let record = Self::turn(change.record.clone(), |place, text| {
            self.keys.seal(place, text)
        })?;
        Ok(Change {
            record,
            ..change.clone()
        })
    }

    /// Where the body of a document belongs.
    fn place_of(document: &Document) -> Place {
        let digest = digest(document.kind, &document.tenant, &document.id);
        Place {
            call_id: CallId(Uuid::from_bytes(digest)),
            what: "document",
        }
    }

    fn seal_document(&self, document: &Document) -> Result<Document, Error> {
        // Whatever keys are there: a gateway that cannot read a recipe does not recognise its calls. It holds
        // nothing that a caller or a tool has said.
        if document.kind == Kind::Recipe {
            return Ok(document.clone());
        }
        let body = self.keys.seal(Self::place_of(document), &document.body)?;
        Ok(Document {
            body,
            ..document.clone()
        })
    }

    fn open_document(&self, document: Document) -> Result<Document, Error> {
        let body = self.keys.open(Self::place_of(&document), &document.body)?;
        Ok(Document { body, ..document })
    }

    /// Documents that no key opens are named among those that cannot be read.
    fn open_documents(&self, found: Found<Document>) -> Found<Document> {
        let mut opened = Found {
            calls: Vec::with_capacity(found.calls.len()),
            unreadable: found.unreadable,
        };
        for document in found.calls {
            let id = document.id.clone();
            match self.open_document(document) {
                Ok(document) => opened.calls.push(document),
                Err(error) => opened.unreadable.push((id, error.to_string())),
            }
        }
        opened
    }

    /// What no key opens keeps nothing back: its arguments stay closed, so that they are not sent, and of its
    /// result it is said that it cannot be read.
    fn open(&self, mut record: Record) -> Record {
        let call_id = record.intent.call_id;
        if let Ok(args) = self.keys.open(
            Place {
                call_id,
                what: "args",
            },
            &record.intent.args,
        ) {
            Arc::make_mut(&mut record.intent).args = args;
        }
        let place = Place {
            call_id,
            what: "result",
        };
        if let Some(content) = record.state.content_mut()
            && let Content::Kept(json) = &*content
        {
            *content = match self.keys.open(place, json) {
                Ok(json) => Content::Kept(json),
                Err(error) => Content::Unavailable(error.to_string()),
            };
        }
        if let State::Failed(failure) = &mut record.state {
            failure.body = failure
                .body
                .take()
                .and_then(|json| self.keys.open(place, &json).ok());
        }
        record
    }
}

#[async_trait]
impl Store for Sealed {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        Ok(
            match self.store.claim(&self.seal(change)?, instead_of).await? {
                Claimed::Yours(record) => Claimed::Yours(self.open(record)),
                Claimed::Existing(record) => Claimed::Existing(self.open(record)),
                denied @ Claimed::Denied(_) => denied,
            },
        )
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        Ok(
            match self.store.replace(&self.seal(change)?, expected).await? {
                Replaced::Done(record) => Replaced::Done(self.open(record)),
                Replaced::Lost(record) => Replaced::Lost(record.map(|record| self.open(record))),
                denied @ Replaced::Denied(_) => denied,
            },
        )
    }

    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        let holders = self.store.holders(names).await?.into_iter();
        Ok(holders
            .map(|holder| Holder {
                record: self.open(holder.record),
                ..holder
            })
            .collect())
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        Ok(self
            .store
            .load(call_id)
            .await?
            .map(|record| self.open(record)))
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        let history = self.store.history(call_id, limit).await?;
        Ok(history.map(|history| History {
            record: self.open(history.record),
            ..history
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.store.tenants().await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        let Page {
            found,
            next,
            unreadable,
        } = self.store.list(tenant, filter, before, limit).await?;
        let open = |listed: Listed| Listed {
            record: self.open(listed.record),
            ..listed
        };
        Ok(Page {
            found: found.into_iter().map(open).collect(),
            next,
            unreadable,
        })
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        self.store.count_duplicates(call_id, later).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        let due = self.store.due(now, limit).await?;
        Ok(due.map(|due| Due {
            record: self.open(due.record),
            ..due
        }))
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        Ok(self
            .store
            .to_check(now, tools, each)
            .await?
            .map(|record| self.open(record)))
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        Ok(self
            .store
            .unchecked(tools, limit)
            .await?
            .map(|record| self.open(record)))
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        self.store.census().await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.store.prune(now, limit).await
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        self.store.session(id).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        self.store.unlock(id, lock, entry).await
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        self.store.set_frozen(id, frozen, entry).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        self.store.leave_line(id, call_id).await
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.store.paused().await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        self.store.set_paused(tool, paused, entry).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        self.store.tool_events(tool).await
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        self.store
            .document(kind, tenant, id)
            .await?
            .map(|document| self.open_document(document))
            .transpose()
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        Ok(
            match self
                .store
                .put_document(&self.seal_document(document)?)
                .await?
            {
                Put::Done => Put::Done,
                Put::Lost(stored) => Put::Lost(
                    stored
                        .map(|document| self.open_document(document))
                        .transpose()?,
                ),
            },
        )
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        Ok(
            match self
                .store
                .put_back_document(&self.seal_document(document)?)
                .await?
            {
                Put::Done => Put::Done,
                Put::Lost(stored) => Put::Lost(
                    stored
                        .map(|document| self.open_document(document))
                        .transpose()?,
                ),
            },
        )
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        let due = self.store.due_documents(kind, now, limit).await?;
        // Whoever works on them puts aside what it cannot read: left out here, it would be met first each time.
        Ok(
            due.map(|document| match self.open_document(document.clone()) {
                Ok(opened) => opened,
                Err(error) => {
                    tracing::error!(%error, "a document that is due cannot be opened");
                    document
                }
            }),
        )
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&DocumentPlace>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<DocumentPlace>), Error> {
        let (found, next) = self
            .store
            .documents(kind, tenant, state, before, limit)
            .await?;
        Ok((self.open_documents(found), next))
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        self.store.count_documents(kind).await
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

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.store.listen(call_id)
    }

    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        self.store.doubtful(from, limit).await
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.store.prepare_acceptance(reason).await
    }

    fn sealing_key(&self) -> String {
        self.keys
            .0
            .first()
            .map(|key| hex::encode(key.name))
            .unwrap_or_default()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        let copy = self.store.remembered_secret()?;
        copy.map(|copy| self.keys.open(SECRET, &copy)).transpose()
    }

    fn remember_secret(&self, secret: &Bytes) {
        match self.keys.seal(SECRET, secret) {
            Ok(sealed) => self.store.remember_secret(&sealed),
            Err(error) => tracing::error!(%error, "no copy of the store's secret is kept"),
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: u128, what: &'static str) -> Place {
        Place {
            call_id: CallId(Uuid::from_u128(id)),
            what,
        }
    }

    fn keys(keys: &[u8]) -> Keys {
        Keys::new(&keys.iter().map(|key| [*key; 32]).collect::<Vec<_>>()).expect("keys")
    }

    #[test]
    fn what_is_sealed_opens_only_in_its_place_and_with_its_key() {
        let text = Bytes::from("{\"card\":\"4111\"}");
        let sealed = keys(&[1]).seal(place(1, "args"), &text).expect("sealed");
        assert!(!sealed.windows(4).any(|some| some == b"4111"));
        assert_eq!(
            keys(&[1]).seal(place(1, "args"), &text).expect("sealed"),
            sealed,
            "to the last byte"
        );
        assert_eq!(
            keys(&[1]).open(place(1, "args"), &sealed).expect("opened"),
            text
        );
        assert_eq!(
            keys(&[2, 1])
                .open(place(1, "args"), &sealed)
                .expect("an older key opens, too"),
            text
        );
        for (keys, place) in [
            (keys(&[2]), place(1, "args")),
            (keys(&[1]), place(2, "args")),
            (keys(&[1]), place(1, "result")),
        ] {
            assert!(keys.open(place, &sealed).is_err());
        }
        let (mut altered, cut) = (sealed.to_vec(), sealed.slice(..20));
        altered[40] ^= 1;
        assert!(keys(&[1]).open(place(1, "args"), &altered.into()).is_err());
        assert!(keys(&[1]).open(place(1, "args"), &cut).is_err());
    }

    #[test]
    fn texts_have_nonces_of_their_own() {
        let nonce = |place: Place, text: &'static str| {
            keys(&[1])
                .seal(place, &Bytes::from(text))
                .expect("sealed")
                .slice(1 + NAME..1 + NAME + NONCE)
        };
        let first = nonce(place(1, "args"), "{}");
        for other in [
            nonce(place(1, "args"), "{ }"),
            nonce(place(2, "args"), "{}"),
            nonce(place(1, "result"), "{}"),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn what_was_written_before_there_were_keys_is_read_as_it_is() {
        let text = Bytes::from("{\"n\":1}");
        assert_eq!(
            keys(&[1]).open(place(1, "args"), &text).expect("opened"),
            text
        );
    }
}
