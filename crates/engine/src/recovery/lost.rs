//! Calls whose owner is gone: their outcome is unknown.

use std::sync::Arc;

use jiff::Timestamp;

use crate::base::Base;
use crate::calls::SharedRuns;
use crate::sagas::SagaRegistry;
use crate::transition::{self, OnConflict};
use oncegate_hooks::crash;
use oncegate_rules::call::Event;
use oncegate_store::{self as store, Due};

/// Most calls of one batch, so that live traffic is not delayed.
const BATCH: u32 = 100;

/// Largest batch when the head of the queue is blocked.
const MOST: u32 = 3_200;

/// Settles calls that have lost their owner.
pub struct LostCalls {
    pub(crate) base: Arc<Base>,
    pub(crate) sagas: Arc<SagaRegistry>,
    pub(crate) runs: Arc<SharedRuns>,
}

impl LostCalls {
    /// Settles every call without an owner, and returns how many there were.
    ///
    /// Two gateways may do this at once: each call is settled once.
    ///
    /// # Errors
    /// The store failed; what was settled so far stays so.
    pub async fn recover_all(&self, now: Timestamp) -> Result<usize, store::Error> {
        let (mut settled, mut most) = (0, BATCH);
        loop {
            let due = self.base.store.due(now, most).await;
            let due = self.base.readable("due", due)?;
            let (count, before) = (due.len(), settled);
            for lost in due {
                settled += usize::from(self.settle_lost(lost, now).await?);
            }
            // A due call that was not settled belongs to another gateway by now, or waits for an unreadable saga. Further
            // due calls may stand behind such calls.
            if settled == before {
                if count < most as usize || most >= MOST {
                    return Ok(settled);
                }
                most = most.saturating_mul(2).min(MOST);
            }
        }
    }

    /// Settles one call. Returns whether this gateway did it.
    pub(crate) async fn settle_lost(
        &self,
        lost: Due,
        now: Timestamp,
    ) -> Result<bool, store::Error> {
        let (record, owner_ended) = (lost.record, lost.owner_ended);
        // A call that runs here is not lost, whatever the clock says.
        if !owner_ended
            && record.attempt.owner == self.base.instance
            && self.runs.runs(record.intent.call_id)
        {
            return Ok(false);
        }
        let tool = self.base.policy_of(&record);
        let by = self.base.instance;
        // A call that its saga does not know of would not be undone. An unreadable saga delays only its own calls.
        if let Err(error) = self.sagas.find_saga_of(&record.intent).await {
            let (call_id, trace_id) = (record.intent.call_id, &record.intent.trace_id);
            if self.base.is_not_logged_yet(&call_id.to_string()) {
                tracing::error!(%call_id, trace_id, %error, "the saga of a lost call cannot be had");
            }
            return Ok(false);
        }
        let event = if owner_ended {
            Event::OwnerLost { by }
        } else {
            Event::LeaseOver { by }
        };
        crash::point("in_recovery");
        let give_up = OnConflict::GiveUp;
        let moved = transition::apply(&self.base, &tool, record, &event, now, give_up).await?;
        let Some(settled) = moved.written() else {
            return Ok(false);
        };
        tracing::warn!(
            call_id = %settled.intent.call_id,
            tool = settled.intent.tool,
            trace_id = settled.intent.trace_id,
            state = settled.state.as_str(),
            reason = if owner_ended { "owner_lost" } else { "lease_over" },
            "a call had lost its owner",
        );
        Ok(true)
    }
}
