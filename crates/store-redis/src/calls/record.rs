//! Records as texts, as `common.lua` writes them. Must not decide anything.
//!
//! A call is one string: the lengths of its parts, the letter of its state, what compare-and-swap compares, and the parts,
//! some of which the [codec](oncegate_store::codec) encodes. Arguments and result come last, so that the beginning of a
//! call can be read without them.

use bytes::Bytes;
use jiff::Timestamp;
use redis::{FromRedisValue, Value};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::keys;
use oncegate_rules::ledger::Maker;
use oncegate_rules::record::{AttemptId, Check, Entry, Record, State};
use oncegate_store::codec::{self, Beside};

/// Bytes before the parts of a call.
const HEAD: usize = 48;

/// The parts of a stored call: token, similar call, progress, intent, entries, arguments and result.
type Parts = [Bytes; 7];

/// An entry as JSON, with times in microseconds.
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
pub(crate) struct Corrupt(String);

impl Corrupt {
    fn new(why: impl ToString) -> Self {
        Self(why.to_string())
    }

    fn of_length(text: &[u8], expected: usize) -> Self {
        Self(format!("it has {} bytes and not {expected}", text.len()))
    }
}

/// The score of an unknown call without a next check. Later than any time; a double still prints it in full.
pub(crate) const NEVER: i64 = 9_000_000_000_000_000;

/// The score of an unknown call that was given up.
const GIVEN_UP: i64 = NEVER + 1;

/// The score of a call in the index of its state, in microseconds: when it is due.
pub(crate) fn score(record: &Record) -> i64 {
    let time = match (&record.state, record.check) {
        (State::Running, _) => record.attempt.lease_until,
        (State::Failed(_), _) => record.retain_until.unwrap_or(Timestamp::MAX),
        (State::Unknown(_), None) => return NEVER,
        (State::Unknown(_), Some(Check { at: None, .. })) => return GIVEN_UP,
        (State::Unknown(_), Some(Check { at: Some(at), .. })) => at,
        (State::Proposed, _) => {
            let proposal = record.proposal.as_deref();
            proposal.map_or(record.updated_at, |asked| asked.until)
        }
        _ => record.updated_at,
    };
    time.as_microsecond()
}

/// The index of a state; empty for none.
pub(crate) fn index(record: &Record) -> &'static str {
    match &record.state {
        State::Running => "running",
        State::Unknown(_) => "unknown",
        State::Failed(_) => "failed",
        State::Proposed | State::Approved => "waiting",
        _ => "",
    }
}

/// The letter of a state that has an index, for scripts.
pub(crate) fn letter(record: &Record) -> &'static str {
    match &record.state {
        State::Running => "r",
        State::Unknown(_) => "u",
        State::Failed(_) => "f",
        State::Proposed => "p",
        State::Approved => "a",
        _ => "-",
    }
}

/// A value as text; empty for none.
pub(crate) fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// A time in microseconds; empty for none.
pub(crate) fn microseconds(time: Option<Timestamp>) -> String {
    or_empty(time.map(Timestamp::as_microsecond))
}

/// The result, or the body of a rejection; empty for none.
pub(crate) fn result(record: &Record) -> &[u8] {
    record.state.stored().map_or(&[], AsRef::as_ref)
}

/// What compare-and-swap compares: version and attempt, which differ for any two changes of a call.
pub(crate) fn cas(record: &Record) -> [u8; 24] {
    let mut cas = [0; 24];
    cas[..8].copy_from_slice(&record.version.to_be_bytes());
    cas[8..].copy_from_slice(record.attempt.id.0.as_bytes());
    cas
}

/// An entry as text, for sessions, tools and the stream of changes.
#[expect(clippy::expect_used, reason = "texts and numbers always make JSON")]
pub(crate) fn entry(entry: &Entry) -> String {
    let stored = StoredEntry {
        at: entry.at.as_microsecond(),
        event: entry.event.to_string(),
        attempt_id: entry.attempt.map(|id| id.0),
        outcome: entry.outcome.as_deref().map(str::to_owned),
        by: entry.by.clone(),
        detail: entry.detail.clone(),
    };
    serde_json::to_string(&stored).expect("JSON")
}

