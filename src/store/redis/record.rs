//! Records as texts, as `common.lua` writes them. Must not decide anything.
//!
//! A call is one string: the lengths of its parts, the letter of its state, what compare-and-swap compares, and the parts,
//! some of them encoded by the [codec](super::super::codec). Arguments and result come last, so that the beginnings of
//! many calls can be read without them.

use bytes::Bytes;
use jiff::Timestamp;
use redis::{FromRedisValue, Value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::keys;
use crate::core::ledger::Maker;
use crate::core::record::{AttemptId, Check, Entry, Record, State};
use crate::store::codec::{self, Beside};

/// Bytes before the parts of a call.
pub(super) const HEAD: usize = 48;

/// The parts of a stored call. The order is part of the format.
struct Parts {
    token: Bytes,
    similar_to: Bytes,
    progress: Bytes,
    intent: Bytes,
    entries: Bytes,
    args: Bytes,
    result: Bytes,
}

/// An operator's act, as JSON, with times in microseconds.
#[derive(Serialize, Deserialize)]
struct StoredEntry {
    at: i64,
    event: String,
    attempt_id: Option<Uuid>,
    outcome: Option<String>,
    by: String,
    detail: String,
}

/// A stored record that cannot be read. Never taken for an absent one.
#[derive(Debug, thiserror::Error)]
#[error("a stored call cannot be read: {0}")]
pub(super) struct Corrupt(String);

impl Corrupt {
    fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }
}

/// Later than any time; a double still prints it in full.
pub(super) const NEVER: i64 = 9_000_000_000_000_000;

/// The score of a call that was given up. A call never due has another.
pub(super) const GIVEN_UP: i64 = NEVER + 1;

/// The score of a call in the index of its state, in microseconds: when it is due.
pub(super) fn score(record: &Record) -> i64 {
    let time = match &record.state {
        State::Running => record.attempt.lease_until,
        State::Failed(_) => record.retain_until.unwrap_or(Timestamp::MAX),
        State::Unknown(_) => match record.check {
            Some(Check { at: Some(at), .. }) => at,
            Some(Check { at: None, .. }) => return GIVEN_UP,
            None => return NEVER,
        },
        _ => record.updated_at,
    };
    time.as_microsecond()
}

/// The letter of a state. Scripts know the states with an index.
pub(super) fn letter(record: &Record) -> &'static str {
    match &record.state {
        State::Running => "r",
        State::Unknown(_) => "u",
        State::Failed(_) => "f",
        _ => "-",
    }
}

/// From when on a finished call may be deleted, in microseconds; empty for never.
pub(super) fn retain_until(record: &Record) -> String {
    record
        .retain_until
        .map(|until| until.as_microsecond().to_string())
        .unwrap_or_default()
}

/// The result, or the body of a rejection; empty for none.
pub(super) fn result(record: &Record) -> &[u8] {
    record.state.kept().map_or(&[], AsRef::as_ref)
}

/// Version and attempt: no two changes of a call have the same.
pub(super) fn cas(record: &Record) -> [u8; 24] {
    let mut cas = [0; 24];
    cas[..8].copy_from_slice(&record.version.to_be_bytes());
    cas[8..].copy_from_slice(record.attempt.id.0.as_bytes());
    cas
}

/// Empty for none.
pub(super) fn fencing(record: &Record) -> String {
    record
        .fencing
        .map(|token| token.to_string())
        .unwrap_or_default()
}

/// Empty for none.
pub(super) fn similar_to(record: &Record) -> String {
    record.similar_to.map(keys::id).unwrap_or_default()
}

/// An entry as text, for sessions, tools and the stream of changes.
pub(super) fn entry(entry: &Entry) -> String {
    to_json(&StoredEntry {
        at: entry.at.as_microsecond(),
        event: entry.event.to_string(),
        attempt_id: entry.attempt.map(|id| id.0),
        outcome: entry.outcome.as_deref().map(str::to_owned),
        by: entry.by.clone(),
        detail: entry.detail.clone(),
    })
}

pub(super) fn read_entry(text: &[u8]) -> Result<Entry, Corrupt> {
    let stored: StoredEntry = serde_json::from_slice(text).map_err(Corrupt::new)?;
    Ok(Entry {
        at: Timestamp::from_microsecond(stored.at).map_err(Corrupt::new)?,
        event: stored.event.into(),
        attempt: stored.attempt_id.map(AttemptId),
        outcome: stored.outcome.map(Into::into),
        by: stored.by,
        detail: stored.detail,
    })
}

