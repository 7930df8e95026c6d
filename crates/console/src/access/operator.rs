//! The operator who is signed in: the caller that a session's token stands for.

use sha2::{Digest, Sha256};

use super::pass::SignIn;
use super::sign_ins::SignIns;
use oncegate_rules::caller::Caller;

/// An operator with a session.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) caller: Caller,
    pub(crate) sign_in: SignIn,
    /// A field of each form of this session.
    pub(crate) form_token: String,
}

impl Operator {
    pub(crate) fn new(sign_ins: &SignIns, caller: Caller, sign_in: SignIn) -> Self {
        let form_token = sign_ins.form_token(&sign_in);
        Self {
            caller,
            sign_in,
            form_token,
        }
    }

    /// Whether the session can be ended: a gateway without tokens has none.
    pub(crate) fn may_sign_out(&self) -> bool {
        self.sign_in != SignIn::OPEN
    }

    /// The token in a page's address after an act. No other session, page or site can make it.
    pub(crate) fn done_token(&self, path: &str) -> String {
        hex::encode(&Sha256::digest([&self.form_token, path].join(" "))[..8])
    }
}
