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
            ("bring", _) => vec![],
            _ => return Err(format!("a session does not know {operation:?}")),
        })
    }
}

impl Specification for TokenSpec {
    /// The newest token that was seen, and whether newer ones may have been drawn, by any number of calls.
    type State = (u64, bool);
    type Operation = TokenOp;

    fn init() -> (u64, bool) {
        (0, false)
    }

    fn apply(operation: &TokenOp, state: &(u64, bool)) -> (bool, (u64, bool)) {
        let (newest, is_past) = *state;
        match operation {
            TokenOp::Drawn(token) if *token > newest => (true, (*token, is_past)),
            TokenOp::Drawn(_) => (false, *state),
            TokenOp::Shared(token) => (*token == newest, *state),
            TokenOp::Stale(token) => (*token < newest || *token == newest && is_past, *state),
            TokenOp::Unseen => (true, (newest, true)),
        }
    }
}
