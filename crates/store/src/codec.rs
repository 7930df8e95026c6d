//! The codec: a call and its history as bytes, the same in both stores. Must not decide anything.
//!
//! A call is stored as two values: its *intent*, and its *progress*, which each change replaces. The store keeps
//! arguments, result, fencing token and similar call beside them, unencoded. The history is a sequence of *entries*.
//!
//! Each value is a version byte and then its fields, in their order, in the wire format of [`postcard`]
//! (<https://postcard.jamesmunns.com/wire-format>). Small numbers take fewer bytes than large ones. Times are microseconds
//! since the call was created. Texts that need encryption are encrypted already.

mod history; // entries and duplicates
mod proposal; // what was asked about a call, and who has approved it
mod state; // the state of a call
mod text; // texts, shorter where their form is known
mod value; // ids and times, and why a value cannot be read

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::history::{
    append, duplicate, duplicates, entry, read_duplicate, read_duplicates, read_entries,
};
use self::proposal::StoredProposal;
use self::state::{StoredState, code, decoded};
use self::text::Text;
pub use self::value::Unreadable;
use self::value::{Id, since, time};
use oncegate_rules::key::{Fingerprint, GroupKey, Lookup, Source};
use oncegate_rules::key_scheme::KeySchemeId;
use oncegate_rules::ledger::Maker;
use oncegate_rules::record::{
    Alias, Attempt, AttemptId, CallId, Check, Compensation, InstanceId, Intent, Record, Undo,
};

/// The version byte. A value with another one is unreadable.
pub const VERSION: u8 = 1;
/// The oldest version that is still read.
pub const OLDEST: u8 = 1;

/// The parts of a call that the store keeps unencoded, beside intent and progress.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    pub args: Bytes,
    /// The result, or the body of a rejection.
    pub result: Option<Bytes>,
    pub fencing: Option<u64>,
    pub similar_to: Option<CallId>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct StoredIntent<'a> {
    call_id: Id,
    created_at: i64,
    tenant: Text<'a>,
    tool: Text<'a>,
    made_by: Text<'a>,
    /// `None`, as in nearly all calls: the lookup key follows from tenant, tool and key.
    lookup: Option<Id>,
    lookups: Vec<Id>,
    key_scheme: Id,
    key: Text<'a>,
    key_source: u8,
    fingerprint: Fingerprint,
    user_id: Text<'a>,
    session_id: Text<'a>,
    saga_id: Text<'a>,
    trace_id: Text<'a>,
    client_ids: Text<'a>,
    similar: Option<[u8; 32]>,
}

/// The part of a call that changes. Times are microseconds since the call was created.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Progress<'a> {
    version: u64,
    state: StoredState<'a>,
    attempt: Id,
    owner: Id,
    attempt_number: u32,
    run_started_at: i64,
    lease_until: i64,
    attempts: u32,
    doubted: bool,
    /// The next check's time, since when the call is unknown, and how many checks there were.
    check: Option<(Option<i64>, i64, u32)>,
    undo: Option<StoredUndo<'a>>,
    aliases: Vec<StoredAlias>,
    latency_ms: Option<u64>,
    updated_at: i64,
    expires_at: Option<i64>,
    retain_until: Option<i64>,
}

/// The tool and the id of the compensation, and whether it is skipped.
type StoredUndo<'a> = (Option<(Text<'a>, Id)>, bool);

/// Lookup keys, fingerprint and key scheme of an alias.
type StoredAlias = (Vec<Id>, Fingerprint, Id);

/// Encodes the intent, without the arguments.
pub fn intent(intent: &Intent) -> Vec<u8> {
    let of_key = Lookup::new(&intent.tenant, &intent.tool, &intent.key);
    let lookup = Some(intent.lookup).filter(|lookup| *lookup != of_key);
    write(&stored_intent(intent, lookup))
}

