//! The MCP client that waits for a call.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use oncegate_rules::mcp::progress;

/// What a server learns of an MCP client, and where its progress goes.
#[derive(Debug, Default, Clone)]
pub struct Client {
    /// The questions that it can answer; `None`: it cannot be asked.
    pub can_answer: Option<Arc<Map<String, Value>>>,
    /// The channel for progress of its call. Notifications that find no room are lost.
    pub progress: Option<mpsc::Sender<String>>,
}

impl Client {
    /// Forwards a server's progress notification for this request.
    pub(super) fn notify_progress(&self, message: &[u8], id: &str) {
        if let Some(progress) = &self.progress
            && let Some((token, params)) = progress::read(message)
            && token == id
        {
            progress.try_send(params.to_owned()).ok();
        }
    }
}
