//! Groups of calls that are completed or undone as a whole. The rules are in `core::saga`.

mod ended; // completed and aborted, and what persons do about one that is stuck
mod joining; // calls that join sagas, and whether they may be sent
mod marks; // the marks on calls that are to be undone
mod member; // a call of a saga as it is looked at
mod members; // which calls a saga has
mod registry; // as they are stored, and the one way to change them
mod undo; // what a saga has done is undone
mod worker; // sagas that are due

pub(super) use self::ended::Sagas;
pub use self::ended::{SagaAct, SagaQuery};
pub use self::members::SagaAt;
pub(super) use self::registry::SagaRegistry;
pub(super) use self::undo::Undoer;
pub(super) use self::worker::SagaWorker;
