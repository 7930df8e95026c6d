//! What is done to every request of a listener, in one layer: each layer takes a microsecond of every request.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::STRICT_TRANSPORT_SECURITY;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;

use super::host;
use super::problem::Slug;
use super::problem::refusals::{Asker, Prefix, note};
use oncegate_engine::Gateway;

/// A year. Other hosts below this name are none of the gateway's business.
const STAY_ENCRYPTED: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Answers a request before the router sees it, or returns the request for the router.
pub type EarlyRoute =
    Box<dyn Fn(Request) -> ControlFlow<BoxFuture<'static, Response>, Request> + Send + Sync>;

/// The one layer around a router. It refuses requests over HTTP/1.1 without exactly one `Host`, tries the early routes, and
/// then the router. It counts and logs each problem that is answered.
pub struct ListenerLayer {
    gateway: Arc<Gateway>,
    prefixes: Vec<Prefix>,
    early_routes: Vec<EarlyRoute>,
    is_tls: bool,
}

impl ListenerLayer {
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            gateway,
            prefixes: Vec::new(),
            early_routes: Vec::new(),
            is_tls: false,
        }
    }

    /// The interfaces of the paths below these prefixes, for metrics and logs. All other paths are of HTTP.
    #[must_use]
    pub fn with_interfaces(self, prefixes: Vec<Prefix>) -> Self {
        Self { prefixes, ..self }
    }

    /// Tries these in order before the router.
    #[must_use]
    pub(super) fn with_early_routes(self, early_routes: Vec<EarlyRoute>) -> Self {
        Self {
            early_routes,
            ..self
        }
    }

    /// Whether this listener speaks TLS: then browsers are told to use nothing else. A proxy that ends TLS before the gateway
    /// tells them itself.
    #[must_use]
    pub(super) fn over_tls(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// Puts the layer around a router.
    pub fn wrap(self, router: Router) -> Router {
        let all = Slug::ALL.iter().map(|slug| slug.as_str());
        self.gateway.refusals.expect(all);
        router.layer(from_fn_with_state(Arc::new(self), handle))
    }

    /// The answer of the first early route that has one, or of the router.
    async fn route(&self, mut request: Request, next: Next) -> Response {
        for early_route in &self.early_routes {
            match early_route(request) {
                ControlFlow::Break(answer) => return answer.await,
                ControlFlow::Continue(returned) => request = returned,
            }
        }
        next.run(request).await
    }
}

async fn handle(
    State(layer): State<Arc<ListenerLayer>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (asker, uri) = (Asker::default(), request.uri().clone());
    request.extensions_mut().insert(asker.clone());
    let mut response = match host::has_one(&request) {
        Ok(()) => layer.route(request, next).await,
        Err(problem) => problem.into_response(),
    };
    if layer.is_tls {
        let headers = response.headers_mut();
        headers.insert(STRICT_TRANSPORT_SECURITY, STAY_ENCRYPTED);
    }
    if let Some(slug) = response.extensions().get::<Slug>() {
        note(&layer.gateway, &layer.prefixes, uri.path(), &asker, *slug);
    }
    response
}
