//! Groups of calls that are completed or undone as a whole. The rules are in `rules::saga`.

mod compensating; // the marks on calls that are to be undone
mod ended; // completed and aborted, and acts of operators on stuck sagas
mod joining; // calls that join sagas, and whether they may be sent
mod members; // which calls a saga has
mod registry; // stored sagas, and the one way to change them
mod undo; // undoes the calls of a saga
mod worker; // works on due sagas

pub use self::ended::SagaAct;
pub use self::ended::Sagas;
pub use self::members::SagaAt;
pub use self::registry::SagaRegistry;
pub(super) use self::worker::SagaWorker;
