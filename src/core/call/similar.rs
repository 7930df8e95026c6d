//! A request with another key looks like a call: whether it gets that call's result.

use std::sync::Arc;

use jiff::Timestamp;

use super::arrive::is_past;
use super::change::{Action, Change, Next, Takes};
use crate::core::actor::Actor;
use crate::core::record::{Alias, InstanceId, Intent, MAX_ALIASES, Record, State};
use crate::core::time::after;
use crate::core::tool::Tool;

/// Adds the request's key to the call's names.
///
/// Only if the call has succeeded and its key is remembered.
///
/// The answer is the call's result, and so is that of every repetition. While the outcome of the call is not known the
/// request waits: it must neither run nor be told that nothing has happened.
pub(super) fn resembled(
    tool: &Tool,
    record: &Record,
    arrival: &Arc<Intent>,
    instead_of: &[Record],
    by: InstanceId,
    now: Timestamp,
) -> Next {
    match &record.state {
        State::Running | State::Unknown(_) => return Next::unchanged(Action::Wait),
        State::Succeeded(_) => {}
        State::Failed(_) | State::Compensating(_) | State::Compensated(_) | State::Stuck(_) => {
            return Next::unchanged(Action::RefuseSimilar);
        }
    }
    let is_same_alias = |alias: &Alias| {
        alias.names.contains(&arrival.lookup)
            && (alias.fingerprint, alias.recipe) == (arrival.fingerprint, arrival.recipe)
    };
    if record.aliases.iter().any(is_same_alias) {
        return Next::unchanged(Action::Answer);
    }
    if record
        .aliases
        .iter()
        .any(|alias| alias.names.contains(&arrival.lookup))
    {
        return Next::unchanged(Action::RefuseReused);
    }
    let is_other = (&record.intent.tenant, &record.intent.tool) != (&arrival.tenant, &arrival.tool);
    // It would be undone with a saga of which this one knows nothing.
    let is_of_another_saga =
        !arrival.saga_id.is_empty() && arrival.saga_id != record.intent.saga_id;
    let is_full = record.aliases.len() >= MAX_ALIASES;
    // The result may be more than this token may read: it has shown neither that call's key nor its arguments.
    let is_of_another_token = record.intent.made_by != arrival.made_by;
    if is_other
        || is_of_another_token
        || is_of_another_saga
        || is_full
        || is_past(record.expires_at, now)
    {
        return Next::unchanged(Action::RefuseSimilar);
    }
    let mut named = record.changed(now);
    let names: Vec<_> = arrival.all_names().copied().collect();
    let Intent {
        fingerprint,
        recipe,
        ..
    } = **arrival;
    named.aliases.push(Alias {
        names: names.clone(),
        fingerprint,
        recipe,
    });
    // The request's key is remembered for as long as if it had run.
    let later = |time: Option<Timestamp>, span| time.map(|time| time.max(after(now, span)));
    named.expires_at = later(record.expires_at, tool.window(arrival.key_source));
    named.retain_until = later(record.retain_until, tool.retention);
    let detail = "a request with another key looked like it and gets its result; that key is a name of it now";
    let takes = Takes {
        names,
        instead_of: instead_of.to_vec(),
    };
    let change = Change::new(named, "replayed_as_similar", Actor::Gateway(by), detail);
    Next::write(Change { takes, ..change }, Action::TakeNames)
}
