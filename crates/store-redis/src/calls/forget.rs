//! Deletes calls and documents past their retention.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::keys::{self, Partition};
use crate::link::answer::positions;
use crate::scripts::Run;
use crate::store::Redis;
use oncegate_rules::ledger::Index;
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_store::Result;

/// How many calls one script deletes at most. All other commands wait for it, some milliseconds.
const AT_ONCE: usize = 150;
const DAY_US: i64 = 24 * 3_600 * 1_000_000;

impl Redis {
    /// Deletes finished calls and documents past their retention, with their names and list entries.
    pub(crate) async fn forget_all(&self, now: Timestamp, limit: u32) -> Result<u64> {
        // Lost writes are put back first, because one of them may have prolonged a retention.
        if self.server.status.is_in_doubt() {
            return Ok(0);
        }
        let mut forgotten = self.forget_documents(now, limit).await?;
        let now_us = now.as_microsecond() as f64;
        let earliest = Partition::all().map(|partition| partition.key("earliest"));
        let earliest = self.server.link.get_all(earliest).await?;
        // An unreadable time is taken for over: the index itself is read then.
        let is_over = |time: &[u8]| {
            let time = str::from_utf8(time).ok().and_then(|time| time.parse().ok());
            time.is_none_or(|time: f64| time <= now_us)
        };
        let mut left = limit as usize;
        for (partition, earliest) in Partition::all().zip(earliest) {
            let mut is_over = earliest.as_deref().is_some_and(is_over);
            while is_over && left > 0 {
                let most = left.min(AT_ONCE);
                let found = self.forget_some(partition, now, most).await?;
                forgotten += found as u64;
                left -= found;
                is_over = found == most;
            }
        }
        Ok(forgotten)
    }

    /// Deletes the next calls of a partition past their retention, in one step. Returns how many it has read.
    ///
    /// The index only leads to the calls. Each call itself says whether it may be deleted: a damaged time in the index
    /// must not free the key of a call.
    async fn forget_some(&self, partition: Partition, at: Timestamp, most: usize) -> Result<usize> {
        let now = at.as_microsecond();
        let range = (partition.key("retained"), "-inf", now, "LIMIT", 0, most);
        let places: Vec<Vec<u8>> = self.server.link.ask("ZRANGEBYSCORE", range).await?;
        let places = positions(&places)?;
        let ids: Vec<CallId> = places.iter().map(Position::call_id).collect();
        let mut over = Vec::new();
        for (place, call) in places.iter().zip(self.server.briefs(&ids).await?) {
            let why = match call {
                Ok(Some(record)) if record.may_be_forgotten(at) => {
                    over.push(record);
                    continue;
                }
                Ok(None) => {
                    for index in ["retained", "failed"] {
                        self.server.take_out_of_index(index, place).await?;
                    }
                    continue;
                }
                Ok(Some(_)) => "its own retention is not over".to_owned(),
                // A newer gateway may be able to read it.
                Err(error) => error.to_string(),
            };
            self.postpone(partition, place, now, why).await?;
        }
        // Also without calls: the script corrects the earliest time, if another gateway was faster.
        self.forget(partition, &over, now).await?;
        Ok(ids.len())
    }

    /// Gives a damaged call a later time, so that it does not keep others from being deleted.
    async fn postpone(
        &self,
        partition: Partition,
        place: &Position,
        now: i64,
        why: String,
    ) -> Result<()> {
        let later = Run::new(&self.server.scripts.postpone)
            .key(partition.key("retained"))
            .arg((now + DAY_US, &place.to_bytes(), now));
        // A call whose time in the index has changed since it was read is left alone.
        if self.server.run(later).await?.number(0) == Some(1) {
            let call_id = place.call_id();
            tracing::error!(%call_id, why, "a call is damaged and was not deleted; the next attempt is in a day");
        }
        Ok(())
    }

    async fn forget(&self, partition: Partition, over: &[Record], now: i64) -> Result<()> {
        let mut lists = BTreeMap::<String, String>::new();
        let mut holders = Vec::new();
        for (number, record) in (1..).zip(over) {
            let mut of_call = keys::lists(&record.intent);
            // A call that has lost its key to another call is in this list.
            of_call.push(Index::Key(&record.intent.key));
            if matches!(record.state, State::Failed(_)) {
                of_call.push(Index::State(record.state.as_str()));
            }
            for list in of_call {
                let list = partition.list(&record.intent.tenant, list);
                let numbers = lists.entry(list).or_default();
                numbers.push_str(&format!("{number} "));
            }
            holders.extend(
                record
                    .all_lookups()
                    .map(|name| (number, partition.holder(name))),
            );
        }
        let keys = [partition.key("retained"), partition.key("failed")];
        let mut run = self
            .server
            .writing_two(&self.server.scripts.forget, partition, keys)
            .key(partition.key("earliest"))
            .arg((now, over.len(), holders.len()));
        for record in over {
            let call_id = record.intent.call_id;
            run = run.key(keys::call(call_id)).arg(keys::id(call_id));
        }
        for record in over {
            run = run.key(keys::duplicates(record.intent.call_id));
            run = run.arg(&Position::of(record).to_bytes());
        }
        for (number, holder) in holders {
            run = run.key(holder).arg(number);
        }
        for (list, numbers) in lists {
            run = run.key(list).arg(numbers);
        }
        self.server.run_deleting(run).await.map(drop)
    }
}
