//! Changes of calls: load, ask `rules::call::next`, compare and swap.
//!
//! No other file asks the rules and then writes. Each change names what happens if another writer was faster.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::base::Base;
use oncegate_hooks::crash;
use oncegate_rules::call::{self, Action, Change, Event, Illegal, Next, Now};
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_rules::session::{Admission, Denied, Line};
use oncegate_rules::tool::Tool;
use oncegate_store::{self as store, Claimed, Replaced};

/// How often a change is tried on a record that keeps changing.
pub(super) const ROUNDS: usize = 8;
/// How often the store is asked about a claim whose answer was lost.
pub(super) const CLAIM_TRIES: usize = 3;
/// How long to wait before an outcome is offered to the store again.
const WRITE_AGAIN: Duration = Duration::from_millis(200);
/// How often an outcome is offered to the store after the gateway has run out of time.
const LAST_TRIES: usize = 5;

/// What happens if another writer was faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnConflict {
    /// The other change stands, and nothing is written.
    GiveUp,
    /// Core is asked again with the newer record of the same call.
    RetryOnLatest,
    /// The same, as long as no further attempt has begun.
    RetryOnSameAttempt,
}

impl OnConflict {
    fn retries(self, ours: &Record, newer: &Record) -> bool {
        newer.intent.call_id == ours.intent.call_id
            && match self {
                Self::GiveUp => false,
                Self::RetryOnLatest => true,
                Self::RetryOnSameAttempt => newer.attempt.id == ours.attempt.id,
            }
    }
}

/// The result of a change.
pub(super) enum Moved {
    /// The change is written. `was`: the state before it.
    Written {
        record: Record,
        was: State,
        action: Action,
    },
    /// Core wants nothing written.
    Unchanged(Record, Action),
    Refused(Record, Illegal),
    /// Another writer was faster. Holds the newer record, if there is one.
    Lost(Option<Record>),
}

impl Moved {
    /// The record as it was written.
    pub(super) fn written(self) -> Option<Record> {
        match self {
            Self::Written { record, .. } => Some(record),
            Self::Unchanged(..) | Self::Refused(..) | Self::Lost(_) => None,
        }
    }
}

/// Core's decision about an event. Nothing is written.
pub(super) fn ask(
    tool: &Tool,
    record: Option<&Record>,
    event: &Event,
    now: Now,
) -> Result<Next, Illegal> {
    call::next(tool, record, event, now)
}

/// The record that an event would make of a loaded call now; `None`: nothing would be written.
///
/// # Errors
/// The event does not fit the state.
pub(super) fn preview(
    base: &Base,
    tool: &Tool,
    record: &Record,
    event: &Event,
) -> Result<Option<Record>, Illegal> {
    let next = ask(tool, Some(record), event, base.time())?;
    Ok(next.change.map(|change| change.record))
}

/// Applies an event to a loaded call. The time is `now`, or later after a conflict.
///
/// # Errors
/// The store failed. If it did not answer, the change may be written.
pub(super) async fn apply(
    base: &Base,
    tool: &Tool,
    mut record: Record,
    event: &Event,
    mut now: Timestamp,
    on_conflict: OnConflict,
) -> Result<Moved, store::Error> {
    for _ in 0..ROUNDS {
        let Next { change, action } = match ask(tool, Some(&record), event, base.with_sleep(now)) {
            Ok(next) => next,
            Err(illegal) => return Ok(Moved::Refused(record, illegal)),
        };
        let Some(change) = change else {
            return Ok(Moved::Unchanged(record, action));
        };
        match base.store.replace(&change, &record).await? {
            Replaced::Done(written) => {
                if record.state.waits_for_approval() && written.state != record.state {
                    base.decided.note(written.intent.call_id);
                }
                return Ok(Moved::Written {
                    record: written,
                    was: record.state,
                    action,
                });
            }
            Replaced::Lost(Some(newer)) if on_conflict.retries(&record, &newer) => record = newer,
            Replaced::Lost(newer) => return Ok(Moved::Lost(newer)),
            // Only a call that begins has conditions.
            Replaced::Denied(_) => return Ok(Moved::Lost(None)),
        }
        now = now.max(base.now());
    }
    Ok(Moved::Lost(Some(record)))
}

