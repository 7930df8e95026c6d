//! A request asks for a call: claim, run again, wait, answer or refuse.

use std::sync::Arc;

use jiff::Timestamp;

use super::adopt::recognise;
use super::change::{Action, Call, Change, Next, first_attempt};
use super::event::Arrival;
use crate::actor::{self, Actor};
use crate::key;
use crate::recipe::prints::{Prints, Sameness};
use crate::record::{CallId, FailureKind, Intent, Record, State};
use crate::session;
use crate::time::after;
use crate::tool::Tool;

pub(super) fn is_past(time: Option<Timestamp>, now: Timestamp) -> bool {
    time.is_some_and(|time| time <= now)
}

/// Whether a call is past its window for this request. `aged`: see [`Now::aged`](super::Now::aged).
///
/// For a compensation an adopted call is never past it: a compensation's key is kept as long as its call.
pub(super) fn is_over(record: &Record, intent: &Intent, aged: Timestamp) -> bool {
    let is_compensation = intent.key_source == key::Source::Compensation;
    is_past(record.expires_at, aged) && !(record.is_adopted() && is_compensation)
}

/// Whether a call gives its lookup keys of arguments to a request for another intent with equal arguments.
///
/// Only the arguments show that it is the call: a key of the runtime, or the same key of the model, stands for it as long as
/// the key is remembered. It gives way when the window of derived keys is over. A call that has ended well gives way at
/// once to a request that names it as another intent; one that may not have ended does not, because its outcome must not
/// be passed over.
pub(super) fn gives_way(
    tool: &Tool,
    record: &Record,
    intent: &Intent,
    prints: &Prints,
    confirmed: Option<CallId>,
    aged: Timestamp,
) -> bool {
    let by_arguments = prints.is_met_by_arguments(intent, record);
    let is_models =
        |intent: &Intent| matches!(intent.key_source, key::Source::Model | key::Source::Derived);
    let is_its_key =
        intent.key_source == key::Source::Model && intent.lookup == record.intent.lookup;
    let has_ended_well = matches!(
        record.state,
        State::Succeeded(_) | State::Compensated(Some(_))
    );
    if confirmed == Some(record.intent.call_id)
        && (by_arguments || is_its_key)
        && has_ended_well
        && is_models(intent)
        && is_models(&record.intent)
    {
        return true;
    }
    let runs_again = matches!(&record.state, State::Failed(failure) if !stays(tool, failure.kind));
    by_arguments && !runs_again && is_past(arguments_until(tool, record), aged)
}

/// Until when a call is met by its arguments alone; `None`: it has not ended.
///
/// The window of its own key may be longer. How long it was when the call ended is not stored: where today's
/// configuration says otherwise, the later of two times counts.
fn arguments_until(tool: &Tool, record: &Record) -> Option<Timestamp> {
    let until = record.expires_at?;
    if record.intent.key_source != key::Source::Model {
        return Some(until);
    }
    let window = tool.window(key::Source::Derived);
    let longer = tool.window(key::Source::Model).saturating_sub(window);
    let shorter = until.checked_sub(longer).unwrap_or(until);
    Some(shorter.max(after(record.updated_at, window)).min(until))
}

/// Whether a failed call is kept and answered, whichever request comes: it never runs again.
fn stays(tool: &Tool, kind: FailureKind) -> bool {
    match kind {
        FailureKind::Rejected => tool.remember_rejections,
        // A closed saga stays closed.
        FailureKind::SagaClosed => true,
        FailureKind::Fenced
        | FailureKind::Unreachable
        | FailureKind::Unavailable
        | FailureKind::NotExecuted => false,
    }
}

/// Whether the request's key still finds a call that is past its window.
///
/// It does if the caller brought the key. An adopted call does not know where its key came from; the request does.
pub(super) fn keeps_key(record: &Record, intent: &Intent) -> bool {
    let is_own = || intent.all_names().any(|name| record.intent.has_name(name));
    let source = if record.is_adopted() {
        intent.key_source
    } else {
        record.intent.key_source
    };
    let outlives = matches!(source, key::Source::Runtime | key::Source::Round);
    outlives && (record.aliases.is_empty() || is_own())
}

