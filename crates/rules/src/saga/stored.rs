//! A saga as a document.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Phase, Saga, SagaId, State, Trouble};
use crate::document::{self, Document, Kind};
use crate::record::{CallId, Entry};
use crate::time::micros;
use crate::work::{Due, Work};

/// The fields of a saga that a [`Document`] has no field for.
///
/// It is a struct of its own, and [`Saga`] derives nothing: phase and due time are spread over columns and members, and
/// the compiler asks for each member both when it is written and when it is read.
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
    #[serde(with = "micros::optional", default)]
    deadline: Option<Timestamp>,
    #[serde(with = "micros")]
    updated_at: Timestamp,
    events: Vec<Line>,
}

/// An entry of the history, which has no attempt.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(with = "micros")]
    at: Timestamp,
    event: String,
    by: String,
    detail: String,
}

impl Saga {
    /// The saga as a document.
    pub fn to_document(&self) -> Document {
        let line = |entry: &Entry| Line {
            at: entry.at,
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
            deadline: self.deadline,
            updated_at: self.updated_at,
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
        let entry = |line: Line| Entry::new(line.at, line.event, line.by, line.detail);
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
            deadline: body.deadline,
            updated_at: body.updated_at,
            retain_until: document.retain_until,
            events: body.events.into_iter().map(entry).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    /// A saga of each kind, with every field set at least once.
    fn sagas() -> Vec<Saga> {
        let call_id = CallId(Uuid::from_u128(0xca11));
        let plain = |phase| Saga {
            id: SagaId::new("shop", "G"),
            version: 1,
            phase,
            begun_by: String::new(),
            only: None,
            reason: String::new(),
            trouble: None,
            work: Work {
                due: Due::Never,
                tries: 0,
                waits: 0,
            },
            overdue: false,
            telling: None,
            created_at: at(0),
            deadline: None,
            updated_at: at(1),
            retain_until: None,
            events: Vec::new(),
        };
        let stuck = |at_rest, is_transient| Phase::Stuck {
            at_rest,
            is_transient,
        };
        let phases = [
            Phase::Open,
            Phase::Completed,
            Phase::Compensating { at_rest: false },
            Phase::Compensating { at_rest: true },
            Phase::Compensated,
            stuck(false, false),
            stuck(false, true),
            stuck(true, false),
            stuck(true, true),
            Phase::OpenAtLoss,
        ];
        let mut all: Vec<Saga> = phases.into_iter().map(plain).collect();
        let micros = Timestamp::from_microsecond(1_800_000_002_000_003).expect("a time");
        let work = |due, tries, waits| Work { due, tries, waits };
        all.push(Saga {
            version: 7,
            begun_by: "agent".into(),
            only: Some(call_id),
            reason: "sold \"out\"".into(),
            trouble: Some(Trouble {
                call_id: Some(call_id),
                why: "no".into(),
            }),
            work: work(Due::Taken { until: micros }, 2, 3),
            overdue: true,
            telling: Some(0),
            deadline: Some(micros),
            updated_at: micros,
            retain_until: Some(at(9)),
            events: vec![
                Entry::new(at(0), "begun", "gateway", "the first call of the saga"),
                Entry::new(micros, "aborted", "token ops", "sold \"out\""),
            ],
            ..plain(stuck(true, false))
        });
        all.push(Saga {
            trouble: Some(Trouble {
                call_id: None,
                why: "the saga's own".into(),
            }),
            work: work(Due::At(at(5)), 0, 720),
            telling: Some(4),
            ..plain(stuck(false, true))
        });
        all
    }

    #[test]
    fn the_bytes_of_each_kind_of_saga_are_pinned() {
        let mut bytes = String::new();
        for saga in sagas() {
            let document = saga.to_document();
            let read = Saga::from_document(&document).expect("it was written so");
            assert_eq!(read, saga);
            let body = String::from_utf8(document.body.to_vec()).expect("text");
            let columns = (&document.state, document.due_at, document.retain_until);
            bytes += &format!("{:?}, {columns:?}\n  {body}\n", saga.phase);
        }
        insta::assert_snapshot!("bytes", bytes);
    }

    #[test]
    fn a_document_with_a_member_missing_or_a_time_out_of_range_is_not_a_saga() {
        let document = sagas()[10].to_document();
        let body: serde_json::Value = document.read().expect("JSON");
        let members = body.as_object().expect("an object");
        let with = |body: &serde_json::Map<String, serde_json::Value>| {
            Saga::from_document(&Document {
                body: document::body(body),
                ..document.clone()
            })
        };
        assert!(with(members).is_ok());
        for name in members.keys().filter(|name| !members[*name].is_null()) {
            let mut less = members.clone();
            less.remove(name);
            // What may be absent reads as absent, everything else is an error.
            let may_lack = ["only", "trouble", "deadline"].contains(&name.as_str());
            assert_eq!(with(&less).is_ok(), may_lack, "{name}");
        }
        for name in ["deadline", "updated_at"] {
            let mut late = members.clone();
            late.insert(name.to_owned(), i64::MAX.into());
            assert!(with(&late).is_err(), "{name}");
        }
    }
}
