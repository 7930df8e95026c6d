//! What an event does to a saga.

use jiff::Timestamp;

use super::{Event, Illegal, OnTimeout, Phase, Policy, Saga, State, Trouble};
use crate::core::retry;
use crate::core::time::{between, later};
use crate::core::work::{self, Blocker, Due};

/// Most tries to tell an operator of one trouble.
const TELLINGS: u32 = 12;

/// How the trouble begins that a loss of data makes.
const LOST: &str = "the store has lost data";

/// Decides what an event does to a saga.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(saga: &Saga, event: &Event, policy: &Policy, now: Timestamp) -> Result<Saga, Illegal> {
    let wrong = Illegal::State(saga.state());
    let at_rest = saga.phase.at_rest();
    let is_lost = saga.phase == Phase::OpenAtLoss;
    let changed = Saga {
        version: saga.version + 1,
        updated_at: now,
        ..saga.clone()
    };
    Ok(match event {
        // What is asked for again has been done.
        Event::Complete { .. } if saga.phase == Phase::Completed => saga.clone(),
        Event::Abort { .. } if at_rest.is_some() => saga.clone(),
        Event::Complete { by, reason } if saga.phase.may_end() => Saga {
            reason: reason.clone(),
            ..changed.enter(Phase::Completed).due(Due::At(now))
        }
        .noted("completed", by, reason, now),
        Event::Abort {
            after_loss: false, ..
        } if is_lost => return Err(Illegal::AfterLoss),
        Event::Abort { by, reason, .. } if saga.phase.may_end() => changed.aborted(by, reason, now),
        // Its one call was skipped then, and is to be undone after all.
        Event::Abort { by, reason, .. }
            if saga.only.is_some() && saga.phase == Phase::Compensated =>
        {
            changed.aborted(by, reason, now)
        }
        Event::Overdue { .. } if !saga.is_open() => return Err(wrong),
        Event::Overdue { .. }
            if saga.overdue || saga.deadline.is_none_or(|deadline| now < deadline) =>
        {
            return Err(Illegal::NotDue);
        }
        Event::Overdue { by } => {
            let overdue = Saga {
                overdue: true,
                ..changed
            };
            match policy.on_timeout {
                OnTimeout::Abort => overdue.aborted(by, "its deadline is over", now),
                OnTimeout::Report => {
                    let detail =
                        "its deadline is over; it stays open until a person completes or aborts it";
                    let told = Saga {
                        telling: Some(0),
                        ..overdue.due(Due::At(now))
                    };
                    told.noted("overdue", by, detail, now)
                }
            }
        }
        Event::Taken { until } => {
            let taken = work::Event::Taken { until: *until };
            worked(changed, taken, policy, now)?.0
        }
        Event::Freed => worked(changed, work::Event::Freed, policy, now)?.0,
        // One that is not worked on is not taken up for that.
        Event::Held { until } if saga.state() == State::Stuck => {
            changed.due(saga.work.due.not_before(*until))
        }
        Event::StoreLost { by, reason } if at_rest.is_some() || saga.phase.may_end() => {
            let (phase, what) = match at_rest {
                None => (
                    Phase::OpenAtLoss,
                    "it may have been completed or undone since; complete it, or abort it",
                ),
                Some(at_rest) => (
                    Phase::Stuck {
                        at_rest,
                        is_transient: false,
                    },
                    "what was undone may be forgotten",
                ),
            };
            let why = format!("{LOST} ({reason}): {what}");
            let lost = Saga {
                trouble: Some(after_loss(saga.trouble.as_ref(), &why)),
                telling: Some(0),
                ..changed.enter(phase).due(Due::At(now))
            };
            lost.noted("store_lost", by, &why, now)
        }
        Event::CallFound if saga.phase.is_over() => Saga {
            retain_until: None,
            ..changed.due(Due::At(now))
        },
        Event::Released { all: true } if saga.phase.is_over() => Saga {
            retain_until: Some(later(now, policy.retention)),
            ..changed.due(Due::Never)
        },
        Event::Released { all: false } if saga.phase.is_over() => {
            // The later the longer it takes.
            let age = between(saga.created_at, now);
            let wait = (age / 2).clamp(policy.look_again, policy.retry.max.max(policy.look_again));
            changed.due(Due::At(later(now, wait)))
        }
        Event::Told { delivered } => match saga.telling {
            None => return Err(wrong),
            Some(before) => told(changed, before + 1, *delivered, policy, now),
        },
        Event::Retry { .. } | Event::Settled { .. } if is_lost => return Err(Illegal::AfterLoss),
        Event::Retry { by, reason } | Event::Settled { by, reason } => {
            let Phase::Stuck { at_rest, .. } = saga.phase else {
                return Err(wrong);
            };
            let is_settled = matches!(event, Event::Settled { .. });
            // What was decided about the one call of such a saga counts from now on.
            let at_rest = at_rest || saga.only.is_some() && is_settled;
            let again = changed.enter(Phase::Compensating { at_rest }).anew(now);
            again.noted(
                if is_settled { "settled" } else { "retry" },
                by,
                reason,
                now,
            )
        }
        Event::Prolonged { .. }
        | Event::Rested
        | Event::Blocked { .. }
        | Event::Advanced
        | Event::Undone { .. } => match at_rest {
            Some(at_rest) => undoing(changed, event, at_rest, policy, now)?,
            None => return Err(wrong),
        },
        Event::Complete { .. }
        | Event::Abort { .. }
        | Event::Held { .. }
        | Event::StoreLost { .. }
        | Event::CallFound
        | Event::Released { .. } => return Err(wrong),
    })
}

