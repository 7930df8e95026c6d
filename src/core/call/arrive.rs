//! A request asks for a call: it is claimed, run again, waited for, answered or refused.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Action, Change, Next, Takes, after, gateway};
use crate::core::key;
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::record::FailureKind;
use crate::core::record::{Attempt, AttemptId, CallId, Entry, InstanceId, Intent, Record, State};
use crate::core::session::{self, Brought, Release};
use crate::core::tool::Tool;

/// A request, as the event brings it.
pub(super) struct Arrival<'a> {
    pub(super) intent: &'a Arc<Intent>,
    pub(super) prints: &'a Prints,
    pub(super) brought: Brought,
    pub(super) attempt: AttemptId,
    pub(super) owner: InstanceId,
}

pub(super) fn is_past(time: Option<Timestamp>, now: Timestamp) -> bool {
    time.is_some_and(|time| time <= now)
}

/// Whether a request comes with the key itself of a call whose caller brought it: such a key outlives its window.
pub(super) fn keeps_key(record: &Record, intent: &Intent) -> bool {
    let is_own = || {
        intent
            .all_names()
            .any(|name| record.intent.all_names().any(|own| own == name))
    };
    record.intent.key_source == key::Source::Runtime && (record.aliases.is_empty() || is_own())
}

pub(super) fn arrive_again(
    tool: &Tool,
    record: &Record,
    arrival: &Arrival<'_>,
    now: Timestamp,
) -> Next {
    if is_past(record.expires_at, now) {
        if keeps_key(record, arrival.intent) && !is_past(record.retain_until, now) {
            return Next {
                change: None,
                action: Action::RefuseExpired,
            };
        }
        return claim(tool, arrival, Some(record.intent.call_id), now);
    }
    let is_compensation = record.intent.key_source == key::Source::Compensation;
    // What surely was not executed may be sent with other arguments, if an operator has mended them.
    let may_differ = is_compensation && matches!(record.state, State::Failed(_));
    if !may_differ {
        let action = match arrival.prints.compare(arrival.intent, record) {
            Sameness::Same => None,
            Sameness::Other => Some(Action::RefuseReused),
            Sameness::Unclear => Some(Action::RefuseUnclear),
        };
        if let Some(action) = action {
            return Next {
                change: None,
                action,
            };
        }
    }
    let (named, there) = (&arrival.intent.saga_id, &record.intent.saga_id);
    // It would be undone with a saga of which this one knows nothing.
    if !is_compensation && !named.is_empty() && named != there {
        return Next {
            change: None,
            action: Action::RefuseOtherSaga,
        };
    }
    match &record.state {
        State::Running => Next {
            change: None,
            action: Action::Wait,
        },
        State::Succeeded(_)
        | State::Unknown(_)
        | State::Compensating(_)
        | State::Compensated(_)
        | State::Stuck(_) => Next {
            change: None,
            action: Action::Answer,
        },
        // The saga or the reconciliation decides how often a compensation is tried; an answer that is kept would stay the same.
        State::Failed(_) if is_compensation => run_again(tool, record, arrival, now),
        State::Failed(failure)
            if failure.kind == FailureKind::Rejected && tool.remember_rejections =>
        {
            Next {
                change: None,
                action: Action::Answer,
            }
        }
        // A saga that is closed stays so.
        State::Failed(failure) if failure.kind == FailureKind::SagaClosed => Next {
            change: None,
            action: Action::Answer,
        },
        // It would get the newest token and overtake those who have overtaken it.
        State::Failed(failure)
            if failure.kind == FailureKind::Fenced && arrival.brought.fencing.is_none() =>
        {
            Next {
                change: None,
                action: Action::Answer,
            }
        }
        State::Failed(_) => run_again(tool, record, arrival, now),
    }
}

pub(super) fn claim(
    tool: &Tool,
    arrival: &Arrival<'_>,
    instead_of: Option<CallId>,
    now: Timestamp,
) -> Next {
    let record = Record {
        intent: arrival.intent.clone(),
        version: 1,
        state: State::Running,
        attempt: first_attempt(tool, arrival, now),
        attempts: 1,
        doubted: false,
        fencing: None,
        similar_to: None,
        check: None,
        undo: None,
        aliases: Vec::new(),
        latency_ms: None,
        updated_at: now,
        expires_at: None,
        retain_until: None,
    };
    let detail = match instead_of {
        None => "the key was free".to_owned(),
        Some(old) => format!("the key's earlier call {old} is past its window"),
    };
    let entry = begun("claimed", arrival, detail, now);
    let admission = match session::admission(tool, arrival.intent, arrival.brought) {
        Ok(admission) => admission,
        Err(why) => {
            return Next {
                change: None,
                action: Action::RefuseUnfit(why),
            };
        }
    };
    let change = Change {
        record,
        entry,
        admission,
        release: Release::default(),
        takes: Takes::default(),
    };
    Next {
        change: Some(change),
        action: Action::Claim { instead_of },
    }
}

/// A failed call runs again under the same key; one that undoes another with the arguments that it brings now.
fn run_again(tool: &Tool, record: &Record, arrival: &Arrival<'_>, now: Timestamp) -> Next {
    let intent = if record.intent.key_source == key::Source::Compensation {
        let Intent {
            args,
            fingerprint,
            recipe,
            ..
        } = &**arrival.intent;
        let (args, fingerprint, recipe) = (args.clone(), *fingerprint, *recipe);
        Arc::new(Intent {
            args,
            fingerprint,
            recipe,
            ..(*record.intent).clone()
        })
    } else {
        record.intent.clone()
    };
    let again = Record {
        intent,
        version: record.version + 1,
        state: State::Running,
        attempt: first_attempt(tool, arrival, now),
        attempts: record.attempts.saturating_add(1),
        similar_to: None,
        check: None,
        latency_ms: None,
        updated_at: now,
        expires_at: None,
        retain_until: None,
        ..record.clone()
    };
    let detail = "the same key came again after a failure".to_owned();
    let entry = begun("run_again", arrival, detail, now);
    let admission = match session::admission(tool, &record.intent, arrival.brought) {
        Ok(admission) => admission,
        Err(why) => {
            return Next {
                change: None,
                action: Action::RefuseUnfit(why),
            };
        }
    };
    let change = Change {
        record: again,
        entry,
        admission,
        release: Release::default(),
        takes: Takes::default(),
    };
    Next {
        change: Some(change),
        action: Action::Run,
    }
}

/// What a further attempt has to know of the ones before it.
pub(super) fn in_doubt(record: &Record) -> bool {
    record.doubted || matches!(record.state, State::Unknown(_))
}

fn first_attempt(tool: &Tool, arrival: &Arrival<'_>, now: Timestamp) -> Attempt {
    let lease_until = after(now, tool.lease());
    Attempt {
        id: arrival.attempt,
        owner: arrival.owner,
        number: 1,
        run_started_at: now,
        lease_until,
    }
}

fn begun(event: &'static str, arrival: &Arrival<'_>, detail: String, now: Timestamp) -> Entry {
    let (attempt, by) = (Some(arrival.attempt), gateway(arrival.owner));
    Entry {
        at: now,
        event: event.into(),
        attempt,
        outcome: None,
        by,
        detail,
    }
}
