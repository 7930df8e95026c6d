//! A call waits for approval, is approved or declined, and begins once.
//!
//! ```text
//! (absent) ─asked► proposed ─approved► approved ─begun► running
//!                     ▲ └ declined | lapsed | withdrawn ► failed
//!                     └──── voided ────── approved
//! ```
//!
//! A proposal holds its key and its names, and no time frees them. It draws no fencing token, takes no lock, and has no
//! lease: nothing was sent.

use jiff::Timestamp;

use super::change::{Action, Call, Change, Illegal, Next, first_attempt};
use super::end::{remembered_until, stored_unless_in_saga};
use super::event::{Approved, Arrival, Begun, Declined};
use crate::actor::{Actor, By};
use crate::approval::{Approval, Ask, Digest, Proposal};
use crate::record::{CallId, Failure, FailureKind, InstanceId, Record, State};
use crate::session::{self, Admission, NearDuplicateRule, Preconditions};
use crate::time::{after, elapsed_ms};
use crate::tool::{Effect, Tool};

/// What a request does to a failed call that was asked about, or is to be.
pub(super) enum Again {
    Propose,
    /// Its approval is still good.
    Approved,
    Answer,
}

/// Whether a call that has failed was asked about and may not run without a further word.
///
/// A gateway without the rule never begins it: removing a rule releases nothing.
pub(super) fn again(call: Call<'_>, arrival: &Arrival, ask: Option<&Ask>) -> Option<Again> {
    let Call { record, now, .. } = call;
    let State::Failed(failure) = &record.state else {
        return None;
    };
    let Some(proposal) = record.proposal.as_deref() else {
        return ask.map(|_| Again::Propose);
    };
    let is_good = proposal.is_good(now) && !proposal.approvals.is_empty();
    Some(match failure.kind {
        FailureKind::Declined => Again::Answer,
        // A newer token of its own is another call than the approved one.
        _ if is_good && proposal.fencing == arrival.preconditions.fencing => Again::Approved,
        _ if ask.is_some() && proposal.may_ask_again() => Again::Propose,
        _ => Again::Answer,
    })
}

/// What a request asks of a call once more about which only its claim had to ask.
pub(super) fn as_before(call: Call<'_>) -> Option<Ask> {
    let earlier = call.record.proposal.as_deref()?;
    call.tool.approval.as_ref()?.ask_as_before(earlier)
}

/// Whether a proposal was not decided in time, and this request asks again before a worker has found that.
pub(super) fn is_past_deciding(call: Call<'_>, ask: Option<&Ask>) -> bool {
    let proposal = call.record.proposal.as_deref();
    let is_over = |proposal: &Proposal| !proposal.is_open(call.now) && proposal.may_ask_again();
    call.record.state == State::Proposed && ask.is_some() && proposal.is_some_and(is_over)
}

/// The change by which a request waits for approval. `there`: the failed call that asks again.
pub(super) fn propose(
    tool: &Tool,
    there: Option<&Record>,
    mut record: Record,
    arrival: &Arrival,
    ask: &Ask,
    now: Timestamp,
) -> Next {
    // All that the request lacks is said before it is asked about.
    let admission =
        match session::admission_of_proposal(tool, &record.intent, arrival.preconditions, ask) {
            Ok(Some(admission)) => admission,
            Ok(None) => {
                let why = "a tool that only reads asks for no approval";
                return Next::unchanged(Action::RefuseUnfit(why));
            }
            Err(why) => return Next::unchanged(Action::RefuseUnfit(why)),
        };
    let Preconditions { fencing, confirmed } = arrival.preconditions;
    let earlier = there.and_then(|there| there.proposal.as_deref());
    let proposal = Proposal::new(ask, earlier, fencing, confirmed, now);
    let (event, number) = match proposal.requested {
        1 => ("proposed", String::new()),
        times => ("asked_again", format!(", asked {times} times")),
    };
    let detail = format!("it waits for approval{number}: {}", ask.why.join("; "));
    record.state = State::Proposed;
    record.cancel_asked = false;
    record.proposal = Some(Box::new(proposal));
    match there {
        // Nothing was sent: the attempt only names the call.
        None => {
            record.attempt.lease_until = now;
            record.attempts = 0;
        }
        // A late answer to the earlier run still finds it.
        Some(there) => {
            record.attempt = there.attempt.clone();
            record.attempts = there.attempts;
        }
    }
    let mut change = Change::new(record, event, Actor::Gateway(arrival.owner), detail);
    change.admission = Some(admission);
    Next::write(change, Action::Propose)
}

