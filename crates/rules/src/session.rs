//! Whether a write call may begin: fencing tokens, the exclusive lock, budgets, near-duplicates.
//!
//! [`admission`] makes an [`Admission`]: conditions that a store compares in the same atomic step in which it
//! claims a key. If a condition does not hold, the store answers a [`Denied`], and [`verdict`] says whether the
//! call waits or is refused. Must not know how a store keeps sessions.

pub mod frozen; // flags by which frozen sessions are listed

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::approval::{Ask, Found, Policy};
use crate::json::canonical;
use crate::key::{self, GroupKey, Pointer, Source};
use crate::mcp::elicitation;
use crate::nulls::without_nulls;
use crate::record::{CallId, Entry, Intent, Record, State};
use crate::secret::Secret;
use crate::time::between;
use crate::tool::{Budget, Effect, Mode, OnSimilar, Per, SessionPolicy, Tool};

/// How long a call keeps its place in the line after it last asked for the lock.
pub const LINE_ENTRY: Duration = Duration::from_secs(3);
/// Calls that wait for one session's lock at once; more are refused.
pub const LINE_LENGTH: u32 = 100;

/// Names a session within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub tenant: String,
    /// Empty for calls without a session.
    pub id: String,
}

impl SessionId {
    pub fn of(intent: &Intent) -> Self {
        Self {
            tenant: intent.tenant.clone(),
            id: intent.session_id.clone(),
        }
    }
}

/// The values for the session that a request brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Preconditions {
    /// A token that the caller got earlier.
    pub fencing: Option<u64>,
    /// The similar call that the caller has confirmed as another intent.
    pub confirmed: Option<CallId>,
}

/// The conditions on which a write call begins.
///
/// In one step with the claim a store compares all of them and writes token, lock and places. If one does not
/// hold, the store writes at most a place in the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub token: Token,
    /// The session's lock must be free, and no other call may have waited longer; `None`: no lock is taken.
    pub lock: Option<Line>,
    pub budget: Option<BudgetRule>,
    pub similar: Option<NearDuplicateRule>,
}

/// The fencing token that a call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The session's next token: max(newest + 1, clock in microseconds, every token that this gateway has
    /// seen + 1).
    Next,
    /// None is drawn: the call waits for approval, and keeps the token of its earlier run.
    Undrawn,
    /// This token: the newest that the store knows, or a higher one that an accepted loss may have removed.
    ///
    /// Without that bound a caller could invent a token that makes all other tokens of the session
    /// stale.
    This(u64),
}

/// Whether a call waits for a held lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The call gets a place in the line if fewer than `longest` calls stand there.
    ///
    /// It keeps the place for [`LINE_ENTRY`] each time it asks.
    Waits { longest: u32 },
    /// The call gets no place in the line.
    Leaves,
}

/// Budget check: refuse if `max` other calls of this group began within `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRule {
    pub group: GroupKey,
    pub max: u32,
    pub window: Duration,
}

impl BudgetRule {
    /// The same rule; or one that refuses nothing, if an approver is asked about a call beyond the budget. The call takes a place
    /// in the budget all the same.
    #[must_use]
    pub fn unless(self, is_asked: bool) -> Self {
        match is_asked {
            true => Self {
                max: u32::MAX,
                ..self
            },
            false => self,
        }
    }
}

/// Near-duplicate check: refuse if another call of this group began within `window`.
///
/// It does not refuse if `refuses` is unset, or if that call is the confirmed one. The store names the newest such call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearDuplicateRule {
    pub group: GroupKey,
    pub window: Duration,
    pub refuses: bool,
    pub confirmed: Option<CallId>,
}

/// The lock and the places that a call gives back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Release {
    /// From when on the session's lock is free, if the call holds it; a time that has passed means now.
    pub lock_from: Option<Timestamp>,
    /// Whether the call takes the lock until `lock_from`, if the store has lost who holds it.
    pub retakes_lock: bool,
    /// The near-duplicate group that the call leaves.
    pub similar: Option<GroupKey>,
}

/// The lock of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    pub call_id: CallId,
    /// The fencing token of the run that holds it.
    pub token: u64,
    /// The end of the run's lease, which alone does not free the lock.
    pub lease_until: Timestamp,
    /// From when on the lock is free; set once the outcome of its call is unknown.
    pub free_from: Option<Timestamp>,
}

