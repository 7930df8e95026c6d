//! What the webhook is told of a call that waits for approval, and when.
//!
//! A notice is a document beside the call. It is written before the call waits, and looked at again until the wait has ended.
//! Nothing but the webhook depends on it: without any notice a call waits, is decided and lapses all the same.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::proposal::Proposal;
use crate::document::{self, Document, Kind};
use crate::key::{self, Pointer};
use crate::record::{CallId, FailureKind, Record, State};
use crate::retry;
use crate::time::{after, before, micros, signed};
use crate::words::words;

/// How long a claim may take, after which a call that is not there was never made.
const CLAIM: SignedDuration = SignedDuration::from_mins(2);
/// How soon a call is looked for whose gateway has not said that it waits.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// How late the end of a wait is told at the latest if the gateway that wrote it has ended.
const AT_LATEST: SignedDuration = SignedDuration::from_mins(5);
/// How long a notice is kept after the end: a request may ask once more.
const STORED_FOR: SignedDuration = SignedDuration::from_hours(1);
/// The pauses between tries: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));
/// Tries of one message: about a day of them.
const MAX_TRIES: u32 = 300;
/// Most pointers of `show`, and most bytes of what one of them leads to.
pub const MAX_SHOWN: (usize, usize) = (16, 1_000);

words! {
    /// How a wait for approval has ended.
    pub enum Outcome {
        Approved = "approved",
        Declined = "declined",
        Lapsed = "lapsed",
        Withdrawn = "withdrawn",
        Voided = "voided",
        /// The store has lost data: it may have been approved and sent.
        Unknown = "unknown",
    }
}

/// What the webhook is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The call waits for approval.
    Asked,
    /// It still does, and not much time is left.
    Expiring,
    Ended(Outcome),
}

impl Message {
    /// The name of the event.
    pub fn event(self) -> &'static str {
        match self {
            Self::Asked => "approval.asked",
            Self::Expiring => "approval.expiring",
            Self::Ended(_) => "approval.ended",
        }
    }

    /// How the wait has ended, in one word.
    pub fn outcome(self) -> Option<&'static str> {
        match self {
            Self::Ended(outcome) => Some(outcome.as_str()),
            Self::Asked | Self::Expiring => None,
        }
    }

    /// The id of the message about this ask of a call. A repetition has the same.
    pub fn id(self, call_id: CallId, ask: u32) -> String {
        let (call_id, ask) = (call_id.to_string(), ask.to_string());
        let outcome = self.outcome().unwrap_or_default();
        let digest = key::digest(["notice", self.event(), &call_id, &ask, outcome]);
        hex::encode(&digest[..16])
    }
}

/// What there is to do about a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Tell the webhook this about this ask.
    Tell { message: Message, ask: u32 },
    /// Look again at this time.
    Wait(Timestamp),
    /// Nothing is left to tell.
    Over,
}

/// What the webhook was told about the asks of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub call_id: CallId,
    pub version: u64,
    pub created_at: Timestamp,
    /// When a request last was about to ask.
    expected_at: Timestamp,
    /// The ask of which it was told; 0: none yet.
    ask: u32,
    /// How often requests had asked then.
    requested: u32,
    is_expiring_told: bool,
    /// The end of that ask of which it was told.
    ended: Option<Outcome>,
    /// Failed tries of the next message.
    pub tries: u32,
    /// Whether a gateway tells the webhook now.
    is_taken: bool,
    pub due_at: Option<Timestamp>,
    retain_until: Option<Timestamp>,
}

/// The members of a notice that are not columns of its document.
#[derive(Serialize, Deserialize)]
struct Body {
    #[serde(with = "micros")]
    expected_at: Timestamp,
    ask: u32,
    requested: u32,
    expiring: bool,
    ended: Option<String>,
    tries: u32,
    taken: bool,
}

