//! Encryption of texts, each bound to its call and its place.
//!
//! XChaCha20-Poly1305 (RFC 8439 with a nonce of 192 bits). The nonce is derived from everything that goes into
//! a text, so the same change, written again after a lost answer, is the same to the last byte; two different
//! texts never share a nonce. A text that is moved to another call or place does not open.

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Error;
use crate::core::record::CallId;

/// The first byte of an encrypted text; no JSON begins with it.
const MARK: u8 = 1;
/// How much of a key's digest names it.
const NAME: usize = 4;
const NONCE: usize = 24;

/// The keys of a store: the first one encrypts, all of them decrypt.
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
    /// The name of the key that encrypts.
    pub(super) fn name(&self) -> String {
        self.0
            .first()
            .map(|key| hex::encode(key.name))
            .unwrap_or_default()
    }

    /// `keys` are of 32 bytes each, the newest first. `None` if there is none.
    pub fn new(keys: &[[u8; 32]]) -> Option<Self> {
        let keys: Vec<OneKey> = keys.iter().map(OneKey::new).collect();
        (!keys.is_empty()).then_some(Self(keys))
    }

    pub(super) fn seal(&self, binding: Binding, text: &Bytes) -> Result<Bytes, Error> {
        // A text that could not be opened goes back as it came.
        if text.first() == Some(&MARK) {
            return Ok(text.clone());
        }
        let key = self
            .0
            .first()
            .ok_or_else(|| Error::Refused("there is no key to seal with".into()))?;
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
        Ok([&[MARK], &key.name[..], &nonce, &sealed].concat().into())
    }

    /// Decrypts a text. One from before there were keys is returned as it is.
    pub(super) fn open(&self, binding: Binding, sealed: &Bytes) -> Result<Bytes, Error> {
        if sealed.first() != Some(&MARK) {
            return Ok(sealed.clone());
        }
        let unreadable = |why: &str| Error::Unreadable(format!("{binding}: {why}"));
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

/// The call and the place of a text.
#[derive(Clone, Copy)]
pub(super) struct Binding {
    call_id: CallId,
    what: &'static str,
}

impl Binding {
    /// The copy of the store's secret, which has no call.
    pub(super) const SECRET: Self = Self {
        call_id: CallId(Uuid::nil()),
        what: "secret",
    };

    pub(super) fn args(call_id: CallId) -> Self {
        let what = "args";
        Self { call_id, what }
    }

    pub(super) fn result(call_id: CallId) -> Self {
        let what = "result";
        Self { call_id, what }
    }

    /// The body of the document with this digest.
    pub(super) fn document(digest: [u8; 16]) -> Self {
        Self {
            call_id: CallId(Uuid::from_bytes(digest)),
            what: "document",
        }
    }

    fn about(self) -> Vec<u8> {
        [self.call_id.0.as_bytes(), self.what.as_bytes()].concat()
    }
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.what {
            "document" => write!(f, "document {}", self.call_id.0.simple()),
            "secret" => f.write_str("copy of the secret"),
            what => write!(f, "{what} of call {}", self.call_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: u128, what: &'static str) -> Binding {
        Binding {
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
    fn what_was_written_before_there_were_keys_is_read_as_it_is() {
        let text = Bytes::from("{\"n\":1}");
        assert_eq!(
            keys(&[1]).open(place(1, "args"), &text).expect("opened"),
            text
        );
    }
}
