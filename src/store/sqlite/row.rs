//! Records as rows of `schema.sql`. Must not decide anything.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, named_params, params};
use uuid::Uuid;

use crate::core::key;
use crate::core::outcome::{Content, Failure, FailureKind};
use crate::core::record::{Attempt, AttemptId, CallId, Entry, InstanceId, Intent, Record, State};
use crate::store::Due;

const SELECT: &str = "SELECT call_id, lookup, tenant, tool, key, key_source, fingerprint, user_id, session_id,
    trace_id, args, created_at, version, state, attempt_id, owner, attempt_number, run_started_at, lease_until,
    attempts, doubted, fencing, latency_ms, result, failure, why, tool_status, retry_after_ms, updated_at,
    expires_at, retain_until FROM calls";

pub(super) fn holder_of(connection: &Connection, lookup: &key::Lookup) -> rusqlite::Result<Option<Record>> {
    let sql = format!("{SELECT} WHERE lookup = ?1 AND holds_key = 1");
    connection.prepare_cached(&sql)?.query_row([&lookup.0], record).optional()
}

pub(super) fn by_id(connection: &Connection, call_id: CallId) -> rusqlite::Result<Option<Record>> {
    let sql = format!("{SELECT} WHERE call_id = ?1");
    connection.prepare_cached(&sql)?.query_row([call_id.to_string()], record).optional()
}

/// Running calls whose lease is over, or whose owner is another than this instance.
pub(super) fn due(
    connection: &Connection,
    now: Timestamp,
    instance: InstanceId,
    limit: u32,
) -> rusqlite::Result<Vec<Due>> {
    let sql = format!(
        "{SELECT} WHERE state = 'running' AND (lease_until <= ?1 OR owner <> ?2) ORDER BY lease_until LIMIT ?3"
    );
    let mut due = connection.prepare_cached(&sql)?;
    let due = due.query_map(params![now.as_microsecond(), instance.to_string(), limit], record)?;
    due.map(|record| record.map(|record| Due { owner_ended: record.attempt.owner != instance, record }))
        .collect()
}

/// The newest entries of a call, oldest first.
pub(super) fn entries(connection: &Connection, call_id: CallId, limit: u32) -> rusqlite::Result<Vec<Entry>> {
    let mut newest = connection.prepare_cached(
        "SELECT at, event, attempt_id, outcome, actor, detail FROM events WHERE call_id = ?1 ORDER BY version DESC LIMIT ?2",
    )?;
    let newest = newest.query_map(params![call_id.to_string(), limit], |row| {
        let attempt: Option<Identity> = row.get("attempt_id")?;
        Ok(Entry {
            at: time(row, "at")?,
            event: row.get::<_, String>("event")?.into(),
            attempt: attempt.map(|id| AttemptId(id.0)),
            outcome: row.get::<_, Option<String>>("outcome")?.map(Into::into),
            by: row.get("actor")?,
            detail: row.get("detail")?,
        })
    })?;
    let mut entries = newest.collect::<Result<Vec<Entry>, _>>()?;
    entries.reverse();
    Ok(entries)
}

pub(super) fn insert_entry(connection: &Connection, record: &Record, entry: &Entry) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO events (call_id, version, at, event, attempt_id, outcome, actor, detail)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    insert.execute(params![
        record.intent.call_id.to_string(),
        integer(record.version),
        entry.at.as_microsecond(),
        entry.event,
        entry.attempt.map(|id| id.to_string()),
        entry.outcome,
        entry.by,
        entry.detail,
    ])?;
    Ok(())
}

