//! The history of a call as bytes: its entries, and its duplicates.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::text::Text;
use super::{Id, Unreadable, read_first, read_whole, since, time, write};
use oncegate_rules::ledger::{Duplicate, Duplicates};
use oncegate_rules::record::{AttemptId, Entry, Intent};

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct StoredEntry<'a> {
    at: i64,
    event: Text<'a>,
    attempt: Attempted,
    outcome: Option<Text<'a>>,
    /// `None`: the same as in the entry before.
    by: Option<Text<'a>>,
    detail: Text<'a>,
}

/// The attempt of an entry, if it is about one.
#[derive(Serialize, Deserialize)]
enum Attempted {
    None,
    This(Id),
    /// The same as in the entry before.
    Same,
}

impl<'a> StoredEntry<'a> {
    fn of(entry: &'a Entry, intent: &Intent) -> Self {
        let attempt = entry.attempt.map(|attempt| attempt.0.into_bytes());
        Self {
            at: since(intent, entry.at),
            event: Text::of(&entry.event),
            attempt: attempt.map_or(Attempted::None, Attempted::This),
            outcome: entry.outcome.as_deref().map(Text::of),
            by: Some(Text::of(&entry.by)),
            detail: Text::of(&entry.detail),
        }
    }

    /// The entry's attempt and actor. `None`: it refers to an entry before the first one.
    fn about(&self, before: Option<About<'a>>) -> Option<About<'a>> {
        let attempt = match self.attempt {
            Attempted::None => None,
            Attempted::This(attempt) => Some(attempt),
            Attempted::Same => before?.0,
        };
        let by = match self.by {
            Some(by) => by,
            None => before?.1,
        };
        Some((attempt, by))
    }
}

/// The attempt and the actor of an entry.
type About<'a> = (Option<Id>, Text<'a>);

/// Encodes an entry in full: it is readable without the entry before it.
pub fn entry(entry: &Entry, of: &Intent) -> Vec<u8> {
    write(&StoredEntry::of(entry, of))
}

/// Appends an entry to a history, without attempt and actor where the entry before has the same.
pub fn append(history: &mut Vec<u8>, entry: &Entry, of: &Intent) {
    let mut stored = StoredEntry::of(entry, of);
    // An entry after unreadable ones must not refer to them, so it is written in full.
    if let Some((_, (attempt, by))) = entries(history).ok().and_then(|mut all| all.pop()) {
        if entry.attempt.is_some() && attempt == entry.attempt.map(|id| id.0.into_bytes()) {
            stored.attempt = Attempted::Same;
        }
        stored.by = stored.by.filter(|one| *one != by);
    }
    let written = write(&stored);
    history.extend_from_slice(&written);
}

/// The newest entries of a call's history, at most `limit`, oldest first.
pub fn read_entries(history: &[u8], of: &Intent, limit: u32) -> Result<Vec<Entry>, Unreadable> {
    let entries = entries(history)?;
    let older = entries.len().saturating_sub(limit as usize);
    let read = |(stored, (attempt, by)): (StoredEntry<'_>, About<'_>)| {
        Ok(Entry {
            at: time(of.created_at, stored.at, "history")?,
            event: stored.event.read_word(),
            attempt: attempt.map(|id| AttemptId(Uuid::from_bytes(id))),
            outcome: stored.outcome.map(Text::read_word),
            by: by.read(),
            detail: stored.detail.read(),
        })
    };
    entries.into_iter().skip(older).map(read).collect()
}

/// All entries of a history, oldest first.
fn entries(mut history: &[u8]) -> Result<Vec<(StoredEntry<'_>, About<'_>)>, Unreadable> {
    let (mut all, mut before) = (Vec::new(), None);
    while !history.is_empty() {
        let (stored, rest) = read_first::<StoredEntry<'_>>(history, "history")?;
        let about = stored.about(before);
        let about = about.ok_or(Unreadable::Damaged("history"))?;
        (history, before) = (rest, Some(about));
        all.push((stored, about));
    }
    Ok(all)
}

/// A duplicate as it is stored: its time, its token and its kind.
type StoredDuplicate<'a> = (i64, Text<'a>, Text<'a>);

fn stored_duplicate(one: &Duplicate) -> StoredDuplicate<'_> {
    let at = one.at.as_microsecond();
    (at, Text::of(&one.by), Text::of(&one.kind))
}

fn decoded_duplicate((at, by, kind): StoredDuplicate<'_>) -> Result<Duplicate, Unreadable> {
    Ok(Duplicate {
        at: Timestamp::from_microsecond(at).map_err(|_| Unreadable::Damaged("duplicates"))?,
        by: by.read(),
        kind: kind.read(),
    })
}

/// Encodes one duplicate of a call.
pub fn duplicate(duplicate: &Duplicate) -> Vec<u8> {
    write(&stored_duplicate(duplicate))
}

pub fn read_duplicate(bytes: &[u8]) -> Result<Duplicate, Unreadable> {
    decoded_duplicate(read_whole(bytes, "duplicates")?)
}

/// Encodes the count and the newest duplicates of a call.
pub fn duplicates(duplicates: &Duplicates) -> Vec<u8> {
    let last: Vec<_> = duplicates.last.iter().map(stored_duplicate).collect();
    write(&(duplicates.count, last))
}

pub fn read_duplicates(bytes: &[u8]) -> Result<Duplicates, Unreadable> {
    let (count, last): (_, Vec<StoredDuplicate<'_>>) = read_whole(bytes, "duplicates")?;
    let last = last
        .into_iter()
        .map(decoded_duplicate)
        .collect::<Result<_, _>>()?;
    Ok(Duplicates { count, last })
}
