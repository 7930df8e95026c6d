//! The conditions of a claim as scripts are told them. Must not decide anything.
//!
//! On one master the conditions of a call are compared in the same step as its claim. On a cluster its session
//! is in another slot: there only the fencing token is looked after, before the claim, and tools that need
//! more are refused by the configuration.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use redis::Script;
use serde::Serialize;
use uuid::Uuid;

use super::answer::{Answer, call_id, unreadable};
use super::keys;
use super::memory::TOKEN_LIMIT_US;
use super::record;
use super::scripts::Run;
use super::server::Server;
use crate::core::call::Change;
use crate::core::record::{CallId, Intent, Record};
use crate::core::session::{Admission, Denied, LINE_PLACE, Line, Lock, SessionId, Token};
use crate::store::Error;

/// How the conditions of a change are met.
pub(super) enum Met {
    /// There are none.
    NotAsked,
    /// By the script that writes the change; these are they.
    InTheSameStep(String),
    /// On a cluster, before it.
    Before(Entered),
}

impl Met {
    /// What the script is told.
    pub(super) fn admission(&self) -> &str {
        match self {
            Self::InTheSameStep(admission) => admission,
            Self::NotAsked | Self::Before(_) => "",
        }
    }

    /// Token and similar call, where they are known before the script runs.
    pub(super) fn entered(&self) -> Option<[&str; 2]> {
        match self {
            Self::Before(entered) => Some([&entered.token, &entered.similar_to]),
            Self::NotAsked | Self::InTheSameStep(_) => None,
        }
    }

    /// The keys that the script needs for them.
    pub(super) fn rooms(&self, change: &Change) -> Option<[String; 5]> {
        matches!(self, Self::InTheSameStep(_)).then(|| rooms(change))
    }
}

/// What follows from conditions that hold; empty texts for none.
pub(super) struct Entered {
    pub(super) token: String,
    pub(super) similar_to: String,
    /// The session's newest token before, if this one was drawn ahead of the claim.
    pub(super) before: Option<String>,
}

impl Entered {
    /// What a stored record says.
    pub(super) fn of(stored: &Record) -> Self {
        Self {
            token: record::fencing(stored),
            similar_to: record::similar_to(stored),
            before: None,
        }
    }

    pub(super) fn read(&self) -> Result<(Option<u64>, Option<CallId>), Error> {
        let token = Some(&self.token)
            .filter(|token| !token.is_empty())
            .map(|token| token.parse());
        Ok((
            token.transpose().map_err(unreadable)?,
            call_id(&self.similar_to),
        ))
    }
}

