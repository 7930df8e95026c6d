//! Sessions of persons in the console. The rules are in `core::sign_in`.
//!
//! They are sealed with the store's secret, so every gateway of a store accepts them, and none has to keep them.

use std::sync::Arc;

use uuid::Uuid;

use super::base::Base;
use super::secret::KnownSecrets;
use crate::core::secret::Secret;
use crate::core::sign_in::{NONCE, SignIn};

/// Seals and opens the sessions of persons.
pub struct SignIns {
    base: Arc<Base>,
    secrets: Arc<KnownSecrets>,
}

impl SignIns {
    pub(super) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self { base, secrets }
    }

    /// Begins a session of the token with this SHA-256. Also its cookie; `None`: it could not be sealed.
    ///
    /// While the store's secret is not known, as when the store was never reached, it opens at this gateway only.
    pub fn begin(&self, token: [u8; 32]) -> Option<(SignIn, String)> {
        let id = Uuid::new_v4().into_bytes();
        let sign_in = SignIn::begin(id, token, self.base.wall_time());
        let mut nonce = [0; NONCE];
        nonce[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        nonce[16..].copy_from_slice(&Uuid::new_v4().as_bytes()[..NONCE - 16]);
        let cookie = sign_in.seal(&self.secrets.current().today, nonce)?;
        Some((sign_in, cookie))
    }

    /// The session in a cookie, if it is one of this store and its time is not over.
    pub fn open(&self, cookie: &str) -> Option<SignIn> {
        let now = self.base.wall_time();
        self.any(|secret| SignIn::open(cookie, secret, now))
    }

    /// The text that each form of a session has.
    pub fn form_token(&self, sign_in: &SignIn) -> String {
        sign_in.form_token(&self.secrets.current().today)
    }

    /// Whether a form has come from a page of this session.
    pub fn has_made(&self, sign_in: &SignIn, form_token: &str) -> bool {
        let found = self.any(|secret| sign_in.has_made(form_token, secret).then_some(()));
        found.is_some()
    }

    /// Asks with each secret that may have been used: the store's, and the one from before it was known.
    fn any<T>(&self, ask: impl Fn(&Secret) -> Option<T>) -> Option<T> {
        let (known, spare) = (self.secrets.current(), self.secrets.spare());
        known.all().chain(spare.all()).find_map(ask)
    }
}
