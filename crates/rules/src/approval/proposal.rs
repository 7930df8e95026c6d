//! What is stored of an approval.

use std::time::Duration;

use jiff::Timestamp;

use super::{Ask, OVER_BUDGET};
use crate::record::CallId;
use crate::time::{after, elapsed_ms};

/// A digest, or a MAC.
pub type Digest = [u8; 32];

/// How often requests may ask about one call. After that its key gets the last answer.
pub const MAX_ASKS: u32 = 10;

/// When to ask again for a call that waits: at first, and at last.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// What was asked about a call, and who has approved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The number of the ask, from 1. What an approver has seen holds for one ask.
    ///
    /// It rises also when approvals are void.
    pub ask: u32,
    /// How often requests have asked: at most [`MAX_ASKS`].
    pub requested: u32,
    pub asked_at: Timestamp,
    /// Until when the ask may be decided.
    pub until: Timestamp,
    /// How long an approval is good, in milliseconds.
    pub good_for_ms: u64,
    pub why: Vec<String>,
    /// How many approvers have to approve.
    pub needed: u8,
    /// The names of approvers' tokens; empty: all that may approve.
    pub from: Vec<String>,
    /// The fencing token that the caller brought, compared when the call begins.
    pub fencing: Option<u64>,
    /// The similar call that the caller has named.
    pub confirmed: Option<CallId>,
    pub approvals: Vec<Approval>,
    /// What the approvals bind; `None` without any.
    pub bound: Option<Digest>,
    /// Until when the approved call may begin; `None`: it is not approved, or the approval is used up.
    pub good_until: Option<Timestamp>,
    /// What the agent is told about a declined call.
    pub tell: String,
}

/// One approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The name of the approver's token.
    pub by: String,
    pub at: Timestamp,
    pub reason: String,
    /// What the approver has seen.
    pub seen: Digest,
}

impl Proposal {
    /// A first ask, or a further one after `earlier`.
    pub fn new(
        ask: &Ask,
        earlier: Option<&Self>,
        fencing: Option<u64>,
        confirmed: Option<CallId>,
        now: Timestamp,
    ) -> Self {
        Self {
            ask: earlier.map_or(0, |earlier| earlier.ask).saturating_add(1),
            requested: earlier
                .map_or(0, |earlier| earlier.requested)
                .saturating_add(1),
            asked_at: now,
            until: after(now, ask.expires),
            good_for_ms: u64::try_from(ask.good_for.as_millis()).unwrap_or(u64::MAX),
            why: ask.why.clone(),
            needed: ask.needed.max(1),
            from: ask.from.clone(),
            fencing,
            confirmed,
            approvals: Vec::new(),
            bound: None,
            good_until: None,
            tell: String::new(),
        }
    }

    /// Whether it was asked about as a call beyond its tool's budget, which does not hold it back then.
    pub fn is_over_budget(&self) -> bool {
        self.why.iter().any(|why| why == OVER_BUDGET)
    }

    /// Whether it may still be decided.
    pub fn is_open(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// How soon its caller should ask again: the longer it waits, the more rarely.
    pub fn ask_again_after(&self, now: Timestamp) -> Duration {
        let waited = Duration::from_millis(elapsed_ms(self.asked_at, now));
        (waited / 10).clamp(ASK_AGAIN.0, ASK_AGAIN.1)
    }

    /// Whether another request may ask once this one is over.
    pub fn may_ask_again(&self) -> bool {
        self.requested < MAX_ASKS
    }

    /// Whether the call may begin by this approval.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.good_until.is_some_and(|until| now < until)
    }

    /// The approval of this token.
    pub fn approval_of(&self, token: &str) -> Option<&Approval> {
        self.approvals.iter().find(|approval| approval.by == token)
    }

    /// Takes all approvals back. What was seen before holds no more.
    pub(crate) fn void(&mut self) {
        self.ask = self.ask.saturating_add(1);
        self.approvals.clear();
        self.bound = None;
        self.good_until = None;
    }
}
