//! A request asks for a call: claim, run again, wait, answer or refuse.

use std::sync::Arc;

use jiff::Timestamp;

use super::adopt::recognise;
use super::approve::{self, Again};
use super::change::{Action, Call, Change, Next, first_attempt};
use super::event::Arrival;
use crate::actor::{self, Actor};
use crate::approval::Ask;
use crate::key;
use crate::key_scheme::fingerprints::{Fingerprints, Sameness};
use crate::mcp::payment;
use crate::record::{CallId, Failure, FailureKind, Intent, Record, State};
use crate::session;
use crate::time::after;
use crate::tool::{Expired, Tool};

pub(super) fn is_past(time: Option<Timestamp>, now: Timestamp) -> bool {
    time.is_some_and(|time| time <= now)
}

/// Whether a call is past its window for this request. `dedup_now`: see [`Now::dedup_now`](super::Now::dedup_now).
///
/// For a compensation an adopted call is never past it: a compensation's key is kept as long as its call.
pub(super) fn is_over(record: &Record, intent: &Intent, dedup_now: Timestamp) -> bool {
    let is_compensation = intent.key_source == key::Source::Compensation;
    is_past(record.expires_at, dedup_now) && !(record.is_adopted() && is_compensation)
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
    fingerprints: &Fingerprints,
    confirmed: Option<CallId>,
    dedup_now: Timestamp,
) -> bool {
    let by_arguments = fingerprints.is_met_by_arguments(intent, record);
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
    let runs_again = matches!(&record.state, State::Failed(failure) if !stays(tool, failure));
    by_arguments && !runs_again && is_past(arguments_until(tool, record), dedup_now)
}

