//! Whether each call is found under its id and its key. SQLite's own check does not know that they belong together: a key of
//! which one bit has changed is in order for it.

use rusqlite::{Connection, Row, params};

use super::trees::Ended;
use crate::query::{all, blob, first};
use bytes::Bytes;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::Intent;
use oncegate_store::{codec, search};

/// Calls of one step, which is one look at the file.
const CALLS: u32 = 200;

/// A search through all calls, in the order of their numbers.
pub(super) struct Search {
    first: i64,
    last: i64,
    after: i64,
}

impl Search {
    pub(super) fn begin(connection: &Connection) -> Result<Self, Ended> {
        let sql = "SELECT coalesce(min(seq), 0), coalesce(max(seq), 0) FROM calls";
        let bounds = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
        let (first, last): (i64, i64) = bounds.map_err(|error| Ended::of(&error))?;
        Ok(Self {
            first,
            last,
            after: first - 1,
        })
    }

    /// How much is done, in per cent.
    pub(super) fn done(&self) -> u64 {
        let (done, all) = (self.after - self.first + 1, self.last - self.first + 1);
        (done * 100 / all.max(1)).clamp(0, 100).unsigned_abs()
    }

    /// Looks for the next calls. False: there are no more.
    pub(super) fn step(&mut self, connection: &Connection) -> Result<bool, Ended> {
        // The calls do not change while they are looked for.
        let reading = connection.unchecked_transaction();
        let looked = reading.and_then(|reading| {
            let looked = look(&reading, self.after)?;
            reading.commit().map(|()| looked)
        });
        let (after, lost) = looked.map_err(|error| Ended::of(&error))?;
        if let Some(lost) = lost {
            return Err(Ended::Damaged(lost));
        }
        let has_more = after > self.after && after < self.last;
        self.after = after;
        Ok(has_more)
    }
}

/// The number of the last call that was looked for, and the sentence about one that was not found.
fn look(connection: &Connection, after: i64) -> rusqlite::Result<(i64, Option<String>)> {
    let sql = "SELECT c.seq, i.intent FROM calls c LEFT JOIN intents i ON i.seq = c.seq
         WHERE c.seq > ?1 ORDER BY c.seq LIMIT ?2";
    let calls = all(connection, sql, params![after, CALLS], |row| {
        // An unreadable call is known to be one wherever something leads to it.
        Ok((row.get::<_, i64>(0)?, intent(row).ok().flatten()))
    })?;
    let mut last = after;
    for (seq, intent) in calls {
        last = seq;
        let Some(intent) = intent else { continue };
        if let Some(lost) = lost(connection, seq, &intent)? {
            return Ok((seq, Some(lost)));
        }
    }
    Ok((last, None))
}

fn intent(row: &Row<'_>) -> rusqlite::Result<Option<Intent>> {
    Ok(codec::read_intent(blob(row, 1, "intent")?, Bytes::new()).ok())
}

/// By what a call should be found, and is not.
fn lost(connection: &Connection, seq: i64, intent: &Intent) -> rusqlite::Result<Option<String>> {
    let number = |row: &Row<'_>| row.get::<_, i64>(0);
    let call_id = intent.call_id;
    let sql = "SELECT seq FROM ids WHERE call_id = ?1";
    if first(connection, sql, [call_id.0], number)? != Some(seq) {
        return Ok(Some(format!("call {call_id} is not found by its id")));
    }
    let sql = "SELECT seq FROM names WHERE lookup = ?1";
    let is_held = first(connection, sql, [intent.lookup.0], number)?.is_some();
    // A later call may have taken the key, and be deleted since. Such a call is on a list of its key; so is one whose lookup
    // key is made in another way.
    let is_plain = intent.lookup == Lookup::new(&intent.tenant, &intent.tool, &intent.key);
    if is_held || !is_plain {
        return Ok(None);
    }
    let list = search::by_key(&intent.tenant, &intent.key);
    let sql = "SELECT seq FROM lists WHERE list = ?1 AND seq = ?2";
    let has_lost_it = first(connection, sql, [list, seq], number)?.is_some();
    Ok((!has_lost_it).then(|| format!("call {call_id} is not found by its key")))
}
