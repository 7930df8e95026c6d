//! Every problem that is answered leaves a trace: it is counted by its slug, and some are logged.
//!
//! A wing that answers with something else than a [`Problem`](super::Problem) puts the slug into the answer's extensions.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

use super::Slug;
use crate::host;
use oncegate_engine::metrics::Interface;
use oncegate_engine::{Gateway, Refused, TokenRefused};

/// The prefix of the kernel's routes that are about one tool.
const OF_TOOLS: &str = "/v1/tools/";

/// Paths that begin with this are those of an interface, and so is the path itself.
pub type Prefix = (&'static str, Interface);

/// What becomes known of a request while it is read. It is in the request's extensions.
#[derive(Clone, Default)]
pub struct Asker(Arc<Known>);

#[derive(Default)]
struct Known {
    tenant: OnceLock<String>,
    tool: OnceLock<String>,
    interface: OnceLock<Interface>,
}

impl Asker {
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Notes the tenant of its token.
    pub fn has_tenant(&self, tenant: &str) {
        self.0.tenant.get_or_init(|| tenant.to_owned());
    }

    /// Notes the tool that it asks for, which need not exist.
    pub fn asks_for(&self, tool: &str) {
        self.0.tool.get_or_init(|| tool.to_owned());
    }

    /// Notes the protocol that it speaks.
    pub fn speaks(&self, interface: Interface) {
        self.0.interface.get_or_init(|| interface);
    }

    /// Counts that it was answered with this problem, where the answer has no extensions any more.
    pub fn note(&self, gateway: &Gateway, slug: Slug) {
        let tools = gateway.base.tools();
        // What is asked for may be any text, and must not get into the log.
        let tool = self.0.tool.get();
        let tool = tool.and_then(|name| tools.get_key_value(name));
        gateway.refusals.note_problem(Refused {
            problem: slug.as_str(),
            interface: self.0.interface.get().copied().unwrap_or_default(),
            tool: tool.map(|(name, _)| name.as_str()),
            tenant: self.0.tenant.get().map(String::as_str),
        });
        // A token that is known, and whose scopes do not cover the request.
        if slug == Slug::Forbidden {
            gateway.refusals.note_refused(TokenRefused::Scope);
        }
    }
}

/// Puts a layer around a router that refuses requests without one `Host`, and notes each problem that is answered.
///
/// It is one layer, because each layer takes a microsecond of every request.
pub fn noted(router: Router, gateway: Arc<Gateway>, prefixes: Vec<Prefix>) -> Router {
    gateway
        .refusals
        .expect(Slug::ALL.iter().map(|slug| slug.as_str()));
    router.layer(from_fn_with_state((gateway, Arc::new(prefixes)), note))
}

type Noting = (Arc<Gateway>, Arc<Vec<Prefix>>);

async fn note(
    State((gateway, prefixes)): State<Noting>,
    mut request: Request,
    next: Next,
) -> Response {
    let (asker, uri) = (Asker::default(), request.uri().clone());
    request.extensions_mut().insert(asker.clone());
    let response = match host::has_one(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(slug) = response.extensions().get::<Slug>() {
        let path = uri.path();
        let is_below = |prefix: &str| {
            let rest = path.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if let Some((_, interface)) = prefixes.iter().find(|(prefix, _)| is_below(prefix)) {
            asker.speaks(*interface);
        }
        if let Some(rest) = path.strip_prefix(OF_TOOLS) {
            asker.asks_for(rest.split('/').next().unwrap_or_default());
        }
        asker.note(&gateway, *slug);
    }
    response
}
