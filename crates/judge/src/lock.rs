//! An exclusive session: at most one of its calls is at the tool.

use todc_utils::Specification;

use crate::history::{Kind, Operation};

/// The specification.
pub(crate) struct LockSpec;

/// What may happen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LockOp {
    /// This call is at the tool.
    Taken(String),
    /// It no longer is.
    Freed(String),
}

impl LockSpec {
    /// What an operation of a history is.
    pub(crate) fn read(operation: &Operation<'_>) -> Result<Vec<LockOp>, String> {
        let holder = operation.asked.as_str().unwrap_or_default().to_owned();
        Ok(match (operation.f, operation.end) {
            ("take", Kind::Ok) => vec![LockOp::Taken(holder)],
            ("free", Kind::Ok) => vec![LockOp::Freed(holder)],
            ("take" | "free", _) => vec![],
            _ => return Err(format!("a lock does not know {operation:?}")),
        })
    }
}

impl Specification for LockSpec {
    /// Who holds it.
    type State = Option<String>;
    type Operation = LockOp;

    fn init() -> Option<String> {
        None
    }

    fn apply(operation: &LockOp, holder: &Option<String>) -> (bool, Option<String>) {
        match operation {
            LockOp::Taken(call) if holder.is_none() => (true, Some(call.clone())),
            LockOp::Freed(call) if holder.as_ref() == Some(call) => (true, None),
            LockOp::Taken(_) | LockOp::Freed(_) => (false, holder.clone()),
        }
    }
}
