//! Whether an anomaly still holds when a worker acts on it.

use super::anomaly::Listed;
use super::pairing::names;
use super::{Join, Kind};
use crate::core::key::Lookup;
use crate::core::record::{Content, Record, State};
use crate::core::tool::{Dedup, Tool};
use crate::core::unknown::Finding;
use crate::core::work::Blocked;

/// Whether an effect is still too much; `None`: none of its calls is known.
///
/// # Errors
/// It is not, or that cannot be said yet.
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
        // It is another effect that is the call's, whatever it was told.
        _ if call.is_adopted() => Ok(()),
        // The same key may have run again since, and have been told of this effect.
        (Kind::Orphan, State::Failed(_) | State::Compensated(_)) => Ok(()),
        (Kind::Duplicate, State::Running | State::Unknown(_)) => {
            Err(Blocked::busy(format!("its call is {state}")))
        }
        (
            Kind::Duplicate,
            State::Succeeded(_) | State::Compensating(_) | State::Compensated(_) | State::Stuck(_),
        ) => match call.state.content() {
            Some(Content::Kept(json)) if says(json, effect) => {
                Err(Blocked::for_good("its call was told of just this effect"))
            }
            Some(Content::Kept(_)) => Ok(()),
            Some(Content::Unavailable(_)) | None => {
                Err(Blocked::for_good("its call's result is not kept"))
            }
        },
        _ => Err(Blocked::for_good(format!("its call is {state} by now"))),
    }
}

/// Whether an effect without a call must be adopted before it is undone.
///
/// Its tool knows its key: asked for again, the tool would tell of an effect that is undone, and make none. So the call must
/// keep the key as one that was undone. Where several effects have the key, it is not known which of them the tool tells of.
pub fn is_bound(tool: &Tool, join: &Join, listed: &Listed) -> bool {
    tool.dedup == Dedup::Key
        && *join == Join::Key
        && (listed.kind, listed.call(), &listed.rival) == (Kind::Orphan, None, &None)
        && Lookup::of_tool_key(&listed.key).is_some()
}

/// Whether an adopted call is to be undone with its effect; `false`: it is undone.
///
/// # Errors
/// It is undone in another way, or not at all.
pub fn adopted(call: &Record) -> Result<bool, Blocked> {
    match &call.state {
        State::Compensated(_) => Ok(false),
        _ if call.is_skipped() => Err(Blocked::for_good(
            "a person has decided that its effect stands",
        )),
        State::Compensating(_) if call.compensation().is_none() => Ok(true),
        State::Compensating(_) | State::Stuck(_) => Err(Blocked::for_good(format!(
            "it was adopted as call {}, and that is being undone",
            call.intent.call_id
        ))),
        _ => Err(Blocked::busy("that it is to be undone is not written yet")),
    }
}

/// Whether an effect is still without a call. `holder`: the call that has its key now. `is_bound`: the effect is adopted to
/// be undone.
///
/// # Errors
/// It has one: it was adopted, or its key has run since.
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

/// Whether a call that is not unknown any more agrees with the source.
///
/// Whatever else it is by now, the source has no more to say.
///
/// # Errors
/// It contradicts the source, or may yet.
pub fn unsettled(call: Option<&Record>) -> Result<(), Blocked> {
    match call.map(|call| &call.state) {
        Some(State::Running) => Err(Blocked::busy("the call runs again")),
        Some(State::Failed(_)) => Err(Blocked::for_good(
            "resolved as failed, but the source has it",
        )),
        _ => Ok(()),
    }
}

/// Whether a call's effect is still missing, after a probe by key.
///
/// # Errors
/// It is not, or the tool does not say.
pub fn missing(finding: &Finding) -> Result<(), Blocked> {
    match finding {
        Finding::NotFound => Ok(()),
        Finding::Found(_) => Err(Blocked::for_good(
            "the tool has it: the source is not whole",
        )),
        Finding::Unclear(why) => Err(Blocked::failed(format!(
            "the tool does not say whether it has it: {why}"
        ))),
    }
}

/// Whether a call may be undone because of an anomaly.
///
/// # Errors
/// A person has decided on it, or it is not known how it ends.
pub fn call(call: &Record) -> Result<(), Blocked> {
    match call.state {
        _ if call.is_skipped() => Err(Blocked::for_good(
            "a person has decided that its effect stands",
        )),
        State::Running | State::Unknown(_) => {
            Err(Blocked::busy("it is not known how the call ends"))
        }
        _ => Ok(()),
    }
}

fn says(result: &[u8], effect: &str) -> bool {
    serde_json::from_slice(result).is_ok_and(|result| names(&result, effect))
}