/// A failed run is tried again by the approval that it has.
pub(super) fn approved_again(call: Call<'_>, arrival: &Arrival) -> Next {
    let mut record = call.changed();
    record.state = State::Approved;
    record.expires_at = None;
    record.retain_until = None;
    let detail = "the same key came again after a failure, and its approval is still good";
    let by = Actor::Gateway(arrival.owner);
    Next::write(
        Change::new(record, "asked_again", by, detail),
        Action::Begin,
    )
}

/// An approver approves what it has seen.
pub(super) fn approve(call: Call<'_>, approved: &Approved) -> Result<Next, Illegal> {
    let Call { record, now, .. } = call;
    let proposal = record.proposal.as_deref().ok_or(Illegal::NotProposed)?;
    // The answer was lost, and the approval came again.
    let has_approved = proposal
        .approval_of(&approved.by)
        .is_some_and(|own| same(&own.seen, &approved.seen));
    if has_approved {
        return Ok(Next::unchanged(Action::Answer));
    }
    if record.state != State::Proposed {
        return Err(Illegal::NotProposed);
    }
    if !proposal.is_open(now) {
        return Err(Illegal::ApprovalOver);
    }
    if approved.by.is_empty() || approved.by == record.intent.made_by {
        return Err(Illegal::OwnCall);
    }
    if !is_from(call.tool, proposal, &approved.by) {
        return Err(Illegal::NotAnApprover);
    }
    if !same(&approved.seen, &approved.shown.seen) {
        return Err(Illegal::NotConfirmed);
    }
    let mut record = call.changed();
    let mut next = proposal.clone();
    if next
        .bound
        .is_some_and(|bound| !same(&bound, &approved.shown.bound))
    {
        // The earlier approvals are of another request.
        next.approvals.clear();
    }
    next.bound = Some(approved.shown.bound);
    next.approvals.retain(|one| one.by != approved.by);
    next.approvals.push(Approval {
        by: approved.by.clone(),
        at: now,
        reason: approved.reason.clone(),
        seen: approved.seen,
    });
    let (count, needed) = (next.approvals.len(), needed(call.tool, &next));
    let is_enough = count >= needed;
    let by = Actor::Token(&approved.by);
    let reason = match approved.reason.as_str() {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    let change = if is_enough {
        next.good_until = Some(after(
            now,
            std::time::Duration::from_millis(next.good_for_ms),
        ));
        record.state = State::Approved;
        record.proposal = Some(Box::new(next));
        let detail = format!("it may begin{reason}");
        Change::new(record, "approved", by, detail)
    } else {
        record.proposal = Some(Box::new(next));
        let detail = format!("{count} of {needed} approvals{reason}");
        Change::new(record, "approval", by, detail)
    };
    let action = if is_enough {
        Action::Begin
    } else {
        Action::Finish
    };
    Ok(Next::write(change, action))
}

/// An approver declines the call.
pub(super) fn decline(call: Call<'_>, declined: &Declined) -> Result<Change, Illegal> {
    waits(call)?;
    let (by, tell) = (&declined.by, declined.tell.as_str());
    if by.is_empty() || *by == call.record.intent.made_by {
        return Err(Illegal::OwnCall);
    }
    let from = &proposal_of(call)?.from;
    // Today's rule does not matter: a decline sends nothing.
    if !from.is_empty() && !from.contains(by) {
        return Err(Illegal::NotAnApprover);
    }
    let why = "an approver declined it";
    let (mut record, event) = (ended(call, FailureKind::Declined, why), "declined");
    if let Some(proposal) = &mut record.proposal {
        tell.clone_into(&mut proposal.tell);
    }
    let change = Change::new(record, event, Actor::Token(by), declined.reason.as_str());
    Ok(given_back(call, change))
}

/// Its caller, an operator or its saga takes the call back.
pub(super) fn withdraw(call: Call<'_>, by: &By) -> Result<Change, Illegal> {
    waits(call)?;
    let record = ended(
        call,
        FailureKind::Withdrawn,
        "it was taken back before it was sent",
    );
    let change = Change::new(record, "withdrawn", &by.actor, by.reason.as_str());
    Ok(given_back(call, change))
}

/// The time to decide, or to begin, may be over.
pub(super) fn due(call: Call<'_>, by: InstanceId) -> Result<Change, Illegal> {
    let Call { record, now, .. } = call;
    waits(call)?;
    let proposal = proposal_of(call)?;
    let is_open = proposal.is_open(now);
    match record.state {
        State::Proposed if is_open => return Err(Illegal::NotDue),
        State::Approved if proposal.is_good(now) => return Err(Illegal::NotDue),
        State::Approved if is_open => {
            return Ok(voided(call, by, "it did not begin in time"));
        }
        _ => {}
    }
    let why = if record.state == State::Proposed {
        "it was not decided in time"
    } else {
        "it did not begin in time"
    };
    let lapsed = ended(call, FailureKind::Lapsed, why);
    let change = Change::new(lapsed, "lapsed", Actor::Gateway(by), why);
    Ok(given_back(call, change))
}

/// A gateway begins the approved call, if it would send what was approved.
pub(super) fn begin(call: Call<'_>, begun: &Begun) -> Result<Next, Illegal> {
    let Call {
        tool, record, now, ..
    } = call;
    if record.state != State::Approved {
        return Err(Illegal::NotApproved);
    }
    let proposal = proposal_of(call)?;
    if !proposal.is_good(now) {
        return Ok(Next::finish(due(call, begun.by)?));
    }
    let approvals = &proposal.approvals;
    if approvals.len() < needed(tool, proposal)
        || !approvals.iter().all(|one| is_from(tool, proposal, &one.by))
    {
        let why = "its tool asks for other approvals by now";
        return Ok(Next::finish(voided(call, begun.by, why)));
    }
    // A tool that only reads now would be sent without a token, and a loss would free its key.
    let holds = tool.effect == Effect::Write
        && proposal
            .bound
            .is_some_and(|bound| same(&bound, &begun.bound));
    if !holds {
        let why = "what would be sent now is not what was approved";
        return Ok(Next::finish(voided(call, begun.by, why)));
    }
    let preconditions = Preconditions {
        fencing: proposal.fencing,
        confirmed: proposal.confirmed,
    };
    let admission = session::admission(tool, &record.intent, preconditions);
    let Ok(Some(admission)) = admission else {
        let why = "its tool asks for more than the request has";
        return Ok(Next::finish(voided(call, begun.by, why)));
    };
    let mut running = call.changed();
    running.state = State::Running;
    running.attempt = first_attempt(tool, begun.attempt, begun.by, now);
    running.attempts = record.attempts.saturating_add(1);
    running.similar_to = None;
    running.check = None;
    running.latency_ms = None;
    running.expires_at = None;
    running.retain_until = None;
    let names: Vec<&str> = proposal.approvals.iter().map(|one| &*one.by).collect();
    let detail = format!("approved by {}", names.join(" and "));
    let mut change = Change::new(running, "begun", Actor::Gateway(begun.by), detail);
    // Only similar calls that the approvers have seen, or that its caller may name and has named, let it begin.
    let similar = admission.similar.map(|rule| NearDuplicateRule {
        refuses: true,
        confirmed: record.similar_to.or(rule.confirmed),
        ..rule
    });
    let budget = admission
        .budget
        .map(|rule| rule.unless(proposal.is_over_budget()));
    change.admission = Some(Admission {
        budget,
        similar,
        ..admission
    });
    Ok(Next::write(change.about(begun.attempt), Action::Run))
}

/// A gateway found a similar call that the approvers have not seen. From now on it is shown.
pub(super) fn void(call: Call<'_>, by: InstanceId, similar: CallId) -> Result<Change, Illegal> {
    if call.record.state != State::Approved {
        return Err(Illegal::NotApproved);
    }
    proposal_of(call)?;
    let why = format!("call {similar}, which was not shown, looks the same");
    let mut change = voided(call, by, &why);
    change.record.similar_to = Some(similar);
    Ok(change)
}

/// The call's fencing token is stale: a newer branch of its session has taken over.
pub(super) fn outdated(call: Call<'_>, by: InstanceId) -> Result<Change, Illegal> {
    if call.record.state != State::Approved {
        return Err(Illegal::NotApproved);
    }
    let why = "its session has a newer fencing token than the request brought";
    let record = ended(call, FailureKind::Fenced, why);
    let change = Change::new(record, "outdated", Actor::Gateway(by), why);
    Ok(given_back(call, change))
}

/// The call waits again, without any approval; after its time it lapses.
fn voided(call: Call<'_>, by: InstanceId, why: &str) -> Change {
    let is_open = call
        .record
        .proposal
        .as_ref()
        .is_some_and(|proposal| proposal.is_open(call.now));
    if !is_open {
        let lapsed = ended(call, FailureKind::Lapsed, why);
        let change = Change::new(lapsed, "lapsed", Actor::Gateway(by), why);
        return given_back(call, change);
    }
    let mut record = call.changed();
    record.state = State::Proposed;
    if let Some(proposal) = &mut record.proposal {
        proposal.void();
    }
    let detail = format!("{why}: the approvals are void");
    Change::new(record, "voided", Actor::Gateway(by), detail)
}

/// A call that is not sent, ended now.
fn ended(call: Call<'_>, kind: FailureKind, why: &str) -> Record {
    // The clock may have been set back meanwhile.
    let now = call.now.max(call.record.updated_at);
    let call = Call {
        now,
        dedup_now: call.dedup_now.max(now),
        ..call
    };
    let mut record = call.changed();
    record.state = State::Failed(Failure::new(kind, why));
    if let Some(proposal) = &mut record.proposal {
        proposal.good_until = None;
    }
    record.latency_ms = Some(elapsed_ms(record.attempt.run_started_at, now));
    record.expires_at = remembered_until(call);
    record.retain_until = stored_unless_in_saga(call);
    record
}

/// A call that surely had no effect is not a near-duplicate of a later one.
fn given_back(call: Call<'_>, mut change: Change) -> Change {
    change.release.similar = call.record.intent.similar;
    change
}

fn waits(call: Call<'_>) -> Result<(), Illegal> {
    match call.record.state {
        State::Proposed | State::Approved => Ok(()),
        _ => Err(Illegal::NotProposed),
    }
}

/// How many approvers have to approve: by the ask, and by the tool's rule today.
fn needed(tool: &Tool, proposal: &Proposal) -> usize {
    let today = tool.approval.as_ref().map_or(0, |rule| rule.approvals);
    usize::from(proposal.needed.max(today).max(1))
}

/// Whether this token may approve: by the ask, and by the tool's rule today.
fn is_from(tool: &Tool, proposal: &Proposal, by: &String) -> bool {
    let today = tool.approval.as_ref().map(|rule| &rule.from);
    let mut lists = [Some(&proposal.from), today].into_iter().flatten();
    lists.all(|from| from.is_empty() || from.contains(by))
}

fn proposal_of<'a>(call: Call<'a>) -> Result<&'a Proposal, Illegal> {
    call.record.proposal.as_deref().ok_or(Illegal::NotProposed)
}

/// Compares without a hint, by the time it takes, of where two digests differ.
fn same(one: &Digest, other: &Digest) -> bool {
    let differs = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    differs == 0
}
