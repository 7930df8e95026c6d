//! Claims, and changes of calls. One script each; on a cluster the conditions of a call are met before it,
//! where its session lives.

use std::sync::Arc;

use redis::Value;

use super::answer::{reply, stored_in, text};
use super::keys::Partition;
use super::memory::Need;
use super::put_back::Restorer;
use super::record::{self, retain_until, score};
use super::server::Server;
use super::session::{Admissions, Entered, Met, released};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::ledger::Position;
use crate::core::record::{Record, State};
use crate::core::session::{Admission, Token};
use crate::store::{Claimed, Error, Replaced};

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
        let (script, prefix) = (&self.server.scripts.claim, partition.prefix());
        let mut run = self
            .server
            .writing(script, &prefix, partition, self.server.memory.epoch());
        run.key(partition.of_script(&change.record, met.rooms(change)));
        run.arg(intent.call_id.to_string());
        run.arg(record::gives_up(instead_of));
        run.arg(record::cas(&change.record))
            .arg(record::intent(intent))
            .arg(&intent.args[..]);
        run.arg(record::progress(&change.record))
            .arg(record::entry(&change.entry));
        run.arg(&intent.tool).arg(score(&change.record));
        run.arg(met.admission());
        match met {
            Met::Before(entered) => run.arg(&entered.token).arg(&entered.similar_to),
            Met::NotAsked | Met::InTheSameStep(_) => run.arg("").arg(""),
        };
        run.arg(&Position::of(&change.record).to_bytes()[..])
            .arg(&intent.tenant);
        let (word, mut rest) = reply(self.server.run_guarded(&run).await?)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                self.wrote(change, &mut record, &rest).await?;
                self.server.memory.remember(&record, change);
                self.server.barrier.pass(partition).await?;
                Ok(Claimed::Yours(record))
            }
            "held" => {
                let holder = stored_in(rest.pop().unwrap_or(Value::Nil))?;
                let missing = || Error::Refused("the record behind a key is missing".into());
                Ok(Claimed::Existing(holder.ok_or_else(missing)?))
            }
            "denied" => Ok(Claimed::Denied(super::session::denied(&rest)?)),
            _ => Err(self.server.lost_as_told(&rest)),
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
        run.arg(intent.call_id.to_string())
            .arg(record::cas(expected))
            .arg(record::fencing(expected));
        run.arg(record::cas(&change.record))
            .arg(record::progress(&change.record));
        run.arg(u8::from(result.is_some()))
            .arg(result.map_or(&[][..], AsRef::as_ref));
        run.arg(record::entry_field(change.record.version))
            .arg(record::entry(&change.entry));
        run.arg(&intent.tool)
            .arg(change.record.state.as_str())
            .arg(score(&change.record));
        run.arg(retain_until(&change.record)).arg(met.admission());
        match met {
            Met::Before(entered) => run.arg(&entered.token).arg(&entered.similar_to),
            Met::NotAsked | Met::InTheSameStep(_) => run.arg("keep").arg(""),
        };
        let (lock_from, similar) = released(change);
        run.arg(lock_from)
            .arg(similar)
            .arg(self.server.announcement(begins));
        run.arg(if change.release.retakes_lock { "1" } else { "" });
        run.arg(&Position::of(&change.record).to_bytes()[..]);
        run.arg(change.takes.names.len())
            .arg(record::gives_up(&change.takes.instead_of));
        if runs {
            run.arg(record::intent(intent)).arg(&intent.args[..]);
        }
        let answer = if begins {
            self.server.run_guarded(&run).await?
        } else {
            self.server.link.run(&run).await?
        };
        let (word, rest) = reply(answer)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                self.wrote(change, &mut record, &rest).await?;
                self.server.memory.remember(&record, change);
                self.server.barrier.pass(partition).await?;
                Ok(Replaced::Done(record))
            }
            "denied" => Ok(Replaced::Denied(super::session::denied(&rest)?)),
            "gone" if begins => Err(self.server.has_lost("call")),
            "gone" => self.complete_lost(change).await,
            "changed" => {
                let newer = stored(rest)?;
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
            _ => Err(self.server.lost_as_told(&rest)),
        }
    }

    /// Takes note of what a script has written: token and similar call into the record, and the count of
    /// this gateway's writes.
    async fn wrote(
        &self,
        change: &Change,
        record: &mut Record,
        rest: &[Value],
    ) -> Result<(), Error> {
        let written = Entered {
            token: text(rest, 0).unwrap_or_default(),
            similar_to: text(rest, 2).unwrap_or_default(),
            before: None,
        };
        (record.fencing, record.similar_to) = written.read()?;
        if let Some(writes) = text(rest, 1).and_then(|writes| writes.parse().ok()) {
            self.server
                .memory
                .saw_writes(Partition::of(&record.intent.lookup), writes);
        }
        // What a caller brings is its session's own affair, but must not be given again after a loss.
        if let (
            Some(token),
            Some(Admission {
                token: Token::This(_),
                ..
            }),
        ) = (record.fencing, &change.admission)
        {
            self.server.memory.saw_brought(token);
        } else if let Some(token) = record.fencing
            && self.server.memory.saw_token(token)
            && !self.server.save_watermarks(Need::Token(token)).await
        {
            return Err(Error::Ambiguous(
                "written, but the token could not be noted in the watermarks".into(),
            ));
        }
        Ok(())
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

/// Whether the holder of a name is still one of the records that were seen.
fn is_seen(holder: &Record, seen: &[Record]) -> bool {
    seen.iter().any(|seen| {
        seen.intent.call_id == holder.intent.call_id && record::cas(seen) == record::cas(holder)
    })
}

fn stored(mut rest: Vec<Value>) -> Result<Option<Record>, Error> {
    stored_in(rest.pop().unwrap_or(Value::Nil))
}
