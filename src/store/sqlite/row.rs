//! Records as rows of `schema.sql`. Must not decide anything.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, Type, ValueRef};
use rusqlite::{Connection, Row, named_params, params};
use uuid::Uuid;

use super::query::{all, execute, first};
use crate::core::key;
use crate::core::key::GroupKey;
use crate::core::recipe::RecipeId;
use crate::core::record::Check;
use crate::core::record::{Attempt, AttemptId, CallId, Entry, InstanceId, Intent, Record, State};
use crate::store::state::{Parts, Read, word};
use crate::store::{aliases, undo};

/// The beginning of a query for whole records: the columns as `record` reads them.
macro_rules! columns {
    () => {
        concat!(
            "SELECT call_id, lookup, names, recipe, tenant, tool, key, key_source, fingerprint, user_id, session_id, trace_id, made_by,
                client_ids, args, created_at, similar, version, state, attempt_id, owner, attempt_number, run_started_at,
                lease_until, attempts, doubted, fencing, similar_to, latency_ms, result, failure, why, tool_status,
                retry_after_ms, updated_at, expires_at, retain_until, check_at, check_since, checks, saga_id, undo, aliases"
        )
    };
}
pub(super) use columns;

/// A query for whole records on this condition.
macro_rules! select {
    ($condition:literal) => {
        concat!(super::row::columns!(), " FROM calls WHERE ", $condition)
    };
}
pub(super) use select;

/// The newest entries of a call, oldest first.
pub(super) fn entries(
    connection: &Connection,
    call_id: CallId,
    limit: u32,
) -> rusqlite::Result<Vec<Entry>> {
    let sql = "SELECT at, event, actor, detail, attempt_id, outcome FROM events WHERE call_id = ?1
         ORDER BY version DESC LIMIT ?2";
    let mut entries = all(
        connection,
        sql,
        params![call_id.to_string(), limit],
        |row| {
            let attempt: Option<Identity> = row.get(4)?;
            let outcome: Option<String> = row.get(5)?;
            Ok(Entry {
                attempt: attempt.map(|id| AttemptId(id.0)),
                outcome: outcome.map(Into::into),
                ..event(row)?
            })
        },
    )?;
    entries.reverse();
    Ok(entries)
}

/// An entry without its attempt and outcome, which those about a session or a tool do not have.
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

pub(super) fn insert_entry(
    connection: &Connection,
    record: &Record,
    entry: &Entry,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO events (call_id, version, at, event, attempt_id, outcome, actor, detail)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let row = params![
        record.intent.call_id.to_string(),
        integer(record.version),
        entry.at.as_microsecond(),
        entry.event,
        entry.attempt.map(|id| id.to_string()),
        entry.outcome,
        entry.by,
        entry.detail,
    ];
    execute(connection, sql, row).map(drop)
}

pub(super) fn insert(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let intent = &record.intent;
    let mut insert = connection.prepare_cached(
        "INSERT INTO calls (call_id, lookup, names, recipe, tenant, tool, key, key_source, fingerprint, user_id,
            session_id, trace_id, made_by, client_ids, args, created_at, version, state, attempt_id, owner, attempt_number,
            run_started_at, lease_until, attempts, doubted, fencing, updated_at, similar, similar_to, saga_id)
         VALUES (:call_id, :lookup, :names, :recipe, :tenant, :tool, :key, :key_source, :fingerprint, :user_id, :session_id,
            :trace_id, :made_by, :client_ids, :args, :created_at, :version, :state, :attempt_id, :owner, :attempt_number,
            :run_started_at, :lease_until, :attempts, :doubted, :fencing, :updated_at, :similar, :similar_to, :saga_id)",
    )?;
    insert.execute(named_params! {
        ":call_id": intent.call_id.to_string(),
        ":lookup": intent.lookup.0,
        ":names": intent.names.iter().flat_map(|name| name.0).collect::<Vec<u8>>(),
        ":recipe": intent.recipe.0,
        ":tenant": intent.tenant,
        ":tool": intent.tool,
        ":key": intent.key,
        ":key_source": intent.key_source.as_str(),
        ":fingerprint": intent.fingerprint,
        ":user_id": intent.user_id,
        ":session_id": intent.session_id,
        ":trace_id": intent.trace_id,
        ":made_by": intent.made_by,
        ":client_ids": intent.client_ids,
        ":args": intent.args.as_ref(),
        ":created_at": intent.created_at.as_microsecond(),
        ":version": integer(record.version),
        ":state": record.state.as_str(),
        ":attempt_id": record.attempt.id.to_string(),
        ":owner": record.attempt.owner.to_string(),
        ":attempt_number": record.attempt.number,
        ":run_started_at": record.attempt.run_started_at.as_microsecond(),
        ":lease_until": record.attempt.lease_until.as_microsecond(),
        ":attempts": record.attempts,
        ":doubted": record.earlier_attempt_may_have_run,
        ":fencing": record.fencing.map(integer),
        ":updated_at": record.updated_at.as_microsecond(),
        ":similar": intent.similar.map(|room| room.0),
        ":similar_to": record.similar_to.map(|id| id.to_string()),
        ":saga_id": intent.saga_id,
    })?;
    take_names(
        connection,
        connection.last_insert_rowid(),
        intent.all_names(),
    )
}

