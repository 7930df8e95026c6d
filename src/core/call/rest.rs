//! How an unknown call comes to rest: it is probed, sent again, or settled by a person.

use std::time::Duration;

use jiff::Timestamp;

use super::end::finish;
use super::{Action, Change, Illegal, Next, Occasion, Takes, after, ended, gateway};
use crate::core::actor::Actor;
use crate::core::outcome::Outcome;
use crate::core::record::{Attempt, AttemptId, Entry, InstanceId, Record, State};
use crate::core::record::{Check, Content, Failure, FailureKind};
use crate::core::redact;
use crate::core::session::Release;
use crate::core::tool::{OnUnknown, Tool};
use crate::core::unknown::{self, Finding, Hindrance, Resolution};

/// It is time to work on an unknown call. Writing that down is also what keeps others from doing it.
pub(super) fn work_on(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    attempt: Option<AttemptId>,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let check = due(record, now)?;
    let number = check.number.saturating_add(1);
    // What is due is worked on also if that is the last time: it is given up only after that.
    let later = unknown::next_check(
        tool,
        record.attempt.id,
        Check { number, ..check },
        now,
        None,
    );
    let worked_on = Record {
        version: record.version + 1,
        check: Some(later),
        updated_at: now,
        ..record.clone()
    };
    let (event, attempt, detail, worked_on, action) = match (tool.unknown, attempt) {
        (OnUnknown::Elsewhere, _) => return Err(Illegal::NotDue),
        (OnUnknown::Hold, _) => {
            let detail =
                "calls of the tool are held: a late answer or a person may settle it".to_owned();
            (
                "held",
                record.attempt.id,
                detail,
                Record {
                    check: None,
                    ..worked_on
                },
                Action::Finish,
            )
        }
        // Being asked has no effect, so a paused tool is asked, too.
        (OnUnknown::Probe { .. }, _) => {
            let detail = format!("the tool is asked whether it knows the key, for time {number}");
            (
                "probing",
                record.attempt.id,
                detail,
                worked_on,
                Action::Probe,
            )
        }
        (OnUnknown::Retry, _) if unknown::is_late(tool, &check, now) => {
            let detail =
                "it is too late to send it again: the tool may have forgotten its key; a late \
                answer or a person may still settle it"
                    .to_owned();
            let given_up = Record {
                check: Some(Check { at: None, ..check }),
                ..worked_on
            };
            (
                "given_up",
                record.attempt.id,
                detail,
                given_up,
                Action::Finish,
            )
        }
        (OnUnknown::Retry, _) if !redact::is_whole(&record.intent.args) => {
            let detail = "it cannot be sent again: not all of its arguments are kept, or readable"
                .to_owned();
            let given_up = Record {
                check: Some(Check { at: None, ..check }),
                ..worked_on
            };
            (
                "given_up",
                record.attempt.id,
                detail,
                given_up,
                Action::Finish,
            )
        }
        (OnUnknown::Retry, None) => {
            let detail = "it is not sent again as long as its tool is paused".to_owned();
            let later = unknown::put_off(tool, check, Duration::ZERO, now);
            let held_back = Record {
                check: Some(later),
                ..worked_on
            };
            (
                "held_back",
                record.attempt.id,
                detail,
                held_back,
                Action::Finish,
            )
        }
        (OnUnknown::Retry, Some(attempt)) => {
            let detail = format!(
                "the same key is sent to the tool again, for time {number}: it deduplicates"
            );
            let lease_until = after(now, tool.lease());
            let again = Record {
                state: State::Running,
                attempt: Attempt {
                    id: attempt,
                    owner: by,
                    number: 1,
                    run_started_at: now,
                    lease_until,
                },
                attempts: record.attempts.saturating_add(1),
                doubted: true,
                ..worked_on
            };
            ("sent_again", attempt, detail, again, Action::Run)
        }
    };
    let (by, event) = (gateway(by), event.into());
    let entry = Entry {
        at: now,
        event,
        attempt: Some(attempt),
        outcome: None,
        by,
        detail,
    };
    let change = Change {
        record: worked_on,
        entry,
        admission: None,
        release: Release::default(),
        takes: Takes::default(),
    };
    Ok(Next {
        change: Some(change),
        action,
    })
}

/// It is time, but something is in the way.
pub(super) fn hindered(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    hindrance: Hindrance,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let check = due(record, now)?;
    let (wait, why) = match hindrance {
        Hindrance::Resting(wait) => (wait, "its tool keeps failing and is left alone for a while"),
        Hindrance::Frozen => (Duration::ZERO, "its session is frozen"),
        Hindrance::Store => (Duration::ZERO, "the store lets nothing begin now"),
        Hindrance::KeyGone | Hindrance::NotWanted => {
            let given_up = Check { at: None, ..check };
            let why = match hindrance {
                Hindrance::NotWanted => "its saga is being undone, so it is never sent again",
                _ => "another call has its key by now: it can never be sent again",
            };
            let why = why.to_owned();
            return Ok(reschedule(record, by, "given_up", Some(given_up), why, now));
        }
    };
    let later = unknown::put_off(tool, check, wait, now);
    Ok(reschedule(
        record,
        by,
        "put_off",
        Some(later),
        format!("it is not worked on now: {why}"),
        now,
    ))
}

