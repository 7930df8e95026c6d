//! Calls as rows of `schema.sql`. Must not decide anything.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, Result, Row, params};
use uuid::Uuid;

use super::history;
pub(crate) use crate::query::integer;
use crate::query::{blob, corrupt, execute, first, pragma};
use crate::{feed, lists};
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::{Index, STATES};
use oncegate_rules::record::{AttemptId, CallId, Entry, Intent, Record, State};
use oncegate_store::codec::{self, Beside};
use oncegate_store::search::{self, StateColumns};

/// A query with the columns for `record`, and this text after `FROM`. `brief`: without arguments and result.
macro_rules! select {
    ($from:literal) => {
        concat!(
            "SELECT i.intent, i.args, c.progress, c.result, c.fencing, c.similar_to, c.seq FROM ",
            $from
        )
    };
    (brief $from:literal) => {
        concat!(
            "SELECT i.intent, x'', c.progress, iif(c.result IS NULL, NULL, x''), c.fencing, c.similar_to, c.seq FROM ",
            $from
        )
    };
}
pub(crate) use select;

/// Decodes a call from the columns of `select`.
pub(crate) fn record(row: &Row<'_>) -> Result<Record> {
    let bytes = |column| -> Result<Option<Bytes>> {
        let bytes = row.get_ref(column)?.as_blob_or_null()?;
        Ok(bytes.map(Bytes::copy_from_slice))
    };
    let beside = Beside {
        args: bytes(1)?.unwrap_or_default(),
        result: bytes(3)?,
        fencing: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
        similar_to: row.get::<_, Option<Uuid>>(5)?.map(CallId),
    };
    let (intent, progress) = (blob(row, 0, "intent")?, blob(row, 2, "progress")?);
    codec::read(intent, progress, beside).map_err(corrupt)
}

/// The number of a call, from the columns of `select`.
pub(crate) fn seq(row: &Row<'_>) -> Result<i64> {
    row.get(6)
}

/// The id of a call for the log, or its number if the id is unreadable.
pub(crate) fn id(row: &Row<'_>) -> String {
    let id = || codec::call_id(row.get_ref(0).ok()?.as_blob().ok()?);
    match (id(), seq(row)) {
        (Some(id), _) => id.to_string(),
        (None, Ok(seq)) => format!("number {seq}"),
        (None, Err(_)) => String::new(),
    }
}

/// The encoded values and lists of a new call, made before the turn of the thread that writes.
pub(crate) struct Fresh {
    intent: Vec<u8>,
    progress: Vec<u8>,
    entry: Vec<u8>,
    lists: Vec<i64>,
}

impl Fresh {
    /// These bytes lack fencing token and similar call, which the thread that writes finds.
    pub(crate) fn of(change: &Change) -> Self {
        let Change { record, entry, .. } = change;
        let intent = &record.intent;
        let mut lists = search::of(record);
        lists.extend(search::list(
            &record.intent.tenant,
            Index::State(record.state.as_str()),
        ));
        if intent.lookup != Lookup::new(&intent.tenant, &intent.tool, &intent.key) {
            lists.push(search::by_key(&intent.tenant, &intent.key));
        }
        Self {
            intent: codec::intent(intent),
            progress: codec::progress(record),
            entry: codec::entry(entry, intent),
            lists,
        }
    }
}

/// Inserts a new call.
pub(crate) fn insert(connection: &Connection, record: &Record, fresh: &Fresh) -> Result<()> {
    let intent = &record.intent;
    let sql = "INSERT INTO calls
            (seq, state, due_at, tool, owner, retain_until, fencing, similar_to, progress, history, result)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    write(connection, sql, None, record, &fresh.progress, &fresh.entry)?;
    let seq = connection.last_insert_rowid();
    let sql = "INSERT INTO intents (seq, intent, args) VALUES (?1, ?2, ?3)";
    let asked = params![seq, fresh.intent, &intent.args[..]];
    execute(connection, sql, asked)?;
    let sql = "INSERT INTO ids (call_id, seq) VALUES (?1, ?2)";
    execute(connection, sql, params![intent.call_id.0, seq])?;
    for list in &fresh.lists {
        lists::insert(connection, *list, intent.created_at, seq)?;
    }
    lists::insert_tool(connection, &intent.tenant, &intent.tool)?;
    feed::append(connection, seq, record)?;
    take_lookups(connection, seq, intent.all_lookups())
}

/// Runs a statement that writes the row of a call. Without a number SQLite chooses the next one.
fn write(
    connection: &Connection,
    sql: &str,
    seq: Option<i64>,
    record: &Record,
    progress: &[u8],
    history: &[u8],
) -> Result<()> {
    let columns = StateColumns::of(record);
    let owner = matches!(record.state, State::Running).then_some(record.attempt.owner.0);
    let row = params![
        seq,
        columns.state,
        columns.due_at,
        columns.tool,
        owner,
        record.retain_until.map(seconds),
        record.fencing.map(integer),
        record.similar_to.map(|id| id.0),
        progress,
        history,
        record.state.stored().map(AsRef::<[u8]>::as_ref),
    ];
    execute(connection, sql, row).map(drop)
}

