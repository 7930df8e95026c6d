//! A call of a saga as it is looked at: only what decides, without what callers and tools have said.

use crate::core::key;
use crate::core::record::Record;
use crate::store;

/// A call of a saga, without its arguments and its result: to be looked at, and never to be written.
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

/// Why it is not known which calls a saga has.
pub(in crate::gateway) enum Unlisted {
    /// The store did not answer. It was said.
    Store,
    /// That would not change by asking again.
    Broken(String),
}

impl From<store::Error> for Unlisted {
    fn from(_: store::Error) -> Self {
        Self::Store
    }
}
