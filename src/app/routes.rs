//! The routes of each listener: those of the kernel, and those of the wings of this build.

use axum::Router;

use super::wings::WingServices;
use crate::http::{self, Http, Routes};

/// Every route of the gateway.
pub fn router(http: Http, wings: &WingServices) -> Router {
    wings.add_proxies(routes(&http, wings), &http).serve(http)
}

/// Every route but those of proxies, which have a listener of their own.
pub fn router_without_proxies(http: Http, wings: &WingServices) -> Router {
    routes(&http, wings).serve(http)
}

/// The routes of `server.proxy_listen`.
pub fn proxy_router(http: Http, wings: &WingServices) -> Router {
    wings.add_proxies(http::health(), &http).serve(http)
}

/// The routes of MCP servers alone, for `oncegate wrap`.
#[cfg(feature = "mcp")]
pub fn upstream_router(http: &Http, wings: &WingServices) -> Router {
    crate::mcp::upstream_routes(wings.mcp(http))
}

/// The routes of the console alone, for `oncegate wrap`.
#[cfg(all(feature = "console", feature = "mcp", feature = "sqlite"))]
pub fn console_router(http: Http, wings: &WingServices) -> Router {
    wings.add_console(Routes::default()).serve(http)
}

fn routes(http: &Http, wings: &WingServices) -> Routes {
    wings.add_routes(http::kernel(), http)
}
