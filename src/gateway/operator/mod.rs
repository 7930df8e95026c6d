//! Questions and acts of persons.

mod calls; // resolve, replay, verify
mod ledger; // what is known of calls
mod sessions; // unlock, freeze, thaw

pub(super) use self::calls::Operator;
pub use self::calls::Replay;
pub(super) use self::ledger::Ledger;
pub use self::ledger::{AuditQuery, Query};
pub use self::sessions::SessionQuery;
pub(super) use self::sessions::Sessions;
