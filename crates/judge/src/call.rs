//! A call, as the promise has it: absent, or executed once with one result.

use std::collections::BTreeSet;

use todc_utils::Specification;

use crate::history::{Kind, Operation};

/// The specification.
pub(crate) struct CallSpec;

/// What may happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallOp {
    /// The tool takes effect, and makes this result.
    Effect(String),
    /// The tool answers by what it has made for the same key before.
    Found(String),
    /// A caller is told that it was executed, with this result.
    AnsweredDone(String),
    /// A caller is told that it was executed, and that its result is not to be had.
    AnsweredSome,
    /// A caller is told that nothing was executed.
    AnsweredNone,
    /// A caller is told that the outcome is unknown.
    AnsweredUnknown,
    /// The store may have older data from now on.
    SetBack,
    /// An operator has accepted that it has lost data.
    Forgotten,
}

/// What is so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct CallState {
    /// The result of the effect, as the store knows it.
    effect: Option<String>,
    /// The results of all effects, also of those that the store has lost.
    made: BTreeSet<String>,
    /// Whether there was an effect since the last loss that was accepted.
    is_made: bool,
    /// Whether a caller was told of it.
    is_answered: bool,
    /// Whether it is not known which of these the store knows: its data are older.
    is_older: bool,
    /// Whether an operator has not accepted that yet. Nothing may run.
    is_closed: bool,
}

impl CallSpec {
    /// What an operation of a history is.
    pub(crate) fn read(operation: &Operation<'_>) -> Result<Vec<CallOp>, String> {
        let result = || {
            let answer = operation.answer.as_str();
            answer
                .map(str::to_owned)
                .ok_or(format!("no result: {operation:?}"))
        };
        Ok(match (operation.f, operation.end) {
            ("effect", Kind::Ok) => vec![CallOp::Effect(result()?)],
            ("find", Kind::Ok) => vec![CallOp::Found(result()?)],
            ("ask", Kind::Ok) if operation.answer.is_null() => vec![CallOp::AnsweredSome],
            ("ask", Kind::Ok) => vec![CallOp::AnsweredDone(result()?)],
            ("ask", Kind::Fail) => vec![CallOp::AnsweredNone],
            ("unsure", Kind::Ok) => vec![CallOp::AnsweredUnknown],
            ("set back", Kind::Ok) => vec![CallOp::SetBack],
            ("forget", Kind::Ok) => vec![CallOp::Forgotten],
            // What is not known may have been anything, and changes nothing by itself: the effect is an operation of the tool.
            ("ask" | "effect" | "find" | "unsure" | "set back" | "forget", _) => vec![],
            _ => return Err(format!("a call does not know {operation:?}")),
        })
    }
}

impl Specification for CallSpec {
    type State = CallState;
    type Operation = CallOp;

    fn init() -> CallState {
        CallState::default()
    }

    fn apply(operation: &CallOp, state: &CallState) -> (bool, CallState) {
        let mut next = state.clone();
        let is_valid = match operation {
            CallOp::Effect(result) => {
                next.effect = Some(result.clone());
                next.made.insert(result.clone());
                (next.is_answered, next.is_older, next.is_made) = (false, false, true);
                let is_free = state.effect.is_none() || state.is_older;
                is_free && (state.made.is_empty() || !state.is_closed)
            }
            CallOp::Found(result) => {
                next.effect = Some(result.clone());
                state.made.contains(result)
            }
            CallOp::AnsweredDone(result) => {
                next.effect = Some(result.clone());
                // Two gateways may know different things, until the loss is accepted.
                (next.is_answered, next.is_older) = (!state.is_closed, state.is_closed);
                next.is_made = true;
                state.effect.as_ref() == Some(result)
                    || state.is_older && state.made.contains(result)
            }
            CallOp::AnsweredSome => {
                state.effect.is_some() || state.is_older && !state.made.is_empty()
            }
            CallOp::AnsweredNone => {
                (next.effect, next.is_older) = (None, state.is_closed);
                // Before an operator has accepted the loss, missing data do not explain it.
                let is_made = state.is_closed && state.is_made;
                (state.effect.is_none() || state.is_older) && !is_made
            }
            CallOp::AnsweredUnknown => !state.is_answered,
            CallOp::SetBack => {
                (next.is_older, next.is_closed, next.is_answered) = (true, true, false);
                true
            }
            CallOp::Forgotten => {
                (next.is_older, next.is_closed, next.is_answered) = (true, false, false);
                next.is_made = false;
                true
            }
        };
        let next = if is_valid { next } else { state.clone() };
        (is_valid, next)
    }
}
