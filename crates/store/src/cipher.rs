//! Encryption of texts, each bound to its call and its place.
//!
//! XChaCha20-Poly1305 (RFC 8439 with a nonce of 192 bits). The nonce is a digest of key, binding and text. So a change
//! that is written again after a lost answer has the same bytes, and two different texts never share a nonce. A text that
//! was moved to another call or place does not decrypt.

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Error, Result};
use oncegate_rules::document::Document;
use oncegate_rules::record::CallId;

/// The first byte of an encrypted text; no JSON begins with it.
const FORMAT: u8 = 1;
/// Bytes of a key's digest that name the key.
const NAME: usize = 4;
const NONCE: usize = 24;

/// The keys of a store: the newest one encrypts, all of them decrypt.
#[derive(Clone)]
pub struct Keys {
    newest: OneKey,
    older: Vec<OneKey>,
}

#[derive(Clone)]
struct OneKey {
    name: [u8; NAME],
    /// For nonces.
    secret: [u8; 32],
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", 1 + self.older.len())
    }
}

impl Keys {
    /// Takes keys of 32 bytes each, the newest first. `None`: the list is empty.
    pub fn new(keys: &[[u8; 32]]) -> Option<Self> {
        let (newest, older) = keys.split_first()?;
        Some(Self {
            newest: OneKey::new(newest),
            older: older.iter().map(OneKey::new).collect(),
        })
    }

    /// The name of the key that encrypts.
    pub(super) fn name(&self) -> String {
        hex::encode(self.newest.name)
    }

    /// Encrypts a text. One that could not be decrypted, and so is encrypted still, stays as it is.
    pub(super) fn seal(&self, binding: Binding, text: &Bytes) -> Result<Bytes> {
        if text.first() == Some(&FORMAT) {
            return Ok(text.clone());
        }
        let key = &self.newest;
        let about = binding.about();
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
        Ok([&[FORMAT], &key.name[..], &nonce, &sealed].concat().into())
    }

    /// Decrypts a text. One that was written before the store had keys stays as it is.
    pub(super) fn open(&self, binding: Binding, sealed: &Bytes) -> Result<Bytes> {
        if sealed.first() != Some(&FORMAT) {
            return Ok(sealed.clone());
        }
        let unreadable = |why: &str| Error::Unreadable(format!("{binding}: {why}"));
        let (name, rest) = sealed[1..]
            .split_first_chunk::<NAME>()
            .ok_or_else(|| unreadable("a sealed text is cut off"))?;
        let (nonce, text) = rest
            .split_first_chunk::<NONCE>()
            .ok_or_else(|| unreadable("a sealed text is cut off"))?;
        let key = std::iter::once(&self.newest)
            .chain(&self.older)
            .find(|key| key.name == *name)
            .ok_or_else(|| unreadable("it is sealed with a key that is not configured"))?;
        let opened = key.cipher.decrypt(
            &XNonce::from(*nonce),
            Payload {
                msg: text,
                aad: &binding.about(),
            },
        );
        opened
            .map(Bytes::from)
            .map_err(|_| unreadable("a sealed text was altered, or belongs elsewhere"))
    }
}

impl OneKey {
    fn new(key: &[u8; 32]) -> Self {
        let digest =
            |what: &str| -> [u8; 32] { Sha256::digest([what.as_bytes(), key].concat()).into() };
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

/// What an encrypted text is bound to: the call or the document, and the place in it.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    id: Uuid,
    what: &'static str,
}

impl Binding {
    /// The copy of the store's secret, which belongs to no call.
    pub(super) const SECRET: Self = Self::new(Uuid::nil(), "secret");

    const fn new(id: Uuid, what: &'static str) -> Self {
        Self { id, what }
    }

    pub(super) fn args(call_id: CallId) -> Self {
        Self::new(call_id.0, "args")
    }

    pub(super) fn result(call_id: CallId) -> Self {
        Self::new(call_id.0, "result")
    }

    /// The body of a document.
    pub(super) fn document(document: &Document) -> Self {
        Self::new(Uuid::from_bytes(document.digest()), "document")
    }

    /// The associated data of the encryption.
    fn about(self) -> Vec<u8> {
        [self.id.as_bytes(), self.what.as_bytes()].concat()
    }
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.what {
            "document" => write!(f, "document {}", self.id.simple()),
            "secret" => f.write_str("copy of the secret"),
            what => write!(f, "{what} of call {}", CallId(self.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: u128, what: &'static str) -> Binding {
        Binding::new(Uuid::from_u128(id), what)
    }

    fn keys(keys: &[u8]) -> Keys {
        Keys::new(&keys.iter().map(|key| [*key; 32]).collect::<Vec<_>>()).expect("keys")
    }

    #[test]
    fn an_encrypted_text_opens_only_in_its_place_and_with_its_key() {
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
    fn two_texts_never_share_a_nonce() {
        let nonce = |place: Binding, text: &'static str| {
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
    fn a_text_written_before_the_store_had_keys_is_read_as_it_is() {
        let text = Bytes::from("{\"n\":1}");
        assert_eq!(
            keys(&[1]).open(place(1, "args"), &text).expect("opened"),
            text
        );
    }
}
