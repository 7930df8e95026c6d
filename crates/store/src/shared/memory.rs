//! What one gateway remembers of a shared store: its name there, fencing tokens, the store's secret, and what the kind of
//! store adds.
//!
//! A small file, the watermarks, keeps most of it for the next start.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::lock::lock;
use crate::repeats::Repeats;
use crate::watermarks::{Need, TOKEN_LIMIT_US, Tokens, WatermarksError, WatermarksFile};
use crate::{Error, Reason, Result};
use oncegate_rules::session::Token;

/// How often it is logged that the file cannot be written.
const SAME_EVERY: Duration = Duration::from_secs(10);

/// What a kind of store adds to the file.
pub trait Own: Clone + PartialEq + Serialize + DeserializeOwned + Send + 'static {
    /// Of a gateway that is new.
    fn begin() -> Self;

    /// Whether the gateway has used a store.
    fn is_used(&self) -> bool;
}

/// The content of the file, as JSON. Belongs to one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted<T> {
    /// The name under which the gateway proves its writes. It changes when the gateway was killed.
    pub gateway: String,
    /// Whether the last run has stopped, and has written nothing after this file.
    is_complete: bool,
    /// The highest token that the gateway may have given.
    pub token: u64,
    /// The highest token of other gateways and callers, as far as this gateway knows.
    others_token: u64,
    /// A copy of the store's secret in hex digits; empty if there is none yet.
    ///
    /// Encrypted if the store encrypts.
    secret: String,
    #[serde(flatten)]
    pub own: T,
}

/// What is remembered now.
pub struct State<T, L> {
    pub noted: Noted<T>,
    /// The content of the file.
    saved: Noted<T>,
    /// The newest token that this process has drawn; 0 before the first.
    drawn: u64,
    /// What is not in the file.
    pub live: L,
}

impl<T: Own, L> State<T, L> {
    fn highest_token(&self) -> u64 {
        let own = self.noted.token.max(self.saved.token);
        own.max(self.noted.others_token)
    }

    /// Notes the highest token that others have given.
    pub fn saw_others_token(&mut self, token: u64) {
        self.noted.others_token = token.max(self.noted.others_token);
    }

    /// No later token of this gateway is too low for an epoch that it is about to take over.
    ///
    /// If the epoch follows a loss, no token may be below those that any gateway has given. A new gateway needs only the
    /// accepted token: the sessions of the data are there.
    pub fn raise_token(&mut self, accepted: u64, seen: u64) {
        let floor = if self.noted.own.is_used() {
            seen.max(self.highest_token())
        } else {
            accepted
        };
        self.noted.token = floor.max(self.noted.token);
    }
}

struct Inner<T, L> {
    file: WatermarksFile,
    state: Mutex<State<T, L>>,
    saving: Mutex<()>,
    repeats: Repeats,
}

/// A gateway's memory of a store. Clones share it.
pub struct Memory<T, L>(Arc<Inner<T, L>>);

