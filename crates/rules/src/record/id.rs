//! The name of a call.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::key;

/// Names one call for ever; ordered by time (a UUIDv7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallId(pub Uuid);

impl CallId {
    /// A new id for a call with this lookup key.
    ///
    /// Id and key end in the same byte, so that a partitioned store finds the call by either.
    pub fn new(unique: Uuid, lookup: &key::Lookup) -> Self {
        let mut bytes = unique.into_bytes();
        bytes[15] = lookup.partition();
        Self(Uuid::from_bytes(bytes))
    }

    /// When the id was made, by the clock of its gateway; `None`: the id holds no time.
    pub fn made_at(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        let (seconds, nanoseconds) = (seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
        Timestamp::new(seconds, nanoseconds).ok()
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}
