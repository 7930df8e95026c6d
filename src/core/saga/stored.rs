//! A saga as a document.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Saga, SagaId, State, Trouble};
use crate::core::document::{Document, Kind};
use crate::core::record::{CallId, Entry};

/// What a document does not have itself. Times are microseconds since 1970 in UTC.
#[derive(Serialize, Deserialize)]
struct Body {
    begun_by: String,
    only: Option<Uuid>,
    reason: String,
    trouble: Option<(Option<Uuid>, String)>,
    tries: u32,
    waits: u32,
    at_rest: bool,
    looks_on: bool,
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
    /// As a store keeps it.
    pub fn to_document(&self) -> Document {
        let line = |entry: &Entry| Line {
            at: entry.at.as_microsecond(),
            event: entry.event.clone().into_owned(),
            by: entry.by.clone(),
            detail: entry.detail.clone(),
        };
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
            tries: self.tries,
            waits: self.waits,
            at_rest: self.at_rest,
            looks_on: self.looks_on,
            was_open: self.was_open,
            is_taken: self.is_taken,
            overdue: self.overdue,
            to_tell: self.to_tell,
            tellings: self.tellings,
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
            state: self.state.as_str().to_owned(),
            created_at: self.created_at,
            due_at: self.due_at,
            retain_until: self.retain_until,
            body: body.into(),
        }
    }

    /// As it was kept.
    ///
    /// # Errors
    /// This was never written; it is never taken for an absent one.
    pub fn from_document(document: &Document) -> Result<Self, String> {
        let body: Body =
            serde_json::from_slice(&document.body).map_err(|error| error.to_string())?;
        let state = State::ALL
            .into_iter()
            .find(|state| state.as_str() == document.state);
        let entry = |line: Line| {
            let (event, outcome) = (Cow::Owned(line.event), None);
            Ok(Entry {
                at: time(line.at)?,
                event,
                attempt: None,
                outcome,
                by: line.by,
                detail: line.detail,
            })
        };
        Ok(Self {
            id: SagaId {
                tenant: document.tenant.clone(),
                id: document.id.clone(),
            },
            version: document.version,
            state: state.ok_or_else(|| format!("there is no state {:?}", document.state))?,
            begun_by: body.begun_by,
            only: body.only.map(CallId),
            reason: body.reason,
            trouble: body.trouble.map(|(call_id, why)| Trouble {
                call_id: call_id.map(CallId),
                why,
            }),
            tries: body.tries,
            waits: body.waits,
            at_rest: body.at_rest,
            looks_on: body.looks_on,
            was_open: body.was_open,
            is_taken: body.is_taken,
            overdue: body.overdue,
            to_tell: body.to_tell,
            tellings: body.tellings,
            created_at: document.created_at,
            deadline: body.deadline.map(time).transpose()?,
            updated_at: time(body.updated_at)?,
            due_at: document.due_at,
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