/// The saga with its work after an event, and whether that is given up.
fn worked(
    saga: Saga,
    event: work::Event,
    policy: &Policy,
    now: Timestamp,
) -> Result<(Saga, bool), work::NotDue> {
    let next = saga.work.next(&event, &policy.of_work(), now)?;
    let work = next.work;
    Ok((Saga { work, ..saga }, next.gives_up))
}

/// What an event does to a saga whose calls are being undone.
fn undoing(
    saga: Saga,
    event: &Event,
    at_rest: bool,
    policy: &Policy,
    now: Timestamp,
) -> Result<Saga, Illegal> {
    let was_stuck = saga.state() == State::Stuck;
    Ok(match event {
        Event::Prolonged { until } => {
            let until = *until;
            // What was waited for has come to rest: what fails now fails for the first time.
            let saga = if was_stuck { saga.anew(now) } else { saga };
            let (saga, _) = worked(saga, work::Event::Prolonged { until }, policy, now)?;
            saga.enter(Phase::Compensating { at_rest })
        }
        // What is undone after it has its own tries.
        Event::Rested => {
            let due = saga.work.due;
            let rested = saga.enter(Phase::Compensating { at_rest: true });
            rested.anew(now).due(due)
        }
        Event::Undone { by } => {
            let undone = saga.enter(Phase::Compensated).anew(now);
            undone.noted("compensated", by, "all of it is undone", now)
        }
        Event::Blocked {
            by,
            trouble,
            blocker,
            jitter,
        } => {
            let (blocker, jitter) = (*blocker, *jitter);
            let event = work::Event::Blocked { blocker, jitter };
            let (saga, gives_up) = worked(saga, event, policy, now)?;
            let is_transient = matches!(blocker, Blocker::Unknown | Blocker::Busy);
            let blocked = Saga {
                trouble: Some(trouble.clone()),
                phase: if gives_up {
                    Phase::Stuck {
                        at_rest,
                        is_transient,
                    }
                } else {
                    saga.phase
                },
                ..saga
            };
            if was_stuck {
                // What may end without an operator is still looked at.
                let goes_on = !gives_up || is_transient || blocked.telling.is_some();
                return Ok(if goes_on {
                    blocked
                } else {
                    blocked.due(Due::Never)
                });
            }
            let detail = match trouble.call_id {
                Some(call_id) => format!("call {call_id}: {}", trouble.why),
                None => trouble.why.clone(),
            };
            if gives_up {
                Saga {
                    telling: Some(0),
                    ..blocked.due(Due::At(now))
                }
                .noted("stuck", by, &detail, now)
            } else if blocker == Blocker::Busy {
                blocked
            } else {
                blocked.noted("hindered", by, &detail, now)
            }
        }
        _ => saga.enter(Phase::Compensating { at_rest }).anew(now),
    })
}

/// The trouble of a saga after a loss: its own stays, with the call that a person may skip.
fn after_loss(own: Option<&Trouble>, why: &str) -> Trouble {
    // An earlier loss is told no more.
    let own_why = own.and_then(|own| own.why.split(LOST).next());
    let own_why = own_why.map(|own| own.trim_end_matches("; "));
    Trouble {
        call_id: own.and_then(|own| own.call_id),
        why: match own_why.filter(|own| !own.is_empty()) {
            Some(own) => format!("{own}; {why}"),
            None => why.to_owned(),
        },
    }
}

/// The saga after a try to tell an operator.
fn told(saga: Saga, tellings: u32, delivered: bool, policy: &Policy, now: Timestamp) -> Saga {
    let is_over = delivered || tellings >= TELLINGS;
    let wait = retry::delay(&policy.retry, tellings, 1.0, None);
    let goes_on = !is_over || saga.phase.is_stuck_for_now();
    let due = if goes_on {
        Due::At(later(now, wait))
    } else {
        Due::Never
    };
    Saga {
        telling: (!is_over).then_some(tellings),
        ..saga.due(due)
    }
}
