//! Claims, and changes of calls. One script each; on a cluster the conditions of a call are met before it,
//! where its session lives.

use std::sync::Arc;

use super::answer::Answer;
use super::keys::Partition;
use super::memory::Need;
use super::put_back::Restorer;
use super::record::{self, retain_until, score};
use super::server::Server;
use super::session::{Admissions, Entered, Met, denied, released};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::position::Position;
use crate::core::record::{Record, State};
use crate::core::session::{Admission, Token};
use crate::store::{Claimed, Error, Replaced, is_seen};

/// Writes claims and changes of calls.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) server: Arc<Server>,
    pub(super) admissions: Admissions,
    pub(super) restorer: Restorer,
}

impl Writer {
    /// The first call that holds a name of this one and does not give it up.
    pub(super) async fn in_the_way(
        &self,
        change: &Change,
        instead_of: &[Record],
    ) -> Result<Option<Record>, Error> {
        let names: Vec<Lookup> = change.record.intent.all_names().copied().collect();
        let holders = self.server.held(&names).await?;
        Ok(holders
            .into_iter()
            .map(|holder| holder.record)
            .find(|holder| !is_seen(holder, instead_of)))
    }

    pub(super) async fn try_claim(
        &self,
        change: &Change,
        instead_of: &[Record],
    ) -> Result<Claimed, Error> {
        self.server.status.must_be_open()?;
        let met = match &change.admission {
            None => Met::NotAsked,
            Some(admission) if !self.server.is_cluster() => {
                Met::InTheSameStep(self.admissions.asked(change, admission)?)
            }
            // No token is drawn for a key that is held.
            Some(admission) => match self.in_the_way(change, instead_of).await? {
                Some(holder) if holder.intent.call_id == change.record.intent.call_id => {
                    Met::Before(Entered::of(&holder))
                }
                Some(holder) => return Ok(Claimed::Existing(holder)),
                None => match self.admissions.enter(change, admission).await? {
                    Ok(entered) => Met::Before(entered),
                    Err(denied) => return Ok(Claimed::Denied(denied)),
                },
            },
        };
        let claimed = self.claim_with(change, instead_of, &met).await;
        if let (Met::Before(entered), Ok(Claimed::Existing(_)) | Err(Error::Refused(_))) =
            (&met, &claimed)
        {
            self.admissions.take_back(change, entered).await;
        }
        claimed
    }

    async fn claim_with(
        &self,
        change: &Change,
        instead_of: &[Record],
        met: &Met,
    ) -> Result<Claimed, Error> {
        let intent = &change.record.intent;
        let partition = Partition::of(&intent.lookup);
        let (server, prefix) = (&self.server, partition.prefix());
        let mut run = server.writing(
            &server.scripts.claim,
            &prefix,
            partition,
            server.memory.epoch(),
        );
        run.key(partition.of_script(&change.record, met.rooms(change)));
        run.arg((intent.call_id.to_string(), record::gives_up(instead_of)));
        run.arg((
            record::cas(&change.record),
            record::intent(intent),
            &intent.args[..],
        ));
        run.arg((
            record::progress(&change.record),
            record::entry(&change.entry),
        ));
        run.arg((&intent.tool, score(&change.record), met.admission()));
        run.arg(&met.entered().unwrap_or(["", ""])[..]);
        run.arg((&Position::of(&change.record).to_bytes()[..], &intent.tenant));
        let answer = server.run_guarded(&run).await?;
        match answer.word.as_str() {
            "done" => Ok(Claimed::Yours(self.written(change, &answer).await?)),
            "held" => {
                let missing = || Error::Refused("the record behind a key is missing".into());
                Ok(Claimed::Existing(answer.record()?.ok_or_else(missing)?))
            }
            "denied" => Ok(Claimed::Denied(denied(&answer)?)),
            _ => Err(answer.no_sense()),
        }
    }

    pub(super) async fn try_replace(
        &self,
        change: &Change,
        expected: &Record,
    ) -> Result<Replaced, Error> {
        let met = match &change.admission {
            None => Met::NotAsked,
            Some(admission) if !self.server.is_cluster() => {
                Met::InTheSameStep(self.admissions.asked(change, admission)?)
            }
            Some(admission) => match self.server.fields_of(expected.intent.call_id).await? {
                // Asked again: it has its token.
                Some(stored) if record::cas(&stored) == record::cas(&change.record) => {
                    Met::Before(Entered::of(&stored))
                }
                Some(stored) if !is_seen(&stored, std::slice::from_ref(expected)) => {
                    return Ok(Replaced::Lost(Some(stored)));
                }
                _ => match self.admissions.enter(change, admission).await? {
                    Ok(entered) => Met::Before(entered),
                    Err(denied) => return Ok(Replaced::Denied(denied)),
                },
            },
        };
        let replaced = self.replace_with(change, expected, &met).await;
        if let (Met::Before(entered), Ok(Replaced::Lost(_)) | Err(Error::Refused(_))) =
            (&met, &replaced)
        {
            self.admissions.take_back(change, entered).await;
        }
        replaced
    }

