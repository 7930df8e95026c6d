//! What is due of calls that wait: they lapse, or an approved one begins.
//!
//! An approved call that something holds stays due. So that many of those delay nothing, a look finds as many more calls
//! as were held at the last one, and they take turns in being tried.

use std::sync::Mutex;

use jiff::Timestamp;

use super::Approvals;
use crate::base::lock::lock;
use crate::calls::{ApprovedCalls, ended_waiting};
use crate::transition;
use oncegate_rules::call::Event;
use oncegate_rules::record::{CallId, Record, State};
use oncegate_store as store;

/// Calls that one look takes beside those that are held, and held ones that it tries.
const BATCH: usize = 256;
/// Most calls of one look.
const MOST: usize = 16_384;

/// Approved calls that were held at the last look.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Look>);

#[derive(Debug, Default, Clone, Copy)]
struct Look {
    count: usize,
    /// The one that was tried last.
    last: Option<(Timestamp, CallId)>,
}

impl Held {
    /// How many.
    pub(super) fn count(&self) -> u32 {
        count(lock(&self.0).count)
    }
}

impl Approvals {
    /// Ends what was not decided in time, and begins approved calls that no gateway has begun.
    ///
    /// # Errors
    /// The store failed; what was done stays so.
    pub async fn run_once(&self, now: Timestamp) -> Result<usize, store::Error> {
        let (approved, over) = self.due(now).await?;
        let mut done = 0;
        for record in over {
            let event = Event::ProposalDue {
                by: self.base.instance,
            };
            if let Some(ended) = transition::change(&self.base, &record, &event, now).await {
                ended_waiting(&self.base.metrics, &ended);
                done += 1;
            }
        }
        for record in self.in_turn(approved) {
            // In a task of its own: a gateway that stops ends this loop, and waits for what was begun.
            let calls = ApprovedCalls::of(&self.engine);
            let begun = async move { calls.begin(record, now).await };
            let begun = self.base.tasks.spawn(begun).await;
            done += usize::from(begun.unwrap_or(false));
        }
        Ok(done)
    }

    /// The due calls: approved ones that may begin, and those whose time is over.
    async fn due(&self, now: Timestamp) -> Result<(Vec<Record>, Vec<Record>), store::Error> {
        let limit = (lock(&self.held.0).count + BATCH).min(MOST);
        let due = self.base.store.due_proposals(now, count(limit)).await;
        let due = self.base.readable("due_proposals", due)?;
        Ok(due.into_iter().partition(|record| may_begin(record, now)))
    }

    /// Those that are tried now, beginning after the one that was tried last.
    fn in_turn(&self, mut approved: Vec<Record>) -> Vec<Record> {
        approved.sort_by_key(place);
        let mut held = lock(&self.held.0);
        let first = held.last.map_or(0, |last| {
            approved.partition_point(|record| place(record) <= last)
        });
        held.count = approved.len();
        approved.rotate_left(first);
        approved.truncate(BATCH);
        held.last = approved.last().map(place);
        approved
    }
}

fn place(record: &Record) -> (Timestamp, CallId) {
    (record.updated_at, record.intent.call_id)
}

fn may_begin(record: &Record, now: Timestamp) -> bool {
    let proposal = record.proposal.as_deref();
    record.state == State::Approved && proposal.is_some_and(|asked| asked.is_good(now))
}

fn count(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}
