//! The wire: parses requests and prints answers. Decides nothing.

mod anomalies; // acts of persons on what ledger and sources disagree on
mod audit; // what persons have done
mod auth; // who is calling
mod calls; // the main door
mod console; // pages for the person who is woken up
mod host; // which name a request asks for
mod ledger; // what is known of a call
mod listing; // many calls at once
mod many; // acts on many calls or sagas at once
mod mcp; // the tools for clients that speak MCP
pub mod openapi; // the document of the doors
mod ops; // for those who run the gateway
mod pages; // a page for each problem
mod parts; // a body of a few buffers
mod pause; // a person stops a tool for a while
pub mod problem; // every failure and its status, in one table
mod proxy; // APIs that callers use as they are
mod read; // what requests bring
mod reconciliations; // what ledger and sources disagree on
mod sagas; // groups of calls that are completed or undone as a whole
mod sessions; // what a session is like, and what a person may do to it
pub mod stdio; // one client on standard input and output
mod tools; // the tools as callers and models see them

#[cfg(test)]
mod fuzz_tests;

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{any, get, post};
use axum::{Router, middleware};

pub use self::auth::Tokens;
pub use self::calls::dry_run;
pub use self::ops::{Ops, ops_router, spare_router};
use crate::core::mcp::Settings;
use crate::gateway::Gateway;

/// The state that handlers share.
#[derive(Clone)]
pub struct Http {
    pub gateway: Arc<Gateway>,
    /// Empty: open mode, which the configuration allows on loopback only.
    pub tokens: Tokens,
    pub max_body: MaxBody,
    pub mcp: Arc<Settings>,
    pub ops: Ops,
    /// Whether connections are encrypted by this gateway.
    pub is_tls: bool,
}

/// The bounds of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct MaxBody {
    pub bytes: usize,
    /// The time from the head to the body's end.
    pub time: Duration,
}

/// The routes of MCP servers alone, for a client of one of them.
pub fn upstream_router(http: Http) -> Router {
    upstreams().with_state(http)
}

fn upstreams() -> Router<Http> {
    Router::new().route("/mcp/{upstream}", post(mcp::post_to_upstream))
}

/// Every route of the gateway.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/", get(pages::root))
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{tool}", get(pause::show))
        .route("/v1/tools/{tool}/calls", post(calls::call))
        .route("/v1/tools/{tool}/key", post(tools::key))
        .route("/mcp", post(mcp::post))
        .merge(upstreams())
        .route("/proxy/{name}", any(proxy::by_path))
        .route("/proxy/{name}/", any(proxy::by_path))
        .route("/proxy/{name}/{*path}", any(proxy::by_path))
        .route("/v1/calls", get(listing::list))
        .route("/v1/tools/{tool}/pause", post(pause::pause))
        .route("/v1/tools/{tool}/resume", post(pause::resume))
        .route("/v1/calls/resolve", post(many::resolve))
        .route("/v1/calls/probe", post(many::probe))
        .route("/v1/calls/{id}", get(ledger::show))
        .route("/v1/calls/{id}/replay", post(ledger::replay))
        .route("/v1/calls/{id}/resolve", post(ledger::resolve))
        .route("/v1/calls/{id}/probe", post(ledger::probe))
        .route("/v1/calls/{id}/compensate", post(sagas::compensate))
        .route("/v1/sagas", get(sagas::list))
        .route("/v1/sagas/retry", post(many::retry).get(sagas::show_named))
        .route("/v1/sagas/skip", post(many::skip).get(sagas::show_named))
        .route("/v1/sagas/{id}", get(sagas::show))
        .route("/v1/sagas/{id}/complete", post(sagas::complete))
        .route("/v1/sagas/{id}/abort", post(sagas::abort))
        .route("/v1/sagas/{id}/retry", post(sagas::retry))
        .route("/v1/sagas/{id}/skip", post(sagas::skip))
        .route("/v1/reconciliations", get(reconciliations::list))
        .route("/v1/reconciliations/{name}", get(reconciliations::show))
        .route("/v1/reconciliations/{name}/run", post(reconciliations::run))
        .route(
            "/v1/reconciliations/{name}/anomalies/{id}/compensate",
            post(anomalies::undo),
        )
        .route(
            "/v1/reconciliations/{name}/anomalies/{id}/ignore",
            post(anomalies::ignore),
        )
        .route(
            "/v1/reconciliations/{name}/anomalies/{id}/adopt",
            post(anomalies::adopt),
        )
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/sessions/{id}", get(sessions::show))
        .route("/v1/sessions/{id}/unlock", post(sessions::unlock))
        .route("/v1/sessions/{id}/freeze", post(sessions::freeze))
        .route("/v1/sessions/{id}/thaw", post(sessions::thaw))
        .route("/v1/audit", get(audit::list))
        .route("/v1/store/accept-loss", post(ops::accept_loss))
        .route("/.well-known/idempotency", get(tools::well_known))
        .route("/openapi.json", get(openapi::show))
        .route("/metrics", get(ops::metrics))
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(ops::readyz))
        .route("/problems", get(pages::index))
        .route("/problems/{slug}", get(pages::page))
        .merge(console::doors())
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(middleware::from_fn_with_state(http.clone(), proxy::by_host))
        .layer(middleware::from_fn_with_state(
            http.clone(),
            auth::count_forbidden,
        ))
        .with_state(http)
        .layer(middleware::from_fn(host::one_host))
}
