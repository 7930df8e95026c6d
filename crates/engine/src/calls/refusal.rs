//! The failure for a request that begins nothing because a stored call blocks it.

use super::prepared::PreparedCall;
use crate::error::{Differs, ErrorKind, Reused};
use oncegate_rules::call::Action;
use oncegate_rules::key::Source;
use oncegate_rules::key_scheme::fingerprints::Sameness;
use oncegate_rules::proxy::{Policy, credentials, stored_form};
use oncegate_rules::record::Record;

/// The failure for a refusal that the rules have decided. `held`: the stored call that blocks the request.
pub(super) fn refusal(action: Action, call: &PreparedCall, held: Option<&Record>) -> ErrorKind {
    match (action, held) {
        (Action::RefuseReused, Some(held)) => {
            // The request is not a call today, and no earlier key scheme says that it was one.
            let complaint = call.complaint.clone();
            complaint.unwrap_or_else(|| reused(call, held, false))
        }
        (Action::RefuseUnclear, Some(held)) => reused(call, held, true),
        (Action::RefuseExpired, held) => expired(call, held),
        (Action::RefuseOtherSaga, _) => {
            let why = "the key stands for a call of another saga, with which it would be undone";
            ErrorKind::WrongState(why.into())
        }
        (Action::RefuseUnfit(why), _) => ErrorKind::InvalidRequest(why.into()),
        // An arrival leads to nothing else.
        _ => ErrorKind::StoreUnavailable,
    }
}

/// The failure for a key that stands for another call, or may.
fn reused(call: &PreparedCall, held: &Record, is_unclear: bool) -> ErrorKind {
    let intent = &call.intent;
    // Every key with the same business fields meets the same call.
    let is_business = intent.key_source == Source::Business
        && held.all_lookups().any(|name| *name == intent.lookup);
    // With another credential it may be the same call: a token was refreshed, or the request signed anew.
    let has_credentials = |policy: &Policy| {
        let list = policy.counted();
        let own = call.message.as_ref();
        // A call without its arguments does not show which it had.
        policy.passes_authorization
            || held.lacks_args()
            || own.is_some_and(|own| credentials::are_in(&list, &own.headers))
            || credentials::are_in(&list, &stored_form::headers(&held.intent.args))
    };
    let is_other = || {
        let scheme = &call.at.key_scheme;
        scheme.is_surely_other(held, intent, &call.raw)
    };
    let has_credentials = call.at.tool.proxy().is_some_and(has_credentials);
    let is_unclear = is_unclear || has_credentials && !is_other();
    let reused = match (is_unclear, is_business) {
        (false, _) if intent.key_source == Source::Elicitation => Reused::Answered,
        (true, _) => Reused::Unclear,
        (false, true) => Reused::SameFields,
        (false, false) => Reused::Other,
    };
    // The arguments of an alias are not kept, nor are those of an adopted call, or after their time.
    let is_comparable = reused != Reused::Unclear
        && !held.is_adopted()
        && !held.lacks_args()
        && call.message.is_none()
        && intent
            .all_lookups()
            .any(|name| held.intent.all_lookups().any(|own| own == name));
    let places = if is_comparable {
        call.at.key_scheme.differing(&held.intent.args, &call.raw)
    } else {
        Vec::new()
    };
    let made_by = held.intent.made_by.clone();
    ErrorKind::KeyReused {
        call_id: held.intent.call_id,
        reused,
        differs: Differs { places, made_by },
    }
}

/// The failure for a key whose call is past its window.
///
/// A request that cannot be compared counts as a repetition.
pub(super) fn expired(call: &PreparedCall, held: Option<&Record>) -> ErrorKind {
    let compare = |held| call.fingerprints.compare(&call.intent, held);
    let is_repetition = held.is_none_or(|held| compare(held) != Sameness::Other);
    ErrorKind::KeyExpired { is_repetition }
}
