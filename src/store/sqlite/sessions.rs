//! Sessions for operators, and their acts. Must not decide anything.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::Sqlite;
use super::query::{all, execute};
use super::row::{event, integer};
use super::session::{SessionKey, leave_line, line_of, lock_of, newest};
use super::worker::Need;
use crate::core::record::{CallId, Entry};
use crate::core::session::{Lock, Session, SessionId};
use crate::store::{Error, Sessions};

/// How long a session without a call is kept.
///
/// Its next token is still greater than every earlier one, because tokens never fall behind the
/// clock.
const SESSION_MEMORY_US: i64 = 7 * 24 * 3_600 * 1_000_000;
/// Most entries of a session that are kept, the newest.
const MAX_EVENTS: u32 = 100;

#[async_trait]
impl Sessions for Sqlite {
    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let id = id.clone();
        let look = move |connection: &Connection| {
            let session = SessionKey::of(&id.tenant, &id.id);
            let found = newest(connection, session)?;
            let (token, frozen) = found.unwrap_or_default();
            let sql = "SELECT at, event, actor, detail FROM session_events
                 WHERE session = ?1 ORDER BY seq";
            Ok(Session {
                token: (token > 0).then_some(token),
                lock: lock_of(connection, session)?,
                waiting: line_of(connection, session)?,
                frozen,
                events: all(connection, sql, [session], event)?,
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
            let call_id = lock.call_id.0.into_bytes();
            let this = params![session, call_id, integer(lock.token)];
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
        let id = id.clone();
        let leave = move |connection: &Connection| leave_line(connection, &id, call_id);
        self.writer.run(Need::Plain, leave).await?;
        self.endings.say(call_id);
        Ok(())
    }
}

fn insert_event(
    connection: &Connection,
    session: SessionKey,
    entry: &Entry,
) -> rusqlite::Result<()> {
    let at = entry.at.as_microsecond();
    let sql = "INSERT INTO session_events (session, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)";
    let noted = params![session, at, entry.event, entry.by, entry.detail];
    execute(connection, sql, noted)?;
    let sql = "DELETE FROM session_events WHERE session = ?1 AND seq NOT IN
             (SELECT seq FROM session_events WHERE session = ?1 ORDER BY seq DESC LIMIT ?2)";
    execute(connection, sql, params![session, MAX_EVENTS])?;
    let sql = "UPDATE sessions SET touched_at = ?2 WHERE session = ?1";
    execute(connection, sql, params![session, at]).map(drop)
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
