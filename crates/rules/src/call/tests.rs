//! Calls and events for the tests of the states of a call.

mod adopt;
mod again;
mod approve;
mod asked_at_claim;
mod equal;
mod erase;
mod expire;
mod grid;
mod old;
mod promise;
mod remote;
mod rest;
mod run;
mod similar;
mod undo;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::actor::By;
use crate::key::Lookup;
use crate::mcp::remote::Seen;
use crate::outcome::{self, Evidence};
use crate::position::Position;
use crate::record::{CallId, Compensation, Content, Failure, FailureKind, Intent};
use crate::replay::Fresh;
use crate::session::Preconditions;
use crate::testing::*;
use crate::tool::{Dedup, Effect, Mcp, Mode, OnUnknown, Protocol, SessionPolicy};
use crate::unknown::{CheckBlocker, Finding, Resolution};
use crate::{compensation, key, unknown};

fn answer(status: u16) -> Evidence {
    Evidence::Answer {
        status,
        body: outcome::Body::Whole("{}".into()),
        retry_after: None,
        newest_token: None,
    }
}

fn no_answer() -> Evidence {
    Evidence::NoAnswer {
        why: "timed out".into(),
    }
}

/// One cell: the action and the new state, or the refusal.
fn cell(tool: &Tool, record: Option<&Record>, event: &Event, seconds: i64) -> String {
    match next(tool, record, event, at(seconds)) {
        Err(illegal) => format!("({illegal:?})"),
        Ok(Next {
            change: None,
            action,
        }) => format!("{action:?}"),
        Ok(Next {
            change: Some(change),
            action,
        }) => {
            let is_first = change.record.version == 1;
            let replaces = action == Action::Claim || action == Action::Propose && is_first;
            let before = record.filter(|_| !replaces);
            let version = before.map_or(0, |record| record.version);
            assert_eq!(
                (change.record.version, change.record.updated_at),
                (version + 1, at(seconds)),
                "{event:?}"
            );
            let action = match action {
                Action::Claim if record.is_some() => "Claim instead".to_owned(),
                Action::Propose if record.is_some() && is_first => "Propose instead".to_owned(),
                Action::Retry { after } => format!("Retry in {after:?}"),
                action => format!("{action:?}"),
            };
            format!("{action} -> {}", change.record.state.as_str())
        }
    }
}

fn store_lost() -> Event {
    Event::StoreLost {
        by: By::token("ops", "an older snapshot"),
        whole_until: None,
    }
}

fn unlocked() -> Event {
    Event::Unlocked {
        by: By::token("ops", "it hangs"),
        fencing: None,
    }
}

fn stored() -> Content {
    Content::Stored("{}".into())
}

fn found() -> Finding {
    Finding::Found(stored())
}

fn probed(finding: Finding) -> Event {
    probed_at(finding, i64::MAX)
}

/// A probe asked at this second, if that is not later than its answer.
fn probed_at(finding: Finding, seconds: i64) -> Event {
    let asked_at = Timestamp::from_second(1_800_000_000_i64.saturating_add(seconds));
    Event::Probed(Probed {
        by: ME,
        asked_at: asked_at.unwrap_or(Timestamp::MAX),
        finding,
        retry_after: None,
    })
}

fn probe_asked() -> Event {
    Event::ProbeAsked(By::token("ops", "it waits"))
}

fn postponed(blocker: CheckBlocker) -> Event {
    Event::CheckPostponed { by: ME, blocker }
}

fn resolved(resolution: Resolution) -> Event {
    Event::Resolved {
        by: By::token("ops", "looked it up"),
        resolution,
    }
}

fn to_verify() -> Event {
    Event::ToVerify {
        by: "ops".into(),
        by_operator: false,
    }
}

/// A request with another key looks like the call.
fn resembled(fingerprint: u8) -> Event {
    let intent = Intent {
        lookup: Lookup::new("shop", "t", "k2"),
        ..(*intent(key::Source::Derived, fingerprint)).clone()
    };
    Event::Resembled(Resembled {
        intent: Arc::new(intent),
        replaced: Vec::new(),
        by: ME,
    })
}

fn verified() -> Event {
    Event::Verified {
        by: "ops".into(),
        fresh: Fresh::Compared(vec!["/a".into()]),
    }
}

fn cancel(undoes_unknown: bool) -> compensation::Policy {
    compensation::Policy::By(compensation::Template {
        tool: "cancel".into(),
        args: Vec::new(),
        undoes_unknown,
    })
}

fn to_compensate() -> Event {
    let compensation = Some(Compensation {
        tool: "cancel".into(),
        call_id: CallId(Uuid::from_u128(0xcace1)),
    });
    Event::ToCompensate {
        by: By::new("gateway", "aborted"),
        compensation,
    }
}

fn not_joined(kind: FailureKind) -> Event {
    Event::NotJoined {
        by: ME,
        attempt: attempt(1),
        why: Failure::new(kind, "it is aborted"),
    }
}

fn erased() -> Event {
    Event::Erased {
        by: By::token("ops", ""),
    }
}

fn undo_ended(end: UndoEnd) -> Event {
    Event::UndoEnded { by: ME, end }
}

fn is_stuck() -> Event {
    undo_ended(UndoEnd::Stuck("cancel says no".into()))
}

fn skipped(compensation: Option<&Record>) -> Event {
    let compensation = compensation.cloned().map(Box::new);
    Event::Skipped {
        by: By::token("ops", "it stays"),
        compensation,
    }
}
