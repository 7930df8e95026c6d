//! Whether calls may be claimed: the last look, and later closings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use super::durability::MEMORY;
use super::target::Target;
use crate::store::lock::{read, write};
use crate::store::{Durability, Error, Finished, LOST_DATA, Readiness, Reason, SETTLING};

/// The state of a Redis, and whether calls may be claimed.
pub(super) struct Status {
    seen: RwLock<Readiness>,
    /// How often the store was closed between looks.
    closings: AtomicU64,
    /// Calls in memory, which are in doubt whenever the store is not ready.
    pub(super) finished: OnceLock<Arc<Finished>>,
}

/// The readiness that a look has found.
pub(super) fn readiness(
    durability: Option<Durability>,
    reasons: Vec<Reason>,
    warnings: Vec<Reason>,
) -> Readiness {
    Readiness {
        durability,
        reasons,
        warnings,
        lost_writes: 0,
        whole_since: None,
    }
}

/// The readiness of a Redis that is not reached.
pub(super) fn unreachable(why: String) -> Readiness {
    readiness(None, vec![Reason::new("unreachable", why)], Vec::new())
}

impl Status {
    pub(super) fn new() -> Self {
        Self {
            seen: RwLock::new(unreachable("Redis has not been reached yet".into())),
            closings: AtomicU64::new(0),
            finished: OnceLock::new(),
        }
    }

    fn doubt(&self) {
        if let Some(finished) = self.finished.get() {
            finished.doubt();
        }
    }

    pub(super) fn get(&self) -> Readiness {
        read(&self.seen).clone()
    }

    pub(super) fn closings(&self) -> u64 {
        self.closings.load(Ordering::SeqCst)
    }

    pub(super) fn is_reached(&self) -> bool {
        read(&self.seen).durability.is_some()
    }

    /// Whether it is not known yet that all data is there.
    pub(super) fn is_in_doubt(&self) -> bool {
        let status = read(&self.seen);
        let doubts = ["unreachable", "foreign", LOST_DATA];
        status
            .reasons
            .iter()
            .any(|reason| doubts.contains(&reason.code) || SETTLING.contains(&reason.code))
    }

    pub(super) fn is_open(&self) -> bool {
        read(&self.seen).reasons.is_empty()
    }

    pub(super) fn must_be_open(&self) -> Result<(), Error> {
        let status = read(&self.seen);
        match status.reasons.first() {
            None => Ok(()),
            Some(reason) => Err(Error::Refused(reason.text.clone())),
        }
    }

    /// Refuses while the server's memory is nearly full.
    pub(super) fn must_have_room(&self) -> Result<(), Error> {
        let status = read(&self.seen);
        match status.reasons.iter().find(|reason| reason.code == MEMORY) {
            None => Ok(()),
            Some(reason) => Err(Error::Refused(reason.text.clone())),
        }
    }

    /// Claims nothing, until a look that begins after this finds everything well.
    pub(super) fn close_for(&self, reason: &Reason) {
        self.closings.fetch_add(1, Ordering::SeqCst);
        let mut status = write(&self.seen);
        if status.reasons.is_empty() {
            tracing::warn!(
                reason = reason.text,
                "the store is closed for the time being"
            );
            status.reasons.push(reason.clone());
        }
        drop(status);
        self.doubt();
    }

    /// Publishes a look's readiness, and logs changes.
    pub(super) fn publish(&self, seen: Readiness, store: &Target) {
        let codes =
            |reasons: &[Reason]| reasons.iter().map(|reason| reason.code).collect::<Vec<_>>();
        let before = std::mem::replace(&mut *write(&self.seen), seen.clone());
        if !seen.reasons.is_empty() {
            self.doubt();
        }
        let is_news = codes(&before.reasons) != codes(&seen.reasons)
            || codes(&before.warnings) != codes(&seen.warnings)
            || before.durability != seen.durability;
        if !is_news {
            return;
        }
        let texts = |reasons: &[Reason]| {
            let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
            texts.join("; ")
        };
        let durability = seen
            .durability
            .map_or("not known", |durability| durability.as_str());
        let warnings = texts(&seen.warnings);
        if seen.reasons.is_empty() {
            tracing::info!(%store, durability, warnings, "the store is ready");
        } else if seen
            .reasons
            .iter()
            .all(|reason| matches!(reason.code, "starting" | "restarted"))
        {
            tracing::warn!(%store, durability, reasons = texts(&seen.reasons), warnings, "the store is not ready yet");
        } else {
            tracing::error!(%store, durability, reasons = texts(&seen.reasons), warnings, "the store is not ready");
        }
    }
}
