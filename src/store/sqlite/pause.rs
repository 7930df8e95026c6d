//! Tools that persons have paused, and what persons have done to a tool. Must not know what that means.

use rusqlite::{Connection, Row, params};

use super::row::Columns;
use crate::core::record::Entry;

/// What persons have done to a tool: the newest that are kept.
const MAX_EVENTS: u32 = 100;

pub(super) fn paused(connection: &Connection) -> rusqlite::Result<Vec<(String, Entry)>> {
    let mut tools =
        connection.prepare_cached("SELECT at, event, actor, detail, tool FROM paused_tools")?;
    let tools = tools.query_map([], |row| Ok((row.get("tool")?, entry(row)?)))?;
    tools.collect()
}

pub(super) fn set_paused(
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

pub(super) fn events(connection: &Connection, tool: &str) -> rusqlite::Result<Vec<Entry>> {
    let mut events = connection.prepare_cached(
        "SELECT at, event, actor, detail FROM tool_events WHERE tool = ?1 ORDER BY seq",
    )?;
    let events = events.query_map([tool], entry)?;
    events.collect()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let mut columns = Columns::of(row);
    Ok(Entry {
        at: columns.time()?,
        event: columns.read::<String>()?.into(),
        attempt: None,
        outcome: None,
        by: columns.read()?,
        detail: columns.read()?,
    })
}
