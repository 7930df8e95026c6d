//! Recovery: lost owners, unknown calls, lost data, and cleanup.

mod loss; // a store that has lost data
mod lost; // calls whose owner is gone
mod prune; // deletes records whose retention is over
mod rechecks; // unknown calls are resolved

pub use self::loss::{AFTER_LOSS, LossAcceptance};
pub use self::lost::LostCalls;
pub(super) use self::prune::prune_all;
pub(super) use self::rechecks::Probed;
pub use self::rechecks::Rechecks;
