//! Paused tools, and what operators have done to a tool. Must not know what that means.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::Sqlite;
use super::row::event;
use super::worker::Need;
use crate::core::record::Entry;
use crate::store::{Error, Pauses};

/// The newest entries of a tool that are kept.
const MAX_EVENTS: u32 = 100;

#[async_trait]
impl Pauses for Sqlite {
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.readers.calls.read(paused).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        let (tool, entry) = (tool.to_owned(), entry.clone());
        let set = move |connection: &Connection| set_paused(connection, &tool, paused, &entry);
        self.writer.run(Need::Plain, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let tool = tool.to_owned();
        let read = move |connection: &Connection| events(connection, &tool);
        self.readers.ledger.read(read).await
    }
}

fn paused(connection: &Connection) -> rusqlite::Result<Vec<(String, Entry)>> {
    let mut tools =
        connection.prepare_cached("SELECT at, event, actor, detail, tool FROM paused_tools")?;
    let tools = tools.query_map([], |row| Ok((row.get("tool")?, event(row)?)))?;
    tools.collect()
}

fn set_paused(
    connection: &Connection,
    tool: &str,
    paused: bool,
    entry: &Entry,
) -> rusqlite::Result<bool> {
    let at = entry.at.as_microsecond();
    let changed = if paused {
        connection
            .prepare_cached(
                "INSERT INTO paused_tools (tool, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![tool, at, entry.event, entry.by, entry.detail])?
    } else {
        connection
            .prepare_cached("DELETE FROM paused_tools WHERE tool = ?1")?
            .execute([tool])?
    };
    if changed > 0 {
        connection
            .prepare_cached(
                "INSERT INTO tool_events (tool, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![tool, at, entry.event, entry.by, entry.detail])?;
        connection
            .prepare_cached(
                "DELETE FROM tool_events WHERE tool = ?1 AND seq NOT IN
                 (SELECT seq FROM tool_events WHERE tool = ?1 ORDER BY seq DESC LIMIT ?2)",
            )?
            .execute(params![tool, MAX_EVENTS])?;
    }
    Ok(changed > 0)
}

fn events(connection: &Connection, tool: &str) -> rusqlite::Result<Vec<Entry>> {
    let mut events = connection.prepare_cached(
        "SELECT at, event, actor, detail FROM tool_events WHERE tool = ?1 ORDER BY seq",
    )?;
    let events = events.query_map([tool], event)?;
    events.collect()
}
