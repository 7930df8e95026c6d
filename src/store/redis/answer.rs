//! Answers of scripts and commands, read.

use std::str::FromStr;

use redis::{FromRedisValue, Value};

use super::record;
use crate::core::record::{CallId, Record};
use crate::store::Error;

/// What a script answers: a word and what follows it.
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
    pub(super) fn record(self) -> Result<Option<Record>, Error> {
        record::read(self.fields()?).map_err(unreadable)
    }

    /// The error where this word makes no sense.
    pub(super) fn no_sense(&self) -> Error {
        unreadable(format!("{:?} is no word of this script", self.word))
    }
}

pub(super) fn call_id(text: &str) -> Option<CallId> {
    text.parse().ok().map(CallId)
}

pub(super) fn stored_in(fields: Value) -> Result<Option<Record>, Error> {
    let fields = Vec::from_redis_value(fields).map_err(unreadable)?;
    record::read(fields).map_err(unreadable)
}

/// An answer that makes no sense proves nothing.
pub(super) fn unreadable(why: impl ToString) -> Error {
    Error::Ambiguous(format!(
        "an answer of Redis cannot be read: {}",
        why.to_string()
    ))
}
