//! An operator's session in the console.
//!
//! It holds the token's digest and the time of its end. The store keeps it encrypted with the random bytes of the
//! cookie, and under a digest of them. Store and configuration together are not enough to make a session.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use jiff::Timestamp;

use oncegate_rules::caller::is_same;
use oncegate_rules::key;
use oncegate_rules::secret::Secret;
use oncegate_rules::time::after;

/// How long a session lasts: a shift. No request prolongs it.
pub(crate) const LASTS: Duration = Duration::from_hours(8);

/// Bytes of a cookie's check: a request with a made-up cookie costs no look into the store.
const CHECK: usize = 16;

/// The random bytes of a session's cookie. Neither the store nor a gateway keeps them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pass([u8; 32]);

impl Pass {
    /// `random`: 32 random bytes.
    pub(crate) fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// The text of the cookie. `store`: the store's secret.
    pub(crate) fn to_cookie(&self, store: &Secret) -> String {
        URL_SAFE_NO_PAD.encode([&self.0[..], &self.check(store)].concat())
    }

    /// Reads a cookie. `None`: no gateway of this store made it.
    pub(crate) fn of_cookie(text: &str, store: &Secret) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (pass, check) = bytes.split_first_chunk::<32>()?;
        let (pass, mut preconditions) = (Self(*pass), [0; 32]);
        preconditions[..CHECK].copy_from_slice(
            check
                .try_into()
                .ok()
                .as_ref()
                .map(|check: &[u8; CHECK]| &check[..])?,
        );
        let mut made = [0; 32];
        made[..CHECK].copy_from_slice(&pass.check(store));
        is_same(&preconditions, &made).then_some(pass)
    }

    fn check(&self, store: &Secret) -> [u8; CHECK] {
        let mac = store.mac("console cookie", [&hex::encode(self.0)]);
        let mut check = [0; CHECK];
        check.copy_from_slice(&mac[..CHECK]);
        check
    }

    /// The name under which the session is stored. The bytes do not follow from it.
    pub(crate) fn name(&self) -> String {
        hex::encode(key::digest(["console session", &hex::encode(self.0)]))
    }

    /// The secret with which the session is encrypted.
    pub(crate) fn secret(&self) -> Secret {
        Secret::new(self.0)
    }
}

/// Bytes of the nonce.
pub const NONCE: usize = 24;
/// Bytes of an encrypted session: nonce, id, digest, end and tag.
const SEALED: usize = NONCE + 16 + 32 + 8 + 16;
/// Authenticated with each session, so that nothing else with the same secret is read as a session.
const ABOUT: &[u8] = b"oncegate console session 1";

/// An operator's session in the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignIn {
    /// Random; forms of the session's pages are bound to it.
    pub id: [u8; 16],
    /// SHA-256 of the bearer token.
    pub token: [u8; 32],
    pub until: Timestamp,
}

impl SignIn {
    /// The session of a gateway without tokens. It has no cookie.
    pub const OPEN: Self = Self {
        id: [0; 16],
        token: [0; 32],
        until: Timestamp::MAX,
    };

    /// A session that begins now.
    pub fn begin(id: [u8; 16], token: [u8; 32], now: Timestamp) -> Self {
        Self {
            id,
            token,
            until: after(now, LASTS),
        }
    }

    /// The session, encrypted. `nonce`: random, used once.
    ///
    /// `None`: it could not be encrypted.
    pub fn seal(&self, secret: &Secret, nonce: [u8; NONCE]) -> Option<String> {
        let mut plain = Vec::with_capacity(SEALED);
        plain.extend_from_slice(&self.id);
        plain.extend_from_slice(&self.token);
        plain.extend_from_slice(&self.until.as_second().to_be_bytes());
        let payload = Payload {
            msg: &plain,
            aad: ABOUT,
        };
        let sealed = cipher(secret).encrypt(&XNonce::from(nonce), payload).ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// An encrypted session; `None`: it is of another secret, was changed, has ended, or would last too long.
    pub fn open(text: &str, secret: &Secret, now: Timestamp) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let bytes: [u8; SEALED] = bytes.try_into().ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>()?;
        let payload = Payload {
            msg: sealed,
            aad: ABOUT,
        };
        let plain = cipher(secret)
            .decrypt(&XNonce::from(*nonce), payload)
            .ok()?;
        let (id, rest) = plain.split_first_chunk::<16>()?;
        let (token, until) = rest.split_first_chunk::<32>()?;
        let until = i64::from_be_bytes(until.try_into().ok()?);
        let sign_in = Self {
            id: *id,
            token: *token,
            until: Timestamp::from_second(until).ok()?,
        };
        // No session lasts longer than one that begins now.
        (now < sign_in.until && sign_in.until <= after(now, LASTS)).then_some(sign_in)
    }

