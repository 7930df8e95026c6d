//! oncegate: an HTTP gateway in front of side-effecting tools that turns "the agent may call this
//! twice" into "the effect happens at most once, and everyone gets the same answer".
//!
//! The rooms. Which may import from which: ARCHITECTURE.md, held by `tests/it/house.rs`.

// The simulation uses the store of `tests/it`, which names this crate.
#[cfg(test)]
extern crate self as oncegate;

/// The rules.
pub use oncegate_rules as core;

pub mod app; // build the parts, then run them
pub mod budget; // memory: which bytes are held, and on whose account
pub mod config; // what an operator wrote
pub mod crash; // where a test lets the process end
pub mod downstream; // one HTTP request to one tool
pub mod gateway; // the use cases
pub mod http; // the wire
pub mod import; // descriptions of APIs as tools
pub mod metrics; // what is counted
#[cfg(test)]
mod seed; // time and numbers of a simulation
pub mod serve; // connections
#[cfg(test)]
mod sim; // the gateway's real code, simulated
pub mod store; // where records are kept
pub mod telemetry; // where log lines and spans go
pub mod uptime; // a clock that counts suspension
