//! Compares the conditions of a claim, and writes tokens, locks and places, in its transaction.
//!
//! Must not decide anything: it compares and writes what the change says.

use jiff::Timestamp;
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql, params};

use super::query::{all, execute, first};
use super::row::{Columns, Identity, integer};
use crate::core::call::Change;
use crate::core::key::{GroupKey, digest};
use crate::core::record::{CallId, Intent, Record};
use crate::core::session::{
    self, Admission, BudgetRule, Denied, LINE_PLACE, Line, Lock, SessionId, Token,
};
use crate::core::time::after;

/// Most calls of a near-duplicate group; only the newest counts.
const MAX_ALIKE: u32 = 16;

/// The key of a session: a digest of its tenant and its id.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionKey([u8; 16]);

impl SessionKey {
    pub(super) fn of(tenant: &str, session_id: &str) -> Self {
        Self(short(digest(["session", tenant, session_id])))
    }
}

impl ToSql for SessionKey {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

/// The key of a group of calls.
fn room(group: GroupKey) -> [u8; 16] {
    short(group.0)
}

fn short(digest: [u8; 32]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

fn bytes(call_id: CallId) -> [u8; 16] {
    call_id.0.into_bytes()
}

/// Compares a change's conditions; if they hold, writes token, lock and places.
///
/// Returns the record as it is to be stored. If a condition does not hold, only a place in the line
/// is written.
pub(super) fn enter(
    connection: &Connection,
    change: &Change,
) -> rusqlite::Result<Result<Record, Denied>> {
    let mut record = change.record.clone();
    let Some(admission) = &change.admission else {
        return Ok(Ok(record));
    };
    let now = record.updated_at;
    if let Some(denied) = denied(connection, admission, &record, now)? {
        return Ok(Err(denied));
    }
    record.fencing = Some(draw(connection, &record.intent, admission.token, now)?);
    if let Some(spending) = &admission.budget {
        take_place(
            connection,
            spending.group,
            &record,
            after(now, spending.window),
        )?;
    }
    if let Some(likeness) = &admission.similar {
        let group = likeness.group;
        record.similar_to = newest_alike(connection, group, &record, now)?;
        take_place(connection, group, &record, after(now, likeness.window))?;
        let sql = "DELETE FROM places WHERE room = ?1 AND call_id NOT IN
             (SELECT call_id FROM places WHERE room = ?1 ORDER BY place_until DESC, call_id DESC LIMIT ?2)";
        execute(connection, sql, params![room(group), MAX_ALIKE])?;
    }
    if admission.lock.is_some() {
        take_lock(connection, &record)?;
    }
    Ok(Ok(record))
}

/// The first condition that does not hold.
///
/// The lock comes last, so that no call waits for it in vain.
fn denied(
    connection: &Connection,
    admission: &Admission,
    record: &Record,
    now: Timestamp,
) -> rusqlite::Result<Option<Denied>> {
    let intent = &record.intent;
    let newest = newest(
        connection,
        SessionKey::of(&intent.tenant, &intent.session_id),
    )?;
    if newest.is_some_and(|(_, frozen)| frozen) {
        return Ok(Some(Denied::Frozen));
    }
    if let Token::This(_) = admission.token {
        let newest = newest.map(|(token, _)| token);
        let accepted = first(connection, "SELECT token FROM ledger", [], |row| {
            row.get::<_, i64>(0)
        })?;
        let accepted = accepted.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        if let Some(denied) = session::brought(admission.token, newest, accepted.unsigned_abs()) {
            return Ok(Some(denied));
        }
    }
    // What is answered by an earlier call costs nothing.
    if let Some(likeness) = admission.similar.filter(|likeness| likeness.refuses)
        && let Some(call_id) = newest_alike(connection, likeness.group, record, now)?
        && Some(call_id) != likeness.confirmed
    {
        return Ok(Some(Denied::Similar { call_id }));
    }
    if let Some(spending) = &admission.budget
        && let Some(frees_at) = is_spent(connection, spending, record, now)?
    {
        return Ok(Some(Denied::Spent { frees_at }));
    }
    match admission.lock {
        Some(line) => is_busy(connection, line, record, now),
        None => Ok(None),
    }
}

/// When there is room again for a call without a place; `None`: there is room now.
fn is_spent(
    connection: &Connection,
    spending: &BudgetRule,
    record: &Record,
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    // The place whose end makes room: all but `max - 1` of the newer ones have ended by then.
    let sql = "SELECT place_until FROM places WHERE room = ?1 AND place_until > ?2
            AND NOT EXISTS (SELECT 1 FROM places WHERE room = ?1 AND call_id = ?3 AND place_until > ?2)
         ORDER BY place_until DESC LIMIT 1 OFFSET ?4";
    let call_id = bytes(record.intent.call_id);
    let most = spending.max.saturating_sub(1);
    let place = params![room(spending.group), now.as_microsecond(), call_id, most];
    first(connection, sql, place, |row| Columns::of(row).time())
}

/// The newest other call of a group.
fn newest_alike(
    connection: &Connection,
    group: GroupKey,
    record: &Record,
    now: Timestamp,
) -> rusqlite::Result<Option<CallId>> {
    let sql = "SELECT call_id FROM places WHERE room = ?1 AND place_until > ?2 AND call_id <> ?3
             ORDER BY place_until DESC, call_id DESC LIMIT 1";
    let others = params![
        room(group),
        now.as_microsecond(),
        bytes(record.intent.call_id)
    ];
    first(connection, sql, others, |row| {
        row.get::<_, Identity>(0).map(|id| CallId(id.0))
    })
}

/// The newest token of a session, and whether it is frozen.
pub(super) fn newest(
    connection: &Connection,
    session: SessionKey,
) -> rusqlite::Result<Option<(u64, bool)>> {
    let sql = "SELECT token, frozen FROM sessions WHERE session = ?1";
    first(connection, sql, [session], |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
    })
}

/// The holder or waiter before this call.
///
/// A call that waits also gets a place in the line, if there is room.
fn is_busy(
    connection: &Connection,
    line: Line,
    record: &Record,
    now: Timestamp,
) -> rusqlite::Result<Option<Denied>> {
    let intent = &record.intent;
    let session = SessionKey::of(&intent.tenant, &intent.session_id);
    // A call that was not heard of is not waited for.
    let sql = "DELETE FROM line WHERE session = ?1 AND place_until <= ?2";
    execute(connection, sql, params![session, now.as_microsecond()])?;
    let is_free = |lock: &Lock| {
        lock.call_id == intent.call_id || lock.free_from.is_some_and(|free_from| free_from <= now)
    };
    let lock = lock_of(connection, session)?.filter(|lock| !is_free(lock));
    let waiting = line_of(connection, session)?;
    let place = waiting
        .iter()
        .position(|(call_id, _)| *call_id == intent.call_id);
    let ahead = place.unwrap_or(waiting.len());
    let in_front = ahead.checked_sub(1).map(|last| waiting[last].0);
    let Some(behind) = in_front.or(lock.map(|lock| lock.call_id)) else {
        return Ok(None);
    };
    let has_room = match line {
        Line::Waits { longest } => place.is_some() || waiting.len() < longest as usize,
        Line::Leaves => false,
    };
    if !has_room {
        return Ok(Some(Denied::Busy { lock, behind: None }));
    }
    // Two that come within one microsecond stand as they were written.
    let came_at = waiting.last().map_or(now, |(_, last)| {
        now.max(after(*last, std::time::Duration::from_micros(1)))
    });
    let sql = "INSERT INTO line (session, call_id, came_at, place_until) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET place_until = excluded.place_until";
    let place = params![
        session,
        bytes(intent.call_id),
        came_at.as_microsecond(),
        after(now, LINE_PLACE).as_microsecond(),
    ];
    execute(connection, sql, place)?;
    Ok(Some(Denied::Busy {
        lock,
        behind: Some(behind),
    }))
}

/// Draws the call's fencing token, which becomes the session's newest.
fn draw(
    connection: &Connection,
    intent: &Intent,
    token: Token,
    now: Timestamp,
) -> rusqlite::Result<u64> {
    // At least the time in microseconds: so it rises even if the table were lost.
    // And above all that were given before a loss.
    let (least, step) = match token {
        Token::Next => (now.as_microsecond(), 1),
        Token::This(token) => (integer(token), 0),
    };
    let sql = "INSERT INTO sessions (session, token)
             VALUES (?1, max(?2, iif(?3 = 1, (SELECT token + 1 FROM ledger), 0)))
             ON CONFLICT DO UPDATE SET token = max(token + ?3, excluded.token) RETURNING token";
    let session = SessionKey::of(&intent.tenant, &intent.session_id);
    let drawn = params![session, least, step];
    let token = first(connection, sql, drawn, |row| row.get::<_, i64>(0))?;
    Ok(token
        .ok_or(rusqlite::Error::QueryReturnedNoRows)?
        .unsigned_abs())
}

fn take_place(
    connection: &Connection,
    group: GroupKey,
    record: &Record,
    until: Timestamp,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO places (room, call_id, place_until) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET place_until = excluded.place_until WHERE place_until <= ?4";
    let (call_id, now) = (bytes(record.intent.call_id), record.updated_at);
    let place = params![
        room(group),
        call_id,
        until.as_microsecond(),
        now.as_microsecond()
    ];
    execute(connection, sql, place).map(drop)
}

fn take_lock(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let intent = &record.intent;
    let sql = "UPDATE sessions SET lock_call = ?2, lock_token = ?3, lock_lease = ?4, lock_free_from = NULL
             WHERE session = ?1";
    let lock = params![
        SessionKey::of(&intent.tenant, &intent.session_id),
        bytes(intent.call_id),
        record.fencing.map(integer),
        record.attempt.lease_until.as_microsecond(),
    ];
    execute(connection, sql, lock)?;
    leave_line(connection, &SessionId::of(intent), intent.call_id)
}

/// Frees lock and place of a change, if this run of the call has them.
pub(super) fn release(connection: &Connection, change: &Change) -> rusqlite::Result<()> {
    let intent = &change.record.intent;
    let call_id = bytes(intent.call_id);
    if let Some(free_from) = change.release.lock_from {
        let is_free = free_from <= change.record.updated_at;
        let sql = "UPDATE sessions SET lock_call = iif(?3, NULL, lock_call), lock_free_from = iif(?3, NULL, ?4)
                 WHERE session = ?1 AND lock_call = ?2 AND lock_token IS ?5";
        let lock = params![
            SessionKey::of(&intent.tenant, &intent.session_id),
            call_id,
            is_free,
            free_from.as_microsecond(),
            change.record.fencing.map(integer),
        ];
        execute(connection, sql, lock)?;
    }
    if let Some(group) = change.release.similar {
        let sql = "DELETE FROM places WHERE room = ?1 AND call_id = ?2";
        execute(connection, sql, params![room(group), call_id])?;
    }
    Ok(())
}

pub(super) fn lock_of(
    connection: &Connection,
    session: SessionKey,
) -> rusqlite::Result<Option<Lock>> {
    let sql = "SELECT lock_call, lock_token, lock_lease, lock_free_from FROM sessions
             WHERE session = ?1 AND lock_call IS NOT NULL";
    first(connection, sql, [session], |row| {
        let mut columns = Columns::of(row);
        Ok(Lock {
            call_id: CallId(columns.read::<Identity>()?.0),
            token: columns.read::<i64>()?.unsigned_abs(),
            lease_until: columns.time()?,
            free_from: columns.maybe_time()?,
        })
    })
}

pub(super) fn line_of(
    connection: &Connection,
    session: SessionKey,
) -> rusqlite::Result<Vec<(CallId, Timestamp)>> {
    let sql = "SELECT call_id, came_at FROM line WHERE session = ?1 ORDER BY came_at";
    all(connection, sql, [session], |row| {
        let mut columns = Columns::of(row);
        Ok((CallId(columns.read::<Identity>()?.0), columns.time()?))
    })
}

pub(super) fn leave_line(
    connection: &Connection,
    id: &SessionId,
    call_id: CallId,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM line WHERE session = ?1 AND call_id = ?2";
    let session = SessionKey::of(&id.tenant, &id.id);
    execute(connection, sql, params![session, bytes(call_id)]).map(drop)
}
