//! Every problem that is answered leaves a trace: it is counted by its slug, and some are logged.
//!
//! A wing that answers with something else than a [`Problem`](super::Problem) puts the slug into the answer's extensions.

use std::sync::{Arc, OnceLock};

use axum::http::Extensions;

use super::Slug;
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

/// Counts that a request for this path was answered with this problem.
pub(crate) fn note(gateway: &Gateway, prefixes: &[Prefix], path: &str, asker: &Asker, slug: Slug) {
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
    asker.note(gateway, slug);
}
