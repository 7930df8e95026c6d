//! Writes down the acts of persons, for the audit. The rules are in `core::audit`.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use super::base::Base;
use super::error::{Error, ErrorKind};
use super::ids::new_run_id;
use crate::core::audit::{Act, Outcome};
use crate::core::document::Document;
use crate::core::time::{after, signed};

/// Makes an act and keeps it in the audit: it is written before it begins, and once more when its outcome is known.
///
/// If the gateway ends in between, the act stays in the audit, its outcome unknown. Where the store takes no entry the act
/// is made all the same: what stops a tool must not depend on it.
///
/// # Errors
/// Those of the act.
pub(super) async fn kept<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    kept_as(base, act, doing, outcome).await
}

/// The same for an act whose answer alone does not say its outcome.
pub(super) async fn kept_as<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<T, Error>>,
    outcome: impl FnOnce(&Result<T, Error>) -> Outcome,
) -> Result<T, Error> {
    let now = base.now();
    let until = after(now, signed(base.limits.audit_retention));
    let begun = act.begin(new_run_id(), now, until);
    let is_begun = write(base, &act, &begun).await;
    let done = doing.await;
    if is_begun || write(base, &act, &begun).await {
        write(base, &act, &act.end(begun, outcome(&done))).await;
    }
    done
}

/// The outcome of an act that changes nothing if it is refused.
pub(super) fn outcome<T>(done: &Result<T, Error>) -> Outcome {
    match done {
        Ok(_) => Outcome::Done,
        Err(error) if matches!(error.kind, ErrorKind::StoreUnavailable) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

/// Whether an act of several steps has made one that stays, whatever becomes of the others.
#[derive(Debug, Default)]
pub(super) struct Steps(AtomicBool);

impl Steps {
    pub(super) fn made(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The outcome of the act: an error after a step does not say that nothing was done.
    pub(super) fn outcome<T>(&self, done: &Result<T, Error>) -> Outcome {
        if done.is_err() && self.0.load(Ordering::SeqCst) {
            return Outcome::Unknown;
        }
        outcome(done)
    }
}

/// Makes an act of a program, and keeps it in the audit once it has changed something.
///
/// `doing` says whether it has. What programs repeat in a loop, or try in vain, must not fill the store; the history of
/// the target says more.
///
/// # Errors
/// Those of the act.
pub(super) async fn kept_if_changed<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<(T, bool), Error>>,
) -> Result<T, Error> {
    let now = base.now();
    let until = after(now, signed(base.limits.audit_retention));
    let (done, has_changed) = doing.await?;
    if has_changed {
        let begun = act.begin(new_run_id(), now, until);
        write(base, &act, &act.made(begun, Outcome::Done)).await;
    }
    Ok(done)
}

/// Writes an entry, also while the store has lost data: nothing is sent because of it.
async fn write(base: &Base, act: &Act, document: &Document) -> bool {
    let put = base.store.put_back_document(document).await;
    if let Err(error) = &put {
        let (deed, by) = (act.deed.as_str(), &act.by);
        tracing::error!(act = deed, by, reason = act.reason, %error, "the audit lacks an act, or its outcome");
    }
    put.is_ok()
}