/// Whether a failed call without its arguments gives its lookup keys to a request for the same.
///
/// It surely had no effect, so its key may run again. What it asked for is only in the request now, which makes a call of
/// its own.
pub(super) fn begins_anew(
    tool: &Tool,
    record: &Record,
    intent: &Intent,
    fingerprints: &Fingerprints,
) -> bool {
    // The call id of a compensation was decided before; it runs again with the arguments that the request brings.
    let is_compensation = [&*record.intent, intent]
        .iter()
        .any(|intent| intent.key_source == key::Source::Compensation);
    let runs_again = match &record.state {
        // Without a token of its own the request would get a newer one than the calls that replaced it.
        State::Failed(failure) => {
            // What an approver has declined is not asked about again.
            let is_final = matches!(failure.kind, FailureKind::Fenced | FailureKind::Declined);
            !is_final && !stays(tool, failure)
        }
        _ => false,
    };
    record.lacks_args()
        && runs_again
        && !is_compensation
        && fingerprints.compare(intent, record) == Sameness::Same
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
fn stays(tool: &Tool, failure: &Failure) -> bool {
    match failure.kind {
        FailureKind::Rejected => {
            let is_stored = |status| !tool.never_keep.contains(&status);
            tool.remember_rejections
                && failure.status.is_none_or(is_stored)
                && !asks_for_payment(tool, failure)
        }
        // A closed saga stays closed.
        FailureKind::SagaClosed => true,
        FailureKind::Fenced
        | FailureKind::Unreachable
        | FailureKind::Unavailable
        | FailureKind::NotExecuted
        // Whether it is asked about again: see `approve`.
        | FailureKind::Declined
        | FailureKind::Lapsed
        | FailureKind::Withdrawn => false,
    }
}

/// Whether a rejection may ask for a payment, which the next request brings. Then it is not replayed.
fn asks_for_payment(tool: &Tool, failure: &Failure) -> bool {
    let is_payment_required = tool.is_proxy() && failure.status == Some(402);
    let body = failure.body.as_deref().unwrap_or_default();
    is_payment_required || payment::is_demanded(body)
}

/// Whether the request's key still finds a call that is past its window.
///
/// It does if the caller brought the key. An adopted call does not know where its key came from; the request does.
pub(super) fn key_outlives_window(tool: &Tool, record: &Record, intent: &Intent) -> bool {
    if tool.expired == Expired::New {
        return false;
    }
    let is_own = || {
        intent
            .all_lookups()
            .any(|name| record.intent.has_lookup(name))
    };
    let source = if record.is_adopted() {
        intent.key_source
    } else {
        record.intent.key_source
    };
    let outlives = matches!(source, key::Source::Runtime | key::Source::Elicitation);
    outlives && (record.aliases.is_empty() || is_own())
}

pub(super) fn arrive_again(call: Call<'_>, arrival: &Arrival) -> Next {
    arrive_as(call, arrival, None)
}

/// A request meets a call. `ask`: its tool's rule asks for approval.
pub(super) fn arrive_as(call: Call<'_>, arrival: &Arrival, ask: Option<&Ask>) -> Next {
    let Call {
        tool, record, now, ..
    } = call;
    if is_over(record, &arrival.intent, call.dedup_now) {
        if key_outlives_window(tool, record, &arrival.intent)
            && !record.may_be_forgotten(call.dedup_now)
        {
            return Next::unchanged(Action::RefuseExpired);
        }
        return claim(tool, arrival, ask, Some(record.intent.call_id), now);
    }
    let Arrival {
        intent,
        fingerprints,
        preconditions,
        ..
    } = arrival;
    if gives_way(
        tool,
        record,
        intent,
        fingerprints,
        preconditions.confirmed,
        call.dedup_now,
    ) {
        return claim(tool, arrival, ask, None, now);
    }
    if begins_anew(tool, record, intent, fingerprints) {
        return claim(tool, arrival, ask, None, now);
    }
    if arrival.fingerprints.compare(&arrival.intent, record) == Sameness::Unsaid {
        return recognise(call, arrival);
    }
    let before = approve::as_before(call);
    let ask = ask.or(before.as_ref());
    match answer(call, arrival) {
        Some(Action::Wait) if approve::is_past_deciding(call, ask) => {
            propose_again(call, arrival, ask)
        }
        Some(action) => Next::unchanged(action),
        None => match (approve::again(call, arrival, ask), ask) {
            (None, _) => run_again(call, arrival),
            (Some(Again::Propose), ask @ Some(_)) => propose_again(call, arrival, ask),
            (Some(Again::Approved), _) => approve::approved_again(call, arrival),
            (Some(Again::Propose | Again::Answer), _) => Next::unchanged(Action::Answer),
        },
    }
}

/// A stored call waits for approval once more.
fn propose_again(call: Call<'_>, arrival: &Arrival, ask: Option<&Ask>) -> Next {
    let Some(ask) = ask else {
        return Next::unchanged(Action::Wait);
    };
    let again = Record {
        check: None,
        latency_ms: None,
        expires_at: None,
        retain_until: None,
        ..call.changed()
    };
    approve::propose(call.tool, Some(call.record), again, arrival, ask, call.now)
}

/// The action for a request whose call does not run again; `None`: the call runs again.
fn answer(call: Call<'_>, arrival: &Arrival) -> Option<Action> {
    let record = call.record;
    let is_compensation = record.intent.key_source == key::Source::Compensation;
    // An operator may have corrected the arguments of a compensation that was surely not executed.
    if !(is_compensation && matches!(record.state, State::Failed(_))) {
        match arrival.fingerprints.compare(&arrival.intent, record) {
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
        State::Running | State::Proposed | State::Approved => return Some(Action::Wait),
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
        FailureKind::Fenced => arrival.preconditions.fencing.is_none() || record.lacks_args(),
        _ => stays(call.tool, failure),
    };
    stays.then_some(Action::Answer)
}

/// Claims a key that is free, or that a call past its window still has.
pub(super) fn claim(
    tool: &Tool,
    arrival: &Arrival,
    ask: Option<&Ask>,
    past: Option<CallId>,
    now: Timestamp,
) -> Next {
    let attempt = first_attempt(tool, arrival.attempt, arrival.owner, now);
    let record = Record::first(arrival.intent.clone(), State::Running, attempt, now);
    if let Some(ask) = ask {
        return approve::propose(tool, None, record, arrival, ask, now);
    }
    let mut detail = match past {
        None => "the key was free".to_owned(),
        Some(past) => format!("the key's earlier call {past} is past its window"),
    };
    if let Some(confirmed) = arrival.preconditions.confirmed {
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
            key_scheme: arrival.intent.key_scheme,
            ..(*intent).clone()
        });
    }
    let again = Record {
        intent,
        state: State::Running,
        attempt: first_attempt(tool, arrival.attempt, arrival.owner, now),
        attempts: record.attempts.saturating_add(1),
        cancel_asked: false,
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
    let admission = match session::admission(tool, &record.intent, arrival.preconditions) {
        Ok(admission) => admission,
        Err(why) => return Next::unchanged(Action::RefuseUnfit(why)),
    };
    let mut change = Change::new(record, event, Actor::Gateway(arrival.owner), detail);
    change.admission = admission;
    Next::write(change.about(arrival.attempt), action)
}
