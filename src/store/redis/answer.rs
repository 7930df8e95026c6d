//! Answers of scripts and commands, read.

use redis::{FromRedisValue, Value};

use super::record;
use crate::core::record::{CallId, Record};
use crate::store::Error;

pub(super) fn call_id(text: &str) -> Option<CallId> {
    text.parse().ok().map(CallId)
}

/// One of the texts behind a script's word.
pub(super) fn text(rest: &[Value], at: usize) -> Option<String> {
    rest.get(at)
        .cloned()
        .and_then(|value| String::from_redis_value(value).ok())
}

/// A script's answer: a word and what follows it.
pub(super) fn reply(answer: Value) -> Result<(String, Vec<Value>), Error> {
    let mut parts = Vec::<Value>::from_redis_value(answer).map_err(unreadable)?;
    if parts.is_empty() {
        return Err(unreadable("an empty answer"));
    }
    let rest = parts.split_off(1);
    let word = parts.pop().unwrap_or(Value::Nil);
    Ok((String::from_redis_value(word).map_err(unreadable)?, rest))
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
