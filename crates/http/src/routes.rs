//! The routes of a listener, put together from those of the kernel and of wings.
//!
//! The kernel names no wing: the binary adds the routes of each wing. Router and OpenAPI document come from the same list.

use std::sync::Arc;

use axum::Router;

use super::listener_layer::{EarlyRoute, ListenerLayer};
use super::openapi::{self, Document, Route};
use super::problem::refusals::Prefix;
use super::{Http, problem};
use oncegate_engine::metrics::Interface;

/// The routes of a listener before they are served.
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
    /// Routes that the document does not have: their answers are pages, or those of other APIs.
    without_entry: Router<Http>,
    /// Whether there is an OpenAPI document at this listener.
    has_document: bool,
    early_routes: Vec<EarlyRoute>,
    /// The paths of interfaces other than HTTP.
    prefixes: Vec<Prefix>,
}

impl Routes {
    /// Adds `/openapi.json`: the document of all routes.
    #[must_use]
    pub(super) fn with_document(self) -> Self {
        Self {
            has_document: true,
            ..self
        }
    }

    /// Adds routes.
    #[must_use]
    pub fn with(mut self, routes: Vec<Route>) -> Self {
        self.routes.extend(routes);
        self
    }

    /// Adds routes that the document does not have.
    #[must_use]
    pub fn with_others(mut self, routes: Router<Http>) -> Self {
        self.without_entry = self.without_entry.merge(routes);
        self
    }

    /// Tries this for each request before the router, also for a path that has no route.
    #[must_use]
    pub fn with_early_route(mut self, early_route: EarlyRoute) -> Self {
        self.early_routes.push(early_route);
        self
    }

    /// The interface of the paths below this prefix, for metrics and logs. All other paths are of HTTP.
    #[must_use]
    pub fn with_interface(mut self, prefix: &'static str, interface: Interface) -> Self {
        self.prefixes.push((prefix, interface));
        self
    }

    /// The router of a listener.
    pub fn serve(mut self, http: Http) -> Router {
        let document = Arc::new(Document::default());
        if self.has_document {
            self.routes.push(openapi::route(document.clone()));
        }
        let mut routes = self.without_entry;
        for route in self.routes {
            let (path, handler, entry) = route.split();
            routes = routes.route(path, handler);
            document.add(entry);
        }
        let layer = ListenerLayer::new(http.gateway.clone())
            .with_interfaces(self.prefixes)
            .with_early_routes(self.early_routes)
            .over_tls(http.is_tls);
        let routes = routes
            .fallback(problem::unknown_path)
            .method_not_allowed_fallback(problem::method_not_allowed)
            .with_state(http);
        layer.wrap(routes)
    }
}
