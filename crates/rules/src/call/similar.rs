//! A request with another key looks like a call: whether it gets that call's result.

use jiff::Timestamp;

use super::arrive::is_past;
use super::change::{Action, Call, Change, Next, Takes};
use super::event::Resembled;
use crate::actor::Actor;
use crate::record::{Alias, MAX_ALIASES, State};
use crate::time::after;

/// Adds the request's key to the lookup keys of a call that has succeeded and is remembered.
///
/// The request and every repetition of it get the call's result. While the outcome of the call is
/// not known the request waits: it must neither run nor be told that nothing has happened.
pub(super) fn resembled(call: Call<'_>, request: &Resembled) -> Next {
    let Call { tool, record, .. } = call;
    match &record.state {
        State::Running | State::Unknown(_) | State::Proposed | State::Approved => {
            return Next::unchanged(Action::Wait);
        }
        State::Succeeded(_) => {}
        State::Failed(_) | State::Compensating(_) | State::Compensated(_) | State::Stuck(_) => {
            return Next::unchanged(Action::RefuseSimilar);
        }
    }
    let intent = &*request.intent;
    let has_key = |alias: &Alias| alias.lookups.contains(&intent.lookup);
    let print = (intent.fingerprint, intent.key_scheme);
    let is_same = |alias: &Alias| has_key(alias) && (alias.fingerprint, alias.key_scheme) == print;
    if record.aliases.iter().any(is_same) {
        return Next::unchanged(Action::Answer);
    }
    if record.aliases.iter().any(has_key) {
        return Next::unchanged(Action::RefuseReused);
    }
    let is_other = (&record.intent.tenant, &record.intent.tool) != (&intent.tenant, &intent.tool);
    let is_full = record.aliases.len() >= MAX_ALIASES;
    // The result may be more than this token may read: the request shows neither that call's key nor its arguments.
    let is_of_another_token = record.intent.made_by != intent.made_by;
    if is_other
        || is_of_another_token
        || call.is_of_other_saga(&intent.saga_id)
        || is_full
        || is_past(record.expires_at, call.dedup_now)
    {
        return Next::unchanged(Action::RefuseSimilar);
    }
    let lookups: Vec<_> = intent.all_lookups().copied().collect();
    let mut named = call.changed();
    named.aliases.push(Alias {
        lookups: lookups.clone(),
        fingerprint: intent.fingerprint,
        key_scheme: intent.key_scheme,
    });
    // The request's key is remembered for as long as if the request had run.
    let later =
        |time: Option<Timestamp>, span| time.map(|time| time.max(after(call.dedup_now, span)));
    named.expires_at = later(record.expires_at, tool.window(intent.key_source));
    named.retain_until = later(record.retain_until, tool.retention);
    let detail = "a request with another key looked like it and gets its result; that key is a lookup key of it now";
    let by = Actor::Gateway(request.by);
    let mut change = Change::new(named, "replayed_as_similar", by, detail);
    change.takes = Takes {
        lookups,
        replaced: request.replaced.clone(),
    };
    Next::write(change, Action::TakeLookups)
}
