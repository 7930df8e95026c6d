//! Verified replay: an operator has the same request sent once more, where that is safe.

use super::change::{Action, Call, Change, Illegal, Next};
use crate::actor::Actor;
use crate::record::{Content, State};
use crate::redact;
use crate::replay::Fresh;
use crate::time::after;
use crate::tool::{Dedup, Effect};

/// Most differences that an entry names.
const NAMED: usize = 10;

/// Begins a verified replay.
///
/// The change is written before the request is sent, so that the ledger explains its effects.
pub(super) fn begin_to_verify(
    call: Call<'_>,
    by: &str,
    by_operator: bool,
) -> Result<Next, Illegal> {
    let Call { tool, record, .. } = call;
    let State::Succeeded(Content::Stored(_)) = record.state else {
        return Err(Illegal::NoResult);
    };
    let refused = |why| Err(Illegal::ReplayUnsafe(why));
    if !redact::is_whole(&record.intent.args) {
        return refused("not all of its arguments are stored");
    }
    if tool.effect == Effect::Write {
        if tool.dedup != Dedup::Key {
            return refused("the tool does not deduplicate, so it would execute the call again");
        }
        if by_operator {
            return refused(
                "an operator has said what became of the call, so the tool may never have seen its key",
            );
        }
        // The tool would execute a call whose key it has forgotten.
        if call.dedup_now >= after(record.intent.created_at, tool.recheck.give_up_after) {
            return refused(
                "the call is older than recheck.give_up_after, so the tool may have forgotten its key",
            );
        }
    }
    let detail = "the same request is sent once more, to compare its result";
    let change = note(call, "verifying", by, detail);
    Ok(Next::write(change, Action::Verify))
}

pub(super) fn verified(call: Call<'_>, by: &str, fresh: &Fresh) -> Change {
    let detail = match fresh {
        Fresh::Compared(differences) if differences.is_empty() => {
            "the tool answers the same".to_owned()
        }
        Fresh::Compared(differences) => {
            let named = differences.iter().take(NAMED).map(String::as_str);
            let more = (differences.len() > NAMED).then_some("and more");
            let named: Vec<&str> = named.chain(more).collect();
            format!("the tool answers differently at {}", named.join(", "))
        }
        Fresh::Unclear(why) => format!("the tool gave nothing to compare: {why}"),
    };
    note(call, "verified", by, &detail)
}

/// A change that only adds an entry.
fn note(call: Call<'_>, event: &'static str, by: &str, detail: &str) -> Change {
    let change = Change::new(call.changed(), event, Actor::Token(by), detail);
    change.about(call.record.attempt.id)
}
