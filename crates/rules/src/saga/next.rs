//! What an event does to a saga.

use jiff::Timestamp;

use super::{Event, Illegal, OnTimeout, Phase, Policy, Saga, State, Trouble};
use crate::retry;
use crate::time::{between, later};
use crate::work::{self, Blocker, Due};

/// Most tries to tell an operator of one trouble.
const TELLINGS: u32 = 12;

/// The first words of the trouble that a loss of data makes.
const LOST: &str = "the store has lost data";

/// Decides what an event does to a saga.
///
/// # Errors
/// The event does not fit the state; nothing changes.
pub fn next(saga: &Saga, event: &Event, policy: &Policy, now: Timestamp) -> Result<Saga, Illegal> {
    let wrong = Illegal::State(saga.state());
    let at_rest = saga.phase.at_rest();
    let is_lost = saga.phase == Phase::OpenAtLoss;
    let may_end = is_lost || saga.is_open();
    let is_over = saga.phase.is_over();
    // The one call was skipped before, and is to be undone after all.
    let is_anew = saga.only.is_some() && saga.phase == Phase::Compensated;
    let changed = Saga {
        version: saga.version + 1,
        updated_at: now,
        ..saga.clone()
    };
    Ok(match event {
        // A repeated request changes nothing.
        Event::Complete(_) if saga.phase == Phase::Completed => saga.clone(),
        Event::Abort { .. } if at_rest.is_some() => saga.clone(),
        Event::Complete(by) if may_end => {
            let completed = Saga {
                reason: by.reason.clone(),
                ..changed.enter(Phase::Completed).due(Due::At(now))
            };
            completed.noted("completed", &by.actor, &by.reason, now)
        }
        Event::Abort { by, after_loss } if may_end || is_anew => {
            if is_lost && !after_loss {
                return Err(Illegal::AfterLoss);
            }
            changed.aborted(&by.actor, &by.reason, now)
        }
        Event::Overdue { by } => {
            if !saga.is_open() {
                return Err(wrong);
            }
            if saga.overdue || saga.deadline.is_none_or(|deadline| now < deadline) {
                return Err(Illegal::NotDue);
            }
            let overdue = Saga {
                overdue: true,
                ..changed
            };
            match policy.on_timeout {
                OnTimeout::Abort => overdue.aborted(by, "its deadline has passed", now),
                OnTimeout::Report => {
                    let detail = "its deadline has passed; it stays open until an operator completes or aborts it";
                    let reported = overdue.reporting(now);
                    reported.noted("overdue", by, detail, now)
                }
            }
        }
        Event::Taken { until } => {
            let taken = work::Event::Taken { until: *until };
            worked(changed, taken, policy, now)?.0
        }
        Event::Freed => worked(changed, work::Event::Freed, policy, now)?.0,
        // A saga that no worker takes stays so.
        Event::Held { until } if saga.state() == State::Stuck => {
            changed.due(saga.work.due.not_before(*until))
        }
        Event::StoreLost(by) if at_rest.is_some() || may_end => {
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
            let why = format!("{LOST} ({}): {what}", by.reason);
            let lost = Saga {
                trouble: Some(after_loss(saga.trouble.as_ref(), &why)),
                ..changed.enter(phase).reporting(now)
            };
            lost.noted("store_lost", &by.actor, &why, now)
        }
        Event::CallFound if is_over => Saga {
            retain_until: None,
            ..changed.due(Due::At(now))
        },
        Event::Released { all: true } if is_over => Saga {
            retain_until: Some(later(now, policy.retention)),
            ..changed.due(Due::Never)
        },
        Event::Released { all: false } if is_over => {
            // The longer the calls take to come to rest, the longer the pauses.
            let age = between(saga.created_at, now);
            let wait = (age / 2).clamp(policy.look_again, policy.retry.max.max(policy.look_again));
            changed.due(Due::At(later(now, wait)))
        }
        Event::Notified { delivered } => {
            let before = saga.telling.ok_or(wrong)?;
            after_telling(changed, before + 1, *delivered, policy, now)
        }
        Event::Retry(by) | Event::Settled(by) => {
            if is_lost {
                return Err(Illegal::AfterLoss);
            }
            let Phase::Stuck { at_rest, .. } = saga.phase else {
                return Err(wrong);
            };
            let is_settled = matches!(event, Event::Settled(_));
            // A saga of one call: what an operator decided about the call counts from now on.
            let at_rest = at_rest || saga.only.is_some() && is_settled;
            let again = changed.enter(Phase::Compensating { at_rest }).anew(now);
            let word = if is_settled { "settled" } else { "retry" };
            again.noted(word, &by.actor, &by.reason, now)
        }
        Event::Prolonged { .. }
        | Event::Rested
        | Event::Blocked { .. }
        | Event::Advanced
        | Event::Undone { .. } => undoing(changed, event, at_rest.ok_or(wrong)?, policy, now)?,
        Event::Complete(_)
        | Event::Abort { .. }
        | Event::Held { .. }
        | Event::StoreLost(_)
        | Event::CallFound
        | Event::Released { .. } => return Err(wrong),
    })
}

/// The saga with its work after an event, and whether the work is given up.
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
            // The blocker is gone: the next failure counts as the first.
            let saga = if was_stuck { saga.anew(now) } else { saga };
            let (saga, _) = worked(saga, work::Event::Prolonged { until }, policy, now)?;
            saga.enter(Phase::Compensating { at_rest })
        }
        // The undoing that follows has its own tries.
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
            let (mut blocked, gives_up) = worked(saga, event, policy, now)?;
            let is_transient = matches!(blocker, Blocker::Unknown | Blocker::Busy);
            blocked.trouble = Some(trouble.clone());
            if gives_up {
                blocked.phase = Phase::Stuck {
                    at_rest,
                    is_transient,
                };
            }
            if was_stuck {
                // A transient cause is still looked at.
                if gives_up && !is_transient && blocked.telling.is_none() {
                    blocked.work.due = Due::Never;
                }
                return Ok(blocked);
            }
            let detail = match trouble.call_id {
                Some(call_id) => format!("call {call_id}: {}", trouble.why),
                None => trouble.why.clone(),
            };
            if gives_up {
                let stuck = blocked.reporting(now);
                stuck.noted("stuck", by, &detail, now)
            } else if blocker == Blocker::Busy {
                blocked
            } else {
                blocked.noted("hindered", by, &detail, now)
            }
        }
        _ => saga.enter(Phase::Compensating { at_rest }).anew(now),
    })
}

/// The trouble of a saga after a loss: its own trouble stays, with the call that an operator may skip.
fn after_loss(own: Option<&Trouble>, why: &str) -> Trouble {
    // The text of an earlier loss is replaced.
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
fn after_telling(
    saga: Saga,
    tellings: u32,
    delivered: bool,
    policy: &Policy,
    now: Timestamp,
) -> Saga {
    let is_over = delivered || tellings >= TELLINGS;
    let wait = retry::back_off(policy.retry.base, policy.retry.max, tellings);
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