/// From now on these names stand for the call in this row, whatever they stood for before.
pub(super) fn take_names<'a>(
    connection: &Connection,
    seq: i64,
    names: impl Iterator<Item = &'a key::Lookup>,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO names (lookup, seq) VALUES (?1, ?2)";
    for name in names {
        execute(connection, sql, params![name.0, seq])?;
    }
    Ok(())
}

/// The row of a call, if there are names for it to take.
pub(super) fn seq_of(
    connection: &Connection,
    call_id: CallId,
    names: &[key::Lookup],
) -> rusqlite::Result<Option<i64>> {
    if names.is_empty() {
        return Ok(None);
    }
    let sql = "SELECT seq FROM calls WHERE call_id = ?1";
    first(connection, sql, [call_id.to_string()], |row| row.get(0))
}

/// Frees the names that still stand for a call.
pub(super) fn free_names(connection: &Connection, call_id: &str) -> rusqlite::Result<()> {
    let sql = "SELECT seq, lookup, names, aliases FROM calls WHERE call_id = ?1";
    let found = first(connection, sql, [call_id], |row| {
        let aliases = aliases::read(&row.get::<_, String>(3)?).unwrap_or_default();
        let names = aliases.iter().flat_map(|alias| &alias.names);
        let aliases = names.flat_map(|name| name.0).collect();
        let names = [row.get::<_, Vec<u8>>(1)?, row.get(2)?, aliases].concat();
        Ok((row.get::<_, i64>(0)?, names))
    });
    let Some((seq, names)) = found? else {
        return Ok(());
    };
    let sql = "DELETE FROM names WHERE lookup = ?1 AND seq = ?2";
    for name in names.chunks_exact(32) {
        execute(connection, sql, params![name, seq])?;
    }
    Ok(())
}

/// Compares version, attempt and fencing token with what is stored.
pub(super) fn is_still(connection: &Connection, expected: &Record) -> rusqlite::Result<bool> {
    let mut same = connection.prepare_cached(
        "SELECT 1 FROM calls WHERE call_id = ?1 AND version = ?2 AND attempt_id = ?3 AND fencing IS ?4",
    )?;
    same.exists(params![
        expected.intent.call_id.to_string(),
        integer(expected.version),
        expected.attempt.id.to_string(),
        expected.fencing.map(integer),
    ])
}

/// Writes what changes of a call.
pub(super) fn update(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let parts = Parts::of(&record.state);
    let mut update = connection.prepare_cached(
        "UPDATE calls SET version = :version, state = :state, attempt_id = :attempt_id, owner = :owner,
            attempt_number = :attempt_number, run_started_at = :run_started_at, lease_until = :lease_until,
            attempts = :attempts, doubted = :doubted, fencing = :fencing, latency_ms = :latency_ms,
            result = :result, failure = :failure, why = :why, tool_status = :tool_status,
            retry_after_ms = :retry_after_ms, updated_at = :updated_at, expires_at = :expires_at,
            retain_until = :retain_until, similar_to = :similar_to, check_at = :check_at,
            check_since = :check_since, checks = :checks, undo = :undo, aliases = :aliases
         WHERE call_id = :call_id",
    )?;
    update.execute(named_params! {
        ":version": integer(record.version),
        ":state": record.state.as_str(),
        ":attempt_id": record.attempt.id.to_string(),
        ":owner": record.attempt.owner.to_string(),
        ":attempt_number": record.attempt.number,
        ":run_started_at": record.attempt.run_started_at.as_microsecond(),
        ":lease_until": record.attempt.lease_until.as_microsecond(),
        ":attempts": record.attempts,
        ":doubted": record.earlier_attempt_may_have_run,
        ":fencing": record.fencing.map(integer),
        ":latency_ms": record.latency_ms.map(integer),
        ":result": parts.result.map(AsRef::<[u8]>::as_ref),
        ":failure": parts.failure,
        ":why": parts.why,
        ":tool_status": parts.tool_status,
        ":retry_after_ms": parts.retry_after_ms.map(integer),
        ":updated_at": record.updated_at.as_microsecond(),
        ":expires_at": record.expires_at.map(Timestamp::as_microsecond),
        ":retain_until": record.retain_until.map(Timestamp::as_microsecond),
        ":similar_to": record.similar_to.map(|id| id.to_string()),
        ":check_at": record.check.and_then(|check| check.at).map(Timestamp::as_microsecond),
        ":check_since": record.check.map(|check| check.since.as_microsecond()),
        ":checks": record.check.map(|check| check.number),
        ":undo": record.undo.as_ref().map(undo::write),
        ":aliases": aliases::write(&record.aliases),
        ":call_id": record.intent.call_id.to_string(),
    })?;
    Ok(())
}

