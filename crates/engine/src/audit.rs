//! Writes the acts of operators into the audit. What an entry holds is decided by `rules::audit`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::base::Base;
use super::error::{Error, ErrorKind};
use crate::base::ids::new_run_id;
use oncegate_rules::audit::{Act, Outcome};
use oncegate_rules::document::Document;
use oncegate_rules::time::{after, signed};

/// Makes an act in a task of its own, and keeps it in the audit as `recorded` does.
///
/// The act goes on to its end even if its caller hangs up: half of it is of no use.
///
/// # Errors
/// Those of the act.
pub async fn recorded_to_its_end<T: Send + 'static>(
    base: &Arc<Base>,
    act: Act,
    doing: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let of = base.clone();
    let acting = async move { recorded(&of, act, doing).await };
    base.to_its_end(acting).await
}

/// Makes an act and keeps it in the audit: the entry is written before the act, and again with its outcome.
///
/// If the gateway ends in between, the outcome in the audit stays unknown. If the store takes no entry, the act is made
/// nevertheless: what stops a tool must not depend on the audit.
///
/// # Errors
/// Those of the act.
pub(super) async fn recorded<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    recorded_as(base, act, doing, outcome).await
}

/// Like `recorded`, for an act whose outcome does not follow from its result alone.
///
/// # Errors
/// Those of the act.
pub async fn recorded_as<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<T, Error>>,
    outcome: impl FnOnce(&Result<T, Error>) -> Outcome,
) -> Result<T, Error> {
    let begun = begin(base, &act);
    let is_begun = write(base, &act, &begun).await;
    let done = doing.await;
    if is_begun || write(base, &act, &begun).await {
        write(base, &act, &act.end(begun, outcome(&done))).await;
    }
    done
}

/// The outcome of an act that changes nothing if it is refused.
pub fn outcome<T>(done: &Result<T, Error>) -> Outcome {
    match done {
        Ok(_) => Outcome::Done,
        Err(error) if matches!(error.kind, ErrorKind::StoreUnavailable) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

/// Whether an act of several steps has made a step that lasts, even if the act fails later.
#[derive(Debug, Default)]
pub(super) struct Steps(AtomicBool);

impl Steps {
    pub(super) fn made(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The outcome of the act: an error after a step does not prove that nothing was done.
    pub(super) fn outcome<T>(&self, done: &Result<T, Error>) -> Outcome {
        if done.is_err() && self.0.load(Ordering::SeqCst) {
            return Outcome::Unknown;
        }
        outcome(done)
    }
}

/// Keeps an act in the audit that was made already, or refused.
pub(super) async fn made(base: &Base, act: &Act, outcome: Outcome) {
    write(base, act, &act.made(begin(base, act), outcome)).await;
}

/// Makes an act of a program, and keeps it in the audit if it has changed something.
///
/// `doing` returns whether it has. Programs repeat acts in loops and in vain, which must not fill the store; the history
/// of the target says more.
///
/// # Errors
/// Those of the act.
pub(super) async fn recorded_if_changed<T>(
    base: &Base,
    act: Act,
    doing: impl Future<Output = Result<(T, bool), Error>>,
) -> Result<T, Error> {
    // Before the act: the entry has the time at which it began.
    let begun = begin(base, &act);
    let (done, has_changed) = doing.await?;
    if has_changed {
        write(base, &act, &act.made(begun, Outcome::Done)).await;
    }
    Ok(done)
}

/// The entry of an act that begins now.
fn begin(base: &Base, act: &Act) -> Document {
    let now = base.now();
    let until = after(now, signed(base.limits.audit_retention));
    act.begin(&new_run_id(), now, until)
}

/// Writes an entry, even while the store has lost data: no call is sent because of it.
async fn write(base: &Base, act: &Act, document: &Document) -> bool {
    let put = base.store.put_back_document(document).await;
    if let Err(error) = &put {
        let (action, by) = (act.action.as_str(), &act.by);
        tracing::error!(act = action, by, reason = act.reason, %error, "the audit lacks an act, or its outcome");
    }
    put.is_ok()
}