/// The tool's configuration says by now what is done about its unknown calls.
pub(super) fn take_up(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    now: Timestamp,
) -> Result<Next, Illegal> {
    // What was given up stays so.
    let first = match (record.check, tool.unknown) {
        (Some(_), _) | (None, OnUnknown::Elsewhere) => return Err(Illegal::NotDue),
        (None, _) => {
            unknown::first_check(tool, record.attempt.id, now, None).ok_or(Illegal::NotDue)?
        }
    };
    let why = "the tool's calls are not held any more".to_owned();
    Ok(reschedule(record, by, "taken_up", Some(first), why, now))
}

/// The check of an unknown call, if it is time for it.
fn due(record: &Record, now: Timestamp) -> Result<Check, Illegal> {
    let is_due = |check: &Check| check.at.is_some_and(|at| at <= now);
    record.check.filter(is_due).ok_or(Illegal::NotDue)
}

/// Only the time changes at which it is worked on next.
fn reschedule(
    record: &Record,
    by: InstanceId,
    event: &'static str,
    check: Option<Check>,
    detail: String,
    now: Timestamp,
) -> Next {
    let (attempt, by) = (Some(record.attempt.id), gateway(by));
    let entry = Entry {
        at: now,
        event: event.into(),
        attempt,
        outcome: None,
        by,
        detail,
    };
    let record = Record {
        version: record.version + 1,
        check,
        updated_at: now,
        ..record.clone()
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

/// Who has asked a tool, when, and how long it wants to be left alone.
pub(super) struct Asked {
    pub(super) by: InstanceId,
    pub(super) at: Timestamp,
    pub(super) retry_after: Option<Duration>,
}

/// The tool was asked whether it knows the key.
pub(super) fn probed(
    tool: &Tool,
    record: &Record,
    asked: &Asked,
    finding: &Finding,
    now: Timestamp,
) -> Next {
    let occasion = |event| Occasion {
        event,
        by: gateway(asked.by),
    };
    let why = match finding {
        Finding::Found(content) => {
            let outcome = Outcome::Executed(content.clone());
            return finish(
                tool,
                record,
                occasion("probed"),
                outcome,
                "the tool knows the key".into(),
                now,
            );
        }
        Finding::NotFound if unknown::is_negative_final(tool, record, asked.at) => {
            let why = "the tool does not know the key, and nothing of it can be under way any more";
            return finish(
                tool,
                record,
                occasion("probed"),
                not_executed(why),
                why.into(),
                now,
            );
        }
        Finding::NotFound => "the tool does not know the key, which proves nothing yet".to_owned(),
        Finding::Unclear(why) => format!("the tool did not say whether it knows the key: {why}"),
    };
    let check = record.check.map(|check| {
        let earliest = asked.retry_after.map(|wait| after(now, wait));
        unknown::unless_too_late(
            tool,
            Check {
                at: check
                    .at
                    .map(|at| earliest.map_or(at, |earliest| earliest.max(at))),
                ..check
            },
        )
    });
    let has_check = |check: Option<Check>| check.is_some_and(|check| check.at.is_some());
    let (event, why) = if has_check(record.check) && !has_check(check) {
        (
            "given_up",
            format!("{why}; it is asked no more: a late answer or a person still may settle it"),
        )
    } else {
        ("probed", why)
    };
    let still = Record {
        version: record.version + 1,
        check,
        updated_at: now,
        ..record.clone()
    };
    let entry = ended(occasion(event), record, &Outcome::Unknown, why, now);
    let change = Change {
        record: still,
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

/// A person says what became of an unknown call. It cannot be said to be not executed while its
/// request may still be under way.
pub(super) fn resolve(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    resolution: &Resolution,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let why = format!("a person has settled it ({reason})");
    let outcome = match resolution {
        Resolution::Succeeded(content) => Outcome::Executed(content.clone()),
        Resolution::Failed if now < record.attempt.lease_until => return Err(Illegal::MayStillRun),
        Resolution::Failed => not_executed(&why),
    };
    let occasion = Occasion {
        event: "resolved",
        by: Actor::Token(by).to_string(),
    };
    Ok(finish(tool, record, occasion, outcome, why, now))
}

/// A system behind the tool has what the call would have made: so it was executed.
pub(super) fn reconciled(
    tool: &Tool,
    record: &Record,
    by: &str,
    content: &Content,
    now: Timestamp,
) -> Next {
    let occasion = Occasion {
        event: "reconciled",
        by: Actor::Reconciliation(by).to_string(),
    };
    let why = "the system behind the tool has its effect".to_owned();
    finish(
        tool,
        record,
        occasion,
        Outcome::Executed(content.clone()),
        why,
        now,
    )
}

/// What was unknown has turned out not to have been executed.
fn not_executed(why: &str) -> Outcome {
    let kind = FailureKind::NotExecuted;
    Outcome::NotExecuted(Failure {
        kind,
        status: None,
        body: None,
        retry_after: None,
        why: why.to_owned(),
    })
}
