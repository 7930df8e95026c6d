//! The routes of a listener, put together from those of the kernel and of wings.
//!
//! The kernel names no wing: the binary adds the routes of each wing. Router and OpenAPI document come from the same list.

use std::sync::Arc;

use axum::{Router, middleware};

use super::openapi::{self, Document, Route};
use super::problem::refusals::{self, Prefix};
use super::{Http, encrypted, problem};
use oncegate_engine::metrics::Interface;

/// Puts something around all routes of a listener.
type Around = Box<dyn FnOnce(Router<Http>) -> Router<Http>>;

/// The routes of a listener before they are served.
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
    /// Routes that the document does not have: their answers are pages, or those of other APIs.
    without_entry: Router<Http>,
    /// Whether there is an OpenAPI document at this listener.
    has_document: bool,
    around: Vec<Around>,
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

    /// Puts a layer around all routes, and around requests that have none.
    #[must_use]
    pub fn around(mut self, layer: impl FnOnce(Router<Http>) -> Router<Http> + 'static) -> Self {
        self.around.push(Box::new(layer));
        self
    }

    /// Says of which interface the paths below this prefix are.
    #[must_use]
    pub fn below(mut self, prefix: &'static str, interface: Interface) -> Self {
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
        let mut routes = routes
            .fallback(problem::unknown_path)
            .method_not_allowed_fallback(problem::method_not_allowed);
        for layer in self.around {
            routes = layer(routes);
        }
        let gateway = http.gateway.clone();
        if http.is_tls {
            routes = routes.layer(middleware::map_response(encrypted::stay_encrypted));
        }
        let routes = routes.with_state(http);
        // Around all others, because they refuse requests, too.
        refusals::noted(routes, gateway, self.prefixes)
    }
}
