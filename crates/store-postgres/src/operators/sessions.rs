//! Sessions and pauses as operators see them, and the acts of operators. Must not know what they mean.

use async_trait::async_trait;
use tokio::try_join;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::calls::session::{self, time};
use crate::link::lanes::Verb;
use crate::link::rows::{get, signed};
use crate::link::{Param, params};
use crate::store::Postgres;
use oncegate_rules::key;
use oncegate_rules::record::{CallId, Entry};
use oncegate_rules::session::{Lock as SessionLock, Session, SessionId};
use oncegate_store::search::session_key;
use oncegate_store::{Pauses, Result, Sessions};

const SESSION: &str = "SELECT s.frozen, s.lock_call, s.lock_token, s.lock_lease, s.lock_free_from,
    greatest(s.token, (SELECT max(fencing) FROM calls WHERE session = q.id AND fencing IS NOT NULL))
    FROM (SELECT $1::uuid AS id) q LEFT JOIN sessions s ON s.session = q.id";
const LINE: &str = "SELECT call_id, came_at FROM line WHERE session = $1 ORDER BY came_at";
const ACTS: &str = "SELECT at, event, actor, detail FROM acts WHERE about = $1 ORDER BY seq";
const UNLOCK: &str = "unlock_1";
const FREEZE: &str = "freeze_1";
const LEAVE_LINE: &str = "leave_line_1";
const PAUSED: &str = "SELECT at, event, actor, detail, tool FROM paused_tools";
const PAUSE: &str = "pause_1";

#[async_trait]
impl Sessions for Postgres {
    async fn session(&self, id: &SessionId) -> Result<Session> {
        let key = Uuid::from_bytes(session_key(&id.tenant, &id.id));
        let calls = &self.server.calls;
        let params: [&(dyn ToSql + Sync); 1] = [&key];
        let (session, line, acts) = try_join!(
            calls.ask(SESSION, &params),
            calls.ask(LINE, &params),
            calls.ask(ACTS, &params)
        )?;
        let waits = |row: &Row| Ok((CallId(get(row, 0)?), time(get(row, 1)?)?));
        let mut found = Session {
            waiting: line.iter().map(waits).collect::<Result<_>>()?,
            events: acts.iter().map(act).collect::<Result<_>>()?,
            ..Session::default()
        };
        if let Some(row) = session.first() {
            found.frozen = get::<Option<bool>>(row, 0)?.unwrap_or(false);
            let holder: Option<Uuid> = get(row, 1)?;
            found.lock =
                session::lock(holder.map(CallId), get(row, 2)?, get(row, 3)?, get(row, 4)?)?;
            let token: Option<i64> = get(row, 5)?;
            found.token = token.map(i64::unsigned_abs).filter(|token| *token > 0);
        }
        Ok(found)
    }

    async fn unlock(&self, id: &SessionId, lock: &SessionLock, entry: &Entry) -> Result<bool> {
        let key = session_key(&id.tenant, &id.id);
        let mut params = params![Uuid::from_bytes(key), lock.call_id.0, signed(lock.token)];
        params.extend(columns(entry));
        let unlocked = self.act(Verb::about(&key, UNLOCK, params)).await?;
        self.say_ended(lock.call_id);
        Ok(unlocked)
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool> {
        let key = session_key(&id.tenant, &id.id);
        let mut params = params![Uuid::from_bytes(key), frozen];
        params.extend(columns(entry));
        self.act(Verb::about(&key, FREEZE, params)).await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<()> {
        let key = session_key(&id.tenant, &id.id);
        let params = params![Uuid::from_bytes(key), call_id.0];
        let verb = Verb::about(&key, LEAVE_LINE, params);
        self.server.lanes.run(verb).await?;
        self.say_ended(call_id);
        Ok(())
    }
}

#[async_trait]
impl Pauses for Postgres {
    async fn paused(&self) -> Result<Vec<(String, Entry)>> {
        let rows = self.server.calls.ask(PAUSED, &[]).await?;
        rows.iter()
            .map(|row| Ok((get(row, 4)?, act(row)?)))
            .collect()
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool> {
        let about = about(tool);
        let mut params = params![Uuid::from_bytes(about), tool.to_owned(), paused];
        params.extend(columns(entry));
        let verb = Verb::about(&about, PAUSE, params);
        let answer = self.server.lanes.run(verb).await?;
        self.server.prove().await;
        get(&answer, 0)
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>> {
        let about = Uuid::from_bytes(about(tool));
        let rows = self.server.ledger.ask(ACTS, &[&about]).await?;
        rows.iter().map(act).collect()
    }
}

impl Postgres {
    /// An act of an operator on a session. It is refused while data may be missing.
    async fn act(&self, verb: Verb) -> Result<bool> {
        if self.server.status.is_in_doubt() {
            self.server.status.must_be_open()?;
        }
        let answer = self.server.lanes.run(verb).await?;
        self.server.prove().await;
        get(&answer, 0)
    }
}

/// What names the acts on a tool.
fn about(tool: &str) -> [u8; 16] {
    key::digest(["tool", tool]).as_chunks().0[0]
}

/// The columns of an act: time, event, actor and detail. A text has no NUL in PostgreSQL.
fn columns(entry: &Entry) -> Vec<Param> {
    let text = |text: &str| text.replace('\0', "\u{fffd}");
    params![
        entry.at.as_microsecond(),
        text(&entry.event),
        text(&entry.by),
        text(&entry.detail),
    ]
}

/// Reads an act from the first columns. It has no attempt and no outcome.
fn act(row: &Row) -> Result<Entry> {
    let (event, by, detail): (String, String, String) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
    Ok(Entry::new(time(get(row, 0)?)?, event, by, detail))
}
