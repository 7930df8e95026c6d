//! Compares the conditions of a claim, and writes tokens, locks and places, in its transaction.
//!
//! Must not decide anything: it compares and writes what the change says.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Error, Result, params};

use super::row::{integer, maybe_time, time};
use crate::query::{all, execute, first};
use oncegate_rules::call::Change;
use oncegate_rules::key::GroupKey;
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::session::{self, Admission, BudgetRule, Denied, LINE_ENTRY, Line, Lock, Token};
use oncegate_rules::time::after;
use oncegate_store::search::{group_key, session_key};

/// Most calls of a near-duplicate group that are kept. Only the newest counts.
const MAX_ALIKE: u32 = 16;

/// The key of a session.
pub(crate) type SessionKey = [u8; 16];

/// Compares a change's conditions; if they hold, writes token, lock and places.
///
/// Returns the record as it is to be stored. If a condition does not hold, only a place in the line
/// is written.
pub(crate) fn enter(connection: &Connection, change: &Change) -> Result<Result<Record, Denied>> {
    let mut record = change.record.clone();
    let Some(admission) = &change.admission else {
        return Ok(Ok(record));
    };
    let now = record.updated_at;
    let session = session_key(&record.intent.tenant, &record.intent.session_id);
    let entrant = Entrant {
        connection,
        session,
        newest: newest(connection, session)?,
        call_id: record.intent.call_id,
        now,
    };
    if let Some(denied) = entrant.denied(admission)? {
        return Ok(Err(denied));
    }
    if admission.token != Token::Undrawn {
        record.fencing = Some(entrant.draw(admission.token)?);
    }
    if let Some(budget) = &admission.budget {
        entrant.join(budget.group, after(now, budget.window))?;
    }
    if let Some(similar) = &admission.similar {
        let group = similar.group;
        record.similar_to = entrant.newest_alike(group)?;
        entrant.join(group, after(now, similar.window))?;
        let sql = "DELETE FROM places WHERE room = ?1 AND call_id NOT IN
             (SELECT call_id FROM places WHERE room = ?1 ORDER BY place_until DESC, call_id DESC LIMIT ?2)";
        execute(connection, sql, params![group_key(group), MAX_ALIKE])?;
    }
    if admission.lock.is_some() {
        entrant.take_lock(&record)?;
    }
    Ok(Ok(record))
}

/// A call that asks to begin.
struct Entrant<'a> {
    connection: &'a Connection,
    session: SessionKey,
    /// The newest token of the session, and whether it is frozen.
    newest: Option<(u64, bool)>,
    call_id: CallId,
    now: Timestamp,
}