/// Moves these lookup keys to the call of this number.
pub(crate) fn take_lookups<'a>(
    connection: &Connection,
    seq: i64,
    lookups: impl IntoIterator<Item = &'a Lookup>,
) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO names (lookup, seq) VALUES (?1, ?2)";
    for name in lookups {
        execute(connection, sql, params![name.0, seq])?;
    }
    Ok(())
}

/// The parts of a stored call that a change compares and continues.
pub(crate) struct Stored {
    pub(crate) seq: i64,
    state: u8,
    version: u64,
    attempt: AttemptId,
    fencing: Option<u64>,
    history: Vec<u8>,
}

impl Stored {
    pub(crate) fn of(connection: &Connection, call_id: CallId) -> Result<Option<Self>> {
        let sql = "SELECT c.seq, c.state, c.progress, c.fencing, c.history
             FROM ids LEFT JOIN calls c ON c.seq = ids.seq WHERE ids.call_id = ?1";
        first(connection, sql, [call_id.0], |row| {
            let progress = blob(row, 2, "progress")?;
            let (version, attempt) = codec::stamp(progress).map_err(corrupt)?;
            Ok(Self {
                seq: row.get(0)?,
                state: row.get(1)?,
                version,
                attempt,
                fencing: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs),
                history: row.get(4)?,
            })
        })
    }

    /// Whether version, attempt and fencing token are the expected ones.
    pub(crate) fn is(&self, expected: &Record) -> bool {
        (self.version, self.attempt, self.fencing)
            == (expected.version, expected.attempt.id, expected.fencing)
    }

    /// Writes the members of a call that change.
    pub(crate) fn update(
        mut self,
        connection: &Connection,
        record: &Record,
        progress: &[u8],
        entry: &Entry,
    ) -> Result<()> {
        let (intent, seq) = (&record.intent, self.seq);
        history::append(connection, seq, &mut self.history, entry, intent)?;
        let sql = "UPDATE calls SET state = ?2, due_at = ?3, tool = ?4, owner = ?5, retain_until = ?6, fencing = ?7,
                similar_to = ?8, progress = ?9, history = ?10, result = ?11 WHERE seq = ?1";
        write(connection, sql, Some(seq), record, progress, &self.history)?;
        feed::append(connection, seq, record)?;
        let (before, after) = (STATES.get(usize::from(self.state)), record.state.as_str());
        if before == Some(&after) {
            return Ok(());
        }
        let list = |state| search::list(&intent.tenant, Index::State(state));
        if let Some(list) = before.and_then(|state| list(state)) {
            lists::remove(connection, list, intent.created_at, seq)?;
        }
        if let Some(list) = list(after) {
            lists::insert(connection, list, intent.created_at, seq)?;
        }
        Ok(())
    }
}

/// Writes the intent of a call, if it has changed.
pub(crate) fn update_intent(connection: &Connection, seq: i64, record: &Record) -> Result<()> {
    let sql =
        "UPDATE intents SET intent = ?2, args = ?3 WHERE seq = ?1 AND (intent <> ?2 OR args <> ?3)";
    let asked = params![seq, codec::intent(&record.intent), &record.intent.args[..]];
    execute(connection, sql, asked).map(drop)
}

/// Whether what a change deletes or makes shorter is overwritten with zeros in the pages of the file. It costs further writes.
pub(crate) fn overwrite_deleted(connection: &Connection, overwrites: bool) -> Result<()> {
    let name = format!("secure_delete = {}", u8::from(overwrites));
    pragma::<i64>(connection, &name).map(drop)
}

/// Writes the intent of a call without arguments and names, and takes the call out of the lists of the names that it had.
pub(crate) fn erase(
    connection: &Connection,
    seq: i64,
    before: &Arc<Intent>,
    record: &Record,
) -> Result<()> {
    update_intent(connection, seq, record)?;
    let had = Record {
        intent: before.clone(),
        ..record.clone()
    };
    let has = search::of(record);
    for list in search::of(&had) {
        if !has.contains(&list) {
            lists::remove(connection, list, before.created_at, seq)?;
        }
    }
    Ok(())
}

/// Reads a time from a column in microseconds.
pub(crate) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    maybe_time(row, column)?.ok_or_else(|| no_time(column))
}

/// Reads a time from a column in microseconds, which may be NULL.
pub(crate) fn maybe_time(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>> {
    let microseconds: Option<i64> = row.get(column)?;
    let time = microseconds.map(Timestamp::from_microsecond).transpose();
    time.map_err(|_| no_time(column))
}

/// The error for a column with an impossible time.
fn no_time(column: usize) -> Error {
    Error::InvalidColumnType(column, "a time".to_owned(), Type::Integer)
}

/// A time in seconds, rounded up. Seconds take half of the bytes of microseconds.
fn seconds(time: Timestamp) -> i64 {
    time.as_second() + i64::from(time.subsec_nanosecond() > 0)
}

#[cfg(test)]
mod tests;
