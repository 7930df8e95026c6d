//! Writes down the acts of persons, for the audit. The rules are in `core::audit`.

use std::future::Future;

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
    let now = base.now();
    let until = after(now, signed(base.limits.audit_retention));
    let begun = act.begin(new_run_id(), now, until);
    let is_begun = write(base, &act, &begun).await;
    let done = doing.await;
    let outcome = match &done {
        Ok(_) => Outcome::Done,
        Err(error) if matches!(error.kind, ErrorKind::StoreUnavailable) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    };
    if is_begun || write(base, &act, &begun).await {
        write(base, &act, &act.end(begun, outcome)).await;
    }
    done
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
