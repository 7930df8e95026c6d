//! Sessions for operators, and their acts. Must not decide anything.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::query::{all, execute};
use super::row::integer;
use super::session::{SessionKey, leave_line, line_of, lock_of, newest};
use super::worker::Need;
use super::{Sqlite, events};
use crate::core::record::{CallId, Entry};
use crate::core::session::{Lock, Session, SessionId};
use crate::store::{Error, Sessions};

/// How long a session without a call is kept.
///
/// The next token of a deleted session is still above its earlier ones: tokens never fall behind the clock.
const SESSION_MEMORY_US: i64 = 7 * 24 * 3_600 * 1_000_000;

#[async_trait]
impl Sessions for Sqlite {
    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let session = SessionKey::of(&id.tenant, &id.id);
        let look = move |connection: &Connection| {
            let (token, frozen) = newest(connection, session)?.unwrap_or_default();
            Ok(Session {
                token: (token > 0).then_some(token),
                lock: lock_of(connection, session)?,
                waiting: line_of(connection, session)?,
                frozen,
                events: events::all(connection, "session", session)?,
            })
        };
        self.readers.calls.read(look).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let session = SessionKey::of(&id.tenant, &id.id);
        let (lock, entry, gate) = (*lock, entry.clone(), self.gate.clone());
        let unlock = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "UPDATE sessions SET lock_call = NULL, lock_free_from = NULL
                 WHERE session = ?1 AND lock_call = ?2 AND lock_token = ?3";
            let this = params![session, lock.call_id.0, integer(lock.token)];
            let unlocked = execute(connection, sql, this)? > 0;
            if unlocked {
                insert_event(connection, session, &entry)?;
            }
            Ok(unlocked)
        };
        let unlocked = self.writer.run(Need::Plain, unlock).await?;
        self.endings.say(lock.call_id);
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        let session = SessionKey::of(&id.tenant, &id.id);
        let (entry, gate) = (entry.clone(), self.gate.clone());
        let freeze = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "INSERT INTO sessions (session, token) VALUES (?1, 0) ON CONFLICT DO NOTHING";
            execute(connection, sql, [session])?;
            let sql = "UPDATE sessions SET frozen = ?2 WHERE session = ?1 AND frozen <> ?2";
            let changed = execute(connection, sql, params![session, frozen])? > 0;
            if changed {
                insert_event(connection, session, &entry)?;
            }
            Ok(changed)
        };
        self.writer.run(Need::Plain, freeze).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        let session = SessionKey::of(&id.tenant, &id.id);
        let leave = move |connection: &Connection| leave_line(connection, session, call_id);
        self.writer.run(Need::Plain, leave).await?;
        self.endings.say(call_id);
        Ok(())
    }
}

/// Adds an act on a session, which keeps the session from cleanup.
fn insert_event(
    connection: &Connection,
    session: SessionKey,
    entry: &Entry,
) -> rusqlite::Result<()> {
    events::insert(connection, "session", session, entry)?;
    let sql = "UPDATE sessions SET touched_at = ?2 WHERE session = ?1";
    let touched = params![session, entry.at.as_microsecond()];
    execute(connection, sql, touched).map(drop)
}

/// Deletes expired places, lines and sessions, at most `limit` of each.
///
/// Answers the largest of the three counts.
pub(super) fn prune(connection: &Connection, now: i64, limit: u32) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM places WHERE (room, call_id) IN
             (SELECT room, call_id FROM places WHERE place_until <= ?1 LIMIT ?2)";
    let places = execute(connection, sql, params![now, limit])?;
    let sql = "DELETE FROM line WHERE (session, call_id) IN
             (SELECT session, call_id FROM line WHERE place_until <= ?1 LIMIT ?2)";
    let line = execute(connection, sql, params![now, limit])?;
    let sql = "SELECT session FROM sessions
         WHERE token < ?1 AND touched_at < ?1 AND frozen = 0
            AND (lock_call IS NULL OR lock_free_from < ?1) LIMIT ?2";
    let long_ago = params![now - SESSION_MEMORY_US, limit];
    let idle: Vec<Vec<u8>> = all(connection, sql, long_ago, |row| row.get(0))?;
    for session in &idle {
        for sql in [
            "DELETE FROM session_events WHERE session = ?1",
            "DELETE FROM sessions WHERE session = ?1",
        ] {
            execute(connection, sql, [session])?;
        }
    }
    Ok(places.max(line).max(idle.len()))
}