pub(super) fn insert(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let intent = &record.intent;
    let mut insert = connection.prepare_cached(
        "INSERT INTO calls (call_id, holds_key, lookup, tenant, tool, key, key_source, fingerprint, user_id,
            session_id, trace_id, args, created_at, version, state, attempt_id, owner, attempt_number,
            run_started_at, lease_until, attempts, doubted, fencing, updated_at)
         VALUES (:call_id, 1, :lookup, :tenant, :tool, :key, :key_source, :fingerprint, :user_id, :session_id,
            :trace_id, :args, :created_at, :version, :state, :attempt_id, :owner, :attempt_number,
            :run_started_at, :lease_until, :attempts, :doubted, :fencing, :updated_at)",
    )?;
    insert.execute(named_params! {
        ":call_id": intent.call_id.to_string(),
        ":lookup": intent.lookup.0,
        ":tenant": intent.tenant,
        ":tool": intent.tool,
        ":key": intent.key,
        ":key_source": intent.key_source.as_str(),
        ":fingerprint": intent.fingerprint,
        ":user_id": intent.user_id,
        ":session_id": intent.session_id,
        ":trace_id": intent.trace_id,
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
        ":doubted": record.doubted,
        ":fencing": record.fencing.map(integer),
        ":updated_at": record.updated_at.as_microsecond(),
    })?;
    Ok(())
}

/// Compares version, attempt and fencing token with `expected`, and swaps. False: it was not so.
pub(super) fn update(connection: &Connection, record: &Record, expected: &Record) -> rusqlite::Result<bool> {
    let told = Told::of(&record.state);
    let mut update = connection.prepare_cached(
        "UPDATE calls SET version = :version, state = :state, attempt_id = :attempt_id, owner = :owner,
            attempt_number = :attempt_number, run_started_at = :run_started_at, lease_until = :lease_until,
            attempts = :attempts, doubted = :doubted, fencing = :fencing, latency_ms = :latency_ms,
            result = :result, failure = :failure, why = :why, tool_status = :tool_status,
            retry_after_ms = :retry_after_ms, updated_at = :updated_at, expires_at = :expires_at,
            retain_until = :retain_until
         WHERE call_id = :call_id AND version = :expected_version AND attempt_id = :expected_attempt
            AND fencing IS :expected_fencing",
    )?;
    let changed = update.execute(named_params! {
        ":version": integer(record.version),
        ":state": record.state.as_str(),
        ":attempt_id": record.attempt.id.to_string(),
        ":owner": record.attempt.owner.to_string(),
        ":attempt_number": record.attempt.number,
        ":run_started_at": record.attempt.run_started_at.as_microsecond(),
        ":lease_until": record.attempt.lease_until.as_microsecond(),
        ":attempts": record.attempts,
        ":doubted": record.doubted,
        ":fencing": record.fencing.map(integer),
        ":latency_ms": record.latency_ms.map(integer),
        ":result": told.result.map(AsRef::<[u8]>::as_ref),
        ":failure": told.failure,
        ":why": told.why,
        ":tool_status": told.tool_status,
        ":retry_after_ms": told.retry_after_ms,
        ":updated_at": record.updated_at.as_microsecond(),
        ":expires_at": record.expires_at.map(Timestamp::as_microsecond),
        ":retain_until": record.retain_until.map(Timestamp::as_microsecond),
        ":call_id": record.intent.call_id.to_string(),
        ":expected_version": integer(expected.version),
        ":expected_attempt": expected.attempt.id.to_string(),
        ":expected_fencing": expected.fencing.map(integer),
    })?;
    Ok(changed == 1)
}

/// The columns that a state fills beside its name.
#[derive(Default)]
struct Told<'a> {
    result: Option<&'a Bytes>,
    failure: Option<&'static str>,
    why: Option<&'a str>,
    tool_status: Option<u16>,
    retry_after_ms: Option<i64>,
}

