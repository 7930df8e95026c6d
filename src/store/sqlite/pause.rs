//! Paused tools, and the acts of operators on a tool. Must not know what they mean.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::query::{all, execute};
use super::worker::Need;
use super::{Sqlite, events};
use crate::core::record::Entry;
use crate::store::{Error, Pauses};

#[async_trait]
impl Pauses for Sqlite {
    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        let paused = |connection: &Connection| {
            let sql = "SELECT at, event, actor, detail, tool FROM paused_tools";
            all(connection, sql, [], |row| {
                Ok((row.get(4)?, events::read(row)?))
            })
        };
        self.readers.calls.read(paused).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
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
                events::insert(connection, "tool", &tool, &entry)?;
            }
            Ok(changed > 0)
        };
        self.writer.run(Need::Plain, set).await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        let tool = tool.to_owned();
        let read = move |connection: &Connection| events::all(connection, "tool", &tool);
        self.readers.ledger.read(read).await
    }
}
