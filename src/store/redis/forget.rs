//! Deletes calls past their retention, many in one step.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::answer::unreadable;
use super::keys::{self, Partition};
use super::scripts::{Run, command};
use super::store::Redis;
use crate::core::ledger::Index;
use crate::core::position::Position;
use crate::core::record::{CallId, Record, State};
use crate::store::Error;

/// Most calls that one script deletes. All other commands wait for it, some milliseconds.
const AT_ONCE: usize = 150;
const DAY_US: i64 = 24 * 3_600 * 1_000_000;

impl Redis {
    /// Deletes finished calls and documents past their retention, with their names and list entries.
    pub(super) async fn forget_all(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        // Lost writes are put back first: one of them may have prolonged a retention.
        if self.server.status.is_in_doubt() {
            return Ok(0);
        }
        let mut forgotten = self.forget_documents(now, limit).await?;
        let now_us = now.as_microsecond() as f64;
        let earliest = Partition::all().map(Partition::earliest).collect();
        let earliest = self.server.link.get_all(earliest).await?;
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

    /// Deletes the next calls of a partition past their retention, in one step. Returns how many it looked at.
    ///
    /// The index only leads to them. Whether a call may go is asked of the call itself: a damaged time must not free
    /// the key of one that is not over.
    async fn forget_some(
        &self,
        partition: Partition,
        at: Timestamp,
        most: usize,
    ) -> Result<usize, Error> {
        let now = at.as_microsecond();
        let ask = command(
            "ZRANGEBYSCORE",
            (partition.retained(), "-inf", now, "LIMIT", 0, most),
        );
        let places: Vec<Vec<u8>> = self.server.link.ask(&ask).await?;
        let read = |place: &Vec<u8>| Position::from_bytes(place);
        let places: Option<Vec<Position>> = places.iter().map(read).collect();
        let places = places.ok_or_else(|| unreadable("this is no position"))?;
        let ids: Vec<CallId> = places.iter().map(|place| place.call_id()).collect();
        let mut over = Vec::new();
        for (place, call) in places.iter().zip(self.server.briefs(&ids).await?) {
            match call {
                Ok(Some(record)) if record.may_be_forgotten(at) => over.push(record),
                Ok(Some(_)) => {
                    let why = "its own retention is not over".to_owned();
                    self.postpone(partition, place, now, why).await?;
                }
                Ok(None) => {
                    for index in ["retained", "failed"] {
                        self.server.take_out_of(index, place).await?;
                    }
                }
                // A newer gateway may be able to read it.
                Err(error) => {
                    let why = error.to_string();
                    self.postpone(partition, place, now, why).await?;
                }
            }
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
    ) -> Result<(), Error> {
        let mut later = Run::new(&self.server.scripts.postpone);
        later.key(partition.retained());
        later.arg((now + DAY_US, &place.to_bytes()[..], now));
        // One that has changed since it was read is left alone.
        if self.server.run(&later).await?.number(0) == Some(1) {
            let call_id = place.call_id();
            tracing::error!(%call_id, why, "a call is damaged, and is not deleted; it is tried again in a day");
        }
        Ok(())
    }

    async fn forget(&self, partition: Partition, over: &[Record], now: i64) -> Result<(), Error> {
        let mut lists = BTreeMap::<String, String>::new();
        for (number, record) in (1..).zip(over) {
            let mut of_call = keys::lists(&record.intent);
            // A call that has lost its key to another call is in this list.
            of_call.push(Index::Key(&record.intent.key));
            if matches!(record.state, State::Failed(_)) {
                of_call.push(Index::State(record.state.as_str()));
            }
            for list in of_call {
                let calls = lists
                    .entry(partition.list(&record.intent.tenant, list))
                    .or_default();
                calls.push_str(&format!("{number} "));
            }
        }
        let holders: Vec<(usize, String)> = (1..)
            .zip(over)
            .flat_map(|(number, record)| {
                record
                    .all_names()
                    .map(move |name| (number, partition.holder(name)))
            })
            .collect();
        let names = [partition.retained(), partition.key("failed")];
        let mut run = self
            .server
            .writing_to(&self.server.scripts.forget, partition, names);
        run.key(partition.earliest());
        run.arg((now, over.len(), holders.len()));
        for record in over {
            let call_id = record.intent.call_id;
            run.key(keys::call(call_id)).arg(keys::id(call_id));
        }
        for record in over {
            run.key(keys::duplicates(record.intent.call_id));
            run.arg(&Position::of(record).to_bytes()[..]);
        }
        for (number, holder) in holders {
            run.key(holder).arg(number);
        }
        for (list, calls) in lists {
            run.key(list).arg(calls);
        }
        self.server.run_deleting(&run).await.map(drop)
    }
}
