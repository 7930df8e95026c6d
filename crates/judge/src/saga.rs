//! A saga: a set of what was done, which is kept as a whole or undone as a whole.

use std::collections::BTreeSet;

use serde_json::Value;
use todc_utils::Specification;

use crate::history::{Kind, Operation};

/// The specification.
pub(crate) struct SagaSpec;

/// What may happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SagaOp {
    /// A call takes effect.
    Done(String),
    /// What it did is undone. Those that began after it must be undone before.
    Undone { call: String, after: Vec<String> },
    /// It is to be undone.
    Aborted,
    /// It is to be kept.
    Completed,
    /// A caller is told this state.
    Answered(String),
}

/// What is so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct SagaState {
    done: BTreeSet<String>,
    undone: BTreeSet<String>,
    is_aborted: bool,
    is_completed: bool,
    /// A caller was told that it has been undone.
    is_over: bool,
}

impl SagaSpec {
    /// What an operation of a history is. An abort whose end is not known may happen.
    pub(crate) fn read(operation: &Operation<'_>) -> Result<Vec<SagaOp>, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(match (operation.f, operation.end) {
            ("do", Kind::Ok) => vec![SagaOp::Done(text(operation.asked))],
            ("undo", Kind::Ok) => {
                let after = operation.asked["after"].as_array();
                vec![SagaOp::Undone {
                    call: text(&operation.asked["call"]),
                    after: after.into_iter().flatten().map(text).collect(),
                }]
            }
            ("abort", Kind::Ok | Kind::Info) => vec![SagaOp::Aborted],
            ("complete", Kind::Ok | Kind::Info) => vec![SagaOp::Completed],
            ("look", Kind::Ok) => vec![SagaOp::Answered(text(operation.answer))],
            ("do" | "undo" | "abort" | "complete" | "look", _) => vec![],
            _ => return Err(format!("a saga does not know {operation:?}")),
        })
    }
}

impl Specification for SagaSpec {
    type State = SagaState;
    type Operation = SagaOp;

    fn init() -> SagaState {
        SagaState::default()
    }

    fn apply(operation: &SagaOp, state: &SagaState) -> (bool, SagaState) {
        let mut next = state.clone();
        let is_valid = match operation {
            SagaOp::Done(call) => {
                next.done.insert(call.clone()) && state.undone.is_empty() && !state.is_over
            }
            SagaOp::Undone { call, after } => {
                let is_next = after
                    .iter()
                    .all(|later| !state.done.contains(later) || state.undone.contains(later));
                let is_new = next.undone.insert(call.clone());
                is_new && is_next && state.is_aborted && state.done.contains(call)
            }
            // The later of the two changes nothing.
            SagaOp::Aborted => {
                next.is_aborted = !state.is_completed;
                true
            }
            SagaOp::Completed => {
                next.is_completed = !state.is_aborted;
                true
            }
            SagaOp::Answered(answer) => match answer.as_str() {
                "completed" => state.is_completed && state.undone.is_empty(),
                "compensated" => {
                    next.is_over = true;
                    state.is_aborted && state.done == state.undone
                }
                _ => !state.is_over,
            },
        };
        if is_valid {
            (true, next)
        } else {
            (false, state.clone())
        }
    }
}
