//! A saga as a document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Phase, Saga, SagaId, State, Trouble};
use crate::document::{self, Document, Kind};
use crate::record::{CallId, Entry};
use crate::work::{Due, Work};

/// The fields of a saga that a [`Document`] has no field for.
///
/// Times are microseconds since 1970 in UTC.
#[derive(Serialize, Deserialize)]
struct Body {
    begun_by: String,
    only: Option<CallId>,
    reason: String,
    trouble: Option<(Option<CallId>, String)>,
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
        let body = Body {
            begun_by: self.begun_by.clone(),
            only: self.only,
            reason: self.reason.clone(),
            trouble: (self.trouble.clone()).map(|trouble| (trouble.call_id, trouble.why)),
            tries: self.work.tries,
            waits: self.work.waits,
            at_rest: self
                .phase
                .at_rest()
                .unwrap_or(self.phase == Phase::Compensated),
            looks_on: self.phase.is_stuck_for_now(),
            was_open: self.phase == Phase::OpenAtLoss,
            is_taken: self.work.due.is_taken(),
            overdue: self.overdue,
            to_tell: self.telling.is_some(),
            tellings: self.telling.unwrap_or(0),
            deadline: self.deadline.map(Timestamp::as_microsecond),
            updated_at: self.updated_at.as_microsecond(),
            events: self.events.iter().map(line).collect(),
        };
        let (id, state) = (&self.id.id, self.state().as_str());
        let body = document::body(&body);
        Document {
            tenant: self.id.tenant.clone(),
            version: self.version,
            due_at: self.work.due.at(),
            retain_until: self.retain_until,
            ..Document::new(Kind::Saga, id, state, self.created_at, body)
        }
    }

    /// Reads a saga from its document.
    ///
    /// # Errors
    /// The document was never written so. The saga must not be taken for absent.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body = document.read()?;
        let state = State::of(&document.state);
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
        let events: Result<_, String> = body.events.into_iter().map(entry).collect();
        Ok(Self {
            id: SagaId::new(&document.tenant, &document.id),
            version: document.version,
            phase,
            begun_by: body.begun_by,
            only: body.only,
            reason: body.reason,
            trouble: (body.trouble).map(|(call_id, why)| Trouble { call_id, why }),
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
            events: events?,
        })
    }
}

fn time(microseconds: i64) -> Result<Timestamp, String> {
    Timestamp::from_microsecond(microseconds).map_err(|error| error.to_string())
}
