//! An MCP server, as the configuration has it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::McpTool;
use crate::Endpoint;
use oncegate_rules::approval;
use oncegate_rules::mcp::mirrored::Mirrored;
use oncegate_rules::tool::{AsTask, Effect, OnCancel};

/// An MCP server, and the settings of its unlisted tools.
#[derive(Debug, Clone)]
pub struct UpstreamAt {
    pub name: String,
    /// The endpoint, without a tool's name.
    pub endpoint: Endpoint,
    /// The effect of unlisted tools; `None`: they are not served.
    pub unlisted: Option<Effect>,
    /// Whether a tool counts as reading if its annotations say so.
    pub trusts_annotations: bool,
    /// Whether a refusal by an HTTP status proves nothing of a call of its tools.
    pub strict: bool,
    /// The timeout of calls of unlisted tools.
    pub timeout: Duration,
    /// How long derived keys of unlisted tools are remembered.
    pub dedup_window: Duration,
    /// AsTask calls of unlisted tools become tasks.
    pub task: AsTask,
    pub on_cancel: OnCancel,
    /// The server's names of tools that may be executed any number of times.
    pub repeatable: BTreeSet<String>,
    /// When calls of unlisted tools that write wait for approval; `None`: never.
    pub approval: Option<approval::Policy>,
    /// The server's names of the tools whose calls wait so, which count as writes then; empty: all that write.
    pub asked_about: BTreeSet<String>,
}

impl UpstreamAt {
    /// The endpoint of one of its tools.
    pub fn endpoint_of(&self, tool: &str, mirrored: Vec<Mirrored>, is_unlisted: bool) -> Endpoint {
        let mcp = self.endpoint.mcp.clone().map(|mcp| McpTool {
            name: tool.to_owned(),
            mirrored,
            is_unlisted,
            ..mcp
        });
        Endpoint {
            mcp,
            ..self.endpoint.clone()
        }
    }
}
