//! A call of a saga, without the texts of callers and tools.

use crate::core::key;
use crate::core::record::Record;
use crate::store;

/// A call of a saga, without its arguments and its result. Must never be written.
#[derive(Debug, Clone)]
pub(in crate::gateway) struct Member(Record);

impl Member {
    pub(in crate::gateway) fn of(record: Record) -> Self {
        Self(record.without_texts())
    }

    pub(in crate::gateway) fn record(&self) -> &Record {
        &self.0
    }

    pub(super) fn undoes_another(&self) -> bool {
        self.0.intent.key_source == key::Source::Compensation
    }
}

/// Why the calls of a saga are not known.
pub(in crate::gateway) enum Unlisted {
    /// The store did not answer. That was logged.
    Store,
    /// Asking again would not help; says why.
    Broken(String),
}

impl From<store::Error> for Unlisted {
    fn from(_: store::Error) -> Self {
        Self::Store
    }
}
