//! Sessions of persons in the console. The rules are in `core::sign_in`.
//!
//! A session is a cookie that is sealed with the store's secret: every gateway of the store accepts it, and none keeps it.

use std::sync::Arc;

use uuid::Uuid;

use super::base::Base;
use super::secret::KnownSecrets;
use crate::core::secret::Secret;
use crate::core::sign_in::{NONCE, SignIn};

/// Seals and opens the sessions of persons.
pub struct SignIns {
    pub(super) base: Arc<Base>,
    pub(super) secrets: Arc<KnownSecrets>,
}

impl SignIns {
    /// Begins a session of the token with this SHA-256. Returns its cookie; `None`: it could not be sealed.
    ///
    /// Until the store's secret is known, only this gateway accepts the cookie.
    pub fn begin(&self, token: [u8; 32]) -> Option<String> {
        let id = Uuid::new_v4().into_bytes();
        let sign_in = SignIn::begin(id, token, self.base.wall_time());
        let mut nonce = [0; NONCE];
        nonce[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        nonce[16..].copy_from_slice(&Uuid::new_v4().as_bytes()[..NONCE - 16]);
        sign_in.seal(&self.secrets.current().today, nonce)
    }

    /// The session in a cookie, if this store has sealed it and it has not expired.
    pub fn open(&self, cookie: &str) -> Option<SignIn> {
        let now = self.base.wall_time();
        self.any(|secret| SignIn::open(cookie, secret, now))
    }

    /// The text that each form of a session has.
    pub fn form_token(&self, sign_in: &SignIn) -> String {
        sign_in.form_token(&self.secrets.current().today)
    }

    /// Whether a form comes from a page of this session.
    pub fn has_made(&self, sign_in: &SignIn, form_token: &str) -> bool {
        let found = self.any(|secret| sign_in.has_made(form_token, secret).then_some(()));
        found.is_some()
    }

    /// Tries each secret that may have sealed the session: those of the store, and the spare one from before they were known.
    fn any<T>(&self, ask: impl Fn(&Secret) -> Option<T>) -> Option<T> {
        let (known, spare) = (self.secrets.current(), self.secrets.spare());
        known.all().chain(spare.all()).find_map(ask)
    }
}
