//! One run of a call in this process, and everyone who waits for it. A flight lives in a task of
//! its own: no caller owns it, and a caller that hangs up changes nothing.
//!
//! Must not know how a call runs. The store's claim is the authority; flights only spare the store
//! the questions of those who arrive together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::error::ErrorKind;
use super::throttle::NewKeys;
use crate::core::key::{Fingerprint, Lookup};
use crate::core::record::{CallId, Record};
use crate::core::session::Brought;

/// Arrivals with the same key and fingerprint share a flight, if they say the same about their session and
/// their saga, and if what bounds new keys is the same for them: nobody is refused because another was too fast.
pub(super) type FlightId = (Lookup, Fingerprint, Brought, String, Option<Arc<NewKeys>>);

/// How far a flight is.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    Claiming,
    /// Another call of the session is at it; nothing is claimed.
    Queued,
    /// The claim is durable. `ours`: this flight runs the call; otherwise somebody else does.
    Running {
        record: Arc<Record>,
        ours: bool,
    },
    /// The flight ran the call and knows the outcome, but the store will not take it: nobody may
    /// hear of it yet.
    Unwritten {
        record: Arc<Record>,
    },
    /// The store knows the end; or why there is none. `ours`: this flight ran the call; otherwise it
    /// found it so.
    Ended {
        record: Result<Arc<Record>, ErrorKind>,
        ours: bool,
    },
    /// The flight broke off without a word. What it did nobody here knows.
    Lost {
        record: Option<Arc<Record>>,
    },
}

impl Phase {
    /// Whether this flight runs the call, or ran it.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Self::Claiming | Self::Queued | Self::Lost { .. } => false,
            Self::Running { ours, .. } | Self::Ended { ours, .. } => *ours,
            Self::Unwritten { .. } => true,
        }
    }

    pub(super) fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Claiming | Self::Queued | Self::Ended { record: Err(_), .. } => None,
            Self::Lost { record } => record.as_ref(),
            Self::Running { record, .. }
            | Self::Unwritten { record }
            | Self::Ended {
                record: Ok(record), ..
            } => Some(record),
        }
    }
}

/// The flights of a gateway.
#[derive(Default)]
pub(super) struct Flights(Mutex<HashMap<FlightId, watch::Sender<Phase>>>);

impl Flights {
    /// Joins the flight of this id, or begins it: then there is a pilot, who has to fly it.
    pub(super) fn join_or_begin(
        self: &Arc<Self>,
        id: FlightId,
    ) -> (watch::Receiver<Phase>, Option<Pilot>) {
        let mut flights = self.lock();
        if let Some(phase) = flights.get(&id) {
            return (phase.subscribe(), None);
        }
        let (phase, seen) = watch::channel(Phase::Claiming);
        flights.insert(id.clone(), phase.clone());
        (
            seen,
            Some(Pilot {
                id,
                phase,
                flights: self.clone(),
            }),
        )
    }

    /// Whether a call runs here. Its run may have been found by another name than its first.
    pub(super) fn runs(&self, call_id: CallId) -> bool {
        let flights = self.lock();
        flights.values().any(|phase| match &*phase.borrow() {
            Phase::Running { record, ours: true } | Phase::Unwritten { record } => {
                record.intent.call_id == call_id
            }
            _ => false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FlightId, watch::Sender<Phase>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flies one flight. When dropped, also by a panic, the flight is over for all who wait.
pub(super) struct Pilot {
    id: FlightId,
    phase: watch::Sender<Phase>,
    flights: Arc<Flights>,
}

impl Pilot {
    pub(super) fn say(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Says the end. Who arrives from now on asks the store.
    pub(super) fn end(self, record: Result<Arc<Record>, ErrorKind>, ours: bool) {
        self.say(Phase::Ended { record, ours });
    }

    /// Ends the flight if nobody waits for it any more. In one step, so that nobody joins in between.
    pub(super) fn leave_if_alone(&self) -> bool {
        let mut flights = self.flights.lock();
        let alone = self.phase.receiver_count() == 0;
        if alone {
            flights.remove(&self.id);
        }
        alone
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        if flights
            .get(&self.id)
            .is_some_and(|phase| phase.same_channel(&self.phase))
        {
            flights.remove(&self.id);
        }
    }
}
