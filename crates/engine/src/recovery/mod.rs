//! Recovery: lost owners, unknown calls, lost data, and cleanup.

pub(crate) mod acceptance; // how far the acceptance of a loss is
mod expiry; // arguments and results whose time is over
mod loss; // a store that has lost data
mod lost; // calls whose owner is gone
mod prune; // deletes records whose retention is over
mod rechecks; // unknown calls are resolved

pub use self::expiry::{Expiry, RetentionCounts};
pub use self::loss::{AFTER_LOSS, LossAcceptance};
pub use self::lost::LostCalls;
pub(super) use self::prune::prune_all;
pub(super) use self::rechecks::Probed;
pub use self::rechecks::Rechecks;
