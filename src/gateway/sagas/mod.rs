//! Groups of calls that are completed or undone as a whole. The rules are in `core::saga`.

mod ended; // completed and aborted, and what persons do about one that is stuck
mod member; // a call of a saga as it is looked at
mod members; // which calls a saga has
mod registry; // as they are stored

pub(super) use self::ended::Sagas;
pub(super) use self::member::{Member, Unlisted};
pub(super) use self::registry::{Marked, SagaRegistry};
pub use self::registry::{SagaAt, SagaQuery};
