//! The operator who is signed in: the caller that a session's token stands for.

use sha2::{Digest, Sha256};

use super::super::Http;
use oncegate_rules::caller::Caller;
use oncegate_rules::sign_in::SignIn;

/// An operator with a session.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) caller: Caller,
    pub(super) sign_in: SignIn,
    /// A field of each form of this session.
    pub(super) form_token: String,
}

impl Person {
    pub(super) fn new(http: &Http, caller: Caller, sign_in: SignIn) -> Self {
        let form_token = http.gateway.sign_ins.form_token(&sign_in);
        Self {
            caller,
            sign_in,
            form_token,
        }
    }

    /// Whether the session can be ended: a gateway without tokens has none.
    pub(super) fn may_sign_out(&self) -> bool {
        self.sign_in != SignIn::OPEN
    }

    /// The mark in a page's address after an act. No other session, page or site can make it.
    pub(super) fn done_mark(&self, path: &str) -> String {
        hex::encode(&Sha256::digest([&self.form_token, path].join(" "))[..8])
    }
}