pub(crate) fn read_entry(text: &[u8]) -> Result<Entry, Corrupt> {
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

/// Reads the events of a session or a tool. Redis has the newest first; they are returned oldest first.
pub(crate) fn read_events(events: &[Vec<u8>]) -> Result<Vec<Entry>, Corrupt> {
    events.iter().rev().map(|text| read_entry(text)).collect()
}

/// The text of a stored call; `None` if the call is gone.
pub(crate) fn text(value: Value) -> Result<Option<Bytes>, Corrupt> {
    let text = Option::<Bytes>::from_redis_value(value).map_err(Corrupt::new)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// Reads a record from its whole text.
pub(crate) fn read(text: &Bytes) -> Result<Record, Corrupt> {
    // A text that was cut off must not be read as a shorter one.
    let whole = HEAD + lengths(text)?.iter().sum::<usize>();
    if text.len() != whole {
        return Err(Corrupt::of_length(text, whole));
    }
    record(split(text)?)
}

/// Reads a record from the beginning of its text: see [`Record::without_texts`].
pub(crate) fn read_brief(text: &Bytes) -> Result<Record, Corrupt> {
    let [token, similar_to, progress, intent, entries, ..] = beginning(text)?;
    let [args, result] = [Bytes::new(), Bytes::new()];
    let parts = [token, similar_to, progress, intent, entries, args, result];
    record(parts).map(Record::without_texts)
}

/// The newest entries of a call's history.
pub(crate) fn entries(text: &Bytes, of: &Record, limit: u32) -> Result<Vec<Entry>, Corrupt> {
    let [.., entries, _, _] = split(text)?;
    codec::read_entries(&entries, &of.intent, limit).map_err(Corrupt::new)
}

/// The maker of a call, from the beginning of its text.
pub(crate) fn maker(text: &Bytes) -> Result<Maker, Corrupt> {
    let [_, _, _, intent, ..] = beginning(text)?;
    codec::read_maker(&intent).map_err(Corrupt::new)
}

/// The parts in the beginning of a text; those behind may be cut off.
fn beginning(text: &Bytes) -> Result<Parts, Corrupt> {
    let least = brief(text)?;
    if text.len() < least {
        return Err(Corrupt::of_length(text, least));
    }
    split(text)
}

/// The length of a call's beginning: everything before arguments and result.
pub(crate) fn brief(text: &Bytes) -> Result<usize, Corrupt> {
    let lengths = lengths(text)?;
    Ok(HEAD + lengths[..5].iter().sum::<usize>())
}

/// The lengths of the parts.
fn lengths(text: &[u8]) -> Result<[usize; 7], Corrupt> {
    let head = text.first_chunk::<HEAD>();
    let head = head.ok_or_else(|| Corrupt::new("it is cut off"))?;
    let [token, similar_to, ..] = *head;
    let mut lengths = [usize::from(token), usize::from(similar_to), 0, 0, 0, 0, 0];
    for (length, bytes) in lengths[2..].iter_mut().zip(head[2..].as_chunks().0) {
        *length = u32::from_be_bytes(*bytes) as usize;
    }
    Ok(lengths)
}

/// Splits a text into its parts. Parts that are cut off are shorter.
fn split(text: &Bytes) -> Result<Parts, Corrupt> {
    let mut rest = text.slice(HEAD.min(text.len())..);
    Ok(lengths(text)?.map(|length| rest.split_to(length.min(rest.len()))))
}

fn record(
    [token, similar_to, progress, intent, _, args, result]: Parts,
) -> Result<Record, Corrupt> {
    let token = str::from_utf8(&token).map_err(Corrupt::new)?;
    let fencing = Some(token).filter(|token| !token.is_empty());
    let similar_to = Some(&similar_to).filter(|id| !id.is_empty());
    let no_call = || Corrupt::new("the call that it is similar to has no id");
    let beside = Beside {
        args,
        // The state in the progress says whether these bytes are a result.
        result: Some(result),
        fencing: fencing.map(str::parse).transpose().map_err(Corrupt::new)?,
        similar_to: similar_to
            .map(|id| keys::call_id(id).ok_or_else(no_call))
            .transpose()?,
    };
    codec::read(&intent, &progress, beside).map_err(Corrupt::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_rules::key;
    use oncegate_rules::testing as calls;
    use oncegate_rules::tool::Tool;

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
    fn unknown_calls_without_a_next_check_come_behind_all_others() {
        let unknown = |check: Option<Option<Timestamp>>| Record {
            state: State::Unknown("no answer".into()),
            check: check.map(|at| Check {
                since: calls::at(1),
                at,
                number: 1,
            }),
            ..calls::record(&Tool::new("t"), key::Source::Runtime, &[])
        };
        let next = calls::at(7);
        assert_eq!(score(&unknown(Some(Some(next)))), next.as_microsecond());
        assert_eq!(score(&unknown(None)), NEVER, "a search finds it once");
        assert!(score(&unknown(Some(None))) > NEVER, "it was given up");
    }

    #[test]
    fn parts_are_found_by_their_lengths() {
        let text = packed([3, 2, 4, 70_000, 1]);
        let parts = split(&text).expect("parts");
        let args = vec![b'a'; 70_000];
        let expected = [&b"t"[..], b"oo", b"ppp", b"ii", b"eeee", &args, b"x"];
        assert_eq!(parts, expected.map(Bytes::copy_from_slice));
        assert_eq!(brief(&text).expect("a length"), HEAD + 3 + 9);
    }

    #[test]
    fn a_text_that_is_too_short_or_too_long_is_refused() {
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
