//! The conditions of a claim as scripts read them, and the denials of scripts. Must not decide anything.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use serde::Serialize;

use super::answer::{Answer, unreadable};
use super::keys::{self, ConditionKeys};
use super::memory::TOKEN_LIMIT_US;
use super::record;
use super::server::Server;
use oncegate_rules::call::Change;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{Denied, LINE_PLACE, Line, Lock, Token};
use oncegate_store::{Error, Result};

/// The conditions as `session.lua` reads them. Absent ones are not compared.
#[derive(Serialize)]
struct Conditions {
    token: String,
    floor: String,
    /// A later clock of Redis is a fault, and does not count.
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

impl Server {
    /// The conditions of a change as JSON; empty if it has none.
    pub(super) fn conditions(&self, change: &Change) -> Result<String> {
        let Some(admission) = &change.admission else {
            return Ok(String::new());
        };
        let (line_us, line_length) = match admission.lock {
            Some(Line::Waits { longest }) => (Some(micros(LINE_PLACE)), longest),
            Some(Line::Leaves) | None => (None, 0),
        };
        let lease_until = change.record.attempt.lease_until;
        let now = self.now().as_microsecond().unsigned_abs();
        // Above the clock, and every token that this gateway has seen.
        let floor = now.max(self.memory.token() + 1);
        if floor.saturating_sub(now) > TOKEN_LIMIT_US {
            let why = "fencing tokens are more than a day ahead of the clock";
            return Err(Error::Refused(why.into()));
        }
        let conditions = Conditions {
            token: match admission.token {
                Token::Next => "next".to_owned(),
                Token::This(token) => token.to_string(),
            },
            floor: floor.to_string(),
            latest: (now + TOKEN_LIMIT_US).to_string(),
            explained: self.accepted_token.load(Ordering::SeqCst),
            lock: admission.lock.is_some(),
            lease: lease_until.as_microsecond().to_string(),
            line_us,
            line_length,
            budget: admission.budget.map(|rule| BudgetCondition {
                max: rule.max,
                window_us: micros(rule.window),
            }),
            similar: admission.similar.map(|rule| SimilarCondition {
                window_us: micros(rule.window),
                refuses: rule.refuses,
                confirmed: rule.confirmed.map(keys::id),
            }),
        };
        serde_json::to_string(&conditions).map_err(|error| Error::Refused(error.to_string()))
    }
}

/// Reads the denial in the answer "denied" of a script.
pub(super) fn denied(answer: &Answer) -> Result<Denied> {
    let text = |at: usize| answer.text(at);
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
            Denied::Busy {
                lock: lock([2, 3, 4, 5].map(text))?,
                behind: behind.map(|id| identity(&id)).transpose()?,
            }
        }
        other => return Err(unreadable(format!("{other:?} is not a word for a denial"))),
    })
}

/// Call, token, lease and free time of a lock; empty texts for none.
pub(super) fn lock([call_id, token, lease, free_from]: [String; 4]) -> Result<Option<Lock>> {
    if call_id.is_empty() {
        return Ok(None);
    }
    let free_from = Some(free_from).filter(|time| !time.is_empty());
    Ok(Some(Lock {
        call_id: identity(&call_id)?,
        token: token.parse().map_err(unreadable)?,
        lease_until: time(&lease)?,
        free_from: free_from.map(|from| time(&from)).transpose()?,
    }))
}

pub(super) fn identity(text: &str) -> Result<CallId> {
    keys::call_id(text.as_bytes())
        .ok_or_else(|| unreadable(format!("{text:?} is not an id of a call")))
}

fn time(microseconds: &str) -> Result<Timestamp> {
    let microseconds: f64 = microseconds.parse().map_err(unreadable)?;
    Timestamp::from_microsecond(microseconds as i64).map_err(unreadable)
}

/// When the session's lock is free, 'now', or '' if the change does not free it.
pub(super) fn freed_from(change: &Change) -> String {
    match change.release.lock_from {
        Some(from) if from <= change.record.updated_at => "now".to_owned(),
        from => record::microseconds(from),
    }
}

/// The keys of a change's session, budget and near-duplicate group.
pub(super) fn condition_keys(change: &Change) -> ConditionKeys {
    let admission = change.admission.as_ref();
    let budget = admission.and_then(|admission| admission.budget);
    let similar = admission.and_then(|admission| admission.similar);
    let similar = similar.map(|rule| rule.group).or(change.release.similar);
    keys::conditions(
        &change.record.intent,
        budget.map(|rule| rule.group),
        similar,
    )
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::memory::Memory;
    use crate::target::Target;
    use oncegate_rules::key;
    use oncegate_rules::session::Admission;
    use oncegate_rules::testing;
    use oncegate_rules::tool::Tool;

    /// A change that draws a token.
    fn claim() -> Change {
        let call = testing::record(&Tool::new("t"), key::Source::Runtime, &[]);
        Change {
            admission: Some(Admission {
                token: Token::Next,
                lock: None,
                budget: None,
                similar: None,
            }),
            ..testing::claim_of(call)
        }
    }

    #[tokio::test]
    async fn a_token_is_above_the_clock_and_every_seen_one_and_not_a_day_ahead() {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
        let target = Target::parse("redis://localhost").expect("a target");
        let server = Server::new(Link::new(target, None), memory, false);
        let number = |name: &str| -> u64 {
            let conditions = server.conditions(&claim()).expect("conditions");
            let conditions: serde_json::Value = serde_json::from_str(&conditions).expect("JSON");
            let number = conditions[name].as_str().expect("a text");
            number.parse().expect("a number")
        };
        let clock = server.now().as_microsecond().unsigned_abs();
        assert!(number("floor") >= clock);
        assert!(number("latest") >= clock + TOKEN_LIMIT_US);
        let seen = clock + TOKEN_LIMIT_US / 2;
        server.memory.saw_token(seen);
        assert_eq!(number("floor"), seen + 1);
        server.memory.saw_token(clock + 2 * TOKEN_LIMIT_US);
        assert!(server.conditions(&claim()).is_err(), "a clock was wrong");
    }
}
