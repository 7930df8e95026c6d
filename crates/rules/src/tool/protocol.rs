//! How a tool is spoken to, with the settings that only this protocol has.

use super::{Errors, Tool};
use crate::compensation::Template;
use crate::key::Pointer;
use crate::proxy;
use crate::request::{Shape, Target};

/// The protocol of a tool.
#[derive(Debug, Clone)]
pub enum Protocol {
    /// The arguments become an HTTP request.
    Http(Http),
    /// The tool is an MCP server's. It may answer a call with questions to the client.
    Mcp(Mcp),
    /// An API that callers use as it is. Its calls have no arguments.
    Proxy(Proxy),
}

/// A tool that is an HTTP route.
#[derive(Debug, Clone, Default)]
pub struct Http {
    /// How the arguments become the request; `None`: they are its body.
    pub request: Option<Shape>,
    pub probe: Option<Probe>,
}

/// A tool of an MCP server.
#[derive(Debug, Clone, Default)]
pub struct Mcp {
    /// The meaning of its errors.
    pub errors: Errors,
    pub asks: Option<Asks>,
}

/// A proxied API.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    pub policy: proxy::Policy,
    pub probe: Option<Probe>,
    /// The path of the rule for these requests. Its segments `{name}` may stand in the URL of the probe.
    pub path: Option<String>,
}

/// A URL that is asked whether a call was executed.
#[derive(Debug, Clone)]
pub struct Probe {
    pub target: Target,
    /// The place of the effect, if the answer is 2xx even where there is none.
    pub found: Option<Pointer>,
    /// Of a proxy: whether what it finds is the answer that repetitions get.
    pub answers: bool,
}

/// A probe by a call of another tool, which only reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Asks {
    /// The tool, and its arguments.
    pub by: Template,
    /// The place in the result that is not null if the call was executed.
    pub found: Pointer,
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http(Http::default())
    }
}

impl Protocol {
    /// Exchanges the URL that is asked whether a call was executed. An MCP server has none.
    pub fn set_probe(&mut self, probe: Probe) {
        match self {
            Self::Http(Http { probe: at, .. }) | Self::Proxy(Proxy { probe: at, .. }) => {
                *at = Some(probe);
            }
            Self::Mcp(_) => {}
        }
    }
}

impl Tool {
    /// How the arguments become an HTTP request; `None`: they are sent as they are, or there are none.
    pub fn request(&self) -> Option<&Shape> {
        match &self.protocol {
            Protocol::Http(http) => http.request.as_ref(),
            Protocol::Mcp(_) | Protocol::Proxy(_) => None,
        }
    }

    /// The policy of a proxied API; `None`: calls have arguments.
    pub fn proxy(&self) -> Option<&proxy::Policy> {
        match &self.protocol {
            Protocol::Proxy(proxy) => Some(&proxy.policy),
            Protocol::Http(_) | Protocol::Mcp(_) => None,
        }
    }

    /// The path of the rule for requests of a proxied API, if a rule has settings of its own for them.
    pub fn rule_path(&self) -> Option<&str> {
        match &self.protocol {
            Protocol::Proxy(proxy) => proxy.path.as_deref(),
            Protocol::Http(_) | Protocol::Mcp(_) => None,
        }
    }

    /// Whether callers use the tool, an API, as it is.
    pub fn is_proxy(&self) -> bool {
        self.proxy().is_some()
    }

    /// The URL that is asked whether a call was executed.
    pub fn probe(&self) -> Option<&Probe> {
        match &self.protocol {
            Protocol::Http(Http { probe, .. }) | Protocol::Proxy(Proxy { probe, .. }) => {
                probe.as_ref()
            }
            Protocol::Mcp(_) => None,
        }
    }

    /// The tool that is asked whether a call was executed.
    pub fn asks(&self) -> Option<&Asks> {
        match &self.protocol {
            Protocol::Mcp(mcp) => mcp.asks.as_ref(),
            Protocol::Http(_) | Protocol::Proxy(_) => None,
        }
    }

    /// The meaning of an MCP server's errors.
    pub fn errors(&self) -> Errors {
        match &self.protocol {
            Protocol::Mcp(mcp) => mcp.errors,
            Protocol::Http(_) | Protocol::Proxy(_) => Errors::default(),
        }
    }

    /// Whether the tool may answer a call with questions to the client, as MCP servers may.
    pub fn may_ask(&self) -> bool {
        matches!(self.protocol, Protocol::Mcp(_))
    }
}
