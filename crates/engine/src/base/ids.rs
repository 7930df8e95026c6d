//! Makes all random ids and numbers of the gateway.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use uuid::Uuid;

use oncegate_rules::key;
use oncegate_rules::record::{AttemptId, CallId, InstanceId};

/// A new identity for this run of the process.
pub fn new_instance() -> InstanceId {
    InstanceId(random())
}

pub(crate) fn new_attempt() -> AttemptId {
    AttemptId(random())
}

/// A random UUID.
pub(crate) fn random() -> Uuid {
    #[cfg(feature = "simulate")]
    if let Some(seeded) = oncegate_hooks::seed::uuid() {
        return seeded;
    }
    Uuid::new_v4()
}

/// A UUID that is ordered by time.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where ids are made"
)]
fn by_time() -> Uuid {
    #[cfg(feature = "simulate")]
    if let Some(seeded) = oncegate_hooks::seed::uuid_by_time() {
        return seeded;
    }
    Uuid::now_v7()
}

/// A random number of 0..1.
pub fn jitter() -> f64 {
    (quick_number() >> 32) as f64 / f64::from(u32::MAX)
}

/// A number for ids of traces and spans, without a system call.
///
/// Not for secrets or decisions: two copies of a virtual machine go on with the same numbers.
pub(crate) fn quick_number() -> u64 {
    #[cfg(feature = "simulate")]
    if let Some(seeded) = oncegate_hooks::seed::number() {
        return seeded;
    }
    // The keys of a `RandomState` come from the operating system once for each thread, and change with each new state.
    RandomState::new().build_hasher().finish()
}

/// A trace id of 32 hexadecimal digits (W3C Trace Context).
pub(crate) fn new_trace_id() -> String {
    // A trace id must not be all zeros.
    let halves = [quick_number().max(1), quick_number()].map(u64::to_be_bytes);
    hex::encode(halves.as_flattened())
}

/// An id for one run of a job, ordered by time.
pub fn new_run_id() -> String {
    by_time().to_string()
}

pub fn new_call_id(lookup: &key::Lookup) -> CallId {
    CallId::new(by_time(), lookup)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn trace_ids_are_well_formed_and_differ_also_between_threads() {
        let some = || -> Vec<String> { (0..1_000).map(|_| new_trace_id()).collect() };
        let other = std::thread::spawn(some);
        let mut all = some();
        all.extend(other.join().expect("a thread"));
        for id in &all {
            assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