impl Entrant<'_> {
    /// The first condition that does not hold.
    ///
    /// The lock comes last: a call that another condition refuses must not wait for it.
    fn denied(&self, admission: &Admission) -> Result<Option<Denied>> {
        if self.newest.is_some_and(|(_, frozen)| frozen) {
            return Ok(Some(Denied::Frozen));
        }
        if let Token::This(_) = admission.token {
            let newest = self.newest.map(|(token, _)| token);
            let accepted = accepted(self.connection)?.unsigned_abs();
            if let Some(denied) = session::token_denied(admission.token, newest, accepted) {
                return Ok(Some(denied));
            }
        }
        // The budget comes after it: a call that an earlier one answers costs nothing.
        if let Some(similar) = admission.similar.filter(|similar| similar.refuses)
            && let Some(call_id) = self.newest_alike(similar.group)?
            && Some(call_id) != similar.confirmed
        {
            return Ok(Some(Denied::Similar { call_id }));
        }
        if let Some(budget) = &admission.budget
            && let Some(frees_at) = self.is_spent(budget)?
        {
            return Ok(Some(Denied::Spent { frees_at }));
        }
        match admission.lock {
            Some(line) => self.is_busy(line),
            None => Ok(None),
        }
    }

    /// When a budget has room again for a call without a place in it. `None`: it has room now.
    fn is_spent(&self, budget: &BudgetRule) -> Result<Option<Timestamp>> {
        // The place whose end makes room: all but `max - 1` of the newer ones have ended by then.
        let sql = "SELECT place_until FROM places WHERE room = ?1 AND place_until > ?2
                AND NOT EXISTS (SELECT 1 FROM places WHERE room = ?1 AND call_id = ?3 AND place_until > ?2)
             ORDER BY place_until DESC LIMIT 1 OFFSET ?4";
        let now = self.now.as_microsecond();
        let newer = budget.max.saturating_sub(1);
        let entry = params![group_key(budget.group), now, self.call_id.0, newer];
        first(self.connection, sql, entry, |row| time(row, 0))
    }

    /// The newest other call of a group.
    fn newest_alike(&self, group: GroupKey) -> Result<Option<CallId>> {
        let sql =
            "SELECT call_id FROM places WHERE room = ?1 AND place_until > ?2 AND call_id <> ?3
             ORDER BY place_until DESC, call_id DESC LIMIT 1";
        let others = params![group_key(group), self.now.as_microsecond(), self.call_id.0];
        first(self.connection, sql, others, |row| row.get(0).map(CallId))
    }

    /// Why the call does not get the session's lock: another call holds it, or waits before it.
    ///
    /// A call that waits gets a place in the line, or keeps it, if the line is not too long.
    fn is_busy(&self, line: Line) -> Result<Option<Denied>> {
        // A call that did not ask again in time has lost its place.
        let sql = "DELETE FROM line WHERE session = ?1 AND place_until <= ?2";
        let ended = params![self.session, self.now.as_microsecond()];
        execute(self.connection, sql, ended)?;
        let is_free = |lock: &Lock| {
            lock.call_id == self.call_id || lock.free_from.is_some_and(|from| from <= self.now)
        };
        let lock = lock_of(self.connection, self.session)?.filter(|lock| !is_free(lock));
        let waiting = line_of(self.connection, self.session)?;
        let entry = waiting.iter().position(|(waits, _)| *waits == self.call_id);
        let ahead = entry.unwrap_or(waiting.len());
        let in_front = ahead.checked_sub(1).map(|last| waiting[last].0);
        let Some(behind) = in_front.or(lock.map(|lock| lock.call_id)) else {
            return Ok(None);
        };
        let is_free = match line {
            Line::Waits { longest } => entry.is_some() || waiting.len() < longest as usize,
            Line::Leaves => false,
        };
        if !is_free {
            return Ok(Some(Denied::Busy { lock, behind: None }));
        }
        // Two calls within one microsecond stand in the order in which they were written.
        let came_at = waiting.last().map_or(self.now, |(_, last)| {
            self.now.max(after(*last, Duration::from_micros(1)))
        });
        let sql =
            "INSERT INTO line (session, call_id, came_at, place_until) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET place_until = excluded.place_until";
        let (came_at, until) = (came_at.as_microsecond(), after(self.now, LINE_ENTRY));
        let entry = params![
            self.session,
            self.call_id.0,
            came_at,
            until.as_microsecond()
        ];
        execute(self.connection, sql, entry)?;
        let behind = Some(behind);
        Ok(Some(Denied::Busy { lock, behind }))
    }

    /// Draws the call's fencing token, which becomes the session's newest.
    fn draw(&self, token: Token) -> Result<u64> {
        // At least the time in microseconds, so that tokens rise even if the table is lost; and above all tokens that
        // were given out before an accepted loss.
        let (least, step) = match token {
            Token::Next | Token::Undrawn => (self.now.as_microsecond(), 1),
            Token::This(token) => (integer(token), 0),
        };
        let above = |token: i64| token.checked_add(step).ok_or_else(beyond_all);
        let floor = match step {
            0 => 0,
            _ => above(accepted(self.connection)?)?,
        };
        let own = self.newest.map(|(token, _)| above(integer(token)));
        let drawn = least.max(floor).max(own.transpose()?.unwrap_or(0));
        // No upsert, and no RETURNING: for those SQLite first copies the pages that it changes.
        let sql = match self.newest {
            Some(_) => "UPDATE sessions SET token = ?2 WHERE session = ?1",
            None => "INSERT INTO sessions (session, token) VALUES (?1, ?2)",
        };
        match execute(self.connection, sql, params![self.session, drawn])? {
            1 => Ok(drawn.unsigned_abs()),
            changed => Err(Error::StatementChangedRows(changed)),
        }
    }

    /// Gives the call a place in a group, or a longer time in it if its time is over.
    fn join(&self, group: GroupKey, until: Timestamp) -> Result<()> {
        let sql = "INSERT INTO places (room, call_id, place_until) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET place_until = excluded.place_until WHERE place_until <= ?4";
        let (until, now) = (until.as_microsecond(), self.now.as_microsecond());
        let entry = params![group_key(group), self.call_id.0, until, now];
        execute(self.connection, sql, entry).map(drop)
    }

    fn take_lock(&self, record: &Record) -> Result<()> {
        let sql = "UPDATE sessions SET lock_call = ?2, lock_token = ?3, lock_lease = ?4, lock_free_from = NULL
                 WHERE session = ?1";
        let lease_until = record.attempt.lease_until.as_microsecond();
        let token = record.fencing.map(integer);
        let lock = params![self.session, self.call_id.0, token, lease_until];
        execute(self.connection, sql, lock)?;
        leave_line(self.connection, self.session, self.call_id)
    }
}

/// The error for a token above which there is none.
fn beyond_all() -> Error {
    Error::IntegralValueOutOfRange(0, i64::MAX)
}

/// The highest token that may have been given out before the last accepted loss.
fn accepted(connection: &Connection) -> Result<i64> {
    let sql = "SELECT token FROM ledger";
    let accepted = first(connection, sql, [], |row| row.get(0))?;
    accepted.ok_or(Error::QueryReturnedNoRows)
}

