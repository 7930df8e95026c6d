//! Calls: claims, changes, and finding those that need work.

pub(crate) mod at_risk; // calls that a loss of data puts at risk
pub(crate) mod find; // finding calls
pub(crate) mod forget; // deleting old calls
pub(crate) mod record; // records as texts
pub(crate) mod session; // conditions of claims, and denials

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;

use self::find::SEARCHED;
use self::record::NEVER;
use self::session::{condition_keys, denied, freed_from};
use super::keys::{self, Partition};
use super::scripts::command;
use super::store::Redis;
use crate::link::answer::{Answer, unreadable};
use crate::loss::put_back::put_back;
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Holder, Record, State};
use oncegate_rules::session::Token;
use oncegate_store::{
    Calls, Census, Claimed, Due, Error, Found, Replaced, Result, UNREADABLE, codec, other_holder,
};

/// How many unknown calls one search for unscheduled calls reads. It runs once after a start.
const UNSCHEDULED_SEARCHED: usize = 10_000;

#[async_trait]
impl Calls for Redis {
    async fn claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let holder = match self.try_claim(change, replaced).await {
            // Nothing may be claimed, but a stored result can still be replayed.
            Err(Error::Refused(why)) if self.server.status.is_reached() => {
                let lookups: Vec<Lookup> = change.record.intent.all_lookups().copied().collect();
                other_holder(why, change, replaced, self.server.held(&lookups).await)?
            }
            Ok(Claimed::Existing(holder)) => holder,
            claimed => return claimed,
        };
        Ok(Claimed::Existing(self.server.settled(holder).await?))
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        let (server, record) = (&self.server, &change.record);
        let intent = &record.intent;
        // A change after which a request is sent, or that claims lookup keys, needs a store that is open.
        let runs = matches!(record.state, State::Running);
        let begins = runs || !change.takes.lookups.is_empty();
        let (epoch, script) = if begins {
            server.status.must_be_open()?;
            (server.memory.epoch(), &server.scripts.begin)
        } else {
            (String::new(), &server.scripts.finish)
        };
        let (stored_intent, args) = if runs || change.erases.is_some() {
            (codec::intent(intent), &intent.args[..])
        } else {
            (Vec::new(), &[][..])
        };
        let lists = change.erases.as_deref().map(keys::lists);
        let mut left = lists.unwrap_or_default();
        left.retain(|list| !keys::lists(intent).contains(list));
        let leaves_similar = change.release.similar.is_some();
        let run = server
            .about_call(
                script,
                epoch,
                (record, &change.entry),
                condition_keys(change),
                &left,
                &change.takes.replaced,
            )
            .arg((stored_intent, args))
            .arg(server.conditions(change)?)
            .arg((&record::cas(expected), record::or_empty(expected.fencing)))
            .arg((freed_from(change), if leaves_similar { "1" } else { "" }))
            .arg(if change.release.retakes_lock { "1" } else { "" })
            .arg(if begins { "" } else { server.publish_command() })
            .arg(change.takes.lookups.len())
            .arg(server.latest_begin(record))
            .arg(record.similar_to.map(keys::id).unwrap_or_default());
        let answer = if begins {
            server.run_guarded(run).await?
        } else {
            server.run(run).await?
        };
        match answer.word.as_str() {
            "done" => Ok(Replaced::Done(self.written(change, &answer).await?)),
            "denied" => Ok(Replaced::Denied(denied(&answer)?)),
            "late" => {
                server.was_late(&answer);
                // As it was: the change is made again from it, at the right time.
                Ok(Replaced::Lost(answer.record()?))
            }
            "gone" if begins => Err(server.has_lost("call")),
            "gone" => self.complete_lost(change).await,
            "changed" => {
                let newer = answer.record()?;
                let is_older = newer.as_ref().is_some_and(|stored| {
                    stored.intent.call_id == intent.call_id && stored.version < expected.version
                });
                match (is_older, begins) {
                    (true, true) => Err(server.has_lost("call")),
                    (true, false) => self.complete_lost(change).await,
                    (false, _) => {
                        server.memory.forget(intent.call_id);
                        Ok(Replaced::Lost(newer))
                    }
                }
            }
            _ => Err(answer.unexpected()),
        }
    }

    async fn holders(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let mut holders = self.server.held(lookups).await?;
        for holder in &mut holders {
            holder.record = self.server.settled(holder.record.clone()).await?;
        }
        Ok(holders)
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>> {
        match self.server.fields_of(call_id).await? {
            Some(record) => Ok(Some(self.server.settled(record).await?)),
            None => Ok(None),
        }
    }

    async fn watch(&self, name: &Lookup, call_id: CallId) -> Result<Option<Record>> {
        match self.tracker.get() {
            Some(tracker) => tracker.watch(name, call_id).await,
            None => Err(Error::Refused(
                "the replay memory is not notified of changes".into(),
            )),
        }
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>> {
        // A gateway cannot tell whether the owner has ended, only that the lease is over.
        let (limit, times) = (limit as usize, 0..=now.as_microsecond());
        let searched = limit + UNREADABLE as usize;
        let search = self
            .server
            .search("running", times, limit, searched, |_| true);
        let (over, _) = search.await?;
        Ok(over.map(|record| Due {
            record,
            owner_ended: false,
        }))
    }

    async fn due_rechecks(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>> {
        let mut free: HashMap<&str, u32> = tools.iter().map(|tool| (tool.as_str(), each)).collect();
        let limit = tools.len().saturating_mul(each as usize);
        let has_permit = |record: &Record| match free.get_mut(record.intent.tool.as_str()) {
            None | Some(0) => false,
            Some(permits) => {
                *permits -= 1;
                true
            }
        };
        // The index is not by tool. If the backlog of one tool fills a round, the next round goes on behind it.
        let times = self.checked_until.load(Ordering::Relaxed)..=now.as_microsecond();
        let search = self
            .server
            .search("unknown", times, limit, SEARCHED, has_permit);
        let (found, last) = search.await?;
        self.checked_until
            .store(last.unwrap_or(0), Ordering::Relaxed);
        Ok(found)
    }

    async fn unscheduled_unknown(&self, tools: &[String], limit: u32) -> Result<Found<Record>> {
        self.server.status.must_be_open()?;
        let (limit, times) = (limit as usize, NEVER..=NEVER);
        let is_of_tools = |record: &Record| tools.contains(&record.intent.tool);
        let search = self
            .server
            .search("unknown", times, limit, UNSCHEDULED_SEARCHED, is_of_tools);
        Ok(search.await?.0)
    }

    async fn due_proposals(&self, now: Timestamp, limit: u32) -> Result<Found<Record>> {
        if self.server.status.is_in_doubt() {
            return Ok(Found::default());
        }
        let (limit, times) = (limit as usize, 0..=now.as_microsecond());
        let searched = limit + UNREADABLE as usize;
        let search = self
            .server
            .search("waiting", times, limit, searched, |_| true);
        Ok(search.await?.0)
    }

    async fn census(&self) -> Result<Vec<Census>> {
        let counts = |partition: Partition| command("HGETALL", partition.key("census"));
        let counts: Vec<Vec<(String, i64)>> = self.server.link.ask_each(counts).await?;
        let mut sums = BTreeMap::<String, u64>::new();
        for (name, calls) in counts.into_iter().flatten() {
            *sums.entry(name).or_default() += u64::try_from(calls).unwrap_or(0);
        }
        let census = |(name, calls): (String, u64)| {
            let (state, tool) = name.split_once(':').filter(|_| calls > 0)?;
            Some(Census {
                tool: tool.to_owned(),
                state: state.to_owned(),
                calls,
            })
        };
        Ok(sums.into_iter().filter_map(census).collect())
    }
}

impl Redis {
    async fn try_claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        self.server.status.must_be_open()?;
        let (server, intent) = (&self.server, &change.record.intent);
        let epoch = server.memory.epoch();
        let is_listed = server.known.has(&epoch, &intent.tenant, &intent.tool);
        let run = server
            .about_call(
                &server.scripts.claim,
                epoch.clone(),
                (&change.record, &change.entry),
                condition_keys(change),
                &keys::lists(intent),
                replaced,
            )
            .arg((codec::intent(intent), &intent.args[..]))
            .arg(server.conditions(change)?)
            .arg(if is_listed { "" } else { &intent.tenant })
            .arg(server.latest_begin(&change.record));
        let answer = server.run_guarded(run).await?;
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
            "late" => {
                server.was_late(&answer);
                Ok(Claimed::Late)
            }
            _ => Err(answer.unexpected()),
        }
    }

    /// The record as a script has written it, once replicas have it.
    ///
    /// Notes its token, the count of this gateway's writes, and the write, which may have to be put back.
    async fn written(&self, change: &Change, answer: &Answer) -> Result<Record> {
        let (mut record, memory) = (change.record.clone(), &self.server.memory);
        let token = Some(answer.text(0)).filter(|token| !token.is_empty());
        let token: Option<Result<u64, _>> = token.map(|token| token.parse());
        record.fencing = token.transpose().map_err(unreadable)?;
        record.similar_to = keys::call_id(answer.text(2).as_bytes());
        let partition = Partition::of(&record.intent.lookup);
        self.server.saw_count(partition, answer, 1);
        if let Some(token) = record.fencing {
            let admission = change.admission.as_ref();
            let asked = admission.map_or(Token::Next, |admission| admission.token);
            memory.note_token(asked, token).await?;
        }
        memory.remember(memory.call_write(&record, change));
        self.server.barrier.pass(partition).await?;
        Ok(record)
    }

    /// Writes the end of a call that the store has lost, or has only in an older version.
    ///
    /// Unfinished calls are never deleted, so the store has lost data. The remembered record is put back as a whole.
    async fn complete_lost(&self, change: &Change) -> Result<Replaced> {
        let server = &self.server;
        let call_id = change.record.intent.call_id;
        let write = server.memory.call_write(&change.record, change);
        put_back(server, &write).await?;
        server.memory.remember(write);
        server.link.trouble.notify_one();
        match server.fields_of(call_id).await? {
            // Another writer was faster. This gateway's knowledge may still settle the call.
            Some(stored) if stored != change.record => {
                server.memory.forget(call_id);
                Ok(Replaced::Lost(Some(stored)))
            }
            _ => {
                let partition = Partition::of(&change.record.intent.lookup);
                server.barrier.pass(partition).await?;
                Ok(Replaced::Done(change.record.clone()))
            }
        }
    }
}
