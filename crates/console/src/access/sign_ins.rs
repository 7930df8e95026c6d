//! Sessions of operators in the console. The rules are in `pass.rs`.
//!
//! The store keeps each session, encrypted with what only its cookie holds: every gateway of the store accepts the
//! cookie, and who reads the store can make none. A gateway also keeps the sessions that it has begun itself, for the
//! time in which the store does not answer.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::pass::{NONCE, Pass, SignIn};
use oncegate_engine::wings::{KnownSecrets, lock};
use oncegate_engine::{Base, Error, ErrorKind};
use oncegate_rules::document::{self, Document, Kind};
use oncegate_rules::rate::{Rate, Spent};
use oncegate_rules::secret::Secret;

/// Most sessions that a gateway keeps itself.
const MAX_OWN: usize = 1_000;
/// How many wrong tokens one client may show at the form.
const WRONG: Rate = Rate {
    per_second: 1,
    burst: 10,
};
/// Most clients whose wrong tokens are counted one by one.
const MAX_CLIENTS: usize = 10_000;
/// The states of a stored session.
const OPEN: &str = "open";
const ENDED: &str = "ended";

/// Begins, finds and ends the sessions of operators.
pub(crate) struct SignIns {
    base: Arc<Base>,
    secrets: Arc<KnownSecrets>,
    start: Instant,
    /// The sessions that this gateway has begun, by their names.
    own: Mutex<HashMap<String, Own>>,
    /// How many wrong tokens each client has shown.
    wrong: Mutex<HashMap<Option<IpAddr>, Spent>>,
}

struct Own {
    sealed: String,
    until: Timestamp,
}

/// The right to show one token. Dropped, it was used up.
pub(crate) struct Try<'a> {
    sign_ins: &'a SignIns,
    client: Option<IpAddr>,
}

impl Try<'_> {
    /// The token was right, so the try does not count.
    pub(crate) fn was_right(self) {
        if let Some(spent) = lock(&self.sign_ins.wrong).get_mut(&self.client) {
            WRONG.give_back(spent);
        }
    }
}

impl SignIns {
    pub(crate) fn new(base: Arc<Base>, secrets: Arc<KnownSecrets>) -> Self {
        Self {
            base,
            secrets,
            start: Instant::now(),
            own: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// Lets a client show a token. `None`: its address is not known.
    ///
    /// # Errors
    /// It has shown too many wrong ones. The token must not be looked at.
    pub(crate) fn admit(&self, client: Option<IpAddr>) -> Result<Try<'_>, Error> {
        // A client chooses among the addresses of its network.
        let client = client.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        });
        let now = self.start.elapsed();
        let mut wrong = lock(&self.wrong);
        if wrong.len() >= MAX_CLIENTS {
            wrong.retain(|_, spent| !spent.is_over(now));
        }
        // Many clients at once share one account.
        let is_one_too_many = wrong.len() >= MAX_CLIENTS && !wrong.contains_key(&client);
        let client = client.filter(|_| !is_one_too_many);
        let taken = WRONG.take(wrong.entry(client).or_default(), now);
        drop(wrong);
        taken.map_err(|wait| {
            let retry_after = wait.max(Duration::from_secs(1));
            ErrorKind::TooFast { retry_after }.alone()
        })?;
        Ok(Try {
            sign_ins: self,
            client,
        })
    }

    /// Begins a session of the token with this SHA-256. Returns its cookie; `None`: it could not be encrypted.
    ///
    /// If the store does not take the session, only this gateway accepts the cookie.
    pub(crate) async fn begin(&self, token: [u8; 32]) -> Option<String> {
        let now = self.base.wall_time();
        let sign_in = SignIn::begin(Uuid::new_v4().into_bytes(), token, now);
        let [one, two, three, four] = [(); 4].map(|()| Uuid::new_v4().into_bytes());
        let mut random = [0; 32];
        random[..16].copy_from_slice(&one);
        random[16..].copy_from_slice(&two);
        let mut nonce = [0; NONCE];
        nonce[..16].copy_from_slice(&three);
        nonce[16..].copy_from_slice(&four[..NONCE - 16]);
        let pass = Pass::new(random);
        let sealed = sign_in.seal(&pass.secret(), nonce)?;
        let (name, until) = (pass.name(), sign_in.until);
        let document = Document {
            retain_until: Some(until),
            ..Document::new(Kind::SignIn, &name, OPEN, now, document::body(&sealed))
        };
        if let Err(error) = self.base.store.put_document(&document).await {
            tracing::warn!(%error, "a session of the console could not be stored: only this gateway accepts it");
        }
        let mut own = lock(&self.own);
        if own.len() >= MAX_OWN {
            own.retain(|_, one| now < one.until);
        }
        if own.len() < MAX_OWN {
            own.insert(name, Own { sealed, until });
        }
        Some(pass.to_cookie(&self.secrets.current().today))
    }

    /// The session of a cookie, if it was begun at a gateway of this store and has not ended.
    pub(crate) async fn open(&self, cookie: &str) -> Option<SignIn> {
        let pass = self.any(|secret| Pass::of_cookie(cookie, secret))?;
        let name = pass.name();
        let store = &self.base.store;
        let sealed = match store.document(Kind::SignIn, "", &name).await {
            Ok(Some(found)) if found.state != OPEN => return None,
            Ok(Some(found)) => found.read::<String>().ok()?,
            // The store has not taken it, has lost it, or does not answer.
            Ok(None) | Err(_) => lock(&self.own).get(&name)?.sealed.clone(),
        };
        SignIn::open(&sealed, &pass.secret(), self.base.wall_time())
    }

    /// Ends the session of a cookie, at every gateway of the store.
    pub(crate) async fn end(&self, cookie: &str) {
        let Some(pass) = self.any(|secret| Pass::of_cookie(cookie, secret)) else {
            return;
        };
        let name = pass.name();
        lock(&self.own).remove(&name);
        let store = &self.base.store;
        // A session that cannot be ended in the store now ends by its time; the browser has no cookie of it any more.
        if let Ok(Some(found)) = store.document(Kind::SignIn, "", &name).await {
            let ended = Document {
                state: ENDED.to_owned(),
                ..found.next(document::body(&String::new()))
            };
            drop(store.put_document(&ended).await);
        }
    }

    /// The text that each form of a session has.
    pub(crate) fn form_token(&self, sign_in: &SignIn) -> String {
        sign_in.form_token(&self.secrets.current().today)
    }

    /// Whether a form comes from a page of this session.
    pub(crate) fn has_made(&self, sign_in: &SignIn, form_token: &str) -> bool {
        let found = self.any(|secret| sign_in.has_made(form_token, secret).then_some(()));
        found.is_some()
    }

    /// Tries each secret that may have made a cookie or a form: those of the store, and the spare one from before they were
    /// known.
    fn any<T>(&self, ask: impl Fn(&Secret) -> Option<T>) -> Option<T> {
        let (known, spare) = (self.secrets.current(), self.secrets.spare());
        known.all().chain(spare.all()).find_map(ask)
    }
}
