//! oncegate: an HTTP gateway in front of side-effecting tools that turns "the agent may call this
//! twice" into "the effect happens at most once, and everyone gets the same answer".
//!
//! The rooms. Which may import from which: ARCHITECTURE.md, held by `tests/it/house.rs`.
//!
//! `--cfg core_only` builds the rules alone: `make mutants` does so thousands of times.

// The simulation uses the store of `tests/it`, which names this crate.
#[cfg(test)]
#[cfg(not(core_only))]
extern crate self as oncegate;

#[cfg(not(core_only))]
pub mod app; // build the parts, then run them
#[cfg(not(core_only))]
pub mod budget; // memory: which bytes are held, and on whose account
#[cfg(not(core_only))]
pub mod config; // what an operator wrote
pub mod core; // the rules
#[cfg(not(core_only))]
pub mod crash; // where a test lets the process end
#[cfg(not(core_only))]
pub mod downstream; // one HTTP request to one tool
#[cfg(test)]
mod explore; // the promise, explored over the rules
#[cfg(test)]
mod fuzz; // inputs that change at random
#[cfg(not(core_only))]
pub mod gateway; // the use cases
#[cfg(not(core_only))]
pub mod http; // the wire
#[cfg(not(core_only))]
pub mod import; // descriptions of APIs as tools
#[cfg(not(core_only))]
pub mod metrics; // what is counted
#[cfg(test)]
#[cfg(not(core_only))]
mod seed; // time and numbers of a simulation
#[cfg(not(core_only))]
pub mod serve; // connections
#[cfg(test)]
#[cfg(not(core_only))]
mod sim; // the gateway's real code, simulated
#[cfg(not(core_only))]
pub mod store; // where records are kept
#[cfg(not(core_only))]
pub mod telemetry; // where log lines and spans go
#[cfg(not(core_only))]
pub mod uptime; // a clock that counts suspension
