//! How an unknown call comes to rest: it is probed, sent again, or settled by a person.

use std::time::Duration;

use jiff::Timestamp;

use super::change::{Action, Change, Illegal, Next};
use super::end::finish;
use crate::core::actor::Actor;
use crate::core::outcome::Outcome;
use crate::core::record::{
    Attempt, AttemptId, Check, Content, Failure, FailureKind, InstanceId, Record, State,
};
use crate::core::redact;
use crate::core::time::after;
use crate::core::tool::{OnUnknown, Tool};
use crate::core::unknown::{self, CheckBlocker, Finding, Resolution};

/// Begins the due check of an unknown call.
///
/// Writing the next time first keeps other gateways from the same check.
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
    let counted = Check { number, ..check };
    let later = unknown::next_check(tool, record.attempt.id, counted, now);
    let change = |event, check, detail: &str| reschedule(record, by, event, check, detail, now);
    let given_up = |why| Next::finish(change("given_up", Some(Check { at: None, ..check }), why));
    Ok(match (tool.unknown, attempt) {
        (OnUnknown::Elsewhere, _) => return Err(Illegal::NotDue),
        (OnUnknown::Hold, _) => {
            let detail = "calls of the tool are held: a late answer or a person may settle it";
            Next::finish(change("held", None, detail))
        }
        // Being asked has no effect, so a paused tool is asked, too.
        (OnUnknown::Probe { .. }, _) => {
            let detail = format!("the tool is asked whether it knows the key, for time {number}");
            Next::write(change("probing", Some(later), &detail), Action::Probe)
        }
        (OnUnknown::Retry, _) if unknown::is_late(tool, &check, now) => given_up(
            "it is too late to send it again: the tool may have forgotten its key; a late answer or a person may \
             still settle it",
        ),
        (OnUnknown::Retry, _) if !redact::is_whole(&record.intent.args) => {
            given_up("it cannot be sent again: not all of its arguments are kept, or readable")
        }
        (OnUnknown::Retry, None) => {
            let later = unknown::put_off(tool, check, Duration::ZERO, now);
            let detail = "it is not sent again as long as its tool is paused";
            Next::finish(change("held_back", Some(later), detail))
        }
        (OnUnknown::Retry, Some(attempt)) => {
            let again = Record {
                state: State::Running,
                attempt: Attempt {
                    id: attempt,
                    owner: by,
                    number: 1,
                    run_started_at: now,
                    lease_until: after(now, tool.lease()),
                },
                attempts: record.attempts.saturating_add(1),
                earlier_attempt_may_have_run: true,
                check: Some(later),
                ..record.changed(now)
            };
            let detail = format!(
                "the same key is sent to the tool again, for time {number}: it deduplicates"
            );
            let change = Change::new(again, "sent_again", Actor::Gateway(by), detail);
            Next::write(change.about(attempt), Action::Run)
        }
    })
}

/// Has the tool asked because a person wants it, also when no check is planned any more.
///
/// The planned check stays. What the answer proves is decided as for any probe.
pub(super) fn ask_now(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    now: Timestamp,
) -> Result<Next, Illegal> {
    if !unknown::may_be_asked(tool) {
        return Err(Illegal::NoProbe);
    }
    let detail = format!("a person has the tool asked whether it knows the key ({reason})");
    let asked = record.changed(now);
    let change = Change::new(asked, "probing", Actor::Token(by), detail);
    Ok(Next::write(change.about(record.attempt.id), Action::Probe))
}

/// Postpones a due check that is blocked, or gives it up for ever.
pub(super) fn postpone(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    blocker: CheckBlocker,
    now: Timestamp,
) -> Result<Change, Illegal> {
    let check = due(record, now)?;
    let given_up = |why| {
        let given_up = Check { at: None, ..check };
        Ok(reschedule(record, by, "given_up", Some(given_up), why, now))
    };
    let (wait, why) = match blocker {
        CheckBlocker::KeyGone => {
            return given_up("another call has its key by now: it can never be sent again");
        }
        CheckBlocker::NotWanted => {
            return given_up("its saga is being undone, so it is never sent again");
        }
        CheckBlocker::BreakerOpen(wait) => {
            (wait, "its tool keeps failing and is left alone for a while")
        }
        CheckBlocker::Frozen => (Duration::ZERO, "its session is frozen"),
        CheckBlocker::Unplaced => (
            Duration::ZERO,
            "what is kept of its request does not say by which rule it goes",
        ),
        CheckBlocker::Store => (Duration::ZERO, "the store lets nothing begin now"),
    };
    let later = Some(unknown::put_off(tool, check, wait, now));
    let why = format!("it is not worked on now: {why}");
    Ok(reschedule(record, by, "put_off", later, &why, now))
}

