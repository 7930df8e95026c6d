//! Paused tools, and the acts of operators on a tool. Must not know what they mean.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::Sqlite;
use super::query::{all, execute};
use super::row::event;
use super::worker::Need;
use crate::core::record::Entry;
use crate::store::{Error, Pauses};

/// Most entries of a tool that are kept, the newest.
const MAX_EVENTS: u32 = 100;

#[async_trait]
impl Pauses for Sqlite {
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        let paused = |connection: &Connection| {
            let sql = "SELECT at, event, actor, detail, tool FROM paused_tools";
            all(connection, sql, [], |row| Ok((row.get(4)?, event(row)?)))
        };
        self.readers.calls.read(paused).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        let (tool, entry) = (tool.to_owned(), entry.clone());
        let set = move |connection: &Connection| {
            let at = entry.at.as_microsecond();
            let noted = params![tool, at, entry.event, entry.by, entry.detail];
            let changed = if paused {
                let sql = "INSERT INTO paused_tools (tool, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO NOTHING";
                execute(connection, sql, noted)?
            } else {
                execute(
                    connection,
                    "DELETE FROM paused_tools WHERE tool = ?1",
                    [&tool],
                )?
            };
            if changed > 0 {
                let sql = "INSERT INTO tool_events (tool, at, event, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5)";
                execute(connection, sql, noted)?;
                let sql = "DELETE FROM tool_events WHERE tool = ?1 AND seq NOT IN
                     (SELECT seq FROM tool_events WHERE tool = ?1 ORDER BY seq DESC LIMIT ?2)";
                execute(connection, sql, params![tool, MAX_EVENTS])?;
            }
            Ok(changed > 0)
        };
        self.writer.run(Need::Plain, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let tool = tool.to_owned();
        let read = move |connection: &Connection| {
            let sql =
                "SELECT at, event, actor, detail FROM tool_events WHERE tool = ?1 ORDER BY seq";
            all(connection, sql, [&tool], event)
        };
        self.readers.ledger.read(read).await
    }
}
