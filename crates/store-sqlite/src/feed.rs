//! The feed: which event of which call was written when, in order. Must not decide anything.
//!
//! The one thread that writes gives the numbers, so a reader that has seen a number has missed no lower one.

use jiff::Timestamp;
use rusqlite::{Connection, Result, params};

use super::query::{all, execute, integer};
use oncegate_rules::record::Record;
use oncegate_store::{Fed, Feed, codec};

/// How long an event stays in the feed, in seconds: a week.
const MEMORY_S: i64 = 7 * 24 * 3_600;

/// Notes that the newest event of a call is written.
pub(super) fn append(connection: &Connection, seq: i64, record: &Record) -> Result<()> {
    let sql = "INSERT INTO feed (seq, version, at) VALUES (?1, ?2, ?3)";
    let event = params![seq, integer(record.version), record.updated_at.as_second()];
    execute(connection, sql, event).map(drop)
}

/// Events after this number, of at most `limit` that are looked at, and only those of the seconds from one time to another,
/// both included.
pub(super) fn read(
    connection: &Connection,
    after: u64,
    (since, until): (Timestamp, Timestamp),
    limit: u32,
) -> Result<Feed> {
    let sql = "SELECT epoch, coalesce((SELECT min(number) FROM feed), 0) FROM ledger";
    let mut feed = connection.query_row(sql, [], |row| {
        Ok(Feed {
            epoch: row.get(0)?,
            oldest: row.get::<_, i64>(1)?.unsigned_abs(),
            events: Vec::new(),
            last: after,
        })
    })?;
    let sql = "SELECT f.number, f.version, i.intent, f.at BETWEEN ?2 AND ?3 FROM feed f
         LEFT JOIN intents i ON i.seq = f.seq WHERE f.number > ?1 ORDER BY f.number LIMIT ?4";
    let asked = params![integer(after), since.as_second(), until.as_second(), limit];
    let found = all(connection, sql, asked, |row| {
        let number = row.get::<_, i64>(0)?.unsigned_abs();
        // Its call may be deleted.
        let intent = row.get_ref(2)?.as_blob_or_null()?;
        let call_id = intent
            .and_then(codec::call_id)
            .filter(|_| row.get(3) == Ok(true));
        let version = row.get::<_, i64>(1)?.unsigned_abs();
        Ok((
            number,
            call_id.map(|call_id| Fed {
                number,
                call_id,
                version,
            }),
        ))
    })?;
    if let Some((last, _)) = found.last() {
        feed.last = *last;
    }
    feed.events = found.into_iter().filter_map(|(_, fed)| fed).collect();
    Ok(feed)
}

/// Deletes the oldest events, at most `limit`, but never the newest one, which gives the next its number.
///
/// `now` in microseconds.
pub(super) fn prune(connection: &Connection, now: i64, limit: u32) -> Result<usize> {
    let sql = "DELETE FROM feed WHERE number IN
             (SELECT number FROM (SELECT number, at FROM feed ORDER BY number LIMIT ?2)
              WHERE at < ?1 AND number < (SELECT max(number) FROM feed))";
    execute(connection, sql, params![now / 1_000_000 - MEMORY_S, limit])
}
