//! How an unknown call is settled or given up: by probes, by sending it again, or by an operator.

use std::time::Duration;

use jiff::Timestamp;

use super::change::{Action, Call, Change, Illegal, Next, first_attempt};
use super::end::finish;
use super::event::Probed;
use crate::actor::{Actor, By};
use crate::outcome::Outcome;
use crate::record::{AttemptId, Check, Content, Failure, FailureKind, InstanceId, Record, State};
use crate::redact;
use crate::time::after;
use crate::tool::OnUnknown;
use crate::unknown::{self, CheckBlocker, Finding, Resolution};

/// Begins the due check of an unknown call.
///
/// The time of the next check is written first, so that no other gateway makes the same check.
pub(super) fn begin_check(
    call: Call<'_>,
    by: InstanceId,
    attempt: Option<AttemptId>,
) -> Result<Next, Illegal> {
    let Call {
        tool, record, now, ..
    } = call;
    let check = due(record, now)?;
    let number = check.number.saturating_add(1);
    // The due check is made even if it is the last one. The checks are given up only after it.
    let counted = Check { number, ..check };
    let later = unknown::next_check(tool, record.attempt.id, counted, now);
    let change = |event, check, detail: &str| reschedule(call, by, event, check, detail);
    let given_up = |why| Next::finish(change("given_up", Some(Check { at: None, ..check }), why));
    Ok(match (tool.unknown, attempt) {
        (OnUnknown::Elsewhere, _) => return Err(Illegal::NotDue),
        // The server works on it: no policy knows more.
        _ if record.attempt.remote_task.is_some() => {
            let detail = format!("the server is asked for its task, for time {number}");
            Next::write(change("probing", Some(later), &detail), Action::AskTask)
        }
        (OnUnknown::Hold, _) => {
            let detail = "calls of the tool are held: a late answer or an operator may settle it";
            Next::finish(change("held", None, detail))
        }
        // A probe has no effect, so a paused tool is asked, too.
        (OnUnknown::Probe, _) => {
            let detail = format!("the tool is asked whether it knows the key, for time {number}");
            Next::write(change("probing", Some(later), &detail), Action::Probe)
        }
        (OnUnknown::Retry, _) if unknown::is_late(tool, &check, call.dedup_now) => given_up(
            "it is too late to send it again: the tool may have forgotten its key; a late answer or an operator may \
             still settle it",
        ),
        (OnUnknown::Retry, _) if record.cancel_asked => given_up(
            "it is not sent again: a client has asked to cancel it; a late answer or an operator may still settle it",
        ),
        (OnUnknown::Retry, _) if lacks_approval(record) => given_up(
            "it is not sent again: it needs approval, and it is not known that it had it; a late answer or an operator \
             may still settle it",
        ),
        (OnUnknown::Retry, _) if !redact::is_whole(&record.intent.args) => {
            given_up("it cannot be sent again: not all of its arguments are stored, or readable")
        }
        (OnUnknown::Retry, None) => {
            let later = unknown::put_off(tool, check, Duration::ZERO, now);
            let detail = "it is not sent again as long as its tool is paused";
            Next::finish(change("held_back", Some(later), detail))
        }
        (OnUnknown::Retry, Some(attempt)) => {
            let again = Record {
                state: State::Running,
                attempt: first_attempt(tool, attempt, by, now),
                attempts: record.attempts.saturating_add(1),
                earlier_attempt_may_have_run: true,
                check: Some(later),
                ..call.changed()
            };
            let detail = format!(
                "the same key is sent to the tool again, for time {number}: it deduplicates"
            );
            let change = Change::new(again, "sent_again", Actor::Gateway(by), detail);
            Next::write(change.about(attempt), Action::Run)
        }
    })
}

/// Whether the call was asked about, and its record does not have the approvals that a begun run needs.
fn lacks_approval(record: &Record) -> bool {
    let proposal = record.proposal.as_deref();
    proposal.is_some_and(|proposal| proposal.approvals.len() < usize::from(proposal.needed.max(1)))
}

/// An operator has the tool asked, even if no check is planned.
///
/// A planned check stays planned. The answer is judged like that of any probe.
pub(super) fn ask_now(call: Call<'_>, by: &By) -> Result<Next, Illegal> {
    let has_task = call.record.attempt.remote_task.is_some();
    if !has_task && !unknown::may_be_asked(call.tool) {
        return Err(Illegal::NoProbe);
    }
    let reason = &by.reason;
    let (about, action) = match has_task {
        true => ("for its task", Action::AskTask),
        false => ("whether it knows the key", Action::Probe),
    };
    let detail = format!("an operator has the tool asked {about} ({reason})");
    let change = Change::new(call.changed(), "probing", &by.actor, detail);
    let change = change.about(call.record.attempt.id);
    Ok(Next::write(change, action))
}