/// Plans a check for an unknown call whose tool has a policy by now.
pub(super) fn take_up(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    now: Timestamp,
) -> Result<Change, Illegal> {
    // What was given up stays so.
    if record.check.is_some() || tool.unknown == OnUnknown::Elsewhere {
        return Err(Illegal::NotDue);
    }
    let first = unknown::first_check(tool, record, now).ok_or(Illegal::NotDue)?;
    let why = "the tool's calls are not held any more";
    Ok(reschedule(record, by, "taken_up", Some(first), why, now))
}

/// The check of an unknown call, if it is due.
fn due(record: &Record, now: Timestamp) -> Result<Check, Illegal> {
    let is_due = |check: &Check| check.at.is_some_and(|at| at <= now);
    record.check.filter(is_due).ok_or(Illegal::NotDue)
}

/// Changes only the time of the next check.
fn reschedule(
    record: &Record,
    by: InstanceId,
    event: &'static str,
    check: Option<Check>,
    detail: &str,
    now: Timestamp,
) -> Change {
    let rescheduled = Record {
        check,
        ..record.changed(now)
    };
    Change::new(rescheduled, event, Actor::Gateway(by), detail).about(record.attempt.id)
}

/// A probe has an answer.
pub(super) fn probed(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    asked_at: Timestamp,
    finding: &Finding,
    retry_after: Option<Duration>,
    now: Timestamp,
) -> Change {
    let settle = |outcome, why: &str| {
        finish(
            tool,
            record,
            "probed",
            Actor::Gateway(by),
            &outcome,
            why,
            now,
        )
    };
    let why = match finding {
        Finding::Found(content) => {
            return settle(Outcome::Executed(content.clone()), &finding.told());
        }
        Finding::NotFound if unknown::is_negative_final(tool, record, asked_at) => {
            let why = "the tool does not know the key, and nothing of it can be under way any more";
            return settle(not_executed(why), why);
        }
        Finding::NotFound | Finding::Unclear(_) => finding.told(),
    };
    let check = record.check.map(|check| {
        let at = check
            .at
            .map(|at| retry_after.map_or(at, |wait| at.max(after(now, wait))));
        unknown::unless_too_late(tool, Check { at, ..check })
    });
    let goes_on = |check: Option<Check>| check.is_some_and(|check| check.at.is_some());
    let (event, why) = if goes_on(record.check) && !goes_on(check) {
        let why =
            format!("{why}; it is asked no more: a late answer or a person still may settle it");
        ("given_up", why)
    } else {
        ("probed", why)
    };
    reschedule(record, by, event, check, &why, now).proving(&Outcome::Unknown)
}

/// A person settles an unknown call.
///
/// "Failed" is refused while the request may still be under way.
pub(super) fn resolve(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    resolution: &Resolution,
    now: Timestamp,
) -> Result<Change, Illegal> {
    let why = format!("a person has settled it ({reason})");
    let outcome = match resolution {
        Resolution::Succeeded(content) => Outcome::Executed(content.clone()),
        Resolution::Failed if now < record.attempt.lease_until => return Err(Illegal::MayStillRun),
        Resolution::Failed => not_executed(&why),
    };
    Ok(finish(
        tool,
        record,
        "resolved",
        Actor::Token(by),
        &outcome,
        &why,
        now,
    ))
}

/// A source shows the call's effect: the call was executed.
pub(super) fn reconciled(
    tool: &Tool,
    record: &Record,
    by: &str,
    content: &Content,
    now: Timestamp,
) -> Change {
    let (by, outcome) = (
        Actor::Reconciliation(by),
        Outcome::Executed(content.clone()),
    );
    let why = "the system behind the tool has its effect";
    finish(tool, record, "reconciled", by, &outcome, why, now)
}

/// An unknown call turned out not to have been executed.
fn not_executed(why: &str) -> Outcome {
    Outcome::NotExecuted(Failure::new(FailureKind::NotExecuted, why))
}
