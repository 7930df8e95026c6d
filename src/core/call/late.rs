//! A proof of execution that comes after the call was settled as not executed.

use jiff::Timestamp;

use super::{Action, Change, Next, Occasion, Takes, ended, gateway};
use crate::core::outcome::{self, Evidence, Outcome, Sent};
use crate::core::record::{AttemptId, Record, State};
use crate::core::session::Release;
use crate::core::tool::Dedup;
use crate::core::tool::{Effect, Tool};

/// Notes that an attempt was executed which counts as not executed. `None`: it contradicts nothing.
///
/// The state stays as it is: callers were told, and the key may have run again. A person has to know.
pub(super) fn contradict(
    tool: &Tool,
    record: &Record,
    attempt: AttemptId,
    evidence: &Evidence,
    now: Timestamp,
) -> Option<Next> {
    let is_newest = record.attempt.id == attempt;
    let was_never_run = match &record.state {
        State::Failed(_) => true,
        State::Compensated(None) => record
            .undo
            .as_ref()
            .is_none_or(|undo| undo.compensation.is_none()),
        // It ran again because the earlier attempt counted as not executed.
        State::Running
        | State::Succeeded(_)
        | State::Compensating(_)
        | State::Compensated(Some(_))
        | State::Stuck(_) => !is_newest && !record.doubted && tool.dedup != Dedup::Key,
        State::Unknown(_) => false,
    };
    let (outcome, why) = outcome::classify(
        tool,
        evidence,
        Sent {
            doubted: !is_newest,
            fencing: record.fencing,
        },
    );
    if tool.effect == Effect::Read || !was_never_run || !matches!(outcome, Outcome::Executed(_)) {
        return None;
    }
    let by = if is_newest {
        gateway(record.attempt.owner)
    } else {
        "the gateway of an earlier attempt".to_owned()
    };
    let detail = format!(
        "{why}, although the attempt counts as not executed: the call stays {}, and its key may run again or \
         has done so",
        record.state.as_str()
    );
    let noted = Record {
        version: record.version + 1,
        updated_at: now,
        ..record.clone()
    };
    let mut entry = ended(
        Occasion {
            event: "late_proof",
            by,
        },
        record,
        &outcome,
        detail,
        now,
    );
    entry.attempt = Some(attempt);
    let change = Change {
        record: noted,
        entry,
        admission: None,
        release: Release::default(),
        takes: Takes::default(),
    };
    Some(Next {
        change: Some(change),
        action: Action::Alarm,
    })
}
