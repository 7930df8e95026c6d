//! The conditions of a claim for scripts, and the values that follow. Must not decide anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use serde::Serialize;

use super::answer::{Answer, unreadable};
use super::keys;
use super::memory::TOKEN_LIMIT_US;
use super::server::Server;
use crate::core::call::Change;
use crate::core::record::{CallId, Intent};
use crate::core::session::{Denied, LINE_PLACE, Line, Lock, SessionId, Token};
use crate::store::Error;

/// The values of a claim whose conditions hold; empty texts for none.
pub(super) struct Entered {
    pub(super) token: String,
    pub(super) similar_to: String,
}

impl Entered {
    pub(super) fn read(&self) -> Result<(Option<u64>, Option<CallId>), Error> {
        let token = Some(&self.token)
            .filter(|token| !token.is_empty())
            .map(|token| token.parse());
        Ok((
            token.transpose().map_err(unreadable)?,
            keys::call_id(self.similar_to.as_bytes()),
        ))
    }
}

/// The conditions as `session.lua` reads them. Absent ones are not compared.
#[derive(Serialize)]
struct Conditions {
    call: String,
    token: String,
    floor: String,
    /// No clock of a Redis counts beyond this.
    latest: String,
    explained: u64,
    lock: bool,
    lease: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line_us: Option<u64>,
    line_length: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<BudgetCondition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar: Option<SimilarCondition>,
}

#[derive(Serialize)]
struct BudgetCondition {
    max: u32,
    window_us: u64,
}

#[derive(Serialize)]
struct SimilarCondition {
    window_us: u64,
    refuses: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<String>,
}

/// Makes the conditions of calls.
#[derive(Clone)]
pub(super) struct Admissions {
    pub(super) server: Arc<Server>,
}

impl Admissions {
    /// The conditions of a change for a script; empty if there are none.
    pub(super) fn asked(&self, change: &Change) -> Result<String, Error> {
        let Some(admission) = &change.admission else {
            return Ok(String::new());
        };
        let longest = match admission.lock {
            Some(Line::Waits { longest }) => Some(longest),
            Some(Line::Leaves) | None => None,
        };
        let asked = Conditions {
            call: keys::id(change.record.intent.call_id),
            token: match admission.token {
                Token::Next => "next".to_owned(),
                Token::This(token) => token.to_string(),
            },
            floor: self.floor()?.to_string(),
            latest: (self.now_us() + TOKEN_LIMIT_US).to_string(),
            explained: self.server.accepted_token.load(Ordering::SeqCst),
            lock: admission.lock.is_some(),
            lease: change
                .record
                .attempt
                .lease_until
                .as_microsecond()
                .to_string(),
            line_us: longest.map(|_| micros(LINE_PLACE)),
            line_length: longest.unwrap_or(0),
            budget: admission.budget.map(|spending| BudgetCondition {
                max: spending.max,
                window_us: micros(spending.window),
            }),
            similar: admission.similar.map(|likeness| SimilarCondition {
                window_us: micros(likeness.window),
                refuses: likeness.refuses,
                confirmed: likeness.confirmed.map(keys::id),
            }),
        };
        serde_json::to_string(&asked).map_err(|error| Error::Refused(error.to_string()))
    }

    fn now_us(&self) -> u64 {
        self.server.now().as_microsecond().unsigned_abs()
    }

    /// The lowest token: the clock, and every token that this gateway has seen.
    fn floor(&self) -> Result<u64, Error> {
        let now = self.now_us();
        let floor = now.max(self.server.memory.token() + 1);
        if floor.saturating_sub(now) > TOKEN_LIMIT_US {
            return Err(Error::Refused(
                "fencing tokens are more than a day ahead of the clock".into(),
            ));
        }
        Ok(floor)
    }
}

/// Reads the denial behind a script's word "denied".
pub(super) fn denied(answer: &Answer) -> Result<Denied, Error> {
    let text = |at| answer.text(at).unwrap_or_default();
    Ok(match text(0).as_str() {
        "frozen" => Denied::Frozen,
        "stale" => Denied::Stale,
        "not_given" => Denied::NotGiven,
        "spent" => Denied::Spent {
            frees_at: time(&text(1))?,
        },
        "similar" => Denied::Similar {
            call_id: identity(&text(1))?,
        },
        "busy" => {
            let behind = Some(text(1)).filter(|id| !id.is_empty());
            let lock = lock([&text(2), &text(3), &text(4), &text(5)])?;
            Denied::Busy {
                lock,
                behind: behind.map(|id| identity(&id)).transpose()?,
            }
        }
        other => return Err(unreadable(format!("{other:?} is no word for a denial"))),
    })
}

/// Call, token, lease and free time of a lock; empty texts for none.
pub(super) fn lock([call_id, token, lease, free_from]: [&str; 4]) -> Result<Option<Lock>, Error> {
    if call_id.is_empty() {
        return Ok(None);
    }
    Ok(Some(Lock {
        call_id: identity(call_id)?,
        token: token.parse().map_err(unreadable)?,
        lease_until: time(lease)?,
        free_from: Some(free_from)
            .filter(|text| !text.is_empty())
            .map(time)
            .transpose()?,
    }))
}

pub(super) fn identity(text: &str) -> Result<CallId, Error> {
    keys::call_id(text.as_bytes()).ok_or_else(|| unreadable(format!("{text:?} is no id of a call")))
}

fn time(microseconds: &str) -> Result<Timestamp, Error> {
    let microseconds: f64 = microseconds.parse().map_err(unreadable)?;
    Timestamp::from_microsecond(microseconds as i64).map_err(unreadable)
}

/// When the lock is free, 'now' or ''; and '1' if the near-duplicate group is left.
pub(super) fn released(change: &Change) -> [String; 2] {
    let from = change.release.lock_from.map(|from| {
        if from <= change.record.updated_at {
            "now".to_owned()
        } else {
            from.as_microsecond().to_string()
        }
    });
    let similar = change.release.similar.map(|_| "1".to_owned());
    [from.unwrap_or_default(), similar.unwrap_or_default()]
}

/// The keys of a change's session, budget and near-duplicate group, if it uses one of them.
///
/// Unused ones are named, too, and never touched.
pub(super) fn rooms(change: &Change) -> Option<[String; 5]> {
    let (admission, release) = (change.admission.as_ref(), &change.release);
    if admission.is_none() && release.lock_from.is_none() && release.similar.is_none() {
        return None;
    }
    let intent = &change.record.intent;
    let [session, line, alive] = keys::session(&SessionId::of(intent));
    let budget = admission.and_then(|admission| admission.budget.map(|spending| spending.group));
    let similar = admission.and_then(|admission| admission.similar.map(|likeness| likeness.group));
    let room = |room: Option<_>| {
        room.map_or_else(|| session.clone(), |room| keys::room(&intent.tenant, room))
    };
    let (budget, similar) = (room(budget), room(similar.or(release.similar)));
    Some([session, line, alive, budget, similar])
}

/// The keys of a call for a write about its session alone.
pub(super) fn rooms_of(intent: &Intent) -> [String; 5] {
    let [session, line, alive] = keys::session(&SessionId::of(intent));
    let none = session.clone();
    [session, line, alive, none.clone(), none]
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