impl Notice {
    /// The notice of a call that is about to wait for approval, from an earlier one of the same call.
    pub fn expected(call_id: CallId, earlier: Option<Self>, now: Timestamp) -> Self {
        let soon = Some(after(now, LOOK_AGAIN));
        match earlier {
            Some(earlier) => Self {
                version: earlier.version + 1,
                expected_at: now,
                due_at: earlier.due_at.or(soon),
                retain_until: None,
                ..earlier
            },
            None => Self {
                call_id,
                version: 1,
                created_at: now,
                expected_at: now,
                ask: 0,
                requested: 0,
                is_expiring_told: false,
                ended: None,
                tries: 0,
                is_taken: false,
                due_at: soon,
                retain_until: None,
            },
        }
    }

    /// Whether a gateway that knows of a change of the call may look at once, although the notice is not due.
    ///
    /// What another gateway does now is followed by a look anyway, and a webhook that fails is given its pause.
    pub fn may_hurry(&self, now: Timestamp) -> bool {
        let is_due = self.due_at.is_some_and(|due_at| due_at <= now);
        is_due || !self.is_taken && self.tries == 0
    }

    /// What there is to do, by the call as it is stored.
    pub fn step(&self, record: Option<&Record>, now: Timestamp) -> Step {
        let found = record.and_then(|record| Some((record, record.proposal.as_deref()?)));
        let step = match found {
            Some((record, proposal)) => self.step_of(record, proposal, now),
            // Its claim was refused, or cleanup has deleted the call.
            None => Step::Over,
        };
        let claimed = after(self.expected_at, CLAIM);
        match step {
            // Or the claim of the next ask is under way.
            Step::Over if now < claimed => Step::Wait(claimed),
            step => step,
        }
    }

    fn step_of(&self, record: &Record, proposal: &Proposal, now: Timestamp) -> Step {
        let current = proposal.ask;
        let tell = |message, ask| Step::Tell { message, ask };
        let waits = record.state.waits_for_approval();
        if waits && 0 < self.ask && self.ask < current {
            let has_ended = match self.ended {
                None => false,
                // It was void after that, or it ran and failed, and a request has asked once more.
                Some(Outcome::Approved) => self.requested != proposal.requested,
                Some(_) => true,
            };
            if !has_ended {
                let outcome = match self.requested == proposal.requested {
                    true => Outcome::Voided,
                    false => Outcome::Lapsed,
                };
                return tell(Message::Ended(outcome), self.ask);
            }
        }
        let is_sent = self.ask == current;
        if record.state == State::Proposed {
            let expiring_at = expiring_at(proposal);
            return match (is_sent, self.is_expiring_told) {
                (false, _) => tell(Message::Asked, current),
                (true, false) if expiring_at <= now => tell(Message::Expiring, current),
                (true, false) => Step::Wait(expiring_at.min(after(now, AT_LATEST))),
                (true, true) => Step::Wait(after(now, AT_LATEST)),
            };
        }
        let outcome = outcome(record, proposal);
        if !is_sent || self.ended != Some(outcome) {
            return tell(Message::Ended(outcome), current);
        }
        match record.state {
            // It may still be void.
            State::Approved => Step::Wait(after(now, AT_LATEST)),
            _ => Step::Over,
        }
    }

