//! Calls as rows. Must not decide anything.

use bytes::Bytes;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::session::{self, session_of};
use crate::link::lanes::Lock;
use crate::link::rows::{ChangeRow, Giver};
use crate::link::rows::{get, signed, unreadable};
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::Index;
use oncegate_rules::record::{CallId, Intent, Record};
use oncegate_store::Result;
use oncegate_store::codec::{self, Beside, Unreadable};
use oncegate_store::search::{self, StateColumns};

/// A query with the columns for [`record`], and this text behind them. `brief`: without arguments and results.
macro_rules! select {
    ($rest:literal) => {
        concat!("SELECT intent, args, progress, result, fencing, similar_to, call_id FROM ", $rest)
    };
    (brief $rest:literal) => {
        concat!("SELECT intent, ''::bytea, progress, substr(result, 1, 0), fencing, similar_to, call_id FROM ", $rest)
    };
}
pub(crate) use select;

/// Decodes a call from the columns of `select`, which begin here. A missing part makes it unreadable, and never absent.
pub(crate) fn record_at(row: &Row, at: usize) -> Result<Record> {
    let bytes = |column: usize| -> Result<Option<Bytes>> {
        let bytes: Option<&[u8]> = get(row, at + column)?;
        Ok(bytes.map(Bytes::copy_from_slice))
    };
    let beside = Beside {
        args: bytes(1)?.unwrap_or_default(),
        result: bytes(3)?,
        fencing: get::<Option<i64>>(row, at + 4)?.map(i64::unsigned_abs),
        similar_to: get::<Option<Uuid>>(row, at + 5)?.map(CallId),
    };
    let part = |column, name| -> Result<&[u8]> {
        let part: Option<&[u8]> = get(row, at + column)?;
        part.ok_or_else(|| unreadable(Unreadable::Missing(name)))
    };
    codec::read(part(0, "intent")?, part(2, "progress")?, beside).map_err(unreadable)
}

/// Decodes a call from the columns of `select`.
pub(crate) fn record(row: &Row) -> Result<Record> {
    record_at(row, 0)
}

/// The id of a call for the log, from the columns of `select`.
pub(crate) fn id(row: &Row) -> String {
    get::<Option<Uuid>>(row, 6)
        .ok()
        .flatten()
        .map_or_else(String::new, |id| id.to_string())
}

/// A record's id as bytes.
pub(crate) fn bytes_of(id: CallId) -> [u8; 16] {
    id.0.into_bytes()
}

/// Lookup keys as ids.
pub(crate) fn ids<'a>(lookups: impl IntoIterator<Item = &'a Lookup>) -> Vec<Uuid> {
    lookups
        .into_iter()
        .map(|name| Uuid::from_bytes(name.0))
        .collect()
}

/// The calls whose lookup keys a call takes. One that loses the lookup key of its key is listed by that from then on.
pub(crate) fn givers(givers: &[Record], taken: &[Uuid]) -> Option<Vec<Giver>> {
    let giver = |giver: &Record| {
        let intent = &giver.intent;
        let is_taken = taken.contains(&Uuid::from_bytes(intent.lookup.0));
        Giver {
            call_id: intent.call_id.0,
            version: signed(giver.version),
            attempt: giver.attempt.id.0,
            list: is_taken.then(|| search::by_key(&intent.tenant, &intent.key)),
        }
    };
    (!givers.is_empty()).then(|| givers.iter().map(giver).collect())
}

/// The lists of a new call: tool, trace, user, saga, and that of its key if no lookup key made of the key finds it.
pub(crate) fn lists(intent: &Intent) -> Vec<Option<i64>> {
    let tenant = &intent.tenant;
    let of = |is_listed: bool, index| search::list(tenant, index).filter(|_| is_listed);
    let is_found = intent.lookup == Lookup::new(tenant, &intent.tool, &intent.key);
    vec![
        of(true, Index::Tool(&intent.tool)),
        of(true, Index::Trace(&intent.trace_id)),
        of(!intent.user_id.is_empty(), Index::User(&intent.user_id)),
        of(!intent.saga_id.is_empty(), Index::Saga(&intent.saga_id)),
        (!is_found).then(|| search::by_key(tenant, &intent.key)),
    ]
}

/// The row of a change, with what each claim and each change writes.
pub(crate) fn written(change: &Change) -> ChangeRow {
    let record = &change.record;
    let columns = StateColumns::of(record);
    let intent = &record.intent;
    ChangeRow {
        call_id: intent.call_id.0,
        session: Uuid::from_bytes(session_of(change)),
        state: i16::from(columns.state),
        version: signed(record.version),
        attempt: record.attempt.id.0,
        due_at: columns.due_at,
        searched: columns.tool.map(str::to_owned),
        by_state: search::list(&intent.tenant, Index::State(record.state.as_str())),
        retain_until: record.retain_until.map(Timestamp::as_microsecond),
        progress: codec::progress(record),
        entry: codec::entry(&change.entry, intent),
        result: record.state.stored().map(|result| result.to_vec()),
        ..ChangeRow::default()
    }
}

/// The locks of a change: its session and groups, the lookup keys that it needs, the calls that give some up, and its own call.
///
/// Verbs with the same first exclusive lock wait in the same lane.
pub(crate) fn locks<'a>(
    change: &Change,
    lookups: impl IntoIterator<Item = &'a Lookup>,
    givers: &[Record],
) -> Vec<Lock> {
    let lookups = lookups.into_iter().map(|name| Lock::alone(&name.0));
    let givers = givers.iter().map(|giver| giver.intent.call_id);
    let calls = givers.chain([change.record.intent.call_id]);
    let calls = calls.map(|id| Lock::alone(&bytes_of(id)));
    let of_session = session::locks(change).into_iter();
    of_session.chain(lookups).chain(calls).collect()
}
