//! What a call has done is undone, or surely was never done. Who undoes it, and in which order, is `saga`'s.

use jiff::Timestamp;

use super::end::{finish, kept_until, remembered_until};
use super::{Action, Change, Illegal, Next, Occasion, Takes, UndoEnd, gateway};
use crate::core::actor::Actor;
use crate::core::compensation;
use crate::core::outcome::Outcome;
use crate::core::record::Check;
use crate::core::record::{Compensation, Entry, InstanceId, Record, State, Undo};
use crate::core::record::{Content, Failure, FailureKind};
use crate::core::session::Release;
use crate::core::tool::{Effect, Tool};
use crate::core::unknown::Resolution;

/// It was claimed, and is not sent because of its saga.
pub(super) fn not_joined(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    kind: FailureKind,
    why: &str,
    now: Timestamp,
) -> Next {
    let failure = Failure {
        kind,
        status: None,
        body: None,
        retry_after: None,
        why: why.to_owned(),
    };
    let occasion = Occasion {
        event: "not_joined",
        by: gateway(by),
    };
    let mut next = finish(
        tool,
        record,
        occasion,
        Outcome::NotExecuted(failure),
        why.to_owned(),
        now,
    );
    if let Some(change) = &mut next.change {
        // Its saga has nothing to undo here, and may not look at it again.
        change.record.retain_until = Some(kept_until(tool, record, now));
    }
    next
}

/// It is to be undone. That is written down before anything is sent: from then on nothing else happens to
/// the call, and it is known which call undoes it.
pub(super) fn to_compensate(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    compensation: Option<&Compensation>,
    now: Timestamp,
) -> Result<Next, Illegal> {
    if tool.effect == Effect::Read {
        return Err(Illegal::NothingToUndo);
    }
    let content = match &record.state {
        State::Running => return Err(Illegal::MayStillRun),
        State::Compensating(_) | State::Compensated(_) => return Err(Illegal::NothingToUndo),
        State::Failed(_) => {
            let detail = format!("it surely never ran, so nothing is sent ({reason})");
            let undone = Record {
                state: State::Compensated(None),
                undo: Some(Undo::default()),
                expires_at: remembered_until(tool, record, now),
                ..changed(record, now)
            };
            return Ok(write(undone, "compensation_empty", by, detail, now));
        }
        // Its request may still reach the tool, after what would undo it.
        State::Unknown(_) if now < record.attempt.lease_until => return Err(Illegal::MayStillRun),
        State::Unknown(_) if !undoes_unknown(tool) => return Err(Illegal::StillUnknown),
        State::Unknown(_) => None,
        State::Succeeded(content) => Some(content.clone()),
        State::Stuck(content) => content.clone(),
    };
    let detail = match compensation {
        Some(Compensation { tool, call_id }) => {
            format!("{tool} undoes it by call {call_id} ({reason})")
        }
        None => format!("it is to be undone, but its tool declares no compensation ({reason})"),
    };
    let undone = Record {
        state: State::Compensating(content),
        check: None,
        undo: Some(Undo {
            compensation: compensation.cloned(),
            skipped: false,
        }),
        expires_at: None,
        retain_until: None,
        ..changed(record, now)
    };
    Ok(write(undone, "compensating", by, detail, now))
}

/// Whether its calls are undone also if their outcome is unknown.
pub fn undoes_unknown(tool: &Tool) -> bool {
    matches!(&tool.compensation, compensation::Policy::By(template) if template.undoes_unknown)
}

/// The call that undoes it has ended.
pub(super) fn undo_ended(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    end: &UndoEnd,
    now: Timestamp,
) -> Next {
    let content = record.state.content().cloned();
    let (event, detail, record) = match end {
        UndoEnd::Undone => (
            "compensated",
            "what it did is undone".to_owned(),
            compensated(tool, record, content, now),
        ),
        UndoEnd::Stuck(why) => (
            "stuck",
            why.clone(),
            Record {
                state: State::Stuck(content),
                ..changed(record, now)
            },
        ),
    };
    write(record, event, &gateway(by), detail, now)
}

fn compensated(tool: &Tool, record: &Record, content: Option<Content>, now: Timestamp) -> Record {
    Record {
        state: State::Compensated(content),
        expires_at: remembered_until(tool, record, now),
        retain_until: record
            .intent
            .saga_id
            .is_empty()
            .then(|| kept_until(tool, record, now)),
        ..changed(record, now)
    }
}