    /// This gateway tells the webhook, and others leave it alone until then.
    #[must_use]
    pub fn taken(self, until: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            is_taken: true,
            due_at: Some(until),
            ..self
        }
    }

    /// The notice after a message was delivered, or given up. What follows is due at once.
    #[must_use]
    pub fn delivered(self, message: Message, (ask, requested): (u32, u32), now: Timestamp) -> Self {
        let is_same = self.ask == ask;
        let (expiring, ended) = match message {
            Message::Asked => (false, None),
            Message::Expiring => (true, self.ended),
            Message::Ended(outcome) => (is_same && self.is_expiring_told, Some(outcome)),
        };
        Self {
            version: self.version + 1,
            ask,
            requested: if is_same { self.requested } else { requested },
            is_expiring_told: expiring,
            ended,
            tries: 0,
            is_taken: false,
            due_at: Some(now),
            ..self
        }
    }

    /// The notice after a try that has failed; `None`: that was the last one. `jitter` is random, of 0..1.
    pub fn failed(&self, jitter: f64, now: Timestamp) -> Option<Self> {
        let tries = self.tries.saturating_add(1);
        let longest = retry::back_off(PAUSES.0, PAUSES.1, tries);
        let pause = signed(retry::at_least_half(longest, jitter));
        (tries < MAX_TRIES).then(|| Self {
            version: self.version + 1,
            tries,
            is_taken: false,
            due_at: Some(after(now, pause)),
            ..self.clone()
        })
    }

    /// The notice when nothing is to be done until then.
    #[must_use]
    pub fn waiting(self, until: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            is_taken: false,
            due_at: Some(until),
            ..self
        }
    }

    /// The notice when nothing is left to tell.
    #[must_use]
    pub fn over(self, now: Timestamp) -> Self {
        Self {
            version: self.version + 1,
            is_taken: false,
            due_at: None,
            retain_until: Some(after(now, STORED_FOR)),
            ..self
        }
    }

    pub fn to_document(&self) -> Document {
        let body = document::body(&Body {
            expected_at: self.expected_at,
            ask: self.ask,
            requested: self.requested,
            expiring: self.is_expiring_told,
            ended: self.ended.map(|outcome| outcome.as_str().to_owned()),
            tries: self.tries,
            taken: self.is_taken,
        });
        let state = match self.due_at {
            Some(_) => "open",
            None => "over",
        };
        let id = self.call_id.to_string();
        Document {
            version: self.version,
            due_at: self.due_at,
            retain_until: self.retain_until,
            ..Document::new(Kind::Notice, &id, state, self.created_at, body)
        }
    }

    /// Reads a notice from its document.
    ///
    /// # Errors
    /// The document was never written so.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body = document.read()?;
        let ended = body.ended.map(|word| {
            let outcome = Outcome::of(&word);
            outcome.ok_or_else(|| format!("there is no outcome {word}"))
        });
        let call_id = document.id.parse().map(CallId);
        Ok(Self {
            call_id: call_id.map_err(|_| "its call has no id".to_owned())?,
            version: document.version,
            created_at: document.created_at,
            expected_at: body.expected_at,
            ask: body.ask,
            requested: body.requested,
            is_expiring_told: body.expiring,
            ended: ended.transpose()?,
            tries: body.tries,
            is_taken: body.taken,
            due_at: document.due_at,
            retain_until: document.retain_until,
        })
    }
}

/// When not much time is left to decide: a fifth of it, and at least a minute if there are two.
fn expiring_at(proposal: &Proposal) -> Timestamp {
    let all = proposal.until.duration_since(proposal.asked_at);
    let least = SignedDuration::from_mins(1).min(all / 2);
    before(proposal.until, (all / 5).max(least))
}

/// How the wait of a call has ended that is not proposed.
fn outcome(record: &Record, proposal: &Proposal) -> Outcome {
    let was_approved = !proposal.approvals.is_empty();
    match &record.state {
        State::Failed(failure) => match failure.kind {
            FailureKind::Declined => Outcome::Declined,
            FailureKind::Lapsed => Outcome::Lapsed,
            FailureKind::Withdrawn => Outcome::Withdrawn,
            // It ran, and failed; or something else took it back before it was sent.
            _ if was_approved && record.attempts > 0 => Outcome::Approved,
            _ => Outcome::Withdrawn,
        },
        _ if was_approved => Outcome::Approved,
        // The saga to which it belonged was aborted.
        State::Compensating(_) | State::Compensated(_) => Outcome::Withdrawn,
        _ => Outcome::Unknown,
    }
}

/// The values of arguments that a notice may contain, and the pointers whose values are too long, hidden or not there.
pub fn shown_values(args: &Value, pointers: &[Pointer]) -> (Map<String, Value>, Vec<String>) {
    let (mut shown, mut left_out) = (Map::new(), Vec::new());
    for pointer in pointers.iter().take(MAX_SHOWN.0) {
        let name = pointer.as_str().to_owned();
        let found = args.pointer(&name);
        match found.filter(|value| value.to_string().len() <= MAX_SHOWN.1) {
            Some(value) => drop(shown.insert(name, value.clone())),
            None => left_out.push(name),
        }
    }
    (shown, left_out)
}

#[cfg(test)]
mod tests;
