//! Claims, and changes of calls. One script each.

use std::sync::Arc;

use super::answer::Answer;
use super::keys::{self, Partition};
use super::memory::Need;
use super::put_back::Restorer;
use super::record::{self, retain_until, score};
use super::server::{Server, givers};
use super::session::{Admissions, Entered, denied, released, rooms};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::record::{Record, State};
use crate::core::session::{Admission, Token};
use crate::store::{Claimed, Error, Replaced, codec, is_seen};

/// Writes claims and changes of calls.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) server: Arc<Server>,
    pub(super) admissions: Admissions,
    pub(super) restorer: Restorer,
}

impl Writer {
    /// The first call that holds one of these names and does not give it up.
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
        let (intent, record) = (&change.record.intent, &change.record);
        let (server, lists) = (&self.server, keys::lists(intent));
        let epoch = server.memory.epoch();
        let is_known = server.known.has(&epoch, &intent.tenant, &intent.tool);
        let counts = [lists.len(), instead_of.len()];
        let mut run = server.about_call(&server.scripts.claim, record, epoch.clone(), counts);
        run.key(Partition::of(&intent.lookup).of_script(record, rooms(change), &lists, instead_of));
        run.arg((&record::cas(record)[..], codec::intent(intent)));
        run.arg((&intent.args[..], codec::progress(record)));
        run.arg((
            codec::entry(&change.entry, intent),
            server.told_of(&change.entry),
        ));
        run.arg((score(record), self.admissions.asked(change)?));
        run.arg(if is_known { "" } else { &intent.tenant });
        run.arg((record::result(record), record.state.as_str()));
        run.arg((record::letter(record), retain_until(record)));
        givers(&mut run, instead_of);
        let answer = server.run_guarded(&run).await?;
        match answer.word.as_str() {
            "done" => {
                let record = self.written(change, &answer).await?;
                server.known.learn(&epoch, &intent.tenant, &intent.tool);
                Ok(Claimed::Yours(record))
            }
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
        let (intent, record) = (&change.record.intent, &change.record);
        let instead_of = &change.takes.instead_of;
        let mut run = self
            .server
            .about_call(script, record, epoch, [0, instead_of.len()]);
        run.key(Partition::of(&intent.lookup).of_script(record, rooms(change), &[], instead_of));
        run.arg((&record::cas(expected)[..], record::fencing(expected)));
        run.arg((&record::cas(record)[..], codec::progress(record)));
        run.arg((
            record::result(record),
            codec::entry(&change.entry, intent),
            self.server.told_of(&change.entry),
        ));
        run.arg((record.state.as_str(), record::letter(record), score(record)));
        run.arg((retain_until(record), self.admissions.asked(change)?));
        run.arg((&released(change)[..], self.server.announcement(begins)));
        run.arg(if change.release.retakes_lock { "1" } else { "" });
        run.arg(change.takes.names.len());
        if runs {
            run.arg(("1", codec::intent(intent), &intent.args[..]));
        } else {
            run.arg(("", "", ""));
        }
        givers(&mut run, instead_of);
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

    /// The record as a script has written it, when replicas have it.
    ///
    /// Notes its token, the count of this gateway's writes, and the write to be put back.
    async fn written(&self, change: &Change, answer: &Answer) -> Result<Record, Error> {
        let (mut record, memory) = (change.record.clone(), &self.server.memory);
        let written = Entered {
            token: answer.text(0).unwrap_or_default(),
            similar_to: answer.text(2).unwrap_or_default(),
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

    /// Writes the end of a call that the store lacks, or has in an older version.
    ///
    /// Nothing unfinished is ever deleted. The known record goes back as a whole.
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
