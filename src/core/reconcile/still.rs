//! Whether what was found still holds when it is acted on: it was looked at a while ago.

use super::Kind;
use super::pairing::names;
use crate::core::record::Content;
use crate::core::record::{Record, State};
use crate::core::unknown::Finding;

/// What a second look shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Still {
    Holds,
    /// That will be seen when the call has ended.
    NotYet(String),
    /// Nothing is done about it any more.
    Never(String),
}

/// Whether an effect is still too much, now that its call is as it is; `None`: no call of it is known.
pub fn surplus(kind: Kind, call: Option<&Record>, effect: &str) -> Still {
    let Some(call) = call else {
        return match kind {
            Kind::Duplicate => Still::Never("its call is gone".into()),
            _ => Still::Holds,
        };
    };
    let state = call.state.as_str();
    match (kind, &call.state) {
        // The same key may have run again since, and have been told of this effect.
        (Kind::Orphan, State::Failed(_) | State::Compensated(_)) => Still::Holds,
        (Kind::Duplicate, State::Running | State::Unknown(_)) => {
            Still::NotYet(format!("its call is {state}"))
        }
        (
            Kind::Duplicate,
            State::Succeeded(_) | State::Compensating(_) | State::Compensated(_) | State::Stuck(_),
        ) => match call.state.content() {
            Some(Content::Kept(json)) if says(json, effect) => {
                Still::Never("its call was told of just this effect".into())
            }
            Some(Content::Kept(_)) => Still::Holds,
            Some(Content::Unavailable(_)) | None => {
                Still::Never("its call's result is not kept".into())
            }
        },
        _ => Still::Never(format!("its call is {state} by now")),
    }
}

/// Whether a call that was unknown is to be settled, now that it is not unknown; whatever else it is by now, the
/// source has no more to say.
pub fn unsettled(call: Option<&Record>) -> Still {
    match call.map(|call| &call.state) {
        Some(State::Running) => Still::NotYet("the call runs again".into()),
        Some(State::Failed(_)) => Still::Never("resolved as failed, but the source has it".into()),
        _ => Still::Holds,
    }
}

/// Whether the effect of a call is still missing, now that its tool was asked for it by key.
pub fn missing(finding: &Finding) -> Still {
    match finding {
        Finding::NotFound => Still::Holds,
        Finding::Found(_) => Still::Never("the tool has it: the source is not whole".into()),
        Finding::Unclear(why) => {
            Still::NotYet(format!("the tool does not say whether it has it: {why}"))
        }
    }
}

fn says(result: &[u8], effect: &str) -> bool {
    serde_json::from_slice(result).is_ok_and(|result| names(&result, effect))
}
