//! Events as Jepsen writes them, and operations with both ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an event says about the operation of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// It begins.
    Invoke,
    /// It has ended, and was so.
    Ok,
    /// It has ended, and surely was not.
    Fail,
    /// The outcome is not known: it may still happen.
    Info,
}

/// One line of a history.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Event {
    /// In any unit. Events of one history are ordered by it.
    pub(crate) time: u64,
    /// Does one thing at a time.
    pub(crate) process: String,
    /// What the event says.
    #[serde(rename = "type")]
    pub(crate) kind: Kind,
    /// The name of the operation.
    pub(crate) f: String,
    /// The object, as kind and name: `call/order-7`.
    pub(crate) key: String,
    /// What the operation is about, or has come to.
    #[serde(default)]
    pub(crate) value: Value,
}

/// One operation, with both ends.
#[derive(Debug, Clone)]
pub(crate) struct Operation<'a> {
    /// Its name.
    pub(crate) f: &'a str,
    /// The value at its begin.
    pub(crate) asked: &'a Value,
    /// How it ended; `Info` if it did not.
    pub(crate) end: Kind,
    /// The value at its end; null if there is none.
    pub(crate) answer: &'a Value,
}