/// A person says what has become of a call that could not be undone: its effect stands, or there is none any more.
pub(super) fn resolve_stuck(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    resolution: &Resolution,
    now: Timestamp,
) -> Next {
    let known = record.state.content().cloned();
    let resolved = match resolution {
        Resolution::Failed => compensated(tool, record, known, now),
        // What the tool itself has said goes before what a person says.
        Resolution::Succeeded(content) => {
            stands(tool, record, known.unwrap_or_else(|| content.clone()), now)
        }
    };
    let what = if matches!(resolution, Resolution::Failed) {
        "it is undone"
    } else {
        "its effect stands"
    };
    write(
        resolved,
        "resolved",
        &Actor::Token(by).to_string(),
        format!("a person says that {what} ({reason})"),
        now,
    )
}

/// A person decides that it is not undone.
pub(super) fn skip(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    compensation: Option<&Record>,
    now: Timestamp,
) -> Result<Next, Illegal> {
    match (
        &record.state,
        compensation.map(|made| (&made.state, made.attempt.lease_until)),
    ) {
        (_, Some((State::Running, _))) => return Err(Illegal::BeingUndone),
        (_, Some((State::Unknown(_), lease_until))) if now < lease_until => {
            return Err(Illegal::BeingUndone);
        }
        // It is undone; only that is not written down yet.
        (State::Compensating(_), Some((State::Succeeded(_), _))) => {
            return Err(Illegal::NothingToUndo);
        }
        _ => {}
    }
    let skipped = match (&record.state, record.state.content()) {
        (State::Running, _) => return Err(Illegal::MayStillRun),
        (State::Unknown(_), _) if now < record.attempt.lease_until => {
            return Err(Illegal::MayStillRun);
        }
        (State::Failed(_) | State::Compensated(_), _) => return Err(Illegal::NothingToUndo),
        (_, Some(content)) => stands(tool, record, content.clone(), now),
        // What is done about unknown calls goes on.
        (State::Unknown(_), None) => Record {
            undo: skipped(record),
            ..changed(record, now)
        },
        // Its outcome was never known, and it is not asked for any more.
        (_, None) => Record {
            state: State::Unknown("nobody knows, and a person has decided not to undo it".into()),
            check: Some(Check {
                since: now,
                at: None,
                number: 0,
            }),
            undo: skipped(record),
            ..changed(record, now)
        },
    };
    Ok(write(
        skipped,
        "skipped",
        &Actor::Token(by).to_string(),
        format!("it is not undone ({reason})"),
        now,
    ))
}

fn stands(tool: &Tool, record: &Record, content: Content, now: Timestamp) -> Record {
    Record {
        state: State::Succeeded(content),
        undo: skipped(record),
        expires_at: remembered_until(tool, record, now),
        retain_until: record
            .intent
            .saga_id
            .is_empty()
            .then(|| kept_until(tool, record, now)),
        ..changed(record, now)
    }
}

fn skipped(record: &Record) -> Option<Undo> {
    Some(Undo {
        skipped: true,
        ..record.undo.clone().unwrap_or_default()
    })
}

/// Its saga has come to its end.
pub(super) fn saga_ended(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let is_settled = match record.state {
        State::Succeeded(_) | State::Failed(_) | State::Compensated(_) => true,
        State::Running | State::Unknown(_) | State::Compensating(_) | State::Stuck(_) => false,
    };
    if !is_settled || record.retain_until.is_some() {
        return Err(Illegal::NotKept);
    }
    let kept = Record {
        retain_until: Some(kept_until(tool, record, now)),
        ..changed(record, now)
    };
    let detail = "its saga has come to its end".to_owned();
    Ok(write(kept, "saga_ended", &gateway(by), detail, now))
}

fn changed(record: &Record, now: Timestamp) -> Record {
    Record {
        version: record.version + 1,
        updated_at: now,
        ..record.clone()
    }
}

fn write(record: Record, event: &'static str, by: &str, detail: String, now: Timestamp) -> Next {
    let entry = Entry {
        at: now,
        event: event.into(),
        attempt: None,
        outcome: None,
        by: by.to_owned(),
        detail,
    };
    let change = Change {
        record,
        entry,
        admission: None,
        release: Release::default(),
        takes: Takes::default(),
    };
    Next {
        change: Some(change),
        action: Action::Finish,
    }
}
