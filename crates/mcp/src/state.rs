//! What the handlers share.

use std::sync::Arc;

use oncegate_http::Http;
use oncegate_rules::mcp::Settings;

use crate::upstreams::Upstreams;

/// What the handlers share.
#[derive(Clone)]
pub struct Mcp {
    pub http: Http,
    pub settings: Arc<Settings>,
    pub upstreams: Arc<Upstreams>,
}

/// Marks a message from standard input. It has no headers that repeat its arguments.
#[derive(Clone, Copy)]
pub(crate) struct FromStdin;
