//! The conditions of a claim as functions read them, and the denials of functions. Must not decide anything.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::link::lanes::Lock;
use crate::link::{Param, params};
use crate::server::{Server, get, unreadable};
use oncegate_rules::call::Change;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{Admission, Denied, Lock as SessionLock, Token};
use oncegate_store::Result;
use oncegate_store::search::{group_key, session_key};
use oncegate_store::shared::conditions;

/// The key of the session of a change.
pub(crate) fn session_of(change: &Change) -> [u8; 16] {
    let intent = &change.record.intent;
    session_key(&intent.tenant, &intent.session_id)
}

impl Server {
    /// The conditions of a change as JSON for `admit` in `verbs.sql`; `None` if it has none.
    pub(crate) fn conditions(&self, change: &Change) -> Result<Option<String>> {
        let now = self.now().as_microsecond().unsigned_abs();
        let floor = match &change.admission {
            Some(Admission {
                token: Token::Next, ..
            }) => self.memory.next_token(now),
            _ => 0,
        };
        let accepted = self.accepted_token.load(Ordering::SeqCst);
        conditions::json(change, now, floor, accepted, |call| call.0.to_string())
    }
}

/// The locks of a change's conditions, and of what it releases.
pub(crate) fn locks(change: &Change) -> Vec<Lock> {
    let (session, admission) = (session_of(change), change.admission.as_ref());
    let budget = admission.and_then(|admission| Some(admission.budget?.group));
    let similar = admission.and_then(|admission| Some(admission.similar?.group));
    let groups = [budget, similar, change.release.similar].into_iter();
    let groups = groups.flatten().map(|group| Lock::alone(&group_key(group)));
    // Calls without a session need no order among each other: only a freeze must not overlap with them.
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
    groups.chain(of_session).collect()
}

/// What a change releases: from when on the lock is free, with 0 for now; whether it retakes it; the group that it leaves.
pub(crate) fn releases(change: &Change) -> Vec<Param> {
    let now = change.record.updated_at;
    let free_from = change.release.lock_from.map(|from| {
        if from <= now {
            0
        } else {
            from.as_microsecond()
        }
    });
    let leaves = change.release.similar.map(group_key).map(Uuid::from_bytes);
    params![free_from, change.release.retakes_lock, leaves]
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
