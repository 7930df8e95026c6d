//! The shared store: one Redis (or the master of its sentinels, or a cluster), many gateways.
//!
//! Each verb that writes is one script, so it is one atomic step and one round trip. The gateway inspects the Redis every
//! second: how durable it is, and whether it still has what was written to it. While either is not as it should be, nothing
//! is claimed.
//!
//! ```
//! use oncegate_store_redis::Target;
//!
//! let target = Target::parse("redis+sentinel://gate:secret@s1:26379,s2:26379/main")?;
//! // The password is not shown.
//! assert!(!target.to_string().contains("secret"));
//! assert!(target.is_plain_and_remote());
//! # Ok::<(), String>(())
//! ```

mod calls; // claims, changes, and finding calls that need work
mod checks; // what is inspected, and when
mod document; // documents
mod keys; // names of keys
mod link; // the connection
mod loss; // whether the store has lost data
mod operators; // what operators see and do
mod scripts; // one per verb
mod server; // the connection, the scripts and what is known of their Redis
mod store; // the parts, opened together
mod target; // the address of a Redis, and the demands on it

pub use self::loss::abilities::{Ability, Sharing};
pub use self::loss::format::{FORMAT, STEPS, Step};
pub use self::loss::move_on::Standing;
pub use self::store::Redis;
pub use self::target::{Settings, Target};
