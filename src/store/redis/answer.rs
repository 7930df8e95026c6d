//! Reads the answers of scripts and commands.

use std::str::FromStr;

use redis::{FromRedisValue, Value};

use super::record;
use crate::core::record::Record;
use crate::store::Error;

/// The answer of a script: a word and values behind it.
pub(super) struct Answer {
    pub(super) word: String,
    rest: Vec<Value>,
}

impl Answer {
    pub(super) fn read(answer: Value) -> Result<Self, Error> {
        let mut parts = Vec::<Value>::from_redis_value(answer).map_err(unreadable)?;
        if parts.is_empty() {
            return Err(unreadable("an empty answer"));
        }
        let rest = parts.split_off(1);
        let word = parts.pop().unwrap_or(Value::Nil);
        Ok(Self {
            word: String::from_redis_value(word).map_err(unreadable)?,
            rest,
        })
    }

    /// One of the texts behind the word.
    pub(super) fn text(&self, at: usize) -> Option<String> {
        self.rest
            .get(at)
            .cloned()
            .and_then(|value| String::from_redis_value(value).ok())
    }

    /// The texts behind the word.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        (0..self.rest.len()).filter_map(|at| self.text(at))
    }

    pub(super) fn number<T: FromStr>(&self, at: usize) -> Option<T> {
        self.text(at).and_then(|number| number.parse().ok())
    }

    /// The fields at the end.
    pub(super) fn fields(mut self) -> Result<Vec<Value>, Error> {
        let fields = self.rest.pop().unwrap_or(Value::Nil);
        Vec::from_redis_value(fields).map_err(unreadable)
    }

    /// The record at the end.
    pub(super) fn record(mut self) -> Result<Option<Record>, Error> {
        stored_in(self.rest.pop().unwrap_or(Value::Nil))
    }

    /// The error for a word that makes no sense here.
    pub(super) fn no_sense(&self) -> Error {
        unreadable(format!("{:?} is no word of this script", self.word))
    }
}

pub(super) fn stored_in(text: Value) -> Result<Option<Record>, Error> {
    let text = record::text(text).map_err(unreadable)?;
    text.map(|text| record::read(&text))
        .transpose()
        .map_err(unreadable)
}

/// The error for an unreadable answer, which proves nothing.
pub(super) fn unreadable(why: impl ToString) -> Error {
    Error::Ambiguous(format!(
        "an answer of Redis cannot be read: {}",
        why.to_string()
    ))
}
