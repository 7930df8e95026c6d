//! The agreement with an MCP server: revision, session and capabilities.

use std::sync::Arc;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::core::mcp::revision::{LEGACY, MODERN};

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// The revision that was agreed, and its session.
#[derive(Debug)]
pub(in crate::downstream) enum Spoken {
    Modern,
    Legacy {
        version: &'static str,
        session: Option<HeaderValue>,
    },
}

/// An MCP server's answer to `server/discover` or `initialize`.
#[derive(Debug, Clone)]
pub(in crate::downstream) struct Agreement {
    pub(super) spoken: Arc<Spoken>,
    pub(super) about: Arc<About>,
}

impl Agreement {
    /// Reads the answer to `server/discover`; `None`: the server does not speak 2026-07-28.
    pub(super) fn modern(answer: &Value) -> Option<Self> {
        let versions = answer["result"]["supportedVersions"].as_array()?;
        let is_modern = versions.iter().any(|version| version == MODERN);
        is_modern.then(|| Self {
            spoken: Arc::new(Spoken::Modern),
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
        let spoken = Spoken::Legacy {
            version: known.ok_or("the server speaks no revision that is spoken here")?,
            session,
        };
        Ok(Self {
            spoken: Arc::new(spoken),
            about: Arc::new(About::of(&answer["result"])),
        })
    }

    pub(super) fn is_modern(&self) -> bool {
        matches!(*self.spoken, Spoken::Modern)
    }
}

/// What clients of a server learn about it.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The capabilities that the gateway passes on.
    pub capabilities: Vec<&'static str>,
    pub instructions: String,
}

/// Capabilities that the gateway passes on, besides calls of tools.
const PASSED_ON: [&str; 4] = ["tools", "resources", "prompts", "completions"];
/// The longest instructions that are kept, in bytes.
const MAX_INSTRUCTIONS: usize = 16 << 10;

impl About {
    fn of(result: &Value) -> Self {
        let theirs = &result["capabilities"];
        let passed_on = PASSED_ON
            .into_iter()
            .filter(|name| theirs[name].is_object());
        let instructions = result["instructions"].as_str().unwrap_or_default();
        let end = instructions.floor_char_boundary(MAX_INSTRUCTIONS);
        Self {
            capabilities: passed_on.collect(),
            instructions: instructions[..end].to_owned(),
        }
    }
}

impl Spoken {
    pub(super) fn has_session(&self) -> bool {
        matches!(
            self,
            Self::Legacy {
                session: Some(_),
                ..
            }
        )
    }

    /// The headers of the envelope.
    pub(super) fn headers(&self, method: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self {
            Self::Modern => {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(MODERN));
                headers.insert("mcp-method", HeaderValue::from_static(method));
            }
            Self::Legacy { version, session } => {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
                headers.extend(session.clone().map(|session| (SESSION, session)));
            }
        }
        headers
    }
}
