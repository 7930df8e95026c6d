//! An MCP server works on a call as a task of its own, or a client asks to cancel a call.
//!
//! The task is written down before anything is told of it. Until its end is known the call is running or unknown.

use super::change::{Action, Call, Change, Illegal, Next};
use super::end::finish;
use super::rest::{reschedule, still_unknown};
use super::task::note;
use crate::actor::{Actor, By};
use crate::mcp::remote::Seen;
use crate::outcome::{self, Evidence, Outcome, Sent};
use crate::record::{AttemptId, InstanceId};
use crate::tool::OnUnknown;
use crate::unknown;

/// The server has answered the newest attempt with a task.
///
/// The call may be unknown by then, if its gateway was taken for lost.
pub(super) fn given(call: Call<'_>, attempt: AttemptId, id: &str) -> Result<Next, Illegal> {
    let record = call.record;
    if record.attempt.id != attempt {
        return Err(Illegal::NotOwner);
    }
    // The answer to an earlier try of this change was lost.
    if record.attempt.remote_task.as_deref() == Some(id) {
        return Ok(Next::unchanged(Action::Wait));
    }
    Ok(Next::write(note(call, id), Action::Follow))
}

/// The server was asked for the task of an unknown call.
///
/// The end of the task proves what the same answer would have proved at once. A task that is gone proves nothing: the tool's
/// policy holds from then on.
pub(super) fn seen(
    call: Call<'_>,
    by: InstanceId,
    attempt: AttemptId,
    seen: &Seen,
) -> Result<Change, Illegal> {
    let Call { tool, record, .. } = call;
    if record.attempt.id != attempt || record.attempt.remote_task.is_none() {
        return Err(Illegal::NotOwner);
    }
    Ok(match seen {
        Seen::Ended(answer) => {
            let ended = Evidence::Mcp(answer.clone());
            let (outcome, why) = outcome::classify(tool, &ended, Sent::of(record));
            let why = format!("the server's task has ended: {why}");
            match outcome {
                Outcome::Unknown => forget(call, by, &why),
                _ => finish(call, "probed", Actor::Gateway(by), &outcome, &why),
            }
        }
        Seen::Gone(why) => forget(call, by, why),
        // As long as the server says so, it is asked again.
        Seen::Runs { poll, .. } => {
            let check = unknown::check_of_task(tool, record, *poll, call.now);
            let why = seen.explanation();
            reschedule(call, by, "probed", Some(check), &why).proving(&Outcome::Unknown)
        }
        Seen::Unclear(_) => still_unknown(call, by, None, seen.explanation()),
    })
}

/// Nothing more can be learned from the task.
///
/// The server may have worked on it up to now, and a probe may show that only later. So "not found" is judged as if the lease
/// had lasted as long.
fn forget(call: Call<'_>, by: InstanceId, why: &str) -> Change {
    let mut left = call.changed();
    left.attempt.remote_task = None;
    left.attempt.lease_until = left.attempt.lease_until.max(call.now);
    if call.tool.unknown == OnUnknown::Hold {
        left.check = None;
    }
    let detail = format!("{why}; that does not prove that the call was not executed");
    Change::new(left, "task_gone", Actor::Gateway(by), detail)
        .about(call.record.attempt.id)
        .proving(&Outcome::Unknown)
}

/// A client asks to cancel the call: no further attempt is made. The attempt under way is not broken off.
pub(super) fn cancel(call: Call<'_>, by: &By) -> Next {
    if call.record.cancel_asked {
        return Next::unchanged(Action::Answer);
    }
    let mut asked = call.changed();
    asked.cancel_asked = true;
    let detail = "a client asks to cancel the call: nothing more is sent, and what was sent is not broken off";
    let change = Change::new(asked, "cancel_asked", &by.actor, detail);
    Next::finish(change.about(call.record.attempt.id))
}
