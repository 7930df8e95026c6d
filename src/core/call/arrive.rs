//! A request asks for a call: claim, run again, wait, answer or refuse.

use std::sync::Arc;

use jiff::Timestamp;

use super::adopt::recognise;
use super::change::{Action, Change, Next};
use super::event::Arrival;
use crate::core::actor::{self, Actor};
use crate::core::key;
use crate::core::recipe::prints::Sameness;
use crate::core::record::{Attempt, CallId, FailureKind, Intent, Record, State};
use crate::core::session;
use crate::core::time::after;
use crate::core::tool::Tool;

pub(super) fn is_past(time: Option<Timestamp>, now: Timestamp) -> bool {
    time.is_some_and(|time| time <= now)
}

/// Whether a call is past its window for this request.
///
/// An adopted call never is for a compensation, whose key is kept as long as its call.
pub(super) fn is_over(record: &Record, intent: &Intent, now: Timestamp) -> bool {
    let is_compensation = intent.key_source == key::Source::Compensation;
    is_past(record.expires_at, now) && !(record.is_adopted() && is_compensation)
}

/// Whether a request comes with a key that outlives its window.
///
/// Keys that the caller brought itself do. Where a key came from whose call was adopted, its requests say.
pub(super) fn keeps_key(record: &Record, intent: &Intent) -> bool {
    let is_own = || {
        intent
            .all_names()
            .any(|name| record.intent.all_names().any(|own| own == name))
    };
    let source = if record.is_adopted() {
        intent.key_source
    } else {
        record.intent.key_source
    };
    let outlives = matches!(source, key::Source::Runtime | key::Source::Round);
    outlives && (record.aliases.is_empty() || is_own())
}

pub(super) fn arrive_again(
    tool: &Tool,
    record: &Record,
    arrival: &Arrival,
    now: Timestamp,
) -> Next {
    if is_over(record, &arrival.intent, now) {
        if keeps_key(record, &arrival.intent) && !record.may_be_forgotten(now) {
            return Next::unchanged(Action::RefuseExpired);
        }
        return claim(tool, arrival, Some(record.intent.call_id), now);
    }
    if arrival.prints.compare(&arrival.intent, record) == Sameness::Unsaid {
        return recognise(record, arrival, now);
    }
    match told(tool, record, arrival) {
        Some(action) => Next::unchanged(action),
        None => run_again(tool, record, arrival, now),
    }
}

/// What a request for a call is told; `None`: the call runs again.
fn told(tool: &Tool, record: &Record, arrival: &Arrival) -> Option<Action> {
    let is_compensation = record.intent.key_source == key::Source::Compensation;
    // What surely was not executed may be sent with other arguments, if an operator has mended them.
    if !(is_compensation && matches!(record.state, State::Failed(_))) {
        match arrival.prints.compare(&arrival.intent, record) {
            Sameness::Same => {}
            Sameness::Other => return Some(Action::RefuseReused),
            Sameness::Unclear | Sameness::Unsaid => return Some(Action::RefuseUnclear),
        }
    }
    if !is_compensation && arrival.is_of_other_saga(record) {
        return Some(Action::RefuseOtherSaga);
    }
    let failure = match &record.state {
        State::Running => return Some(Action::Wait),
        State::Succeeded(_)
        | State::Unknown(_)
        | State::Compensating(_)
        | State::Compensated(_)
        | State::Stuck(_) => return Some(Action::Answer),
        State::Failed(failure) => failure,
    };
    let stays = match failure.kind {
        // The saga or the reconciliation decides how often it is tried; an answer that is kept would stay the same.
        _ if is_compensation => false,
        FailureKind::Rejected => tool.remember_rejections,
        // A saga that is closed stays so.
        FailureKind::SagaClosed => true,
        // It would get the newest token and overtake those who have overtaken it.
        FailureKind::Fenced => arrival.brought.fencing.is_none(),
        FailureKind::Unreachable | FailureKind::Unavailable | FailureKind::NotExecuted => false,
    };
    stays.then_some(Action::Answer)
}

pub(super) fn claim(
    tool: &Tool,
    arrival: &Arrival,
    instead_of: Option<CallId>,
    now: Timestamp,
) -> Next {
    let attempt = first_attempt(tool, arrival, now);
    let record = Record::first(arrival.intent.clone(), State::Running, attempt, now);
    let mut detail = match instead_of {
        None => "the key was free".to_owned(),
        Some(old) => format!("the key's earlier call {old} is past its window"),
    };
    if let Some(confirmed) = arrival.brought.confirmed {
        detail = format!("{detail}; meant as well as call {confirmed}");
    }
    let action = Action::Claim { instead_of };
    begin(tool, arrival, record, "claimed", detail, action)
}

/// A failed call runs again under the same key.
///
/// A compensation takes the arguments that it brings now.
fn run_again(tool: &Tool, record: &Record, arrival: &Arrival, now: Timestamp) -> Next {
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
        attempt: first_attempt(tool, arrival, now),
        attempts: record.attempts.saturating_add(1),
        similar_to: None,
        check: None,
        latency_ms: None,
        expires_at: None,
        retain_until: None,
        ..record.changed(now)
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
    let change = Change::new(record, event, Actor::Gateway(arrival.owner), detail);
    let change = change.about(arrival.attempt);
    Next::write(
        Change {
            admission,
            ..change
        },
        action,
    )
}

fn first_attempt(tool: &Tool, arrival: &Arrival, now: Timestamp) -> Attempt {
    Attempt {
        id: arrival.attempt,
        owner: arrival.owner,
        number: 1,
        run_started_at: now,
        lease_until: after(now, tool.lease()),
    }
}