    /// The text in each form of the session's pages. A page of another site cannot know it.
    pub fn form_token(&self, secret: &Secret) -> String {
        hex::encode(self.form_mac(secret))
    }

    /// Whether a form comes from a page of this session. Takes the same time for every wrong text.
    pub fn has_made(&self, form_token: &str, secret: &Secret) -> bool {
        let mut preconditions = [0; 32];
        let is_hex = hex::decode_to_slice(form_token, &mut preconditions).is_ok();
        is_same(&preconditions, &self.form_mac(secret)) && is_hex
    }

    fn form_mac(&self, secret: &Secret) -> [u8; 32] {
        secret.mac(
            "console form",
            [&hex::encode(self.id), &hex::encode(self.token)],
        )
    }
}

fn cipher(secret: &Secret) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(secret.mac("console session", [])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[test]
    fn a_session_opens_with_its_own_secret_until_its_time_is_over() {
        let (own, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let sign_in = SignIn::begin([3; 16], [4; 32], at(100));
        let lasts = i64::try_from(LASTS.as_secs()).expect("hours");
        let cookie = sign_in.seal(&own, [5; NONCE]).expect("a cookie");
        let open = |text: &str, secret, now| SignIn::open(text, secret, at(now));
        assert_eq!(open(&cookie, &own, 100), Some(sign_in.clone()));
        assert_eq!(open(&cookie, &own, 99 + lasts), Some(sign_in));
        assert_eq!(open(&cookie, &own, 100 + lasts), None, "its time is over");
        assert_eq!(open(&cookie, &own, 99), None, "it would last too long");
        assert_eq!(open(&cookie, &other, 100), None, "of another store");
        for place in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(open(&changed, &own, 100), None, "changed at {place}");
        }
        for text in ["", "x", &cookie[1..], &format!("{cookie}A")] {
            assert_eq!(open(text, &own, 100), None, "{text}");
        }
    }

    #[test]
    fn a_cookie_is_of_one_store_and_tells_neither_the_name_nor_the_secret_of_its_session() {
        let (own, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let pass = Pass::new([9; 32]);
        let cookie = pass.to_cookie(&own);
        assert!(Pass::of_cookie(&cookie, &own) == Some(pass.clone()));
        assert!(Pass::of_cookie(&cookie, &other).is_none());
        for text in ["", "x", &cookie[1..], &format!("{cookie}A"), &cookie[..43]] {
            assert!(Pass::of_cookie(text, &own).is_none(), "{text}");
        }
        for place in 0..cookie.len() {
            let mut changed = cookie.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(
                Pass::of_cookie(&changed, &own).is_none(),
                "changed at {place}"
            );
        }
        assert!(
            !pass.name().contains(&hex::encode([9; 4])),
            "{}",
            pass.name()
        );
        assert_ne!(pass.name(), Pass::new([8; 32]).name());
    }

    #[test]
    fn nothing_of_a_token_can_be_read_in_an_encrypted_session() {
        let sign_in = SignIn::begin([3; 16], [4; 32], at(100));
        let secret = Secret::new([1; 32]);
        let cookie = sign_in.seal(&secret, [5; NONCE]).expect("a cookie");
        let bytes = URL_SAFE_NO_PAD.decode(cookie).expect("base64");
        assert!(!bytes.windows(4).any(|some| some == [4; 4]));
    }

    #[test]
    fn a_form_is_of_one_session_and_of_one_store() {
        let (own, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let sign_in = SignIn::begin([3; 16], [4; 32], at(100));
        let token = sign_in.form_token(&own);
        assert!(sign_in.has_made(&token, &own));
        let later = SignIn::begin([6; 16], [4; 32], at(100));
        assert!(!later.has_made(&token, &own) && !sign_in.has_made(&token, &other));
        for text in ["", "00", &token[1..], &"0".repeat(64), &format!("{token}0")] {
            assert!(!sign_in.has_made(text, &own), "{text}");
        }
    }
}
