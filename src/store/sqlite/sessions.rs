//! Sessions as operators see them, and what they do to them. Must not decide anything.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::Sqlite;
use super::query::{all, execute};
use super::row::{event, integer};
use super::session::{leave_line, line_of, lock_of, newest};
use super::worker::Need;
use crate::core::record::{CallId, Entry};
use crate::core::session::{Lock, Session, SessionId};
use crate::store::{Error, Sessions};

/// Sessions without a call for this long are forgotten. Their next token is still greater than
/// every earlier one, because tokens never fall behind the clock.
const SESSION_MEMORY_US: i64 = 7 * 24 * 3_600 * 1_000_000;
/// The newest entries of a session that are kept.
const MAX_EVENTS: u32 = 100;

#[async_trait]
impl Sessions for Sqlite {
    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let id = id.clone();
        let look = move |connection: &Connection| {
            let found = newest(connection, &id.tenant, &id.id)?;
            let (token, frozen) = found.unwrap_or_default();
            let sql = "SELECT at, event, actor, detail FROM session_events
                 WHERE tenant = ?1 AND session_id = ?2 ORDER BY seq";
            Ok(Session {
                token: (token > 0).then_some(token),
                lock: lock_of(connection, &id.tenant, &id.id)?,
                waiting: line_of(connection, &id.tenant, &id.id)?,
                frozen,
                events: all(connection, sql, [&id.tenant, &id.id], event)?,
            })
        };
        self.readers.calls.read(look).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        let (id, lock, entry, gate) = (id.clone(), *lock, entry.clone(), self.gate.clone());
        let unlock = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "UPDATE sessions SET lock_call = NULL, lock_free_from = NULL
                 WHERE tenant = ?1 AND session_id = ?2 AND lock_call = ?3 AND lock_token = ?4";
            let this = params![
                id.tenant,
                id.id,
                lock.call_id.to_string(),
                integer(lock.token)
            ];
            let unlocked = execute(connection, sql, this)? > 0;
            if unlocked {
                insert_event(connection, &id, &entry)?;
            }
            Ok(unlocked)
        };
        let unlocked = self.writer.run(Need::Plain, unlock).await?;
        self.endings.say(lock.call_id);
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        let (id, entry, gate) = (id.clone(), entry.clone(), self.gate.clone());
        let freeze = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "INSERT INTO sessions (tenant, session_id, token) VALUES (?1, ?2, 0) ON CONFLICT DO NOTHING";
            execute(connection, sql, [&id.tenant, &id.id])?;
            let sql = "UPDATE sessions SET frozen = ?3 WHERE tenant = ?1 AND session_id = ?2 AND frozen <> ?3";
            let changed = execute(connection, sql, params![id.tenant, id.id, frozen])? > 0;
            if changed {
                insert_event(connection, &id, &entry)?;
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

fn insert_event(connection: &Connection, id: &SessionId, entry: &Entry) -> rusqlite::Result<()> {
    let at = entry.at.as_microsecond();
    let sql = "INSERT INTO session_events (tenant, session_id, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let noted = params![id.tenant, id.id, at, entry.event, entry.by, entry.detail];
    execute(connection, sql, noted)?;
    let sql = "DELETE FROM session_events WHERE tenant = ?1 AND session_id = ?2 AND seq NOT IN
             (SELECT seq FROM session_events WHERE tenant = ?1 AND session_id = ?2 ORDER BY seq DESC LIMIT ?3)";
    execute(connection, sql, params![id.tenant, id.id, MAX_EVENTS])?;
    let sql = "UPDATE sessions SET touched_at = ?3 WHERE tenant = ?1 AND session_id = ?2";
    execute(connection, sql, params![id.tenant, id.id, at]).map(drop)
}

/// Deletes places, lines and sessions that are over, at most `limit` of each; answers the largest of the
/// three counts.
pub(super) fn prune(connection: &Connection, now: i64, limit: u32) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM places WHERE (room, call_id) IN
             (SELECT room, call_id FROM places WHERE place_until <= ?1 LIMIT ?2)";
    let places = execute(connection, sql, params![now, limit])?;
    let sql = "DELETE FROM line WHERE (tenant, session_id, call_id) IN
             (SELECT tenant, session_id, call_id FROM line WHERE place_until <= ?1 LIMIT ?2)";
    let line = execute(connection, sql, params![now, limit])?;
    let sql = "SELECT tenant, session_id FROM sessions
         WHERE token < ?1 AND touched_at < ?1 AND frozen = 0
            AND (lock_call IS NULL OR lock_free_from < ?1) LIMIT ?2";
    let idle = all(
        connection,
        sql,
        params![now - SESSION_MEMORY_US, limit],
        |row| Ok([row.get::<_, String>(0)?, row.get(1)?]),
    )?;
    for session in &idle {
        for sql in [
            "DELETE FROM session_events WHERE tenant = ?1 AND session_id = ?2",
            "DELETE FROM sessions WHERE tenant = ?1 AND session_id = ?2",
        ] {
            execute(connection, sql, [&session[0], &session[1]])?;
        }
    }
    Ok(places.max(line).max(idle.len()))
}
