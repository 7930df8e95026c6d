//! Calls as rows of `schema.sql`. Must not decide anything.

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, Type, ValueRef};
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::query::{blob, corrupt, execute, first};
use super::{history, lists};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::ledger::STATES;
use crate::core::record::{AttemptId, CallId, Entry, Record, State};
use crate::store::codec::{self, Beside};

/// The due time of an unknown call that is not checked any more.
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
pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let bytes = |column| -> rusqlite::Result<Option<Bytes>> {
        let bytes = row.get_ref(column)?.as_blob_or_null()?;
        Ok(bytes.map(Bytes::copy_from_slice))
    };
    let beside = Beside {
        args: bytes(1)?.unwrap_or_default(),
        result: bytes(3)?,
        fencing: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
        similar_to: row.get::<_, Option<Identity>>(5)?.map(|id| CallId(id.0)),
    };
    let (intent, progress) = (blob(row, 0, "intent")?, blob(row, 2, "progress")?);
    codec::read(intent, progress, beside).map_err(corrupt)
}

/// The number of a call, from the columns of `select`.
pub(super) fn seq(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(6)
}

/// The id of a call for the log, as far as it is readable; else its number.
pub(super) fn id(row: &Row<'_>) -> String {
    let id = || codec::call_id(row.get_ref(0).ok()?.as_blob().ok()?);
    match (id(), seq(row)) {
        (Some(id), _) => id.to_string(),
        (None, Ok(seq)) => format!("number {seq}"),
        (None, Err(_)) => String::new(),
    }
}

/// The encoded values and lists of a new call. Made before the writer thread's turn.
pub(super) struct Fresh {
    intent: Vec<u8>,
    progress: Vec<u8>,
    entry: Vec<u8>,
    lists: Vec<i64>,
    /// The list by key, if the call's name is not made of its key.
    by_key: Option<i64>,
}

impl Fresh {
    /// Fencing token and similar call are not in these bytes: the writer thread finds them.
    pub(super) fn of(change: &Change) -> Self {
        let Change { record, entry, .. } = change;
        let intent = &record.intent;
        let is_named_by_key =
            intent.lookup == Lookup::new(&intent.tenant, &intent.tool, &intent.key);
        Self {
            intent: codec::intent(intent),
            progress: codec::progress(record),
            entry: codec::entry(entry, intent),
            lists: lists::of(record),
            by_key: (!is_named_by_key).then(|| lists::by_key(&intent.tenant, &intent.key)),
        }
    }
}

/// Inserts a new call. Returns its number.
pub(super) fn insert(
    connection: &Connection,
    record: &Record,
    fresh: &Fresh,
) -> rusqlite::Result<i64> {
    let intent = &record.intent;
    let sql = "INSERT INTO calls (state, due_at, tool, owner, retain_until, fencing, similar_to, progress, history, result)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let looked_at = LookedAt::of(record);
    let row = params![
        looked_at.state,
        looked_at.due_at,
        looked_at.tool,
        looked_at.owner,
        record.retain_until.map(seconds),
        record.fencing.map(integer),
        record.similar_to.map(|id| id.0.into_bytes()),
        fresh.progress,
        fresh.entry,
        record.state.kept().map(AsRef::<[u8]>::as_ref),
    ];
    execute(connection, sql, row)?;
    let seq = connection.last_insert_rowid();
    let sql = "INSERT INTO intents (seq, intent, args) VALUES (?1, ?2, ?3)";
    execute(
        connection,
        sql,
        params![seq, fresh.intent, &intent.args[..]],
    )?;
    let sql = "INSERT INTO ids (call_id, seq) VALUES (?1, ?2)";
    execute(connection, sql, params![intent.call_id.0.into_bytes(), seq])?;
    let created_at = intent.created_at.as_microsecond();
    for list in fresh.lists.iter().chain(&fresh.by_key) {
        lists::insert(connection, *list, created_at, seq)?;
    }
    lists::insert_tool(connection, &intent.tenant, &intent.tool)?;
    take_names(connection, seq, intent.all_names())?;
    Ok(seq)
}

/// Moves these names to the call of this number.
pub(super) fn take_names<'a>(
    connection: &Connection,
    seq: i64,
    names: impl Iterator<Item = &'a Lookup>,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO names (lookup, seq) VALUES (?1, ?2)";
    for name in names {
        execute(connection, sql, params![name.0, seq])?;
    }
    Ok(())
}

/// The parts of a stored call that a change compares and goes on from.
pub(super) struct Stored {
    pub(super) seq: i64,
    state: u8,
    version: u64,
    attempt: AttemptId,
    fencing: Option<u64>,
    history: Vec<u8>,
}

