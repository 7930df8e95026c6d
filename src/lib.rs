//! oncegate: an HTTP gateway in front of side-effecting tools that turns "the agent may call this
//! twice" into "the effect happens at most once, and everyone gets the same answer".
//!
//! The parts. Which may import from which: ARCHITECTURE.md, held by `tests/it/house/rooms.rs`.

// The simulation uses the store of `tests/it`, which names this crate.
#[cfg(test)]
extern crate self as oncegate;

pub use oncegate_budget as budget; // memory: which bytes are held, and on whose account
#[cfg(feature = "console")]
pub use oncegate_console as console; // pages for operators
pub use oncegate_engine as gateway; // the use cases
pub use oncegate_engine::metrics; // what is counted
pub use oncegate_hooks::crash; // where a test lets the process end
pub use oncegate_http as http; // the wire
#[cfg(feature = "import")]
pub use oncegate_import as import; // descriptions of APIs as tools
#[cfg(feature = "mcp")]
pub use oncegate_mcp as mcp; // clients that speak MCP
#[cfg(feature = "proxy")]
pub use oncegate_proxy as proxy; // APIs that callers use as they are
#[cfg(feature = "reconcile")]
pub use oncegate_reconcile as reconcile; // compares the ledger with the systems behind the tools
pub use oncegate_rules as core; // the rules
pub use oncegate_serve as serve; // connections
pub use oncegate_tools as downstream; // one HTTP request to one tool
#[cfg(feature = "trial")]
pub use oncegate_trial as trial; // a tool is asked what it does with a key

/// Where records are kept.
pub mod store {
    pub use oncegate_store::*;
    #[cfg(feature = "postgres")]
    pub use oncegate_store_postgres as postgres;
    #[cfg(feature = "redis")]
    pub use oncegate_store_redis as redis;
    #[cfg(feature = "sqlite")]
    pub use oncegate_store_sqlite as sqlite;
}

#[cfg(not(any(feature = "sqlite", feature = "redis", feature = "postgres")))]
compile_error!("a gateway needs a store: one of the features sqlite, redis and postgres, or full");

/// What an operator wrote.
pub mod config {
    pub use oncegate_settings::*;

    pub use crate::app::Config;
}

pub mod app; // build the parts, then run them
#[cfg(test)]
mod sim; // the gateway's real code, simulated
pub mod telemetry; // where log lines and spans go
