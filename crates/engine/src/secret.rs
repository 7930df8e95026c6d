//! The store's secret, with which lookup keys and fingerprints of calls are made.
//!
//! The secret is a document, so all gateways of a store share it, and it is encrypted like any other document. Each
//! gateway keeps a copy beside its watermarks, and puts it back if the store has lost the secret. So the secret never
//! changes as long as one copy exists.
//!
//! A store whose secret differs from the gateway's copy counts as a store that has lost data. Once an operator has
//! accepted the loss, the store keeps both secrets, so that the calls of either are recognised.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::join;
use tokio::time::sleep;

use super::base::Base;
use crate::base::ids::random;
use oncegate_rules::document::{self, Document, Kind};
use oncegate_rules::secret::{MAX_SECRETS, Secret, Secrets};
use oncegate_rules::time::signed;
use oncegate_store::{self as store, LOST_DATA, Put, Reason};

/// The name of its document.
const ID: &str = "secret";

/// The secrets that this gateway knows.
pub struct KnownSecrets {
    base: Arc<Base>,
    known: ArcSwapOption<Secrets>,
    /// A secret for requests that claim no call, until the store's own is known.
    spare: Arc<Secrets>,
    trouble: ArcSwapOption<Trouble>,
    /// Whether this process has encrypted the document with its newest key.
    is_sealed_anew: AtomicBool,
    /// Whether a loss was just accepted: another gateway may know the secret, and put it back.
    waits_for_others: AtomicBool,
}

/// While this exists no new secret is made.
pub(super) struct WaitForOthers<'a>(&'a AtomicBool);

impl Drop for WaitForOthers<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Why no call is claimed until an operator accepts a loss of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Trouble {
    #[error("there are calls, but the secret with which they were made is gone")]
    Lost,
    #[error(
        "the store's secret is not the one that this gateway knows: the store was begun anew, so that its calls are not \
         recognised"
    )]
    Differs,
    #[error(
        "the copy of the store's secret beside the watermarks cannot be read; if it was sealed with a key that is \
         missing in store.encryption_keys, add that key"
    )]
    Copy,
}

/// How often to look for a gateway that knows the secret, and to try a write that others cross.
const ROUNDS: usize = 4;

/// The body of the document.
#[derive(Serialize, Deserialize)]
struct Stored {
    secret: String,
    /// Earlier secrets, of accepted losses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<String>,
    /// The name of the key that encrypted the document.
    sealed_with: String,
}

fn read(document: &Document) -> Result<(Secrets, String), store::Error> {
    let damaged = || store::Error::Unreadable("the store's secret was damaged".into());
    let stored: Stored = serde_json::from_slice(&document.body).map_err(|_| damaged())?;
    let all = std::iter::once(&stored.secret).chain(&stored.earlier);
    let all: Option<Vec<Secret>> = all.map(|digits| read_secret(digits.as_bytes())).collect();
    let secrets = all.and_then(Secrets::of).ok_or_else(damaged)?;
    Ok((secrets, stored.sealed_with))
}

fn body_of(secrets: &Secrets, sealed_with: String) -> Bytes {
    document::body(&Stored {
        secret: hex::encode(secrets.today.bytes()),
        earlier: (secrets.earlier.iter().map(|one| hex::encode(one.bytes()))).collect(),
        sealed_with,
    })
}

/// The bytes of the copy beside the watermarks.
fn copy_of(secrets: &Secrets) -> Bytes {
    let all: Vec<u8> = secrets.all().flat_map(|one| *one.bytes()).collect();
    hex::encode(all).into()
}

fn read_copy(copy: &[u8]) -> Option<Secrets> {
    Secrets::of(copy.chunks(64).map(read_secret).collect::<Option<_>>()?)
}

fn read_secret(hex_digits: &[u8]) -> Option<Secret> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(hex_digits, &mut bytes).ok()?;
    Some(Secret::new(bytes))
}

/// A secret of two random UUIDs: 244 random bits.
fn new_secret() -> Secret {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(random().as_bytes());
    bytes[16..].copy_from_slice(random().as_bytes());
    Secret::new(bytes)
}

