//! A person asks whether a stored result is stable: the same request is sent once more, where that is safe.

use jiff::Timestamp;

use super::{Action, Change, Illegal, Next, Takes, after};
use crate::core::actor::Actor;
use crate::core::record::Content;
use crate::core::record::{Entry, Record, State};
use crate::core::redact;
use crate::core::replay::Fresh;
use crate::core::session::Release;
use crate::core::tool::Dedup;
use crate::core::tool::{Effect, Tool};

/// Differences that an entry names.
const NAMED: usize = 10;

/// Whether the same may be sent once more. Written down before it is, so that the ledger explains whatever
/// comes of it.
pub(super) fn begin_to_verify(
    tool: &Tool,
    record: &Record,
    by: &str,
    by_person: bool,
    now: Timestamp,
) -> Result<Next, Illegal> {
    let State::Succeeded(Content::Kept(_)) = record.state else {
        return Err(Illegal::NoResult);
    };
    if !redact::is_whole(&record.intent.args) {
        return Err(Illegal::ReplayUnsafe("not all of its arguments are kept"));
    }
    if tool.effect == Effect::Write {
        if tool.dedup != Dedup::Key {
            return Err(Illegal::ReplayUnsafe(
                "the tool does not deduplicate, so it would execute the call again",
            ));
        }
        if by_person {
            return Err(Illegal::ReplayUnsafe(
                "a person has said what became of the call, so the tool may never have seen its key",
            ));
        }
        // What it has forgotten it would execute.
        if now >= after(record.intent.created_at, tool.recheck.give_up_after) {
            return Err(Illegal::ReplayUnsafe(
                "the call is older than recheck.give_up_after, so the tool may have forgotten its key",
            ));
        }
    }
    let detail = "the same request is sent once more, to compare its result".to_owned();
    Ok(note(record, "verifying", by, detail, Action::Verify, now))
}

pub(super) fn verified(record: &Record, by: &str, fresh: &Fresh, now: Timestamp) -> Next {
    let detail = match fresh {
        Fresh::Compared(differences) if differences.is_empty() => {
            "the tool answers the same".to_owned()
        }
        Fresh::Compared(differences) => {
            let named: Vec<&str> = differences.iter().take(NAMED).map(String::as_str).collect();
            let more = if differences.len() > NAMED {
                ", and more"
            } else {
                ""
            };
            format!("the tool answers differently at {}{more}", named.join(", "))
        }
        Fresh::Unclear(why) => format!("the tool gave nothing to compare: {why}"),
    };
    note(record, "verified", by, detail, Action::Finish, now)
}

/// An entry about a call that stays as it is.
fn note(
    record: &Record,
    event: &'static str,
    by: &str,
    detail: String,
    action: Action,
    now: Timestamp,
) -> Next {
    let noted = Record {
        version: record.version + 1,
        updated_at: now,
        ..record.clone()
    };
    let by = Actor::Token(by).to_string();
    let entry = Entry {
        at: now,
        event: event.into(),
        attempt: Some(record.attempt.id),
        outcome: None,
        by,
        detail,
    };
    Next {
        change: Some(Change {
            record: noted,
            entry,
            admission: None,
            release: Release::default(),
            takes: Takes::default(),
        }),
        action,
    }
}
