//! A call as it is remembered in memory: one value without the arguments, and the result behind it.
//!
//! It never leaves the process, so any version of oncegate may change its form.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Beside, Id, Progress, StoredIntent, Unreadable, decoded_record, read_first, stored_intent,
    stored_progress, write,
};
use crate::core::record::{CallId, Record};

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Packed<'a> {
    intent: StoredIntent<'a>,
    progress: Progress<'a>,
    fencing: Option<u64>,
    similar_to: Option<Id>,
    has_result: bool,
}

/// Encodes a call.
pub(in crate::store) fn pack(record: &Record) -> Arc<[u8]> {
    let result = record.state.kept();
    let mut bytes = write(&Packed {
        // With the lookup key in it, `unpack` need not compute a digest.
        intent: stored_intent(&record.intent, Some(record.intent.lookup)),
        progress: stored_progress(record),
        fencing: record.fencing,
        similar_to: record.similar_to.map(|call_id| call_id.0.into_bytes()),
        has_result: result.is_some(),
    });
    bytes.extend_from_slice(result.map_or(&[], |json| json));
    bytes.into()
}

/// Decodes a call, without arguments. Its result shares `bytes`: nothing is copied.
pub(in crate::store) fn unpack(bytes: &Arc<[u8]>) -> Result<Record, Unreadable> {
    let (packed, rest): (Packed<'_>, _) = read_first(bytes, "memory")?;
    let at = bytes.len() - rest.len();
    let result = || Bytes::from_owner(bytes.clone()).slice(at..);
    let beside = Beside {
        args: Bytes::new(),
        result: packed.has_result.then(result),
        fencing: packed.fencing,
        similar_to: packed.similar_to.map(|id| CallId(Uuid::from_bytes(id))),
    };
    decoded_record(packed.intent, packed.progress, beside)
}
