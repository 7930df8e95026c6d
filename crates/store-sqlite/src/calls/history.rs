//! The history of a call: the newest entries in its row, older ones in the table `older`. Must not decide anything.

use rusqlite::{Connection, Result, params};

use crate::query::{blob, corrupt, execute, first};
use oncegate_rules::record::{Entry, Intent};
use oncegate_store::codec::{self, Unreadable};

/// From this length in bytes the history of a row moves into `older`, because each change writes the whole row.
const LONG: usize = 4 << 10;

/// Adds an entry to the history of a row. Moves a long history into `older` first; then it begins anew.
pub(crate) fn append(
    connection: &Connection,
    seq: i64,
    history: &mut Vec<u8>,
    entry: &Entry,
    intent: &Intent,
) -> Result<()> {
    if history.len() >= LONG {
        let sql = "INSERT INTO older (seq, part, entries)
             SELECT ?1, ifnull(max(part), 0) + 1, ?2 FROM older WHERE seq = ?1";
        execute(connection, sql, params![seq, &history[..]])?;
        history.clear();
    }
    codec::append(history, entry, intent);
    Ok(())
}

/// The newest entries of a call, at most `limit`, oldest first. Reads no more of `older` than it needs.
pub(crate) fn newest(
    connection: &Connection,
    seq: i64,
    intent: &Intent,
    limit: u32,
) -> Result<Vec<Entry>> {
    let read = |bytes: &[u8], limit| codec::read_entries(bytes, intent, limit).map_err(corrupt);
    let sql = "SELECT history FROM calls WHERE seq = ?1";
    let row = first(connection, sql, [seq], |row| {
        read(blob(row, 0, "history")?, limit)
    })?;
    let mut parts = vec![row.ok_or_else(|| corrupt(Unreadable::Missing("history")))?];
    let sql = "SELECT entries FROM older WHERE seq = ?1 ORDER BY part DESC";
    let mut query = connection.prepare_cached(sql)?;
    let mut older = query.query([seq])?;
    let mut left = limit.saturating_sub(count(&parts[0]));
    while left > 0
        && let Some(row) = older.next()?
    {
        let part = read(blob(row, 0, "history")?, left)?;
        left = left.saturating_sub(count(&part));
        parts.push(part);
    }
    Ok(parts.into_iter().rev().flatten().collect())
}

fn count(entries: &[Entry]) -> u32 {
    u32::try_from(entries.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
