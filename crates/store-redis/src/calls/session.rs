//! The conditions of a claim as scripts read them, and the denials of scripts. Must not decide anything.

use std::sync::atomic::Ordering;

use jiff::Timestamp;

use super::record;
use crate::keys::{self, ConditionKeys};
use crate::link::answer::{Answer, unreadable};
use crate::server::Server;
use oncegate_rules::call::Change;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{Denied, Lock};
use oncegate_store::Result;
use oncegate_store::shared::conditions;

impl Server {
    /// The conditions of a change as JSON for `session.lua`; empty if it has none.
    pub(crate) fn conditions(&self, change: &Change) -> Result<String> {
        let now = self.now().as_microsecond().unsigned_abs();
        // Above the clock, and every token that this gateway has seen.
        let floor = now.max(self.memory.token() + 1);
        let accepted = self.accepted_token.load(Ordering::SeqCst);
        let json = conditions::json(change, now, floor, accepted, keys::id)?;
        Ok(json.unwrap_or_default())
    }
}

/// Reads the denial in the answer "denied" of a script.
pub(crate) fn denied(answer: &Answer) -> Result<Denied> {
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
pub(crate) fn lock([call_id, token, lease, free_from]: [String; 4]) -> Result<Option<Lock>> {
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

pub(crate) fn identity(text: &str) -> Result<CallId> {
    keys::call_id(text.as_bytes())
        .ok_or_else(|| unreadable(format!("{text:?} is not an id of a call")))
}

fn time(microseconds: &str) -> Result<Timestamp> {
    let microseconds: f64 = microseconds.parse().map_err(unreadable)?;
    Timestamp::from_microsecond(microseconds as i64).map_err(unreadable)
}

/// When the session's lock is free, 'now', or '' if the change does not free it.
pub(crate) fn freed_from(change: &Change) -> String {
    match change.release.lock_from {
        Some(from) if from <= change.record.updated_at => "now".to_owned(),
        from => record::microseconds(from),
    }
}

/// The keys of a change's session, budget and near-duplicate group.
pub(crate) fn condition_keys(change: &Change) -> ConditionKeys {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::loss::format::FORMAT;
    use crate::loss::memory::Memory;
    use crate::target::{Settings, Target};
    use oncegate_rules::key;
    use oncegate_rules::session::{Admission, Token};
    use oncegate_rules::testing;
    use oncegate_rules::timings::Timings;
    use oncegate_rules::tool::Tool;
    use oncegate_store::Durability;
    use oncegate_store::watermarks::TOKEN_LIMIT_US;

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
        let settings = Settings {
            target: target.clone(),
            durability: Durability::Strict,
            declared: None,
            ca: None,
            watermarks: folder.path().join("watermarks"),
            stream: false,
            timings: Timings::default(),
            newest_format: FORMAT,
        };
        let server = Server::new(Link::new(target, None), memory, &settings);
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
