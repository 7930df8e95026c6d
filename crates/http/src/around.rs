//! What surrounds all routes of a listener, in one layer: each layer takes a microsecond of every request.

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

/// Answers a request before any route does, or gives it back for the routes.
pub type Before =
    Box<dyn Fn(Request) -> ControlFlow<BoxFuture<'static, Response>, Request> + Send + Sync>;

/// Refuses requests over HTTP/1.1 without one `Host`, asks what comes before the routes, and notes each problem that is
/// answered.
pub struct Around {
    gateway: Arc<Gateway>,
    prefixes: Vec<Prefix>,
    before: Vec<Before>,
    is_tls: bool,
}

impl Around {
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            gateway,
            prefixes: Vec::new(),
            before: Vec::new(),
            is_tls: false,
        }
    }

    /// Says of which interface the paths below these prefixes are.
    #[must_use]
    pub fn below(self, prefixes: Vec<Prefix>) -> Self {
        Self { prefixes, ..self }
    }

    /// Asks these about each request, before the routes.
    #[must_use]
    pub(super) fn asking(self, before: Vec<Before>) -> Self {
        Self { before, ..self }
    }

    /// Tells browsers that they come back over TLS only. A proxy that ends TLS before the gateway says that itself.
    #[must_use]
    pub(super) fn encrypted(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// Puts it around a router.
    pub fn wrap(self, router: Router) -> Router {
        let all = Slug::ALL.iter().map(|slug| slug.as_str());
        self.gateway.refusals.expect(all);
        router.layer(from_fn_with_state(Arc::new(self), pass))
    }

    /// The answer of the first that does not give the request back, or of its route.
    async fn answer(&self, mut request: Request, next: Next) -> Response {
        for before in &self.before {
            match before(request) {
                ControlFlow::Break(answered) => return answered.await,
                ControlFlow::Continue(returned) => request = returned,
            }
        }
        next.run(request).await
    }
}

async fn pass(State(around): State<Arc<Around>>, mut request: Request, next: Next) -> Response {
    let (asker, uri) = (Asker::default(), request.uri().clone());
    request.extensions_mut().insert(asker.clone());
    let mut response = match host::has_one(&request) {
        Ok(()) => around.answer(request, next).await,
        Err(problem) => problem.into_response(),
    };
    if around.is_tls {
        let headers = response.headers_mut();
        headers.insert(STRICT_TRANSPORT_SECURITY, STAY_ENCRYPTED);
    }
    if let Some(slug) = response.extensions().get::<Slug>() {
        note(&around.gateway, &around.prefixes, uri.path(), &asker, *slug);
    }
    response
}