/// A stored call; `None` if there is none.
pub(super) fn text(value: Value) -> Result<Option<Bytes>, Corrupt> {
    let text = Option::<Bytes>::from_redis_value(value).map_err(Corrupt::new)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// A record.
pub(super) fn read(text: &Bytes) -> Result<Record, Corrupt> {
    let whole = HEAD + lengths(text)?.iter().sum::<usize>();
    // One that was cut off must not pass for a shorter one.
    if text.len() != whole {
        return Err(Corrupt(format!(
            "it has {} bytes and not {whole}",
            text.len()
        )));
    }
    Parts::of(text)?.record()
}

/// Reads a record from the beginning of its text: see [`Record::without_texts`].
pub(super) fn read_brief(text: &Bytes) -> Result<Record, Corrupt> {
    let mut parts = beginning(text)?;
    (parts.args, parts.result) = (Bytes::new(), Bytes::new());
    parts.record().map(Record::without_texts)
}

/// The newest entries of a call's history.
pub(super) fn entries(text: &Bytes, of: &Record, limit: u32) -> Result<Vec<Entry>, Corrupt> {
    let parts = Parts::of(text)?;
    codec::read_entries(&parts.entries, &of.intent, limit).map_err(Corrupt::new)
}

/// The maker of a call, from the beginning of its text.
pub(super) fn maker(text: &Bytes) -> Result<Maker, Corrupt> {
    codec::read_maker(&beginning(text)?.intent).map_err(Corrupt::new)
}

fn beginning(text: &Bytes) -> Result<Parts, Corrupt> {
    match brief(text)? {
        whole if text.len() >= whole => Parts::of(text),
        whole => Err(Corrupt(format!(
            "it has {} bytes and not {whole}",
            text.len()
        ))),
    }
}

/// How many bytes come before the texts of caller and tool.
pub(super) fn brief(text: &Bytes) -> Result<usize, Corrupt> {
    let lengths = lengths(text)?;
    Ok(HEAD + lengths[..5].iter().sum::<usize>())
}

/// The lengths of the parts.
fn lengths(text: &[u8]) -> Result<[usize; 7], Corrupt> {
    let head = text
        .first_chunk::<HEAD>()
        .ok_or_else(|| Corrupt::new("it is cut off"))?;
    let [token, similar_to, ..] = *head;
    let mut lengths = [usize::from(token), usize::from(similar_to), 0, 0, 0, 0, 0];
    for (length, bytes) in lengths[2..].iter_mut().zip(head[2..].as_chunks().0) {
        *length = u32::from_be_bytes(*bytes) as usize;
    }
    Ok(lengths)
}

impl Parts {
    /// Splits a text into its parts, as far as it goes.
    fn of(text: &Bytes) -> Result<Self, Corrupt> {
        let mut rest = text.slice(HEAD.min(text.len())..);
        let [token, similar_to, progress, intent, entries, args, result] =
            lengths(text)?.map(|length| rest.split_to(length.min(rest.len())));
        Ok(Self {
            token,
            similar_to,
            progress,
            intent,
            entries,
            args,
            result,
        })
    }

    fn record(self) -> Result<Record, Corrupt> {
        let token = str::from_utf8(&self.token).map_err(Corrupt::new)?;
        let fencing = Some(token).filter(|token| !token.is_empty());
        let similar_to = Some(&self.similar_to).filter(|id| !id.is_empty());
        let no_call = || Corrupt::new("the call that it is similar to has no id");
        let beside = Beside {
            args: self.args,
            // Its state says whether it is one.
            result: Some(self.result),
            fencing: fencing.map(str::parse).transpose().map_err(Corrupt::new)?,
            similar_to: similar_to
                .map(|id| keys::call_id(id).ok_or_else(no_call))
                .transpose()?,
        };
        codec::read(&self.intent, &self.progress, beside).map_err(Corrupt::new)
    }
}

#[expect(clippy::expect_used, reason = "texts and numbers always make JSON")]
fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text with parts of these lengths, as `common.lua` writes it.
    fn packed(lengths: [u32; 5]) -> Bytes {
        let mut text = vec![1, 2];
        text.extend(lengths.iter().flat_map(|length| length.to_be_bytes()));
        text.extend([b'r', b'-']);
        text.extend([b'c'; 24]);
        assert_eq!(text.len(), HEAD);
        text.extend(b"too");
        for (length, part) in lengths.iter().zip(*b"pieax") {
            text.extend(vec![part; *length as usize]);
        }
        text.into()
    }

    #[test]
    fn parts_are_found_by_their_lengths() {
        let text = packed([3, 2, 4, 70_000, 1]);
        let parts = Parts::of(&text).expect("parts");
        assert_eq!(
            (&parts.token[..], &parts.similar_to[..]),
            (&b"t"[..], &b"oo"[..])
        );
        assert_eq!(
            (&parts.progress[..], &parts.intent[..]),
            (&b"ppp"[..], &b"ii"[..])
        );
        assert_eq!(
            (&parts.entries[..], &parts.result[..]),
            (&b"eeee"[..], &b"x"[..])
        );
        assert_eq!(parts.args, vec![b'a'; 70_000]);
        assert_eq!(brief(&text).expect("a length"), HEAD + 3 + 9);
    }

    #[test]
    fn what_was_cut_off_or_has_more_is_no_call() {
        let text = packed([3, 2, 4, 5, 6]);
        let longer = Bytes::from([&text[..], b"x"].concat());
        for wrong in [
            text.slice(..text.len() - 1),
            longer,
            text.slice(..HEAD - 1),
            Bytes::new(),
        ] {
            let why = read(&wrong).expect_err("no call").to_string();
            assert!(
                why.contains("cut off") || why.contains("bytes and not"),
                "{why}"
            );
        }
        let brief = brief(&text).expect("a length");
        for beginning in [text.slice(..brief - 1), text.slice(..HEAD)] {
            assert!(read_brief(&beginning).is_err() && maker(&beginning).is_err());
        }
    }
}
