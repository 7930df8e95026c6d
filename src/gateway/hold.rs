//! Getting hold of a key: claim it, or find out who has it. What is claimed here is run by `run`.
//!
//! A claim whose answer is lost is asked again; one that is never confirmed is not run.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::call::Asked;
use super::health::Permit;
use super::run::{CLAIM_TRIES, Keep, ROUNDS};
use super::session::Place;
use super::throttle::NewKey;
use super::{ErrorKind, Gateway, new_attempt};
use crate::core::call::{self, Action, Change, Event};
use crate::core::outcome::{Evidence, FailureKind};
use crate::core::record::Record;
use crate::core::session::{Bar, SessionId};
use crate::store::{self, Claimed, Replaced};

/// How often the store must say that there is none.
const CLAIM_LOOKS: usize = 10;

/// What came of trying to get hold of a key.
pub(super) enum Hold {
    /// Ours to run.
    Ours(Record, Permit),
    /// Somebody else runs it.
    Theirs(Record),
    /// It is settled, and the record answers.
    Settled(Record),
    /// Nobody has it, but the session does not let the call begin.
    Barred(Bar, Place),
}

/// How a run begins in the store.
#[derive(Clone, Copy)]
enum Begin<'a> {
    /// The key is claimed.
    Claim { instead_of: Option<&'a Record> },
    /// A failed call runs again.
    Again { held: &'a Record },
}

/// Whether a run has begun.
enum Begun {
    Ours(Record),
    /// The record that is there instead.
    Not(Option<Record>),
    Barred(Bar, Place),
}

impl Gateway {
    pub(super) fn arrival(&self, asked: &Asked) -> Event {
        let (intent, brought) = (asked.intent.clone(), asked.brought);
        Event::Arrived { intent, brought, attempt: new_attempt(), owner: self.instance }
    }

    fn why_nothing_begins(&self, asked: &Asked, has_place: bool) -> Option<ErrorKind> {
        if self.is_paused(&asked.at.tool.name) {
            return Some(ErrorKind::ToolPaused);
        }
        if !has_place {
            return Some(ErrorKind::RateLimited);
        }
        self.is_out_of_time().then_some(ErrorKind::StoreUnavailable)
    }

    /// Gets hold of the key, or finds out who has it. Without a place to run nothing is claimed, but
    /// what is there is still found.
    ///
    /// `new_key` is the right to claim one, where new keys are bounded: taken when it is needed, and kept
    /// while the session lets the call wait.
    pub(super) async fn hold<'a>(
        self: &'a Arc<Self>,
        asked: &Asked,
        has_place: bool,
        new_key: &mut Option<NewKey<'a>>,
    ) -> Result<Hold, ErrorKind> {
        let tool = &asked.at.tool;
        let event = self.arrival(asked);
        let mut holder: Option<Record> = None;
        let mut has_looked = false;
        let unknown_pauses = self.know_pauses().await.err().map(|_| ErrorKind::StoreUnavailable);
        // What may not begin, or not for sure, may have begun already.
        let refused = self.why_nothing_begins(asked, has_place).or(unknown_pauses);
        let is_wary = !asked.at.health.is_closed_for(&asked.intent.tenant);
        // Given back unless the call is ours to run.
        let mut permit = None;
        if refused.is_some() || is_wary || asked.new_keys.is_some() {
            let found = self.store.holder(asked.intent.lookup).await;
            let found = self.counted_for(&asked.intent, "holder", found);
            holder = found.map_err(|_| ErrorKind::StoreUnavailable)?;
        }
        for _ in 0..ROUNDS {
            // An arrival is never illegal; if it were, nothing must run.
            let Ok(next) = call::next(tool, holder.as_ref(), &event, self.now()) else { break };
            holder = match (next.action, next.change, holder) {
                (Action::Claim { .. } | Action::Run, ..) if let Some(why) = refused => return Err(why),
                (Action::Claim { .. }, ..)
                    if new_key.is_none()
                        && let Err(retry_after) = self.take_new_key(asked, new_key) =>
                {
                    return Err(ErrorKind::TooManyNewKeys { retry_after });
                }
                (Action::Claim { .. } | Action::Run, ..)
                    if is_wary
                        && permit.is_none()
                        && let Err(retry_after) =
                            asked.at.health.admit(&asked.intent.tenant).map(|given| permit = Some(given)) =>
                {
                    return Err(ErrorKind::ToolResting { retry_after });
                }
                (Action::Claim { instead_of }, Some(change), held) => {
                    let instead_of = held.as_ref().filter(|_| instead_of.is_some());
                    match self.begin(asked, change, Begin::Claim { instead_of }).await {
                        Ok(Begun::Barred(bar, place)) => return Ok(Hold::Barred(bar, place)),
                        Ok(Begun::Not(there)) => {
                            // Somebody else was faster: it goes back.
                            drop(new_key.take());
                            there
                        }
                        Ok(Begun::Ours(record)) => {
                            NewKey::used(new_key);
                            return Ok(Hold::Ours(record, permit.unwrap_or_default()));
                        }
                        Err(_) => {
                            NewKey::used(new_key);
                            break;
                        }
                    }
                }
                (Action::Run, Some(change), Some(held)) => {
                    match self.begin(asked, change, Begin::Again { held: &held }).await {
                        Ok(Begun::Ours(record)) => return Ok(Hold::Ours(record, permit.unwrap_or_default())),
                        Ok(Begun::Barred(bar, place)) => return Ok(Hold::Barred(bar, place)),
                        Ok(Begun::Not(there)) => there,
                        Err(_) => break,
                    }
                }
                (Action::Wait, _, Some(held)) => return Ok(Hold::Theirs(held)),
                (Action::Answer, _, Some(held)) => return Ok(Hold::Settled(held)),
                (Action::RefuseReused, _, _) => return Err(ErrorKind::KeyReused),
                (Action::RefuseExpired, _, held) => {
                    return Err(ErrorKind::expired(&asked.intent, held.as_ref()));
                }
                (Action::RefuseOtherSaga, _, _) => return Err(ErrorKind::of_another_saga()),
                // What cannot begin may have begun already.
                (Action::RefuseUnfit(_), _, None) if !has_looked => {
                    has_looked = true;
                    let found = self.store.holder(asked.intent.lookup).await;
                    let found = self.counted_for(&asked.intent, "holder", found);
                    found.map_err(|_| ErrorKind::StoreUnavailable)?
                }
                (Action::RefuseUnfit(why), _, _) => return Err(ErrorKind::InvalidRequest(why.into())),
                _ => break,
            };
        }
        Err(ErrorKind::StoreUnavailable)
    }

    /// Begins a run. If the answer is lost the store is asked again: it knows the attempt. A beginning
    /// that is never confirmed is not run; if it turns up after all, it is undone.
    async fn begin(
        self: &Arc<Self>,
        asked: &Asked,
        change: Change,
        how: Begin<'_>,
    ) -> Result<Begun, store::Error> {
        let mut tries = 0;
        let mut in_doubt = false;
        let intent = &change.record.intent;
        let barred =
            |bar| Begun::Barred(bar, Place { session: SessionId::of(intent), call_id: intent.call_id });
        loop {
            tries += 1;
            let begun = match how {
                Begin::Claim { instead_of } => {
                    let claimed = self.store.claim(&change, instead_of).await;
                    let claimed = self.counted_for(intent, "claim", claimed);
                    claimed.map(|claimed| match claimed {
                        Claimed::Yours(record) => Begun::Ours(record),
                        Claimed::Existing(record) => Begun::Not(Some(record)),
                        Claimed::Barred(bar) => barred(bar),
                    })
                }
                Begin::Again { held } => {
                    let replaced = self.store.replace(&change, held).await;
                    let replaced = self.counted_for(intent, "replace", replaced);
                    replaced.map(|replaced| match replaced {
                        Replaced::Done(record) => Begun::Ours(record),
                        Replaced::Lost(newer) => Begun::Not(newer),
                        Replaced::Barred(bar) => barred(bar),
                    })
                }
            };
            let error = match begun {
                // An earlier try may still be carried out: nobody waits for a session behind that.
                Ok(Begun::Barred(..)) if in_doubt => {
                    store::Error::Ambiguous("an earlier claim was not answered".into())
                }
                Ok(begun) => return Ok(begun),
                Err(error) => error,
            };
            in_doubt |= matches!(error, store::Error::Ambiguous(_));
            if !in_doubt {
                return Err(error);
            }
            if tries == CLAIM_TRIES {
                // Where there are too many of them, recovery finds it when its lease is over.
                if let Ok(place) = self.listening.clone().try_acquire_owned() {
                    let disown = self.clone().disown(asked.clone(), change.record);
                    drop(self.tasks.spawn(async move {
                        disown.await;
                        drop(place);
                    }));
                }
                return Err(error);
            }
        }
    }

    /// Looks for a run that was never confirmed to have begun. If the store has it after all, it is
    /// ended: nothing was sent.
    async fn disown(self: Arc<Self>, asked: Asked, begun: Record) {
        let tool = &asked.at.tool;
        let until = Instant::now() + tool.lease();
        let mut looks = 0;
        while looks < CLAIM_LOOKS && Instant::now() < until {
            tokio::select! {
                () = sleep(self.limits.pace.look_for_claim) => {}
                () = self.abandoned.cancelled() => return,
            }
            let found = self.store.load(begun.intent.call_id).await;
            match self.counted_for(&begun.intent, "load", found) {
                Ok(Some(record))
                    if record.attempt.id == begun.attempt.id && record.version == begun.version =>
                {
                    let why = "the claim was not confirmed by the store in time".to_owned();
                    let (attempt, fencing) = (record.attempt.id, record.fencing);
                    let event = if record.intent.saga_id.is_empty() {
                        Event::Ended { attempt, fencing, evidence: Evidence::NotSent { why }, retry: None }
                    } else {
                        // Its saga may not have begun.
                        Event::NotJoined { by: self.instance, attempt, kind: FailureKind::Unreachable, why }
                    };
                    let (record, _) = self.settle(&asked, record, &event, None, Keep::Stored).await;
                    tracing::warn!(
                        call_id = %record.intent.call_id,
                        tool = tool.name,
                        trace_id = record.intent.trace_id,
                        state = record.state.as_str(),
                        "a claim that was never confirmed was found and released",
                    );
                    return;
                }
                // A gateway that stops does not wait for what most likely never was.
                Ok(_) if self.draining.is_cancelled() => looks += CLAIM_LOOKS / 2,
                Ok(_) => looks += 1,
                Err(_) => {}
            }
        }
    }
}