/// Loads a call and applies an event by its tool's rules. `None`: there is no such call.
///
/// # Errors
/// The store failed. If it did not answer, the change may be written.
pub(super) async fn load_and_apply(
    base: &Base,
    call_id: CallId,
    event: &Event,
    on_conflict: OnConflict,
) -> Result<Option<Moved>, store::Error> {
    let Some(record) = base.store.load(call_id).await? else {
        return Ok(None);
    };
    let tool = base.policy_of(&record);
    let moved = apply(base, &tool, record, event, base.now(), on_conflict).await?;
    Ok(Some(moved))
}

/// The record after an event without further action; `None` if the change could not be written.
pub(super) async fn change(
    base: &Base,
    record: &Record,
    event: &Event,
    now: Timestamp,
) -> Option<Record> {
    let (tool, record) = (base.policy_of(record), record.clone());
    let moved = apply(base, &tool, record, event, now, OnConflict::GiveUp).await;
    moved.ok()?.written()
}

/// How a run begins in the store.
#[derive(Clone, Copy)]
pub(super) enum Begin<'a> {
    /// The lookup keys are claimed.
    Claim { replaced: &'a [Record] },
    /// A failed call runs again.
    Again { held: &'a Record },
}

/// Whether a run has begun.
pub(super) enum Begun {
    Ours(Record),
    /// The run has not begun. Holds the stored record that blocks it, if there is one.
    Not(Option<Record>),
    Denied(Denied),
    /// The store may have the run but never confirmed it: the call must not be sent.
    Unconfirmed(Record),
}

/// Begins a run.
///
/// If the answer is lost the store is asked again: it knows the attempt.
///
/// # Errors
/// The store refused; nothing has begun.
pub(super) async fn begin(
    base: &Base,
    mut change: Change,
    how: Begin<'_>,
    longest_line: u32,
) -> Result<Begun, store::Error> {
    if let Some(Admission {
        lock: Some(Line::Waits { longest }),
        ..
    }) = &mut change.admission
    {
        *longest = longest_line;
    }
    let mut in_doubt = false;
    for _ in 0..CLAIM_TRIES {
        match begin_once(base, &change, how).await {
            // The store may still carry out an earlier try, so the call must not wait for a session behind it.
            Ok(Begun::Denied(_)) if in_doubt => {}
            Ok(begun) => return Ok(begun),
            Err(store::Error::Ambiguous(_)) => in_doubt = true,
            Err(error) if !in_doubt => return Err(error),
            Err(_) => {}
        }
    }
    Ok(Begun::Unconfirmed(change.record))
}

async fn begin_once(base: &Base, change: &Change, how: Begin<'_>) -> Result<Begun, store::Error> {
    Ok(match how {
        Begin::Claim { replaced } => match base.store.claim(change, replaced).await? {
            Claimed::Yours(record) => Begun::Ours(record),
            Claimed::Existing(record) => Begun::Not(Some(record)),
            Claimed::Denied(denied) => Begun::Denied(denied),
            Claimed::Late => Begun::Not(None),
        },
        Begin::Again { held } => match base.store.replace(change, held).await? {
            Replaced::Done(record) => Begun::Ours(record),
            Replaced::Lost(newer) => Begun::Not(newer),
            Replaced::Denied(denied) => Begun::Denied(denied),
        },
    })
}

/// The result of writing an attempt's end.
pub(super) struct EndedAttempt {
    /// The record as it is stored now; if nothing was written, as it was.
    pub(super) record: Record,
    /// How long to wait before a further attempt, if one was begun.
    pub(super) retry_after: Option<Duration>,
    /// Whether the tool has executed an attempt that counts as not executed.
    pub(super) is_alarm: bool,
    /// The state that another writer gave the call of this owner.
    pub(super) stale: Option<&'static str>,
}

/// Writes down the end of an attempt, however long the store takes.
///
/// Calls `unwritten` once if the outcome has to wait for the store.
///
/// A further attempt is begun only if the store takes it. If it does not, the call ends without one.
pub(super) async fn end_attempt(
    base: &Base,
    tool: &Tool,
    record: Record,
    event: &Event,
    unwritten: impl Fn(&Record),
) -> EndedAttempt {
    // A late answer to a call that is unknown already has nothing to lose.
    let mut is_ours = record.state == State::Running;
    let mut completed = EndedAttempt {
        record,
        retry_after: None,
        is_alarm: false,
        stale: None,
    };
    let (mut final_event, mut further_attempt, mut failures) = (None::<Event>, None, 0);
    for _ in 0..ROUNDS {
        let record = &completed.record;
        let event = final_event.as_ref().unwrap_or(event);
        let next = match ask(tool, Some(record), event, base.time()) {
            Ok(next) => next,
            Err(_) => {
                if is_ours {
                    completed.stale = Some(record.state.as_str());
                }
                break;
            }
        };
        let Some(change) = next.change else { break };
        let retry_after = match next.action {
            Action::Retry { after } => Some(after),
            _ => None,
        };
        let replaced = if retry_after.is_some() {
            further_attempt = Some(change.record.attempt.id);
            match base.store.replace(&change, record).await {
                Ok(replaced) => replaced,
                // The further attempt must not begin now. That nothing was executed can still be written.
                Err(_) => {
                    failures += 1;
                    if failures < CLAIM_TRIES {
                        sleep(WRITE_AGAIN).await;
                    } else {
                        final_event = Some(event.without_retry());
                    }
                    continue;
                }
            }
        } else {
            crash::point("before_completion");
            let replaced = write_until_taken(base, &change, record, &unwritten).await;
            crash::point("after_completion");
            let Some(replaced) = replaced else { break };
            replaced
        };
        let newer = match replaced {
            Replaced::Done(stored) => {
                completed.record = stored;
                completed.retry_after = retry_after;
                completed.is_alarm = next.action == Action::Alarm;
                break;
            }
            Replaced::Lost(Some(newer)) if newer.intent.call_id == record.intent.call_id => newer,
            // The key stands for another call by now, or for none.
            Replaced::Lost(_) | Replaced::Denied(_) => break,
        };
        if Some(newer.attempt.id) == further_attempt {
            // This is the further attempt. Its beginning was not confirmed, so it was not sent.
            let why = "its beginning was not confirmed by the store in time".into();
            final_event = Some(Event::ended(&newer, Evidence::NotSent { why }));
        } else if newer.attempt.id != record.attempt.id || newer.state != State::Running {
            // Another gateway took the call for lost. What it wrote stands, and the rules are asked again.
            if std::mem::take(&mut is_ours) {
                completed.stale = Some(newer.state.as_str());
            }
        }
        // In any other case an operator has written into the call's history, and the call is still this owner's.
        completed.record = newer;
    }
    completed
}

/// Writes a change, however long it takes.
///
/// `None`: the gateway ran out of time, and recovery finds the call as running.
async fn write_until_taken(
    base: &Base,
    change: &Change,
    expected: &Record,
    unwritten: impl Fn(&Record),
) -> Option<Replaced> {
    let mut last_tries = LAST_TRIES;
    let mut is_reported = false;
    loop {
        match base.store.replace(change, expected).await {
            Ok(replaced) => return Some(replaced),
            Err(_) if last_tries == 0 => return None,
            Err(_) if base.abandoned.is_cancelled() => last_tries -= 1,
            Err(_) => {}
        }
        if !std::mem::replace(&mut is_reported, true) {
            unwritten(expected);
        }
        sleep(WRITE_AGAIN).await;
    }
}

#[cfg(test)]
mod tests;
