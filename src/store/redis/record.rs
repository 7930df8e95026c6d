//! Records as the fields of a hash. Must not decide anything.
//!
//! `intent` and `progress` are small JSON texts; `args` and `result` are bytes as they came. `cas` is
//! what compare-and-swap compares beside `fencing`: the version and the attempt.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use redis::{FromRedisValue, Value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::core::key;
use crate::core::key::GroupKey;
use crate::core::ledger::Maker;
use crate::core::recipe::RecipeId;
use crate::core::record::Check;
use crate::core::record::{
    Attempt, AttemptId, CallId, Entry, InstanceId, Intent, Record, State, Undo,
};
use crate::store::state::{Parts, Read, word};
use crate::store::{aliases, undo};

/// The fields of a record, in the order in which [`read`] takes them.
pub(super) const FIELDS: [&str; 6] = [
    "intent",
    "args",
    "progress",
    "fencing",
    "result",
    "similar_to",
];

/// Those of them without what callers and tools have said, as [`read_brief`] takes them.
pub(super) const BRIEF: [&str; 4] = ["intent", "progress", "fencing", "similar_to"];

/// Times are microseconds since 1970 in UTC; hashes are hex digits.
#[derive(Serialize, Deserialize)]
struct StoredIntent {
    call_id: Uuid,
    tenant: String,
    tool: String,
    lookup: String,
    /// Each as 64 hex digits, one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    names: String,
    recipe: String,
    key: String,
    key_source: String,
    fingerprint: String,
    user_id: String,
    session_id: String,
    trace_id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    made_by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    client_ids: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    saga_id: String,
    created_at: i64,
}

#[derive(Serialize, Deserialize)]
struct Progress {
    version: u64,
    state: String,
    attempt_id: Uuid,
    owner: Uuid,
    attempt_number: u32,
    run_started_at: i64,
    lease_until: i64,
    attempts: u32,
    doubted: bool,
    latency_ms: Option<u64>,
    updated_at: i64,
    expires_at: Option<i64>,
    retain_until: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<StoredCheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    aliases: String,
    /// The kind of a failure.
    failure: Option<String>,
    why: Option<String>,
    tool_status: Option<u16>,
    retry_after_ms: Option<u64>,
    /// Whether the field `result` belongs to this state.
    has_result: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredCheck {
    /// Given up if it is not there.
    at: Option<i64>,
    since: i64,
    number: u32,
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    at: i64,
    event: String,
    attempt_id: Option<Uuid>,
    outcome: Option<String>,
    by: String,
    detail: String,
}

/// A stored record that cannot be read. Never taken for an absent one.
#[derive(Debug, thiserror::Error)]
#[error("a stored call cannot be read: {0}")]
pub(super) struct Corrupt(String);

impl Corrupt {
    fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }
}

/// Later than any time; a double still prints it in full.
pub(super) const NEVER: i64 = 9_000_000_000_000_000;

/// The same, of what is given up: told from what was never to be worked on.
pub(super) const GIVEN_UP: i64 = NEVER + 1;

/// Where a call stands in the index of its state, in microseconds: when it needs work.
pub(super) fn score(record: &Record) -> i64 {
    let time = match &record.state {
        State::Running => record.attempt.lease_until,
        State::Failed(_) => record.retain_until.unwrap_or(Timestamp::MAX),
        State::Unknown(_) => match record.check {
            Some(Check { at: Some(at), .. }) => at,
            Some(Check { at: None, .. }) => return GIVEN_UP,
            None => return NEVER,
        },
        _ => record.updated_at,
    };
    time.as_microsecond()
}

/// From when on a finished call may be deleted, in microseconds; empty for never.
pub(super) fn retain_until(record: &Record) -> String {
    record
        .retain_until
        .map(|until| until.as_microsecond().to_string())
        .unwrap_or_default()
}

pub(super) fn intent(intent: &Intent) -> String {
    to_json(&StoredIntent {
        call_id: intent.call_id.0,
        tenant: intent.tenant.clone(),
        tool: intent.tool.clone(),
        lookup: hex::encode(intent.lookup.0),
        names: intent
            .names
            .iter()
            .map(|name| hex::encode(name.0))
            .collect(),
        recipe: hex::encode(intent.recipe.0),
        key: intent.key.clone(),
        key_source: intent.key_source.as_str().to_owned(),
        fingerprint: hex::encode(intent.fingerprint),
        user_id: intent.user_id.clone(),
        session_id: intent.session_id.clone(),
        trace_id: intent.trace_id.clone(),
        made_by: intent.made_by.clone(),
        client_ids: intent.client_ids.clone(),
        similar: intent.similar.map(|group| hex::encode(group.0)),
        saga_id: intent.saga_id.clone(),
        created_at: intent.created_at.as_microsecond(),
    })
}

