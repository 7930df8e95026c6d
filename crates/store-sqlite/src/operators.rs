//! Sessions and pauses as operators see them, and the acts of operators. Must not know what they mean.

use async_trait::async_trait;
use rusqlite::{Connection, Row, ToSql, params};

use super::Sqlite;
use super::query::{all, execute};
use super::worker::Need;
use crate::calls::row::{integer, time};
use crate::calls::session::{SessionKey, leave_line, line_of, lock_of, newest};
use oncegate_rules::record::{CallId, Entry};
use oncegate_rules::session::{Lock, Session, SessionId};
use oncegate_store::search::session_key;
use oncegate_store::{Pauses, Result, Sessions};

/// How long a session without a call is kept.
///
/// The next token of a deleted session is still above its earlier ones: tokens never fall behind the clock.
const SESSION_MEMORY_US: i64 = 7 * 24 * 3_600 * 1_000_000;
/// Most acts on one session or tool that are kept, the newest.
const MAX_ACTS: u32 = 100;

#[async_trait]
impl Sessions for Sqlite {
    async fn session(&self, id: &SessionId) -> Result<Session> {
        let session = session_key(&id.tenant, &id.id);
        let look = move |connection: &Connection| {
            let (token, frozen) = newest(connection, session)?.unwrap_or_default();
            Ok(Session {
                token: (token > 0).then_some(token),
                lock: lock_of(connection, session)?,
                waiting: line_of(connection, session)?,
                frozen,
                events: acts(connection, "session", session)?,
            })
        };
        self.readers.calls.read(look).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool> {
        let session = session_key(&id.tenant, &id.id);
        let (lock, entry, gate) = (*lock, entry.clone(), self.gate.clone());
        let unlock = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "UPDATE sessions SET lock_call = NULL, lock_free_from = NULL
                 WHERE session = ?1 AND lock_call = ?2 AND lock_token = ?3";
            let this = params![session, lock.call_id.0, integer(lock.token)];
            let unlocked = execute(connection, sql, this)? > 0;
            if unlocked {
                insert_session_act(connection, session, &entry)?;
            }
            Ok(unlocked)
        };
        let unlocked = self.writer.run(Need::Plain, unlock).await?;
        self.endings.say(lock.call_id);
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool> {
        let session = session_key(&id.tenant, &id.id);
        let (entry, gate) = (entry.clone(), self.gate.clone());
        let freeze = move |connection: &Connection| {
            gate.must_be_whole()?;
            let sql = "INSERT INTO sessions (session, token) VALUES (?1, 0) ON CONFLICT DO NOTHING";
            execute(connection, sql, [session])?;
            let sql = "UPDATE sessions SET frozen = ?2 WHERE session = ?1 AND frozen <> ?2";
            let changed = execute(connection, sql, params![session, frozen])? > 0;
            if changed {
                insert_session_act(connection, session, &entry)?;
            }
            Ok(changed)
        };
        self.writer.run(Need::Plain, freeze).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<()> {
        let session = session_key(&id.tenant, &id.id);
        let leave = move |connection: &Connection| leave_line(connection, session, call_id);
        self.writer.run(Need::Plain, leave).await?;
        self.endings.say(call_id);
        Ok(())
    }
}

#[async_trait]
impl Pauses for Sqlite {
    async fn paused(&self) -> Result<Vec<(String, Entry)>> {
        let paused = |connection: &Connection| {
            let sql = "SELECT at, event, actor, detail, tool FROM paused_tools";
            all(connection, sql, [], |row| Ok((row.get(4)?, act(row)?)))
        };
        self.readers.calls.read(paused).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool> {
        let (tool, entry) = (tool.to_owned(), entry.clone());
        let set = move |connection: &Connection| {
            let changed = if paused {
                let at = entry.at.as_microsecond();
                let sql = "INSERT INTO paused_tools (tool, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO NOTHING";
                let act = params![tool, at, entry.event, entry.by, entry.detail];
                execute(connection, sql, act)?
            } else {
                let sql = "DELETE FROM paused_tools WHERE tool = ?1";
                execute(connection, sql, [&tool])?
            };
            if changed > 0 {
                insert_act(connection, "tool", &tool, &entry)?;
            }
            Ok(changed > 0)
        };
        self.writer.run(Need::Plain, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>> {
        let tool = tool.to_owned();
        let read = move |connection: &Connection| acts(connection, "tool", &tool);
        self.readers.ledger.read(read).await
    }
}

/// Adds an act on a session or a tool. `of` is `session` or `tool`: the table is named after it.
fn insert_act(
    connection: &Connection,
    of: &'static str,
    id: impl ToSql,
    entry: &Entry,
) -> rusqlite::Result<()> {
    let sql = format!(
        "INSERT INTO {of}_events ({of}, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)"
    );
    let at = entry.at.as_microsecond();
    let act = params![id, at, entry.event, entry.by, entry.detail];
    execute(connection, &sql, act)?;
    let sql = format!(
        "DELETE FROM {of}_events WHERE {of} = ?1 AND seq NOT IN
             (SELECT seq FROM {of}_events WHERE {of} = ?1 ORDER BY seq DESC LIMIT ?2)"
    );
    execute(connection, &sql, params![id, MAX_ACTS]).map(drop)
}

/// The acts on a session or a tool, oldest first.
fn acts(connection: &Connection, of: &'static str, id: impl ToSql) -> rusqlite::Result<Vec<Entry>> {
    let sql =
        format!("SELECT at, event, actor, detail FROM {of}_events WHERE {of} = ?1 ORDER BY seq");
    all(connection, &sql, [id], act)
}

/// Reads an act from the first columns. It has no attempt and no outcome.
fn act(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let (event, by, detail): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    Ok(Entry::new(time(row, 0)?, event, by, detail))
}

/// Adds an act on a session, which keeps the session from cleanup.
fn insert_session_act(
    connection: &Connection,
    session: SessionKey,
    entry: &Entry,
) -> rusqlite::Result<()> {
    insert_act(connection, "session", session, entry)?;
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
    let entries = execute(connection, sql, params![now, limit])?;
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
    Ok(entries.max(line).max(idle.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Damaged;

    #[tokio::test]
    async fn a_session_without_a_call_has_no_token() {
        let damaged = Damaged::new();
        let id = SessionId {
            tenant: "shop".into(),
            id: "S".into(),
        };
        let session = damaged.store.session(&id).await.expect("an answer");
        assert_eq!(session.token, None);
    }

    #[tokio::test]
    async fn cleanup_deletes_places_when_they_end_and_counts_them() {
        let damaged = Damaged::new();
        for sql in [
            "INSERT INTO places (room, call_id, place_until) VALUES (x'01', x'02', 5)",
            "INSERT INTO line (session, call_id, came_at, place_until) VALUES (x'01', x'02', 1, 5)",
        ] {
            damaged.file.execute(sql, []).expect("inserted");
            for (now, deleted) in [(4, 0), (5, 1), (6, 0)] {
                assert_eq!(prune(&damaged.file, now, 9), Ok(deleted), "{sql}: {now}");
            }
        }
    }
}
