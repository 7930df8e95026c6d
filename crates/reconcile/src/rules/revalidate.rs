//! Whether an anomaly still holds when a worker acts on it.

use jiff::Timestamp;

use super::anomaly::Listed;
use super::pairing::names;
use super::{Join, Kind};
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{Content, Record, State};
use oncegate_rules::tool::{Dedup, Tool};
use oncegate_rules::unknown::{Finding, shows_absence};
use oncegate_rules::work::Blocked;

/// Checks that an effect is still one too many. `call`: `None` if no call of it is known.
///
/// # Errors
/// It is not, or this cannot be decided yet.
pub fn surplus(kind: Kind, call: Option<&Record>, effect: &str) -> Result<(), Blocked> {
    let Some(call) = call else {
        return match kind {
            Kind::Duplicate => Err(Blocked::for_good("its call is gone")),
            _ => Ok(()),
        };
    };
    let state = call.state.as_str();
    match (kind, &call.state) {
        _ if call.is_adopted_from(effect) => Err(Blocked::for_good(
            "its call was adopted from just this effect",
        )),
        // The call was adopted from another effect, so this one is not its effect.
        _ if call.is_adopted() => Ok(()),
        // In any other state the key may have run again since, and the call may have been told of this effect.
        (Kind::Orphan, State::Failed(_) | State::Compensated(_)) => Ok(()),
        (Kind::Duplicate, State::Running | State::Unknown(_)) => {
            Err(Blocked::busy(format!("its call is {state}")))
        }
        (
            Kind::Duplicate,
            State::Succeeded(_) | State::Compensating(_) | State::Compensated(_) | State::Stuck(_),
        ) => match call.state.content() {
            Some(Content::Stored(json)) if result_names(json, effect) => {
                Err(Blocked::for_good("its call's answer was just this effect"))
            }
            Some(Content::Stored(_)) => Ok(()),
            Some(Content::Unavailable(_)) | None => {
                Err(Blocked::for_good("its call's result is not stored"))
            }
        },
        _ => Err(Blocked::for_good(format!("its call is {state} by now"))),
    }
}

/// Whether an effect without a call must be adopted before it is undone.
///
/// Its tool deduplicates by the key: after the undo it would answer a repetition with the undone effect, and make none. So
/// an undone call must hold the key. Where several effects have the key, it is not known with which of them the tool answers.
pub fn is_bound(tool: &Tool, join: &Join, listed: &Listed) -> bool {
    tool.dedup == Dedup::Key
        && *join == Join::Key
        && (listed.kind, listed.call(), &listed.rival) == (Kind::Orphan, None, &None)
        && Lookup::of_tool_key(&listed.key).is_some()
}

/// Whether an adopted call is still to be undone with its effect; `false`: it is undone.
///
/// # Errors
/// It is undone in another way, or not at all.
pub fn adopted(call: &Record) -> Result<bool, Blocked> {
    match &call.state {
        State::Compensated(_) => Ok(false),
        _ if call.is_skipped() => Err(Blocked::for_good(
            "an operator has decided that its effect stands",
        )),
        State::Compensating(_) if call.compensation().is_none() => Ok(true),
        State::Compensating(_) | State::Stuck(_) => Err(Blocked::for_good(format!(
            "it was adopted as call {}, and that is being undone",
            call.intent.call_id
        ))),
        _ => Err(Blocked::busy("that it is to be undone is not written yet")),
    }
}

/// Checks that an effect still has no call. `holder`: the call that has its key now.
///
/// `is_bound`: the effect is adopted before it is undone.
///
/// # Errors
/// It has a call: it was adopted, or its key has run since.
pub fn without_call(holder: Option<&Record>, effect: &str, is_bound: bool) -> Result<(), Blocked> {
    match holder {
        None => Ok(()),
        Some(call) if is_bound && call.is_adopted_from(effect) => Ok(()),
        Some(call) => Err(Blocked::for_good(format!(
            "call {} has its key by now: run the reconciliation again",
            call.intent.call_id
        ))),
    }
}

/// Checks that a call that is not unknown any more agrees with the source.
///
/// # Errors
/// It contradicts the source, or may still do so.
pub fn unsettled(call: Option<&Record>) -> Result<(), Blocked> {
    match call.map(|call| &call.state) {
        Some(State::Running) => Err(Blocked::busy("the call runs again")),
        Some(State::Failed(_)) => Err(Blocked::for_good(
            "resolved as failed, but the source has it",
        )),
        _ => Ok(()),
    }
}

/// Checks by a probe that a call's effect is still missing.
///
/// # Errors
/// It is not, or the tool gives no clear answer.
pub fn missing(
    tool: &Tool,
    call: &Record,
    finding: &Finding,
    asked_at: Timestamp,
) -> Result<(), Blocked> {
    match finding {
        Finding::NotFound if shows_absence(tool, call, asked_at) => Ok(()),
        Finding::NotFound if tool.negative_final_after.is_some() => Err(Blocked::busy(
            "the probe is a search, and the time after which it shows every effect is not over",
        )),
        Finding::NotFound => Err(Blocked::for_good(
            "the probe is a search, and without negative_final_after it proves nothing",
        )),
        Finding::Found(_) => Err(Blocked::for_good(
            "the tool has it: the source is not whole",
        )),
        Finding::Unclear(why) => Err(Blocked::failed(format!(
            "the tool does not say whether it has it: {why}"
        ))),
    }
}

/// Checks that a call may be undone because of an anomaly.
///
/// # Errors
/// An operator has decided that it stands, or its outcome is still open.
pub fn call(call: &Record) -> Result<(), Blocked> {
    match call.state {
        _ if call.is_skipped() => Err(Blocked::for_good(
            "an operator has decided that its effect stands",
        )),
        State::Running | State::Unknown(_) => {
            Err(Blocked::busy("it is not known how the call ends"))
        }
        _ => Ok(()),
    }
}

fn result_names(result: &[u8], effect: &str) -> bool {
    serde_json::from_slice(result).is_ok_and(|result| names(&result, effect))
}
