//! Calls that wait for an operator's approval: what is shown, who decides, and what is due.
//!
//! The rules are in `rules::approval` and `rules::call`. An approved call begins in `calls::approved`.

mod decide; // approve, decline, withdraw
mod due; // what lapses, and what begins
mod show; // what an approver sees

use std::sync::Arc;

use jiff::Timestamp;

pub(crate) use self::due::Held;
pub use self::show::{Look, Proposals, Shown, State};
use crate::base::Base;
pub use crate::calls::BuiltRequest;
use crate::calls::Engine;
use crate::tools::ToolAt;
use crate::tools::pauses::Pauses;
use crate::transition::{self, Moved, OnConflict};
use oncegate_rules::call::Event;
use oncegate_rules::record::{Record, State as CallState};
use oncegate_rules::time::elapsed_ms;
use oncegate_store as store;

/// Calls of which the oldest is sought.
const OLDEST_OF: u32 = 256;

/// Shows calls that wait for approval, and decides about them.
pub struct Approvals {
    pub(crate) base: Arc<Base>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) held: Held,
}

impl Approvals {
    /// Notes how long the oldest of the calls waits that are to be decided next.
    pub async fn note_oldest(&self) {
        // Approved calls that are held come first.
        let limit = OLDEST_OF.saturating_add(self.held.count());
        let found = self.base.store.due_proposals(Timestamp::MAX, limit).await;
        let Ok(found) = found else { return };
        let now = self.base.now();
        let asked = found.calls.iter().filter_map(|record| {
            let proposal = record.proposal.as_deref();
            proposal.filter(|_| record.state == CallState::Proposed)
        });
        let oldest = asked
            .map(|proposal| elapsed_ms(proposal.asked_at, now) / 1000)
            .max();
        let seconds = i64::try_from(oldest.unwrap_or(0)).unwrap_or(i64::MAX);
        self.base.metrics.oldest_proposal.set(seconds);
    }
}

/// Applies an event to a call that waits, if it has not changed since it was read.
///
/// # Errors
/// The store failed.
async fn apply(
    base: &Base,
    at: Option<&ToolAt>,
    record: Record,
    event: &Event,
) -> Result<Moved, store::Error> {
    let tool = match at {
        Some(at) => at.tool.clone(),
        None => base.policy_of(&record),
    };
    transition::apply(base, &tool, record, event, base.now(), OnConflict::GiveUp).await
}