impl KnownSecrets {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            known: ArcSwapOption::empty(),
            spare: Arc::new(Secrets::one(new_secret())),
            trouble: ArcSwapOption::empty(),
            is_sealed_anew: AtomicBool::new(false),
            waits_for_others: AtomicBool::new(false),
        }
    }

    /// The secrets for lookup keys and fingerprints.
    pub fn current(&self) -> Arc<Secrets> {
        self.known.load_full().unwrap_or_else(|| self.spare.clone())
    }

    /// The secret that stands in until the store's own is known.
    pub fn spare(&self) -> Arc<Secrets> {
        self.spare.clone()
    }

    /// Whether the store's secret is known.
    ///
    /// Nothing is stored before that: calls without a secret count as a secret that is lost.
    pub(super) fn is_known(&self) -> bool {
        self.known.load().is_some()
    }

    /// Whether no call is claimed until an operator accepts that the secret is lost.
    pub(super) fn has_lost_secret(&self) -> bool {
        self.trouble.load().is_some()
    }

    /// Why the secret keeps calls from being claimed.
    pub(super) fn trouble_with_secret(&self) -> Option<Reason> {
        if let Some(trouble) = &*self.trouble.load() {
            let why = format!(
                "{trouble}; nothing is claimed here until an operator accepts that: POST /v1/store/accept-loss"
            );
            return Some(Reason::new(LOST_DATA, why));
        }
        if self.is_known() {
            return None;
        }
        let why = "the store's secret is not known; if no key opens it, add the missing one to store.encryption_keys";
        Some(Reason::new("secret", why))
    }

    fn has_unreadable_copy(&self) -> bool {
        self.trouble.load().as_deref() == Some(&Trouble::Copy)
    }

    /// Closes the gateway for new calls, and logs why.
    fn is_closed_by(&self, trouble: Trouble) -> store::Error {
        let before = self.trouble.swap(Some(Arc::new(trouble)));
        if before.as_deref() != Some(&trouble) {
            tracing::error!("{trouble}");
        }
        store::Error::Refused(trouble.to_string())
    }

    /// The secrets that this gateway knows, from its memory or its copy.
    fn known_secrets(&self) -> Result<Option<Secrets>, store::Error> {
        if let Some(known) = &*self.known.load() {
            return Ok(Some(Secrets::clone(known)));
        }
        match self.base.store.remembered_secret() {
            Ok(Some(copy)) if !copy.is_empty() => match read_copy(&copy) {
                Some(known) => Ok(Some(known)),
                None => Err(self.is_closed_by(Trouble::Copy)),
            },
            Ok(_) => Ok(None),
            Err(error) => {
                if !self.has_unreadable_copy() {
                    tracing::error!(%error, "the copy of the store's secret cannot be read");
                }
                Err(self.is_closed_by(Trouble::Copy))
            }
        }
    }

    /// Makes sure that the secret is known, stored, and copied beside the watermarks.
    ///
    /// The first gateway of a store makes the secret.
    ///
    /// # Errors
    /// The store failed, the stored secret cannot be read, or it is not the one with which calls were made.
    pub(super) async fn learn_secret(&self) -> Result<(), store::Error> {
        let is_known = self.is_known();
        // Only for a new secret.
        let tenants = async {
            match is_known {
                true => Ok(Vec::new()),
                false => self.base.store.tenants().await,
            }
        };
        let (found, tenants) = join!(self.base.store.document(Kind::Secret, "", ID), tenants);
        let Some(document) = found? else {
            return self.make_secret(tenants).await;
        };
        let (secrets, sealed_with) = read(&document)?;
        self.take_secrets(secrets.clone())?;
        let sealing = self.base.store.sealing_key();
        // Only once: a gateway with other keys would encrypt it with its own again, and so on without end.
        if sealed_with != sealing && !self.is_sealed_anew.load(Ordering::SeqCst) {
            let next = document.next(body_of(&secrets, sealing));
            // A store that takes no writes keeps the document as it is; the next look tries again.
            let put = self.base.store.put_document(&next).await;
            let is_done = matches!(put, Ok(Put::Done));
            (self.is_sealed_anew).store(is_done, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Gives a secret to a store without one: a known secret is put back, otherwise a new one is made.
    ///
    /// `tenants`: those with calls.
    async fn make_secret(
        &self,
        tenants: Result<Vec<String>, store::Error>,
    ) -> Result<(), store::Error> {
        if let Some(known) = self.known_secrets()? {
            self.take_secrets(known.clone())?;
            let document = self.first_document(&known);
            let put = self.base.store.put_back_document(&document).await;
            // The secret is known here. If the store does not take it now, the next look tries again.
            drop(put.and_then(|put| self.take_written(put, known)));
            return Ok(());
        }
        if self.waits_for_others.load(Ordering::SeqCst) {
            let why = "a gateway that knows the store's secret may still put it back";
            return Err(store::Error::Refused(why.into()));
        }
        if !tenants?.is_empty() {
            return Err(self.is_closed_by(Trouble::Lost));
        }
        self.write_new_secret().await
    }

    /// Stores the secrets of both the store and this gateway, if they differ.
    ///
    /// Part of the acceptance of a loss: no call is claimed before this is done.
    pub(super) async fn join_secrets(&self) -> Result<(), store::Error> {
        let max_age = self.base.limits.timings.key_schemes_max_age;
        for _ in 0..ROUNDS {
            let found = self.base.store.document(Kind::Secret, "", ID).await;
            let Some(document) = found? else {
                return Ok(());
            };
            let stored = read(&document)?.0;
            // An unreadable copy stays until the loss is accepted: a key that opens it may still be added.
            let known = if self.has_unreadable_copy() {
                None
            } else {
                self.known_secrets()?
            };
            let known = known.unwrap_or_else(|| stored.clone());
            let (joined, left_out) = Secrets::joined(&stored, &known);
            if left_out > 0 {
                // The operator accepts this, too. This gateway knows only the joined secrets from now on, so that it
                // does not take the same store for a wrong one again.
                tracing::error!(
                    left_out,
                    "the store keeps {MAX_SECRETS} secrets at most: calls made with further ones are not recognised"
                );
                self.base.store.remember_secret(&copy_of(&joined));
                self.known.store(Some(Arc::new(joined.clone())));
            }
            if !stored.has_all_of(&joined) {
                let next = document.next(body_of(&joined, self.base.store.sealing_key()));
                let put = self.base.store.put_back_document(&next).await;
                if let Put::Lost(_) = put? {
                    continue;
                }
            } else if self.base.now().duration_since(document.created_at) > signed(max_age) {
                return Ok(());
            }
            // Other gateways may still claim by the secret that they have read before.
            if self.base.store.is_shared() {
                sleep(max_age).await;
            }
            return Ok(());
        }
        Err(store::Error::Refused(
            "the secret is written by many at once; try again".into(),
        ))
    }

    /// What an acceptance awaits while it joins the secrets.
    pub(super) fn why_join_waits(&self) -> String {
        let max_age = self.base.limits.timings.key_schemes_max_age.as_secs();
        format!("for up to {max_age} s other gateways may still claim by the secret that they know")
    }

    /// What it awaits while it learns the secret.
    pub(super) fn why_learning_waits(&self) -> String {
        let waits = self.base.limits.timings.recover_every * ROUNDS as u32;
        let waits = waits.as_secs();
        format!("for up to {waits} s a gateway that knows the store's secret may put it back")
    }

    /// Makes no new secret until the returned guard is dropped.
    pub(super) fn wait_for_others(&self) -> WaitForOthers<'_> {
        self.waits_for_others.store(true, Ordering::SeqCst);
        WaitForOthers(&self.waits_for_others)
    }

    /// Learns the secret after an accepted loss.
    ///
    /// A gateway that knows the secret puts it back in its next round. This gateway waits for that before it makes a new
    /// secret.
    pub(super) async fn learn_secret_after_loss(
        &self,
        waiting: WaitForOthers<'_>,
    ) -> Result<(), store::Error> {
        if self.has_unreadable_copy() {
            self.base.store.remember_secret(&Bytes::new());
        }
        for _ in 0..ROUNDS {
            let found = self.base.store.document(Kind::Secret, "", ID).await;
            let is_stored = found.is_ok_and(|found| found.is_some());
            if is_stored || !self.base.store.is_shared() || self.is_known() {
                break;
            }
            sleep(self.base.limits.timings.recover_every).await;
        }
        drop(waiting);
        match self.learn_secret().await {
            Err(_) if self.trouble.load().as_deref() == Some(&Trouble::Lost) => {
                self.write_new_secret().await
            }
            learned => learned,
        }
    }

    async fn write_new_secret(&self) -> Result<(), store::Error> {
        let secrets = Secrets::one(new_secret());
        let document = self.first_document(&secrets);
        let put = self.base.store.put_document(&document).await?;
        self.take_written(put, secrets)
    }

    fn first_document(&self, secrets: &Secrets) -> Document {
        let body = body_of(secrets, self.base.store.sealing_key());
        Document::new(Kind::Secret, ID, "kept", self.base.now(), body)
    }

    /// Takes the secrets that were written, or those of a concurrent writer that was faster.
    fn take_written(&self, put: Put, written: Secrets) -> Result<(), store::Error> {
        match put {
            Put::Done => self.take_secrets(written),
            Put::Lost(Some(stored)) => self.take_secrets(read(&stored)?.0),
            Put::Lost(None) => Err(store::Error::Ambiguous("the secret was lost again".into())),
        }
    }

    /// Takes these secrets, unless they lack one that is known here.
    fn take_secrets(&self, secrets: Secrets) -> Result<(), store::Error> {
        let known = self.known_secrets()?;
        if known
            .as_ref()
            .is_some_and(|known| !secrets.has_all_of(known))
        {
            return Err(self.is_closed_by(Trouble::Differs));
        }
        if known.as_ref() != Some(&secrets) || !self.is_known() {
            // Even an equal copy is written at the start, to seal it with the newest key.
            self.base.store.remember_secret(&copy_of(&secrets));
            self.known.store(Some(Arc::new(secrets)));
        }
        self.trouble.store(None);
        Ok(())
    }
}