impl<'a> Told<'a> {
    fn of(state: &'a State) -> Self {
        match state {
            State::Running => Self::default(),
            State::Succeeded(Content::Kept(json)) => Self { result: Some(json), ..Self::default() },
            State::Succeeded(Content::Unavailable(why)) | State::Unknown(why) => {
                Self { why: Some(why), ..Self::default() }
            }
            State::Failed(failure) => Self {
                result: failure.body.as_ref(),
                failure: Some(failure.kind.as_str()),
                why: Some(&failure.why),
                tool_status: failure.status,
                retry_after_ms: failure
                    .retry_after
                    .map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
            },
        }
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let intent = Intent {
        call_id: CallId(row.get::<_, Identity>("call_id")?.0),
        tenant: row.get("tenant")?,
        tool: row.get("tool")?,
        lookup: key::Lookup(row.get("lookup")?),
        key: row.get("key")?,
        key_source: word(row, "key_source", key::Source::ALL, key::Source::as_str)?,
        fingerprint: row.get("fingerprint")?,
        user_id: row.get("user_id")?,
        session_id: row.get("session_id")?,
        trace_id: row.get("trace_id")?,
        args: row.get::<_, Vec<u8>>("args")?.into(),
        created_at: time(row, "created_at")?,
    };
    let attempt = Attempt {
        id: AttemptId(row.get::<_, Identity>("attempt_id")?.0),
        owner: InstanceId(row.get::<_, Identity>("owner")?.0),
        number: row.get("attempt_number")?,
        run_started_at: time(row, "run_started_at")?,
        lease_until: time(row, "lease_until")?,
    };
    Ok(Record {
        intent: Arc::new(intent),
        version: row.get::<_, i64>("version")?.unsigned_abs(),
        state: state(row)?,
        attempt,
        attempts: row.get("attempts")?,
        doubted: row.get("doubted")?,
        fencing: row.get::<_, Option<i64>>("fencing")?.map(i64::unsigned_abs),
        latency_ms: row.get::<_, Option<i64>>("latency_ms")?.map(i64::unsigned_abs),
        updated_at: time(row, "updated_at")?,
        expires_at: maybe_time(row, "expires_at")?,
        retain_until: maybe_time(row, "retain_until")?,
    })
}

fn state(row: &Row<'_>) -> rusqlite::Result<State> {
    let result = row.get::<_, Option<Vec<u8>>>("result")?.map(Bytes::from);
    let why = row.get::<_, Option<String>>("why")?.unwrap_or_default();
    let name: String = row.get("state")?;
    Ok(match name.as_str() {
        "running" => State::Running,
        "unknown" => State::Unknown(why),
        "succeeded" => State::Succeeded(result.map_or(Content::Unavailable(why), Content::Kept)),
        "failed" => State::Failed(Failure {
            kind: word(row, "failure", FailureKind::ALL, FailureKind::as_str)?,
            status: row.get("tool_status")?,
            body: result,
            retry_after: row
                .get::<_, Option<i64>>("retry_after_ms")?
                .map(|ms| Duration::from_millis(ms.unsigned_abs())),
            why,
        }),
        // A corrupt record is never taken for an absent one.
        _ => return Err(corrupt(row, "state")),
    })
}

/// The one of `words` that the column holds.
fn word<T: Copy, const N: usize>(
    row: &Row<'_>,
    column: &str,
    words: [T; N],
    name: fn(T) -> &'static str,
) -> rusqlite::Result<T> {
    let held: String = row.get(column)?;
    words.into_iter().find(|word| name(*word) == held).ok_or_else(|| corrupt(row, column))
}

fn corrupt(row: &Row<'_>, column: &str) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or_default();
    rusqlite::Error::InvalidColumnType(index, column.to_owned(), Type::Text)
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    maybe_time(row, column)?.ok_or_else(|| corrupt(row, column))
}

fn maybe_time(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Timestamp>> {
    let Some(microseconds) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    Timestamp::from_microsecond(microseconds).map(Some).map_err(|_| corrupt(row, column))
}

/// SQLite has no unsigned integers. Nothing here comes near the border.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

struct Identity(Uuid);

impl FromSql for Identity {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Uuid::parse_str(value.as_str()?).map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}
