//! Verified replay: a person has the same request sent once more, where that is safe.

use jiff::Timestamp;

use super::change::{Action, Change, Illegal, Next};
use crate::core::actor::Actor;
use crate::core::record::{Content, Record, State};
use crate::core::redact;
use crate::core::replay::Fresh;
use crate::core::time::after;
use crate::core::tool::{Dedup, Effect, Tool};

/// Most differences that an entry names.
const NAMED: usize = 10;

/// Begins a verified replay.
///
/// The change is written before the request is sent, so that the ledger explains its effects.
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
    let detail = "the same request is sent once more, to compare its result";
    let change = note(record, "verifying", by, detail, now);
    Ok(Next::write(change, Action::Verify))
}

pub(super) fn verified(record: &Record, by: &str, fresh: &Fresh, now: Timestamp) -> Change {
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
    note(record, "verified", by, &detail, now)
}

/// A change that only adds an entry.
fn note(record: &Record, event: &'static str, by: &str, detail: &str, now: Timestamp) -> Change {
    let change = Change::new(record.changed(now), event, Actor::Token(by), detail);
    change.about(record.attempt.id)
}