impl Stored {
    pub(super) fn of(connection: &Connection, call_id: CallId) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT c.seq, c.state, c.progress, c.fencing, c.history
             FROM ids LEFT JOIN calls c ON c.seq = ids.seq WHERE ids.call_id = ?1";
        first(connection, sql, [call_id.0.into_bytes()], |row| {
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
    ) -> rusqlite::Result<()> {
        let looked_at = LookedAt::of(record);
        history::append(
            connection,
            self.seq,
            &mut self.history,
            entry,
            &record.intent,
        )?;
        let sql = "UPDATE calls SET state = ?2, due_at = ?3, tool = ?4, owner = ?5, retain_until = ?6, fencing = ?7,
                similar_to = ?8, progress = ?9, history = ?10, result = ?11 WHERE seq = ?1";
        let row = params![
            self.seq,
            looked_at.state,
            looked_at.due_at,
            looked_at.tool,
            looked_at.owner,
            record.retain_until.map(seconds),
            record.fencing.map(integer),
            record.similar_to.map(|id| id.0.into_bytes()),
            progress,
            self.history,
            record.state.kept().map(AsRef::<[u8]>::as_ref),
        ];
        execute(connection, sql, row)?;
        let (before, after) = (STATES.get(usize::from(self.state)), record.state.as_str());
        if before == Some(&after) {
            return Ok(());
        }
        let intent = &record.intent;
        let created_at = intent.created_at.as_microsecond();
        if let Some(list) = before.and_then(|state| lists::by_state(&intent.tenant, state)) {
            lists::remove(connection, list, created_at, self.seq)?;
        }
        if let Some(list) = lists::by_state(&intent.tenant, after) {
            lists::insert(connection, list, created_at, self.seq)?;
        }
        Ok(())
    }
}

/// Writes the intent of a call, if it has changed.
pub(super) fn update_asked(
    connection: &Connection,
    seq: i64,
    record: &Record,
) -> rusqlite::Result<()> {
    let sql =
        "UPDATE intents SET intent = ?2, args = ?3 WHERE seq = ?1 AND (intent <> ?2 OR args <> ?3)";
    let asked = params![seq, codec::intent(&record.intent), &record.intent.args[..]];
    execute(connection, sql, asked).map(drop)
}

/// The columns of a call that queries of the store use, beside its retention.
struct LookedAt<'a> {
    state: Option<u8>,
    due_at: Option<i64>,
    tool: Option<&'a str>,
    owner: Option<[u8; 16]>,
}

impl<'a> LookedAt<'a> {
    fn of(record: &'a Record) -> Self {
        let state = record.state.as_str();
        let state = (0..).zip(STATES).find(|(_, one)| *one == state);
        let state = state.map(|(place, _)| place);
        let (tool, owner) = (record.intent.tool.as_str(), record.attempt.owner);
        match record.state {
            State::Running => Self {
                state,
                due_at: Some(record.attempt.lease_until.as_microsecond()),
                tool: Some(tool),
                owner: Some(owner.0.into_bytes()),
            },
            State::Unknown(_) => Self {
                state,
                due_at: record
                    .check
                    .map(|check| check.at.map_or(NEVER, Timestamp::as_microsecond)),
                tool: Some(tool),
                owner: None,
            },
            _ => Self {
                state,
                due_at: None,
                tool: None,
                owner: None,
            },
        }
    }
}

/// Reads an entry about a session or a tool. It has no attempt and no outcome.
pub(super) fn event(row: &Row<'_>) -> rusqlite::Result<Entry> {
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

/// The columns of a row, read in order.
pub(super) struct Columns<'a, 'row> {
    row: &'a Row<'row>,
    next: usize,
}

impl<'a, 'row> Columns<'a, 'row> {
    pub(super) fn of(row: &'a Row<'row>) -> Self {
        Self { row, next: 0 }
    }

    pub(super) fn read<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        let value = self.row.get(self.next);
        self.next += 1;
        value
    }

    pub(super) fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.maybe_time()?.ok_or_else(|| self.never_written())
    }

    pub(super) fn maybe_time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        let Some(microseconds) = self.read::<Option<i64>>()? else {
            return Ok(None);
        };
        Timestamp::from_microsecond(microseconds)
            .map(Some)
            .map_err(|_| self.never_written())
    }

    /// The error for a column with an impossible value.
    fn never_written(&self) -> rusqlite::Error {
        let column = self.next.saturating_sub(1);
        rusqlite::Error::InvalidColumnType(column, "a time".to_owned(), Type::Integer)
    }
}

/// A time in seconds, rounded up. Seconds take half of the bytes of microseconds.
fn seconds(time: Timestamp) -> i64 {
    time.as_second() + i64::from(time.subsec_nanosecond() > 0)
}

/// A number as a signed SQLite integer. No number here comes near the limit.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A UUID of 16 bytes.
pub(super) struct Identity(pub(super) Uuid);

impl FromSql for Identity {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Uuid::from_slice(value.as_blob()?)
            .map(Self)
            .map_err(|_| FromSqlError::InvalidType)
    }
}