/// Why a store did not let a call begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// An operator has stopped the session.
    Frozen,
    /// The session has a newer token.
    Stale,
    /// The session has not given out this token.
    NotGiven,
    /// The budget is used up.
    Spent { frees_at: Timestamp },
    /// An earlier call looks the same.
    Similar { call_id: CallId },
    /// The lock is held, or other calls wait for it already.
    Busy {
        lock: Option<Lock>,
        /// The call directly ahead in the line; `None`: the denied call has no place in it.
        behind: Option<CallId>,
    },
}

impl Denied {
    /// What of it an approver may be asked about instead.
    pub fn found(&self) -> Option<Found> {
        match self {
            Self::Similar { .. } => Some(Found::Similar),
            Self::Spent { .. } => Some(Found::OverBudget),
            Self::Frozen | Self::Stale | Self::NotGiven | Self::Busy { .. } => None,
        }
    }
}

/// The stored state of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// The newest fencing token.
    pub token: Option<u64>,
    pub lock: Option<Lock>,
    /// The calls that wait for the lock, each with the time since when, in the order of the line.
    pub waiting: Vec<(CallId, Timestamp)>,
    pub frozen: bool,
    /// The newest acts of operators, oldest first.
    pub events: Vec<Entry>,
}

impl Session {
    /// About how many bytes the session takes in memory.
    pub fn size(&self) -> usize {
        let events = self.events.iter();
        let texts = events.map(|event| event.by.len() + event.detail.len());
        texts.sum::<usize>() + size_of_val(&self.events[..]) + size_of_val(&self.waiting[..])
    }
}

/// Why a call may not begin. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("an operator has frozen the session")]
    Frozen,
    #[error("the session has a newer fencing token")]
    Stale,
    #[error("the session has not given out this fencing token")]
    NotGiven,
    #[error("another call of the session has not come to its end")]
    Busy { retry_after: Duration },
    #[error("the budget is used up")]
    Spent { retry_after: Duration },
    #[error("call {call_id} looks the same")]
    Similar { call_id: CallId },
    /// `retry_after`: until the outcome of that call is checked next; `None`: no check is planned.
    #[error("call {call_id} looks the same, and its outcome is not known yet")]
    SimilarPending {
        call_id: CallId,
        retry_after: Option<Duration>,
    },
}

impl Refusal {
    /// All values of [`as_str`](Self::as_str).
    pub const WORDS: [&str; 6] = ["frozen", "stale", "not_given", "busy", "budget", "similar"];

    /// The reason as one word, for metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Stale => "stale",
            Self::NotGiven => "not_given",
            Self::Busy { .. } => "busy",
            Self::Spent { .. } => "budget",
            Self::Similar { .. } | Self::SimilarPending { .. } => "similar",
        }
    }
}

/// The conditions on which a call may begin; `None` for a read, which has none.
///
/// # Errors
/// What the request lacks, in a sentence.
pub fn admission(
    tool: &Tool,
    intent: &Intent,
    preconditions: Preconditions,
) -> Result<Option<Admission>, &'static str> {
    if tool.effect == Effect::Read {
        return Ok(None);
    }
    if tool.is_exclusive() && intent.session_id.is_empty() {
        return Err("session_id is missing, and this tool runs one call of a session at a time");
    }
    let token = match (tool.session.mode, preconditions.fencing) {
        (Mode::Exclusive | Mode::Fenced, Some(token)) => Token::This(token),
        (Mode::Exclusive | Mode::Fenced, None) | (Mode::Shared, _) => Token::Next,
    };
    let line = if tool.session.wait.is_zero() {
        Line::Leaves
    } else {
        Line::Waits {
            longest: LINE_LENGTH,
        }
    };
    // No budget holds back a compensation, and the call that asked has paid for the elicitation.
    let spends = !matches!(
        intent.key_source,
        Source::Compensation | Source::Elicitation
    );
    let budget = tool.budget.filter(|_| spends).map(|budget| BudgetRule {
        group: budget_group(&budget, intent),
        max: budget.max,
        window: budget.window,
    });
    // An approver decides about it: its caller's word does not count.
    let is_asked = tool
        .approval
        .as_ref()
        .is_some_and(Policy::asks_about_similar);
    let similar = tool.similar.as_ref().zip(intent.similar);
    let similar = similar.map(|(similar, group)| NearDuplicateRule {
        group,
        window: similar.window,
        refuses: is_asked || similar.action != OnSimilar::Flag,
        confirmed: preconditions.confirmed.filter(|_| !is_asked),
    });
    Ok(Some(Admission {
        token,
        lock: tool.is_exclusive().then_some(line),
        budget,
        similar,
    }))
}

