//! The conditions of a claim as functions read them, and the denials of functions. Must not decide anything.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::link::lanes::Lock;
use crate::link::rows::{ChangeRow, Conditions};
use crate::link::rows::{get, signed, unreadable};
use crate::server::Server;
use oncegate_rules::call::Change;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{Admission, Denied, LINE_ENTRY, Line, Lock as SessionLock, Token};
use oncegate_store::Result;
use oncegate_store::search::{group_key, session_key};
use oncegate_store::shared::conditions::{latest_clock, micros};

/// The key of the session of a change.
pub(crate) fn session_of(change: &Change) -> [u8; 16] {
    let intent = &change.record.intent;
    session_key(&intent.tenant, &intent.session_id)
}

impl Server {
    /// The conditions of a change for `admit` in `verbs.sql`; `None` if it has none.
    pub(crate) fn conditions(&self, change: &Change) -> Result<Option<Conditions>> {
        let Some(admission) = &change.admission else {
            return Ok(None);
        };
        let now = self.now().as_microsecond().unsigned_abs();
        let mut row = Conditions {
            explained: signed(self.accepted_token.load(Ordering::SeqCst)),
            locks: admission.lock.is_some(),
            lease: change.record.attempt.lease_until.as_microsecond(),
            ..Conditions::default()
        };
        let mut floor = 0;
        match admission.token {
            Token::Next => floor = self.memory.next_token(now),
            Token::Undrawn => row.keeps = true,
            Token::This(token) => row.this_token = Some(signed(token)),
        }
        row.floor = signed(floor);
        row.latest_clock = signed(latest_clock(now, floor)?);
        if let Some(Line::Waits { longest }) = admission.lock {
            row.line_us = Some(signed(micros(LINE_ENTRY)));
            row.line_length = longest.into();
        }
        if let Some(rule) = admission.budget {
            row.budget = Some(Uuid::from_bytes(group_key(rule.group)));
            row.budget_max = Some(rule.max.into());
            row.budget_us = Some(signed(micros(rule.window)));
        }
        if let Some(rule) = admission.similar {
            row.alike = Some(Uuid::from_bytes(group_key(rule.group)));
            row.alike_us = Some(signed(micros(rule.window)));
            row.refuses = rule.refuses;
            row.confirmed = rule.confirmed.map(|call| call.0);
        }
        Ok(Some(row))
    }
}

/// The locks of a change's conditions, and of what it releases.
pub(crate) fn locks(change: &Change) -> Vec<Lock> {
    let (session, admission) = (session_of(change), change.admission.as_ref());
    let budget = admission.and_then(|admission| Some(admission.budget?.group));
    let similar = admission.and_then(|admission| Some(admission.similar?.group));
    let groups = [budget, similar, change.release.similar].into_iter();
    let groups = groups.flatten().map(|group| Lock::alone(&group_key(group)));
    // Calls without a session need no order among each other: only a freeze must not overlap with them. Their tokens may be
    // equal, which no tool sees.
    let is_plain = |admission: &Admission| {
        let takes_next = !matches!(admission.token, Token::This(_)) && admission.lock.is_none();
        change.record.intent.session_id.is_empty() && takes_next
    };
    let of_session = match admission {
        _ if change.release.lock_from.is_some() => Some(Lock::alone(&session)),
        Some(admission) if is_plain(admission) => Some(Lock::shared(&session)),
        Some(_) => Some(Lock::alone(&session)),
        None => None,
    };
    of_session.into_iter().chain(groups).collect()
}

/// Says in its row what a change releases. The lock that is free from 0 on is free now.
pub(crate) fn release(change: &Change, row: &mut ChangeRow) {
    let (now, release) = (change.record.updated_at, &change.release);
    let from = |from: Timestamp| (from > now).then(|| from.as_microsecond());
    row.free_from = release.lock_from.map(|time| from(time).unwrap_or(0));
    row.retakes = release.retakes_lock;
    row.leaves = release.similar.map(group_key).map(Uuid::from_bytes);
}

/// Reads a denial, if the answer is one.
pub(crate) fn denied(row: &Row, word: &str) -> Result<Option<Denied>> {
    let call = |column| get::<Option<Uuid>>(row, column).map(|id| id.map(CallId));
    let missing = || unreadable("a denial lacks a part");
    Ok(Some(match word {
        "frozen" => Denied::Frozen,
        "stale" => Denied::Stale,
        "not_given" => Denied::NotGiven,
        "spent" => Denied::Spent {
            frees_at: time(get(row, 8)?)?,
        },
        "similar" => Denied::Similar {
            call_id: call(7)?.ok_or_else(missing)?,
        },
        "busy" => Denied::Busy {
            lock: lock(call(7)?, get(row, 9)?, get(row, 10)?, get(row, 11)?)?,
            behind: call(6)?,
        },
        _ => return Ok(None),
    }))
}

/// A session's lock, from its columns.
pub(crate) fn lock(
    call_id: Option<CallId>,
    token: Option<i64>,
    lease: Option<i64>,
    free_from: Option<i64>,
) -> Result<Option<SessionLock>> {
    let Some(call_id) = call_id else {
        return Ok(None);
    };
    Ok(Some(SessionLock {
        call_id,
        token: token.unwrap_or(0).unsigned_abs(),
        lease_until: time(lease)?,
        free_from: free_from.map(|from| time(Some(from))).transpose()?,
    }))
}

/// A time in microseconds, which must be there.
pub(crate) fn time(microseconds: Option<i64>) -> Result<Timestamp> {
    let time = microseconds.and_then(|time| Timestamp::from_microsecond(time).ok());
    time.ok_or_else(|| unreadable("a column has an impossible time"))
}
