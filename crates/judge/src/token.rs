//! The fencing tokens of one session: a register that only rises.

use todc_utils::Specification;

use crate::history::{Kind, Operation};

/// The specification.
pub(crate) struct TokenSpec;

/// What may happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TokenOp {
    /// A call draws a token of its own.
    Drawn(u64),
    /// A call brings the token, and is let in.
    Shared(u64),
    /// A call brings the token, and is told that it is stale.
    Stale(u64),
    /// Calls may draw tokens that are not seen, from now on.
    Unseen,
    /// An operator has accepted that the store has lost data.
    Lost,
}

impl TokenSpec {
    /// What an operation of a history is.
    pub(crate) fn read(operation: &Operation<'_>) -> Result<Vec<TokenOp>, String> {
        let number = |value: &serde_json::Value| {
            let number = value.as_u64().filter(|number| *number < 1 << 53);
            number.ok_or(format!("not a token: {operation:?}"))
        };
        Ok(match (operation.f, operation.end) {
            ("draw", Kind::Ok) => vec![TokenOp::Drawn(number(operation.answer)?)],
            ("bring", Kind::Ok) => {
                let shown = number(operation.asked)?;
                if number(operation.answer)? != shown {
                    return Err(format!("another token than was shown: {operation:?}"));
                }
                vec![TokenOp::Shared(shown)]
            }
            ("bring", Kind::Fail) => vec![TokenOp::Stale(number(operation.asked)?)],
            ("draw", _) => vec![TokenOp::Unseen],
            ("forget", Kind::Ok) => vec![TokenOp::Lost],
            ("bring" | "forget", _) => vec![],
            _ => return Err(format!("a session does not know {operation:?}")),
        })
    }
}

/// What is so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct TokenState {
    /// The newest token that was seen.
    newest: u64,
    /// Whether newer ones may have been drawn, by any number of calls.
    is_past: bool,
    /// Whether the store may have lost which one is the newest: then each earlier one may be taken for it.
    is_lost: bool,
}

impl Specification for TokenSpec {
    type State = TokenState;
    type Operation = TokenOp;

    fn init() -> TokenState {
        TokenState::default()
    }

    fn apply(operation: &TokenOp, state: &TokenState) -> (bool, TokenState) {
        let (newest, mut next) = (state.newest, state.clone());
        let is_valid = match operation {
            TokenOp::Drawn(token) => {
                (next.newest, next.is_lost) = (*token, false);
                *token > newest
            }
            TokenOp::Shared(token) => *token == newest || *token < newest && state.is_lost,
            TokenOp::Stale(token) => {
                let may_be_past = state.is_past || state.is_lost;
                *token < newest || *token == newest && may_be_past
            }
            TokenOp::Unseen => {
                next.is_past = true;
                true
            }
            TokenOp::Lost => {
                next.is_lost = true;
                true
            }
        };
        (is_valid, if is_valid { next } else { state.clone() })
    }
}
