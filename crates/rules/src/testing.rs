//! Calls, tools and events for tests, of this crate and of others.
//!
//! Only with the feature `testing`.

#![allow(clippy::expect_used, reason = "only tests use it")]

use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

use crate::call::{Arrival, Change, Ended, Event, Retry, Takes, next};
use crate::caller::{Caller, Timings};
use crate::key::{self, Lookup};
use crate::outcome::{self, Evidence};
use crate::position::Position;
use crate::record::{AttemptId, CallId, Entry, InstanceId, Intent, Record, State};
use crate::request::Target;
use crate::schema::Schema;
use crate::session::{Preconditions, Release};
use crate::tool::{Http, Probe, Protocol, Tool};

/// The gateway of the events.
pub const ME: InstanceId = InstanceId(Uuid::from_u128(0xe));

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

pub fn attempt(number: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(number))
}

pub fn intent(source: key::Source, fingerprint: u8) -> Arc<Intent> {
    Arc::new(Intent {
        call_id: CallId(Uuid::from_u128(0xca11)),
        tenant: "shop".into(),
        tool: "t".into(),
        lookup: Lookup::new("shop", "t", "k"),
        lookups: Vec::new(),
        key_scheme: crate::key_scheme::KeySchemeId::default(),
        key: "k".into(),
        key_source: source,
        fingerprint: [fingerprint; 32],
        user_id: String::new(),
        session_id: "S".into(),
        saga_id: String::new(),
        trace_id: String::new(),
        made_by: "agent".into(),
        client_ids: String::new(),
        similar: None,
        args: "{}".into(),
        created_at: at(0),
    })
}

pub fn arrived(source: key::Source, fingerprint: u8, id: u128) -> Event {
    arrived_with(intent(source, fingerprint), id)
}

pub fn arrived_with(intent: Arc<Intent>, id: u128) -> Event {
    Event::Arrived(Arrival {
        intent,
        fingerprints: Arc::default(),
        preconditions: Preconditions::default(),
        attempt: attempt(id),
        owner: ME,
    })
}

pub fn not_sent() -> Evidence {
    Evidence::NotSent {
        why: "connection refused".into(),
    }
}

pub fn ended_with(id: u128, evidence: Evidence, retry: Option<u128>) -> Event {
    let retry = retry.map(|id| Retry {
        attempt: attempt(id),
        jitter: 1.0,
    });
    Event::Ended(Ended {
        attempt: attempt(id),
        fencing: None,
        evidence,
        retry,
    })
}

/// A call claimed at second 0 as attempt 1, after these events at their seconds.
pub fn record(tool: &Tool, source: key::Source, events: &[(Event, i64)]) -> Record {
    let mut record = moved(tool, None, &arrived(source, 1, 1), 0).expect("a claim");
    for (event, seconds) in events {
        record = moved(tool, Some(&record), event, *seconds).expect("a change");
    }
    record
}

pub fn moved(tool: &Tool, record: Option<&Record>, event: &Event, seconds: i64) -> Option<Record> {
    next(tool, record, event, at(seconds))
        .ok()?
        .change
        .map(|change| change.record)
}

/// A change that claims nothing but the call itself.
pub fn claim_of(record: Record) -> Change {
    let entry = Entry {
        at: record.attempt.run_started_at,
        event: "claimed".into(),
        attempt: None,
        outcome: None,
        by: String::new(),
        detail: String::new(),
    };
    Change {
        record,
        entry,
        admission: None,
        release: Release::default(),
        takes: Takes::default(),
        erases: None,
    }
}

/// A call that has succeeded with this result.
pub fn succeeded(result: &'static str) -> Record {
    let body = outcome::Body::Whole(result.into());
    let evidence = Evidence::Answer {
        status: 200,
        body,
        retry_after: None,
        newest_token: None,
    };
    record(
        &tool("t"),
        key::Source::Derived,
        &[(ended_with(1, evidence, None), 1)],
    )
}

/// A call that was not sent.
pub fn failed() -> State {
    record(
        &tool("t"),
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    )
    .state
}

/// A write tool with every default.
pub fn tool(name: &str) -> Tool {
    Tool::new(name)
}

/// The protocol of an HTTP tool that is asked at a URL whether a call was executed, and where its answer has the effect.
pub fn probed_by(url: &str, found: Option<&str>) -> Protocol {
    let probe = Probe {
        target: Target::read(url).expect("a target"),
        found: found.map(|found| found.parse().expect("a pointer")),
        answers: false,
    };
    Protocol::Http(Http {
        request: None,
        probe: Some(probe),
    })
}

impl Tool {
    pub fn set_schema(&mut self, schema: Value) {
        self.schema = Some(Schema::new(schema).expect("a schema"));
    }
}

/// Few positions, so that some are the same.
pub fn positions() -> impl Strategy<Value = Position> {
    (0..50_i64, 0..8_u128).prop_map(|(time, id)| Position {
        created_at: Timestamp::from_microsecond(time).expect("a time"),
        id: Uuid::from_u128(id),
    })
}

/// A caller of one tenant, with these scopes.
pub fn caller(scopes: &[&str]) -> Caller {
    let scopes = scopes
        .iter()
        .map(|scope| scope.parse().expect("a scope"))
        .collect();
    Caller {
        name: "agents".into(),
        tenant: "shop".into(),
        scopes,
        timings: Timings::default(),
    }
}
