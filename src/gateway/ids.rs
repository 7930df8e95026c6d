//! Random names and numbers: the one place that makes them.

use uuid::Uuid;

use crate::core::key;
use crate::core::record::{AttemptId, CallId, InstanceId};

/// A new identity for this run of the process.
pub fn new_instance() -> InstanceId {
    InstanceId(Uuid::new_v4())
}

pub(super) fn new_attempt() -> AttemptId {
    AttemptId(Uuid::new_v4())
}

/// A random number of 0..1.
pub fn jitter() -> f64 {
    let (high, _) = Uuid::new_v4().as_u64_pair();
    (high >> 32) as f64 / f64::from(u32::MAX)
}

/// A name for one run of a job, ordered by time.
#[expect(clippy::disallowed_methods, reason = "ids are made here")]
pub(super) fn new_run_id() -> String {
    Uuid::now_v7().to_string()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where a call gets its id"
)]
pub(super) fn new_call_id(lookup: &key::Lookup) -> CallId {
    CallId::new(Uuid::now_v7(), lookup)
}
