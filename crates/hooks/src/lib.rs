//! Places at which tests take hold of what a machine gives: crash points, time, random numbers.
//!
//! Without the features `crash-points` and `simulate` they are the machine's, and nothing more.
//!
//! ```
//! use oncegate_hooks::{crash, uptime};
//!
//! let began = uptime::since_boot();
//! // Nothing happens here, unless `FAILPOINTS` of a test build names the point.
//! crash::point("after_claim");
//! assert!(uptime::since_boot() >= began);
//! ```

pub mod crash; // where a test lets the process end
#[cfg(feature = "simulate")]
pub mod seed; // time and numbers of a simulation
pub mod uptime; // a clock that counts suspension
