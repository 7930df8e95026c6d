//! The wire: parses requests and writes answers. It decides nothing.
//!
//! The key of a request's body, as `oncegate key` prints it:
//!
//! ```
//! use oncegate_http::dry_run;
//! use oncegate_rules::tool::Tool;
//!
//! let printed = dry_run(&Tool::new("ship"), br#"{ "args": { "order": 7 } }"#)?;
//! assert!(printed.starts_with(r#"{"tool":"ship","idempotency_key":"#));
//! assert!(dry_run(&Tool::new("ship"), b"[]").is_err());
//! # Ok::<(), String>(())
//! ```

mod audit; // the acts of operators
pub mod auth; // the caller, by its token
pub mod calls; // the main route: a call of a tool
mod events; // what happened to calls, for other systems
pub mod headers; // headers of requests and responses
pub mod host; // the host and the origin of a request
pub mod ledger; // one call, many calls, and acts on many
mod listener_layer; // what is done to every request of a listener
pub mod openapi; // the document of all routes
mod ops; // health, readiness, metrics
mod pages; // the welcome, and a page for each problem
pub mod parts; // a body of several buffers
pub mod problem; // every failure and its status, in one table
pub mod read; // paths, queries and bodies of requests
mod routes; // the routes of a listener, put together from those of the kernel and of wings
mod sagas; // groups of calls that are completed or undone as a whole
mod sessions; // sessions, and the acts of operators on them
pub mod tools; // the tools as callers and models see them, and their pauses

#[cfg(test)]
mod fuzz_tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::auth::Tokens;
pub use self::calls::dry_run;
pub use self::listener_layer::{EarlyRoute, ListenerLayer};
pub use self::ops::{Ops, ops_router, spare_router};
pub use self::routes::Routes;
pub use self::sagas::compensation;
use oncegate_engine::Gateway;

/// The state that handlers share.
#[derive(Clone)]
pub struct Http {
    pub gateway: Arc<Gateway>,
    /// Empty: open mode, which the configuration allows on loopback only.
    pub tokens: Tokens,
    pub max_body: MaxBody,
    pub ops: Ops,
    /// Whether this gateway encrypts its connections.
    pub is_tls: bool,
}

/// The bounds of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct MaxBody {
    pub bytes: usize,
    /// The longest time from the end of the head to the end of the body.
    pub time: Duration,
}

/// The kernel's routes: calls, tools, sagas, sessions, and what operators ask.
pub fn kernel() -> Routes {
    Routes::default()
        .with(pages::routes())
        .with(calls::routes())
        .with(calls::asked::routes())
        .with(calls::preview::routes())
        .with(tools::routes())
        .with(ledger::listing::routes())
        .with(ledger::export::routes())
        .with(ledger::routes())
        .with(ledger::many::routes())
        .with(sagas::routes())
        .with(sessions::routes())
        .with(calls::approvals::routes())
        .with(audit::routes())
        .with(events::routes())
        .with(ledger::users::routes())
        .with(ops::routes())
        .with_document()
}

/// The route that says whether the process lives, for listeners without the kernel's routes.
pub fn health() -> Routes {
    Routes::default().with(vec![ops::health()])
}