pub(super) fn arrive_again(call: Call<'_>, arrival: &Arrival) -> Next {
    let Call {
        tool, record, now, ..
    } = call;
    if is_over(record, &arrival.intent, call.aged) {
        if keeps_key(record, &arrival.intent) && !record.may_be_forgotten(call.aged) {
            return Next::unchanged(Action::RefuseExpired);
        }
        return claim(tool, arrival, Some(record.intent.call_id), now);
    }
    let Arrival {
        intent,
        prints,
        brought,
        ..
    } = arrival;
    if gives_way(tool, record, intent, prints, brought.confirmed, call.aged) {
        return claim(tool, arrival, None, now);
    }
    if arrival.prints.compare(&arrival.intent, record) == Sameness::Unsaid {
        return recognise(call, arrival);
    }
    match answer(call, arrival) {
        Some(action) => Next::unchanged(action),
        None => run_again(call, arrival),
    }
}

/// The action for a request whose call does not run again; `None`: the call runs again.
fn answer(call: Call<'_>, arrival: &Arrival) -> Option<Action> {
    let record = call.record;
    let is_compensation = record.intent.key_source == key::Source::Compensation;
    // An operator may have corrected the arguments of a compensation that was surely not executed.
    if !(is_compensation && matches!(record.state, State::Failed(_))) {
        match arrival.prints.compare(&arrival.intent, record) {
            Sameness::Same => {}
            Sameness::Other => return Some(Action::RefuseReused),
            Sameness::Unclear | Sameness::Unsaid => return Some(Action::RefuseUnclear),
        }
    }
    if !is_compensation && call.is_of_other_saga(&arrival.intent.saga_id) {
        return Some(Action::RefuseOtherSaga);
    }
    let failure = match &record.state {
        State::Failed(failure) => failure,
        State::Running => return Some(Action::Wait),
        State::Succeeded(_)
        | State::Unknown(_)
        | State::Compensating(_)
        | State::Compensated(_)
        | State::Stuck(_) => return Some(Action::Answer),
    };
    let stays = match failure.kind {
        // The saga or the reconciliation decides how often a compensation is tried. A kept answer would end that.
        _ if is_compensation => false,
        // Without a token of its own the request would get a newer one than the calls that replaced it.
        FailureKind::Fenced => arrival.brought.fencing.is_none(),
        kind => stays(call.tool, kind),
    };
    stays.then_some(Action::Answer)
}

/// Claims a key that is free, or that a call past its window still has.
pub(super) fn claim(tool: &Tool, arrival: &Arrival, past: Option<CallId>, now: Timestamp) -> Next {
    let attempt = first_attempt(tool, arrival.attempt, arrival.owner, now);
    let record = Record::first(arrival.intent.clone(), State::Running, attempt, now);
    let mut detail = match past {
        None => "the key was free".to_owned(),
        Some(past) => format!("the key's earlier call {past} is past its window"),
    };
    if let Some(confirmed) = arrival.brought.confirmed {
        detail = format!("{detail}; meant as well as call {confirmed}");
    }
    begin(tool, arrival, record, "claimed", detail, Action::Claim)
}

/// A failed call runs again under the same key.
///
/// A compensation takes the arguments that the request brings.
fn run_again(call: Call<'_>, arrival: &Arrival) -> Next {
    let Call {
        tool, record, now, ..
    } = call;
    let mut intent = record.intent.clone();
    if intent.key_source == key::Source::Compensation {
        intent = Arc::new(Intent {
            args: arrival.intent.args.clone(),
            fingerprint: arrival.intent.fingerprint,
            recipe: arrival.intent.recipe,
            ..(*intent).clone()
        });
    }
    let again = Record {
        intent,
        state: State::Running,
        attempt: first_attempt(tool, arrival.attempt, arrival.owner, now),
        attempts: record.attempts.saturating_add(1),
        similar_to: None,
        check: None,
        latency_ms: None,
        expires_at: None,
        retain_until: None,
        ..call.changed()
    };
    let detail = actor::came_again(&arrival.intent.made_by);
    begin(tool, arrival, again, "run_again", detail, Action::Run)
}

/// Begins a run, if the request has what the tool needs.
fn begin(
    tool: &Tool,
    arrival: &Arrival,
    record: Record,
    event: &'static str,
    detail: String,
    action: Action,
) -> Next {
    let admission = match session::admission(tool, &record.intent, arrival.brought) {
        Ok(admission) => admission,
        Err(why) => return Next::unchanged(Action::RefuseUnfit(why)),
    };
    let mut change = Change::new(record, event, Actor::Gateway(arrival.owner), detail);
    change.admission = admission;
    Next::write(change.about(arrival.attempt), action)
}
