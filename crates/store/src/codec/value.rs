//! Ids and times in stored values, and why a value cannot be read.

use jiff::Timestamp;

use oncegate_rules::record::Intent;

/// Why a stored value cannot be read. Its call never counts as absent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("it was written by another version of oncegate (version {0} of its bytes)")]
    OtherVersion(u8),
    #[error("its {0} is damaged")]
    Damaged(&'static str),
    #[error("its {0} is missing")]
    Missing(&'static str),
}

/// A UUID or a lookup key.
pub(super) type Id = [u8; 16];

/// Microseconds from the creation of the call to this time.
pub(super) fn since(intent: &Intent, time: Timestamp) -> i64 {
    time.as_microsecond() - intent.created_at.as_microsecond()
}

pub(super) fn time(
    created_at: Timestamp,
    since: i64,
    of: &'static str,
) -> Result<Timestamp, Unreadable> {
    let time = created_at.as_microsecond().checked_add(since);
    let time = time.and_then(|time| Timestamp::from_microsecond(time).ok());
    time.ok_or(Unreadable::Damaged(of))
}
