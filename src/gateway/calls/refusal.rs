//! Why a request begins nothing: a stored call blocks it.

use super::prepared::PreparedCall;
use crate::core::call::Action;
use crate::core::key::Source;
use crate::core::proxy::Policy;
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::record::{Intent, Record};
use crate::gateway::error::{Differs, ErrorKind, Reused};

/// The failure for a refusal that core has decided.
pub(in crate::gateway) fn refusal(
    action: Action,
    call: &PreparedCall,
    prints: &Prints,
    held: Option<&Record>,
) -> ErrorKind {
    match (action, held) {
        (Action::RefuseReused, Some(held)) => {
            // What it asks for is no call today, and is not found to have been one.
            let complaint = call.complaint.clone();
            complaint.unwrap_or_else(|| reused(call, held, false))
        }
        (Action::RefuseUnclear, Some(held)) => reused(call, held, true),
        (Action::RefuseExpired, held) => expired(&call.intent, prints, held),
        (Action::RefuseOtherSaga, _) => ErrorKind::of_another_saga(),
        (Action::RefuseUnfit(why), _) => ErrorKind::InvalidRequest(why.into()),
        // An arrival leads to nothing else.
        _ => ErrorKind::StoreUnavailable,
    }
}

/// The failure for a key that stands for another call, or may.
pub(in crate::gateway) fn reused(
    call: &PreparedCall,
    there: &Record,
    is_unclear: bool,
) -> ErrorKind {
    let intent = &call.intent;
    // Whatever key comes with the same business fields meets the same call.
    let is_business = intent.key_source == Source::Business
        && there.all_names().any(|name| *name == intent.lookup);
    // Under another credential it may be the same call: a token was refreshed.
    let has_credentials = |policy: &Policy| policy.passes_authorization;
    let is_unclear = is_unclear || call.at.tool.proxy.as_ref().is_some_and(has_credentials);
    let reused = match (is_unclear, is_business) {
        (false, _) if intent.key_source == Source::Round => Reused::Answered,
        (true, _) => Reused::Unclear,
        (false, true) => Reused::SameFields,
        (false, false) => Reused::Other,
    };
    // The arguments of an alias are not kept, nor are those of an adopted call.
    let is_comparable = reused != Reused::Unclear
        && !there.is_adopted()
        && call.message.is_none()
        && intent
            .all_names()
            .any(|name| there.intent.all_names().any(|own| own == name));
    let places = if is_comparable {
        call.at.recipe.differing(&there.intent.args, &call.raw)
    } else {
        Vec::new()
    };
    let differs = Differs {
        places,
        made_by: there.intent.made_by.clone(),
    };
    ErrorKind::KeyReused {
        call_id: there.intent.call_id,
        reused,
        differs,
    }
}

/// The failure for a key whose call is past its window.
///
/// A request that cannot be compared may be a repetition.
pub(in crate::gateway) fn expired(
    intent: &Intent,
    prints: &Prints,
    there: Option<&Record>,
) -> ErrorKind {
    let is_repetition = there.is_none_or(|there| prints.compare(intent, there) != Sameness::Other);
    ErrorKind::KeyExpired { is_repetition }
}
