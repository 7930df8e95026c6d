//! What an abandoned plan has done is undone.

pub mod chaos; // whatever goes wrong: sagas come to their end, each thing done and undone once
pub mod losses; // an older copy of the store undoes nothing
pub mod operators; // what operators do about sagas
#[cfg(feature = "crash-points")]
pub mod points; // the process ends where it hurts a saga
pub mod restores; // a store is restored while sagas are open
pub mod scopes; // who may complete, abort and look at a saga
pub mod sizes; // thousands of calls, and many sagas that cannot be read
pub mod store; // each operation of the store fails once in the life of a saga
pub mod stuck; // sagas that are stuck: who is told, and how they go on
pub mod undone; // what an abandoned plan has done is undone