/// Writes what a call asks for.
pub(super) fn update_asked(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let intent = &record.intent;
    let sql = "UPDATE calls SET args = ?2, fingerprint = ?3, recipe = ?4 WHERE call_id = ?1";
    let asked = params![
        intent.call_id.to_string(),
        &intent.args[..],
        intent.fingerprint,
        intent.recipe.0
    ];
    execute(connection, sql, asked).map(drop)
}

pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    // In the order of the query: looking columns up by name took a tenth of the gateway's time.
    let mut columns = Columns::of(row);
    let mut intent = Intent {
        call_id: CallId(columns.read::<Identity>()?.0),
        lookup: key::Lookup(columns.read()?),
        names: columns.names()?,
        recipe: RecipeId(columns.read()?),
        tenant: columns.read()?,
        tool: columns.read()?,
        key: columns.read()?,
        key_source: columns.word(key::Source::ALL, key::Source::as_str)?,
        fingerprint: columns.read()?,
        user_id: columns.read()?,
        session_id: columns.read()?,
        saga_id: String::new(),
        trace_id: columns.read()?,
        made_by: columns.read()?,
        client_ids: columns.read()?,
        args: columns.read::<Vec<u8>>()?.into(),
        created_at: columns.time()?,
        similar: columns.read::<Option<[u8; 32]>>()?.map(GroupKey),
    };
    let version = columns.read::<i64>()?.unsigned_abs();
    let state: String = columns.read()?;
    let attempt = Attempt {
        id: AttemptId(columns.read::<Identity>()?.0),
        owner: InstanceId(columns.read::<Identity>()?.0),
        number: columns.read()?,
        run_started_at: columns.time()?,
        lease_until: columns.time()?,
    };
    let attempts = columns.read()?;
    let earlier_attempt_may_have_run = columns.read()?;
    let fencing = columns.read::<Option<i64>>()?.map(i64::unsigned_abs);
    let similar_to = columns.read::<Option<Identity>>()?.map(|id| CallId(id.0));
    let latency_ms = columns.read::<Option<i64>>()?.map(i64::unsigned_abs);
    let state = columns.state(&state)?;
    let (updated_at, expires_at, retain_until) = (
        columns.time()?,
        columns.maybe_time()?,
        columns.maybe_time()?,
    );
    let (check_at, check_since) = (columns.maybe_time()?, columns.maybe_time()?);
    let checks: Option<u32> = columns.read()?;
    let check = check_since.zip(checks);
    intent.saga_id = columns.read()?;
    let undo = columns.read::<Option<String>>()?;
    let undo = undo
        .map(|text| undo::read(&text).ok_or_else(|| columns.corrupt()))
        .transpose()?;
    let aliases = aliases::read(&columns.read::<String>()?).ok_or_else(|| columns.corrupt())?;
    Ok(Record {
        intent: Arc::new(intent),
        version,
        state,
        attempt,
        attempts,
        earlier_attempt_may_have_run,
        fencing,
        similar_to,
        check: check.map(|(since, number)| Check {
            since,
            at: check_at,
            number,
        }),
        undo,
        aliases,
        latency_ms,
        updated_at,
        expires_at,
        retain_until,
    })
}

/// The columns of a row, read one after the other.
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

    fn names(&mut self) -> rusqlite::Result<Vec<key::Lookup>> {
        let bytes: Vec<u8> = self.read()?;
        aliases::names(&bytes).ok_or_else(|| self.corrupt())
    }

    fn state(&mut self, name: &str) -> rusqlite::Result<State> {
        let result = self.read::<Option<Vec<u8>>>()?.map(Bytes::from);
        let failure: Option<String> = self.read()?;
        let read = Read {
            name,
            result,
            failure: failure.as_deref(),
            why: self.read()?,
            tool_status: self.read()?,
            retry_after_ms: self.read::<Option<i64>>()?.map(i64::unsigned_abs),
        };
        read.state().ok_or_else(|| self.corrupt())
    }

    /// The one of `words` that the column holds.
    fn word<T: Copy, const N: usize>(
        &mut self,
        words: [T; N],
        name: fn(T) -> &'static str,
    ) -> rusqlite::Result<T> {
        let held: String = self.read()?;
        word(words, name, &held).ok_or_else(|| self.corrupt())
    }

    pub(super) fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.maybe_time()?.ok_or_else(|| self.corrupt())
    }

    pub(super) fn maybe_time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        let Some(microseconds) = self.read::<Option<i64>>()? else {
            return Ok(None);
        };
        Timestamp::from_microsecond(microseconds)
            .map(Some)
            .map_err(|_| self.corrupt())
    }

    /// That the column read last holds what was never written.
    fn corrupt(&self) -> rusqlite::Error {
        rusqlite::Error::InvalidColumnType(
            self.next.saturating_sub(1),
            "calls or events".to_owned(),
            Type::Text,
        )
    }
}

/// SQLite has no unsigned integers. Nothing here comes near the border.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) struct Identity(pub(super) Uuid);

impl FromSql for Identity {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Uuid::parse_str(value.as_str()?)
            .map(Self)
            .map_err(|_| FromSqlError::InvalidType)
    }
}