    async fn replace_with(
        &self,
        change: &Change,
        expected: &Record,
        met: &Met,
    ) -> Result<Replaced, Error> {
        // Where something is to be sent next, the store must be as it should be.
        let runs = matches!(change.record.state, State::Running);
        // So must it where names are claimed.
        let begins = runs || !change.takes.names.is_empty();
        let (epoch, script) = if begins {
            self.server.status.must_be_open()?;
            (self.server.memory.epoch(), &self.server.scripts.begin)
        } else {
            (String::new(), &self.server.scripts.finish)
        };
        let intent = &change.record.intent;
        let partition = Partition::of(&intent.lookup);
        let mut run = self
            .server
            .writing(script, &partition.prefix(), partition, epoch);
        run.key(partition.of_script(
            &change.record,
            self.admissions.rooms_of_replace(change, met),
        ));
        let result = record::result(&change.record);
        run.arg((
            intent.call_id.to_string(),
            record::cas(expected),
            record::fencing(expected),
        ));
        run.arg((
            record::cas(&change.record),
            record::progress(&change.record),
        ));
        run.arg((
            u8::from(result.is_some()),
            result.map_or(&[][..], AsRef::as_ref),
        ));
        run.arg((
            record::entry_field(change.record.version),
            record::entry(&change.entry),
        ));
        run.arg((
            &intent.tool,
            change.record.state.as_str(),
            score(&change.record),
        ));
        run.arg((retain_until(&change.record), met.admission()));
        run.arg(&met.entered().unwrap_or(["keep", ""])[..]);
        run.arg((&released(change)[..], self.server.announcement(begins)));
        run.arg(if change.release.retakes_lock { "1" } else { "" });
        run.arg(&Position::of(&change.record).to_bytes()[..]);
        run.arg((
            change.takes.names.len(),
            record::gives_up(&change.takes.instead_of),
        ));
        if runs {
            run.arg((record::intent(intent), &intent.args[..]));
        }
        let answer = if begins {
            self.server.run_guarded(&run).await?
        } else {
            self.server.run(&run).await?
        };
        match answer.word.as_str() {
            "done" => Ok(Replaced::Done(self.written(change, &answer).await?)),
            "denied" => Ok(Replaced::Denied(denied(&answer)?)),
            "gone" if begins => Err(self.server.has_lost("call")),
            "gone" => self.complete_lost(change).await,
            "changed" => {
                let newer = answer.record()?;
                let is_older = newer.as_ref().is_some_and(|stored| {
                    stored.intent.call_id == intent.call_id && stored.version < expected.version
                });
                match (is_older, begins) {
                    (true, true) => Err(self.server.has_lost("call")),
                    (true, false) => self.complete_lost(change).await,
                    (false, _) => {
                        self.server.memory.forget(intent.call_id);
                        Ok(Replaced::Lost(newer))
                    }
                }
            }
            _ => Err(answer.no_sense()),
        }
    }

    /// The record as a script has written it, when replicas have it. Takes note of its token, of the count of this
    /// gateway's writes and of what would have to be put back.
    async fn written(&self, change: &Change, answer: &Answer) -> Result<Record, Error> {
        let (mut record, memory) = (change.record.clone(), &self.server.memory);
        let written = Entered {
            token: answer.text(0).unwrap_or_default(),
            similar_to: answer.text(2).unwrap_or_default(),
            before: None,
        };
        (record.fencing, record.similar_to) = written.read()?;
        let partition = Partition::of(&record.intent.lookup);
        self.server.saw_count(partition, answer, 1);
        if let Some(token) = record.fencing {
            // What a caller brings is its session's own affair, but must not be given again after a loss.
            if matches!(
                &change.admission,
                Some(Admission {
                    token: Token::This(_),
                    ..
                })
            ) {
                memory.saw_brought(token);
            } else if memory.saw_token(token)
                && !self.server.save_watermarks(Need::Token(token)).await
            {
                let why = "written, but the token could not be noted in the watermarks";
                return Err(Error::Ambiguous(why.into()));
            }
        }
        memory.remember(&record, change);
        self.server.barrier.pass(partition).await?;
        Ok(record)
    }

    /// Writes how a call ended that the store has lost, or of which it has an older version only:
    /// nothing unfinished is ever deleted. What is known of it goes back as a whole.
    async fn complete_lost(&self, change: &Change) -> Result<Replaced, Error> {
        let is_locked = self.server.memory.is_locked(change.record.intent.call_id);
        self.restorer
            .put_back(&change.record, &change.entry, is_locked)
            .await?;
        self.server.memory.remember(&change.record, change);
        self.server.link.trouble.notify_one();
        let call_id = change.record.intent.call_id;
        match self.server.fields_of(call_id).await? {
            // Another writer was faster; what is known here may still settle it.
            Some(there) if there != change.record => {
                self.server.memory.forget(call_id);
                Ok(Replaced::Lost(Some(there)))
            }
            _ => {
                self.server
                    .barrier
                    .pass(Partition::of(&change.record.intent.lookup))
                    .await?;
                Ok(Replaced::Done(change.record.clone()))
            }
        }
    }
}
