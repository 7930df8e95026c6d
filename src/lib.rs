//! oncegate: an HTTP gateway in front of side-effecting tools that turns "the agent may call this
//! twice" into "the effect happens at most once, and everyone gets the same answer".
//!
//! The parts. Which may import from which: ARCHITECTURE.md, held by `tests/it/house.rs`.

// The simulation uses the store of `tests/it`, which names this crate.
#[cfg(test)]
extern crate self as oncegate;

pub use oncegate_budget as budget; // memory: which bytes are held, and on whose account
pub use oncegate_engine as gateway; // the use cases
pub use oncegate_engine::metrics; // what is counted
pub use oncegate_hooks::crash; // where a test lets the process end
pub use oncegate_http as http; // the wire
pub use oncegate_rules as core; // the rules
pub use oncegate_serve as serve; // connections
pub use oncegate_settings as config; // what an operator wrote
pub use oncegate_tools as downstream; // one HTTP request to one tool

/// Where records are kept.
pub mod store {
    pub use oncegate_store::*;
    pub use oncegate_store_redis as redis;
    pub use oncegate_store_sqlite as sqlite;
}

pub mod app; // build the parts, then run them
pub mod import; // descriptions of APIs as tools
#[cfg(test)]
mod sim; // the gateway's real code, simulated
pub mod telemetry; // where log lines and spans go