/// The conditions on which a call may wait for approval; `None` for a read.
///
/// It takes its places in the budget and among similar calls now. Token and lock are for its begin. What it is asked about
/// does not refuse it.
///
/// # Errors
/// What the request lacks to begin, in a sentence.
pub fn admission_of_proposal(
    tool: &Tool,
    intent: &Intent,
    preconditions: Preconditions,
    ask: &Ask,
) -> Result<Option<Admission>, &'static str> {
    let begins = admission(tool, intent, preconditions)?;
    Ok(begins.map(|begins| Admission {
        token: Token::Undrawn,
        lock: None,
        budget: begins.budget.map(|rule| rule.unless(ask.over_budget)),
        similar: begins.similar.map(|rule| NearDuplicateRule {
            refuses: rule.refuses && !ask.similar,
            ..rule
        }),
    }))
}

/// The near-duplicate group of these arguments; `None` if they have none of the fields.
///
/// A call that answers an elicitation has none: the call that asked has it.
pub fn similar_group(
    tool: &Tool,
    tenant: &str,
    user_id: &str,
    args: &Value,
    secret: &Secret,
) -> Option<GroupKey> {
    let writes = tool.effect == Effect::Write;
    let similar = tool.similar.as_ref().filter(|_| writes)?;
    if elicitation::answered_by(args).is_some() {
        return None;
    }
    let args = without_nulls(args);
    let found = |field: &Pointer| {
        let value = args.pointer(field.as_str())?;
        Some((field.as_str().to_owned(), value.clone()))
    };
    let common: Map<String, Value> = similar.fields.iter().filter_map(found).collect();
    if common.is_empty() {
        return None;
    }
    let common = canonical(&Value::Object(common));
    let parts = [tenant, &tool.name, user_id, &common];
    Some(GroupKey(secret.mac("similar", parts)))
}

fn budget_group(budget: &Budget, intent: &Intent) -> GroupKey {
    let (per, whose) = match budget.per {
        Per::Session => ("session", &intent.session_id),
        Per::User => ("user", &intent.user_id),
    };
    let parts = ["budget", per, &intent.tenant, &intent.tool, whose];
    GroupKey(key::digest(parts))
}

/// The call behind which a denied call waits: ask again when that call has ended, or after a while.
///
/// `usual`: how long such calls take.
///
/// # Errors
/// The denied call does not wait, and is refused.
pub fn verdict(
    policy: &SessionPolicy,
    denied: &Denied,
    waited: Duration,
    usual: Duration,
    now: Timestamp,
) -> Result<CallId, Refusal> {
    let until = |time: Timestamp| between(now, time);
    Err(match denied {
        Denied::Busy { lock, behind } => {
            if let Some(behind) = behind
                && waited < policy.wait
            {
                return Ok(*behind);
            }
            let free_from = lock.and_then(|lock| lock.free_from);
            Refusal::Busy {
                retry_after: free_from.map_or(usual, until).max(usual),
            }
        }
        Denied::Frozen => Refusal::Frozen,
        Denied::Stale => Refusal::Stale,
        Denied::NotGiven => Refusal::NotGiven,
        Denied::Spent { frees_at } => Refusal::Spent {
            retry_after: until(*frees_at),
        },
        Denied::Similar { call_id } => Refusal::Similar { call_id: *call_id },
    })
}

/// Why a call with this token is refused; `None`: it is not.
///
/// `explained` is the highest token that may have been given before an accepted loss of data.
pub fn token_denied(token: Token, newest: Option<u64>, explained: u64) -> Option<Denied> {
    let Token::This(token) = token else {
        return None;
    };
    let newest = newest.unwrap_or(0);
    if token < newest {
        Some(Denied::Stale)
    } else if token > 0 && token <= newest.max(explained) {
        None
    } else {
        Some(Denied::NotGiven)
    }
}

/// Whether a lock is left over: its lease is over, and the run that took it has ended.
///
/// Such a lock may be freed, if no other call has taken it since.
pub fn is_left_over(lock: &Lock, holder: Option<&Record>, now: Timestamp) -> bool {
    let runs =
        |record: &Record| record.state == State::Running && record.fencing == Some(lock.token);
    lock.lease_until <= now && !holder.is_some_and(runs)
}

#[cfg(test)]
mod tests;