fn stored_intent(intent: &Intent, lookup: Option<Lookup>) -> StoredIntent<'_> {
    StoredIntent {
        call_id: intent.call_id.0.into_bytes(),
        created_at: intent.created_at.as_microsecond(),
        tenant: Text::of(&intent.tenant),
        tool: Text::of(&intent.tool),
        made_by: Text::of(&intent.made_by),
        lookup: lookup.map(|lookup| lookup.0),
        lookups: intent.lookups.iter().map(|name| name.0).collect(),
        key_scheme: intent.key_scheme.0,
        key: Text::of(&intent.key),
        key_source: code(&Source::ALL, intent.key_source),
        fingerprint: intent.fingerprint,
        user_id: Text::of(&intent.user_id),
        session_id: Text::of(&intent.session_id),
        saga_id: Text::of(&intent.saga_id),
        trace_id: Text::of(&intent.trace_id),
        client_ids: Text::of(&intent.client_ids),
        similar: intent.similar.map(|group| group.0),
    }
}

/// Encodes the progress of a call, without fencing token, similar call and result.
pub fn progress(record: &Record) -> Vec<u8> {
    let progress = stored_progress(record);
    let proposal = record.proposal.as_deref();
    let proposal = proposal.map(|proposal| StoredProposal::of(proposal, &record.intent));
    // Calls without a proposal or a task have the bytes that they always had.
    match (StoredTask::of(record), proposal) {
        (None, None) => write(&progress),
        (None, Some(proposal)) => write(&(progress, proposal)),
        (Some(task), proposal) => write(&(progress, TASK_FOLLOWS, task, proposal)),
    }
}

/// Stands where the number of the ask stands in a proposal. Asks are counted from 1.
const TASK_FOLLOWS: u32 = 0;

/// The task of the newest attempt, and whether a client has asked to cancel the call.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct StoredTask<'a> {
    remote: Option<Text<'a>>,
    cancel_asked: bool,
}

impl<'a> StoredTask<'a> {
    /// `None`: there is nothing to store.
    fn of(record: &'a Record) -> Option<Self> {
        let remote = record.attempt.remote_task.as_deref().map(Text::of);
        let cancel_asked = record.cancel_asked;
        (remote.is_some() || cancel_asked).then_some(Self {
            remote,
            cancel_asked,
        })
    }
}

/// What follows the progress of a few calls.
type Rest<'a> = (Option<StoredTask<'a>>, Option<StoredProposal<'a>>);

/// Decodes what follows the progress.
fn read_following(rest: &[u8]) -> Result<Rest<'_>, Unreadable> {
    let task_follows = u8::try_from(TASK_FOLLOWS).ok();
    Ok(match rest.split_first() {
        None => (None, None),
        Some((first, rest)) if Some(*first) == task_follows => {
            let (task, proposal) = read_rest(rest, "progress")?;
            (Some(task), proposal)
        }
        Some(_) => (None, Some(read_rest(rest, "progress")?)),
    })
}

fn stored_progress(record: &Record) -> Progress<'_> {
    let since = |time: Timestamp| since(&record.intent, time);
    Progress {
        version: record.version,
        state: StoredState::of(&record.state),
        attempt: record.attempt.id.0.into_bytes(),
        owner: record.attempt.owner.0.into_bytes(),
        attempt_number: record.attempt.number,
        run_started_at: since(record.attempt.run_started_at),
        lease_until: since(record.attempt.lease_until),
        attempts: record.attempts,
        doubted: record.earlier_attempt_may_have_run,
        check: record
            .check
            .map(|check| (check.at.map(since), since(check.since), check.number)),
        undo: record.undo.as_ref().map(stored_undo),
        aliases: record.aliases.iter().map(stored_alias).collect(),
        latency_ms: record.latency_ms,
        updated_at: since(record.updated_at),
        expires_at: record.expires_at.map(since),
        retain_until: record.retain_until.map(since),
    }
}