/// What changes of a record, but for its fencing token and its result.
pub(super) fn progress(record: &Record) -> String {
    let parts = Parts::of(&record.state);
    to_json(&Progress {
        version: record.version,
        state: record.state.as_str().to_owned(),
        attempt_id: record.attempt.id.0,
        owner: record.attempt.owner.0,
        attempt_number: record.attempt.number,
        run_started_at: record.attempt.run_started_at.as_microsecond(),
        lease_until: record.attempt.lease_until.as_microsecond(),
        attempts: record.attempts,
        doubted: record.earlier_attempt_may_have_run,
        latency_ms: record.latency_ms,
        updated_at: record.updated_at.as_microsecond(),
        expires_at: record.expires_at.map(Timestamp::as_microsecond),
        retain_until: record.retain_until.map(Timestamp::as_microsecond),
        check: record.check.map(|check| StoredCheck {
            at: check.at.map(Timestamp::as_microsecond),
            since: check.since.as_microsecond(),
            number: check.number,
        }),
        undo: record.undo.as_ref().map(undo::write),
        aliases: aliases::write(&record.aliases),
        failure: parts.failure.map(str::to_owned),
        why: parts.why.map(str::to_owned),
        tool_status: parts.tool_status,
        retry_after_ms: parts.retry_after_ms,
        has_result: parts.result.is_some(),
    })
}

/// The result, or the body of a rejection.
pub(super) fn result(record: &Record) -> Option<&Bytes> {
    Parts::of(&record.state).result
}

/// Version and attempt: no two changes of a call have the same.
pub(super) fn cas(record: &Record) -> String {
    format!("{}:{}", record.version, record.attempt.id)
}

/// The calls that give up their names, if they are still as they were seen.
pub(super) fn gives_up(seen: &[Record]) -> String {
    let seen = seen
        .iter()
        .map(|record| (record.intent.call_id.to_string(), cas(record).into()));
    serde_json::Value::Object(seen.collect()).to_string()
}

/// Empty for none.
pub(super) fn fencing(record: &Record) -> String {
    record
        .fencing
        .map(|token| token.to_string())
        .unwrap_or_default()
}

/// Empty for none.
pub(super) fn similar_to(record: &Record) -> String {
    record
        .similar_to
        .map(|call_id| call_id.to_string())
        .unwrap_or_default()
}

pub(super) fn entry(entry: &Entry) -> String {
    to_json(&StoredEntry {
        at: entry.at.as_microsecond(),
        event: entry.event.to_string(),
        attempt_id: entry.attempt.map(|id| id.0),
        outcome: entry.outcome.as_deref().map(str::to_owned),
        by: entry.by.clone(),
        detail: entry.detail.clone(),
    })
}

/// The field of a call's hash in which the entry of this version is.
pub(super) fn entry_field(version: u64) -> String {
    format!("e:{version}")
}

/// Who has made a call.
pub(super) fn maker(intent: &[u8]) -> Result<Maker, Corrupt> {
    let intent: StoredIntent = serde_json::from_slice(intent).map_err(Corrupt::new)?;
    Ok(Maker {
        tenant: intent.tenant,
        tool: intent.tool,
        token: intent.made_by,
    })
}

