//! The wire: parses requests and writes answers. It decides nothing.

mod audit; // the acts of operators
mod auth; // the caller, by its token
mod calls; // the main route: a call of a tool
mod console; // pages for the operator who is woken up
mod contained; // what every answer of a proxy says to browsers and caches
mod encrypted; // what is said of later connections, where TLS ends here
mod headers; // headers of requests and responses
mod host; // the host and the origin of a request
mod ledger; // one call
mod listing; // many calls
mod many; // acts on many calls or sagas at once
mod mcp; // the tools for clients that speak MCP
pub mod openapi; // the document of all routes
mod ops; // health, readiness, metrics
mod pages; // the welcome, and a page for each problem
mod parts; // a body of several buffers
pub mod problem; // every failure and its status, in one table
mod proxy; // APIs that callers use as they are
mod read; // paths, queries and bodies of requests
mod reconciliations; // reports on where ledger and sources disagree
mod sagas; // groups of calls that are completed or undone as a whole
mod sessions; // sessions, and the acts of operators on them
pub mod stdio; // one MCP client on standard input and output
mod tools; // the tools as callers and models see them, and their pauses

#[cfg(test)]
mod fuzz_tests;

use std::sync::Arc;
use std::time::Duration;

use axum::routing::{any, get, post};
use axum::{Router, middleware};

pub use self::auth::Tokens;
pub use self::calls::dry_run;
pub use self::ops::{Ops, ops_router, spare_router};
use oncegate_engine::Gateway;
use oncegate_rules::mcp::Settings;

/// The state that handlers share.
#[derive(Clone)]
pub struct Http {
    pub gateway: Arc<Gateway>,
    /// Empty: open mode, which the configuration allows on loopback only.
    pub tokens: Tokens,
    pub max_body: MaxBody,
    pub mcp: Arc<Settings>,
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

/// The routes of MCP servers alone, for `oncegate wrap`.
pub fn upstream_router(http: Http) -> Router {
    upstreams().with_state(http)
}

fn upstreams() -> Router<Http> {
    Router::new()
        .route("/mcp/{upstream}", post(mcp::post_to_upstream))
        .merge(mcp::upstreams_with_slash())
}

fn proxies() -> Router<Http> {
    Router::new()
        .route("/proxy/{name}", any(proxy::by_path))
        .route("/proxy/{name}/", any(proxy::by_path))
        .route("/proxy/{name}/{*path}", any(proxy::by_path))
}

/// Every route of the gateway.
pub fn router(http: Http) -> Router {
    served(routes().merge(proxies()), http, true)
}

/// Every route but those of proxies, which have a listener of their own.
pub fn router_without_proxies(http: Http) -> Router {
    served(routes(), http, false)
}

/// The routes of `server.proxy_listen`.
pub fn proxy_router(http: Http) -> Router {
    served(proxies().merge(ops::health()), http, true)
}

fn served(routes: Router<Http>, http: Http, has_proxies: bool) -> Router {
    let mut routes = routes
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::method_not_allowed);
    if has_proxies {
        let by_host = middleware::from_fn_with_state(http.clone(), proxy::by_host);
        routes = routes.layer(by_host);
    }
    let count = middleware::from_fn_with_state(http.clone(), auth::count_forbidden);
    let encrypted = middleware::map_response_with_state(http.clone(), encrypted::stay_encrypted);
    routes
        .layer(count)
        .layer(encrypted)
        .with_state(http)
        .layer(middleware::from_fn(host::one_host))
}

fn routes() -> Router<Http> {
    Router::new()
        .route("/", get(pages::root))
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{tool}", get(tools::show))
        .route("/v1/tools/{tool}/calls", post(calls::call))
        .route("/v1/tools/{tool}/key", post(tools::key))
        .route("/mcp", post(mcp::post))
        .merge(mcp::with_slash())
        .merge(upstreams())
        .route("/v1/calls", get(listing::list))
        .route("/v1/tools/{tool}/pause", post(tools::pause))
        .route("/v1/tools/{tool}/resume", post(tools::resume))
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
            post(reconciliations::undo),
        )
        .route(
            "/v1/reconciliations/{name}/anomalies/{id}/ignore",
            post(reconciliations::ignore),
        )
        .route(
            "/v1/reconciliations/{name}/anomalies/{id}/adopt",
            post(reconciliations::adopt),
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
}