/// Decodes a call.
pub fn read(intent: &[u8], progress: &[u8], beside: Beside) -> Result<Record, Unreadable> {
    let intent = read_whole(intent, "intent")?;
    let (progress, rest): (Progress<'_>, _) = read_first(progress, "progress")?;
    decoded_record(intent, progress, read_following(rest)?, beside)
}

fn decoded_record(
    intent: StoredIntent<'_>,
    progress: Progress<'_>,
    (task, proposal): Rest<'_>,
    beside: Beside,
) -> Result<Record, Unreadable> {
    let intent = decoded_intent(intent, beside.args)?;
    let damaged = Unreadable::Damaged("progress");
    let time = |since| time(intent.created_at, since, "progress");
    let check = |(at, since, number): (Option<i64>, _, _)| {
        let (at, since) = (at.map(time).transpose()?, time(since)?);
        Ok(Check { since, at, number })
    };
    let proposal = proposal.map(|stored| stored.read(intent.created_at));
    let (remote_task, cancel_asked) = task.map_or((None, false), |task| {
        (task.remote.map(Text::read), task.cancel_asked)
    });
    Ok(Record {
        proposal: proposal.transpose()?.map(Box::new),
        version: progress.version,
        state: progress.state.read(beside.result).ok_or(damaged)?,
        attempt: Attempt {
            id: AttemptId(Uuid::from_bytes(progress.attempt)),
            owner: InstanceId(Uuid::from_bytes(progress.owner)),
            number: progress.attempt_number,
            run_started_at: time(progress.run_started_at)?,
            lease_until: time(progress.lease_until)?,
            remote_task,
        },
        attempts: progress.attempts,
        earlier_attempt_may_have_run: progress.doubted,
        cancel_asked,
        fencing: beside.fencing,
        similar_to: beside.similar_to,
        check: progress.check.map(check).transpose()?,
        undo: progress.undo.map(read_undo),
        aliases: progress.aliases.into_iter().map(read_alias).collect(),
        latency_ms: progress.latency_ms,
        updated_at: time(progress.updated_at)?,
        expires_at: progress.expires_at.map(time).transpose()?,
        retain_until: progress.retain_until.map(time).transpose()?,
        intent: Arc::new(intent),
    })
}

/// Decodes an intent, with these arguments.
pub fn read_intent(bytes: &[u8], args: Bytes) -> Result<Intent, Unreadable> {
    decoded_intent(read_whole(bytes, "intent")?, args)
}

fn decoded_intent(stored: StoredIntent<'_>, args: Bytes) -> Result<Intent, Unreadable> {
    let damaged = Unreadable::Damaged("intent");
    let (tenant, tool) = (stored.tenant.read(), stored.tool.read());
    let key = stored.key.read();
    let of_key = || Lookup::new(&tenant, &tool, &key);
    Ok(Intent {
        call_id: CallId(Uuid::from_bytes(stored.call_id)),
        lookup: stored.lookup.map_or_else(of_key, Lookup),
        tenant,
        tool,
        lookups: stored.lookups.into_iter().map(Lookup).collect(),
        key_scheme: KeySchemeId(stored.key_scheme),
        key,
        key_source: decoded(&Source::ALL, stored.key_source).ok_or(damaged.clone())?,
        fingerprint: stored.fingerprint,
        user_id: stored.user_id.read(),
        session_id: stored.session_id.read(),
        saga_id: stored.saga_id.read(),
        trace_id: stored.trace_id.read(),
        made_by: stored.made_by.read(),
        client_ids: stored.client_ids.read(),
        similar: stored.similar.map(GroupKey),
        args,
        created_at: Timestamp::from_microsecond(stored.created_at).map_err(|_| damaged)?,
    })
}

/// The maker of a call, from its intent.
pub fn read_maker(bytes: &[u8]) -> Result<Maker, Unreadable> {
    let stored: StoredIntent<'_> = read_whole(bytes, "intent")?;
    Ok(Maker {
        tenant: stored.tenant.read(),
        tool: stored.tool.read(),
        token: stored.made_by.read(),
    })
}

/// The id of a call, from its intent or its packed form.
///
/// Works also if the intent has another version, or is damaged after the id.
pub fn call_id(intent: &[u8]) -> Option<CallId> {
    let (id, _) = intent.get(1..)?.split_first_chunk()?;
    Some(CallId(Uuid::from_bytes(*id)))
}

/// The version and the attempt of a call: compare-and-swap compares them and the fencing token.
pub fn stamp(bytes: &[u8]) -> Result<(u64, AttemptId), Unreadable> {
    let (progress, _): (Progress<'_>, _) = read_first(bytes, "progress")?;
    let attempt = AttemptId(Uuid::from_bytes(progress.attempt));
    Ok((progress.version, attempt))
}

/// A call as it is remembered in memory, without the arguments. Its result comes behind it.
///
/// It never leaves the process, so any version of oncegate may change its form.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Packed<'a> {
    intent: StoredIntent<'a>,
    progress: Progress<'a>,
    task: Option<StoredTask<'a>>,
    proposal: Option<StoredProposal<'a>>,
    fencing: Option<u64>,
    similar_to: Option<Id>,
    has_result: bool,
}

/// Encodes a call for memory.
pub fn pack(record: &Record) -> Arc<[u8]> {
    let result = record.state.stored();
    let mut bytes = write(&Packed {
        // With the lookup key in it, `unpack` need not compute a digest.
        intent: stored_intent(&record.intent, Some(record.intent.lookup)),
        progress: stored_progress(record),
        task: StoredTask::of(record),
        proposal: record
            .proposal
            .as_deref()
            .map(|proposal| StoredProposal::of(proposal, &record.intent)),
        fencing: record.fencing,
        similar_to: record.similar_to.map(|call_id| call_id.0.into_bytes()),
        has_result: result.is_some(),
    });
    bytes.extend_from_slice(result.map_or(&[], |json| json));
    bytes.into()
}

/// Decodes a call from memory, without arguments. Its result shares `bytes`: nothing is copied.
pub fn unpack(bytes: &Arc<[u8]>) -> Result<Record, Unreadable> {
    let (packed, rest): (Packed<'_>, _) = read_first(bytes, "memory")?;
    let at = bytes.len() - rest.len();
    let result = || Bytes::from_owner(bytes.clone()).slice(at..);
    let beside = Beside {
        args: Bytes::new(),
        result: packed.has_result.then(result),
        fencing: packed.fencing,
        similar_to: packed.similar_to.map(|id| CallId(Uuid::from_bytes(id))),
    };
    decoded_record(
        packed.intent,
        packed.progress,
        (packed.task, packed.proposal),
        beside,
    )
}

fn stored_undo(undo: &Undo) -> StoredUndo<'_> {
    let call = undo.compensation.as_ref();
    let call = call.map(|call| (Text::of(&call.tool), call.call_id.0.into_bytes()));
    (call, undo.skipped)
}

fn read_undo((compensation, skipped): StoredUndo<'_>) -> Undo {
    let compensation = compensation.map(|(tool, call_id)| Compensation {
        tool: tool.read(),
        call_id: CallId(Uuid::from_bytes(call_id)),
    });
    Undo {
        compensation,
        skipped,
    }
}

fn stored_alias(alias: &Alias) -> StoredAlias {
    let lookups = alias.lookups.iter().map(|name| name.0).collect();
    (lookups, alias.fingerprint, alias.key_scheme.0)
}

fn read_alias((lookups, fingerprint, key_scheme): StoredAlias) -> Alias {
    Alias {
        lookups: lookups.into_iter().map(Lookup).collect(),
        fingerprint,
        key_scheme: KeySchemeId(key_scheme),
    }
}

#[expect(clippy::expect_used, reason = "plain values always encode")]
fn write(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("plain values")
}

/// Decodes the value at the beginning of `bytes`. Returns it with the bytes after it.
fn read_first<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<(T, &'a [u8]), Unreadable> {
    let damaged = Unreadable::Damaged(what);
    match bytes.split_first() {
        Some((&VERSION, value)) => postcard::take_from_bytes(value).map_err(|_| damaged),
        Some((other, _)) => Err(Unreadable::OtherVersion(*other)),
        None => Err(damaged),
    }
}

/// Decodes what follows a value, as exactly one value.
fn read_rest<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T, Unreadable> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Unreadable::Damaged(what)),
    }
}

/// Decodes `bytes` as exactly one value.
fn read_whole<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<T, Unreadable> {
    match read_first(bytes, what)? {
        (value, []) => Ok(value),
        _ => Err(Unreadable::Damaged(what)),
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
#[path = "codec_tests.rs"]
pub mod tests;
