//! A saga as a document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Phase, Saga, SagaId, State, Trouble};
use crate::core::document::{Document, Kind};
use crate::core::record::{CallId, Entry};
use crate::core::work::{Due, Work};

/// The members of a saga that its document has no place for.
///
/// Times are microseconds since 1970 in UTC.
#[derive(Serialize, Deserialize)]
struct Body {
    begun_by: String,
    only: Option<Uuid>,
    reason: String,
    trouble: Option<(Option<Uuid>, String)>,
    tries: u32,
    waits: u32,
    at_rest: bool,
    /// Stuck on a transient cause.
    looks_on: bool,
    /// Stuck because data was lost while it was open.
    was_open: bool,
    is_taken: bool,
    overdue: bool,
    to_tell: bool,
    tellings: u32,
    deadline: Option<i64>,
    updated_at: i64,
    events: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    at: i64,
    event: String,
    by: String,
    detail: String,
}

impl Saga {
    /// The saga as a document.
    pub fn to_document(&self) -> Document {
        let line = |entry: &Entry| Line {
            at: entry.at.as_microsecond(),
            event: entry.event.clone().into_owned(),
            by: entry.by.clone(),
            detail: entry.detail.clone(),
        };
        let (due_at, is_taken) = self.work.due.to_parts();
        let body = Body {
            begun_by: self.begun_by.clone(),
            only: self.only.map(|call_id| call_id.0),
            reason: self.reason.clone(),
            trouble: self.trouble.as_ref().map(|trouble| {
                (
                    trouble.call_id.map(|call_id| call_id.0),
                    trouble.why.clone(),
                )
            }),
            tries: self.work.tries,
            waits: self.work.waits,
            at_rest: match self.phase {
                Phase::Compensating { at_rest } | Phase::Stuck { at_rest, .. } => at_rest,
                Phase::Compensated => true,
                Phase::Open | Phase::Completed | Phase::OpenAtLoss => false,
            },
            looks_on: self.phase.is_stuck_for_now(),
            was_open: self.phase == Phase::OpenAtLoss,
            is_taken,
            overdue: self.overdue,
            to_tell: self.telling.is_some(),
            tellings: self.telling.unwrap_or(0),
            deadline: self.deadline.map(Timestamp::as_microsecond),
            updated_at: self.updated_at.as_microsecond(),
            events: self.events.iter().map(line).collect(),
        };
        #[expect(clippy::expect_used, reason = "texts and numbers always make JSON")]
        let body = serde_json::to_vec(&body).expect("plain values");
        Document {
            kind: Kind::Saga,
            tenant: self.id.tenant.clone(),
            id: self.id.id.clone(),
            version: self.version,
            state: self.state().as_str().to_owned(),
            created_at: self.created_at,
            due_at,
            retain_until: self.retain_until,
            body: body.into(),
        }
    }

    /// Reads a saga from its document.
    ///
    /// # Errors
    /// This was never written; it is never taken for an absent one.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body =
            serde_json::from_slice(&document.body).map_err(|error| error.to_string())?;
        let state = State::ALL
            .into_iter()
            .find(|state| state.as_str() == document.state);
        let state = state.ok_or_else(|| format!("there is no state {:?}", document.state))?;
        let at_rest = body.at_rest;
        let phase = match state {
            State::Open => Phase::Open,
            State::Completed => Phase::Completed,
            State::Compensating => Phase::Compensating { at_rest },
            State::Compensated => Phase::Compensated,
            State::Stuck if body.was_open => Phase::OpenAtLoss,
            State::Stuck => Phase::Stuck {
                at_rest,
                is_transient: body.looks_on,
            },
        };
        let entry = |line: Line| Ok(Entry::new(time(line.at)?, line.event, line.by, line.detail));
        Ok(Self {
            id: SagaId {
                tenant: document.tenant.clone(),
                id: document.id.clone(),
            },
            version: document.version,
            phase,
            begun_by: body.begun_by,
            only: body.only.map(CallId),
            reason: body.reason,
            trouble: body.trouble.map(|(call_id, why)| Trouble {
                call_id: call_id.map(CallId),
                why,
            }),
            work: Work {
                due: Due::from_parts(document.due_at, body.is_taken),
                tries: body.tries,
                waits: body.waits,
            },
            overdue: body.overdue,
            telling: body.to_tell.then_some(body.tellings),
            created_at: document.created_at,
            deadline: body.deadline.map(time).transpose()?,
            updated_at: time(body.updated_at)?,
            retain_until: document.retain_until,
            events: body
                .events
                .into_iter()
                .map(entry)
                .collect::<Result<_, String>>()?,
        })
    }
}

fn time(microseconds: i64) -> Result<Timestamp, String> {
    Timestamp::from_microsecond(microseconds).map_err(|error| error.to_string())
}
