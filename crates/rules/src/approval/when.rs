//! The conditions of approval. Arguments that they cannot judge need it.

use std::fmt;

use serde_json::{Number, Value};

use crate::key::Pointer;

/// When a call needs approval.
#[derive(Debug, Clone, PartialEq)]
pub enum When {
    Always,
    /// The number there is above this one, or there is no number.
    Above {
        pointer: Pointer,
        above: Number,
    },
    /// The value there is one of these, or there is no single value.
    In {
        pointer: Pointer,
        values: Vec<Value>,
    },
    /// The value there is not one of these, or there is none.
    NotIn {
        pointer: Pointer,
        values: Vec<Value>,
    },
    /// An earlier call looks the same: see `Tool::similar`. The claim finds it.
    Similar,
    /// The tool's budget is used up. The claim finds it.
    OverBudget,
}

impl When {
    /// Why these arguments need approval; `None`: this condition does not ask about arguments.
    pub fn asks(&self, args: &Value) -> Option<String> {
        let found = |pointer: &Pointer| args.pointer(pointer.as_str());
        match self {
            Self::Always => Some("every call of this tool needs approval".into()),
            Self::Above { pointer, above } => match found(pointer) {
                Some(Value::Number(number)) if is_surely_at_most(number, above) => None,
                Some(Value::Number(_)) => Some(format!("{} is above {above}", pointer.as_str())),
                _ => Some(format!("{} is not a number", pointer.as_str())),
            },
            Self::In { pointer, values } => match found(pointer) {
                None => Some(format!("{} is missing", pointer.as_str())),
                Some(Value::Array(_) | Value::Object(_)) => {
                    Some(format!("{} is not a single value", pointer.as_str()))
                }
                Some(value) => values
                    .iter()
                    .any(|one| may_equal(one, value))
                    .then(|| format!("{} is one of the listed values", pointer.as_str())),
            },
            Self::NotIn { pointer, values } => match found(pointer) {
                None => Some(format!("{} is missing", pointer.as_str())),
                Some(value) => (!values.contains(value))
                    .then(|| format!("{} is not one of the listed values", pointer.as_str())),
            },
            Self::Similar | Self::OverBudget => None,
        }
    }
}

/// Whether a number is surely not above another one.
///
/// Whole numbers are compared exactly. Others are rounded first, so that equal ones prove nothing.
fn is_surely_at_most(number: &Number, above: &Number) -> bool {
    if let (Some(number), Some(above)) = (whole(number), whole(above)) {
        return number <= above;
    }
    match (number.as_f64(), above.as_f64()) {
        (Some(number), Some(above)) => number.is_finite() && number < above,
        _ => false,
    }
}

fn whole(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// Whether a tool may take two values for the same: `1` and `1.0` are.
fn may_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.as_f64() == other.as_f64())
        }
        (one, other) => one == other,
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &[Value]| Value::from(values.to_vec()).to_string();
        match self {
            Self::Always => f.write_str("always"),
            Self::Similar => f.write_str("similar"),
            Self::OverBudget => f.write_str("over_budget"),
            Self::Above { pointer, above } => write!(f, "{} above {above}", pointer.as_str()),
            Self::In { pointer, values } => write!(f, "{} in {}", pointer.as_str(), list(values)),
            Self::NotIn { pointer, values } => {
                write!(f, "{} not_in {}", pointer.as_str(), list(values))
            }
        }
    }
}