/// The newest token of a session, and whether it is frozen.
pub(crate) fn newest(connection: &Connection, session: SessionKey) -> Result<Option<(u64, bool)>> {
    let sql = "SELECT token, frozen FROM sessions WHERE session = ?1";
    first(connection, sql, [session], |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
    })
}

/// Frees lock and place of a change, if this run of the call has them.
pub(crate) fn release(connection: &Connection, change: &Change) -> Result<()> {
    let intent = &change.record.intent;
    let call_id = intent.call_id.0;
    if let Some(free_from) = change.release.lock_from {
        let is_free = free_from <= change.record.updated_at;
        let sql = "UPDATE sessions SET lock_call = iif(?3, NULL, lock_call), lock_free_from = iif(?3, NULL, ?4)
                 WHERE session = ?1 AND lock_call = ?2 AND lock_token IS ?5";
        let session = session_key(&intent.tenant, &intent.session_id);
        let free_from = free_from.as_microsecond();
        let token = change.record.fencing.map(integer);
        let lock = params![session, call_id, is_free, free_from, token];
        execute(connection, sql, lock)?;
    }
    if let Some(group) = change.release.similar {
        let sql = "DELETE FROM places WHERE room = ?1 AND call_id = ?2";
        execute(connection, sql, params![group_key(group), call_id])?;
    }
    Ok(())
}

pub(crate) fn lock_of(connection: &Connection, session: SessionKey) -> Result<Option<Lock>> {
    let sql = "SELECT lock_call, lock_token, lock_lease, lock_free_from FROM sessions
             WHERE session = ?1 AND lock_call IS NOT NULL";
    first(connection, sql, [session], |row| {
        Ok(Lock {
            call_id: CallId(row.get(0)?),
            token: row.get::<_, i64>(1)?.unsigned_abs(),
            lease_until: time(row, 2)?,
            free_from: maybe_time(row, 3)?,
        })
    })
}

/// The calls that wait for a session's lock, and since when, in their order.
pub(crate) fn line_of(
    connection: &Connection,
    session: SessionKey,
) -> Result<Vec<(CallId, Timestamp)>> {
    let sql = "SELECT call_id, came_at FROM line WHERE session = ?1 ORDER BY came_at";
    all(connection, sql, [session], |row| {
        Ok((CallId(row.get(0)?), time(row, 1)?))
    })
}

pub(crate) fn leave_line(
    connection: &Connection,
    session: SessionKey,
    call_id: CallId,
) -> Result<()> {
    let sql = "DELETE FROM line WHERE session = ?1 AND call_id = ?2";
    execute(connection, sql, params![session, call_id.0]).map(drop)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SESSION: SessionKey = [1; 16];

    fn call(n: u128) -> CallId {
        CallId(Uuid::from_u128(n))
    }

    /// A file in which call 1 has the lock until the second 100.
    fn locked() -> Connection {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch(include_str!("../schema.sql"))
            .expect("tables");
        let sql = "INSERT INTO sessions (session, token, lock_call, lock_token, lock_lease, lock_free_from)
             VALUES (?1, 7, ?2, 7, ?3, ?3)";
        execute(
            &connection,
            sql,
            params![SESSION, call(1).0, 100_000_000_i64],
        )
        .expect("a lock");
        connection
    }

    /// Call `n` asks for the lock at this second, and waits if no other call does.
    fn asks(connection: &Connection, n: u128, second: i64) -> Option<Denied> {
        let entrant = Entrant {
            connection,
            session: SESSION,
            newest: None,
            call_id: call(n),
            now: Timestamp::from_second(second).expect("a time"),
        };
        let waits = Line::Waits { longest: 1 };
        entrant.is_busy(waits).expect("an answer")
    }

    fn is_behind(denied: Option<Denied>, call: Option<CallId>) -> bool {
        matches!(denied, Some(Denied::Busy { behind, .. }) if behind == call)
    }

    #[test]
    fn a_lock_is_free_for_its_call_and_from_its_time_on_for_all() {
        let connection = locked();
        assert_eq!(asks(&connection, 1, 50), None, "its own");
        assert!(is_behind(asks(&connection, 2, 99), Some(call(1))));
        assert_eq!(asks(&connection, 2, 100), None);
    }

    #[test]
    fn a_call_that_finds_the_line_full_gets_no_place_and_the_others_keep_theirs() {
        let connection = locked();
        assert!(is_behind(asks(&connection, 2, 50), Some(call(1))));
        assert!(is_behind(asks(&connection, 3, 50), None));
        assert!(is_behind(asks(&connection, 2, 51), Some(call(1))));
        let waiting = line_of(&connection, SESSION).expect("a line");
        assert_eq!(waiting.len(), 1, "{waiting:?}");
    }
}
