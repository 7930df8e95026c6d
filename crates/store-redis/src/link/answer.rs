//! Reads the answers of scripts and commands.

use redis::{FromRedisValue, Value};

use crate::calls::record;
use oncegate_rules::position::Position;
use oncegate_rules::record::Record;
use oncegate_store::{Error, Result};

/// The answer of a script: a word and the values after it.
pub(crate) struct Answer {
    pub(crate) word: String,
    values: Vec<Value>,
}

impl Answer {
    pub(crate) fn read(answer: Value) -> Result<Self> {
        let mut values = Vec::<Value>::from_redis_value(answer).map_err(unreadable)?;
        if values.is_empty() {
            return Err(unreadable("an empty answer"));
        }
        let word = String::from_redis_value(values.remove(0)).map_err(unreadable)?;
        Ok(Self { word, values })
    }

    /// One of the values as a text; empty if the answer has none.
    pub(crate) fn text(&self, at: usize) -> String {
        let value = self.values.get(at).cloned();
        let text = value.and_then(|value| String::from_redis_value(value).ok());
        text.unwrap_or_default()
    }

    /// All values as texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        (0..self.values.len()).map(|at| self.text(at))
    }

    pub(crate) fn number(&self, at: usize) -> Option<u64> {
        self.text(at).parse().ok()
    }

    /// The fields in the last value.
    pub(crate) fn fields(mut self) -> Result<Vec<Value>> {
        Vec::from_redis_value(self.last()).map_err(unreadable)
    }

    /// The record in the last value.
    pub(crate) fn record(mut self) -> Result<Option<Record>> {
        stored_in(self.last())
    }

    fn last(&mut self) -> Value {
        self.values.pop().unwrap_or(Value::Nil)
    }

    /// The error for a word that the script should not answer with.
    pub(crate) fn unexpected(&self) -> Error {
        unreadable(format!("{:?} is not a word of this script", self.word))
    }
}

pub(crate) fn stored_in(text: Value) -> Result<Option<Record>> {
    let text = record::text(text).map_err(unreadable)?;
    let record = text.map(|text| record::read(&text)).transpose();
    record.map_err(unreadable)
}

/// Reads the positions in a list. One that cannot be read makes all of them unreadable.
pub(crate) fn positions(list: &[Vec<u8>]) -> Result<Vec<Position>> {
    let positions = list.iter().map(|bytes| Position::from_bytes(bytes));
    let positions: Option<_> = positions.collect();
    positions.ok_or_else(|| unreadable("this is not a position"))
}

/// The error for an unreadable answer, which proves nothing.
pub(crate) fn unreadable(why: impl ToString) -> Error {
    Error::Ambiguous(format!(
        "an answer of Redis cannot be read: {}",
        why.to_string()
    ))
}