impl<T, L> Clone for Memory<T, L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Own, L: Default + Send + 'static> Memory<T, L> {
    /// Reads the file, or begins one. A visitor neither locks nor writes it.
    ///
    /// A gateway that was killed may have made writes that are not in the file. If the store loses these, too, the gateway
    /// must not prove others under the same name: gateways that know the lost ones would not notice. So it gets another
    /// name.
    ///
    /// # Errors
    /// Another process has the file, or it cannot be read or written.
    pub fn open(path: &Path, is_visitor: bool) -> Result<Self, WatermarksError> {
        let (file, found) = WatermarksFile::open(path, is_visitor)?;
        let mut noted = found.unwrap_or_else(|| Noted {
            gateway: new_name(),
            is_complete: false,
            token: 0,
            others_token: 0,
            secret: String::new(),
            own: T::begin(),
        });
        // A visitor has a name of its own, too: the gateway of this file may run beside it.
        if is_visitor || (!noted.is_complete && noted.own.is_used()) {
            noted.gateway = new_name();
        }
        if file.is_ours() {
            noted.is_complete = false;
        }
        file.try_out(&noted)?;
        let state = State {
            saved: noted.clone(),
            noted,
            drawn: 0,
            live: L::default(),
        };
        Ok(Self(Arc::new(Inner {
            file,
            state: Mutex::new(state),
            saving: Mutex::default(),
            repeats: Repeats::every(SAME_EVERY),
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State<T, L>> {
        lock(&self.0.state)
    }

    /// Whether this process only visits the store, beside the gateway of the file.
    pub fn is_visitor(&self) -> bool {
        !self.0.file.is_ours()
    }

    /// The warning that other users may read or write the file.
    pub fn exposed(&self) -> Option<Reason> {
        self.0.file.exposed()
    }

    /// The name under which the gateway proves its writes.
    pub fn gateway(&self) -> String {
        self.state().noted.gateway.clone()
    }

    /// The copy of the store's secret.
    ///
    /// # Errors
    /// It is damaged.
    pub fn secret(&self) -> Result<Option<Bytes>> {
        let damaged = |_| Error::Unreadable("the copy of the secret is not hexadecimal".into());
        let secret = hex::decode(&self.state().noted.secret).map_err(damaged)?;
        Ok((!secret.is_empty()).then(|| secret.into()))
    }

    /// Keeps a copy of the store's secret. Blocks.
    pub fn remember_secret(&self, secret: &Bytes) {
        self.state().noted.secret = hex::encode(secret);
        if let Err(error) = self.save(Need::IfOld) {
            tracing::error!(%error, "the copy of the store's secret cannot be stored");
        }
    }

    /// The newest token so far, and at least the token that the file had at the start.
    pub fn token(&self) -> u64 {
        self.state().noted.token
    }

    /// The token in the file, which covers all tokens until the next save.
    pub fn covered_token(&self) -> u64 {
        self.state().saved.token
    }

    /// The highest token of any gateway, as far as known. After a loss no token may be below it.
    pub fn highest_token(&self) -> u64 {
        self.state().highest_token()
    }

    /// The reason that tokens are further ahead of this time than a clock that was set explains.
    pub fn tokens_ahead(&self, now_us: u64) -> Option<Reason> {
        let text = "fencing tokens are more than a day ahead of the clock";
        let is_ahead = self.token() > now_us + TOKEN_LIMIT_US;
        is_ahead.then(|| Reason::new("tokens_ahead", text))
    }

    /// Notes a drawn token. True if the file does not cover it yet: save the file before the token is used.
    pub fn saw_token(&self, token: u64) -> bool {
        let mut state = self.state();
        state.noted.token = token.max(state.noted.token);
        state.drawn = token.max(state.drawn);
        token > state.saved.token
    }

    /// Notes a token that a caller has brought.
    pub fn saw_brought(&self, token: u64) {
        self.state().saw_others_token(token);
    }

    /// Notes the token with which a claim was written, and returns once the file covers it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn note_token(&self, asked: Token, token: u64) -> Result<()> {
        if matches!(asked, Token::This(_)) {
            // Tokens of other sessions need not be above it. But after a loss it must not be given again.
            self.saw_brought(token);
        } else if self.saw_token(token) && !self.keep(Need::Token(token)).await {
            let why = "written, but the token could not be noted in the watermarks";
            return Err(Error::Ambiguous(why.into()));
        }
        Ok(())
    }

    /// Writes the file, if it needs to be written. False: it could not be.
    pub async fn keep(&self, need: Need) -> bool {
        let memory = self.clone();
        let saved = tokio::task::spawn_blocking(move || memory.save(need)).await;
        match saved.map_err(io::Error::other).flatten() {
            Ok(()) => true,
            Err(error) => {
                if let Some(left_out) = self.0.repeats.note(error.kind()) {
                    tracing::error!(%error, left_out, "the file of watermarks cannot be written");
                }
                false
            }
        }
    }

    /// Writes the file, if it needs to be written. Blocks.
    ///
    /// # Errors
    /// It is as it was, or as it is to be.
    pub fn save(&self, need: Need) -> io::Result<()> {
        if !self.0.file.is_ours() {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.0.saving);
        let (mut noted, saved, drawn) = {
            let state = self.state();
            (state.noted.clone(), state.saved.clone(), state.drawn)
        };
        let tokens = Tokens {
            newest: noted.token,
            drawn,
            in_file: saved.token,
        };
        let as_saved = Noted {
            token: noted.token,
            ..saved
        };
        let Some(token) = need.token(tokens, noted != as_saved) else {
            return Ok(());
        };
        noted.token = token;
        noted.is_complete = matches!(need, Need::Last);
        self.0.file.write(&noted)?;
        self.state().saved = noted;
        Ok(())
    }
}

/// A name that no other gateway has.
pub fn new_name() -> String {
    Uuid::new_v4().simple().to_string()
}
