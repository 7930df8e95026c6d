//! The conditions of a claim for the servers of shared stores: as JSON, which Redis reads. Must not decide anything.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::search::group_key;
use crate::watermarks::TOKEN_LIMIT_US;
use crate::{Error, Result};
use oncegate_rules::call::Change;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{LINE_ENTRY, Line, Token};

/// Absent ones are not compared. Numbers that a double does not hold are texts.
#[derive(Serialize)]
struct Conditions {
    /// The token that the caller has brought; `next`; or `none`: the call keeps the token that it has.
    token: String,
    /// The lowest next token.
    floor: String,
    /// A later clock of the server is a fault, and does not count.
    latest: String,
    /// The highest token before the last accepted loss.
    explained: u64,
    lock: bool,
    lease: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line_us: Option<u64>,
    line_length: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar: Option<Similar>,
}

#[derive(Serialize)]
struct Budget {
    #[serde(with = "uuid::serde::simple")]
    group: Uuid,
    max: u32,
    window_us: u64,
}

#[derive(Serialize)]
struct Similar {
    #[serde(with = "uuid::serde::simple")]
    group: Uuid,
    window_us: u64,
    refuses: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<String>,
}

/// The conditions of a change; `None` if it has none.
///
/// `now_us`: the store's time. `floor`: no next token is below it. `accepted`: the highest token before the last accepted loss.
/// `id`: an id of a call as the server has it.
///
/// # Errors
/// A clock was wrong: tokens are further ahead of it than its setting explains.
pub fn json(
    change: &Change,
    now_us: u64,
    floor: u64,
    accepted: u64,
    id: impl Fn(CallId) -> String,
) -> Result<Option<String>> {
    let Some(admission) = &change.admission else {
        return Ok(None);
    };
    let latest = latest_clock(now_us, floor)?;
    let (line_us, line_length) = match admission.lock {
        Some(Line::Waits { longest }) => (Some(micros(LINE_ENTRY)), longest),
        Some(Line::Leaves) | None => (None, 0),
    };
    let lease_until = change.record.attempt.lease_until;
    let conditions = Conditions {
        token: match admission.token {
            Token::Next => "next".to_owned(),
            Token::Undrawn => "none".to_owned(),
            Token::This(token) => token.to_string(),
        },
        floor: floor.to_string(),
        latest: latest.to_string(),
        explained: accepted,
        lock: admission.lock.is_some(),
        lease: lease_until.as_microsecond().to_string(),
        line_us,
        line_length,
        budget: admission.budget.map(|rule| Budget {
            group: Uuid::from_bytes(group_key(rule.group)),
            max: rule.max,
            window_us: micros(rule.window),
        }),
        similar: admission.similar.map(|rule| Similar {
            group: Uuid::from_bytes(group_key(rule.group)),
            window_us: micros(rule.window),
            refuses: rule.refuses,
            confirmed: rule.confirmed.map(id),
        }),
    };
    let json = serde_json::to_string(&conditions);
    json.map(Some)
        .map_err(|error| Error::Refused(error.to_string()))
}

/// The latest clock of the server, in microseconds, from which a token may come. A later one is a fault.
///
/// # Errors
/// A clock was wrong: tokens are further ahead of it than its setting explains.
pub fn latest_clock(now_us: u64, floor: u64) -> Result<u64> {
    if floor.saturating_sub(now_us) > TOKEN_LIMIT_US {
        let why = "fencing tokens are more than a day ahead of the clock";
        return Err(Error::Refused(why.into()));
    }
    Ok(now_us + TOKEN_LIMIT_US)
}

/// A time in microseconds.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
