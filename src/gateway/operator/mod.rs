//! Questions and acts of persons.

mod calls; // resolve, replay, verify
mod ledger; // what is known of calls
mod many; // acts on many calls or sagas at once
mod report; // what such an act reports
mod sessions; // unlock, freeze, thaw
mod targets; // what such an act is done to

pub(super) use self::calls::Operator;
pub use self::calls::Replay;
pub(super) use self::ledger::Ledger;
pub use self::ledger::{AuditQuery, Query};
pub(super) use self::many::ManyActs;
pub use self::report::{Line, LineOf, Report, Reports, Totals};
pub use self::sessions::SessionQuery;
pub(super) use self::sessions::Sessions;
pub(super) use self::targets::Finder;
pub use self::targets::{CallAct, DryRun, Many};
