//! The store's secret. It is a document, so that all gateways of a store have the same, and it is sealed like any
//! other where there are encryption keys. Each gateway keeps a copy beside its watermarks, by which it is put back
//! where the store has lost it: it never changes as long as one copy is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Gateway;
use crate::core::document::{Document, Kind};
use crate::core::secret::Secret;
use crate::store::{self, LOST_DATA, Put, Reason};

/// What its document is called.
const ID: &str = "secret";

/// What is known of the secret.
pub(super) struct Secrets {
    known: ArcSwapOption<Secret>,
    /// For requests that claim nothing, until the store's own is known.
    spare: Arc<Secret>,
    /// There are calls, and no copy of the secret with which they were made.
    is_lost: AtomicBool,
    /// The document was sealed with the newest key, or is about to be.
    is_sealed_anew: AtomicBool,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            known: ArcSwapOption::empty(),
            spare: Arc::new(new_secret()),
            is_lost: AtomicBool::new(false),
            is_sealed_anew: AtomicBool::new(false),
        }
    }
}

/// Rounds to wait for gateways that may know the secret.
const ROUNDS: usize = 4;

/// Whether there was a secret before.
#[derive(Debug, Clone, Copy)]
enum Before {
    Known,
    None,
}

/// What the document says.
#[derive(Serialize, Deserialize)]
struct Stored {
    secret: String,
    /// Names the key that has sealed it.
    sealed_with: String,
}

impl Stored {
    fn secret_in(document: &Document) -> Option<(Secret, String)> {
        let stored: Self = serde_json::from_slice(&document.body).ok()?;
        Some((read_secret(stored.secret.as_bytes())?, stored.sealed_with))
    }
}

fn read_secret(hex_digits: &[u8]) -> Option<Secret> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(hex_digits, &mut bytes).ok()?;
    Some(Secret::new(bytes))
}

/// Of two random UUIDs: 244 random bits.
fn new_secret() -> Secret {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    bytes[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    Secret::new(bytes)
}

impl Gateway {
    /// What names and fingerprints are made with.
    pub(super) fn secret(&self) -> Arc<Secret> {
        self.secrets
            .known
            .load_full()
            .unwrap_or_else(|| self.secrets.spare.clone())
    }

    pub(super) fn has_lost_secret(&self) -> bool {
        self.secrets.is_lost.load(Ordering::SeqCst)
    }

    /// Why nothing can be claimed, as far as the secret goes.
    pub(super) fn trouble_with_secret(&self) -> Option<Reason> {
        if self.secrets.known.load().is_some() {
            return None;
        }
        if self.has_lost_secret() {
            let why = "there are calls, but the secret with which they were made is gone; nothing is claimed until a \
                       person accepts that: POST /v1/store/accept-loss";
            return Some(Reason::new(LOST_DATA, why));
        }
        let why = "the store's secret is not known; if no key opens it, add the missing one to store.encryption_keys";
        Some(Reason::new("secret", why))
    }

    /// Makes sure that the secret is known, and that the store and the file of watermarks have it. The first gateway
    /// of a store makes it.
    ///
    /// # Errors
    /// The store failed, what it has cannot be read, or it has lost the secret of its calls.
    pub(super) async fn learn_secret(&self) -> Result<(), store::Error> {
        let found = self.store.document(Kind::Secret, "", ID).await;
        let Some(document) = self.counted("document", found)? else {
            return self.make_secret().await;
        };
        let (secret, sealed_with) = read(&document)?;
        self.take_secret(secret);
        let sealing = self.store.sealing_key();
        if sealed_with != sealing && !self.secrets.is_sealed_anew.swap(true, Ordering::SeqCst) {
            let body = body_of(&self.secret(), sealing);
            let next = Document {
                version: document.version + 1,
                body,
                ..document
            };
            // A store that is closed keeps it as it is; the next start tries again.
            drop(self.counted("put_document", self.store.put_document(&next).await));
        }
        Ok(())
    }

    /// The store has no secret. One that is known is put back.
    async fn make_secret(&self) -> Result<(), store::Error> {
        let known = self
            .secrets
            .known
            .load_full()
            .map(|secret| (*secret).clone());
        let known = known.or_else(|| read_secret(&self.store.remembered_secret()?));
        if let Some(secret) = known {
            self.take_secret(secret.clone());
            // It is known here, and a store that does not take it now takes it later.
            drop(self.write_secret(&secret, Before::Known).await);
            return Ok(());
        }
        if !self
            .counted("tenants", self.store.tenants().await)?
            .is_empty()
        {
            if !self.secrets.is_lost.swap(true, Ordering::SeqCst) {
                tracing::error!(
                    "there are calls, but the secret with which they were made is gone"
                );
            }
            return Err(store::Error::Refused(
                "the store has lost its secret".into(),
            ));
        }
        self.write_secret(&new_secret(), Before::None).await
    }

    /// After a loss was accepted: others that know the secret put it back within a round of theirs, which is waited for
    /// before another one is made.
    pub(super) async fn learn_secret_after_loss(&self) -> Result<(), store::Error> {
        for _ in 0..ROUNDS {
            let is_there = self
                .store
                .document(Kind::Secret, "", ID)
                .await
                .is_ok_and(|there| there.is_some());
            if is_there || !self.store.is_shared() || self.secrets.known.load().is_some() {
                break;
            }
            tokio::time::sleep(self.limits.pace.recover_every).await;
        }
        match self.learn_secret().await {
            Err(_) if self.has_lost_secret() => {
                self.write_secret(&new_secret(), Before::None).await
            }
            learned => learned,
        }
    }

    /// Concurrent writers all take the secret that won.
    async fn write_secret(&self, secret: &Secret, before: Before) -> Result<(), store::Error> {
        let document = Document {
            kind: Kind::Secret,
            tenant: String::new(),
            id: ID.to_owned(),
            version: 1,
            state: "kept".to_owned(),
            created_at: self.now(),
            due_at: None,
            retain_until: None,
            body: body_of(secret, self.store.sealing_key()),
        };
        let put = match before {
            Before::Known => self.store.put_back_document(&document).await,
            Before::None => self.store.put_document(&document).await,
        };
        let secret = match self.counted("put_document", put)? {
            Put::Done => secret.clone(),
            Put::Lost(Some(there)) => read(&there)?.0,
            Put::Lost(None) => {
                return Err(store::Error::Ambiguous("the secret was lost again".into()));
            }
        };
        self.take_secret(secret);
        Ok(())
    }

    /// From now on this is the secret.
    fn take_secret(&self, secret: Secret) {
        let known = self.secrets.known.load();
        if known.as_ref().is_none_or(|known| **known != secret) {
            if known.is_some() {
                tracing::error!(
                    "the store's secret has changed: it does not recognise earlier calls"
                );
            }
            self.store
                .remember_secret(&Bytes::from(hex::encode(secret.bytes())));
            self.secrets.known.store(Some(Arc::new(secret)));
        }
        self.secrets.is_lost.store(false, Ordering::SeqCst);
    }
}

fn read(document: &Document) -> Result<(Secret, String), store::Error> {
    Stored::secret_in(document)
        .ok_or_else(|| store::Error::Unreadable("the store's secret was damaged".into()))
}

fn body_of(secret: &Secret, sealed_with: String) -> Bytes {
    let stored = Stored {
        secret: hex::encode(secret.bytes()),
        sealed_with,
    };
    serde_json::to_vec(&stored).unwrap_or_default().into()
}
