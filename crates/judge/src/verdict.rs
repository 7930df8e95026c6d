//! The division of a history into objects, each of which is judged alone.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use todc_utils::{Action, History, Specification, WGLChecker};

use crate::call::CallSpec;
use crate::history::{Event, Kind, Operation};
use crate::lock::LockSpec;
use crate::saga::SagaSpec;
use crate::token::TokenSpec;

/// An object that is not linearizable.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// Which one.
    pub(crate) key: String,
    /// Its shortest history that is wrong: the last event shows it.
    pub(crate) events: Vec<Event>,
}

/// What was found in a history.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    /// How many objects were judged.
    pub(crate) objects: usize,
    /// How many operations they had.
    pub(crate) operations: usize,
    /// The objects that are wrong.
    pub(crate) wrong: Vec<Finding>,
}

/// Judges each object of a history.
pub(crate) fn judge(events: &[Event]) -> Result<Verdict, String> {
    let mut objects: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        objects.entry(&event.key).or_default().push(event);
    }
    let mut verdict = Verdict::default();
    for (key, mut events) in objects {
        // A sort that keeps the order of equal times.
        events.sort_by_key(|event| event.time);
        verdict.objects += 1;
        verdict.operations += events.iter().filter(|e| e.kind == Kind::Invoke).count();
        if is_right(key, &events)? {
            continue;
        }
        let mut shortest = events.len();
        while shortest > 1 && !is_right(key, &events[..shortest - 1])? {
            shortest -= 1;
        }
        verdict.wrong.push(Finding {
            key: key.to_owned(),
            events: events[..shortest].iter().copied().cloned().collect(),
        });
    }
    Ok(verdict)
}

fn is_right(key: &str, events: &[&Event]) -> Result<bool, String> {
    match key.split_once('/').map(|(kind, _)| kind) {
        Some("call") => is_linearizable::<CallSpec>(events, CallSpec::read),
        Some("token") => is_linearizable::<TokenSpec>(events, TokenSpec::read),
        Some("lock") => is_linearizable::<LockSpec>(events, LockSpec::read),
        Some("saga") => is_linearizable::<SagaSpec>(events, SagaSpec::read),
        _ => Err(format!("there is no object of this kind: {key}")),
    }
}

/// Hands the history of one object to the checker. `read` says which operations of the object's specification an
/// operation is; each has the same begin and end.
fn is_linearizable<S: Specification<Operation: PartialEq>>(
    events: &[&Event],
    read: impl Fn(&Operation<'_>) -> Result<Vec<S::Operation>, String>,
) -> Result<bool, String> {
    // The place of each begin, and of the end that belongs to it.
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        if event.kind == Kind::Invoke {
            if begun.insert(&event.process, at).is_some() {
                return Err(format!("{} does two things at once", event.process));
            }
        } else {
            let Some(begin) = begun.remove(event.process.as_str()) else {
                return Err(format!("{} ends what it has not begun", event.process));
            };
            ends.insert(begin, at);
        }
    }
    // The checker knows no open ends: what is not known ends after everything else. Of equal operations without an end the
    // first stands for all, because each specification takes it for any number of them. Otherwise the checker would try
    // every set of them.
    let (mut actions, mut open) = (Vec::new(), Vec::new());
    for (begin, event) in events.iter().enumerate() {
        if event.kind != Kind::Invoke {
            continue;
        }
        let end = ends.get(&begin).map(|at| (*at, events[*at]));
        let operations = read(&Operation {
            f: &event.f,
            asked: &event.value,
            end: end.map_or(Kind::Info, |(_, event)| event.kind),
            answer: end.map_or(&Value::Null, |(_, event)| &event.value),
        })?;
        for operation in operations {
            let is_open = end.is_none_or(|(_, event)| event.kind == Kind::Info);
            if is_open && open.contains(&operation) {
                continue;
            }
            if is_open {
                open.push(operation.clone());
            }
            let ends_at = end.filter(|_| !is_open).map_or(usize::MAX, |(at, _)| at);
            actions.push((begin, false, operation.clone()));
            actions.push((ends_at, true, operation));
        }
    }
    if actions.is_empty() {
        return Ok(true);
    }
    // Each operation is a process of its own for the checker: it pairs begins and ends of a process in their order.
    let mut numbered: Vec<_> = actions
        .into_iter()
        .enumerate()
        .map(|(n, (at, is_end, operation))| (at, n / 2, is_end, operation))
        .collect();
    numbered.sort_by_key(|(at, ..)| *at);
    let actions = numbered.into_iter().map(|(_, process, is_end, operation)| {
        let action = if is_end {
            Action::Response(operation)
        } else {
            Action::Call(operation)
        };
        (process, action)
    });
    Ok(WGLChecker::<S>::is_linearizable(History::from_actions(
        actions.collect(),
    )))
}
