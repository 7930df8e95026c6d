//! How an unknown call comes to rest: it is probed, sent again, or settled by a person.

use jiff::Timestamp;

use super::end::finish;
use super::{Action, Change, Illegal, Next, Occasion, after, ended, gateway};
use crate::core::outcome::{Failure, FailureKind, Outcome};
use crate::core::record::{Attempt, AttemptId, Entry, InstanceId, Record, State};
use crate::core::session::Release;
use crate::core::tool::Tool;
use crate::core::unknown::{self, Finding, Resolution};

/// It is time to work on an unknown call. Writing that down is also what keeps others from doing it.
pub(super) fn work_on(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    attempt: Option<AttemptId>,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let check = record.check.filter(|check| check.at <= now).ok_or(Illegal::NotDue)?;
    let number = check.number.saturating_add(1);
    let later = unknown::next_check(tool, unknown::Check { number, ..check }, now);
    let worked_on = Record { version: record.version + 1, check: later, updated_at: now, ..record.clone() };
    let (event, attempt, detail, worked_on, action) = match (tool.unknown, later, attempt) {
        (unknown::Policy::Hold, ..) | (_, None, _) => {
            let detail = "nothing settled it in time; a late answer or a person still may".to_owned();
            let held = Record { check: None, ..worked_on };
            ("given_up", record.attempt.id, detail, held, Action::Finish)
        }
        // Being asked has no effect, so a paused tool is asked, too.
        (unknown::Policy::Probe { .. }, Some(_), _) => {
            let detail = format!("the tool is asked whether it knows the key, for time {number}");
            ("probing", record.attempt.id, detail, worked_on, Action::Probe)
        }
        (unknown::Policy::Retry, Some(_), None) => {
            let detail = "it is not sent again as long as its tool is paused".to_owned();
            ("held_back", record.attempt.id, detail, worked_on, Action::Finish)
        }
        (unknown::Policy::Retry, Some(_), Some(attempt)) => {
            let detail =
                format!("the same key is sent to the tool again, for time {number}: it deduplicates");
            let lease_until = after(now, tool.lease());
            let again = Record {
                state: State::Running,
                attempt: Attempt { id: attempt, owner: by, number: 1, run_started_at: now, lease_until },
                attempts: record.attempts.saturating_add(1),
                doubted: true,
                ..worked_on
            };
            ("sent_again", attempt, detail, again, Action::Run)
        }
    };
    let (by, event) = (gateway(by), event.into());
    let entry = Entry { at: now, event, attempt: Some(attempt), outcome: None, by, detail };
    let change = Change { record: worked_on, entry, terms: None, release: Release::default() };
    Ok(Next { change: Some(change), action })
}

/// The tool was asked whether it knows the key.
pub(super) fn probed(
    tool: &Tool,
    record: &Record,
    by: InstanceId,
    finding: &Finding,
    now: Timestamp,
) -> Next {
    let occasion = Occasion { event: "probed", by: gateway(by) };
    let why = match finding {
        Finding::Found(content) => {
            let outcome = Outcome::Executed(content.clone());
            return finish(tool, record, occasion, outcome, "the tool knows the key".into(), now);
        }
        Finding::NotFound if unknown::is_negative_final(tool, record, now) => {
            let why = "the tool does not know the key, and nothing of it can be under way any more";
            return finish(tool, record, occasion, not_executed(why), why.into(), now);
        }
        Finding::NotFound => "the tool does not know the key, which proves nothing yet".to_owned(),
        Finding::Unclear(why) => format!("the tool did not say whether it knows the key: {why}"),
    };
    let still = Record { version: record.version + 1, updated_at: now, ..record.clone() };
    let entry = ended(occasion, record, &Outcome::Unknown, why, now);
    let change = Change { record: still, entry, terms: None, release: Release::default() };
    Next { change: Some(change), action: Action::Finish }
}

/// A person says what became of an unknown call. That it was not executed nobody can know while its
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
    let occasion = Occasion { event: "resolved", by: format!("token {by}") };
    Ok(finish(tool, record, occasion, outcome, why, now))
}

/// What was unknown has turned out not to have been executed.
fn not_executed(why: &str) -> Outcome {
    let kind = FailureKind::NotExecuted;
    Outcome::NotExecuted(Failure { kind, status: None, body: None, retry_after: None, why: why.to_owned() })
}
