//! The agreement with an MCP server: revision, session and capabilities.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use oncegate_rules::mcp::revision::{LEGACY, MODERN, has_header};

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// An MCP server's answer to `server/discover` or `initialize`.
pub(crate) struct Agreement {
    version: &'static str,
    /// Only of a revision before 2026-07-28.
    session: Option<HeaderValue>,
    /// Whether the server has answered a request in this agreement.
    has_served: AtomicBool,
    pub(super) about: Arc<About>,
}

impl Agreement {
    /// Reads the answer to `server/discover`; `None`: the server does not support 2026-07-28.
    pub(super) fn modern(answer: &Value) -> Option<Self> {
        let versions = answer["result"]["supportedVersions"].as_array()?;
        let is_modern = versions.iter().any(|version| version == MODERN);
        is_modern.then(|| Self {
            version: MODERN,
            session: None,
            has_served: AtomicBool::new(false),
            about: Arc::new(About::of(&answer["result"])),
        })
    }

    /// Reads the answer to `initialize`.
    ///
    /// # Errors
    /// It names no revision that is spoken here.
    pub(super) fn legacy(answer: &Value, session: Option<HeaderValue>) -> Result<Self, String> {
        let version = answer["result"]["protocolVersion"].as_str();
        let version = version.ok_or("the server refuses to be initialized")?;
        let known = LEGACY.into_iter().find(|known| *known == version);
        Ok(Self {
            version: known.ok_or("the server supports no revision that the gateway supports")?,
            session,
            has_served: AtomicBool::new(false),
            about: Arc::new(About::of(&answer["result"])),
        })
    }

    pub(super) fn is_modern(&self) -> bool {
        self.version == MODERN
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Notes that the server has answered a request.
    pub(super) fn served(&self) {
        self.has_served.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// The headers of the envelope.
    pub(super) fn headers(&self, method: &'static str) -> HeaderMap {
        let mut headers = envelope(self.version, method);
        headers.extend(self.session.clone().map(|session| (SESSION, session)));
        headers
    }
}

/// The headers of a request without a session.
pub(super) fn envelope(version: &'static str, method: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if has_header(version) {
        headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
    }
    if version == MODERN {
        headers.insert("mcp-method", HeaderValue::from_static(method));
    }
    headers
}

/// What clients of a server learn about it.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The capabilities that the gateway forwards.
    pub capabilities: Vec<&'static str>,
    pub instructions: String,
}

/// Capabilities that the gateway forwards, besides calls of tools.
const FORWARDED: [&str; 4] = ["tools", "resources", "prompts", "completions"];
/// The longest instructions that are kept, in bytes.
const MAX_INSTRUCTIONS: usize = 16 << 10;

impl About {
    fn of(result: &Value) -> Self {
        let capabilities = &result["capabilities"];
        let forwarded = FORWARDED
            .into_iter()
            .filter(|name| capabilities[name].is_object());
        let instructions = result["instructions"].as_str().unwrap_or_default();
        let end = instructions.floor_char_boundary(MAX_INSTRUCTIONS);
        Self {
            capabilities: forwarded.collect(),
            instructions: instructions[..end].to_owned(),
        }
    }
}
