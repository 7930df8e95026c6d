//! Claims, and changes of calls. One script each; on a cluster the conditions of a call are met before it,
//! where its session lives.

use std::time::Duration;

use redis::{Script, Value};
use tokio::time::timeout;

use super::keys::Partition;
use super::memory::{Need, TOKEN_LIMIT_US};
use super::scripts::Run;
use super::session::{Entered, Met, released};
use super::{Inner, record, reply, retain_until, score, stored_in, text};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::ledger::Position;
use crate::core::record::{Record, State};
use crate::core::session::{Admission, Token};
use crate::store::lock::write;
use crate::store::{Claimed, Error, Replaced};

/// How long a call waits for a look at a server that was started anew.
const LOOK_TIME: Duration = Duration::from_secs(2);

impl Inner {
    /// A run of a script that writes, with the arguments that each of these begins with.
    ///
    /// `epoch` is of the data that it may write to; empty for any.
    pub(super) fn writing<'a>(
        &self,
        script: &'a Script,
        prefix: &str,
        partition: Partition,
        epoch: String,
    ) -> Run<'a> {
        let mut run = Run::new(script);
        run.arg(prefix).arg(self.memory.gateway());
        run.arg(epoch).arg(self.memory.writes(partition));
        run
    }

    /// The same of a script about two keys, to the data that this gateway knows.
    pub(super) fn writing_to<'a>(
        &self,
        script: &'a Script,
        partition: Partition,
        names: [String; 2],
    ) -> Run<'a> {
        let mut run = self.writing(script, "", partition, self.memory.epoch());
        run.key(&names[..])
            .key(partition.epoch())
            .key(partition.writes());
        run
    }

    /// The error after a script has answered that data is missing, and which.
    pub(super) fn lost_as_told(&self, rest: &[Value]) -> Error {
        self.has_lost(&text(rest, 0).unwrap_or_default())
    }

    /// The first call that holds a name of this one and does not give it up.
    pub(super) async fn in_the_way(
        &self,
        change: &Change,
        instead_of: &[Record],
    ) -> Result<Option<Record>, Error> {
        let names: Vec<Lookup> = change.record.intent.all_names().copied().collect();
        let holders = self.held(&names).await?;
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
        self.must_be_open()?;
        let met = match &change.admission {
            None => Met::NotAsked,
            Some(admission) if !self.is_cluster() => {
                Met::InTheSameStep(self.asked(change, admission)?)
            }
            // No token is drawn for a key that is held.
            Some(admission) => match self.in_the_way(change, instead_of).await? {
                Some(holder) if holder.intent.call_id == change.record.intent.call_id => {
                    Met::Before(Entered::of(&holder))
                }
                Some(holder) => return Ok(Claimed::Existing(holder)),
                None => match self.enter(change, admission).await? {
                    Ok(entered) => Met::Before(entered),
                    Err(denied) => return Ok(Claimed::Denied(denied)),
                },
            },
        };
        let claimed = self.claim_with(change, instead_of, &met).await;
        if let (Met::Before(entered), Ok(Claimed::Existing(_)) | Err(Error::Refused(_))) =
            (&met, &claimed)
        {
            self.take_back(change, entered).await;
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
        let (script, prefix) = (&self.scripts.claim, partition.prefix());
        let mut run = self.writing(script, &prefix, partition, self.memory.epoch());
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
        let (word, mut rest) = reply(self.run_guarded(&run).await?)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                self.wrote(change, &mut record, &rest).await?;
                self.memory.remember(&record, change);
                self.barrier.pass(partition).await?;
                Ok(Claimed::Yours(record))
            }
            "held" => {
                let holder = stored_in(rest.pop().unwrap_or(Value::Nil))?;
                let missing = || Error::Refused("the record behind a key is missing".into());
                Ok(Claimed::Existing(holder.ok_or_else(missing)?))
            }
            "denied" => Ok(Claimed::Denied(super::session::denied(&rest)?)),
            _ => Err(self.lost_as_told(&rest)),
        }
    }

    pub(super) async fn replace_with(
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
            self.must_be_open()?;
            (self.memory.epoch(), &self.scripts.begin)
        } else {
            (String::new(), &self.scripts.finish)
        };
        let intent = &change.record.intent;
        let partition = Partition::of(&intent.lookup);
        let mut run = self.writing(script, &partition.prefix(), partition, epoch);
        run.key(partition.of_script(&change.record, self.rooms_of_replace(change, met)));
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
            .arg(self.announcement(begins));
        run.arg(if change.release.retakes_lock { "1" } else { "" });
        run.arg(&Position::of(&change.record).to_bytes()[..]);
        run.arg(change.takes.names.len())
            .arg(record::gives_up(&change.takes.instead_of));
        if runs {
            run.arg(record::intent(intent)).arg(&intent.args[..]);
        }
        let answer = if begins {
            self.run_guarded(&run).await?
        } else {
            self.link.run(&run).await?
        };
        let (word, rest) = reply(answer)?;
        match word.as_str() {
            "done" => {
                let mut record = change.record.clone();
                self.wrote(change, &mut record, &rest).await?;
                self.memory.remember(&record, change);
                self.barrier.pass(partition).await?;
                Ok(Replaced::Done(record))
            }
            "denied" => Ok(Replaced::Denied(super::session::denied(&rest)?)),
            "gone" if begins => Err(self.has_lost("call")),
            "gone" => self.complete_lost(change).await,
            "changed" => {
                let newer = stored(rest)?;
                let is_older = newer.as_ref().is_some_and(|stored| {
                    stored.intent.call_id == intent.call_id && stored.version < expected.version
                });
                match (is_older, begins) {
                    (true, true) => Err(self.has_lost("call")),
                    (true, false) => self.complete_lost(change).await,
                    (false, _) => {
                        self.memory.forget(intent.call_id);
                        Ok(Replaced::Lost(newer))
                    }
                }
            }
            _ => Err(self.lost_as_told(&rest)),
        }
    }

    /// Runs a script after which something may be sent. If the server does not have it, it has been
    /// started anew: then what it holds is looked at first.
    pub(super) async fn run_guarded(&self, run: &Run<'_>) -> Result<Value, Error> {
        if let Some(answer) = self.link.run_if_loaded(run).await? {
            return Ok(answer);
        }
        let mut looks = self.looks.subscribe();
        write(&self.tried_on).clear();
        self.link.trouble.notify_one();
        // One that has begun before may not have seen it.
        for _ in 0..2 {
            if timeout(LOOK_TIME, looks.changed()).await.is_err() {
                break;
            }
            self.must_be_open()?;
            if let Some(answer) = self.link.run_if_loaded(run).await? {
                return Ok(answer);
            }
        }
        Err(Error::Refused(
            "Redis has been started anew and has not been looked at yet".into(),
        ))
    }

    /// Runs a script that deletes. If the server does not have it, it has been started anew: the script is loaded when
    /// looks since then have found no data in doubt, also where the memory is full and nothing else may run.
    pub(super) async fn run_deleting(&self, run: &Run<'_>) -> Result<Value, Error> {
        if let Some(answer) = self.link.run_if_loaded(run).await? {
            return Ok(answer);
        }
        let mut looks = self.looks.subscribe();
        // One that has begun before may not have seen it.
        for _ in 0..2 {
            self.link.trouble.notify_one();
            let is_looked_at = timeout(LOOK_TIME, looks.changed()).await.is_ok();
            if !is_looked_at || self.is_in_doubt() {
                let why = "Redis has been started anew: nothing is deleted before its data has been looked at";
                return Err(Error::Refused(why.into()));
            }
        }
        self.link.run(run).await
    }

    /// What no token may be below: the clock, and every token that this gateway has seen.
    pub(super) fn floor(&self) -> Result<u64, Error> {
        let now = self.store_time().as_microsecond().unsigned_abs();
        let floor = now.max(self.memory.token() + 1);
        if floor.saturating_sub(now) > TOKEN_LIMIT_US {
            return Err(Error::Refused(
                "fencing tokens are more than a day ahead of the clock".into(),
            ));
        }
        Ok(floor)
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
            self.memory
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
            self.memory.saw_brought(token);
        } else if let Some(token) = record.fencing
            && self.memory.saw_token(token)
            && !self.save_watermarks(Need::Token(token)).await
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
        let is_locked = self.memory.is_locked(change.record.intent.call_id);
        self.put_back(&change.record, &change.entry, is_locked)
            .await?;
        self.memory.remember(&change.record, change);
        self.link.trouble.notify_one();
        let call_id = change.record.intent.call_id;
        match self.fields_of(call_id).await? {
            // Another writer was faster; what is known here may still settle it.
            Some(there) if there != change.record => {
                self.memory.forget(call_id);
                Ok(Replaced::Lost(Some(there)))
            }
            _ => {
                self.barrier
                    .pass(Partition::of(&change.record.intent.lookup))
                    .await?;
                Ok(Replaced::Done(change.record.clone()))
            }
        }
    }

    pub(super) fn announcement(&self, begins: bool) -> &'static str {
        match (begins, self.is_cluster()) {
            (true, _) => "",
            (false, false) => "PUBLISH",
            (false, true) => "SPUBLISH",
        }
    }
}

/// Whether the holder of a name is still one of the records that were seen.
pub(super) fn is_seen(holder: &Record, seen: &[Record]) -> bool {
    seen.iter().any(|seen| {
        seen.intent.call_id == holder.intent.call_id && record::cas(seen) == record::cas(holder)
    })
}

fn stored(mut rest: Vec<Value>) -> Result<Option<Record>, Error> {
    stored_in(rest.pop().unwrap_or(Value::Nil))
}
