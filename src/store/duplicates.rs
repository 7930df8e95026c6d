//! The duplicates of a call, as both stores keep them. Must not decide anything.

use jiff::Timestamp;

use crate::core::ledger::Duplicate;

/// When, by whom and what became of it, as JSON.
pub(super) type Stored = (i64, String, String);

pub(super) fn stored(one: &Duplicate) -> (i64, &str, &str) {
    (one.at.as_microsecond(), &one.by, &one.kind)
}

/// `None`: this was never written.
pub(super) fn read((at, by, kind): Stored) -> Option<Duplicate> {
    let at = Timestamp::from_microsecond(at).ok()?;
    Some(Duplicate { at, by, kind })
}