/// A record out of its [`FIELDS`]; `None` if there are none.
pub(super) fn read(fields: Vec<Value>) -> Result<Option<Record>, Corrupt> {
    let mut fields = fields.into_iter();
    let mut field = || {
        Option::<Bytes>::from_redis_value(fields.next().unwrap_or(Value::Nil)).map_err(Corrupt::new)
    };
    let (intent, args, progress) = (field()?, field()?, field()?);
    let (fencing, result, similar_to) = (field()?, field()?, field()?);
    let (Some(intent), Some(progress)) = (intent, progress) else {
        return Ok(None);
    };
    let intent: StoredIntent = serde_json::from_slice(&intent).map_err(Corrupt::new)?;
    let progress: Progress = serde_json::from_slice(&progress).map_err(Corrupt::new)?;
    let intent = Intent {
        call_id: CallId(intent.call_id),
        tenant: intent.tenant,
        tool: intent.tool,
        lookup: key::Lookup(bytes(&intent.lookup)?),
        names: names(&intent.names)?,
        recipe: RecipeId(bytes(&intent.recipe)?),
        key: intent.key,
        key_source: word(key::Source::ALL, key::Source::as_str, &intent.key_source)
            .ok_or_else(|| Corrupt(format!("{:?} is no source of a key", intent.key_source)))?,
        fingerprint: bytes(&intent.fingerprint)?,
        user_id: intent.user_id,
        session_id: intent.session_id,
        saga_id: intent.saga_id,
        trace_id: intent.trace_id,
        made_by: intent.made_by,
        client_ids: intent.client_ids,
        similar: intent
            .similar
            .as_deref()
            .map(bytes)
            .transpose()?
            .map(GroupKey),
        args: args.unwrap_or_default(),
        created_at: time(intent.created_at)?,
    };
    let fencing = parsed(fencing)?;
    let similar_to = parsed::<Uuid>(similar_to)?.map(CallId);
    Ok(Some(Record {
        intent: Arc::new(intent),
        version: progress.version,
        state: state(&progress, result)?,
        attempt: Attempt {
            id: AttemptId(progress.attempt_id),
            owner: InstanceId(progress.owner),
            number: progress.attempt_number,
            run_started_at: time(progress.run_started_at)?,
            lease_until: time(progress.lease_until)?,
        },
        attempts: progress.attempts,
        earlier_attempt_may_have_run: progress.doubted,
        fencing,
        similar_to,
        check: progress.check.as_ref().map(check).transpose()?,
        undo: progress.undo.as_deref().map(undo).transpose()?,
        aliases: aliases::read(&progress.aliases)
            .ok_or_else(|| Corrupt::new("its aliases are cut off"))?,
        latency_ms: progress.latency_ms,
        updated_at: time(progress.updated_at)?,
        expires_at: progress.expires_at.map(time).transpose()?,
        retain_until: progress.retain_until.map(time).transpose()?,
    }))
}

/// A record out of its [`BRIEF`] fields: see [`Record::without_texts`].
pub(super) fn read_brief(fields: Vec<Value>) -> Result<Option<Record>, Corrupt> {
    let [intent, progress, fencing, similar_to] =
        <[Value; 4]>::try_from(fields).map_err(|_| Corrupt::new("it has other fields"))?;
    let result = Value::BulkString(Vec::new());
    let read = read(vec![
        intent,
        Value::Nil,
        progress,
        fencing,
        result,
        similar_to,
    ])?;
    Ok(read.map(Record::without_texts))
}

fn undo(text: &str) -> Result<Undo, Corrupt> {
    undo::read(text).ok_or_else(|| Corrupt(format!("{text:?} does not say how it is undone")))
}

fn check(stored: &StoredCheck) -> Result<Check, Corrupt> {
    Ok(Check {
        at: stored.at.map(time).transpose()?,
        since: time(stored.since)?,
        number: stored.number,
    })
}

pub(super) fn read_entry(text: &[u8]) -> Result<Entry, Corrupt> {
    let stored: StoredEntry = serde_json::from_slice(text).map_err(Corrupt::new)?;
    Ok(Entry {
        at: time(stored.at)?,
        event: stored.event.into(),
        attempt: stored.attempt_id.map(AttemptId),
        outcome: stored.outcome.map(Into::into),
        by: stored.by,
        detail: stored.detail,
    })
}

fn state(progress: &Progress, result: Option<Bytes>) -> Result<State, Corrupt> {
    let result = match (progress.has_result, result) {
        (true, None) => return Err(Corrupt::new("its result is missing")),
        (true, result) => result,
        (false, _) => None,
    };
    let read = Read {
        name: &progress.state,
        result,
        failure: progress.failure.as_deref(),
        why: progress.why.clone(),
        tool_status: progress.tool_status,
        retry_after_ms: progress.retry_after_ms,
    };
    let unknown = || {
        Corrupt(format!(
            "{:?} is no state, or lacks its kind",
            progress.state
        ))
    };
    read.state().ok_or_else(unknown)
}

/// What a field holds as text; an empty one is none.
fn parsed<T: FromStr<Err: ToString>>(field: Option<Bytes>) -> Result<Option<T>, Corrupt> {
    let Some(text) = field.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = str::from_utf8(&text).map_err(Corrupt::new)?;
    text.parse().map(Some).map_err(Corrupt::new)
}

fn bytes<const N: usize>(text: &str) -> Result<[u8; N], Corrupt> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).map_err(Corrupt::new)?;
    Ok(bytes)
}

fn names(text: &str) -> Result<Vec<key::Lookup>, Corrupt> {
    let bytes = hex::decode(text).map_err(Corrupt::new)?;
    aliases::names(&bytes).ok_or_else(|| Corrupt::new("its names are cut off"))
}

fn time(microseconds: i64) -> Result<Timestamp, Corrupt> {
    Timestamp::from_microsecond(microseconds).map_err(Corrupt::new)
}

#[expect(clippy::expect_used, reason = "texts and numbers always make JSON")]
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values")
}
