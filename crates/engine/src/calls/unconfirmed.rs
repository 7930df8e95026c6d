//! Begins a run in the store, and gives back a run that the store never confirmed.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::claim::Claimer;
use super::prepared::PreparedCall;
use crate::callers::permits::Owner;
use crate::transition::{self, Begin, Begun};
use oncegate_rules::call::{Change, Event};
use oncegate_rules::outcome::Evidence;
use oncegate_rules::record::{Failure, FailureKind, Record};
use oncegate_store as store;

/// How often the store must say that an unconfirmed call does not exist.
const CLAIM_LOOKS: usize = 10;

impl Claimer {
    /// Begins a run. An unconfirmed one is looked for in the background.
    pub(super) async fn begin(
        self: &Arc<Self>,
        call: &PreparedCall,
        change: Change,
        how: Begin<'_>,
    ) -> Result<Begun, store::Error> {
        let begun = transition::begin(&self.base, change, how, call.longest_line).await?;
        // Without a permit recovery finds the call when its lease is over.
        if let Begun::Unconfirmed(record) = &begun
            && let Some(permit) = self.listening.take(Owner::of(&call.intent))
        {
            let release_unconfirmed = self
                .clone()
                .release_unconfirmed(call.clone(), record.clone());
            drop(self.base.tasks.spawn(async move {
                release_unconfirmed.await;
                drop(permit);
            }));
        }
        Ok(begun)
    }

    /// Looks for an unconfirmed run. If the store has it after all, the run is ended: nothing was sent.
    async fn release_unconfirmed(self: Arc<Self>, call: PreparedCall, begun: Record) {
        let tool = &call.at.tool;
        let until = Instant::now() + tool.lease();
        let mut looks = 0;
        while looks < CLAIM_LOOKS && Instant::now() < until {
            tokio::select! {
                biased;
                () = sleep(self.base.limits.timings.look_for_claim) => {}
                () = self.base.abandoned.cancelled() => return,
            }
            let Ok(found) = self.base.store.load(begun.intent.call_id).await else {
                continue;
            };
            let is_begun = |record: &Record| {
                record.attempt.id == begun.attempt.id && record.version == begun.version
            };
            let Some(record) = found.filter(is_begun) else {
                // Most likely the store never had the claim, so a gateway that drains looks less often.
                let is_draining = self.base.draining.is_cancelled();
                looks += if is_draining { CLAIM_LOOKS / 2 } else { 1 };
                continue;
            };
            let why = "the claim was not confirmed by the store in time".to_owned();
            let event = if record.intent.saga_id.is_empty() {
                Event::ended(&record, Evidence::NotSent { why })
            } else {
                // Its saga may not have begun.
                Event::NotJoined {
                    by: self.base.instance,
                    attempt: record.attempt.id,
                    why: Failure::new(FailureKind::Unreachable, why),
                }
            };
            let record = self.sender.end_attempt_alone(&call, record, &event).await;
            tracing::warn!(
                call_id = %record.intent.call_id,
                tool = tool.name,
                trace_id = record.intent.trace_id,
                state = record.state.as_str(),
                "a claim that was never confirmed was found and released",
            );
            return;
        }
    }
}
