//! The acts of operators on a session or a tool. Must not know what they mean.

use rusqlite::{Connection, Result, Row, ToSql, params};

use super::query::{self, execute};
use super::row::time;
use crate::core::record::Entry;

/// Most acts on one session or tool that are kept, the newest.
const MAX_EVENTS: u32 = 100;

/// Adds an act on a session or a tool. `of` is `session` or `tool`: the table is named after it.
pub(super) fn insert(
    connection: &Connection,
    of: &'static str,
    id: impl ToSql,
    entry: &Entry,
) -> Result<()> {
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
    execute(connection, &sql, params![id, MAX_EVENTS]).map(drop)
}

/// The acts on a session or a tool, oldest first.
pub(super) fn all(connection: &Connection, of: &'static str, id: impl ToSql) -> Result<Vec<Entry>> {
    let sql =
        format!("SELECT at, event, actor, detail FROM {of}_events WHERE {of} = ?1 ORDER BY seq");
    query::all(connection, &sql, [id], read)
}

/// Reads an act from the first columns. It has no attempt and no outcome.
pub(super) fn read(row: &Row<'_>) -> Result<Entry> {
    let (event, by, detail): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    Ok(Entry::new(time(row, 0)?, event, by, detail))
}
