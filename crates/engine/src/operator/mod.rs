//! Questions and acts of operators.

mod calls; // settle a call, or ask its tool
mod erasures; // users whose data is erased
mod feed; // events in the order in which they were written
mod ledger; // questions about calls and acts
mod many; // acts on many calls or sagas at once
mod report; // what such an act reports
mod sessions; // unlock, freeze, thaw
mod targets; // the calls or sagas that such an act changes
mod verify; // replay a stored result, and compare it with a fresh one

pub use self::calls::CallAct;
pub(super) use self::calls::Operator;
pub use self::erasures::Erasures;
pub use self::feed::{FeedEvent, FeedPage, FeedQuery};
pub(super) use self::ledger::Ledger;
pub use self::report::{Line, LineOf, Report, Reports, Totals};
pub use self::sessions::SessionFilter;
pub(super) use self::sessions::Sessions;
pub use self::targets::{DryRun, Many};
pub use self::verify::Replay;