/// Postpones a due check that is blocked, or gives up the checks.
pub(super) fn postpone(
    call: Call<'_>,
    by: InstanceId,
    blocker: CheckBlocker,
) -> Result<Change, Illegal> {
    let check = due(call.record, call.now)?;
    let given_up = |why| {
        let given_up = Check { at: None, ..check };
        Ok(reschedule(call, by, "given_up", Some(given_up), why))
    };
    let (wait, why) = match blocker {
        CheckBlocker::KeyGone => {
            return given_up("another call has its key by now: it can never be sent again");
        }
        CheckBlocker::NotWanted => {
            return given_up("its saga is being undone, so it is never sent again");
        }
        CheckBlocker::NotAsApproved => {
            return given_up(
                "it is not sent again: what would be sent now is not what was approved; a late answer or an operator \
                 may still settle it",
            );
        }
        CheckBlocker::BreakerOpen(wait) => {
            (wait, "its tool keeps failing and is left alone for a while")
        }
        CheckBlocker::Frozen => (Duration::ZERO, "its session is frozen"),
        CheckBlocker::NoRule => (
            Duration::ZERO,
            "what is stored of its request does not say by which rule it goes",
        ),
        CheckBlocker::Store => (Duration::ZERO, "the store lets nothing begin now"),
    };
    let later = Some(unknown::put_off(call.tool, check, wait, call.now));
    let why = format!("it is not worked on now: {why}");
    Ok(reschedule(call, by, "put_off", later, &why))
}

/// Plans a check for an unknown call whose tool has a policy by now.
pub(super) fn take_up(call: Call<'_>, by: InstanceId) -> Result<Change, Illegal> {
    let Call {
        tool, record, now, ..
    } = call;
    // Checks that were given up stay given up.
    if record.check.is_some() || tool.unknown == OnUnknown::Elsewhere {
        return Err(Illegal::NotDue);
    }
    let first = unknown::first_check(tool, record, now).ok_or(Illegal::NotDue)?;
    let why = "the tool's calls are not held any more";
    Ok(reschedule(call, by, "taken_up", Some(first), why))
}

/// The check of an unknown call, if it is due.
fn due(record: &Record, now: Timestamp) -> Result<Check, Illegal> {
    let is_due = |check: &Check| check.at.is_some_and(|at| at <= now);
    record.check.filter(is_due).ok_or(Illegal::NotDue)
}

/// Changes only the time of the next check.
pub(super) fn reschedule(
    call: Call<'_>,
    by: InstanceId,
    event: &'static str,
    check: Option<Check>,
    detail: &str,
) -> Change {
    let mut rescheduled = call.changed();
    rescheduled.check = check;
    let change = Change::new(rescheduled, event, Actor::Gateway(by), detail);
    change.about(call.record.attempt.id)
}

/// The tool has answered a probe.
pub(super) fn probed(call: Call<'_>, probed: &Probed) -> Change {
    let Call {
        tool, record, now, ..
    } = call;
    let settle =
        |outcome, why: &str| finish(call, "probed", Actor::Gateway(probed.by), &outcome, why);
    // The probe cannot have been sent later than now.
    let asked_at = probed.asked_at.min(now);
    let why = match &probed.finding {
        Finding::Found(content) => {
            let outcome = Outcome::Executed(content.clone());
            return settle(outcome, &probed.finding.explanation());
        }
        // While its server works on it as a task, the effect may still come.
        Finding::NotFound
            if record.attempt.remote_task.is_none()
                && unknown::is_negative_final(tool, record, asked_at, call.dedup_now) =>
        {
            let why = "the tool does not know the key, and nothing of it can be under way any more";
            return settle(not_executed(why), why);
        }
        Finding::NotFound | Finding::Unclear(_) => probed.finding.explanation(),
    };
    still_unknown(call, probed.by, probed.retry_after, why)
}

/// The tool was asked about an unknown call, and its answer settles nothing. `wait`: how long the tool asked to wait.
pub(super) fn still_unknown(
    call: Call<'_>,
    by: InstanceId,
    wait: Option<Duration>,
    why: String,
) -> Change {
    let Call {
        tool, record, now, ..
    } = call;
    let check = record.check.map(|check| {
        let not_before = wait.map(|wait| after(now, wait));
        let at = check
            .at
            .map(|at| not_before.map_or(at, |least| at.max(least)));
        unknown::unless_too_late(tool, Check { at, ..check }, call.slept())
    });
    let goes_on = |check: Option<Check>| check.is_some_and(|check| check.at.is_some());
    let (event, why) = if goes_on(record.check) && !goes_on(check) {
        let why = format!(
            "{why}; it is not asked again: a late answer or an operator may still settle it"
        );
        ("given_up", why)
    } else {
        ("probed", why)
    };
    reschedule(call, by, event, check, &why).proving(&Outcome::Unknown)
}

/// An operator settles an unknown call.
///
/// "Failed" is refused while the request may still be under way.
pub(super) fn resolve(call: Call<'_>, by: &By, resolution: &Resolution) -> Result<Change, Illegal> {
    let why = format!("an operator has settled it ({})", by.reason);
    let outcome = match resolution {
        Resolution::Succeeded(content) => Outcome::Executed(content.clone()),
        Resolution::Failed if call.may_still_run() => return Err(Illegal::MayStillRun),
        Resolution::Failed => not_executed(&why),
    };
    Ok(finish(call, "resolved", &by.actor, &outcome, &why))
}

/// A source shows the call's effect: the call was executed.
pub(super) fn reconciled(call: Call<'_>, by: &str, content: &Content) -> Change {
    let outcome = Outcome::Executed(content.clone());
    let why = "the system behind the tool has its effect";
    finish(call, "reconciled", Actor::Reconciliation(by), &outcome, why)
}

/// An unknown call was not executed after all.
fn not_executed(why: &str) -> Outcome {
    Outcome::NotExecuted(Failure::new(FailureKind::NotExecuted, why))
}