/// The conditions as `session.lua` reads them. What is left out is not asked.
#[derive(Serialize)]
struct Conditions {
    call: String,
    token: String,
    floor: String,
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

/// Meets the conditions of calls, and gives back what follows from them.
#[derive(Clone)]
pub(super) struct Admissions {
    pub(super) server: Arc<Server>,
}

impl Admissions {
    /// The conditions as a script is told them.
    pub(super) fn asked(&self, change: &Change, admission: &Admission) -> Result<String, Error> {
        let longest = match admission.lock {
            Some(Line::Waits { longest }) => Some(longest),
            Some(Line::Leaves) | None => None,
        };
        let asked = Conditions {
            call: change.record.intent.call_id.to_string(),
            token: match admission.token {
                Token::Next => "next".to_owned(),
                Token::This(token) => token.to_string(),
            },
            floor: self.floor()?.to_string(),
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
                confirmed: likeness.confirmed.map(|call_id| call_id.to_string()),
            }),
        };
        serde_json::to_string(&asked).map_err(|error| Error::Refused(error.to_string()))
    }

    /// On a cluster: meets the conditions where the session is, which can only be its token. If the claim comes
    /// to nothing, what was drawn is taken back.
    pub(super) async fn enter(
        &self,
        change: &Change,
        admission: &Admission,
    ) -> Result<Result<Entered, Denied>, Error> {
        if admission.lock.is_some() || admission.budget.is_some() || admission.similar.is_some() {
            let why =
                "on a cluster a session and a call are on different masters: there is no lock";
            return Err(Error::Refused(why.into()));
        }
        let id = SessionId::of(&change.record.intent);
        let mut run = self.about_session(&self.server.scripts.enter, &id);
        run.arg(self.asked(change, admission)?);
        let answer = self.server.run_guarded(&run).await?;
        match answer.word.as_str() {
            "done" => {
                self.server
                    .counted(keys::partition_of(&id), &answer, 2)
                    .await?;
                Ok(Ok(Entered {
                    token: answer.text(0).unwrap_or_default(),
                    similar_to: String::new(),
                    before: answer.text(1),
                }))
            }
            "denied" => Ok(Err(denied(&answer)?)),
            _ => Err(answer.no_sense()),
        }
    }

    /// A script about a session, with the keys and the arguments that such scripts begin with.
    fn about_session<'a>(&self, script: &'a Script, id: &SessionId) -> Run<'a> {
        let (partition, keys) = (keys::partition_of(id), keys::session(id));
        let names = [keys[0].clone(), keys[0].clone()];
        let mut run = self.server.writing_to(script, partition, names);
        run.key(&of_session(&keys)[..]);
        run
    }

    /// Takes back what was entered for a call that does not begin. Its token was not handed out.
    pub(super) async fn take_back(&self, change: &Change, entered: &Entered) {
        let is_drawn = change
            .admission
            .as_ref()
            .is_some_and(|admission| admission.token == Token::Next);
        if let (Some(before), true) = (&entered.before, is_drawn) {
            let intent = &change.record.intent;
            let id = SessionId::of(intent);
            let left = self.leave(&id, intent.call_id, "", [&entered.token, before]);
            drop(left.await);
        }
    }

    /// The keys that a change needs beside the call's own.
    pub(super) fn rooms_of_replace(&self, change: &Change, met: &Met) -> Option<[String; 5]> {
        let gives_back = change.release.lock_from.is_some() || change.release.similar.is_some();
        met.rooms(change)
            .or_else(|| (gives_back && !self.server.is_cluster()).then(|| rooms(change)))
    }

    /// What no token may be below: the clock, and every token that this gateway has seen.
    fn floor(&self) -> Result<u64, Error> {
        let now = self.server.now().as_microsecond().unsigned_abs();
        let floor = now.max(self.server.memory.token() + 1);
        if floor.saturating_sub(now) > TOKEN_LIMIT_US {
            return Err(Error::Refused(
                "fencing tokens are more than a day ahead of the clock".into(),
            ));
        }
        Ok(floor)
    }

    pub(super) async fn leave(
        &self,
        id: &SessionId,
        call_id: CallId,
        line: &str,
        token_and_before: [&str; 2],
    ) -> Result<(), Error> {
        let mut run = self.about_session(&self.server.scripts.leave, id);
        run.arg((call_id.to_string(), line, &token_and_before[..]));
        let answer = self.server.run(&run).await?;
        self.server.saw_count(keys::partition_of(id), &answer, 0);
        Ok(())
    }
}

/// What is in the way, as a script says it after the word "denied".
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

/// Call, token, lease and from when on it is free; empty texts for none.
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

fn identity(text: &str) -> Result<CallId, Error> {
    text.parse::<Uuid>().map(CallId).map_err(unreadable)
}

fn time(microseconds: &str) -> Result<Timestamp, Error> {
    let microseconds: f64 = microseconds.parse().map_err(unreadable)?;
    Timestamp::from_microsecond(microseconds as i64).map_err(unreadable)
}

/// From when on the lock is free, 'now' or ''; and '1' if the place among what looks alike is given up.
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

/// The keys of a change's session, budget and what looks alike. Those that are not asked for are named,
/// too, and never touched.
fn rooms(change: &Change) -> [String; 5] {
    let [session, line, alive] = keys::session(&SessionId::of(&change.record.intent));
    let admission = change.admission.as_ref();
    let budget = admission.and_then(|admission| admission.budget.map(|spending| spending.group));
    let similar = admission.and_then(|admission| admission.similar.map(|likeness| likeness.group));
    let similar = similar.or(change.release.similar);
    let room = |room: Option<_>| room.map_or_else(|| session.clone(), keys::room);
    [session.clone(), line, alive, room(budget), room(similar)]
}

/// The keys of a call for whose session alone something is written.
pub(super) fn rooms_of(intent: &Intent) -> [String; 5] {
    of_session(&keys::session(&SessionId::of(intent)))
}

/// Where only the session is asked for.
fn of_session([session, line, alive]: &[String; 3]) -> [String; 5] {
    [
        session.clone(),
        line.clone(),
        alive.clone(),
        session.clone(),
        session.clone(),
    ]
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
