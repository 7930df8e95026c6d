//! Calls as rows of `schema.sql`. Must not decide anything.

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, Result, Row, params};
use uuid::Uuid;

use super::query::{blob, corrupt, execute, first};
use super::{history, lists};
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::{Index, STATES};
use oncegate_rules::record::{AttemptId, CallId, Entry, Record, State};
use oncegate_store::codec::{self, Beside};

/// The due time of an unknown call whose checks were given up.
const NEVER: i64 = i64::MAX;

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
pub(super) use select;

/// Decodes a call from the columns of `select`.
pub(super) fn record(row: &Row<'_>) -> Result<Record> {
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
pub(super) fn seq(row: &Row<'_>) -> Result<i64> {
    row.get(6)
}

/// The id of a call for the log, or its number if the id is unreadable.
pub(super) fn id(row: &Row<'_>) -> String {
    let id = || codec::call_id(row.get_ref(0).ok()?.as_blob().ok()?);
    match (id(), seq(row)) {
        (Some(id), _) => id.to_string(),
        (None, Ok(seq)) => format!("number {seq}"),
        (None, Err(_)) => String::new(),
    }
}

/// The encoded values and lists of a new call, made before the turn of the thread that writes.
pub(super) struct Fresh {
    intent: Vec<u8>,
    progress: Vec<u8>,
    entry: Vec<u8>,
    lists: Vec<i64>,
}

impl Fresh {
    /// These bytes lack fencing token and similar call, which the thread that writes finds.
    pub(super) fn of(change: &Change) -> Self {
        let Change { record, entry, .. } = change;
        let intent = &record.intent;
        let mut lists = lists::of(record);
        if intent.lookup != Lookup::new(&intent.tenant, &intent.tool, &intent.key) {
            lists.push(lists::by_key(&intent.tenant, &intent.key));
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
pub(super) fn insert(connection: &Connection, record: &Record, fresh: &Fresh) -> Result<()> {
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
    take_names(connection, seq, intent.all_names())
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
    let state = record.state.as_str();
    let (tool, owner) = (&record.intent.tool, record.attempt.owner.0);
    // Only running and unknown calls are searched by these three columns.
    let (due_at, tool, owner) = match record.state {
        State::Running => {
            let lease_until = record.attempt.lease_until.as_microsecond();
            (Some(lease_until), Some(tool), Some(owner))
        }
        State::Unknown(_) => {
            let at = |time: Option<Timestamp>| time.map_or(NEVER, Timestamp::as_microsecond);
            (record.check.map(|check| at(check.at)), Some(tool), None)
        }
        _ => (None, None, None),
    };
    let row = params![
        seq,
        STATES
            .iter()
            .position(|one| *one == state)
            .map(|place| place as i64),
        due_at,
        tool,
        owner,
        record.retain_until.map(seconds),
        record.fencing.map(integer),
        record.similar_to.map(|id| id.0),
        progress,
        history,
        record.state.kept().map(AsRef::<[u8]>::as_ref),
    ];
    execute(connection, sql, row).map(drop)
}

/// Moves these names to the call of this number.
pub(super) fn take_names<'a>(
    connection: &Connection,
    seq: i64,
    names: impl IntoIterator<Item = &'a Lookup>,
) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO names (lookup, seq) VALUES (?1, ?2)";
    for name in names {
        execute(connection, sql, params![name.0, seq])?;
    }
    Ok(())
}

/// The parts of a stored call that a change compares and continues.
pub(super) struct Stored {
    pub(super) seq: i64,
    state: u8,
    version: u64,
    attempt: AttemptId,
    fencing: Option<u64>,
    history: Vec<u8>,
}

impl Stored {
    pub(super) fn of(connection: &Connection, call_id: CallId) -> Result<Option<Self>> {
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
    pub(super) fn is(&self, expected: &Record) -> bool {
        (self.version, self.attempt, self.fencing)
            == (expected.version, expected.attempt.id, expected.fencing)
    }

    /// Writes the members of a call that change.
    pub(super) fn update(
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
        let (before, after) = (STATES.get(usize::from(self.state)), record.state.as_str());
        if before == Some(&after) {
            return Ok(());
        }
        let list = |state| lists::list(&intent.tenant, Index::State(state));
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
pub(super) fn update_intent(connection: &Connection, seq: i64, record: &Record) -> Result<()> {
    let sql =
        "UPDATE intents SET intent = ?2, args = ?3 WHERE seq = ?1 AND (intent <> ?2 OR args <> ?3)";
    let asked = params![seq, codec::intent(&record.intent), &record.intent.args[..]];
    execute(connection, sql, asked).map(drop)
}

/// Reads a time from a column in microseconds.
pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Timestamp> {
    maybe_time(row, column)?.ok_or_else(|| no_time(column))
}

/// Reads a time from a column in microseconds, which may be NULL.
pub(super) fn maybe_time(row: &Row<'_>, column: usize) -> Result<Option<Timestamp>> {
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

/// A number as a signed SQLite integer. No number here comes near the limit.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
